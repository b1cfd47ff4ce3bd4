//! What a user may not do to another's files, and what an image may not do to the machine that
//! mounts it.

use crate::common::{LANEFS, Mount, before_a_mount_namespace, lanefs_in, mount_line, run_command};
use crate::transport::can_mount;
use lanefs_format::header::BlockKind;
use lanefs_lab_crash::fuzz::images::corpus;
use lanefs_lab_crash::fuzz::mutate::{Form, Mutant};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Root, who can become others.
fn can_be_others() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !root {
        println!("skipped: needs root");
    }
    root && can_mount()
}

/// Runs a line of shell as this user in the mount: its exit code.
fn as_user(uid: u32, dir: &Path, line: &str) -> i32 {
    let mut c = Command::new("sh");
    run_command(c.args(["-c", line]).uid(uid).gid(uid).current_dir(dir)).code
}

fn errno<T>(r: std::io::Result<T>) -> Option<i32> {
    r.err().and_then(|e| e.raw_os_error())
}

#[test]
fn two_users_have_the_rights_that_modes_and_owners_give() {
    if !can_be_others() {
        return;
    }
    let m = Mount::new(&[]);
    std::fs::set_permissions(m.work.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = |name: &str, mode: u32| {
        std::fs::create_dir(m.path(name)).unwrap();
        std::fs::set_permissions(m.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open("all", 0o777);
    open("sticky", 0o1777);
    let (a, b) = (1000, 1001);
    let yes = |who: u32, line: &str| assert_eq!(as_user(who, &m.dir, line), 0, "{who} may {line}");
    let no = |who: u32, line: &str| assert_ne!(as_user(who, &m.dir, line), 0, "{who} may not {line}");
    yes(
        a,
        "umask 077; echo secret > all/mine; echo x > sticky/mine; mkdir all/private; echo y > all/private/f",
    );
    no(b, "cat all/mine");
    no(b, "echo z >> all/mine");
    no(b, "chmod 666 all/mine");
    no(b, "chown 1001 all/mine");
    no(b, "touch -d 2001-01-01 all/mine");
    no(b, "setfattr -n user.x -v 1 all/mine");
    no(b, "ls all/private");
    no(b, "cat all/private/f");
    no(b, "rm -f sticky/mine && test ! -e sticky/mine");
    no(b, "mv sticky/mine sticky/yours");
    no(b, "echo n > new"); // The root directory is root's.
    no(a, "chown 1001 all/mine"); // Nobody gives files away.
    no(a, "chgrp 1001 all/mine"); // Nor to a group that is not theirs.
    no(a, "setfattr -n trusted.x -v 1 all/mine");
    yes(a, "cat all/mine && chmod 644 all/mine");
    yes(b, "cat all/mine");
    no(b, "echo z >> all/mine");
    yes(b, "mv all/mine all/moved"); // A directory that all may write.
    yes(a, "rm sticky/mine");
    // Another's program with setuid loses it when it is written; a member of no such group makes no
    // setgid.
    yes(a, "cp /bin/true all/prog; chmod 4777 all/prog");
    yes(b, "echo >> all/prog");
    assert_eq!(m.path("all/prog").metadata().unwrap().mode() & 0o7777, 0o777);
    // setgid directories hand their group on.
    std::os::unix::fs::chown(m.path("all"), None, Some(2000)).unwrap();
    std::fs::set_permissions(m.path("all"), std::fs::Permissions::from_mode(0o2777)).unwrap();
    yes(a, "mkdir all/sub; touch all/sub/f");
    let sub = m.path("all/sub").metadata().unwrap();
    assert_eq!(
        (sub.gid(), sub.mode() & 0o2000, m.path("all/sub/f").metadata().unwrap().gid()),
        (2000, 0o2000, 2000)
    );
}

/// Names of attributes of the superuser's are told to nobody else, as on other file systems.
#[test]
fn trusted_attributes_are_listed_to_the_superuser_alone() {
    if !can_be_others() {
        return;
    }
    let m = Mount::new(&[]);
    std::fs::set_permissions(m.work.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(m.path("f"), "x").unwrap();
    for name in ["trusted.secret", "user.plain"] {
        rustix::fs::setxattr(m.path("f"), name, b"1", rustix::fs::XattrFlags::empty()).unwrap();
    }
    let list = || {
        let mut names = [0u8; 256];
        let n = rustix::fs::listxattr(m.path("f"), &mut names[..]).unwrap();
        let size = rustix::fs::listxattr_query(m.path("f")).unwrap();
        assert_eq!(n, size);
        let mut names: Vec<_> =
            names[..n].split(|b| *b == 0).map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        names.retain(|n| n.starts_with("trusted.") || n.starts_with("user."));
        names.sort();
        names
    };
    assert_eq!(list(), ["trusted.secret", "user.plain"]);
    let others = std::thread::scope(|s| {
        let other = s.spawn(|| {
            // SAFETY: the system call, past the C library, makes this thread alone another user's.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) }, 0);
            list()
        });
        other.join().unwrap()
    });
    assert_eq!(others, ["user.plain"]);
}

#[test]
fn nothing_on_a_mount_runs_as_its_owner_or_is_a_device() {
    if !can_be_others() {
        return;
    }
    let m = Mount::new(&[]);
    let (_, _, options) = mount_line(&m.dir).unwrap();
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    std::fs::copy("/usr/bin/id", m.path("id")).unwrap();
    std::fs::set_permissions(m.path("id"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    let run = run_command(Command::new(m.path("id")).arg("-u").uid(1000).gid(1000));
    assert_eq!(run.out.trim(), "1000");
    let made = run_command(Command::new("mknod").arg(m.path("null")).args(["c", "1", "3"]));
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(errno(std::fs::File::open(m.path("null"))), Some(libc::EACCES));
}

/// The number of root is that of a container's root, too, which may have a directory of the volume
/// and no capability.
#[test]
fn root_without_capabilities_changes_no_volume_as_a_whole() {
    if !can_be_others() {
        return;
    }
    let m = Mount::new(&[]);
    std::fs::write(m.work.path().join("new.img"), vec![0; 64 << 20]).unwrap();
    let asks: [&[&str]; 6] = [
        &[LANEFS, "label", "mnt", "mine"],
        &[LANEFS, "grow", "mnt", "--size", "512M"],
        &[LANEFS, "scrub", "mnt"],
        &[LANEFS, "device", "add", "mnt", "new.img"],
        &[LANEFS, "device", "replace", "mnt", "v.lane", "new.img", "--force"],
        &["fstrim", "mnt"],
    ];
    for ask in asks {
        let mut line = Command::new("setpriv");
        line.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]).args(ask);
        let done = run_command(line.current_dir(m.work.path()));
        assert_ne!(done.code, 0, "{ask:?}");
        let why = done.err.to_lowercase();
        assert!(why.contains("cap_sys_admin") || why.contains("not permitted"), "{ask:?}: {why}");
    }
    lanefs_in(m.work.path(), &["label", "mnt", "mine"]).ok();
}

/// The process that serves a mount finds another file at a path than a caller in a mount namespace
/// of its own does.
#[test]
fn a_device_that_the_caller_cannot_write_to_does_not_come_to_the_volume() {
    if !can_be_others() {
        return;
    }
    let m = Mount::new(&[]);
    let dir = m.work.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let victim = vec![7; 64 << 20];
    std::fs::write(dir.join("victim"), &victim).unwrap();
    let add = format!(
        "mount -t tmpfs none dir && truncate -s 64M dir/victim && {LANEFS} device add mnt {}",
        dir.join("victim").display()
    );
    let line = |line: &str| {
        let _only_namespace = before_a_mount_namespace();
        let mut sh = Command::new("unshare");
        run_command(sh.args(["-m", "sh", "-c", line]).current_dir(m.work.path()))
    };
    line(&add).fails(1, &["has not opened it for writing"]);
    line(&format!("{add} --force")).fails(1, &["has not opened it for writing"]);
    assert!(std::fs::read(dir.join("victim")).unwrap() == victim, "the file was written to");
    // By a path that is the same for both it comes, whatever the namespace.
    std::fs::write(dir.join("mine"), vec![0; 64 << 20]).unwrap();
    line(&format!("{LANEFS} device add mnt {}", dir.join("mine").display())).ok();
}

#[test]
fn loops_odd_names_subtrees_and_too_many_links() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    std::os::unix::fs::symlink("b", m.path("a")).unwrap();
    std::os::unix::fs::symlink("a", m.path("b")).unwrap();
    assert_eq!(errno(std::fs::read(m.path("a"))), Some(libc::ELOOP));
    assert_eq!(errno(std::fs::read(m.path("a/x"))), Some(libc::ELOOP));
    // Every byte but NUL and the slash is a name, alone and in a long one.
    std::fs::create_dir(m.path("names")).unwrap();
    let mut want = Vec::new();
    for b in (1..=255u8).filter(|b| *b != b'/' && *b != b'.') {
        want.push(vec![b]);
        want.push([vec![b; 254], vec![b'x']].concat());
    }
    let path = |n: &[u8]| m.path("names").join(std::ffi::OsStr::from_bytes(n));
    for n in &want {
        std::fs::write(path(n), n).unwrap();
    }
    assert_eq!(errno(std::fs::write(path(&[b'n'; 256]), b"")), Some(libc::ENAMETOOLONG));
    let listed = |dir: &Path| {
        let mut names: Vec<Vec<u8>> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_vec()).collect();
        names.sort();
        names
    };
    want.sort();
    assert!(listed(&m.path("names")) == want);
    assert!(want.iter().all(|n| std::fs::read(path(n)).unwrap() == *n));
    // A directory does not go into itself.
    std::fs::create_dir_all(m.path("p/q/r")).unwrap();
    assert_eq!(errno(std::fs::rename(m.path("p"), m.path("p/q/r/s"))), Some(libc::EINVAL));
    assert_eq!(errno(std::fs::rename(m.path("p/q/r"), m.path("p"))), Some(libc::ENOTEMPTY));
    // 65000 names are the most.
    std::fs::write(m.path("one"), b"").unwrap();
    std::fs::create_dir(m.path("links")).unwrap();
    for n in 1..65_000 {
        std::fs::hard_link(m.path("one"), m.path(&format!("links/{n}"))).unwrap();
    }
    assert_eq!(errno(std::fs::hard_link(m.path("one"), m.path("links/more"))), Some(libc::EMLINK));
    assert_eq!(m.path("one").metadata().unwrap().nlink(), 65_000);
    std::fs::remove_file(m.path("links/1")).unwrap();
    std::fs::hard_link(m.path("one"), m.path("links/more")).unwrap();
    drop(m);
}

#[test]
fn a_second_writer_is_locked_out() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    let work = m.work.path();
    std::fs::write(work.join("x"), b"x").unwrap();
    std::fs::create_dir(work.join("other")).unwrap();
    for args in [
        &["mount", "v.lane", "other"][..],
        &["cp", "x", "v.lane:/x"],
        &["mkdir", "v.lane:/y"],
        &["fsck", "--repair", "v.lane"],
        &["mkfs", "--force", "--size", "64M", "v.lane"],
    ] {
        let run = lanefs_in(work, args);
        assert!(run.code != 0 && run.err.contains("process"), "{args:?}: {run:?}");
    }
}

/// Everything below `dir`, however deep; never ends in a circle that the kernel lets through.
fn all_names(dir: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        assert!(found.len() < 100_000 && dir.components().count() < 200, "no end at {}", dir.display());
        let Ok(list) = std::fs::read_dir(&dir) else { continue };
        for e in list.map_while(Result::ok) {
            found.push(e.file_name().into_vec());
            if e.file_type().is_ok_and(|t| t.is_dir()) {
                todo.push(e.path());
            }
        }
    }
    found
}

