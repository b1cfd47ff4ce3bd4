//! A virtual machine without a processor: memory, queues, and the requests of FUSE.

use lanefs::{MountOptions, Volume};
use lanefs_fuse::MountConfig;
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_virtiofs::{Options, Server, Stopper};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Where the memory begins as the guest counts it: not at zero, and with nothing behind.
const BASE: u64 = 0x10_0000;
/// The memory of one queue: the rings, then a table for indirect chains, then buffers.
const PART: u64 = 4 << 20;
const TABLE: u64 = 0x1_0000;
const BUFFERS: u64 = 0x2_0000;
/// Where the guest's addresses are in the address space of the front end, as it says.
const USER: u64 = 0x7000_0000_0000;

pub const SIZE: u16 = 64;
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const UNLINK: u32 = 10;
    pub const RENAME2: u32 = 45;
    pub const MKDIR: u32 = 9;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
}

/// A volume on a device in memory, which can be opened again.
pub fn disk() -> Arc<dyn Device> {
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
    Store::format(std::slice::from_ref(&disk), &FormatOptions::default()).unwrap();
    disk
}

pub fn open(disk: &Arc<dyn Device>) -> Volume {
    let options = MountOptions { cache_size: 32 << 20, ..MountOptions::default() };
    Volume::open_devices(vec![Arc::clone(disk)], &options).unwrap()
}

/// The server, in a thread of its own.
pub struct Host {
    dir: tempfile::TempDir,
    pub stopper: Stopper,
    serving: JoinHandle<io::Result<()>>,
}

impl Host {
    pub fn serve(disk: &Arc<dyn Device>, queues: usize, threads: usize) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let options = Options { tag: "home".parse().ok(), queues, threads };
        let server = Server::new(open(disk), &MountConfig::default(), &options, listener).unwrap();
        let stopper = server.stopper();
        let serving = std::thread::spawn(move || {
            let served = server.serve();
            served.and(server.close())
        });
        Host { dir, stopper, serving }
    }

    pub fn connect(&self, queues: usize) -> Vm {
        Vm::new(Frontend::connect(self.dir.path().join("s"), 64).unwrap(), queues)
    }

    /// Waits until the volume is closed.
    pub fn end(self) -> io::Result<()> {
        self.serving.join().unwrap()
    }
}

pub struct Vm {
    pub front: Frontend,
    pub queues: Vec<Queue>,
    _memory: std::fs::File,
}

/// One queue as the guest's driver has it.
pub struct Queue {
    pub memory: GuestMemoryMmap,
    number: usize,
    base: u64,
    made: u16,
    seen: u16,
    /// The next buffer, and the next descriptor.
    buffers: u64,
    descriptor: u16,
    unique: u64,
    kick: EventFd,
    call: EventFd,
}

impl Vm {
    fn new(mut front: Frontend, queues: usize) -> Vm {
        let memfd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let len = PART * (queues as u64 + 1);
        rustix::fs::ftruncate(&memfd, len).unwrap();
        let file = std::fs::File::from(memfd);
        let mapped = FileOffset::new(file.try_clone().unwrap(), 0);
        let memory =
            GuestMemoryMmap::from_ranges_with_files([(GuestAddress(BASE), len as usize, Some(mapped))])
                .unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        assert_ne!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), 0);
        let protocol = front.get_protocol_features().unwrap();
        front
            .set_protocol_features(
                protocol & (VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::CONFIG),
            )
            .unwrap();
        front.set_features(features).unwrap();
        assert!(front.get_queue_num().unwrap() > queues as u64);
        front
            .set_mem_table(&[VhostUserMemoryRegionInfo {
                guest_phys_addr: BASE,
                memory_size: len,
                userspace_addr: USER,
                mmap_offset: 0,
                mmap_handle: file.as_raw_fd(),
            }])
            .unwrap();
        let queues = (0..=queues).map(|n| Queue::new(&mut front, n, &memory)).collect();
        Vm { front, queues, _memory: file }
    }

    pub fn config(&mut self) -> Vec<u8> {
        let (_, bytes) = self.front.get_config(0, 40, VhostUserConfigFlags::WRITABLE, &[0; 40]).unwrap();
        bytes
    }

    /// Stops a queue.
    pub fn stop(&mut self, n: usize) {
        self.front.get_vring_base(n).unwrap();
    }

    /// Starts a queue anew that was stopped, as when the guest restarts.
    pub fn restart(&mut self, n: usize) {
        let memory = self.queues[n].memory.clone();
        self.queues[n] = Queue::new(&mut self.front, n, &memory);
    }
}

