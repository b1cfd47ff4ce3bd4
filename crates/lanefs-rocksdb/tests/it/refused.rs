//! What cannot be is refused in words.

use crate::built::{install, library, prefix, stock, text};
use std::path::Path;
use std::process::Command;

/// Runs the stock db_bench where it must fail; returns what it says.
fn fails(uri: &str, dir: &Path) -> String {
    let mut bench = stock("db_bench", dir);
    let out = bench.arg(format!("--fs_uri={uri}")).args(["--db=/db", "--benchmarks=fillseq", "--num=10"]);
    let out = out.output().unwrap();
    assert!(!out.status.success() && !dir.join("db").exists(), "{}", text(&out));
    text(&out)
}

#[test]
fn images_and_options_that_cannot_be_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let told = fails("lanefs://none.lane", dir.path());
    assert!(told.contains("none.lane: does not exist") && told.contains("size=1G"), "{told}");
    std::fs::write(dir.path().join("text"), "text\n".repeat(10_000)).unwrap();
    let told = fails("lanefs://text", dir.path());
    assert!(told.contains("text: "), "{told}");
    let told = fails("lanefs://new.lane?size=64M&colour=blue", dir.path());
    assert!(told.contains("colour=blue: not known; there are ro, "), "{told}");
}

/// One process owns a volume: another is told which.
#[test]
fn a_second_process_is_told_who_has_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    lanefs::Volume::create(&[&image], 64 << 20).unwrap();
    let volume = lanefs::Volume::open(&[&image], &Default::default()).unwrap();
    let told = fails("lanefs://disk.lane", dir.path());
    let owner = format!("in use by process {}", std::process::id());
    assert!(told.contains(&owner) && told.contains("mount"), "{told}");
    volume.close().unwrap();
}

/// Built with the headers of another version than the library that is there.
#[test]
fn another_version_of_rocksdb_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let headers = dir.path().join("include/rocksdb");
    std::fs::create_dir_all(&headers).unwrap();
    for entry in std::fs::read_dir("/usr/include/rocksdb").unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), headers.join(entry.file_name())).unwrap();
    }
    let version = std::fs::read_to_string("/usr/include/rocksdb/version.h").unwrap();
    std::fs::remove_file(headers.join("version.h")).unwrap();
    let line = version.lines().find(|l| l.starts_with("#define ROCKSDB_MAJOR ")).unwrap();
    let version = version.replace(line, "#define ROCKSDB_MAJOR 99");
    std::fs::write(headers.join("version.h"), version).unwrap();
    install(&dir.path().join("other"), &["--rocksdb", dir.path().to_str().unwrap()]);

    let run_with = |library: &Path| {
        let mut bench = Command::new("db_bench");
        bench.env("LD_PRELOAD", library).current_dir(dir.path());
        bench.args(["--fs_uri=lanefs://d.lane?size=64M", "--db=/db", "--benchmarks=fillseq", "--num=10"]);
        bench.output().unwrap()
    };
    let out = run_with(&dir.path().join("other/lib/librocksdb_lanefs.so"));
    let told = text(&out);
    assert!(!out.status.success(), "{told}");
    assert!(told.contains("was built for RocksDB 99.") && told.contains("and this is RocksDB "), "{told}");
    assert!(told.contains("docs/ROCKSDB.md"), "{told}");
    assert!(run_with(&library()).status.success());
}

/// Programs that have nothing to do with RocksDB run as ever: a shell and what it starts.
#[test]
fn other_programs_run_with_it() {
    let said = stock("sh", prefix()).args(["-c", "echo $(cat | wc -c)"]).output().unwrap();
    assert_eq!(text(&said), "0\n");
}
