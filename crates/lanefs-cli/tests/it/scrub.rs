//! `lanefs scrub`: flipped bits are found and named, on an image and through a mount.

use crate::common::{LANEFS, Mount, lanefs_in, run_command, volume};
use crate::transport::can_mount;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Flips a bit of the block that holds `marker`; where it lies. The youngest copy is the last.
pub fn flip(image: &Path, marker: &[u8]) -> usize {
    let bytes = std::fs::read(image).unwrap();
    let at = bytes.windows(marker.len()).rposition(|w| w == marker).expect("the marker is in the image");
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
    at
}

fn content(marker: &str, pages: usize) -> Vec<u8> {
    let mut b = vec![b'.'; 4096 * pages];
    b[4096 * (pages - 1) + 100..][..marker.len()].copy_from_slice(marker.as_bytes());
    b
}

#[test]
fn the_exit_code_tells_of_damage_whether_or_not_somebody_reads_the_report() {
    let (dir, image) = volume("64M");
    let work = dir.path();
    std::fs::write(work.join("src"), content("MARK-OF-THE-LARGE", 100)).unwrap();
    lanefs_in(work, &["cp", "src", "v.lane:/d"]).ok();
    flip(&image, b"MARK-OF-THE-LARGE");
    let code = |line: &str| {
        let line = format!("{LANEFS} {line}");
        run_command(std::process::Command::new("bash").args(["-c", &line]).current_dir(work)).code
    };
    for command in ["fsck v.lane", "fsck --json v.lane", "scrub v.lane", "scrub --json v.lane"] {
        assert_eq!(code(command), 4, "{command}");
        assert_eq!(code(&format!("{command} | true; exit ${{PIPESTATUS[0]}}")), 4, "{command}, unread");
        assert_eq!(code(&format!("{command} > /dev/full")), 8, "{command}, that cannot be written");
    }
}

#[test]
fn flipped_bits_of_an_image_are_named() {
    let (dir, image) = volume("64M");
    let work = dir.path();
    std::fs::create_dir(work.join("src")).unwrap();
    std::fs::write(work.join("src/large"), content("MARK-OF-THE-LARGE", 700)).unwrap();
    std::fs::write(work.join("src/good"), content("MARK-OF-THE-GOOD", 3)).unwrap();
    std::fs::write(work.join("src/small"), b"MARK-OF-THE-SMALL").unwrap();
    lanefs_in(work, &["cp", "-r", "src", "v.lane:/d"]).ok();
    let clean = lanefs_in(work, &["scrub", "--json", "v.lane"]).ok().json();
    assert!(clean["clean"] == true && clean["data_blocks"].as_u64() >= Some(700), "{clean}");
    flip(&image, b"MARK-OF-THE-LARGE");
    let run = lanefs_in(work, &["scrub", "v.lane"]);
    assert_eq!(run.code, 4, "{run:?}");
    assert!(
        run.out.contains("/d/large: at byte 2863104:") && run.out.contains("one block is damaged"),
        "{run:?}"
    );
    // A small file is its inode, and lies in one block with others: each of them is named.
    flip(&image, b"MARK-OF-THE-SMALL");
    let run = lanefs_in(work, &["scrub", "--json", "v.lane"]);
    let found = run.json();
    let damaged = found["damaged"].as_array().unwrap().iter();
    let mut paths: Vec<_> = damaged.map(|d| d["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!((run.code, paths), (4, vec!["/d/good", "/d/large", "/d/small"]), "{found}");
    // A copy of the superblock.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0xff], 60).unwrap();
    let run = lanefs_in(work, &["scrub", "v.lane"]);
    assert!(run.code == 4 && run.out.contains("the volume: superblock:"), "{run:?}");
    lanefs_in(work, &["scrub", "nothing.lane"]).fails(8, &["nothing.lane"]);
}

#[test]
fn a_mounted_volume_is_scrubbed_while_it_is_used() {
    if !can_mount() {
        return;
    }
    let m = Mount::new(&[]);
    let work = m.work.path();
    std::fs::create_dir(m.path("d")).unwrap();
    for n in 0..40 {
        std::fs::write(m.path(&format!("d/f{n}")), content(&format!("MARK-NUMBER-{n}-"), 60)).unwrap();
    }
    std::fs::File::open(&m.dir).unwrap().sync_all().unwrap();
    lanefs_in(work, &["scrub", "mnt"]).ok();
    flip(&m.image(), b"MARK-NUMBER-17-");
    // Others write meanwhile.
    let run = std::thread::scope(|s| {
        s.spawn(|| {
            for n in 40..80 {
                std::fs::write(m.path(&format!("d/f{n}")), content("later", 60)).unwrap();
            }
        });
        lanefs_in(work, &["scrub", "mnt", "--rate", "100M"])
    });
    assert_eq!(run.code, 4, "{run:?}");
    assert!(
        run.out.contains("/d/f17: at byte 241664:") && run.out.contains("one block is damaged"),
        "{run:?}"
    );
    lanefs_in(work, &["scrub", "."]).fails(8, &["no directory of a mounted"]);
}
