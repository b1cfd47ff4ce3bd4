//! `lanefs run`: programs that find a volume, and those that are refused.

use crate::common::{LANEFS, Run, run_command, volume};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the library, which is built for the tests beside them.
pub fn library() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let found = this.with_file_name("liblanefs_preload.so");
    assert!(found.exists(), "{} was not built", found.display());
    found
}

fn lanefs_run(image: &Path, prefix: &str, options: &[&str], command: &[&str]) -> Run {
    let place = format!("{}:{prefix}", image.display());
    let mut run = Command::new(LANEFS);
    run.env("LANEFS_PRELOAD", library()).current_dir(image.parent().unwrap());
    run_command(run.arg("run").args(options).arg(place).arg("--").args(command))
}

#[test]
fn a_program_finds_the_volume_and_the_next_one_what_it_wrote() {
    let (_dir, image) = volume("128M");
    let run = |command: &[&str]| lanefs_run(&image, "/run-test/data", &[], command).ok().out;
    run(&["cp", "/etc/passwd", "/run-test/data/p"]);
    assert_eq!(run(&["cat", "/run-test/data/p"]), std::fs::read_to_string("/etc/passwd").unwrap());
    assert_eq!(run(&["sh", "-c", "mkdir /run-test/data/d && ls /run-test/data"]), "d\np\n");
    let shown = run_command(Command::new(LANEFS).arg("ls").arg(&image)).ok();
    assert_eq!(shown.out, "d\np\n");
    let there = lanefs_run(&image, "/run-test/data", &["-C", "/run-test/data/d"], &["pwd"]).ok();
    assert_eq!(there.out, "/run-test/data/d\n");
    assert_eq!(lanefs_run(&image, "/run-test/data", &["-C", "/usr"], &["pwd"]).ok().out, "/usr\n");
    assert_eq!(lanefs_run(&image, "/d", &[], &["sh", "-c", "exit 7"]).code, 7);
}

#[test]
fn what_cannot_be_served_is_refused_before_it_starts() {
    let (dir, image) = volume("128M");
    let source = dir.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let built = dir.path().join("static");
    let done = Command::new("cc").arg("-static").arg("-o").args([&built, &source]).status().unwrap();
    assert!(done.success(), "cc -static");
    let built = built.to_str().unwrap();
    let refused = |command: &[&str], words: &[&str]| {
        lanefs_run(&image, "/run-test", &[], command).fails(126, words);
    };
    refused(&[built], &["statically linked", "mount it instead"]);
    // With the note that Go's linker writes.
    let source = dir.path().join("go.c");
    let note = "__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n.long 4,4,4\\n.ascii \\\"Go\\\\0\\\\0abcd\\\"\");";
    std::fs::write(&source, format!("{note}\nint main(void) {{ return 0; }}")).unwrap();
    let go = dir.path().join("go");
    assert!(Command::new("cc").arg("-o").args([&go, &source]).status().unwrap().success());
    refused(&[go.to_str().unwrap()], &["a Go program", "mount it instead"]);
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{built}\n")).unwrap();
    refused(&[script.to_str().unwrap()], &["its interpreter", "statically linked", "mount it instead"]);
    let copy = dir.path().join("true");
    std::fs::copy("/bin/true", &copy).unwrap();
    let copy = copy.to_str().unwrap();
    lanefs_run(&image, "/run-test", &[], &[copy]).ok();
    let mode = Command::new("chmod").args(["u+s", copy]).status().unwrap();
    assert!(mode.success());
    refused(&[copy], &["set-uid", "mount it instead"]);
    lanefs_run(&image, "/run-test", &[], &["no-such-program"]).fails(127, &["no such program"]);
    for prefix in ["/", "/proc/x", "/a/../b"] {
        lanefs_run(&image, prefix, &[], &["true"]).fails(1, &["IMAGE:/data"]);
    }
    let own = image.parent().unwrap().to_str().unwrap();
    lanefs_run(&image, own, &[], &["true"]).fails(1, &["choose another directory"]);
    // The program began in a directory that was not there.
    let fs = lanefs::Volume::open(&[&image], &lanefs::MountOptions::default()).unwrap();
    fs.fs().write("/file", b"").unwrap();
    fs.close().unwrap();
    let begins = |at: &str| {
        lanefs_run(&image, "/run-test", &["-C", &format!("/run-test/{at}")], &["touch", "/run-test/ran"])
    };
    let way = format!("lanefs mkdir -p {}:/none", image.display());
    begins("none").fails(1, &["/run-test/none: no such directory in the volume", &way]);
    begins("file").fails(1, &["/run-test/file: no directory"]);
    let shown = run_command(Command::new(LANEFS).arg("ls").arg(&image)).ok();
    assert_eq!(shown.out, "file\n", "a program was started");
    begins("").ok();
    let opened = lanefs::Volume::open(&[&image], &lanefs::MountOptions::default()).unwrap();
    let who = format!("in use by process {}", std::process::id());
    lanefs_run(&image, "/run-test", &[], &["true"]).fails(1, &[&who]);
    opened.close().unwrap();
    let missing = dir.path().join("missing.lane");
    lanefs_run(&missing, "/run-test", &[], &["true"]).fails(1, &["missing.lane", "No such file"]);
}

