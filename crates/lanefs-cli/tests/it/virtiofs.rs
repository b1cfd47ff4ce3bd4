//! `lanefs virtiofs` up to where a virtual machine comes: what it says, its socket, how it ends.
//! (The volume by a front end: crates/lanefs-virtiofs/tests; by a guest: `cargo xtask virtiofs`.)

use crate::common::run_command;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

fn lanefs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lanefs"))
}

/// Ends the process, also when the test fails.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Serving {
    /// Starts one, and returns the line that it says.
    fn start(args: &[&str]) -> (Serving, String) {
        let process = lanefs().arg("virtiofs").args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut serving = Serving(process);
        let mut line = String::new();
        BufReader::new(serving.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (serving, line)
    }

    /// Ends it by a signal, or waits for its end; the exit code.
    fn end(mut self, signal: Option<i32>) -> i32 {
        if let Some(signal) = signal {
            // SAFETY: kill takes numbers only, and the process is a child not yet waited for.
            unsafe { libc::kill(self.0.id() as i32, signal) };
        }
        self.0.wait().unwrap().code().unwrap()
    }
}

#[test]
fn the_socket_is_its_owners_and_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (image, socket) = (dir.path().join("a.lane"), dir.path().join("s"));
    let (image, path) = (image.to_str().unwrap(), socket.to_str().unwrap());
    let args = ["--create", "--size", "32M", "--socket", path, image];
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let (serving, line) = Serving::start(&args);
        assert!(line.contains(&format!("path={path} ")) && line.contains("tag=lanefs"), "{line}");
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // One volume, one server; and one socket, one server.
        let second = lanefs().args(["virtiofs", "--socket", path, image]).output().unwrap();
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && said.contains("another process listens there"), "{said}");
        assert_eq!(serving.end(Some(signal)), 0);
        assert!(!socket.exists());
        run_command(lanefs().args(["fsck", image])).ok();
    }
    // One that was killed leaves its socket, and the next takes its place.
    let (mut killed, _) = Serving::start(&args);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert!(socket.exists());
    let (serving, _) = Serving::start(&args);
    assert_eq!(serving.end(Some(libc::SIGTERM)), 0);
    assert!(!socket.exists());
}

#[test]
fn a_session_ends_with_the_virtual_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (image, socket) = (dir.path().join("a.lane"), dir.path().join("s"));
    let (image, path) = (image.to_str().unwrap(), socket.to_str().unwrap());
    let (serving, _) =
        Serving::start(&["--create", "--size", "32M", "--tag", "home", "--socket", path, image]);
    drop(UnixStream::connect(&socket).unwrap());
    assert_eq!(serving.end(None), 0);
    assert!(!socket.exists());
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let (image, socket) = (dir.path().join("a.lane"), dir.path().join("s"));
    let (image, path) = (image.to_str().unwrap(), socket.to_str().unwrap());
    let refused = |args: &[&str]| {
        let out = lanefs().arg("virtiofs").args(args).output().unwrap();
        assert!(!out.status.success());
        assert!(!socket.exists(), "{args:?} left its socket");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let options = |o: &str| refused(&["--socket", path, "-o", o, image]);
    assert!(options("writeback").contains("go through at once"));
    assert!(options("noexec").contains("in the guest"));
    assert!(refused(&["--socket", path, image]).contains("a.lane"));
    assert!(refused(&["--socket", path, "--queues", "64", image]).contains("1 to 63"));
    assert!(refused(&["--socket", path, "--tag", "a,b", image]).contains("36 bytes"));
    std::fs::write(dir.path().join("file"), b"kept").unwrap();
    let file = dir.path().join("file");
    assert!(refused(&["--socket", file.to_str().unwrap(), image]).contains("no socket"));
    assert_eq!(std::fs::read(file).unwrap(), b"kept");
}
