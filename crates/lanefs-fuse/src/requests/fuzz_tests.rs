//! Requests as bytes, from a seed: lengths, names, offsets, numbers and flags that no kernel would
//! send. Handles are real ones: the kernel made nothing up there, and a handle is an address
//! (`handles.rs`).
//!
//! Every request ends with an answer or an errno, and no answer is longer than there is room for.
//! `LANEFS_FUZZ_CASES` makes it longer.

use super::*;
use crate::MountConfig;
use crate::adaptor_tests::{AGREED, adaptor_of};
use crate::guest::Guest;
use crate::wire::abi::{IN_HEADER, OUT_HEADER};
use crate::wire::{Agreed, ReplyBuffer};
use lanefs::{Ino, MountOptions, Volume};
use lanefs_sync::random;
use std::sync::Arc;

/// Numbers, and what requests have in them.
struct Rng(random::Rng);

impl Rng {
    fn at(seed: u64) -> Rng {
        Rng(random::Rng::at(seed))
    }
    fn bits(&mut self) -> u64 {
        self.0.bits()
    }
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }
    fn word(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1 << self.below(64)) - 1,
            4 => i64::MAX as u64 - self.below(4097),
            _ => self.below(70_000),
        }
    }
    fn name(&mut self) -> Vec<u8> {
        let known: [&[u8]; 12] = [
            b"a",
            b"b",
            b"d",
            b".",
            b"..",
            b"",
            b"a/b",
            b"/",
            b"user.x",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            b"security.capability",
        ];
        match self.below(4) {
            0 => (0..self.below(300)).map(|_| self.bits() as u8).filter(|b| *b != 0).collect(),
            1 => vec![b'n'; 250 + self.below(10) as usize],
            _ => known[self.below(known.len() as u64) as usize].to_vec(),
        }
    }
}

/// Makes the bytes after the header, as the kernel lays it out, with anything in the fields.
fn body(rng: &mut Rng, op: u32, handles: &[u64]) -> Vec<u8> {
    let mut b: Vec<u8> = Vec::new();
    let handle = match handles {
        [] => 0,
        some => some[rng.below(some.len() as u64) as usize],
    };
    // Words of four bytes: "h" a handle (two), "w" one, "W" two; then names and bytes.
    let layout = match op {
        op::GETATTR | op::STATX => "wwhwwwwww",
        op::READ | op::READDIR | op::READDIRPLUS => "hWwwWww",
        op::WRITE => "hWswWwwD",
        op::RELEASE | op::FSYNC => "hwwW",
        op::FSYNCDIR => "Www",
        op::FALLOCATE => "hWWww",
        op::LSEEK => "hWww",
        op::COPY_FILE_RANGE => "hWWhWWW",
        op::SETATTR => "wwhWWWWWwwwwwwww",
        op::SYMLINK => "NN",
        op::MKNOD => "wwwwN",
        op::MKDIR | op::ACCESS => "wwN",
        op::RENAME => "INN",
        op::RENAME2 => "IwwNN",
        op::LINK => "IN",
        op::OPEN => "ww",
        op::CREATE | op::TMPFILE => "wwwwN",
        op::SETXATTR => "swwwND",
        op::GETXATTR | op::LISTXATTR => "wwN",
        op::IOCTL => "WwwWww",
        op::FORGET => "W",
        op::BATCH_FORGET => "wwWWWW",
        op::LOOKUP | op::UNLINK | op::RMDIR | op::REMOVEXATTR => "N",
        _ => "WWN",
    };
    let len = rng.below(9000);
    for c in layout.chars() {
        match c {
            'h' => b.extend(handle.to_ne_bytes()),
            'w' => b.extend((rng.word() as u32).to_ne_bytes()),
            'W' => b.extend(rng.word().to_ne_bytes()),
            'I' => b.extend((1 + rng.below(40)).to_ne_bytes()),
            's' => b.extend((len as u32).wrapping_add(u32::from(rng.below(20) == 0)).to_ne_bytes()),
            'D' => b.extend((0..len).map(|_| rng.bits() as u8)),
            _ => {
                b.extend(rng.name());
                b.push(0);
            }
        }
    }
    // Cut short, or with something behind, but never within a handle.
    match rng.below(12) {
        0 if !layout.contains('h') => b.truncate(rng.below(b.len() as u64 + 1) as usize),
        1 => b.extend((0..rng.below(64)).map(|_| 0x5a)),
        _ => {}
    }
    b
}

