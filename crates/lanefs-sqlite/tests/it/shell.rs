//! The shell of the system, which loads the extension as a user has it do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Returns the extension, installed as a user installs it.
pub fn extension() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sqlite");
        let mut build = Command::new(env!("CARGO"));
        build.args(["xtask", "c-library", "--out"]).arg(&out).arg("--debug");
        let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        out.join("lib/lanefs_sqlite")
    })
}

/// Has the shell read a script in a folder.
fn shell(dir: &Path, script: &str) -> Output {
    let script = script.replace("lanefs_sqlite", &extension().display().to_string());
    let mut sqlite3 = Command::new("sqlite3");
    sqlite3.args(["-bail", "-batch"]).current_dir(dir).stdin(Stdio::piped());
    let mut child = sqlite3.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns what the shell prints; it must not fail.
fn says(dir: &Path, script: &str) -> String {
    let out = shell(dir, script);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_shell_loads_it_and_finds_its_tables_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for mode in ["wal", "delete"] {
        let made = says(
            dir,
            &format!(
                ".load lanefs_sqlite\n.open 'file:{mode}.db?vfs=lanefs&volume=disk.lane&size=64M&cache_size=64M'\n\
                 PRAGMA journal_mode={mode}; CREATE TABLE t(x);\n\
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 10000) INSERT INTO t SELECT i FROM n;\n\
                 PRAGMA integrity_check;\n.vfsname\n"
            ),
        );
        assert_eq!(made, format!("{mode}\nok\nlanefs\n"));
        let found = says(
            dir,
            &format!(
                ".load lanefs_sqlite\n.open 'file:{mode}.db?vfs=lanefs&volume=disk.lane&cache_size=64M'\n\
                 SELECT sum(x) FROM t; SELECT file LIKE '%/disk.lane:/{mode}.db' FROM pragma_database_list;\n\
                 ATTACH 'other-{mode}.db' AS o; CREATE TABLE o.u(x); VACUUM INTO 'copy-{mode}.db';\n"
            ),
        );
        assert_eq!(found, "50005000\n1\n");
    }
    let volume = lanefs::Volume::open(&[dir.join("disk.lane")], &Default::default()).unwrap();
    let names = volume.fs().read_dir("/").unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(
        names,
        ["copy-delete.db", "copy-wal.db", "delete.db", "other-delete.db", "other-wal.db", "wal.db"]
    );
    volume.close().unwrap();
}

/// One process owns a volume: another is told which.
#[test]
fn a_second_process_is_told_who_has_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    lanefs::Volume::create(&[&image], 64 << 20).unwrap();
    let volume = lanefs::Volume::open(&[&image], &Default::default()).unwrap();
    let out = shell(
        dir.path(),
        ".log stderr\n.load lanefs_sqlite\n.open 'file:a.db?vfs=lanefs&volume=disk.lane'\nSELECT 1;\n",
    );
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    let owner = format!("in use by process {}", std::process::id());
    assert!(told.contains(&owner) && told.contains("mount"), "{told}");
    volume.close().unwrap();
}

/// Needs root, or fusermount3 and a /dev/fuse that this user may open.
#[test]
fn others_see_the_database_through_a_mount_meanwhile() {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(e) = fuse {
        eprintln!("/dev/fuse: {e}: not tested");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let opened = "file:a.db?vfs=lanefs&volume=disk.lane&size=64M&cache_size=64M&mount=mnt";
    let said = says(
        dir.path(),
        &format!(
            ".load lanefs_sqlite\n.open '{opened}'\nPRAGMA journal_mode=delete; CREATE TABLE t(x); INSERT INTO t VALUES (7);\n\
             .system ls mnt && cp mnt/a.db copy.db && sqlite3 copy.db 'SELECT x FROM t'\n\
             INSERT INTO t VALUES (8);\n.system sqlite3 -readonly mnt/a.db 'SELECT sum(x) FROM t'\n"
        ),
    );
    assert_eq!(said, "delete\na.db\n7\n15\n");
    assert_eq!(std::fs::read_dir(&mount).unwrap().count(), 0, "it was unmounted");
}

#[test]
fn the_script_in_the_documentation_runs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SQLITE.md");
    let page = std::fs::read_to_string(page).unwrap();
    let script = page.split("```text\n.load").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for rows in ["1", "2"] {
        let said = says(dir.path(), &format!(".load{script}"));
        assert!(said.starts_with(&format!("wal\n{rows}\nmain: ")), "{said}");
    }
}
