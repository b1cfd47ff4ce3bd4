//! The protocol of one test.
//!
//! 1. A fresh volume in memory, forked from a formatted image. The set-up runs on a third lane and
//!    ends with a checkpoint; handles are opened on the lane whose call uses them first; what is to
//!    be dirty is written there.
//! 2. *Warm* runs: each of the two lanes makes a series of calls on objects of its own, so that it
//!    has its inode numbers, its reservation, its log heads. *Cold* runs leave this out.
//! 3. The first call on its lane, recorded, then the second on the other one, recorded. All answers
//!    are compared with the model's.
//! 4. The same on another fresh volume with the second call first.
//! 5. The volume is stopped as by a crash and opened again; what it holds is judged by the oracle
//!    of the crash simulator.

use super::call::Call;
use super::lanes::Lane;
use super::overlap::{Shared, shared};
use super::test_case::{Names, SETUP, Test};
use super::trace::{self, Recording};
use super::volume::{Gate, UnderTest};
use lanefs::{MountOptions, Volume};
use lanefs_lab_model::model::Model;
use lanefs_lab_model::op::{Op, Outcome, Step, Tagged, Who};
use lanefs_lab_model::oracle::{History, Oracle, observe};
use lanefs_lab_model::target::agree;
use lanefs_lab_model::target::volume::VolumeTarget;
use lanefs_store::device::{Device, MemoryDevice, MemoryImage};
use lanefs_store::{FormatOptions, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the volume under test.
const BYTES: u64 = 32 << 20;
/// The same of a small one.
const SMALL: u64 = 8 << 20;
/// The lanes of a test.
const LANES: usize = 3;

/// The lanes and the image with which tests are run.
pub struct Rig {
    lanes: Vec<Lane>,
    image: Arc<MemoryImage>,
    /// Names in different leaves.
    pub names: Names,
    /// Keep the callers of every access.
    pub stacks: bool,
    /// Plant a counter that every call writes.
    pub plant: bool,
    /// A step between the set-up and the first call that is recorded.
    pub before_calls: Option<fn() -> Result<(), String>>,
}

/// One order of a test.
#[derive(Debug)]
pub struct Order {
    /// The recordings of the lanes 0 and 1.
    pub recordings: [Recording; 2],
    /// The cache lines that they share.
    pub shared: Shared,
}

fn options() -> MountOptions {
    // An ordered fsync does not commute with an earlier change of a name, whichever it is.
    let order = lanefs::Order::Relaxed;
    MountOptions {
        cache_size: 1 << 30,
        background: false,
        lanes: LANES + 1,
        order,
        ..MountOptions::default()
    }
}

impl Rig {
    /// Starts the lanes and formats the image.
    pub fn new() -> Result<Rig, String> {
        Rig::start(BYTES, None)
    }

    /// One on a small volume, with names that were chosen before: for a program whose every
    /// instruction costs a microsecond.
    pub fn small(names: Names) -> Result<Rig, String> {
        Rig::start(SMALL, Some(names))
    }

    fn start(bytes: u64, chosen: Option<Names>) -> Result<Rig, String> {
        let say = |e: lanefs_store::StoreError| e.to_string();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes).map_err(say)?);
        let format = FormatOptions {
            segment_blocks: 32,
            mlogs: LANES as u32 + 1,
            uuid: Some([7; 16]),
            hash_key: Some([1, 2]),
            time: Some(1_000_000_000_000_000_000),
            force: true,
            ..FormatOptions::default()
        };
        Store::format(std::slice::from_ref(&device), &format).map_err(say)?;
        let image = MemoryImage::capture(&*device).map_err(say)?;
        let names = ["lane 0", "lane 1", "set-up"];
        let lanes = names.iter().map(|n| Lane::start(n)).collect::<Result<Vec<_>, _>>()?;
        let names = chosen.map_or_else(|| choose_names(&device), Ok)?;
        Ok(Rig { lanes, image, names, stacks: false, plant: false, before_calls: None })
    }

    /// Runs a test in one order: `first` 0 or 1. `crash`: also recover and judge.
    pub fn run(&self, test: &Test, first: usize, warm: bool, crash: bool) -> Result<Order, String> {
        self.run_elsewhere(test, first, warm, crash, 0)
    }

    /// The same with the volume elsewhere on the heap, if `shift` is not 0: what shares a line only
    /// by where the allocator put two blocks does so in one place and not in another.
    pub fn run_elsewhere(
        &self,
        test: &Test,
        first: usize,
        warm: bool,
        crash: bool,
        shift: usize,
    ) -> Result<Order, String> {
        let fillers = (0..if shift == 0 { 0 } else { LANES })
            .map(|lane| self.lanes[lane].call(move || fillers(lane, shift)))
            .collect::<Result<Vec<_>, _>>()?;
        let order = self.run_here(test, first, warm, crash);
        // Each goes back where it came from.
        for (lane, blocks) in fillers.into_iter().enumerate() {
            self.lanes[lane].call(move || drop(blocks))?;
        }
        order
    }

    fn run_here(&self, test: &Test, first: usize, warm: bool, crash: bool) -> Result<Order, String> {
        let memory: Arc<dyn Device> = Arc::new(self.image.fork().map_err(|e| e.to_string())?);
        let gate = Arc::new(Gate::new(memory.clone()));
        let mut s = self.begin(gate.clone())?;
        let r = self.steps(test, first, warm, &gate, &mut s).and_then(|r| self.survey(&mut s).map(|()| r));
        let end = self.end(s, memory, crash && r.is_ok());
        let recordings = r?;
        end?;
        if recordings.iter().any(|r| r.lost > 0) {
            return Err("a call touched more than the recorder holds".into());
        }
        let shared = shared(&recordings[0], &recordings[1]);
        Ok(Order { recordings, shared })
    }

    fn begin(&self, gate: Arc<Gate>) -> Result<Session, String> {
        let plant = self.plant;
        let open = move || {
            let device: Arc<dyn Device> = gate;
            Volume::open_devices(vec![device], &options()).map_err(|e| e.to_string()).map(|v| {
                let target = Arc::new(UnderTest::new(&v, LANES, plant));
                (v, target)
            })
        };
        let (volume, target) = self.lanes[SETUP].call(open)??;
        Ok(Session {
            volume: Some(volume),
            target: Some(target),
            model: Model::new(),
            history: History::default(),
        })
    }

    fn steps(
        &self,
        test: &Test,
        first: usize,
        warm: bool,
        gate: &Arc<Gate>,
        s: &mut Session,
    ) -> Result<[Recording; 2], String> {
        for (lane, ops) in &test.setup {
            self.phase(s, *lane, ops)?;
        }
        self.survey(s)?;
        if warm {
            for lane in 0..2 {
                self.phase(s, lane, &warm_up(&self.names, lane))?;
            }
        }
        if let Some(f) = self.before_calls {
            f()?;
        }
        let mut recordings = [Recording::default(), Recording::default()];
        if test.calls.1 == Call::Checkpoint {
            recordings = self.beside_checkpoint(s, test, first, gate)?;
        } else {
            for who in [first, 1 - first] {
                recordings[who] = self.recorded(s, who, &test.ops[who])?;
            }
        }
        Ok(recordings)
    }

    /// Calls that are not recorded.
    fn phase(&self, s: &mut Session, lane: usize, ops: &[Op]) -> Result<(), String> {
        let target = s.target()?;
        let list = ops.to_vec();
        let got: Vec<Outcome> =
            self.lanes[lane].call(move || list.iter().map(|op| target.call(lane, op, false)).collect())?;
        ops.iter().zip(&got).try_for_each(|(op, got)| s.compare(op, got))
    }

    fn recorded(&self, s: &mut Session, lane: usize, op: &Op) -> Result<Recording, String> {
        let (target, what, stacks) = (s.target()?, op.clone(), self.stacks);
        let (got, recording) = self.lanes[lane].call(move || {
            trace::start(stacks);
            let got = target.call(lane, &what, true);
            (got, trace::stop())
        })?;
        s.compare(op, &got)?;
        Ok(recording)
    }

    /// The checkpoint runs on lane 1 up to its first or third write, the call is made on lane 0,
    /// the checkpoint goes on.
    fn beside_checkpoint(
        &self,
        s: &mut Session,
        test: &Test,
        order: usize,
        gate: &Arc<Gate>,
    ) -> Result<[Recording; 2], String> {
        let (tell, told) = std::sync::mpsc::channel();
        let (target, stacks, g) = (s.target()?, self.stacks, gate.clone());
        gate.arm(if order == 0 { 1 } else { 3 });
        self.lanes[1].spawn(move || {
            trace::start(stacks);
            let got = target.call(1, &Op::Checkpoint, false);
            trace::set_recording(false);
            g.open();
            let _ = tell.send((got, trace::stop()));
        });
        gate.wait_stopped();
        let (target, what) = (s.target()?, test.ops[0].clone());
        let (done, did) = std::sync::mpsc::channel();
        self.lanes[0].spawn(move || {
            trace::start(stacks);
            let got = target.call(0, &what, true);
            let _ = done.send((got, trace::stop()));
        });
        // A call that waits for the checkpoint would wait for ever. The time is only how long to
        // look.
        let answer = did.recv_timeout(Duration::from_secs(10));
        gate.open();
        let (got_b, b) = told.recv().map_err(|e| e.to_string())?;
        let (got_a, a) = match answer {
            Ok(a) => a,
            Err(_) => {
                did.recv().map_err(|e| e.to_string())?;
                return Err(format!("{:?} waits for a checkpoint that is under way", test.ops[0]));
            }
        };
        s.compare(&test.ops[0], &got_a)?;
        s.compare(&Op::Checkpoint, &got_b)?;
        Ok([a, b])
    }

    /// Looks at every inode, through its names and handles: the state is the model's, and the
    /// oracle learns who is who.
    fn survey(&self, s: &mut Session) -> Result<(), String> {
        let mut ops = vec![Op::Stat { path: "/".into() }];
        let mut todo = vec![(lanefs_lab_model::model::ROOT, String::new())];
        while let Some((dir, path)) = todo.pop() {
            for (name, id) in s.model.entries().filter(|e| e.0 == dir).map(|e| (e.1, e.2)) {
                let full = format!("{path}/{}", String::from_utf8_lossy(&name.0));
                ops.push(Op::Lstat { path: full.as_str().into() });
                if s.model.inodes.get(&id).is_some_and(lanefs_lab_model::model::Inode::is_dir) {
                    todo.push((id, full));
                }
            }
        }
        ops.extend(s.model.handles.keys().map(|fd| Op::Fstat { fd: *fd }));
        self.phase(s, SETUP, &ops)
    }

    /// Stops the volume as a crash does; recovers it and asks the oracle.
    fn end(&self, mut s: Session, memory: Arc<dyn Device>, crash: bool) -> Result<(), String> {
        let (volume, target) = (s.volume.take(), s.target.take());
        let history = crash.then(|| std::mem::take(&mut s.history));
        self.lanes[SETUP].call(move || {
            if let Some(v) = &volume {
                v.shutdown();
            }
            drop(target);
            drop(volume);
            let Some(history) = history else { return Ok(()) };
            let v = Volume::open_devices(vec![memory], &options()).map_err(|e| format!("recovery: {e}"))?;
            let mut t = VolumeTarget::new(v, None);
            let found = observe(&mut t).map_err(|e| e.to_string())?;
            let n = history.steps.len();
            let verdict = Oracle::new(&history, lanefs::Order::Relaxed)
                .check(n, n, &found)
                .map_err(|e| format!("after a crash: {e}"));
            if let Ok(v) = t.volume() {
                v.shutdown();
            }
            verdict
        })?
    }
}