impl Queue {
    fn new(front: &mut Frontend, number: usize, memory: &GuestMemoryMmap) -> Queue {
        let base = BASE + PART * number as u64;
        memory.write_slice(&vec![0; BUFFERS as usize], GuestAddress(base)).unwrap();
        let at = |offset: u64| USER + (base - BASE) + offset;
        let (kick, call) = (EventFd::new(EFD_NONBLOCK).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
        front.set_vring_num(number, SIZE).unwrap();
        front
            .set_vring_addr(
                number,
                &VringConfigData {
                    queue_max_size: SIZE,
                    queue_size: SIZE,
                    flags: 0,
                    desc_table_addr: at(0),
                    used_ring_addr: at(0x8000),
                    avail_ring_addr: at(0x4000),
                    log_addr: None,
                },
            )
            .unwrap();
        front.set_vring_base(number, 0).unwrap();
        front.set_vring_call(number, &call).unwrap();
        front.set_vring_kick(number, &kick).unwrap();
        front.set_vring_enable(number, true).unwrap();
        Queue {
            memory: memory.clone(),
            number,
            base,
            made: 0,
            seen: 0,
            buffers: base + BUFFERS,
            descriptor: 0,
            unique: 0,
            kick,
            call,
        }
    }

    fn u16_at(&self, offset: u64) -> u16 {
        self.memory.read_obj(GuestAddress(self.base + offset)).unwrap()
    }

    fn put<T: vm_memory::ByteValued>(&self, offset: u64, value: T) {
        self.memory.write_obj(value, GuestAddress(self.base + offset)).unwrap();
    }

    /// Puts a descriptor into a table of the queue's part: 0 the queue's own, [`TABLE`] another.
    pub fn describe(&self, table: u64, n: u16, (at, len, flags, next): (u64, u32, u16, u16)) {
        let offset = table + 16 * u64::from(n);
        self.put(offset, at);
        self.put(offset + 8, len);
        self.put(offset + 12, flags);
        self.put(offset + 14, next);
    }

    /// The address of the table for indirect chains.
    pub fn table(&self) -> u64 {
        self.base + TABLE
    }

    /// The buffers' first and last address.
    pub fn range(&self) -> (u64, u64) {
        (self.base + BUFFERS, self.base + PART)
    }

    /// Hands over the chain that begins with a descriptor, and wakes the device if it asked for it.
    pub fn offer(&mut self, head: u16) {
        self.put(0x4000 + 4 + 2 * u64::from(self.made % SIZE), head);
        // What the device would have to tell of: the next one that it gives back.
        self.put(0x4000 + 4 + 2 * u64::from(SIZE), self.seen);
        let before = self.made;
        self.made = before.wrapping_add(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put(0x4000 + 2, self.made);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let wanted = self.u16_at(0x8000 + 4 + 8 * u64::from(SIZE));
        if self.made.wrapping_sub(wanted).wrapping_sub(1) < self.made.wrapping_sub(before) {
            self.kick.write(1).unwrap();
        }
    }

    /// Says that there are more chains than a queue holds.
    pub fn overrun(&mut self) {
        self.put(0x4000 + 2, self.made.wrapping_add(SIZE + 1));
        self.kick.write(1).unwrap();
    }

    /// Returns the next chain that was given back, and how long its answer is.
    fn given_back(&mut self) -> Option<(u32, u32)> {
        if self.u16_at(0x8000 + 2) == self.seen {
            return None;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let at = 0x8000 + 4 + 8 * u64::from(self.seen % SIZE);
        self.seen = self.seen.wrapping_add(1);
        let word = |at: u64| self.memory.read_obj(GuestAddress(self.base + at)).unwrap();
        Some((word(at), word(at + 4)))
    }

    /// Waits until a chain is given back. A minute without one is the end of the test.
    pub fn wait(&mut self) -> (u32, u32) {
        loop {
            if let Some(back) = self.given_back() {
                return back;
            }
            self.put(0x4000 + 4 + 2 * u64::from(SIZE), self.seen);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if let Some(back) = self.given_back() {
                return back;
            }
            // SAFETY: the eventfd is open as long as this queue.
            let call = unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut fds = [PollFd::new(&call, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&minute)).unwrap(), 1, "queue {}: no answer", self.number);
            let _ = self.call.read();
        }
    }

    /// Returns whether a chain was given back that nobody waited for.
    pub fn is_answered(&self) -> bool {
        self.u16_at(0x8000 + 2) != self.seen
    }

    /// Takes memory for a buffer.
    fn buffer(&mut self, len: usize) -> u64 {
        let len = len.next_multiple_of(64) as u64;
        if self.buffers + len > self.base + PART {
            self.buffers = self.base + BUFFERS;
        }
        let at = self.buffers;
        self.buffers += len;
        at
    }

    /// Sends a request, its parts and the answer's in pieces of at most `piece` bytes. Returns what
    /// [`Queue::answer`] takes.
    pub fn send(&mut self, op: u32, ino: u64, body: &[u8], capacity: usize, piece: usize) -> Sent {
        self.unique += 1;
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_ne_bytes());
        bytes.extend(op.to_ne_bytes());
        bytes.extend(self.unique.to_ne_bytes());
        bytes.extend(ino.to_ne_bytes());
        [0, 0, 1, 0_u32].iter().for_each(|w| bytes.extend(w.to_ne_bytes()));
        bytes.extend(body);
        let (request, answer) = (self.buffer(bytes.len()), self.buffer(capacity.max(1)));
        self.memory.write_slice(&bytes, GuestAddress(request)).unwrap();
        let mut pieces: Vec<(u64, u32, u16)> = Vec::new();
        for (at, len, flags) in [(request, bytes.len(), 0), (answer, capacity, WRITE)] {
            let mut from = 0;
            while from < len {
                let now = piece.min(len - from);
                pieces.push((at + from as u64, now as u32, flags));
                from += now;
            }
        }
        let head = self.descriptor;
        let (table, first) = if pieces.len() > 4 { (TABLE, 0) } else { (0, head) };
        for (n, (at, len, flags)) in pieces.iter().enumerate() {
            let n = (first + n as u16) % if table == 0 { SIZE } else { u16::MAX };
            let is_last = usize::from(n.wrapping_sub(first) % SIZE) + 1 == pieces.len() && table == 0
                || table != 0 && usize::from(n) + 1 == pieces.len();
            let next = if table == 0 { (n + 1) % SIZE } else { n + 1 };
            self.describe(table, n, (*at, *len, flags | if is_last { 0 } else { NEXT }, next));
        }
        if table != 0 {
            self.describe(0, head, (self.table(), 16 * pieces.len() as u32, INDIRECT, 0));
        }
        self.descriptor = (head + 4) % SIZE;
        self.offer(head);
        Sent { head, answer, unique: self.unique }
    }

    /// Reads the answer of a chain that was given back.
    pub fn answer(&self, sent: &Sent, (head, len): (u32, u32)) -> Result<Vec<u8>, i32> {
        assert_eq!(head, u32::from(sent.head), "another was answered");
        let mut bytes = vec![0; len as usize];
        self.memory.read_slice(&mut bytes, GuestAddress(sent.answer)).unwrap();
        assert_eq!(bytes[..4], len.to_ne_bytes());
        assert_eq!(bytes[8..16], sent.unique.to_ne_bytes());
        match i32::from_ne_bytes(bytes[4..8].try_into().unwrap()) {
            0 => Ok(bytes[16..].to_vec()),
            e => Err(-e),
        }
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, op: u32, ino: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let sent = self.send(op, ino, body, 300 << 10, 100 << 10);
        let back = self.wait();
        self.answer(&sent, back)
    }

    pub fn init(&mut self) {
        const POSIX_ACL: u32 = 1 << 20;
        const DONT_MASK: u32 = 1 << 6;
        let answer = self.ask(op::INIT, 0, &words(&[7, 36, 4096, POSIX_ACL | DONT_MASK])).unwrap();
        assert_eq!(answer.len(), 64);
    }

    /// Makes a file of the root; its inode number and handle.
    pub fn create(&mut self, name: &str) -> (u64, u64) {
        let flags = (libc::O_CREAT | libc::O_RDWR) as u32;
        let body = [words(&[flags, libc::S_IFREG | 0o644, 0, 0]), named(name)].concat();
        let made = self.ask(op::CREATE, 1, &body).unwrap();
        (u64_at(&made, 0), u64_at(&made, 128))
    }

    pub fn write(&mut self, (ino, handle): (u64, u64), offset: u64, data: &[u8]) {
        let mut body = [handle, offset].map(u64::to_ne_bytes).concat();
        body.extend(words(&[data.len() as u32, 0, 0, 0, 0, 0]));
        body.extend(data);
        let answer = self.ask(op::WRITE, ino, &body).unwrap();
        assert_eq!(answer[..4], (data.len() as u32).to_ne_bytes());
    }

    pub fn read(&mut self, (ino, handle): (u64, u64), offset: u64, len: u32) -> Vec<u8> {
        let mut body = [handle, offset].map(u64::to_ne_bytes).concat();
        body.extend(words(&[len, 0, 0, 0, 0, 0]));
        self.ask(op::READ, ino, &body).unwrap()
    }
}

/// A request under way.
pub struct Sent {
    pub head: u16,
    answer: u64,
    unique: u64,
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

pub fn named(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn fsync(handle: u64) -> Vec<u8> {
    [handle.to_ne_bytes(), [0; 8]].concat()
}
