//! The same program on a directory of the host and on the volume: the same bytes, the same errno.

use crate::volume::{PREFIX, TestVolume, compile, succeed};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs a program on both; returns what both said.
fn same(name: &str) -> String {
    let volume = TestVolume::new();
    let program = compile(name, volume.dir.path());
    let host = volume.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    // A program that gives its rights up finds it still.
    std::fs::set_permissions(volume.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let on_host = succeed(Command::new(&program).arg(&host).current_dir("/"));
    let on_volume = succeed(volume.command(&program).arg(PREFIX));
    for (number, (host, ours)) in on_host.lines().zip(on_volume.lines()).enumerate() {
        assert_eq!(host, ours, "line {} of {name}", number + 1);
    }
    assert_eq!(on_host, on_volume, "{name}");
    assert!(on_host.lines().count() > 1, "{name} said nothing: {on_host}");
    on_volume
}

macro_rules! programs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            same(stringify!($name));
        }
    )*};
}

programs! {
    files names streams redirected directories attributes acls itself locks threads maps copies working_dir temporary mail signals
    vanishing path_only upwards tail
}

/// What a stream has in its buffer at the end of the program is in the volume.
#[test]
fn buffers_are_written_at_the_end() {
    let volume = TestVolume::new();
    let program = compile("streams", volume.dir.path());
    succeed(volume.command(&program).arg(PREFIX));
    let opened = volume.open();
    assert!(opened.open_report().clean, "it was closed: {:?}", opened.open_report());
    assert_eq!(opened.fs().read("last").unwrap(), b"left in the buffer");
}