struct Session {
    volume: Option<Volume>,
    target: Option<Arc<UnderTest>>,
    model: Model,
    history: History,
}

impl Session {
    fn target(&self) -> Result<Arc<UnderTest>, String> {
        self.target.clone().ok_or_else(|| "the volume is gone".into())
    }

    /// Makes the call in the model too, compares, and notes it.
    fn compare(&mut self, op: &Op, got: &Outcome) -> Result<(), String> {
        let step = Step::from(op.clone());
        let want = self.model.apply(Who::Root, op);
        agree(&self.model, &mut self.history.ids, &step, &want, got).map_err(|e| format!("{op:?}: {e}"))?;
        self.history.steps.push(step);
        self.history.changes.push(self.model.take_changes());
        Ok(())
    }
}

/// Blocks of every size up to 4 KiB, another number of each for each `shift`, that take the places
/// of what is allocated next.
fn fillers(lane: usize, shift: usize) -> Vec<Box<[u8]>> {
    let sizes = (16..=4096).step_by(16).enumerate();
    // Scattered, so that no number of runs has the same blocks of two sizes side by side each time.
    let number = move |i: usize| {
        let seed = (i * LANES + lane) as u64 ^ ((shift as u64) << 32);
        1 + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % 6
    };
    sizes.flat_map(|(i, size)| (0..number(i)).map(move |_| size)).map(block).collect()
}