fn request(rng: &mut Rng, op: u32, body: &[u8]) -> Vec<u8> {
    let mut r = Vec::new();
    let wrong = if rng.below(50) == 0 { rng.bits() as u32 } else { 0 };
    r.extend(((IN_HEADER + body.len()) as u32).wrapping_add(wrong).to_ne_bytes());
    r.extend(op.to_ne_bytes());
    r.extend(rng.bits().to_ne_bytes());
    let ino = if rng.below(6) == 0 { rng.word() } else { 1 + rng.below(300) };
    r.extend(if rng.below(3) == 0 { 1 } else { ino }.to_ne_bytes());
    for id in [rng.below(2) * 1000, rng.below(2) * 1000, 4711, 0] {
        r.extend((id as u32).to_ne_bytes());
    }
    r.extend(body);
    r
}

fn run(seed: u64, requests: u64) {
    let mut rng = Rng::at(seed);
    let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
    let device = lanefs_store::device::MemoryDevice::new(32 << 20).unwrap();
    let device: Arc<dyn lanefs_store::device::Device> = Arc::new(device);
    let format = lanefs_store::FormatOptions { mode: 0o777, ..lanefs_store::FormatOptions::default() };
    lanefs_store::Store::format(std::slice::from_ref(&device), &format).unwrap();
    let volume = Volume::open_devices(vec![device], &options).unwrap();
    let writeback = rng.below(2) == 0;
    let agreed = Agreed {
        writeback,
        stateless: !writeback && rng.below(2) == 0,
        setxattr_ext: rng.below(2) == 0,
        ..AGREED
    };
    let (adaptor, wire) = adaptor_of(volume.clone(), agreed);
    let most = 1 << 17;
    let mut bytes_out = ReplyBuffer::new(most);
    let origin = Origin::Device(wire);
    let mut handles: Vec<u64> = Vec::new();
    for _ in 0..requests {
        let op = 1 + rng.below(54) as u32;
        let op = if rng.below(4) == 0 {
            [op::CREATE, op::OPEN, op::MKDIR, op::WRITE][rng.below(4) as usize]
        } else {
            op
        };
        // The last request there is: it closes the volume.
        if op == op::DESTROY {
            continue;
        }
        // A handle is released once, and no request is sent with it afterwards.
        if op == op::RELEASE && handles.is_empty() {
            continue;
        }
        let mut bytes = body(&mut rng, op, &handles);
        if op == op::RELEASE {
            let h = handles.swap_remove(rng.below(handles.len() as u64) as usize);
            bytes[..8].copy_from_slice(&h.to_ne_bytes());
        }
        let bytes = request(&mut rng, op, &bytes);
        let Some(req) = Request::decode(&bytes) else {
            // The handle was not released.
            if op == op::RELEASE {
                handles.push(u64::from_ne_bytes(bytes[IN_HEADER..IN_HEADER + 8].try_into().unwrap()));
            }
            continue;
        };
        let mut reply = Reply::over(bytes_out.bytes());
        let result = serve(&adaptor, &req, &mut reply, &origin);
        let taken = result.is_ok() && rng.below(10) > 0;
        if reply.answer == Answer::Now {
            assert!(reply.finish(req.unique, result).len() <= OUT_HEADER + most);
        }
        if reply.answer == Answer::Elsewhere {
            // Another thread answers. No kernel releases the handle of a request before that (H2).
            adaptor.aside.stop();
        }
        match reply.opened {
            Some(h) if taken => handles.push(h),
            _ if !taken => adaptor.undo(&mut reply),
            _ => {}
        }
        if rng.below(64) == 0 {
            let _ = volume.tick();
        }
    }
    let _ = volume.node_stat(Ino(1)).unwrap();
    let bytes = request(&mut Rng::at(seed), op::DESTROY, b"");
    if let Some(req) = Request::decode(&bytes) {
        let mut reply = Reply::over(bytes_out.bytes());
        serve(&adaptor, &req, &mut reply, &origin).unwrap();
        assert!(volume.node_stat(Ino(1)).is_err(), "closed when it is answered");
        adaptor.closing.end(&volume).unwrap();
    }
    adaptor.end();
    drop(adaptor);
    volume.close().unwrap();
}

