//! fstrim(8): what is free is discarded, and nothing else.

use crate::common::*;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

on_each_transport! {
    what_is_free_is_discarded_and_told,
    what_is_free_of_a_block_device_reaches_what_is_under_it,
    who_is_not_root_may_not_and_what_makes_no_sense_is_refused,
}

const MIB: u64 = 1 << 20;

fn blocks_of(image: &Path) -> u64 {
    std::fs::metadata(image).unwrap().blocks() * 512
}

/// Bytes that fstrim says were discarded.
fn trim(dir: &Path, how: &[&str]) -> u64 {
    let run = run_command(Command::new("fstrim").arg("--verbose").args(how).arg(dir)).ok();
    let number = run.out.split('(').nth(1).and_then(|t| t.split(' ').next()).and_then(|n| n.parse().ok());
    number.unwrap_or_else(|| panic!("{run:?}"))
}

fn content(n: u64) -> Vec<u8> {
    (0..100_000_u64).flat_map(|i| (i * 77 + n).to_le_bytes()).collect()
}

/// Fills a volume, removes most, and trims it: the image holds little more than what is left.
fn fill_remove_trim(options: &[&str]) {
    let mut m = Mount::new(options);
    if !options.is_empty() {
        m.umount();
        m.mount(options);
    }
    std::fs::write(m.path("large"), vec![7; 120 << 20]).unwrap();
    for n in 0..20 {
        std::fs::write(m.path(&format!("small{n}")), content(n)).unwrap();
    }
    m.umount();
    // What was free before it was opened is known to have been discarded by nobody.
    m.mount(options);
    std::fs::remove_file(m.path("large")).unwrap();
    m.umount();
    m.mount(options);
    let before = blocks_of(&m.image());
    let told = trim(&m.dir, &[]);
    let after = blocks_of(&m.image());
    assert!((120 * MIB..256 * MIB).contains(&told), "{told} bytes");
    assert!(after < 60 * MIB && after <= before, "{before} bytes, and then {after}");
    for n in 0..20 {
        assert_eq!(std::fs::read(m.path(&format!("small{n}"))).unwrap(), content(n));
    }
    std::fs::write(m.path("again"), content(99)).unwrap();
    m.umount();
    m.fsck();
    m.mount(options);
    for n in 0..20 {
        assert_eq!(std::fs::read(m.path(&format!("small{n}"))).unwrap(), content(n));
    }
    assert_eq!(std::fs::read(m.path("again")).unwrap(), content(99));
}

fn what_is_free_is_discarded_and_told() {
    fill_remove_trim(&[]);
}

fn what_is_free_of_a_block_device_reaches_what_is_under_it() {
    fill_remove_trim(&["-o", "loop"]);
}

fn who_is_not_root_may_not_and_what_makes_no_sense_is_refused() {
    let mut m = Mount::new(&[]);
    let dir = m.dir.to_str().unwrap().to_string();
    let fstrim = |args: &[&str]| run_command(Command::new("fstrim").args(args).arg(&dir));
    // A part: no more than that is discarded.
    let (part, all) = (trim(&m.dir, &["--offset", "64M", "--length", "32M"]), trim(&m.dir, &[]));
    assert!(part <= 32 * MIB && all > 200 * MIB, "{part} and {all}");
    for args in [["--offset", "1T"], ["--length", "1024"], ["--minimum", "1G"]] {
        assert!(fstrim(&args).err.contains("Invalid argument"), "{args:?}");
    }
    std::fs::set_permissions(m.work.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = run_command(Command::new("fstrim").arg(&dir).uid(1234).gid(1234));
    assert!(run.err.contains("not permitted"), "{run:?}");
    m.umount();
    m.mount(&["-o", "ro"]);
    assert!(fstrim(&[]).err.contains("Read-only"));
    m.umount();
    // An image that had all of its blocks keeps them.
    let zeros = vec![0; 64 << 20];
    let image = m.image();
    std::fs::write(&image, zeros).unwrap();
    lanefs_in(m.work.path(), &["mkfs", "--force", "v.lane"]).ok();
    m.mount(&[]);
    let blocks = blocks_of(&image);
    assert!(fstrim(&[]).err.contains("not supported"));
    assert!(blocks_of(&image) >= blocks);
}
