//! Going into the background: the command returns when the mount serves, or reports why it does
//! not.
//!
//! The process forks before any thread exists; the child becomes the daemon and reports through a
//! pipe. The parent ends with the child's word, or with the news that the child died without one.

use crate::failure::{About, Failure};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The child's end of the pipe.
#[derive(Debug)]
pub struct Parent(Option<File>);

/// The role that `fork` gave to this process.
#[derive(Debug)]
pub enum Role {
    /// The daemon, with somebody to report to.
    Daemon(Parent),
    /// The one who started it; the daemon has reported that it serves.
    Starter,
}

impl Parent {
    /// Stands for nobody to report to: the command stays in the foreground.
    pub fn none() -> Parent {
        Parent(None)
    }

    /// Reports to the parent that the mount serves, and lets go of the terminal. What the process
    /// still writes to standard error is its last word, such as that there is no memory: it goes to
    /// `log`, or where no file is named to the kernel's log if that may be written to.
    pub fn serving(&mut self, log: Option<&Path>) -> Result<(), Failure> {
        let Some(mut pipe) = self.0.take() else { return Ok(()) };
        let null = File::options().read(true).write(true).open("/dev/null").about("/dev/null")?;
        std::env::set_current_dir("/").about("/")?;
        let last = File::options().append(true).open(log.unwrap_or(Path::new("/dev/kmsg")));
        debug_assert!(log.is_none_or(Path::is_absolute), "the directory has changed");
        for redirected in [
            rustix::stdio::dup2_stdin(&null),
            rustix::stdio::dup2_stdout(&null),
            rustix::stdio::dup2_stderr(last.as_ref().unwrap_or(&null)),
        ] {
            redirected.map_err(std::io::Error::from).about("/dev/null")?;
        }
        crate::log::detach();
        // A parent that was killed is not missed.
        let _ = pipe.write_all(&[0]);
        Ok(())
    }

    /// Hands a failure to the parent to print. Without a parent it stays with the caller.
    pub fn fail(&mut self, failure: Failure) -> Failure {
        let Some(mut pipe) = self.0.take() else { return failure };
        debug_assert!((1..=255).contains(&failure.code), "0 would report that the mount serves");
        let _ = pipe.write_all(&[failure.code.clamp(1, 255) as u8]);
        let _ = pipe.write_all(failure.message.as_bytes());
        Failure { message: String::new(), code: failure.code }
    }
}

/// Forks. Called before any thread is started.
pub fn fork() -> Result<Role, Failure> {
    debug_assert_eq!(std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count), 1, "no other thread");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(std::io::Error::from)
        .about("cannot make a pipe")?;
    // SAFETY: no other thread exists yet, so the child's memory, locks and allocator are whole.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).about("cannot start a background process"),
        0 => {
            drop(read);
            // Cannot fail: a fresh child leads no group.
            let _ = rustix::process::setsid();
            Ok(Role::Daemon(Parent(Some(File::from(above_stdio(write)?)))))
        }
        _ => {
            drop(write);
            let mut report = Vec::new();
            File::from(read).read_to_end(&mut report).about("the background process")?;
            match report.split_first() {
                Some((0, _)) => Ok(Role::Starter),
                Some((code, message)) => {
                    Err(Failure::new(String::from_utf8_lossy(message)).code(i32::from(*code)))
                }
                None => Err(Failure::new("the background process died; run with --foreground to see why")),
            }
        }
    }
}

/// Moves a descriptor above those of stdin, stdout and stderr: were the command started with one of
/// them closed, the pipe would sit in its place.
fn above_stdio(fd: OwnedFd) -> Result<OwnedFd, Failure> {
    let above = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
        .map_err(std::io::Error::from)
        .about("cannot keep a pipe")?;
    debug_assert!(above.as_raw_fd() > 2);
    Ok(above)
}
