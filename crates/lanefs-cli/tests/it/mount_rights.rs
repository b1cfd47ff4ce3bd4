//! Modes, owners and ACLs after a crash of the server: with a name that is found come the changes
//! of them before it.

use crate::common::*;
use rustix::fs::XattrFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

on_each_transport! {
    a_name_that_is_found_brings_the_rights_before_it,
    what_a_stranger_wrote_into_a_setuid_program_is_never_found_with_the_bit,
    what_a_stranger_wrote_into_a_program_is_never_found_with_its_capabilities,
    an_acl_that_is_not_there_is_removed_as_on_file_systems_of_the_kernel,
    the_mode_that_an_acl_leaves_is_what_the_kernel_shows,
    a_truncation_to_the_same_size_leaves_times_for_good_where_it_leaves_them,
    who_changes_a_file_takes_its_setuid_and_setgid_as_on_ext4,
}

/// user::rw- user:`uid`:rw- group::r-- mask::rw- other::---
fn acl(uid: u32) -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 6, uid), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn crash(m: &mut Mount) {
    let server = Pid::from_raw(m.server_of_mount() as i32).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    m.umount();
    m.mount(&[]);
}

/// Has an ordinary user write into `program`. That write alone is made durable, and nothing is
/// asked of the attributes.
fn a_stranger_writes(m: &Mount) {
    let script = "printf mine | dd of=program conv=notrunc,fdatasync status=none";
    let mut call = std::process::Command::new("setpriv");
    call.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script]).current_dir(&m.dir);
    run_command(&mut call).ok();
}

fn a_name_that_is_found_brings_the_rights_before_it() {
    let mut m = Mount::new(&[]);
    for n in 0..40 {
        std::fs::write(m.path(&format!("f{n}")), "old").unwrap();
        std::fs::create_dir(m.path(&format!("d{n}"))).unwrap();
    }
    m.remount();
    let sync = |name: &str| std::fs::File::open(m.path(name)).unwrap().sync_all().unwrap();
    for n in 0..40u32 {
        let (file, dir) = (m.path(&format!("f{n}")), m.path(&format!("d{n}")));
        match n % 4 {
            0 => std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap(),
            1 => chown(&file, Some(1000 + n), Some(7)).unwrap(),
            2 => {
                rustix::fs::setxattr(&file, "system.posix_acl_access", &acl(n), XattrFlags::empty()).unwrap()
            }
            _ => std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap(),
        }
        std::fs::create_dir(m.path(&format!("later{n}"))).unwrap();
        if n % 8 == 7 {
            sync(&format!("later{n}"));
        }
    }
    crash(&mut m);
    for n in 0..40u32 {
        let (file, dir) = (m.path(&format!("f{n}")), m.path(&format!("d{n}")));
        let file_is = std::fs::metadata(&file).unwrap();
        assert!(m.path(&format!("later{n}")).is_dir());
        match n % 4 {
            0 => assert_eq!(file_is.mode() & 0o7777, 0o600, "{n}"),
            1 => assert_eq!((file_is.uid(), file_is.gid()), (1000 + n, 7), "{n}"),
            2 => {
                let mut value = [0; 64];
                let found = rustix::fs::getxattr(&file, "system.posix_acl_access", &mut value);
                assert_eq!(found.map(|n| value[..n].to_vec()), Ok(acl(n)), "{n}");
            }
            _ => assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700, "{n}"),
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    }
    m.umount();
    m.fsck();
}

fn what_a_stranger_wrote_into_a_setuid_program_is_never_found_with_the_bit() {
    let mut m = Mount::new(&["-o", "allow_other"]);
    let program = m.path("program");
    std::fs::write(&program, "root's").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4777)).unwrap();
    m.remount();
    a_stranger_writes(&m);
    crash(&mut m);
    assert_eq!(std::fs::read_to_string(&program).unwrap(), "mine's");
    assert_eq!(std::fs::metadata(&program).unwrap().mode() & 0o7777, 0o777);
}

fn what_a_stranger_wrote_into_a_program_is_never_found_with_its_capabilities() {
    // With suid the kernel goes by them, and shows them.
    let mut m = Mount::new(&["-o", "allow_other,suid"]);
    let program = m.path("program");
    std::fs::write(&program, "root's").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o777)).unwrap();
    // CAP_NET_RAW, as setcap(8) has it.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(&program, "security.capability", &capability, XattrFlags::empty()).unwrap();
    m.remount();
    a_stranger_writes(&m);
    crash(&mut m);
    assert_eq!(std::fs::read_to_string(&program).unwrap(), "mine's");
    let left = rustix::fs::getxattr(&program, "security.capability", &mut [0u8; 64][..]);
    assert_eq!(left, Err(rustix::io::Errno::NODATA));
}