#[test]
fn a_mount_is_served_beside_the_program_and_what_a_killed_one_left_is_removed() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("/dev/fuse cannot be opened: not tested");
        return;
    }
    let (dir, image) = volume("128M");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let data = data.to_str().unwrap();
    let options = ["--mount", data];
    let run = |command: &[&str]| lanefs_run(&image, data, &options, command);
    let there = lanefs_run(&image, data, &["-C", data, "--mount", data], &["sh", "-c", "pwd; ls; /bin/pwd"]);
    assert_eq!(there.ok().out, format!("{data}\n{data}\n"));
    let script = format!("cd {data}; cat /etc/passwd | tee p | cmp - /etc/passwd; ls; true");
    assert_eq!(run(&["bash", "-c", &script]).ok().out, "p\n");
    // One that could not be the first.
    let source = dir.path().join("static.c");
    std::fs::write(&source, "#include <unistd.h>\nint main(int n, char **a) { return access(a[1], R_OK); }")
        .unwrap();
    let built = dir.path().join("static");
    let done = Command::new("cc").arg("-static").arg("-o").args([&built, &source]).status().unwrap();
    assert!(done.success(), "cc -static");
    assert_eq!(
        run(&["bash", "-c", &format!("{} {data}/p && echo seen", built.display())]).ok().out,
        "seen\n"
    );
    for (mount, words) in [
        (dir.path().join("none"), "No such file"),
        (image.clone(), "no directory"),
        (dir.path().to_path_buf(), "hide the image"),
    ] {
        lanefs_run(&image, data, &["--mount", mount.to_str().unwrap()], &["true"]).fails(1, &[words]);
    }
    std::fs::create_dir(dir.path().join("data/below")).unwrap();
    let below = format!("{data}/below");
    lanefs_run(&image, data, &["--mount", &below], &["true"]).fails(1, &["neither above nor below"]);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = format!("{}:{data}", image.display());
    let mut killed = Command::new(LANEFS);
    killed.env("LANEFS_PRELOAD", library()).env("PATH", "/nowhere").arg("run").args(options).arg(place);
    let killed = killed.args(["--", "/bin/sh", "-c", "kill -9 $$"]).status().unwrap();
    assert!(!killed.success());
    let dead = std::fs::read_dir(data).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    let again = run(&["ls", data]).ok();
    assert!(again.err.contains("unmounted what a killed process had left"), "{}", again.err);
    assert_eq!(again.out, "p\n");
    assert!(std::fs::read_dir(data).unwrap().next().is_some_and(|e| e.unwrap().file_name() == "below"));
}