#[test]
fn any_request_is_answered() {
    let cases = std::env::var("LANEFS_FUZZ_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let first = std::env::var("LANEFS_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for seed in first..first + cases {
        // Told if the process ends at this one.
        eprintln!("seed {seed}");
        run(seed, 3000);
    }
}

/// As a guest may send them: handles are anything, and so is the place for an answer; the mount
/// ends and begins in the middle.
fn run_guest(seed: u64, requests: u64) {
    let mut rng = Rng::at(seed);
    let volume = Volume::in_memory(32 << 20).unwrap();
    let guest = Guest::new(volume.clone(), &MountConfig::default());
    let mut threads = [guest.thread(), guest.thread()];
    let mut handles = vec![0];
    for n in 0..requests {
        let op = 1 + rng.below(54) as u32;
        let op = match rng.below(4) {
            0 => [op::CREATE, op::OPEN, op::MKDIR, op::WRITE, op::READ][rng.below(5) as usize],
            _ => op,
        };
        let begins = n == 0 || op == op::INIT || op == op::DESTROY && rng.below(8) > 0;
        let (op, mut bytes) = match begins {
            true => (
                op::INIT,
                [7, 36, 4096, 1 << 20 | 1 << 6].iter().flat_map(|w: &u32| w.to_ne_bytes()).collect(),
            ),
            false => (op, body(&mut rng, op, &handles)),
        };
        if rng.below(10) == 0 {
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        }
        let bytes = request(&mut rng, op, &bytes);
        let capacity = if rng.below(8) == 0 { rng.below(200) as usize } else { 1 << 20 };
        let answer = threads[rng.below(2) as usize].serve(&bytes, capacity);
        assert!(answer.len() <= capacity, "{} bytes, and {capacity} would fit", answer.len());
        assert!(answer.is_empty() || answer[..4] == (answer.len() as u32).to_ne_bytes());
        let at = match op {
            op::OPEN => OUT_HEADER,
            op::CREATE => OUT_HEADER + 128,
            _ => usize::MAX - 8,
        };
        if let Some(handle) = answer.get(at..at + 8) {
            handles.push(u64::from_ne_bytes(handle.try_into().unwrap()));
        }
        if rng.below(8) == 0 {
            let some = rng.below(handles.len() as u64) as usize;
            handles.push(match rng.below(3) {
                0 => rng.word(),
                _ => handles[some].wrapping_add(rng.below(3) * 64),
            });
        }
        if handles.len() > 64 {
            handles.drain(1..32);
        }
        if rng.below(64) == 0 {
            let _ = volume.tick();
        }
    }
    // No request panicked: that would have stopped it.
    assert!(volume.node_stat(Ino(1)).is_ok());
    guest.close().unwrap();
}

#[test]
fn any_request_of_a_guest_is_answered() {
    let cases = std::env::var("LANEFS_FUZZ_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    for seed in 1..=cases {
        eprintln!("seed {seed}");
        run_guest(seed, 3000);
    }
}
