//! What a guest does, and how it ends.

use crate::vm::{Host, disk, fsync, named, op, open, u64_at, words};
use lanefs_store::Result;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use std::sync::{Arc, Condvar, Mutex};

#[test]
fn what_a_guest_wrote_is_in_the_volume_when_it_has_gone() {
    let disk = disk();
    let host = Host::serve(&disk, 1, 4);
    let mut vm = host.connect(1);
    let config = vm.config();
    assert_eq!((&config[..5], &config[36..]), (&b"home\0"[..], &[1, 0, 0, 0][..]));
    let content: Vec<u8> = (0..250_000_u32).flat_map(|n| n.to_le_bytes()).take(250_000).collect();
    let [urgent, queue] = &mut vm.queues[..] else { panic!("two queues") };
    assert_eq!(queue.ask(op::LOOKUP, 1, &named("f")), Err(libc::EIO), "before INIT");
    queue.init();
    assert_eq!(u64_at(&queue.ask(op::LOOKUP, 1, &named("f")).unwrap(), 0), 0, "no such name");
    let file = queue.create("f");
    queue.write(file, 0, &content);
    assert_eq!(queue.read(file, 0, 250_000), content);
    assert_eq!(queue.read(file, 249_990, 100), content[249_990..]);
    // The same in small pieces, as pages of a guest are.
    let body = [[file.1, 4096].map(u64::to_ne_bytes).concat(), words(&[40_960, 0, 0, 0, 0, 0])].concat();
    let sent = queue.send(op::READ, file.0, &body, 16 + 40_960, 4096);
    let back = queue.wait();
    assert_eq!(queue.answer(&sent, back).unwrap(), content[4096..45_056]);
    queue.ask(op::FSYNC, file.0, &fsync(file.1)).unwrap();
    let made = queue.ask(op::MKDIR, 1, &[words(&[0o755, 0]), named("d")].concat()).unwrap();
    let to = u64_at(&made, 0).to_ne_bytes();
    queue.ask(op::RENAME2, 1, &[&to[..], &[0; 8], &named("f"), &named("g")].concat()).unwrap();
    assert_eq!(u64_at(&queue.ask(op::LOOKUP, 1, &named("f")).unwrap(), 0), 0);
    let list = [[0, 0].map(u64::to_ne_bytes).concat(), words(&[4096, 0, 0, 0, 0, 0])].concat();
    let list = queue.ask(op::READDIR, 1, &list).unwrap();
    assert!(list.windows(1).any(|w| w == b"d"));
    queue.create("gone");
    queue.ask(op::UNLINK, 1, &named("gone")).unwrap();
    queue.ask(op::RELEASE, file.0, &[file.1.to_ne_bytes(), [0; 8], [0; 8]].concat()).unwrap();
    // What needs no answer has no place for one, and is given back all the same.
    let sent = urgent.send(op::FORGET, file.0, &1_u64.to_ne_bytes(), 0, 4096);
    assert_eq!(urgent.wait(), (u32::from(sent.head), 0));
    drop(vm);
    host.end().unwrap();
    let fs = open(&disk).fs();
    assert_eq!(fs.read("/d/g").unwrap(), content);
    let names: Vec<_> = fs.read_dir("/").unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["d"]);
}

/// A device whose flushes wait for leave.
#[derive(Debug)]
struct Held {
    disk: Arc<dyn Device>,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Held {
    fn set(&self, is_open: bool) {
        *self.is_open.lock().unwrap() = is_open;
        self.opened.notify_all();
    }
}

impl Device for Held {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.disk.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.disk.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |open| !*open).unwrap());
        self.disk.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

