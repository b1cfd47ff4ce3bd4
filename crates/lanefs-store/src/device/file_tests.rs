use super::*;
use crate::device::conformance;
use zerocopy::IntoBytes;

/// A directory of its own on the file system of the build, which is more likely than /tmp to know
/// O_DIRECT.
fn dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("lanefs-file").tempdir().unwrap()
}

fn image(options: FileOptions) -> (tempfile::TempDir, FileDevice) {
    let dir = dir();
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, 1 << 20).unwrap());
    let d = FileDevice::open_with(path, options).unwrap();
    (dir, d)
}

#[test]
fn every_way_behaves_as_a_device() {
    for direct in [true, false] {
        for io_uring in [true, false] {
            let options = FileOptions { direct, io_uring, ..FileOptions::default() };
            let (_dir, d) = image(options);
            assert!(direct || !d.is_direct());
            assert!(io_uring || !d.uses_io_uring());
            conformance::check(&d);
        }
    }
}

#[test]
fn a_file_in_memory_behaves_as_a_device() {
    let dir = tempfile::Builder::new().prefix("lanefs-file").tempdir_in("/dev/shm").unwrap();
    let d = FileDevice::create(dir.path().join("image"), 1 << 20).unwrap();
    conformance::check(&d);
}

#[test]
fn misaligned_memory_is_copied() {
    let (_dir, d) = image(FileOptions::default());
    let mut mem = vec![Block([7; BLOCK_SIZE]); 3];
    let flat: Vec<u8> = mem.iter().flat_map(|b| b.0).collect();
    let start = usize::from(flat.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
    d.write(&[WriteReq { offset: 4096, data: &flat[start..start + 4096] }]).unwrap();
    assert_eq!(d.bounced(), u64::from(d.is_direct()));
    d.read(&mut [ReadReq { offset: 4096, data: &mut mem[1].0 }]).unwrap();
    assert_eq!(d.bounced(), u64::from(d.is_direct()));
    assert_eq!(mem[1].0, [7; BLOCK_SIZE]);
}

#[test]
fn contents_last_and_a_reader_cannot_write() {
    let (dir, d) = image(FileOptions::default());
    let path = dir.path().join("image");
    let b = Block([9; BLOCK_SIZE]);
    d.write(&[WriteReq { offset: 8192, data: &b.0 }]).unwrap();
    d.flush().unwrap();
    drop(d);
    let d = FileDevice::open(&path, true).unwrap();
    let mut back = Block::zeroed();
    d.read(&mut [ReadReq { offset: 8192, data: &mut back.0 }]).unwrap();
    assert!(back.0 == b.0);
    assert_eq!(d.write(&[WriteReq { offset: 0, data: &b.0 }]).unwrap_err().errno(), libc::EIO);
    assert!(d.discard(0, 4096).is_err());
    d.flush().unwrap();
}

#[test]
fn holes_are_made_in_sparse_images_only() {
    let dir = dir();
    let path = dir.path().join("image");
    let blocks = || rustix::fs::stat(&path).unwrap().st_blocks;
    let len = 64 * BLOCK_SIZE as u64;
    let written = vec![Block([1; BLOCK_SIZE]); 64];
    let write = |d: &FileDevice| d.write(&[WriteReq { offset: 0, data: written.as_bytes() }]).unwrap();
    let d = FileDevice::create(&path, len).unwrap();
    write(&d);
    let all = blocks();
    d.discard(0, len / 2).unwrap();
    if blocks() == all {
        return; // a file system without holes
    }
    write(&d);
    drop(d);
    FileDevice::open(&path, false).unwrap().discard(0, len / 2).unwrap();
    assert_eq!(blocks(), all, "it was written as a whole before it was opened");
}

#[test]
fn a_device_that_shrinks_gives_errors() {
    let (dir, d) = image(FileOptions::default());
    rustix::fs::ftruncate(
        rustix::fs::open(dir.path().join("image"), OFlags::RDWR, Mode::empty()).unwrap(),
        8192,
    )
    .unwrap();
    let mut b = Block::zeroed();
    let e = d.read(&mut [ReadReq { offset: 8192, data: &mut b.0 }]).unwrap_err();
    assert!(e.to_string().contains("truncated"), "{e}");
    d.read(&mut [ReadReq { offset: 4096, data: &mut b.0 }]).unwrap();
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let dir = dir();
    let path = dir.path().join("x");
    let why = |r: Result<FileDevice>| r.unwrap_err().to_string();
    assert!(why(FileDevice::open(&path, false)).contains("does not exist"));
    assert!(why(FileDevice::open(dir.path(), false)).contains("neither a file"));
    assert!(why(FileDevice::open("/dev/null", false)).contains("neither a file"));
    assert!(why(FileDevice::create(&path, 0)).contains("multiple of 4096"));
    assert!(why(FileDevice::create(&path, 4097)).contains("multiple of 4096"));
    assert!(why(FileDevice::create(path.join("y"), 4096)).contains("directory"));
    assert!(!path.exists());
    drop(FileDevice::create(&path, 1 << 20).unwrap());
    assert!(why(FileDevice::create(&path, 1 << 20)).contains("exists already"));
    std::fs::write(dir.path().join("e"), b"").unwrap();
    assert!(why(FileDevice::open(dir.path().join("e"), false)).contains("empty"));
    std::fs::write(dir.path().join("e"), b"something").unwrap();
    let said = why(FileDevice::open(dir.path().join("e"), false));
    assert!(!said.contains("empty") && said.contains("9 bytes"), "{said}");
}

#[test]
fn a_released_image_is_free_and_takes_no_requests() {
    let (dir, d) = image(FileOptions::default());
    let path = std::path::PathBuf::from(d.name());
    assert!(matches!(FileDevice::open(&path, false), Err(StoreError::InUse { .. })));
    d.release();
    d.release();
    let b = Block([7; BLOCK_SIZE]);
    assert!(d.write(&[WriteReq { offset: 0, data: &b.0 }]).is_err() && d.flush().is_err());
    assert!(d.read(&mut [ReadReq { offset: 0, data: &mut Block::zeroed().0 }]).is_err());
    drop(open_when_free(&path).unwrap());
    drop((dir, d));
}

/// Opens an image. A child that another test has just forked holds all files of this process until
/// it calls exec, and with them the lock of the image: this waits until it has let go.
fn open_when_free(path: &std::path::Path) -> Result<FileDevice> {
    for _ in 0..1000 {
        match FileDevice::open(path, false) {
            Err(StoreError::InUse { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened,
        }
    }
    FileDevice::open(path, false)
}

#[test]
fn a_full_file_system_under_an_image_is_called_that() {
    let e = super::io_error("image", "write", 0, libc::ENOSPC, "no space");
    assert!(e.to_string().contains("file system that holds the image is full"), "{e}");
    assert!(!e.to_string().contains("cables") && e.errno() == libc::ENOSPC);
}

/// A file attached to a loop device, until this is dropped.
struct Attached(String);

impl Attached {
    /// `None` where none can be had.
    fn new(path: &std::path::Path, options: &[&str]) -> Option<Attached> {
        let mut c = std::process::Command::new("losetup");
        let done = c.args(["--find", "--show"]).args(options).arg(path).output().ok()?;
        let name = String::from_utf8(done.stdout).ok()?.trim().to_string();
        (done.status.success() && !name.is_empty()).then_some(Attached(name))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn an_image_that_is_attached_to_a_loop_device_is_noticed() {
    let (dir, d) = image(FileOptions::default());
    let path = std::path::PathBuf::from(d.name());
    drop(d);
    let Some(attached) = Attached::new(&path, &[]) else {
        println!("skipped: no loop device can be had");
        return;
    };
    for read_only in [false, true] {
        let said = FileDevice::open(&path, read_only).unwrap_err().to_string();
        assert!(said.contains(&attached.0) && said.contains("losetup -d"), "{said}");
    }
    drop(FileDevice::open(&attached.0, false).unwrap());
    drop(attached);
    let Some(attached) = Attached::new(&path, &["--read-only"]) else { return };
    assert!(FileDevice::open(&path, false).is_err());
    drop(FileDevice::open(&path, true).unwrap());
    drop(attached);
    drop(FileDevice::open(&path, false).unwrap());
    drop(dir);
}

#[test]
fn threads_use_their_own_rings() {
    let (_dir, d) = image(FileOptions::default());
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let d = &d;
            s.spawn(move || {
                for i in 0..50u64 {
                    let at = (t * 64 + i) * 4096;
                    let b = Block([(t * 50 + i) as u8; BLOCK_SIZE]);
                    d.write(&[WriteReq { offset: at, data: &b.0 }]).unwrap();
                    let mut back = Block::zeroed();
                    d.read(&mut [ReadReq { offset: at, data: &mut back.0 }]).unwrap();
                    assert!(back.0 == b.0);
                }
            });
        }
    });
}

/// A block device is nothing a test can make without rights: give one to lose as
/// `LANEFS_TEST_BLOCK_DEVICE`, all zeros.
#[test]
fn a_block_device_behaves_as_a_device() {
    let Some(path) = std::env::var_os("LANEFS_TEST_BLOCK_DEVICE") else { return };
    let d = FileDevice::open(&path, false).unwrap();
    assert!(d.block_device);
    conformance::check(&d);
    let pid = std::process::id() as i32;
    for read_only in [false, true] {
        let e = FileDevice::open(&path, read_only).unwrap_err();
        assert!(matches!(e, StoreError::InUse { pid: p, .. } if p == pid), "{e}");
    }
    drop(d);
    drop(FileDevice::open(&path, true).unwrap());
}
