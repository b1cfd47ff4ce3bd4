//! What no driver puts into a queue, from a seed: loops, pieces outside of memory, tables in
//! tables, lengths that lie, requests that are none. Each chain is given back, and the queue and
//! the volume go on. `LANEFS_FUZZ_CASES` makes it longer.

use crate::vm::{Host, INDIRECT, NEXT, Queue, SIZE, Vm, WRITE, disk, named, op, open, u64_at};
use lanefs_sync::random::Rng;
use vm_memory::{Bytes, GuestAddress};

/// An address: in the buffers, near their ends, or nowhere.
fn address(rng: &mut Rng, queue: &Queue) -> u64 {
    let (from, to) = queue.range();
    match rng.below(8) {
        0 => rng.bits(),
        1 => [0, 1, u64::MAX, u64::MAX - 15][rng.below(4) as usize],
        2 => to - rng.below(64),
        3 => queue.table(),
        _ => from + rng.below(1 << 16),
    }
}

fn length(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => 1 << rng.below(32),
        3 => rng.below(48) as u32,
        _ => rng.below(9000) as u32,
    }
}

/// Puts bytes that may be a request where descriptors may point.
fn scribble(rng: &mut Rng, queue: &Queue) {
    let (from, _) = queue.range();
    for _ in 0..4 {
        let len = match rng.below(3) {
            0 => rng.bits() as u32,
            _ => 40 + rng.below(200) as u32,
        };
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend((rng.below(56) as u32).to_ne_bytes());
        bytes.extend(rng.bits().to_ne_bytes());
        bytes.extend(rng.below(4).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend((0..240).map(|_| if rng.below(2) == 0 { 0 } else { rng.bits() as u8 }));
        let at = from + rng.below(1 << 16);
        queue.memory.write_slice(&bytes, GuestAddress(at)).unwrap();
    }
}

fn bad_chain(rng: &mut Rng, queue: &mut Queue) -> u16 {
    scribble(rng, queue);
    let head = rng.below(u64::from(SIZE)) as u16;
    let is_indirect = rng.below(3) == 0;
    let (table, mut at) = if is_indirect { (0x1_0000, 0) } else { (0, head) };
    if is_indirect {
        let len = if rng.below(3) == 0 { length(rng) } else { 16 * rng.below(70) as u32 };
        let table = if rng.below(4) == 0 { address(rng, queue) } else { queue.table() };
        queue.describe(0, head, (table, len, INDIRECT | (NEXT * (rng.below(2) as u16)), head));
    }
    let pieces = 1 + rng.below(12);
    let split = rng.below(pieces + 1);
    for n in 0..pieces {
        let mut flags = if n >= split { WRITE } else { 0 };
        flags ^= if rng.below(10) == 0 { WRITE } else { 0 };
        flags |= if n + 1 < pieces || rng.below(6) == 0 { NEXT } else { 0 };
        flags |= if rng.below(20) == 0 { INDIRECT } else { 0 };
        // The next one, itself, any, or one that there is not.
        let next = match rng.below(10) {
            0 => at,
            1 => rng.below(u64::from(SIZE)) as u16,
            2 => rng.bits() as u16,
            _ => (at + 1) % SIZE,
        };
        queue.describe(table, at, (address(rng, queue), length(rng), flags, next));
        at = (at + 1) % SIZE;
    }
    head
}

/// Returns whether the volume is served.
fn whole(vm: &mut Vm) -> bool {
    let queue = &mut vm.queues[1];
    queue.ask(op::LOOKUP, 1, &named("there")).is_ok_and(|found| u64_at(&found, 0) != 0)
}

fn run(seed: u64, cases: u64) {
    let mut rng = Rng::at(seed);
    let disk = disk();
    let host = Host::serve(&disk, 1, 3);
    let mut vm = host.connect(1);
    vm.queues[1].init();
    vm.queues[1].create("there");
    for case in 0..cases {
        let queue = &mut vm.queues[1];
        let head = bad_chain(&mut rng, queue);
        queue.offer(head);
        let (back, _) = queue.wait();
        assert_eq!(back, u32::from(head), "seed {seed}, case {case}");
        if case % 8 == 0 {
            // A request may have said farewell, or have begun anew.
            vm.queues[1].init();
            assert!(whole(&mut vm), "seed {seed}, case {case}");
        }
    }
    drop(vm);
    host.end().unwrap();
    assert!(open(&disk).fs().metadata("/there").is_ok());
}

#[test]
fn whatever_is_in_a_chain_it_is_given_back() {
    let cases = std::env::var("LANEFS_FUZZ_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    for seed in 1..=cases {
        eprintln!("seed {seed}");
        run(seed, 400);
    }
}

/// A queue whose numbers are wrong gives nothing more until it is started anew.
#[test]
fn a_queue_with_wrong_numbers_harms_nobody() {
    let disk = disk();
    let host = Host::serve(&disk, 2, 2);
    let mut vm = host.connect(2);
    vm.queues[1].init();
    vm.queues[1].create("there");
    vm.queues[2].overrun();
    assert!(whole(&mut vm));
    // A descriptor that there is not cannot even be given back.
    let queue = &mut vm.queues[1];
    queue.offer(SIZE + 5);
    queue.offer(u16::MAX);
    assert!(whole(&mut vm));
    vm.stop(2);
    vm.restart(2);
    assert!(vm.queues[2].ask(op::LOOKUP, 1, &named("there")).is_ok());
    drop(vm);
    host.end().unwrap();
}
