//! Volumes of which a device is replaced while they are used, and that lose power meanwhile.

use crate::change::{each_state_of, fsck_all, longer};
use crate::common::*;
use crate::devices::{Load, come_back, fork, recorded, why};
use crate::model::{Model, Told};
use lanefs_store::device::{
    Device, Fault, FaultyDevice, FileDevice, Kind, MemoryDevice, MemoryImage, Plan, Recorder, Rule, When,
};
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::cell::RefCell;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A volume of which device `n` is replaced.
struct Replace {
    sizes: &'static [u64],
    copies: u32,
    n: usize,
    /// Bytes that the new device has more.
    more: u64,
}

const ALL: [Replace; 5] = [
    Replace { sizes: &[2 * MIB], copies: 1, n: 0, more: 0 },
    Replace { sizes: &[2 * MIB], copies: 2, n: 0, more: MIB },
    Replace { sizes: &[2 * MIB, MIB], copies: 1, n: 0, more: 0 },
    Replace { sizes: &[MIB, 2 * MIB, MIB], copies: 1, n: 1, more: 4096 },
    Replace { sizes: &[MIB, 2 * MIB], copies: 2, n: 1, more: 0 },
];

impl Replace {
    /// The devices, and behind them the new one.
    fn format(&self) -> Vec<Arc<MemoryImage>> {
        let dd: Vec<Dev> = self.sizes.iter().map(|s| memory(*s)).collect();
        Store::format(&dd, &FormatOptions { metadata_copies: self.copies, ..format_options() }).unwrap();
        let new = MemoryImage::zeros(self.sizes[self.n] + self.more).unwrap();
        dd.iter().map(|d| longer(d, d.size())).chain([new]).collect()
    }

    /// The devices with the new one in its place.
    fn with_new(&self, all: &[Dev]) -> Vec<Dev> {
        let mut dd = all[..self.sizes.len()].to_vec();
        dd[self.n] = all[self.sizes.len()].clone();
        dd
    }
}

#[test]
fn a_power_loss_while_a_device_is_replaced_leaves_the_volume_on_the_old_one_or_the_new() {
    for (which, of) in ALL.iter().enumerate() {
        let bases = of.format();
        let recorder = Recorder::new();
        let all = recorded(&bases, &recorder);
        let (s, _) = open_all(&all[..of.sizes.len()]);
        let m = RefCell::new(Model::new(&s));
        let r = RefCell::new(Rng::new(17 + which as u64));
        let step = || m.borrow_mut().step(&s, &mut r.borrow_mut(), &*recorder).unwrap();
        (0..250).for_each(|_| step());
        m.borrow_mut().fold(&s, &*recorder).unwrap();
        (0..10).for_each(|_| step());
        let from = recorder.log().now;
        let pieces = RefCell::new(0);
        let done = s.replace_device(of.n, all[of.sizes.len()].clone(), false, &|at, all| {
            *pieces.borrow_mut() += 1;
            if at > all / 3 {
                return; // Nobody flushes what was copied last.
            }
            // Others go on, and make checkpoints.
            step();
            if *pieces.borrow() % 4 == 0 {
                m.borrow_mut().fold(&s, &*recorder).unwrap();
            }
        });
        let done = done.unwrap_or_else(|e| panic!("{which}: {e}"));
        assert!(done.copied > 64 << 10 && done.unreadable == 0 && *pieces.borrow() > 2, "{which}: {done:?}");
        let replaced = recorder.log().now;
        (0..20).for_each(|_| step());
        m.borrow_mut().fold(&s, &*recorder).unwrap();
        s.audit().unwrap();
        drop(s);
        let m = m.into_inner();
        let to = recorder.log().now.min(replaced + 12);
        let (mut old, mut new) = (0, 0);
        let near = replaced.saturating_sub(24).max(from);
        let some = ((near - from) / 12).max(1);
        for at in (from..near).step_by(some as usize).chain(near..=to) {
            each_state_of(&bases, &recorder, at, at, |crash, images, context| {
                let context = &format!("{which}: {context}, replaced at {replaced}");
                let told = Told::new(crash.marks());
                let mut opened = 0;
                for is_new in [false, true] {
                    let all = fork(&images);
                    let dd = if is_new { of.with_new(&all) } else { all[..of.sizes.len()].to_vec() };
                    let s = match Store::open(dd.clone(), &OpenOptions::default()) {
                        Ok((s, _)) => s,
                        Err(e) => {
                            let said = e.to_string();
                            let known = ["is no device of the volume", "not a LaneFS volume", "overwritten"];
                            assert!(known.iter().any(|k| said.contains(k)), "{context}: {said}");
                            continue;
                        }
                    };
                    opened += 1;
                    if is_new {
                        new += 1
                    } else {
                        old += 1
                    }
                    assert!(is_new || crash.at() <= replaced, "{context}: the old one is used");
                    m.check(&s, &told, context);
                    s.close().unwrap();
                    drop(s);
                    fsck_all(&dd, context);
                    m.check(&open_all(&dd).0, &told, context);
                }
                assert!(opened > 0, "{context}: none of the two");
                assert!(opened == 1 || of.n == 0, "{context}: both");
            });
        }
        assert!(old > 20 && new > 20, "{which}: {old} and {new}");
    }
}