/// Mounts an image whose structures `edit` changed, looks at and uses all of it, and unmounts it;
/// the names found. `None`: it is not mounted at all, which is as good.
fn hostile(edit: impl FnMut(Form, &mut [u8]) -> bool) -> Option<Vec<Vec<u8>>> {
    let (seed, targets) = &corpus().unwrap()[1];
    let mut mutant = Mutant::new(seed, targets.clone());
    assert!(mutant.edit(edit) > 0, "nothing was changed");
    let work = tempfile::tempdir().unwrap();
    std::fs::create_dir(work.path().join("mnt")).unwrap();
    std::fs::write(work.path().join("v.lane"), &mutant.devices[0]).unwrap();
    let outside = work.path().join("outside");
    std::fs::write(&outside, b"not to be touched").unwrap();
    if lanefs_in(work.path(), &["mount", "v.lane", "mnt"]).code != 0 {
        return None;
    }
    let dir = work.path().join("mnt");
    let names = all_names(&dir);
    for n in &names {
        let p = dir.join(std::ffi::OsStr::from_bytes(n));
        // The image has a pipe, too, that nobody writes.
        if !p.symlink_metadata().is_ok_and(|m| m.is_file()) {
            continue;
        }
        // Not all of it: a file may claim to be of any size.
        let mut some = Vec::new();
        let _ = std::fs::File::open(&p).and_then(|f| f.take(1 << 20).read_to_end(&mut some));
        let _ = std::fs::write(&p, b"x");
    }
    let _ = std::fs::write(dir.join("new"), b"x");
    let down = lanefs_in(work.path(), &["umount", "mnt"]);
    if down.code != 0 {
        lanefs_in(work.path(), &["umount", "--lazy", "mnt"]);
    }
    assert_eq!(std::fs::read(outside).unwrap(), b"not to be touched");
    Some(names)
}

