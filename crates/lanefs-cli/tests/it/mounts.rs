//! Mounting, unmounting and dying.

use crate::common::*;
use crate::transport::DeviceMode;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

on_each_transport! {
    a_mount_shows_its_type_source_and_options,
    umount_returns_when_the_image_is_closed,
    an_image_in_use_is_refused_with_the_pid,
    a_mount_in_use_stays,
    create_makes_the_volume_once,
    a_signal_ends_a_foreground_mount_cleanly_even_in_use,
    the_helper_mounts_as_mount8_calls_it_and_says_nothing,
    what_was_synced_survives_a_kill_and_a_shutdown,
    an_ordinary_user_mounts,
    options_without_effect_are_told,
    umount_says_when_the_volume_was_not_closed,
    umount_says_where_a_mount_is_seen_still,
    an_ordinary_user_who_may_not_open_the_device_is_told_what_to_do,
    a_daemon_without_a_log_tells_the_systems,
    a_mount_waits_for_a_server_that_closes_the_image,
    every_command_waits_for_a_server_that_closes_the_image,
    the_helper_lets_programs_and_devices_be_as_mount8_does,
    a_mount_is_made_read_only_and_writable_again,
    a_mounted_volume_tells_what_it_is,
    who_may_not_unmount_is_told_so,
    the_shutdown_makes_durable_what_its_flags_say,
}

