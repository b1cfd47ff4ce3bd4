//! A mount that the program's process serves: for its children, and for others.

use crate::volume::{TestVolume, compile, succeed};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A volume, and a directory where it is mounted: the prefix too, unless a test has another.
struct Mounted {
    volume: TestVolume,
    dir: PathBuf,
}

impl Mounted {
    /// Makes both, unless this user may not mount.
    fn new() -> Option<Mounted> {
        let volume = TestVolume::new();
        let dir = volume.dir.path().join("data");
        std::fs::create_dir(&dir).unwrap();
        if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
            eprintln!("/dev/fuse: {e}: not tested");
            return None;
        }
        Some(Mounted { volume, dir })
    }

    /// Returns a command whose process serves the mount.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.volume.command(program);
        self.volume.environment(self.dir.to_str().unwrap(), |name, value| {
            command.env(name, value);
        });
        command.env("LANEFS_MOUNT", &self.dir).env_remove("LANEFS_MOUNTED");
        command.env("HOME", self.volume.dir.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        command
    }

    fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|l| l.split(' ').nth(4) == self.dir.to_str())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A test that fails leaves nothing behind.
        let _ = lanefs_fuse::remove_dead_mounts(&self.dir);
    }
}

/// What shells do with files: for commands of their own, for others, for pipes and for children.
const SCRIPT: &str = r#"
cd "$1" || exit 1
echo one > a; cat a; cat < a > b; cat a b | wc -l
(echo sub; cat a; echo end) > c; cat c
{ echo x; cat b; echo y; } >> c; wc -c < c
exec 3> kept; echo first >&3; /bin/echo second >&3; (echo third >&3); echo fourth >&3; exec 3>&-; cat kept
exec 4< kept; read -r l <&4; echo "$l"; exec 4<&-
mkdir -p d/e; cd d; pwd; /bin/pwd; echo rel > e/f; cat e/f ../a; ls; cd ..
for i in 1 2 3 4 5; do /bin/echo $i & done > many; wait; sort many | tr '\n' ' '
printf '#!/bin/sh\necho run "$@"; cat "$0" | wc -l\n' > run; chmod +x run; ./run 7 8
x=$(cat a; echo more > e; cat e); echo "$x"
cat <<END > here
heredoc
END
cat here; mv here d; test -f d/here && echo moved; ls missing 2> err; wc -l < err
ls | sort | tr '\n' ' '; echo
find . -type f -exec cat {} + | sort | cksum
cat a
"#;

/// A script as on the host, whichever shell; the last command of some takes the shell's place.
#[test]
fn shells_do_as_on_the_host() {
    let Some(m) = Mounted::new() else { return };
    let script = m.volume.dir.path().join("script");
    std::fs::write(&script, SCRIPT).unwrap();
    for shell in ["bash", "dash"] {
        let host = m.volume.dir.path().join(format!("{shell}-host"));
        std::fs::create_dir(&host).unwrap();
        let below = m.dir.join(shell);
        let as_served = |out: String| out.replace(host.to_str().unwrap(), below.to_str().unwrap());
        let expected = as_served(succeed(Command::new(shell).arg(&script).arg(&host)));
        succeed(m.command("mkdir").arg(&below));
        let found = succeed(m.command(shell).arg(&script).arg(&below));
        for (e, f) in expected.lines().zip(found.lines()) {
            assert_eq!(e, f, "{shell}:\n{found}");
        }
        assert_eq!(expected, found, "{shell}");
        assert!(!m.is_mounted() && std::fs::read_dir(&m.dir).unwrap().next().is_none(), "{shell}");
        // By -c, the shell becomes its last command.
        let list = format!("cd {}; exec 5>> kept; echo fifth >&5; tail -n 2 kept", below.display());
        assert_eq!(succeed(m.command(shell).arg("-c").arg(list)), "fourth\nfifth\n", "{shell}");
    }
    let opened = m.volume.open();
    assert!(opened.open_report().clean);
    assert_eq!(opened.fs().read("dash/kept").unwrap(), b"first\nsecond\nthird\nfourth\nfifth\n");
}

/// All that git starts by itself has the files.
#[test]
fn git_starts_other_programs() {
    let Some(m) = Mounted::new() else { return };
    let script = "set -e; cd \"$1\"; git init -q a; cd a; git config user.name a; git config user.email a@b
        git config maintenance.autoDetach false; git config gc.autoDetach false
        printf '#!/bin/sh\\necho hook >> log\\n' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit
        for i in 1 2 3; do echo $i > f; git add f; git commit -q -m $i; done; wc -l < log
        git gc -q; git fsck --no-progress; git clone -q . ../b; git -C ../b log --oneline | wc -l
        git init -q --bare ../c; git push -q ../c HEAD:refs/heads/x; git -C ../c rev-list x | wc -l";
    let out = succeed(m.command("bash").arg("-c").arg(script).arg("bash").arg(&m.dir));
    assert_eq!(out, "3\n3\n3\n");
    let opened = m.volume.open();
    assert_eq!(opened.fs().read_to_string("b/f").unwrap(), "3\n");
}