/// Where the power was lost when both first devices could be used, and one was: the other one is
/// not taken for the present one beside the rest.
#[test]
fn a_first_device_that_was_not_gone_on_with_is_refused() {
    let of = &ALL[2];
    let bases = of.format();
    let recorder = Recorder::new();
    let all = recorded(&bases, &recorder);
    let (s, _) = open_all(&all[..2]);
    let mut m = Model::new(&s);
    let mut r = Rng::new(9);
    (0..40).for_each(|_| m.step(&s, &mut r, &*recorder).unwrap());
    m.fold(&s, &*recorder).unwrap();
    let from = recorder.log().now;
    s.replace_device(0, all[2].clone(), false, &|_, _| ()).unwrap();
    drop(s);
    let to = recorder.log().now;
    let mut both = 0;
    each_state_of(&bases, &recorder, from, to, |_, images, context| {
        let all = fork(&images);
        let (old, new) = (all[..2].to_vec(), of.with_new(&all));
        let opens = |dd: &[Dev]| {
            let o = OpenOptions { read_only: true, ..OpenOptions::default() };
            Store::open(dd.to_vec(), &o).is_ok()
        };
        if !opens(&old) || !opens(&new) {
            return;
        }
        both += 1;
        // A mount of one of them.
        let (used, other) = if both % 2 == 0 { (old, new) } else { (new, old) };
        open_all(&used).0.close().unwrap();
        let said = why(Store::open(other, &OpenOptions::default()));
        assert!(said.contains("is older than the volume's other devices"), "{context}: {said}");
    });
    assert!(both > 2, "{both}");
}

#[test]
fn devices_are_replaced_one_after_the_other_while_threads_write() {
    for metadata_copies in [1, 2] {
        let dd: Vec<Dev> = (0..3).map(|_| memory(4 << 20)).collect();
        Store::format(&dd, &FormatOptions { metadata_copies, ..format_options() }).unwrap();
        let (s, _) = open_all(&dd);
        let load = Load::start(&s, 200);
        let mut now = dd.clone();
        for round in 0..2 {
            for (n, device) in now.iter_mut().enumerate() {
                let new = memory((4 << 20) + round * 8192);
                s.replace_device(n, new.clone(), false, &|_, _| ()).unwrap();
                *device = new;
                fold(&s, 1, vec![]);
            }
        }
        let there = load.stop();
        let s = come_back(s, &now, &there);
        // What was replaced belongs to nobody, and can come back.
        assert!(
            why(Store::open(vec![dd[0].clone()], &OpenOptions::default())).contains("not a LaneFS volume")
        );
        s.replace_device(1, dd[0].clone(), false, &|_, _| ()).unwrap();
        now[1] = dd[0].clone();
        come_back(s, &now, &there);
    }
}