/// Replaces bytes wherever they are in directories.
fn replace(from: &'static [u8], to: &'static [u8]) -> impl FnMut(Form, &mut [u8]) -> bool {
    assert_eq!(from.len(), to.len());
    move |form, block| {
        let dirs = matches!(form, Form::Node(BlockKind::Bucket | BlockKind::Inode));
        let at = block.windows(from.len()).position(|w| w == from).filter(|_| dirs);
        at.is_some_and(|at| {
            block[at..at + to.len()].copy_from_slice(to);
            true
        })
    }
}

#[test]
fn an_image_cannot_show_names_that_lead_out_of_it() {
    if !can_mount() {
        return;
    }
    let mut mounted = 0;
    for (from, to) in [
        (&b"\x05small"[..], &b"\x05../..."[..6]),
        (b"\x05small", b"\x05/etc/"),
        (b"\x05small", b"\x05a/b/c"),
        (b"\x05small", b"\x05sm\0ll"),
        (b"\x02\x01d", b"\x02\x01/"),
        (b"\x02\x01d", b"\x02\x01."),
        (b"\x05small", b"\xffsmall"),
        (b"\x05small", b"\0small"),
        (b"\x1ba-file-with-a-long-name-100", b"\x1ba-file/with/a/long-name-100"),
        (b"\x1ba-file-with-a-long-name-100", b"\x1b../../../../../../../target"),
        (b"\x1ba-file-with-a-long-name-100", b"\x1ba-file\0with-a-long-name-100"),
    ] {
        if let Some(names) = hostile(replace(from, to)) {
            mounted += 1;
            for n in names {
                assert!(!n.contains(&b'/') && !n.contains(&0) && n != b"." && n != b"..", "{n:?} is shown");
            }
        }
    }
    // Else nothing was tried.
    assert!(mounted > 0, "no image mounted");
}

