//! Forms of arguments, exit codes, and what is generated from the definitions.

use crate::common::*;
use std::path::Path;
use std::process::Command;

const COMMANDS: [&str; 20] = [
    "mkfs",
    "mount",
    "umount",
    "fsck",
    "info",
    "dump",
    "ls",
    "cat",
    "cp",
    "mkdir",
    "rm",
    "tree",
    "df",
    "grow",
    "label",
    "bench",
    "completions",
    "man",
    "install",
    "install-helper",
];

#[test]
fn help_names_every_command() {
    let help = lanefs_in(Path::new("/"), &["--help"]).ok().out;
    for command in COMMANDS {
        assert!(help.contains(&format!("  {command} ")), "{command}");
        assert!(!lanefs_in(Path::new("/"), &[command, "--help"]).out.is_empty(), "{command}");
    }
}

#[test]
fn a_wrong_option_is_a_usage_error() {
    for args in
        [&["mkfs"][..], &["mount", "only-one"], &["ls"], &["mkfs", "--size", "4Q", "x"], &["nonsense"]]
    {
        assert_eq!(lanefs_in(Path::new("/"), args).code, 2, "{args:?}");
    }
}

#[test]
fn an_image_that_is_not_there_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["ls", "no.lane:/"][..], &["cat", "no.lane:/x"], &["df", "no.lane"], &["tree", "no.lane"]] {
        lanefs_in(dir.path(), args).fails(1, &["no.lane", "mkfs"]);
    }
    lanefs_in(dir.path(), &["info", "no.lane"]).fails(1, &["no.lane"]);
    lanefs_in(dir.path(), &["fsck", "no.lane"]).fails(8, &["no.lane"]);
}

#[test]
fn one_command_installs_pages_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    lanefs_in(dir.path(), &["install", "--prefix", "a/b"]).ok();
    for file in [
        "man/man1/lanefs.1",
        "man/man8/lanefs-mount.8",
        "man/man8/lanefs-install.8",
        "man/man5/lanefs.5",
        "man/man8/mount.fuse.lanefs.8",
        "bash-completion/completions/lanefs",
        "zsh/site-functions/_lanefs",
        "fish/vendor_completions.d/lanefs.fish",
    ] {
        let text = std::fs::read_to_string(dir.path().join("a/b/share").join(file)).unwrap();
        assert!(text.contains("lanefs"), "{file}");
    }
    // Once more it writes over what it wrote.
    lanefs_in(dir.path(), &["install", "--prefix", "a/b"]).ok();
    std::fs::write(dir.path().join("file"), "").unwrap();
    lanefs_in(dir.path(), &["install", "--prefix", "file"]).fails(1, &["file"]);
}

/// `lanefs completions bash | head` ended with a panic.
#[test]
fn completions_whose_reader_is_gone_end_quietly() {
    let mut child = Command::new(LANEFS)
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}

#[test]
fn a_path_without_its_slash_is_told_from_a_missing_image() {
    let (dir, _) = volume("64M");
    let at = |args: &[&str]| lanefs_in(dir.path(), args);
    at(&["cat", "v.lane:a/b"]).fails(1, &["begins with a slash", "v.lane:/a/b"]);
    at(&["cat", "w.lane:a/b"]).fails(1, &["no such image"]);
}

#[test]
fn completions_and_man_pages_come_out() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = lanefs_in(dir.path(), &["completions", shell]).ok().out;
        assert!(COMMANDS.iter().all(|c| script.contains(c)), "{shell}");
    }
    lanefs_in(dir.path(), &["man", "pages"]).ok();
    let page = |name: &str, section: &str| {
        std::fs::read_to_string(dir.path().join(format!("pages/man{section}/{name}.{section}"))).ok()
    };
    for command in COMMANDS {
        let name = format!("lanefs-{command}");
        let page = page(&name, "1").or(page(&name, "8")).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
    let fsck = page("lanefs-fsck", "8").unwrap();
    assert!(fsck.contains("EXIT STATUS") && fsck.contains("lanefs fsck \\-\\-repair disk.lane"), "{fsck}");
    let options = page("lanefs", "5").unwrap();
    let help = lanefs_in(Path::new("/"), &["mount", "--help"]).ok().out;
    for word in
        help.split(|c: char| !c.is_ascii_lowercase() && c != '_' && c != '=').filter(|w| w.ends_with('='))
    {
        assert!(options.contains(&format!(".BI {word} ")), "{word} of the help is not in the page");
    }
    assert!(page("mount.fuse.lanefs", "8").unwrap().contains(".B 32"));
}

