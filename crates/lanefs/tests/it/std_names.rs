//! Calls named as in `std::fs` answer as `std::fs` does, on a directory in memory beside.

use crate::{after_crash, errno, root, volume};
use lanefs::{CreateOptions, Cred, Error, Fs, MountOptions, Volume};
use std::fmt::Debug;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory of a file system in memory, if there is one.
pub fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// The umask of this process.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

/// A volume, and a directory of the system in which the same is done.
struct Pair {
    fs: Fs,
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Pair {
        let (volume, _) = volume(64);
        Pair { fs: volume.as_user(Cred::current()).with_umask(umask()), dir: in_memory() }
    }

    fn there(&self, path: &str) -> PathBuf {
        if path.is_empty() { PathBuf::new() } else { self.dir.path().join(path) }
    }

    /// Does the same here and there, and compares what is answered: results, and kinds of errors.
    fn same<T: PartialEq + Debug>(
        &self,
        path: &str,
        ours: impl FnOnce(&Fs, &str) -> lanefs::Result<T>,
        theirs: impl FnOnce(PathBuf) -> std::io::Result<T>,
    ) -> Result<T, ErrorKind> {
        let ours = ours(&self.fs, path).map_err(|e| std::io::Error::from(e).kind());
        let theirs = theirs(self.there(path)).map_err(|e| e.kind());
        assert_eq!(ours, theirs, "{path:?}");
        ours
    }

    fn create_dir(&self, path: &str) {
        let _ = self.same(path, |f, p| f.create_dir(p), std::fs::create_dir);
    }
    fn create_dir_all(&self, path: &str) {
        let _ = self.same(path, |f, p| f.create_dir_all(p), std::fs::create_dir_all);
    }
    fn remove_dir(&self, path: &str) {
        let _ = self.same(path, |f, p| f.remove_dir(p), std::fs::remove_dir);
    }
    fn remove_dir_all(&self, path: &str) {
        let _ = self.same(path, |f, p| f.remove_dir_all(p), std::fs::remove_dir_all);
    }
    fn remove_file(&self, path: &str) {
        let _ = self.same(path, |f, p| f.remove_file(p), std::fs::remove_file);
    }
    fn write(&self, path: &str, data: &[u8]) {
        let _ = self.same(path, |f, p| f.write(p, data), |p| std::fs::write(p, data));
    }
    fn symlink(&self, target: &str, path: &str) {
        let theirs = |p| std::os::unix::fs::symlink(target, p);
        let _ = self.same(path, |f, p| f.symlink(target, p), theirs);
    }
    /// To a path below the same directory.
    fn two(
        &self,
        from: &str,
        to: &str,
        ours: impl FnOnce(&Fs, &str, &str) -> lanefs::Result<u64>,
        theirs: impl FnOnce(PathBuf, PathBuf) -> std::io::Result<u64>,
    ) {
        let target = self.there(to);
        let _ = self.same(from, |f, p| ours(f, p, to), |p| theirs(p, target));
    }
    fn rename(&self, from: &str, to: &str) {
        self.two(from, to, |f, a, b| f.rename(a, b).map(|_| 0), |a, b| std::fs::rename(a, b).map(|_| 0));
    }
    fn hard_link(&self, from: &str, to: &str) {
        let theirs = |a, b| std::fs::hard_link(a, b).map(|_| 0);
        self.two(from, to, |f, a, b| f.hard_link(a, b).map(|_| 0), theirs);
    }
    fn copy(&self, from: &str, to: &str) {
        self.two(from, to, |f, a, b| f.copy(a, b), std::fs::copy);
    }

