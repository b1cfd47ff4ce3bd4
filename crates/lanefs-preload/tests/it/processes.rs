//! Children, other programs, and what is refused.

use crate::volume::{PREFIX, TestVolume, compile, succeed};

/// The host has a directory of the name, whose files hold HOST: nobody sees them.
#[test]
fn children_never_see_the_hosts_files_below_the_prefix() {
    let volume = TestVolume::new();
    let program = compile("processes", volume.dir.path());
    let host = volume.dir.path().join("below");
    std::fs::create_dir(&host).unwrap();
    for name in ["a", "stream"] {
        std::fs::write(host.join(name), "HOST").unwrap();
    }
    let prefix = host.to_str().unwrap();
    let mut command = volume.command(&program);
    volume.environment(prefix, |name, value| {
        command.env(name, value);
    });
    let done = command.arg(prefix).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{}\n{out}\n{err}", done.status);
    assert!(!out.contains("HOST"), "{out}");
    for said in [
        "write(fd, \"child\", 5) = -1 EIO",
        "pread(fd, buf, 5, 0) = -1 EIO",
        "open(in(\"a\"), O_RDONLY) = -1 EIO",
        "access(in(\"a\"), R_OK) = -1 EIO",
        "\n-1 EIO\n",
        "close(fd) = 0",
        "close(fd) = -1 EBADF",
        "open(\"/dev/null\", O_RDONLY) == fd = 1",
        "fork: exit 0",
        "pwrite(fd, \"VOLUME\", 6, 0) = 6",
        "stream: 4 [once]",
        "vfork, execl: exit 1",
        "a descriptor handed on: exit 1",
        "without an environment: exit 1",
        "system: 1",
        "popen: -1",
        "posix_spawn: exit 1",
        "execl(in(\"a\"), \"a\", NULL) = -1 EACCES",
        "relative: 1",
        "pread(fd, buf, 10, 0) = 6",
        "VOLUME to the nextVOLUME to the next",
    ] {
        assert!(out.contains(said), "{said}:\n{out}\n{err}");
    }
    assert_eq!(err.matches("belongs to the process that opened it").count(), 1, "{err}");
    assert!(err.contains("mount it instead"), "{err}");
    assert_eq!(std::fs::read_to_string(host.join("a")).unwrap(), "HOST");
}

#[test]
fn what_is_not_served_is_refused_and_reported() {
    let volume = TestVolume::new();
    let program = compile("refused", volume.dir.path());
    let done = volume.command(&program).arg(PREFIX).env("LANEFS_REPORT", "1").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    for said in [
        "bind(s, (void *)&at, sizeof at) = -1 EOPNOTSUPP",
        "connect(s, (void *)&at, sizeof at) = -1 EOPNOTSUPP",
        "IN_CREATE) = -1 EOPNOTSUPP",
        "1 EOPNOTSUPP",
        "rename(in(\"a\"), \"/tmp/lanefs-never\") = -1 EXDEV",
        "link(\"/etc/passwd\", in(\"b\")) = -1 EXDEV",
        "chroot(dir) = -1 EOPNOTSUPP",
        "open(path, O_RDONLY) = -1",
        "past the library: -9",
        "opened past the library: -1",
    ] {
        assert!(out.contains(said), "{said}:\n{out}\n{err}");
    }
    let row = |name: &str| {
        let row =
            err.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|l| l.get(2) == Some(&name));
        let row = row.unwrap_or_else(|| panic!("no {name} in the report:\n{err}"));
        (row[3].parse::<u32>().unwrap(), row[4].parse::<u32>().unwrap())
    };
    // The second was answered ENOTDIR.
    assert_eq!(row("open"), (2, 0), "{err}");
    assert_eq!(row("bind"), (0, 1), "{err}");
    assert_eq!(row("dlopen"), (0, 1), "{err}");
}

/// The commands of coreutils close their standard error in a handler of their exit, and the report
/// went nowhere.
#[test]
fn a_program_that_closes_its_standard_error_at_its_end_is_reported_on() {
    let volume = TestVolume::new();
    let done = volume.command("ls").arg(PREFIX).env("LANEFS_REPORT", "1").output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && err.contains("opendir"), "{err}");
}

/// The second program is told who has the volume, and sees nothing of the host's.
#[test]
fn a_second_program_is_told_that_the_volume_is_in_use() {
    let volume = TestVolume::new();
    let opened = volume.open();
    let done = volume.command("/bin/ls").arg(PREFIX).output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{err}");
    assert!(err.contains(&format!("in use by process {}", std::process::id())), "{err}");
    assert!(err.contains(&format!("--mount {PREFIX}`, or mount it instead")), "{err}");
    opened.close().unwrap();
    succeed(volume.command("/bin/ls").arg(PREFIX));
}

/// A link of the volume leads to a program of the host, as in an environment of Python's: it was
/// refused. Of the volume's own programs it is said why they are not started.
#[test]
fn programs_are_started_by_links_of_the_volume() {
    let volume = TestVolume::new();
    succeed(volume.command("ln").args(["-s", "/bin/echo", &format!("{PREFIX}/link")]));
    succeed(volume.command("cp").args(["/bin/echo", &format!("{PREFIX}/own")]));
    let exec = |name: &str| {
        let line = format!("cd {PREFIX}; exec {name} said");
        let done = volume.command("bash").arg("-c").arg(line).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    for name in ["./link", &format!("{PREFIX}/link")] {
        assert_eq!(exec(name), (Some(0), "said\n".into(), String::new()), "{name}");
    }
    let (code, out, err) = exec("./own");
    assert!(code == Some(126) && out.is_empty(), "{code:?} {out} {err}");
    assert!(err.contains("/own: a program that lies in the volume is not started"), "{err}");
    let (code, _, err) = exec("./none");
    assert!(code == Some(127) && !err.contains("lies in the volume"), "{code:?} {err}");
    let script =
        "import os, sys; pid = os.posix_spawn(sys.argv[1], ['echo', 'spawned'], {}); os.waitpid(pid, 0)";
    let link = format!("{PREFIX}/link");
    assert_eq!(succeed(volume.command("python3").args(["-c", script, &link])), "spawned\n");
}