/// What the page of options names is taken by a mount, and the formatter has nothing to complain
/// about.
#[test]
fn the_pages_by_hand_say_what_is_so() {
    let dir = tempfile::tempdir().unwrap();
    lanefs_in(dir.path(), &["man", "pages"]).ok();
    let text = std::fs::read_to_string(dir.path().join("pages/man5/lanefs.5")).unwrap();
    let options = text.split(".SH OPTIONS OF THE VOLUME").nth(1).unwrap();
    let mut names = 0;
    for line in options.split(".SH OPTIONS AS OF").next().unwrap().split(".TP\n").skip(1) {
        let head = line.lines().next().unwrap();
        for word in head.split(['"', ' ', ',']).filter(|w| !w.is_empty() && !w.starts_with('.')) {
            let option = match word {
                w if w.ends_with('=') => format!("{w}1"),
                w if w.chars().all(|c| c.is_ascii_lowercase() || c == '_') => w.to_string(),
                _ => continue, // The word for a value.
            };
            let option = match option.as_str() {
                "order=1" => "order=relaxed".into(),
                "profile=1" => "profile=stateless".into(),
                "max_write=1" => "max_write=65536".into(),
                "io_uring=1" => "io_uring=auto".into(),
                "idle=1" => "idle=auto".into(),
                "handles=1" => "handles=on".into(),
                _ => option,
            };
            names += 1;
            // An image that is not there is refused only once the options are read.
            let args = ["mount", "-o", &option, "no.lane", "no.dir"];
            lanefs_in(dir.path(), &args).fails(1, &["no.dir"]);
        }
    }
    assert!(names >= 20, "{names}");
    for page in ["man5/lanefs.5", "man8/mount.fuse.lanefs.8", "man8/lanefs-fsck.8", "man8/lanefs-mount.8"] {
        let mut man = std::process::Command::new("man");
        man.args(["--warnings", "-l", &format!("pages/{page}")])
            .current_dir(dir.path())
            .env("MANWIDTH", "80");
        let Ok(done) = man.output() else { return }; // There is no man(1) here.
        if !done.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let shown = String::from_utf8_lossy(&done.stdout);
        assert!(said.trim().is_empty(), "{page}: {said}");
        assert!(shown.len() > 1000, "{page}: {shown}");
    }
}

#[test]
fn umount_of_what_is_not_mounted_says_so() {
    let dir = tempfile::tempdir().unwrap();
    lanefs_in(dir.path(), &["umount", "."]).fails(1, &["no LaneFS volume"]);
    lanefs_in(dir.path(), &["umount", "missing"]).fails(1, &["missing"]);
}

#[test]
fn a_mount_that_cannot_be_is_refused_in_one_line() {
    let (dir, _) = volume("64M");
    std::fs::write(dir.path().join("file"), "").unwrap();
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    lanefs_in(dir.path(), &["mount", "v.lane", "missing"]).fails(1, &["missing", "mkdir"]);
    lanefs_in(dir.path(), &["mount", "v.lane", "file"]).fails(1, &["file", "not a directory"]);
    lanefs_in(dir.path(), &["mount", "no.lane", "mnt"]).fails(1, &["no.lane", "mkfs"]);
    lanefs_in(dir.path(), &["mount", "-o", "nonsense", "v.lane", "mnt"]).fails(1, &["nonsense"]);
    for none in ["threads=0", "readers=0"] {
        lanefs_in(dir.path(), &["mount", "-o", none, "v.lane", "mnt"]).fails(1, &[none]);
    }
    lanefs_in(dir.path(), &["mount", "file", "mnt"]).fails(1, &["file"]);
    assert_eq!(mount_line(&dir.path().join("mnt")), None);
}

#[test]
fn the_helper_is_linked_once() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["install-helper", "--dir", dir.path().to_str().unwrap()];
    lanefs_in(dir.path(), &args).ok();
    lanefs_in(dir.path(), &args).ok();
    let link = std::fs::read_link(dir.path().join("mount.fuse.lanefs")).unwrap();
    assert_eq!(link, Path::new(LANEFS).canonicalize().unwrap());
    let run =
        lanefs_in(dir.path(), &["install-helper", "--dir", "/nonexist"]).fails(1, &["/nonexist: ", "--dir"]);
    assert!(!run.err.contains("/nonexist/"), "{run:?}");
}

#[test]
fn help_of_mount_names_every_option() {
    let help = lanefs_in(Path::new("/"), &["mount", "--help"]).ok().out;
    for option in [
        "readers=N",
        "spin=MICROSECONDS",
        "idle=auto|poll|halt",
        "handles=auto|on|off",
        "max_write=BYTES",
        "fsname=NAME",
        "threads=N",
        "mlogs=N",
        "ttl=SECONDS",
    ] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn help_of_cp_says_what_is_kept() {
    let help = lanefs_in(Path::new("/"), &["cp", "--help"]).ok().out;
    for kept in ["extended attributes", "ACLs", "hard links"] {
        assert!(help.contains(kept), "{kept}: {help}");
    }
}