#[test]
fn python_hands_files_to_its_children() {
    let Some(m) = Mounted::new() else { return };
    let script = r#"
import os, subprocess, sys
os.chdir(sys.argv[1])
with open("log", "w") as f:
    f.write("parent\n")
    f.flush()
    subprocess.run(["echo", "one"], stdout=f, check=True)
    subprocess.run("echo two; cat log", shell=True, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["echo", "three"], stdout=f, check=True)
    if os.fork() == 0:
        f.write("child\n")
        f.flush()
        os._exit(0)
    os.wait()
    f.write("parent again\n")
print(open("log").read(), end="")
print(subprocess.run(["wc", "-l"], stdin=open("log"), capture_output=True, text=True, check=True).stdout, end="")
print(subprocess.check_output(["pwd"], text=True).strip() == sys.argv[1], os.listdir())
"#;
    let out = succeed(m.command("python3").arg("-c").arg(script).arg(&m.dir));
    assert_eq!(out, "parent\none\nthree\nchild\nparent again\n5\nTrue ['log']\n");
}

/// Files that cannot be handed over are told, and nothing of them is anybody else's.
#[test]
fn what_is_locked_or_has_no_name_stays_the_programs() {
    let Some(m) = Mounted::new() else { return };
    let program = compile("handed", m.volume.dir.path());
    let done = m.command(&program).arg(&m.dir).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{}\n{out}\n{err}", done.status);
    for said in [
        "plain: written",
        "locked: EIO",
        "unlinked: EIO",
        "mapped: EIO",
        "renamed: EIO",
        "parent of plain: 11",
        "parent of locked: 6",
        "parent of unlinked: 6",
        "parent of mapped: 6",
        "parent of renamed: 6",
        "all children are known: 1",
    ] {
        assert!(out.contains(said), "{said}:\n{out}\n{err}");
    }
    assert!(err.contains("not handed on to its child"), "{err}");
}

/// Others see what the program has while it runs, and the mount goes with it, also when it is
/// killed: by fusermount3, or when the next program begins.
#[test]
fn others_see_the_files_beside_the_program() {
    let Some(m) = Mounted::new() else { return };
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    for killed in [false, true] {
        let script = format!("echo hello > {}/f; echo ready; read line; echo \"$line\"", m.dir.display());
        let mut command = m.command("bash");
        command.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let since = Instant::now();
        while std::fs::read_to_string(m.dir.join("f")).ok().as_deref() != Some("hello\n") {
            assert!(since.elapsed() < Duration::from_secs(60), "the mount shows the file");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(m.dir.join(format!("outside-{killed}")), "from outside").unwrap();
        if killed {
            program.kill().unwrap();
            program.wait().unwrap();
            let since = Instant::now();
            while has_helper && m.is_mounted() {
                assert!(since.elapsed() < Duration::from_secs(120), "fusermount3 unmounts");
                std::thread::sleep(Duration::from_millis(5));
            }
        } else {
            program.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let done = program.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&done.stdout), "ready\ngo\n");
            assert!(!m.is_mounted());
        }
        std::fs::metadata(m.dir.join("f")).unwrap_err();
    }
    let listed = succeed(m.command("ls").arg(&m.dir));
    assert!(listed.starts_with("f\n") && listed.contains("outside-false"), "{listed}");
}

/// Elsewhere than at the prefix, a child is told where the files are; without a mount, no program.
#[test]
fn a_mount_elsewhere_is_named_and_a_failure_is_told_first() {
    let Some(m) = Mounted::new() else { return };
    let elsewhere = m.volume.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let script = format!("echo hi > {0}/f; ls {0}; cat {1}/f", m.dir.display(), elsewhere.display());
    let run =
        |mount: &Path| m.command("bash").arg("-c").arg(&script).env("LANEFS_MOUNT", mount).output().unwrap();
    let done = run(&elsewhere);
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, "hi\n", "{err}");
    assert!(err.contains(&format!("its files are at {}", elsewhere.display())), "{err}");
    let done = run(&m.volume.dir.path().join("none"));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && done.stdout.is_empty(), "{err}");
    assert!(err.contains("cannot be mounted there") && err.lines().count() == 1, "{err}");
}

/// A shell becomes its last command. A program that lies in the volume would lose the place it is
/// read from, and the shell says so; one of the host that a link of the volume leads to goes on.
#[test]
fn the_served_process_becomes_a_program_that_a_link_leads_to() {
    let Some(m) = Mounted::new() else { return };
    succeed(m.command("ln").args(["-s", "/bin/ls"]).arg(m.dir.join("link")));
    succeed(m.command("cp").arg("/bin/ls").arg(m.dir.join("own")));
    let bash = |line: String| m.command("bash").arg("-c").arg(line).output().unwrap();
    let done = bash(format!("{0}/link {0}", m.dir.display()));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out == "link\nown\n" && err.is_empty(), "{out} {err}");
    let done = bash(format!("exec {0}/own {0}", m.dir.display()));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(126) && err.contains("start it as a child"), "{err}");
    let done = bash(format!("{0}/own {0}; true", m.dir.display()));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "link\nown\n");
    assert!(!m.is_mounted());
}
