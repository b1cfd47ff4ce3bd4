//! A mount whose server is killed: nobody hangs on it, and the process that sees to that.

use crate::common::*;
use crate::transport::{Transport, can_mount};
use crate::transports::{connection, is_there};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

on_each_transport! {
    nobody_hangs_on_a_killed_server_that_waits_for_its_own_mount,
    a_mount_with_auto_unmount_goes_with_a_killed_server,
}

/// The time for which a test waits for what comes in about a second.
const SOON: Duration = Duration::from_secs(60);

/// Cuts the connection of a mount when it is dropped: a mount that hangs hangs whoever looks at it,
/// for ever. A process does the same a while later, should this one hang.
struct Cuts {
    abort: File,
    late: Child,
}

impl Cuts {
    fn on_drop(dir: &Path) -> Cuts {
        let abort = format!("{}/abort", connection(dir));
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(context.as_fd()).unwrap();
        let there = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        let how = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let abort = File::from(
            rustix::fs::openat(&there, abort, how, rustix::fs::Mode::empty()).expect("the connection"),
        );
        let late = Command::new("sh")
            .args(["-c", "sleep 90; echo 1"])
            .stdin(Stdio::null())
            .stdout(abort.try_clone().unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Cuts { abort, late }
    }
}

impl Drop for Cuts {
    fn drop(&mut self) {
        let _ = self.abort.write_all(b"1");
        let _ = kill_process_group(pid(self.late.id()), Signal::KILL);
        let _ = self.late.wait();
    }
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).expect("a process")
}

fn signal(process: u32, signal: Signal) {
    kill_process(pid(process), signal).unwrap();
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The name, the state and the parent of a process or thread, by its directory in /proc.
fn state(of: &Path) -> Option<(String, char, u32)> {
    let stat = std::fs::read_to_string(of.join("stat")).ok()?;
    let (front, back) = stat.rsplit_once(") ")?;
    let mut back = back.split(' ');
    let name = front.split_once('(')?.1.to_string();
    Some((name, back.next()?.chars().next()?, back.next()?.parse().ok()?))
}

fn threads(process: u32) -> Vec<(String, char)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| state(&t.path())).map(|(name, state, _)| (name, state)).collect()
}

/// The watchdogs of a server.
fn watchdogs(server: u32) -> Vec<u32> {
    let is_one = |pid: &u32| {
        state(&PathBuf::from(format!("/proc/{pid}"))).is_some_and(|(name, state, parent)| {
            name == "lanefs-watchdog" && state != 'Z' && parent == server
        })
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

#[track_caller]
fn watchdog(server: u32) -> u32 {
    let all = watchdogs(server);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

/// Stops the server while one of its threads is in a call by which the kernel writes back pages of
/// the mount, and the others have not served them: these are the only ones that could.
fn stop_in_the_window(server: u32) {
    let waits = || {
        threads(server)
            .iter()
            .any(|(name, state)| *state == 'D' && (name == "lanefs-aside" || name.starts_with("lanefs-ring")))
    };
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        assert!(begun.elapsed() < SOON, "not caught in {tries} tries: {:?}", threads(server));
        if !waits() {
            continue;
        }
        tries += 1;
        signal(server, Signal::STOP);
        // What waits for a device is over by itself.
        let still = || threads(server).iter().all(|(_, state)| matches!(state, 'T' | 'D'));
        until("the server stops", || still() || !waits());
        let caught = (0..50).all(|_| {
            std::thread::sleep(Duration::from_millis(10));
            waits() && still()
        });
        if caught {
            println!("caught in try {tries}");
            return;
        }
        signal(server, Signal::CONT);
    }
}

/// Writes to a file, and has the server call in what the kernel has of it, until that fails.
fn write_until_it_fails(path: &Path, transport: Transport) -> std::io::Error {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let step = |round: u8| -> std::io::Result<()> {
        if transport == Transport::Stateless {
            return map_and_flag(&file, round);
        }
        file.write_all_at(&vec![round; LONG], 0)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0))?;
        Ok(())
    };
    (0u8..).cycle().find_map(|round| step(round).err()).expect("it fails some time")
}

/// Of so many bytes that the kernel writes them back by several requests.
const LONG: usize = 24 << 20;

