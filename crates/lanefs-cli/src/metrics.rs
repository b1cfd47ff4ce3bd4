//! A socket on which a mount tells its figures to Prometheus: a Unix socket of its owner alone, and
//! plain HTTP, a request for each connection.
//!
//! Whoever connects may send nothing, or too much, or never read the answer. Each has a thread for
//! a few seconds at the most, and only few have one at a time; nobody else waits for them.

use crate::failure::{About, Failure};
use crate::prometheus;
use crate::socket::{self, SocketName};
use lanefs_fuse::report::Reporter;
use rustix::net::Shutdown;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The time that somebody has to send a request, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The bytes of a request at the most.
const REQUEST_MAX: usize = 8 << 10;
/// The number of those who are answered at a time.
const AT_ONCE: usize = 8;

/// The socket; it is removed with this.
pub struct Metrics {
    listener: Arc<UnixListener>,
    _name: SocketName,
}

impl Metrics {
    /// Makes the socket. One that nobody listens to any more is replaced.
    pub fn bind(path: &Path) -> Result<Metrics, Failure> {
        let (listener, name) = socket::bind(path, "metrics=")?;
        Ok(Metrics { listener: Arc::new(listener), _name: name })
    }

    /// Starts to answer.
    pub fn serve(&self, reporter: Reporter) -> Result<(), Failure> {
        let listener = Arc::clone(&self.listener);
        let busy = Arc::new(AtomicUsize::new(0));
        let accepts = move || {
            loop {
                match listener.accept() {
                    Ok((peer, _)) => answer_aside(peer, &reporter, &busy),
                    // The end: see `drop`.
                    Err(e) if e.kind() == ErrorKind::InvalidInput => return,
                    // No descriptors, perhaps. Whoever is connected goes away, and some come back.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        Builder::new().name("metrics".into()).spawn(accepts).about("a thread for metrics")?;
        Ok(())
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // Ends the thread that accepts.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
    }
}

/// Answers one who has connected, in a thread of its own; or not at all, if there are many.
fn answer_aside(peer: UnixStream, reporter: &Reporter, busy: &Arc<AtomicUsize>) {
    // Relaxed, here and below: a count that orders nothing.
    if busy.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
        busy.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (reporter, mine) = (reporter.clone(), Arc::clone(busy));
    let started = Builder::new().name("metrics-answer".into()).spawn(move || {
        // Who is gone misses nothing.
        let _ = answer(&peer, &reporter);
        mine.fetch_sub(1, Ordering::Relaxed);
    });
    if started.is_err() {
        busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads a request and answers it.
fn answer(mut peer: &UnixStream, reporter: &Reporter) -> std::io::Result<()> {
    let request = receive(peer, Instant::now() + PATIENCE)?;
    let (status, content) = respond(&request, reporter);
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        prometheus::CONTENT_TYPE,
        content.len()
    );
    let body = if request.starts_with(b"HEAD ") { "" } else { &content };
    let all = [head.as_bytes(), body.as_bytes()].concat();
    let (end, mut left) = (Instant::now() + PATIENCE, &all[..]);
    while !left.is_empty() {
        peer.set_write_timeout(Some(until(end)?))?;
        let n = peer.write(left)?;
        left = &left[n..];
    }
    Ok(())
}

/// Returns the time that is left, or an error if none is.
fn until(end: Instant) -> std::io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads a request up to the empty line behind its head, or as much as one may have.
fn receive(mut peer: &UnixStream, end: Instant) -> std::io::Result<Vec<u8>> {
    let (mut request, mut some) = (Vec::new(), [0; 1024]);
    while request.len() < REQUEST_MAX && !request.windows(4).any(|w| w == b"\r\n\r\n") {
        peer.set_read_timeout(Some(until(end)?))?;
        match peer.read(&mut some)? {
            0 => break,
            n => request.extend(&some[..n]),
        }
    }
    Ok(request)
}

/// Returns the status and the content of the answer to a request.
fn respond(request: &[u8], reporter: &Reporter) -> (&'static str, String) {
    let Some(target) = target_of(request) else {
        return ("400 Bad Request", "GET /metrics is what can be asked for.\n".into());
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if !matches!(path, "/" | "/metrics") {
        return ("404 Not Found", "The figures are at /metrics.\n".into());
    }
    let seconds = query.split('&').find_map(|q| q.strip_prefix("latency=")?.parse().ok());
    if let Some(seconds) = seconds {
        reporter.watch(Duration::from_secs(seconds));
    }
    match reporter.report() {
        Ok(r) => ("200 OK", prometheus::text(&r.volume, &r.requests)),
        Err(_) => ("503 Service Unavailable", "The volume is closed.\n".into()),
    }
}

/// Returns what a request asks for, if it is one.
fn target_of(request: &[u8]) -> Option<&str> {
    if !request.windows(4).any(|w| w == b"\r\n\r\n") {
        return None;
    }
    let line = request.split(|b| *b == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let known = matches!(method, "GET" | "HEAD") && version.starts_with("HTTP/1.") && words.next().is_none();
    known.then_some(target)
}

#[cfg(test)]
mod tests {
    use super::target_of;

    #[test]
    fn requests_are_told_from_what_is_none() {
        assert_eq!(target_of(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some("/metrics"));
        assert_eq!(target_of(b"HEAD / HTTP/1.0\r\n\r\n"), Some("/"));
        for bad in [
            &b""[..],
            b"\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/2 \r\n\r\n",
            b"GET / x HTTP/1.0\r\n\r\n",
            b"POST / HTTP/1.0\r\n\r\n",
            b"GET /\xff HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(target_of(bad), None, "{bad:?}");
        }
    }
}
