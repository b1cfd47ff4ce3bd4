//! Programs as they are, under strace: no system call names a path below the prefix.

use crate::volume::{PREFIX, TestVolume, compile, succeed};
use std::path::Path;
use std::process::Command;

/// Runs a program under strace; returns what it wrote, and checks what the kernel was asked.
fn traced(volume: &TestVolume, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    let trace = volume.dir.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-s", "200", "-e", "trace=%file", "-o"]).arg(&trace);
    volume.environment(PREFIX, |name, value| {
        command.arg("-E").arg(format!("{name}={value}"));
    });
    command.arg("--").arg(program).args(arguments).current_dir("/");
    command.env("HOME", volume.dir.path()).env("GIT_CONFIG_NOSYSTEM", "1");
    let out = succeed(&mut command);
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(text.lines().count() > 5, "nothing was traced: {text}");
    let below = |line: &&str| line.contains(&format!("\"{PREFIX}")) && !line.contains("execve(");
    assert_eq!(text.lines().find(below), None, "the kernel was asked for a path below the prefix");
    out
}

#[test]
fn tar() {
    let volume = TestVolume::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).to_str().unwrap();
    let archive = format!("{PREFIX}/a.tar");
    traced(&volume, "tar", &["cf", &archive, "-C", source, "src", "tests"]);
    traced(&volume, "mkdir", &[&format!("{PREFIX}/out")]);
    traced(&volume, "tar", &["xf", &archive, "-C", &format!("{PREFIX}/out")]);
    let differ = traced(&volume, "diff", &["-r", &format!("{source}/src"), &format!("{PREFIX}/out/src")]);
    assert_eq!(differ, "");
    let listed = traced(&volume, "find", &[&format!("{PREFIX}/out"), "-name", "*.c"]);
    assert!(listed.contains("/tests/c/files.c"), "{listed}");
    traced(&volume, "rm", &["-r", &format!("{PREFIX}/out")]);
    assert_eq!(traced(&volume, "ls", &[PREFIX]), "a.tar\n");
}

#[test]
fn sqlite() {
    let volume = TestVolume::new();
    let db = format!("{PREFIX}/app.db");
    let make = "create table t(a, b); with recursive n(i) as (select 1 union all select i+1 from n \
                where i < 2000) insert into t select i, hex(randomblob(50)) from n; \
                create index x on t(b); delete from t where a % 3 = 0; vacuum;";
    traced(&volume, "sqlite3", &[&db, make]);
    let check = "pragma integrity_check; select count(*), sum(a) from t;";
    assert_eq!(traced(&volume, "sqlite3", &[&db, check]), "ok\n1334|1334667\n");
    let log = "pragma journal_mode=wal; insert into t values(0, 'v'); select count(*) from t;";
    assert_eq!(traced(&volume, "sqlite3", &[&db, log]), "wal\n1335\n");
    // The log beside the database needs no shared memory where one process has it.
    let log = "pragma locking_mode=exclusive; pragma journal_mode=wal; insert into t values(0, 'w'); \
               select count(*) from t;";
    assert_eq!(traced(&volume, "sqlite3", &[&db, log]), "exclusive\nwal\n1336\n");
}