/// The same where the kernel gathers only what is written to maps: these pages are called in before
/// a flag is set.
fn map_and_flag(file: &File, round: u8) -> std::io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let null = std::ptr::null_mut();
    let failed = || Err(std::io::Error::last_os_error());
    let (from, mut to) = std::io::pipe()?;
    // SAFETY: a shared mapping of a file that has as many bytes and that this test alone uses. The
    // kernel is what writes to the map: a page that cannot be had is an error of its call, where it
    // would be a signal here. The ioctls read a word that lives until they return.
    unsafe {
        let map = mmap(null, LONG, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?;
        let mut result = Ok(());
        for at in (0..LONG).step_by(4096) {
            to.write_all(&[round; 4096])?;
            if libc::read(from.as_raw_fd(), map.cast::<u8>().add(at).cast(), 4096) != 4096 {
                result = failed();
                break;
            }
        }
        for flags in [0x10u64, 0] {
            if result.is_ok() && libc::ioctl(file.as_raw_fd(), 0x4008_6602, &raw const flags) != 0 {
                result = failed();
            }
        }
        munmap(map, LONG)?;
        result
    }
}

/// The program on the mount: this test program, asked to run only this "test". A process of its
/// own: a child that any test here starts has all that is open here until it runs its program, and
/// lets go of it by waiting for the mount.
#[test]
fn program() {
    let Some(path) = std::env::var_os("LANEFS_TEST_ON_MOUNT") else { return };
    let transport = match std::env::var_os("LANEFS_TEST_MAPS") {
        Some(_) => Transport::Stateless,
        None => Transport::DevFuse,
    };
    let error = write_until_it_fails(Path::new(&path), transport);
    println!("\nfailed {}", error.raw_os_error().unwrap_or(0));
}

/// Starts the program, and has what it says of its end sent.
fn start_program(path: &Path) -> (Child, Receiver<i32>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::program", "--nocapture"]).env("LANEFS_TEST_ON_MOUNT", path);
    if transport() == Transport::Stateless {
        command.env("LANEFS_TEST_MAPS", "1");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (told, hears) = channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some(code) = line.strip_prefix("failed ").and_then(|code| code.parse().ok()) {
                let _ = told.send(code);
            }
        }
    });
    (child, hears)
}

/// Ends a process when it is dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nobody_hangs_on_a_killed_server_that_waits_for_its_own_mount() {
    // Nothing becomes durable but what is synced.
    let quiet = ["-o", "commit=3600,dirty_expire=3600"];
    let mut m = Mount::new(&quiet);
    std::fs::write(m.path("used"), vec![0; LONG]).unwrap();
    let file = File::create_new(m.path("synced")).unwrap();
    file.write_all_at(b"what was synced", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    lanefs_in(m.work.path(), &["mkfs", "--size", "16M", "other.lane"]).ok();
    let server = m.server_of_mount();
    let watchdog = watchdog(server);
    let (program, hears) = start_program(&m.path("used"));
    // In this order: the mount is cut before anybody waits for the program.
    let program = Ends(program);
    let mut cuts = Cuts::on_drop(&m.dir);
    // Another image's lock, of a process that is looked for behind the program.
    let other = File::open(m.work.path().join("other.lane")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let holder = Ends(Command::new("sleep").arg("600").stdin(other).spawn().unwrap());
    stop_in_the_window(server);
    // It is found without a look at what the program has open.
    let run = lanefs_in(m.work.path(), &["ls", "other.lane:/"]);
    assert!(run.err.contains(&format!("process {}", holder.0.id())), "{run:?}");
    signal(server, Signal::KILL);
    // Who opens the image now is not refused, but waits for the end of its holder.
    assert_eq!(lanefs_in(m.work.path(), &["cat", "v.lane:/synced"]).ok().out, "what was synced");
    let code = hears.recv_timeout(SOON).expect("a program on the mount hangs");
    assert!(cuts.late.try_wait().unwrap().is_none(), "something hung until the test itself cut");
    // EFAULT of the page of a map.
    assert!([libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::EFAULT].contains(&code), "{code}");
    let code = std::fs::metadata(m.path("nobody has asked for")).unwrap_err().raw_os_error();
    assert!([Some(libc::ENOTCONN), Some(libc::ECONNABORTED)].contains(&code), "{code:?}");
    until("all end", || [server, watchdog, program.0.id()].iter().all(|process| !is_there(*process as i32)));
    run_command(Command::new("umount").arg(&m.dir)).ok();
    m.mount(&quiet);
    assert_eq!(std::fs::read(m.path("synced")).unwrap(), b"what was synced");
    m.umount();
    m.fsck();
}

/// fusermount3 looks once whether the mount is dead. It looked while the kernel took the rings
/// down, and found something else; and once a directory of the mount had been opened it could look
/// as often as it liked.
fn a_mount_with_auto_unmount_goes_with_a_killed_server() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file()) {
        return eprintln!("fusermount3 is not installed: not tested");
    }
    let options = ["-o", "auto_unmount"];
    let mut m = Mount::new(&options);
    let wanted = format!(" {} ", m.dir.canonicalize().unwrap().display());
    let is_mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&wanted);
    for _ in 0..3 {
        assert!(is_mounted());
        std::fs::write(m.path("f"), "x").unwrap();
        let server = m.server_of_mount();
        let watchdog = watchdog(server);
        signal(server, Signal::KILL);
        until("the mount goes", || !is_mounted());
        until("all end", || !is_there(server as i32) && !is_there(watchdog as i32));
        m.mount(&options);
    }
    // And with one that ends by itself, which nobody takes for a death.
    m.umount();
    assert!(!is_mounted());
}