#[test]
fn a_queue_is_served_while_requests_of_it_wait_for_the_device() {
    let held = Arc::new(Held { disk: disk(), is_open: Mutex::new(true), opened: Condvar::new() });
    let disk: Arc<dyn Device> = Arc::clone(&held) as _;
    let host = Host::serve(&disk, 1, 4);
    let mut vm = host.connect(1);
    let queue = &mut vm.queues[1];
    queue.init();
    for round in 0..20 {
        let files = [0, 1, 2].map(|n| queue.create(&format!("{round}-{n}")));
        files.iter().for_each(|f| queue.write(*f, 0, b"content"));
        held.set(false);
        // As many as there are threads but one.
        let waiting: Vec<_> =
            files.iter().map(|f| queue.send(op::FSYNC, f.0, &fsync(f.1), 16, 4096)).collect();
        for n in 0..50 {
            let sent = queue.send(op::LOOKUP, 1, &named(&format!("{round}-{}", n % 3)), 144, 4096);
            let back = queue.wait();
            assert_eq!(u64_at(&queue.answer(&sent, back).unwrap(), 0), files[n % 3].0);
        }
        assert!(!queue.is_answered(), "an fsync was answered before its flush");
        held.set(true);
        let mut heads: Vec<u32> = waiting.iter().map(|_| queue.wait().0).collect();
        heads.sort_unstable();
        let mut sent: Vec<u32> = waiting.iter().map(|s| u32::from(s.head)).collect();
        sent.sort_unstable();
        assert_eq!(heads, sent);
    }
    drop(vm);
    host.end().unwrap();
}

#[test]
fn a_queue_that_is_stopped_is_at_rest() {
    let held = Arc::new(Held { disk: disk(), is_open: Mutex::new(true), opened: Condvar::new() });
    let disk: Arc<dyn Device> = Arc::clone(&held) as _;
    let host = Host::serve(&disk, 1, 2);
    let mut vm = host.connect(1);
    vm.queues[1].init();
    let file = vm.queues[1].create("f");
    held.set(false);
    let sent = vm.queues[1].send(op::FSYNC, file.0, &fsync(file.1), 16, 4096);
    // Answered when the one before it was taken.
    let next = vm.queues[1].send(op::LOOKUP, 1, &named("f"), 144, 4096);
    assert_eq!(vm.queues[1].wait().0, u32::from(next.head));
    std::thread::scope(|s| {
        // The assertions are right whoever is faster; mostly the stop waits.
        s.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            held.set(true);
        });
        vm.stop(1);
        // What was under way was answered before the queue was said to be stopped.
        let queue = &mut vm.queues[1];
        assert!(queue.is_answered());
        let back = queue.wait();
        assert_eq!(queue.answer(&sent, back), Ok(vec![]));
    });
    vm.restart(1);
    vm.queues[1].init();
    assert_eq!(u64_at(&vm.queues[1].ask(op::LOOKUP, 1, &named("f")).unwrap(), 0), file.0);
    drop(vm);
    host.end().unwrap();
}

#[test]
fn queues_are_served_side_by_side() {
    let disk = disk();
    let host = Host::serve(&disk, 4, 2);
    let mut vm = host.connect(4);
    vm.queues[1].init();
    std::thread::scope(|s| {
        for (n, queue) in vm.queues.iter_mut().enumerate().skip(1) {
            s.spawn(move || {
                for i in 0..100 {
                    let file = queue.create(&format!("{n}-{i}"));
                    queue.write(file, 0, format!("{n} {i}").as_bytes());
                    if i % 10 == 0 {
                        queue.ask(op::FSYNC, file.0, &fsync(file.1)).unwrap();
                    }
                    queue.ask(op::RELEASE, file.0, &[file.1.to_ne_bytes(), [0; 8], [0; 8]].concat()).unwrap();
                }
            });
        }
    });
    vm.queues[1].ask(op::DESTROY, 0, b"").unwrap();
    drop(vm);
    host.end().unwrap();
    let fs = open(&disk).fs();
    for (n, i) in (1..=4).flat_map(|n| (0..100).map(move |i| (n, i))) {
        assert_eq!(fs.read(format!("/{n}-{i}")).unwrap(), format!("{n} {i}").as_bytes());
    }
}

#[test]
fn a_session_ends_when_it_is_told_to_and_keeps_what_was_answered() {
    // Before anybody has come.
    let disk = disk();
    let host = Host::serve(&disk, 1, 2);
    host.stopper.stop();
    host.end().unwrap();
    // And in the middle.
    let host = Host::serve(&disk, 1, 2);
    let mut vm = host.connect(1);
    vm.queues[1].init();
    let file = vm.queues[1].create("f");
    vm.queues[1].write(file, 0, b"kept");
    host.stopper.stop();
    host.end().unwrap();
    assert_eq!(open(&disk).fs().read("/f").unwrap(), b"kept");
}