#[test]
fn python() {
    let volume = TestVolume::new();
    let script = volume.dir.path().join("script.py");
    std::fs::write(
        &script,
        r#"
import mmap, os, pathlib, shutil, sqlite3, sys, tempfile
root = pathlib.Path(sys.argv[1])
(root / "a/b").mkdir(parents=True)
for i in range(200):
    (root / f"a/b/{i}").write_text(str(i))
shutil.copytree(root / "a", root / "copy")
assert sorted(os.listdir(root / "copy/b"), key=int) == [str(i) for i in range(200)]
assert sum(int(p.read_text()) for p in root.glob("copy/b/*")) == 19900
for entry in os.scandir(root / "a/b"):
    assert entry.is_file() and entry.stat().st_size == len(entry.name)
with open(root / "m", "wb") as f:
    f.write(bytes(range(256)) * 64)
    f.flush()
    os.fsync(f.fileno())
with open(root / "m", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    assert m[1000] == 1000 % 256 and len(m) == 16384
os.chdir(root / "a")
assert os.getcwd() == str(root / "a") and os.path.exists("b/7")
with tempfile.NamedTemporaryFile(dir=".") as f:
    f.write(b"x")
db = sqlite3.connect(root / "db")
db.execute("create table t(a)")
db.executemany("insert into t values(?)", [(i,) for i in range(100)])
db.commit()
assert db.execute("select sum(a) from t").fetchone() == (4950,)
db.close()
shutil.rmtree(root / "copy")
os.replace(root / "m", root / "n")
print(sorted(os.listdir(root)))
"#,
    )
    .unwrap();
    let out = traced(&volume, "python3", &[script.to_str().unwrap(), PREFIX]);
    assert_eq!(out, "['a', 'db', 'n']\n");
    let opened = volume.open();
    assert_eq!(opened.fs().read("a/b/199").unwrap(), b"199");
}

#[test]
fn git() {
    let volume = TestVolume::new();
    let repository = format!("{PREFIX}/repository");
    traced(&volume, "git", &["init", "-q", &repository]);
    let host = volume.dir.path().join("text");
    for n in 0..5 {
        std::fs::write(&host, format!("version {n}\n")).unwrap();
        traced(&volume, "cp", &[host.to_str().unwrap(), &format!("{repository}/text")]);
        let git = |arguments: &[&str]| {
            // What it would start to tidy up sees no volume.
            let own = [
                "-C",
                &repository,
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b",
                "-c",
                "maintenance.auto=false",
            ];
            traced(&volume, "git", &[&own, arguments].concat())
        };
        git(&["add", "text"]);
        git(&["commit", "-q", "-m", &format!("change {n}")]);
        assert_eq!(git(&["log", "--oneline"]).lines().count(), n + 1);
        assert_eq!(git(&["status", "--porcelain"]), "");
        assert_eq!(git(&["show", "HEAD:text"]), format!("version {n}\n"));
        let objects = git(&["rev-list", "--objects", "HEAD"]);
        assert_eq!(objects.lines().count(), 3 * (n + 1), "{objects}");
    }
}

#[test]
fn mail() {
    let volume = TestVolume::new();
    let program = compile("mail", volume.dir.path());
    let out = traced(&volume, program, &[PREFIX, "100"]);
    assert!(out.starts_with("400000 bytes, 0 failed\n"), "{out}");
}

/// A shell opens files for its children, and writes to them itself.
#[test]
fn shells() {
    let volume = TestVolume::new();
    let file = format!("{PREFIX}/f");
    traced(&volume, "bash", &["-c", &format!("cat /etc/passwd > {file}")]);
    assert_eq!(volume.open().fs().read("f").unwrap(), std::fs::read("/etc/passwd").unwrap());
    let read = traced(&volume, "bash", &["-c", &format!("wc -l < {file}")]);
    assert_eq!(read.trim(), std::fs::read_to_string("/etc/passwd").unwrap().lines().count().to_string());
    // Two descriptors of one open file share its position.
    let both = format!("bash -c 'echo one; echo two >&2; exec ls -d /usr /lanefs-none' > {file} 2>&1; true");
    traced(&volume, "bash", &["-c", &both]);
    let text = volume.open().fs().read_to_string("f").unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    lines.sort_unstable();
    assert!(lines.contains(&"/usr") && lines.contains(&"one") && lines.contains(&"two"), "{text}");
    let script = format!(
        "echo hello > {file}; read x < {file}; echo $x; cd {PREFIX}; pwd; for i in 1 2 3; do echo $i >> log; \
         done; mapfile -t a < log; echo ${{a[@]}}; test -f log && echo yes; echo *"
    );
    let said = traced(&volume, "bash", &["-c", &script]);
    assert_eq!(said, format!("hello\n{PREFIX}\n1 2 3\nyes\nf log\n"));
}