    /// Compares all that is told of a path.
    fn look(&self, path: &str) {
        let _ = self.same(path, |f, p| f.exists(p), std::fs::exists);
        let _ = self.same(path, |f, p| f.read_link(p), std::fs::read_link);
        let _ = self.same(path, |f, p| f.read(p), std::fs::read);
        let _ = self.same(path, |f, p| f.read_to_string(p), std::fs::read_to_string);
        let ours = |m: lanefs::Metadata| {
            // Sizes of directories are each file system's own.
            let len = if m.is_dir() { 0 } else { m.len() };
            (m.is_dir(), m.is_file(), m.is_symlink(), len, m.permissions().mode(), m.permissions().readonly())
        };
        let theirs = |m: std::fs::Metadata| {
            let (len, p) = (if m.is_dir() { 0 } else { m.len() }, m.permissions());
            (m.is_dir(), m.is_file(), m.is_symlink(), len, p.mode() & 0o7777, p.readonly())
        };
        let _ = self.same(path, |f, p| f.metadata(p).map(ours), |p| std::fs::metadata(p).map(theirs));
        let _ = self.same(
            path,
            |f, p| f.symlink_metadata(p).map(ours),
            |p| std::fs::symlink_metadata(p).map(theirs),
        );
        let names = |f: &Fs, p: &str| {
            let mut all = f.read_dir(p)?.map(|e| Ok(e?.file_name())).collect::<lanefs::Result<Vec<_>>>()?;
            all.sort();
            Ok(all)
        };
        let _ = self.same(path, names, |p| {
            let mut all =
                std::fs::read_dir(p)?.map(|e| Ok(e?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
            all.sort();
            Ok(all)
        });
    }

    fn look_at_all(&self) {
        for path in PLACES {
            self.look(path);
        }
    }
}

const PLACES: &[&str] = &[
    "", "a", "a/", "a/b", "a/b/c", "a/b/c/d", "f", "f/", "f/x", "g", "bytes", "link", "link/", "link/c",
    "dangling", "loop", "none", "none/x", "a/..", "a/./b",
];

#[test]
fn each_call_answers_as_that_of_std() {
    let p = Pair::new();
    p.look_at_all();
    for path in ["a", "a", "a/b", "none/x", "a/"] {
        p.create_dir(path);
    }
    p.write("f", b"a file");
    p.write("bytes", b"\xff\xfe");
    p.write("a", b"a directory");
    p.write("none/x", b"nowhere");
    p.symlink("a/b", "link");
    p.symlink("nothing", "dangling");
    p.symlink("loop", "loop");
    p.symlink("other", "loop");
    for path in ["", "a/b/c/d", "a/b/c/d/", "f", "f/x", "link/q/r", "dangling", "a//b/./e"] {
        p.create_dir_all(path);
    }
    p.look_at_all();
    for path in ["a", "f", "none", "link", "f/x", "a/b/e", "a/b/e"] {
        p.remove_dir(path);
    }
    for (from, to) in [("f", "g"), ("f", "f"), ("a", "h"), ("none", "h"), ("g", "none/x"), ("link", "h2")] {
        p.hard_link(from, to);
    }
    for (from, to) in [("g", "g2"), ("g2", "a"), ("a/b", "g2"), ("none", "x"), ("f", "link"), ("a", "a/b/x")]
    {
        p.rename(from, to);
    }
    p.look_at_all();
    for path in ["a", "none", "g2", "dangling", "loop"] {
        p.remove_file(path);
    }
    p.look_at_all();
}

#[test]
fn copies_have_content_and_mode_as_with_std() {
    let p = Pair::new();
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
    p.write("f", &long);
    p.create_dir("a");
    for mode in [0o640, 0o4711] {
        let set = |f: &Fs, q: &str| f.set_permissions(q, lanefs::Permissions::from_mode(mode));
        let std_set = |q| std::fs::set_permissions(q, std::fs::Permissions::from_mode(mode));
        p.same("f", set, std_set).unwrap();
        p.copy("f", "g");
        p.look("g");
    }
    p.write("f", b"short");
    for (from, to) in [("f", "g"), ("f", "a"), ("a", "g"), ("none", "g"), ("g", "none/x"), ("f", "a/b")] {
        p.copy(from, to);
    }
    p.look_at_all();
    // Where std would lose the content.
    assert_eq!(errno(p.fs.copy("g", "g")), libc::EINVAL);
    p.hard_link("g", "g2");
    assert_eq!(errno(p.fs.copy("g2", "g")), libc::EINVAL);
    assert_eq!(p.fs.read("g").unwrap(), b"short");
}

#[test]
fn trees_are_removed_as_with_std() {
    let p = Pair::new();
    for path in ["a/b/c/d", "a/b2", "keep/x"] {
        p.create_dir_all(path);
    }
    for n in 0..500 {
        p.write(&format!("a/b/c/file {n}"), b"x");
    }
    p.write("f", b"a file");
    p.symlink("../../keep", "a/b/out");
    p.symlink("keep", "link");
    for path in ["f", "none", "f/x", "a/b/c/file 7", "a", "a", "link"] {
        p.remove_dir_all(path);
        p.look_at_all();
        p.look("keep");
    }
    assert!(p.fs.exists("keep/x").unwrap());
}

/// Deeper than paths can name, and than a thread's stack bears in frames.
#[test]
fn a_tree_deeper_than_any_path_is_removed() {
    let (fs, _) = root(64);
    fs.create_dir("deep").unwrap();
    let mut at = fs.open_dir("deep").unwrap();
    for _ in 0..5000 {
        at.create_dir("d").unwrap();
        at = at.open_dir("d").unwrap();
    }
    drop(at);
    fs.remove_dir_all("deep").unwrap();
    assert!(!fs.exists("deep").unwrap());
}

#[test]
fn a_umask_is_taken_from_what_is_made() {
    let (fs, _) = root(16);
    let mode = |path: &str| fs.metadata(path).unwrap().permissions().mode();
    let masked = fs.with_umask(0o027);
    masked.create_dir_all("d/e").unwrap();
    masked.mkdir("sticky", 0o1777).unwrap();
    masked.write("f", b"").unwrap();
    masked.mknod("pipe", libc::S_IFIFO | 0o666, 0).unwrap();
    fs.create_dir("plain").unwrap();
    let unnamed = lanefs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).clone();
    assert_eq!(masked.open("/", &unnamed).unwrap().metadata().unwrap().permissions().mode(), 0o640);
    assert_eq!((mode("d"), mode("d/e"), mode("f"), mode("pipe")), (0o750, 0o750, 0o640, 0o640));
    assert_eq!((mode("sticky"), mode("plain")), (0o1750, 0o777));
    // What is there already, and what a call says by itself, has the bits it is given.
    masked.chmod("f", 0o666).unwrap();
    assert_eq!((mode("f"), masked.umask()), (0o666, 0o027));
}

#[test]
fn times_are_those_of_the_system() {
    let (fs, _) = root(16);
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
    fs.write("f", b"x").unwrap();
    let meta = fs.metadata("f").unwrap();
    for time in [meta.modified(), meta.accessed(), meta.created(), meta.changed()] {
        assert!(time >= before && time <= std::time::SystemTime::now());
    }
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    fs.set_times("f", Some(then.into()), Some((then - std::time::Duration::from_secs(1 << 31)).into()), true)
        .unwrap();
    let meta = fs.metadata("f").unwrap();
    assert_eq!(meta.accessed(), then);
    assert_eq!(meta.modified(), then - std::time::Duration::from_secs(1 << 31));
    assert!(meta.created() >= before);
}

#[test]
fn images_that_cannot_be_opened_or_made_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("x.lane");
    let open = || Volume::open(&[&image], &MountOptions::default());
    assert_eq!(errno(open()), libc::ENOENT);
    assert_eq!(std::io::Error::from(open().unwrap_err()).kind(), ErrorKind::NotFound);
    Volume::create(&[&image], 16 << 20).unwrap();
    assert_eq!(errno(Volume::create(&[&image], 16 << 20)), libc::EEXIST);
    assert_eq!(errno(Volume::create(&[dir.path().join("no/x")], 16 << 20)), libc::ENOENT);
    assert_eq!(errno(Volume::create(&[dir.path().join("y")], 5)), libc::EINVAL);
    let open_volume = open().unwrap();
    drop(open_volume);
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert_eq!(errno(open()), libc::EINVAL);
    assert_eq!(errno(Volume::open(&[dir.path()], &MountOptions::default())), libc::EINVAL);
}

