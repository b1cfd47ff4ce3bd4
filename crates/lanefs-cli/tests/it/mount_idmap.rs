//! A mount that is mapped to other owners (mount_setattr(2)), and that requests of which the kernel
//! does not say who makes them are judged right all the same.

use crate::common::*;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

on_each_transport! {
    owners_are_mapped_both_ways,
    who_is_not_root_is_known_where_the_kernel_does_not_say,
}

/// Where the users from 0 on of the volume are seen.
const FROM: u32 = 100_000;

/// A process in a user namespace of its own, until the test ends.
struct Namespace(Child);

impl Namespace {
    /// `None` where there are no user namespaces, which is said.
    fn new() -> Option<Namespace> {
        let mut command = Command::new("unshare");
        command.args(["--user", "sleep", "600"]).stdin(Stdio::null()).stderr(Stdio::null());
        let child = Namespace(command.spawn().ok()?);
        let ours = std::fs::read_link("/proc/self/ns/user").ok()?;
        for _ in 0..500 {
            let theirs = std::fs::read_link(format!("/proc/{}/ns/user", child.0.id())).ok()?;
            if theirs != ours {
                for map in ["uid_map", "gid_map"] {
                    let path = format!("/proc/{}/{map}", child.0.id());
                    std::fs::write(path, format!("0 {FROM} 65536")).ok()?;
                }
                return Some(child);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        println!("skipped: no user namespace can be had");
        None
    }
    fn file(&self) -> File {
        File::open(format!("/proc/{}/ns/user", self.0.id())).expect("a namespace")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mapped mount of a directory, until the test ends.
struct Mapped(PathBuf);

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn map(from: &Path, to: &Path, namespace: &File) -> std::io::Result<Mapped> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, from, flags)?;
    // MOUNT_ATTR_IDMAP to be set, nothing to be cleared, no propagation, the namespace.
    let attr = [0x0010_0000_u64, 0, 0, namespace.as_raw_fd() as u64];
    // SAFETY: the path is empty and ends in NUL; the kernel reads as many bytes of `attr` as it
    // has; both descriptors are open.
    let r = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    if r != 0 {
        return Err(std::io::Error::last_os_error());
    }
    move_mount(&tree, "", rustix::fs::CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(Mapped(to.into()))
}

/// Runs a shell's command as a user who is nobody special.
fn sh_as(user: u32, script: &str) -> Run {
    run_command(Command::new("sh").args(["-c", script]).uid(user).gid(user))
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

fn owners_are_mapped_both_ways() {
    let Some(namespace) = Namespace::new() else { return };
    let m = Mount::new(&[]);
    std::fs::set_permissions(m.work.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let other = m.work.path().join("mapped");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(m.path("old"), "old").unwrap();
    std::fs::create_dir(m.path("d")).unwrap();
    for name in ["old", "d"] {
        chown(m.path(name), Some(5), Some(6)).unwrap();
    }
    let mapped = map(&m.dir, &other, &namespace.file()).expect("an idmapped mount");
    assert_eq!(owner(&other.join("old")), (FROM + 5, FROM + 6));
    // Of each kind: who makes it there is another user here.
    let d = other.join("d");
    let script = format!(
        "cd {} && echo new > f && mkdir sub && ln -s f link && mkfifo pipe && ln f hard && mv pipe p && echo more >> f",
        d.display()
    );
    sh_as(FROM + 5, &script).ok();
    for name in ["f", "sub", "link", "hard", "p"] {
        assert_eq!(owner(&m.path("d").join(name)), (5, 5), "{name}");
        assert_eq!(owner(&d.join(name)), (FROM + 5, FROM + 5), "{name}");
    }
    // The kernel's checks are those of the mapped owner.
    let f = d.join("f");
    std::fs::set_permissions(m.path("d/f"), PermissionsExt::from_mode(0o600)).unwrap();
    sh_as(FROM + 5, &format!("cat {}", f.display())).ok();
    assert_ne!(sh_as(5, &format!("cat {}", f.display())).code, 0);
    assert_ne!(sh_as(FROM + 7, &format!("cat {}", f.display())).code, 0);
    chown(&f, Some(FROM + 9), Some(FROM + 10)).unwrap();
    assert_eq!(owner(&m.path("d/f")), (9, 10));
    // Who has no owner there makes nothing.
    assert!(std::fs::write(d.join("by-root"), "").is_err());
    drop(mapped);
}

fn who_is_not_root_is_known_where_the_kernel_does_not_say() {
    let m = Mount::new(&["-o", "suid"]);
    std::fs::set_permissions(m.work.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&m.dir, PermissionsExt::from_mode(0o777)).unwrap();
    let program = m.path("program");
    let mode = || std::fs::metadata(&program).unwrap().permissions().mode() & 0o7777;
    for (user, script, is) in
        [(0, "fallocate -l 8192 program", 0o4777), (1234, "fallocate -l 16384 program", 0o777)]
    {
        std::fs::write(&program, "#!").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4777)).unwrap();
        sh_as(user, &format!("cd {} && {script}", m.dir.display())).ok();
        assert_eq!(mode(), is, "user {user}");
    }
    // Names that are not others' business, and what only root may ask of the server.
    rustix::fs::setxattr(&program, "trusted.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&program, "user.y", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    let mut list = vec![0; 256];
    let n = rustix::fs::listxattr(&program, list.as_mut_slice()).unwrap();
    assert!(list[..n].windows(9).any(|w| w == b"trusted.x"));
    let goes_down = format!("xfs_io -r -x -c shutdown {}", m.dir.display());
    let run = sh_as(1234, &goes_down);
    assert!(run.code != 0 || !run.err.is_empty(), "{run:?}");
    std::fs::write(m.path("alive"), "").unwrap();
}