#[test]
fn what_cannot_take_the_place_is_refused_and_all_is_as_before() {
    let dd = [fresh(4 << 20), memory(4 << 20)];
    let (s, _) = open(&dd[0]);
    s.add_device(dd[1].clone(), false).unwrap();
    let load = Load::start(&s, 100);
    let replace = |n, d: &Dev| s.replace_device(n, d.clone(), false, &|_, _| ());
    assert!(why(replace(2, &memory(4 << 20))).contains("no device 2"));
    assert!(why(replace(0, &dd[1])).contains("is a device of the volume already"));
    assert!(why(replace(0, &memory((4 << 20) - 4096))).contains("needs 4194304 bytes"));
    let other = fresh(4 << 20);
    assert!(why(replace(1, &other)).contains("--force"));
    assert!(open(&other).0.info().devices == 1);
    let there = load.stop();
    // One that fails, at any moment.
    for nth in [0, 1, 2, 5, 20, 100] {
        for kind in [Kind::Write, Kind::Flush] {
            let when = When { nth, ..When::default() };
            let rules = vec![Rule { kind, when, fault: Fault::Error(libc::EIO) }];
            let device = MemoryDevice::new(4 << 20).unwrap();
            let new: Dev = Arc::new(FaultyDevice::new(device, Plan { rules, ..Plan::none() }));
            if let Err(e) = replace(1, &new) {
                assert_eq!(e.errno(), libc::EIO, "{e}");
            } else {
                assert!(kind == Kind::Flush || nth > 5, "write {nth} failed, and nobody noticed");
                replace(1, &dd[1]).unwrap();
            }
            assert_eq!((s.info().devices, s.report().devices.trouble), (2, None));
        }
    }
    come_back(s, &dd, &there);
}

/// What the old device does not give stays lost, and is told; where the tree lies twice it is
/// healed.
#[test]
fn what_cannot_be_read_is_not_taken_for_zeros() {
    let rules = vec![Rule {
        kind: Kind::Read,
        when: When { range: Some(300 << 12..310 << 12), ..When::default() },
        fault: Fault::Error(libc::EIO),
    }];
    let d = fresh(4 << 20);
    {
        let (s, _) = open(&d);
        let load = Load::start(&s, 150);
        load.stop();
        s.close().unwrap();
    }
    let bad: Dev = Arc::new(FaultyDevice::new(d.clone(), Plan { rules, ..Plan::none() }));
    let (s, _) = open(&bad);
    let new = memory(4 << 20);
    let under_way = std::cell::Cell::new(0);
    let look = |done: u64, total: u64| {
        let told = s.report().devices.change.map(|c| (c.done_bytes, c.total_bytes));
        assert_eq!(told, Some((done, total)), "who looks at the volume is told the same");
        under_way.set(under_way.get() + 1);
    };
    let done = s.replace_device(0, new.clone(), false, &look).unwrap();
    assert!(under_way.get() > 1 && s.report().devices.change.is_none(), "it is over");
    // What is free is not read.
    assert!((1 << 12..=10 << 12).contains(&done.unreadable), "{done:?}");
    s.close().unwrap();
    drop(s);
    let o = fsck::FsckOptions { threads: 1, ..fsck::FsckOptions::default() };
    let report = fsck::check(vec![new], &o, &|_| ()).unwrap();
    assert!(!report.is_clean() && report.problems.len() <= 10, "{:?}", report.problems);
}

#[test]
fn a_file_that_was_replaced_is_let_go_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let file = |name: &str| -> Dev { Arc::new(FileDevice::create(path(name), 4 << 20).unwrap()) };
    let a = file("a");
    Store::format(std::slice::from_ref(&a), &format_options()).unwrap();
    let (s, _) = open(&a);
    let load = Load::start(&s, 100);
    let b = file("b");
    s.replace_device(0, b.clone(), false, &|_, _| ()).unwrap();
    assert!(s.device_names()[0].ends_with('b'));
    // Others may have it.
    let again = FileDevice::open(path("a"), false).unwrap();
    let c: Dev = Arc::new(again);
    s.replace_device(0, c.clone(), false, &|_, _| ()).unwrap();
    let there = load.stop();
    drop((a, b));
    come_back(s, &[c], &there);
}
