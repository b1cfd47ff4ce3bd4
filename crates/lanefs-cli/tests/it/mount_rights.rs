//! Modes, owners and ACLs after a crash of the server: with a name that is found come the changes
//! of them before it.

use crate::common::*;
use rustix::fs::XattrFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

on_each_transport! {
    a_name_that_is_found_brings_the_rights_before_it,
    what_a_stranger_wrote_into_a_setuid_program_is_never_found_with_the_bit,
    an_acl_that_is_not_there_is_removed_as_on_file_systems_of_the_kernel,
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
    // Its own write alone is made durable, and nothing is asked of the mode.
    let script = "printf mine | dd of=program conv=notrunc,fdatasync status=none";
    let mut call = std::process::Command::new("setpriv");
    call.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script]).current_dir(&m.dir);
    run_command(&mut call).ok();
    crash(&mut m);
    assert_eq!(std::fs::read_to_string(&program).unwrap(), "mine's");
    assert_eq!(std::fs::metadata(&program).unwrap().mode() & 0o7777, 0o777);
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