#[test]
fn a_watchdog_goes_with_its_mount_however_that_ends() {
    if !can_mount() {
        return;
    }
    let mut m = Mount::new(&[]);
    for how in ["umount", "lanefs umount", "terminate", "kill"] {
        let server = m.server_of_mount();
        let watchdog = watchdog(server);
        match how {
            "umount" => drop(run_command(Command::new("umount").arg(&m.dir)).ok()),
            "lanefs umount" => m.umount(),
            "terminate" => signal(server, Signal::TERM),
            _ => signal(server, Signal::KILL),
        }
        until(how, || !is_there(server as i32) && !is_there(watchdog as i32));
        if how == "kill" {
            run_command(Command::new("umount").arg(&m.dir)).ok();
        }
        assert_eq!(mount_line(&m.dir), None, "{how}");
        m.mount(&[]);
    }
}

#[test]
fn a_watchdog_has_nothing_and_only_sigkill_ends_it() {
    if !can_mount() {
        return;
    }
    let mut m = Mount::new(&[]);
    let server = m.server_of_mount();
    let watchdog = watchdog(server);
    let proc = |name: &str| PathBuf::from(format!("/proc/{watchdog}/{name}"));
    let status = std::fs::read_to_string(proc("status")).unwrap();
    let field = |name: &str| {
        let line =
            status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {status}"));
        line.trim().trim_end_matches(" kB").to_string()
    };
    println!("resident: {} KiB", field("VmRSS:"));
    // Some 2 MiB, more or less by what a build has touched before it is forked.
    assert!(field("VmRSS:").parse::<u64>().unwrap() <= 3072);
    assert_eq!(field("Threads:"), "1");
    assert_eq!(field("NSsid:"), watchdog.to_string(), "no terminal's signals");
    assert_eq!(std::fs::read_link(proc("cwd")).unwrap(), Path::new("/"));
    let mut open: Vec<_> = std::fs::read_dir(proc("fd"))
        .unwrap()
        .map(|e| std::fs::read_link(e.unwrap().path()).unwrap().to_str().unwrap().to_string())
        .map(|to| {
            to.split([':', '/']).next_back().filter(|_| to.starts_with('/')).map_or(to.clone(), String::from)
        })
        .map(|to| to.split(':').next().unwrap().to_string())
        .collect();
    open.sort();
    assert_eq!(open, ["abort", "anon_inode", "null", "null", "null", "socket"]);
    // Neither what ends a server, nor the signal by which the kernel tells of its end.
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGUSR1, libc::SIGSEGV] {
        // SAFETY: a process that this test's own mount has started.
        assert_eq!(unsafe { libc::kill(watchdog as i32, number) }, 0);
    }
    std::fs::write(m.path("f"), "x").unwrap();
    assert_eq!(watchdogs(server), [watchdog]);
    // Without it the mount goes on, and ends as ever.
    signal(watchdog, Signal::KILL);
    until("the watchdog ends", || watchdogs(server).is_empty());
    std::fs::write(m.path("g"), "x").unwrap();
    m.remount();
    assert!(m.path("f").exists() && m.path("g").exists());
    assert_eq!(watchdogs(m.server_of_mount()).len(), 1);
}