#[test]
fn an_image_with_circles_and_huge_sizes_is_no_trap() {
    if !can_mount() {
        return;
    }
    // The directory "d" names the root, or itself, as an entry.
    let mut mounted = 0;
    for to in [1u64, 16, 17, 18, 19, 20] {
        let names = hostile(|form, block| {
            let dirs = matches!(form, Form::Node(BlockKind::Bucket | BlockKind::Inode));
            let name = b"\x02\x01d";
            let Some(at) = block.windows(name.len()).position(|w| w == name).filter(|at| dirs && *at > 80)
            else {
                return false;
            };
            block[at - 8..at].copy_from_slice(&to.to_le_bytes());
            true
        });
        mounted += u32::from(names.is_some());
    }
    assert!(mounted > 0, "no image with a circle mounted");
    mounted = 0;
    for size in [u64::MAX, i64::MAX as u64, 1 << 62, 1 << 52] {
        let names = hostile(|form, block| {
            // Mode and size, in an inode block or in the first slot of a pack that has no rdev.
            let (mode, at) = match form {
                Form::Node(BlockKind::Inode) => (65, 88),
                Form::Node(BlockKind::Pack) if block[69] & 4 == 0 => (75, 90),
                _ => return false,
            };
            let file = block[mode] & 0xf0 == 0x80;
            if file {
                block[at..at + 8].copy_from_slice(&size.to_le_bytes());
            }
            file
        });
        mounted += u32::from(names.is_some());
    }
    assert!(mounted > 0, "no image with a huge size mounted");
}