fn a_mount_shows_its_type_source_and_options() {
    let mut m = Mount::new(&["-o", "noloop"]);
    let (kind, source, options) = mount_line(&m.dir).unwrap();
    assert_eq!((kind.as_str(), source.as_str()), ("fuse.lanefs", m.image().to_str().unwrap()));
    assert!(
        options.contains("nosuid") && options.contains("nodev") && options.starts_with("rw"),
        "{options}"
    );
    m.umount();
    assert_eq!(mount_line(&m.dir), None);
    m.mount(&["-o", "suid,dev,ro,noatime"]);
    let (_, _, options) = mount_line(&m.dir).unwrap();
    assert!(!options.contains("nosuid") && !options.contains("nodev"), "{options}");
    assert!(options.starts_with("ro") && options.contains("noatime"), "{options}");
    let refused = std::fs::write(m.path("x"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
}

/// By another name of it, or where somebody has a copy of the table of mounts. It waited for these.
fn umount_says_where_a_mount_is_seen_still() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    for options in ["rw", "noloop"] {
        let mut m = Mount::new(&["-o", options]);
        let other = m.work.path().join("other");
        std::fs::create_dir_all(&other).unwrap();
        std::fs::write(m.path("f"), "content").unwrap();
        rustix::mount::mount_bind(&m.dir, &other).unwrap();
        let told = lanefs_in(m.work.path(), &["umount", "mnt"]).ok().err;
        assert!(told.contains("stays open") && told.contains("/other, too"), "{told}");
        assert_eq!(std::fs::read(other.join("f")).unwrap(), b"content");
        lanefs_in(m.work.path(), &["umount", "other"]).ok();
        m.is_unmounted();
        m.fsck();

        m.mount(&["-o", options]);
        let only_namespace = before_a_mount_namespace();
        let mut sees = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo there; read end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(sees.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        let mut umount = Command::new(LANEFS);
        let told = run_command(umount.args(["umount", "mnt"]).current_dir(m.work.path())).ok().err;
        let pid = format!("process {}", sees.id());
        assert!(told.contains("stays open") && told.contains(&pid), "{told}");
        drop(sees.stdin.take());
        assert!(sees.wait().is_ok());
        drop(only_namespace);
        m.is_unmounted();
        m.fsck();
    }
}

fn umount_returns_when_the_image_is_closed() {
    let mut m = Mount::new(&[]);
    for round in 0..5 {
        std::fs::write(m.path(&format!("file{round}")), vec![round; 100_000]).unwrap();
        m.umount();
        let list = lanefs_in(m.work.path(), &["ls", "v.lane:/"]).ok().out;
        assert_eq!(list.lines().count(), usize::from(round) + 1, "{list}");
        assert_eq!(lanefs_in(m.work.path(), &["info", "--json", "v.lane"]).ok().json()["clean"], true);
        m.mount(&[]);
    }
}

fn an_image_in_use_is_refused_with_the_pid() {
    let m = Mount::new(&[]);
    let pid = m.server().to_string();
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(command.trim(), "lanefs");
    std::fs::create_dir(m.work.path().join("other")).unwrap();
    let at = |args: &[&str]| lanefs_in(m.work.path(), args);
    at(&["mount", "v.lane", "other"]).fails(1, &["v.lane", &pid]);
    at(&["mkfs", "--force", "v.lane"]).fails(1, &["v.lane", &pid]);
    at(&["mkfs", "--force", "--size", "1G", "v.lane"]).fails(1, &["v.lane", &pid]);
    at(&["fsck", "v.lane"]).fails(8, &["v.lane", &pid]);
    at(&["cp", "v.lane:/x", "y"]).fails(1, &["v.lane", &pid]);
    assert_eq!(std::fs::metadata(m.image()).unwrap().len(), 256 << 20);
}

fn a_mount_in_use_stays() {
    let mut m = Mount::new(&[]);
    let file = File::create(m.path("open")).unwrap();
    lanefs_in(m.work.path(), &["umount", "mnt"]).fails(1, &["in use", "--lazy"]);
    assert!(mount_line(&m.dir).is_some());
    drop(file);
    m.umount();
}

fn create_makes_the_volume_once() {
    let mut m = Mount::new(&[]);
    m.umount();
    std::fs::remove_file(m.image()).unwrap();
    m.mount(&["--create", "--size", "128M"]);
    assert_eq!(std::fs::metadata(m.image()).unwrap().len(), 128 << 20);
    std::fs::write(m.path("kept"), "x").unwrap();
    m.umount();
    m.mount(&["--create", "--size", "128M"]);
    assert_eq!(std::fs::read(m.path("kept")).unwrap(), b"x");
}

fn a_signal_ends_a_foreground_mount_cleanly_even_in_use() {
    let mut m = Mount::new(&[]);
    m.umount();
    for (signal, busy) in [(libc::SIGTERM, false), (libc::SIGINT, false), (libc::SIGTERM, true)] {
        let mut command = Command::new(LANEFS);
        command
            .args(["mount", "--foreground", "-o", &transport().option(), "v.lane", "mnt"])
            .current_dir(m.work.path());
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while mount_line(&m.dir).is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut file = File::create(m.path("f")).unwrap();
        file.write_all(&[7; 300_000]).unwrap();
        let file = busy.then_some(file);
        // SAFETY: our own child's pid, which has not been waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(mount_line(&m.dir), None);
        drop(file);
        assert_eq!(lanefs_in(m.work.path(), &["info", "--json", "v.lane"]).ok().json()["clean"], true);
        let list = lanefs_in(m.work.path(), &["ls", "--json", "v.lane:/"]).ok().json();
        assert_eq!(list[0]["size"], 300_000);
    }
}

fn the_helper_mounts_as_mount8_calls_it_and_says_nothing() {
    let mut m = Mount::new(&[]);
    m.umount();
    let helper = m.work.path().join("mount.fuse.lanefs");
    std::os::unix::fs::symlink(LANEFS, &helper).unwrap();
    let (image, dir) = (m.image(), m.dir.clone());
    let how = transport().option();
    let call = |args: &[&str]| {
        run_command(Command::new(&helper).arg(&image).arg(&dir).args(["-o", &how]).args(args))
    };
    let fake = call(&["-f", "-o", "rw"]).ok();
    assert_eq!((fake.out, fake.err, mount_line(&m.dir)), (String::new(), String::new(), None));
    let run = call(&["-n", "-o", "rw,noexec,x-systemd.automount,_netdev", "-t", "fuse.lanefs"]).ok();
    assert_eq!((run.out.as_str(), run.err.as_str()), ("", ""));
    assert!(mount_line(&m.dir).unwrap().2.contains("noexec"));
    m.umount();
    call(&["-o", "nonsense"]).fails(32, &["nonsense"]);
}

fn what_was_synced_survives_a_kill_and_a_shutdown() {
    let mut m = Mount::new(&[]);
    for (round, kill) in [true, false, true].into_iter().enumerate() {
        let name = format!("synced{round}");
        let mut file = File::create(m.path(&name)).unwrap();
        file.write_all(format!("round {round}").repeat(1000).as_bytes()).unwrap();
        file.sync_all().unwrap();
        std::fs::write(m.path("unsynced"), "x").unwrap();
        if kill {
            // SAFETY: the process that holds the image of this test's own volume.
            unsafe { libc::kill(m.server(), libc::SIGKILL) };
        } else {
            let dir = File::open(&m.dir).unwrap();
            let mut how = 2u32;
            // SAFETY: the ioctl reads or writes at most one u32 through a pointer valid for that.
            let r = unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_587d, &raw mut how) };
            assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
            let late = File::create(m.path("late")).and_then(|f| f.sync_all());
            assert_eq!(late.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        drop(file);
        match kill {
            true => m.umount(),
            false => m.umount_of_a_stopped_one(),
        }
        m.fsck();
        m.mount(&[]);
        for r in 0..=round {
            let content = std::fs::read_to_string(m.path(&format!("synced{r}"))).unwrap();
            assert_eq!(content, format!("round {r}").repeat(1000));
        }
    }
}

/// What an ordinary user has: a program and a volume of its own.
struct User(tempfile::TempDir);

impl User {
    /// `None` if we cannot become one, which is said.
    fn new() -> Option<User> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root, to become an ordinary user");
            return None;
        }
        let user = User(tempfile::tempdir().unwrap());
        std::fs::copy(LANEFS, user.0.path().join("lanefs")).unwrap();
        std::fs::create_dir(user.0.path().join("mnt")).unwrap();
        for own in ["", "mnt"] {
            std::os::unix::fs::chown(user.0.path().join(own), Some(65534), Some(65534)).unwrap();
        }
        user.lanefs(&["mkfs", "--size", "64M", "v.lane"]).ok();
        Some(user)
    }
    fn run(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Run {
        let mut command = Command::new(program);
        run_command(command.args(args).current_dir(self.0.path()).uid(65534).gid(65534))
    }
    fn lanefs(&self, args: &[&str]) -> Run {
        self.run(self.0.path().join("lanefs"), args)
    }
    fn mount(&self) -> Run {
        self.lanefs(&["mount", "-o", &transport().option(), "v.lane", "mnt"])
    }
}

fn an_ordinary_user_mounts() {
    let Some(user) = User::new() else { return };
    let _mode = DeviceMode::set(0o666); // That which the rule of udev in the package fuse3 gives.
    user.mount().ok();
    let script =
        "cd mnt; echo hello > a; mkdir d; mv a d/b; cat d/b; grep -c 'fuse.lanefs' /proc/self/mounts";
    let worked = user.run("sh", &["-ec", script]);
    let left = user.lanefs(&["umount", "mnt"]);
    assert!(worked.code == 0 && worked.out.starts_with("hello\n"), "{worked:?}");
    left.ok();
    assert_eq!(user.lanefs(&["cat", "v.lane:/d/b"]).ok().out, "hello\n");
}

fn an_ordinary_user_who_may_not_open_the_device_is_told_what_to_do() {
    let Some(user) = User::new() else { return };
    let _mode = DeviceMode::set(0o600);
    user.mount().fails(1, &["/dev/fuse", "Permission denied", "chmod 666 /dev/fuse"]);
}

fn options_without_effect_are_told() {
    let mut m = Mount::new(&[]);
    m.umount();
    let how = transport().option();
    let try_with = |options: &str| {
        let args = ["mount", "-o", how.as_str(), "-o", options, "v.lane", "mnt"];
        let run = lanefs_in(m.work.path(), &args);
        if run.code == 0 {
            umount_when_free(m.work.path()).ok();
        }
        run
    };
    try_with("mlogs=1000").fails(1, &["mlogs=1000"]);
    let told = try_with("mlogs=100").ok().err;
    assert!(told.lines().count() == 1 && told.contains("100") && told.contains("mlogs"), "{told}");
    let told = try_with("size=4G").ok().err;
    assert!(told.lines().count() == 1 && told.contains("size") && told.contains("256 MiB"), "{told}");
    let told = try_with("noexec,lazytime, strictatime").ok().err;
    assert!(told.lines().count() == 2 && told.contains("lazytime: ") && told.contains("strictatime: "));
    assert_eq!(try_with("mlogs=1,create,size=256M").ok().err, "");
    // mount(8) and fstab want silence.
    let helper = m.work.path().join("mount.fuse.lanefs");
    std::os::unix::fs::symlink(LANEFS, &helper).unwrap();
    let args = ["-o", how.as_str(), "-o", "mlogs=100,size=4G,lazytime"];
    let run = run_command(Command::new(&helper).args([m.image(), m.dir.clone()]).args(args)).ok();
    assert_eq!(run.err, "");
    m.umount();
}

fn umount_says_when_the_volume_was_not_closed() {
    let mut m = Mount::new(&[]);
    std::fs::write(m.path("f"), "x").unwrap();
    let dir = File::open(&m.dir).unwrap();
    let mut how = 2u32;
    // SAFETY: the ioctl reads or writes at most one u32 through a pointer valid for that.
    let r = unsafe { libc::ioctl(dir.as_raw_fd(), 0x8004_587d, &raw mut how) };
    assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    drop(dir);
    m.umount_of_a_stopped_one();
    m.fsck();
}

/// The socket of syslog, while a test stands in for it.
struct Syslog(std::os::unix::net::UnixDatagram);

impl Syslog {
    const PATH: &str = "/dev/log";

    /// `None` where there is one, or where we may not make one.
    fn new() -> Option<Syslog> {
        let socket = std::os::unix::net::UnixDatagram::bind(Syslog::PATH).ok()?;
        socket.set_nonblocking(true).unwrap();
        Some(Syslog(socket))
    }
}

impl Drop for Syslog {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Syslog::PATH);
    }
}

