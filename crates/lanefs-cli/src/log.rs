//! The messages of a serving process for which no file was named: they go to standard error while
//! somebody reads it, then to syslog, and where there is none to the kernel's log.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Whether the terminal is gone. Stored once, by the thread that detaches; loaded by whoever sends
/// a message. Relaxed: a message that is sent at this moment may go either way.
static DETACHED: AtomicBool = AtomicBool::new(false);

/// Has messages go to the system's log from now on: standard error leads nowhere.
pub fn detach() {
    DETACHED.store(true, Ordering::Relaxed);
}

/// Has commands say on standard error that a volume waits for space on the host of its image, and
/// that it goes on: they wait meanwhile, and would not say why.
pub fn tell() {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::{Layer, SubscriberExt};
    let host = Targets::new().with_target("lanefs_store::device::host", Level::WARN);
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_level(false).with_target(false);
    let layer = layer.without_time().with_writer(|| Told(Vec::new())).with_filter(host);
    // Nobody else has set one.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
}

/// A message of a command.
struct Told(Vec<u8>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let line = [b"lanefs: ", self.0.trim_ascii()].concat();
        // Nobody may read it.
        let _ = io::stderr().write_all(&[&line[..], b"\n"].concat());
    }
}

/// Makes a line of each message.
pub struct System;

/// A message as it is put together; it is sent when it is dropped.
pub struct Line {
    level: Level,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for System {
    type Writer = Line;
    fn make_writer(&'a self) -> Line {
        Line { level: Level::WARN, text: Vec::new() }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line { level: *meta.level(), text: Vec::new() }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Nobody could learn of a message that cannot be sent.
        let _ = match DETACHED.load(Ordering::Relaxed) {
            false => io::stderr().write_all(&self.text),
            true => send(Path::new("/dev/log"), Path::new("/dev/kmsg"), self.level, &self.text),
        };
    }
}

/// Sends a message to the socket of syslog, else to the kernel's log. Never waits: whoever reads
/// there may wait for this process.
fn send(syslog: &Path, kernel: &Path, level: Level, text: &[u8]) -> io::Result<()> {
    // A daemon's (3), with the severity that syslog(3) gives the level.
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let mut line = format!("<{}>lanefs[{}]: ", 3 << 3 | severity, std::process::id()).into_bytes();
    line.extend(text.trim_ascii_end().iter().map(|b| if *b == b'\n' { b' ' } else { *b }));
    // The kernel's log takes no longer one.
    line.truncate(900);
    debug_assert!(severity < 8, "it has three bits");
    debug_assert!(!line.contains(&b'\n'), "the kernel's log takes a line at a time");
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    if socket.send_to(&line, syslog).is_ok() {
        return Ok(());
    }
    let mut log = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(kernel)?;
    log.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_syslog_or_else_to_the_kernels_log() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, kernel) = (dir.path().join("log"), dir.path().join("kmsg"));
        std::fs::write(&kernel, "").unwrap();
        send(&socket, &kernel, Level::ERROR, b"the device\nfailed\n").unwrap();
        let line = format!("<27>lanefs[{}]: the device failed", std::process::id());
        assert_eq!(std::fs::read_to_string(&kernel).unwrap(), line);
        let syslog = UnixDatagram::bind(&socket).unwrap();
        send(&socket, &kernel, Level::WARN, b"again").unwrap();
        let mut said = [0; 100];
        let n = syslog.recv(&mut said).unwrap();
        assert_eq!(&said[..n], format!("<28>lanefs[{}]: again", std::process::id()).as_bytes());
        assert_eq!(std::fs::read_to_string(&kernel).unwrap(), line);
    }
}