/// While others try to open the file: what the kernel is told of the mode before meanwhile, it must
/// not keep. It would let them in for as long as it believes what it knows.
fn the_mode_that_an_acl_leaves_is_what_the_kernel_shows() {
    const NAME: &str = "system.posix_acl_access";
    let m = Mount::new(&["-o", "allow_other,profile=stateless"]);
    let file = m.path("f");
    std::fs::write(&file, "secret").unwrap();
    chown(&file, Some(0), Some(3000)).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    // No more than the mode: what `setfacl -b` leaves.
    let plain = [&acl(7)[..12], &[4, 0, 0, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255]].concat();
    let opens = "import os
while True:
    try: os.close(os.open('f', os.O_RDONLY))
    except PermissionError: pass
    except OSError: break";
    let mut strangers: Vec<_> = (0..2)
        .map(|_| {
            let mut c = std::process::Command::new("setpriv");
            c.args(["--reuid=2005", "--regid=3000", "--clear-groups", "python3", "-c", opens]);
            c.current_dir(&m.dir).spawn().unwrap()
        })
        .collect();
    let mut wrong = 0;
    for _ in 0..1500 {
        for acl in [&acl(7), &plain] {
            rustix::fs::setxattr(&file, NAME, acl, XattrFlags::empty()).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
        wrong += u32::from(std::fs::metadata(&file).unwrap().mode() & 0o777 != 0o600);
    }
    for stranger in &mut strangers {
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    assert_eq!(wrong, 0, "of 1500 times the mode that was shown was an earlier one");
}

/// The kernel hands over no times with it where it keeps them, and so the server kept its own.
fn a_truncation_to_the_same_size_leaves_times_for_good_where_it_leaves_them() {
    let mut m = Mount::new(&[]);
    let file = m.path("f");
    std::fs::write(&file, "12345").unwrap();
    let times = |f: &std::path::Path| {
        let t = std::fs::metadata(f).unwrap();
        (t.mtime(), t.mtime_nsec(), t.ctime(), t.ctime_nsec())
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    crate::mount_flags::truncate(&file, 5).unwrap();
    let shown = times(&file);
    m.remount();
    assert_eq!(times(&file), shown);
}

fn an_acl_that_is_not_there_is_removed_as_on_file_systems_of_the_kernel() {
    let m = Mount::new(&[]);
    let dir = m.path("d");
    std::fs::create_dir(&dir).unwrap();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        for _ in 0..2 {
            rustix::fs::removexattr(&dir, name).unwrap();
            rustix::fs::setxattr(&dir, name, &acl(7), XattrFlags::empty()).unwrap();
            rustix::fs::removexattr(&dir, name).unwrap();
        }
    }
    // Of other attributes it is told.
    assert_eq!(rustix::fs::removexattr(&dir, "user.a"), Err(rustix::io::Errno::NODATA));
}

/// Changes of a file, each the text of a program in Python that has it open as `f`.
const CHANGES: [(&str, &str); 7] = [
    ("write", "os.write(f, b'x')"),
    ("pwrite", "os.pwrite(f, b'x', 3)"),
    ("ftruncate", "os.ftruncate(f, 2)"),
    ("truncate", "os.truncate('f', 2)"),
    ("O_TRUNC", "os.open('f', os.O_WRONLY | os.O_TRUNC)"),
    ("fallocate", "os.posix_fallocate(f, 0, 100)"),
    ("copy_file_range", "os.copy_file_range(os.open('other', os.O_RDONLY), f, 3)"),
];

/// Who makes them: options of setpriv(1). The file's group is 1020.
const CALLERS: [&[&str]; 6] = [
    &["--reuid=1001", "--regid=1010", "--clear-groups"],
    &["--reuid=1001", "--regid=1020", "--clear-groups"],
    &["--reuid=1001", "--regid=1010", "--groups=5,1020"],
    &["--reuid=1001", "--regid=1010", "--groups=5,1021"],
    &[],
    &["--bounding-set=-fsetid", "--inh-caps=-fsetid"],
];

fn as_caller(dir: &std::path::Path, caller: &[&str], program: &str) {
    let text = format!("import os\nf = os.open('f', os.O_RDWR)\n{program}");
    let mut call = std::process::Command::new("setpriv");
    run_command(call.args(caller).args(["/usr/bin/python3", "-c", &text]).current_dir(dir)).ok();
}

/// What is left of modes, and who did what.
fn modes_left(dir: &std::path::Path) -> Vec<String> {
    let mut left = Vec::new();
    let mut one = |what: &str, who: &[&str], mode: u32, program: &str| {
        let file = dir.join("f");
        std::fs::write(&file, "12345").unwrap();
        std::fs::write(dir.join("other"), "abc").unwrap();
        chown(&file, Some(1001), Some(1020)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        as_caller(dir, who, program);
        let now = std::fs::metadata(&file).unwrap().mode() & 0o7777;
        left.push(format!("{what} of {mode:o} by {who:?}: {now:o}"));
    };
    for who in CALLERS {
        for mode in [0o2646, 0o6646, 0o2656] {
            for (what, program) in CHANGES {
                one(what, who, mode, program);
            }
            one("chown", who, mode, "os.chown('f', 1001, -1)");
        }
    }
    left
}

fn who_changes_a_file_takes_its_setuid_and_setgid_as_on_ext4() {
    let m = Mount::new(&["-o", "allow_other"]);
    let ext4 = crate::mount_flags::Ext4::new();
    for dir in [m.dir.clone(), ext4.dir()] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    }
    for work in [m.work.path(), ext4.work.path()] {
        std::fs::set_permissions(work, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (there, here) = (modes_left(&ext4.dir()), modes_left(&m.dir));
    assert!(there.iter().any(|l| l.ends_with(": 2646")) && there.iter().any(|l| l.ends_with(": 646")));
    for (there, here) in there.iter().zip(&here) {
        assert_eq!(here, there, "here, and on ext4");
    }
}