fn a_daemon_without_a_log_tells_the_systems() {
    // Its standard error leads nowhere: what it said of a damaged file was lost.
    let mut m = Mount::new(&[]);
    std::fs::write(m.path("f"), "MARK-OF-THE-FILE".repeat(10_000)).unwrap();
    m.umount();
    crate::scrub::flip(&m.image(), b"MARK-OF-THE-FILE");
    let Some(syslog) = Syslog::new() else {
        println!("skipped: there is a syslog, or none can be made");
        return;
    };
    m.mount(&[]);
    let server = m.server_of_mount();
    assert_eq!(std::fs::read(m.path("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let mut said = Vec::new();
    let mut line = [0; 2000];
    while let Ok(n) = syslog.0.recv(&mut line) {
        said.push(String::from_utf8_lossy(&line[..n]).into_owned());
    }
    let ours = format!("<27>lanefs[{server}]: ");
    assert!(said.iter().any(|l| l.starts_with(&ours) && l.contains("its bytes sum to")), "{said:?}");
}

/// Unmounts by umount(8), which returns when the mount is gone; the server has the image for as
/// long as it takes to close it.
fn umount8(m: &mut Mount) {
    let gone = run_command(Command::new("umount").arg(&m.dir));
    if gone.err.contains("busy") {
        // Another test's child has a descriptor of ours for a moment.
        m.umount();
    } else {
        gone.ok();
    }
}

fn a_mount_waits_for_a_server_that_closes_the_image() {
    let mut m = Mount::new(&[]);
    for round in 0..5u8 {
        std::fs::write(m.path("f"), vec![round; 40 << 20]).unwrap();
        umount8(&mut m);
        let how = transport().option();
        lanefs_in(m.work.path(), &["mount", "-o", &how, "v.lane", "mnt"]).ok();
        assert_eq!(std::fs::read(m.path("f")).unwrap()[0], round);
    }
    // One that is mounted is not waited for.
    std::fs::create_dir(m.work.path().join("other")).unwrap();
    lanefs_in(m.work.path(), &["mount", "v.lane", "other"]).fails(1, &["in use"]);
}

fn every_command_waits_for_a_server_that_closes_the_image() {
    let mut m = Mount::new(&[]);
    let commands: &[&[&str]] = &[
        &["fsck", "v.lane"],
        &["fsck", "--repair", "v.lane"],
        &["info", "v.lane"],
        &["scrub", "v.lane"],
        &["label", "v.lane", "x"],
        &["ls", "v.lane:/"],
        &["run", "v.lane:/data", "--", "true"],
        // The last one makes another volume.
        &["mkfs", "--force", "v.lane"],
    ];
    for command in commands {
        std::fs::write(m.path("f"), vec![7; 40 << 20]).unwrap();
        umount8(&mut m);
        let mut call = Command::new(LANEFS);
        call.env("LANEFS_PRELOAD", crate::run::library()).current_dir(m.work.path());
        run_command(call.args(*command)).ok();
        m.mount(&[]);
    }
}

fn the_helper_lets_programs_and_devices_be_as_mount8_does() {
    // mount(8) drops "suid" and "dev", which it takes for granted, from what it passes on.
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let mut m = Mount::new(&[]);
    let helper = m.work.path().join("mount.fuse.lanefs");
    std::os::unix::fs::symlink(LANEFS, &helper).unwrap();
    let (image, how) = (m.image(), transport().option());
    for (options, no_suid, no_dev) in
        [("rw", false, false), ("rw,nosuid", true, false), ("rw,nodev", false, true), ("rw,user", true, true)]
    {
        m.umount();
        let mut call = Command::new(&helper);
        m.is_mounted();
        run_command(call.arg(&image).arg(&m.dir).args(["-o", options, "-o", &how])).ok();
        let (_, _, shown) = mount_line(&m.dir).unwrap();
        assert_eq!(
            (shown.contains("nosuid"), shown.contains("nodev")),
            (no_suid, no_dev),
            "{options}: {shown}"
        );
    }
}

fn a_mount_is_made_read_only_and_writable_again() {
    let mut m = Mount::new(&["-o", "commit=1000"]);
    let remount = |options: &str| {
        let helper = m.work.path().join("mount.fuse.lanefs");
        let _ = std::os::unix::fs::symlink(LANEFS, &helper);
        run_command(Command::new(&helper).arg(m.image()).arg(&m.dir).args(["-o", options]))
    };
    let until_free = |options: &str| {
        let begun = Instant::now();
        loop {
            let run = remount(options);
            // Another test's child has a descriptor of ours for a moment.
            if !run.err.contains("in use") || begun.elapsed() > Duration::from_secs(20) {
                return run;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::fs::write(m.path("f"), "x").unwrap();
    let open = File::create(m.path("open")).unwrap();
    remount("remount,ro").fails(32, &["in use", "open for writing"]);
    drop(open);
    // The kernel counts what was removed and is open, for reading, too.
    let open = File::open(m.path("open")).unwrap();
    std::fs::remove_file(m.path("open")).unwrap();
    remount("remount,ro").fails(32, &["in use", "was removed and is still open"]);
    drop(open);
    until_free("remount,ro,nosuid,nodev,noexec,user_id=0,group_id=0,default_permissions,allow_other").ok();
    let (_, _, options) = mount_line(&m.dir).unwrap();
    assert!(options.starts_with("ro") && options.contains("noexec"), "{options}");
    assert_eq!(std::fs::write(m.path("g"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    until_free("remount,rw,cache_size=1G").ok();
    let (_, _, options) = mount_line(&m.dir).unwrap();
    assert!(
        options.starts_with("rw") && options.contains("noexec") && options.contains("nosuid"),
        "{options}"
    );
    std::fs::write(m.path("g"), "y").unwrap();
    until_free("remount,ro").ok();
    // Made read only, it is whole on the medium.
    // SAFETY: the process that holds the image of this test's own volume.
    unsafe { libc::kill(m.server(), libc::SIGKILL) };
    m.umount();
    m.mount(&["-o", "ro"]);
    for (name, content) in [("f", "x"), ("g", "y")] {
        assert_eq!(std::fs::read_to_string(m.path(name)).unwrap(), content, "{name}");
    }
    let helper = m.work.path().join("mount.fuse.lanefs");
    let mut call = Command::new(&helper);
    run_command(call.arg(m.image()).arg(&m.dir).args(["-o", "remount,rw"])).fails(32, &["reading only"]);
    let other = m.work.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut call = Command::new(&helper);
    run_command(call.arg(m.image()).arg(&other).args(["-o", "remount,ro"])).fails(32, &["no LaneFS volume"]);
}

fn a_mounted_volume_tells_what_it_is() {
    let mut m = Mount::new(&[]);
    m.umount();
    lanefs_in(m.work.path(), &["mkfs", "--force", "--label", "home", "v.lane"]).ok();
    let before = lanefs_in(m.work.path(), &["info", "--json", "v.lane"]).ok().json();
    m.mount(&[]);
    std::fs::create_dir(m.path("d")).unwrap();
    for place in ["v.lane", "mnt", "mnt/d"] {
        let now = lanefs_in(m.work.path(), &["info", "--json", place]).ok().json();
        for same in ["uuid", "label", "total_blocks", "segments", "mlogs", "devices", "usable_blocks"] {
            assert_eq!(now[same], before[same], "{same} by {place}");
        }
        assert!(now["mounted"].as_str().unwrap().starts_with(m.dir.to_str().unwrap()), "{now}");
        let shown = lanefs_in(m.work.path(), &["info", place]).ok().out;
        assert!(shown.contains("home") && shown.contains("mounted at"), "{shown}");
        let df = lanefs_in(m.work.path(), &["df", "--json", place]).ok().json();
        assert_eq!(df[0]["free"].as_u64().unwrap() / 4096, now["free_blocks"].as_u64().unwrap(), "{df}");
    }
    for command in ["info", "df"] {
        lanefs_in(m.work.path(), &[command, "."]).fails(1, &["no directory of a mounted LaneFS volume"]);
    }
}

fn who_may_not_unmount_is_told_so() {
    let Some(user) = User::new() else { return };
    let m = Mount::new(&[]);
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(m.work.path(), everybody).unwrap();
    // It said "in use; see who with fuser".
    user.lanefs(&["umount", m.dir.to_str().unwrap()]).fails(1, &["permission denied", "user 0"]);
    assert!(mount_line(&m.dir).is_some());
}

fn the_shutdown_makes_durable_what_its_flags_say() {
    let mut m = Mount::new(&["-o", "commit=1000"]);
    for (flags, names, content, on_file) in
        [(0u32, true, true, true), (1, true, false, false), (2, false, false, true)]
    {
        let (dir, file) = (m.path(&format!("dir{flags}")), m.path(&format!("file{flags}")));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&file, "content").unwrap();
        let open = File::open(if on_file { &file } else { &dir }).unwrap();
        // SAFETY: the ioctl reads or writes at most one u32 through a pointer valid for that.
        let r = unsafe { libc::ioctl(open.as_raw_fd(), 0x8004_587d, &raw const flags) };
        assert_eq!(r, 0, "{flags}: {}", std::io::Error::last_os_error());
        drop(open);
        m.umount_of_a_stopped_one();
        m.mount(&["-o", "commit=1000"]);
        assert_eq!(dir.exists(), names, "{flags}");
        assert!(!content || std::fs::read_to_string(&file).unwrap() == "content", "{flags}");
    }
    let open = File::open(m.path("file0")).unwrap();
    let wrong = 77u32;
    // SAFETY: as above.
    let r = unsafe { libc::ioctl(open.as_raw_fd(), 0x8004_587d, &raw const wrong) };
    assert_eq!((r, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINVAL)));
    drop(open);
}