/// Only its place matters; it is not left out, since it is kept.
fn block(size: usize) -> Box<[u8]> {
    vec![0; size].into_boxed_slice()
}

/// Returns the calls that a lane makes before the recorded one: one of each kind that takes
/// something from a common stock.
fn warm_up(names: &Names, lane: usize) -> Vec<Op> {
    let fd = 200 + lane as u8;
    let path =
        |n: usize| lanefs_lab_model::op::Name::from(format!("/{}/{}", names.own(lane), names.scratch(n)));
    let data = |tag: u32| Tagged { tag: 50 + lane as u32 * 10 + tag, len: 4096 };
    vec![
        Op::Open { fd, path: path(0), flags: libc::O_RDWR | libc::O_CREAT, mode: 0o644 },
        Op::Pwrite { fd, offset: 0, data: data(0) },
        Op::Pwrite { fd, offset: 4096, data: data(1) },
        Op::Fsync { fd },
        Op::Pwrite { fd, offset: 0, data: data(2) },
        Op::Pread { fd, offset: 0, len: 4096 },
        Op::Setxattr { path: path(0), name: "user.w".into(), value: Tagged { tag: 1, len: 8 }, flags: 0 },
        Op::Rename { old: path(0), new: path(1), flags: 0 },
        Op::Link { old: path(1), new: path(0) },
        Op::Unlink { path: path(1) },
        Op::Mkdir { path: path(1), mode: 0o755 },
        Op::Stat { path: path(1) },
        Op::Rmdir { path: path(1) },
        Op::Ftruncate { fd, size: 4096 },
        Op::Fsync { fd },
        Op::Close { fd },
        // What another lane made: the slots of this lane's group for such inodes are there.
        Op::Chmod { path: format!("/{}", names.own(lane)).as_str().into(), mode: 0o755 },
    ]
}

/// Names whose cookies differ in the four bits that choose a leaf.
fn choose_names(device: &Arc<dyn Device>) -> Result<Names, String> {
    let say = |e: lanefs::Error| e.to_string();
    let volume = Volume::open_devices(vec![device.clone()], &options()).map_err(say)?;
    let fs = volume.fs();
    for n in 0..200 {
        fs.mknod(format!("n{n}"), libc::S_IFREG | 0o644, 0).map_err(say)?;
    }
    let (mut leaves, mut names) = (BTreeSet::new(), Vec::new());
    let list = |e: lanefs::NodeEntry<'_>| {
        // A cookie has 63 bits; the topmost four of them choose the leaf.
        if e.name.starts_with(b"n") && leaves.insert(e.cookie >> 59) {
            names.push(String::from_utf8_lossy(e.name).into_owned());
        }
        true
    };
    let mut list = list;
    fs.read_dir_from("/", 0, &mut list).map_err(say)?;
    volume.shutdown();
    if names.len() < Names::NEEDED {
        return Err(format!("{} leaves for {} names", names.len(), Names::NEEDED));
    }
    Ok(Names(names))
}
