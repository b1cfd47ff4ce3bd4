//! The child of a fork has a copy of its parent's volume, which it leaves alone.

use crate::options;
use lanefs::{Cred, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, FileDevice, FileOptions};
use std::path::Path;
use std::sync::Arc;

/// Runs `child` in the child of a fork, and returns what it answers.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses nothing that a lock of another thread may guard but the allocator,
    // which libc keeps whole, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(100);
            // SAFETY: it ends the child without running anything of its parent's.
            unsafe { libc::_exit(answer) }
        }
        pid => {
            assert!(pid > 0, "no fork");
            let mut status = 0;
            // SAFETY: the status is this function's.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

/// Returns the place in the list of the first result that is not EIO; 0 if all are.
fn all_refused(results: &[lanefs::Result<()>]) -> i32 {
    let wrong = results.iter().position(|r| r.as_ref().map_or_else(|e| e.errno(), |()| 0) != libc::EIO);
    wrong.map_or(0, |at| at as i32 + 1)
}

fn open(image: &Path, io_uring: bool) -> Volume {
    let device = FileDevice::open_with(image, FileOptions { io_uring, ..FileOptions::default() }).unwrap();
    let options = MountOptions { background: true, ..options() };
    Volume::open_devices(vec![Arc::new(device) as Arc<dyn Device>], &options).unwrap()
}

/// It wrote over what the parent had synced, and closing the volume panicked.
#[test]
fn a_child_is_refused_and_the_parents_volume_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let [image, other] = ["a.lane", "b.lane"].map(|name| dir.path().join(name));
    for image in [&image, &other] {
        Volume::create(&[image], 64 << 20).unwrap();
    }
    for io_uring in [true, false] {
        let volume = open(&image, io_uring);
        let fs = volume.as_user(Cred::root());
        let synced = |n: u32| {
            let name = format!("/{io_uring}-{n}");
            fs.write(&name, vec![n as u8 + 1; 10_000]).unwrap();
            fs.open(&name, OpenOptions::new().read(true)).unwrap().sync_all().unwrap();
            name
        };
        let file = fs.open(synced(0), OpenOptions::new().read(true)).unwrap();
        let removed = fs.open(synced(1), OpenOptions::new().read(true)).unwrap();
        fs.unlink(format!("/{io_uring}-1")).unwrap();
        let names: Vec<String> = (2..40)
            .map(|n| {
                let mine = volume.clone();
                let answer = in_child(|| {
                    let fs = mine.as_user(Cred::root());
                    let mut bytes = [0; 10];
                    let refused = all_refused(&[
                        fs.write("/child", [9; 20_000]),
                        fs.read(format!("/{io_uring}-0")).map(drop),
                        file.read_at(&mut bytes, 0).map(drop),
                        file.sync_all(),
                        fs.unlink(format!("/{io_uring}-0")),
                        fs.stat("/").map(drop),
                        mine.sync(),
                        mine.checkpoint().map(drop),
                        mine.close(),
                    ]);
                    if refused > 0 {
                        return refused;
                    }
                    drop((fs, mine));
                    if n == 2 {
                        // A volume of its own, by the thread that used the parent's.
                        let own = open(&other, io_uring);
                        let fs = own.as_user(Cred::root());
                        fs.write("/own", [7; 20_000]).unwrap();
                        own.close().unwrap();
                    }
                    0
                });
                assert_eq!(answer, 0, "which call of the child was not refused");
                synced(n)
            })
            .collect();
        drop((file, removed));
        volume.close().unwrap();
        let volume = open(&image, io_uring);
        let fs = volume.as_user(Cred::root());
        for (n, name) in (2u32..).zip(&names) {
            assert_eq!(fs.read(name).unwrap(), vec![n as u8 + 1; 10_000], "{name}");
        }
        assert_eq!(fs.read_dir("/").unwrap().count(), if io_uring { 39 } else { 2 * 39 });
        volume.close().unwrap();
        let own = open(&other, io_uring);
        assert_eq!(own.as_user(Cred::root()).read("/own").unwrap(), [7; 20_000]);
    }
}