#[test]
fn errors_of_std_keep_errno_and_message() {
    let plain = std::io::Error::from(Error::Posix(libc::EUCLEAN));
    assert_eq!((plain.raw_os_error(), Error::errno_of(&plain)), (Some(libc::EUCLEAN), Some(libc::EUCLEAN)));
    let told = std::io::Error::from(Volume::open(&["/nowhere/x"], &MountOptions::default()).unwrap_err());
    assert_eq!((told.kind(), Error::errno_of(&told)), (ErrorKind::NotFound, Some(libc::ENOENT)));
    assert!(told.to_string().contains("/nowhere/x"), "{told}");
    assert!(matches!(told.downcast::<Error>(), Ok(Error::Store(_))));
    assert_eq!(Error::errno_of(&std::io::Error::other("x")), None);
}

#[test]
fn all_options_of_a_new_volume_are_taken() {
    let image = tempfile::tempdir().unwrap();
    let image = image.path().join("x.lane");
    let mut options = CreateOptions::new();
    options
        .label("mail")
        .segment_blocks(64)
        .logs(3)
        .metadata_copies(2)
        .owner(7, 8)
        .mode(0o711)
        .time(5_000_000_000)
        .uuid([9; 16])
        .hash_key([11, 0x5ec2e7]);
    options.create(&[&image], 64 << 20).unwrap();
    let volume = Volume::open(&[&image], &MountOptions::default()).unwrap();
    let info = volume.info();
    assert_eq!((info.label.as_str(), info.segment_blocks, info.mlogs), ("mail", 64, 3));
    assert_eq!((info.metadata_copies, info.uuid, info.hash_key), (2, [9; 16], [11, 0x5ec2e7]));
    let stat = *volume.fs().metadata("/").unwrap().stat();
    assert_eq!((stat.uid, stat.gid, stat.mode & 0o7777, stat.mtime), (7, 8, 0o711, 5_000_000_000));
    // The key is nobody's business but the image's.
    let shown = format!("{volume:?} {info:?} {options:?}");
    assert!(!shown.contains(&0x5ec2e7.to_string()) && shown.contains("mail"), "{shown}");
    drop(volume);
    let device = || vec![std::sync::Arc::new(lanefs::device::FileDevice::open(&image, false).unwrap()) as _];
    assert_eq!(errno(CreateOptions::new().format(&device())), libc::EINVAL);
    CreateOptions::new().force(true).format(&device()).unwrap();
    assert_eq!(Volume::open(&[&image], &MountOptions::default()).unwrap().info().label, "");
}

#[test]
fn a_sync_of_a_directory_handle_keeps_its_names() {
    let (fs, device) = root(32);
    fs.create_dir_all("a/b").unwrap();
    let dir = fs.open_dir("a/b").unwrap();
    dir.create_dir("c").unwrap();
    dir.write("c/f", b"content").unwrap();
    dir.open_file("c/f", lanefs::OpenOptions::new().write(true)).unwrap().sync_all().unwrap();
    dir.write("g", b"").unwrap();
    dir.sync_all().unwrap();
    let found = after_crash(&device);
    assert_eq!(found.read("a/b/c/f").unwrap(), b"content");
    assert!(found.exists("a/b/g").unwrap());
}
