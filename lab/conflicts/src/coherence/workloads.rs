//! Runs a workload on lanes that take turns, and feeds the directory.

use super::directory::{Costs, Directory};
use crate::conflicts::overlap::parts;
use crate::conflicts::trace::{self, Access, WRITE};
use lanefs::{MountOptions, Order, Volume};
use lanefs_bench::target::VolumeTarget;
use lanefs_bench::workload::micro::*;
use lanefs_bench::workload::{Cx, Info, Params, Workload};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Rounds before any is counted: caches, lanes and stocks come to rest.
const WARM: usize = 12;
/// Rounds counted.
const COUNTED: usize = 24;
/// With the background: the rounds between two of its own in the first half of what is counted, and
/// in the second. What a round of the background costs whatever there is to do is in both, and
/// falls out of the difference.
const BETWEEN: [usize; 2] = [4, 12];
/// Rounds of the background in each half.
const ROUNDS_OF_BACKGROUND: usize = 4;
/// How much more the background records in a round than an operation.
const RECORDED: usize = 16;

/// One of the nineteen.
pub struct Entry {
    /// Its name and description.
    pub info: Info,
    run: fn(usize, &Costs, u64) -> Result<Run, String>,
    behind: fn(usize, &Costs, u64) -> Result<Behind, String>,
}

/// The counts of a run.
#[derive(Default)]
pub struct Run {
    /// The caches.
    pub directory: Directory,
    /// Units of work.
    pub units: u64,
}

/// What a run with the background counted for the units by which its second half is longer.
#[derive(Default)]
pub struct Behind {
    /// Those units.
    pub units: u64,
    /// Serial transfers of each line, and the nanoseconds they took.
    pub lines: HashMap<usize, (f64, f64)>,
    /// The accesses behind a line's first transfer.
    pub causes: HashMap<usize, [Access; 2]>,
    /// Nanoseconds that operations waited.
    pub waited_ns: f64,
    /// Nanoseconds that the background waited.
    pub background_waited_ns: f64,
}

impl Behind {
    /// Counts what a half has, with this sign.
    fn add(&mut self, half: &Run, sign: f64) {
        for (n, l) in half.directory.lines() {
            let line = self.lines.entry(n).or_default();
            line.0 += sign * l.serial as f64;
            line.1 += sign * l.busy_ns;
            if let Some(cause) = l.cause {
                self.causes.insert(n, cause);
            }
        }
        self.waited_ns += sign * half.directory.waited_ns;
        self.background_waited_ns += sign * half.directory.background_waited_ns;
    }
}

impl Entry {
    /// Runs it with so many lanes; the seed chooses the order of turns.
    pub fn run(&self, lanes: usize, costs: &Costs, seed: u64) -> Result<Run, String> {
        (self.run)(lanes, costs, seed)
    }

    /// Does that with the background, which has a core of its own.
    pub fn run_behind(&self, lanes: usize, costs: &Costs, seed: u64) -> Result<Behind, String> {
        (self.behind)(lanes, costs, seed)
    }
}

macro_rules! all {
    ($($module:ident $kind:ty),* $(,)?) => {
        /// FxMark's nineteen.
        pub fn all() -> Vec<Entry> {
            vec![$(Entry { info: $module::INFO, run: run::<$kind>, behind: behind::<$kind> }),*]
        }
    };
}

type V = VolumeTarget;
all! {
    dwal dwal::Dwal<V>, dwol dwol::Dwol<V>, dwom dwom::Dwom<V>, dwsl dwsl::Dwsl<V>, dwtl dwtl::Dwtl<V>,
    drbl drbl::Drbl<V>, drbm drbm::Drbm<V>, drbh drbh::Drbh<V>,
    mrpl mrpl::Mrpl, mrpm mrpm::Mrpm, mrph mrph::Mrph, mrdl mrdl::Mrdl, mrdm mrdm::Mrdm,
    mwcl mwcl::Mwcl, mwcm mwcm::Mwcm, mwul mwul::Mwul, mwum mwum::Mwum, mwrl mwrl::Mwrl, mwrm mwrm::Mwrm,
}

/// A volume in memory with a lane and, if it fits, a log for each worker, and no thread of its own.
/// One more lane is the background's.
fn volume(lanes: usize) -> Result<Volume, String> {
    let say = |e: lanefs_store::StoreError| e.to_string();
    let bytes = (1 << 30) + lanes as u64 * (48 << 20);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes).map_err(say)?);
    let format = FormatOptions { mlogs: lanes as u32, force: true, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &format).map_err(say)?;
    let options = MountOptions {
        cache_size: bytes,
        background: false,
        lanes: lanes + 1,
        threads: 1,
        order: Order::Relaxed,
        ..MountOptions::default()
    };
    Volume::open_devices(vec![device], &options).map_err(|e| e.to_string())
}

/// A turn: what the lane touched and how many units it did.
type Turn = Result<(Vec<Access>, u64), String>;

fn lane<W: Workload<V>>(
    cx: &Cx<'_, V>,
    id: usize,
    turns: &Receiver<bool>,
    tell: &Sender<Turn>,
) -> Result<(), String> {
    trace::setup()?;
    let mut worker = W::prepare(cx, id).map_err(|e| e.to_string())?;
    let _ = tell.send(Ok((Vec::new(), 0)));
    for record in turns {
        let turn = (|| {
            loop {
                trace::start(false);
                let done = trace::during(|| worker.operate(cx.target));
                let recording = trace::stop();
                match done {
                    Ok(0) => worker.refill(cx).map_err(|e| e.to_string())?,
                    Ok(n) if !record => return Ok((Vec::new(), n.into())),
                    Ok(n) if recording.lost == 0 => return Ok((recording.accesses, n.into())),
                    Ok(_) => return Err("an operation touched more than the recorder holds".into()),
                    Err(e) => return Err(format!("worker {id}: errno {}", e.0)),
                }
            }
        })();
        let _ = tell.send(turn);
    }
    worker.finish(cx).map_err(|e| e.to_string())
}

/// The order of turns of one round.
fn order(lanes: usize, state: &mut u64) -> Vec<usize> {
    let mut list: Vec<usize> = (0..lanes).collect();
    for i in (1..lanes).rev() {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        list.swap(i, (*state >> 33) as usize % (i + 1));
    }
    list
}

fn run<W: Workload<V>>(lanes: usize, costs: &Costs, seed: u64) -> Result<Run, String> {
    with_lanes::<W, _>(lanes, |turns, _| {
        let mut out = Run::default();
        let mut state = seed;
        for round in 0..WARM + COUNTED {
            if round == WARM {
                out.directory.begin();
                out.units = 0;
            }
            // The last warm rounds fill the caches.
            turns.round(round + 4 >= WARM, &mut out, &mut state, costs)?;
        }
        Ok(out)
    })
}

fn behind<W: Workload<V>>(lanes: usize, costs: &Costs, seed: u64) -> Result<Behind, String> {
    with_lanes::<W, _>(lanes, |turns, volume| {
        std::thread::scope(|scope| {
            let ((go, rounds), (tell, told)) = (channel(), channel());
            std::thread::Builder::new()
                .stack_size(8 << 20)
                .spawn_scoped(scope, move || background(volume, &rounds, &tell))
                .map_err(|e| e.to_string())?;
            let mut all = Run::default();
            all.directory.background = Some(lanes);
            let mut state = seed;
            let mut out = Behind::default();
            // What was made before the first turn is nobody's.
            volume.tick().map_err(|e| e.to_string())?;
            let round_of_background = |all: &mut Run| -> Result<(), String> {
                let _ = go.send(());
                let (accesses, _) = told.recv().map_err(|e| e.to_string())??;
                feed(&mut all.directory, lanes, &accesses, costs);
                Ok(())
            };
            for round in 0..WARM {
                turns.round(round + 4 >= WARM, &mut all, &mut state, costs)?;
            }
            round_of_background(&mut all)?;
            for (between, sign) in BETWEEN.into_iter().zip([-1.0, 1.0]) {
                all.directory.begin();
                all.units = 0;
                for _ in 0..ROUNDS_OF_BACKGROUND {
                    for _ in 0..between {
                        turns.round(true, &mut all, &mut state, costs)?;
                    }
                    round_of_background(&mut all)?;
                }
                out.add(&all, sign);
                out.units = all.units - out.units;
            }
            drop(go);
            Ok(out)
        })
    })
}

/// The background's thread: a round at each turn.
fn background(volume: &Volume, rounds: &Receiver<()>, tell: &Sender<Turn>) {
    let ready = trace::setup_for(RECORDED);
    for () in rounds {
        let round = ready.clone().and_then(|()| {
            trace::start(false);
            let done = trace::during(|| volume.tick());
            let recording = trace::stop();
            done.map_err(|e| e.to_string())?;
            match recording.lost {
                0 => Ok((recording.accesses, 0)),
                _ => Err("a round of the background touched more than the recorder holds".into()),
            }
        });
        let _ = tell.send(round);
    }
}

/// The threads of lanes, which wait for their turns.
struct Turns(Vec<(Sender<bool>, Receiver<Turn>)>);

impl Turns {
    /// Gives each lane a turn, and counts it.
    fn round(&self, record: bool, out: &mut Run, state: &mut u64, costs: &Costs) -> Result<(), String> {
        for id in order(self.0.len(), state) {
            let (go, told) = &self.0[id];
            let _ = go.send(record);
            let (accesses, units) = told.recv().map_err(|e| e.to_string())??;
            feed(&mut out.directory, id, &accesses, costs);
            out.units += units;
        }
        Ok(())
    }
}

/// Makes a volume and a thread for each lane, ready for its first turn.
fn with_lanes<W: Workload<V>, R>(
    lanes: usize,
    f: impl FnOnce(&Turns, &Volume) -> Result<R, String>,
) -> Result<R, String> {
    let volume = volume(lanes)?;
    trace::stop_clock(true);
    let target = VolumeTarget::of(volume.clone());
    let params = Params { scale: 0.004, ..Params::default() };
    let cx = Cx { target: &target, workers: lanes, params: &params };
    W::shared(&cx).map_err(|e| e.to_string())?;
    let out = std::thread::scope(|scope| {
        let mut turns = Turns(Vec::new());
        for id in 0..lanes {
            let ((go, rounds), (tell, told)) = (channel(), channel());
            let cx = &cx;
            std::thread::Builder::new()
                .stack_size(2 << 20)
                .spawn_scoped(scope, move || {
                    if let Err(e) = lane::<W>(cx, id, &rounds, &tell) {
                        let _ = tell.send(Err(e));
                    }
                })
                .map_err(|e| e.to_string())?;
            // One after the other, so that each run makes the same volume.
            told.recv().map_err(|e| e.to_string())??;
            turns.0.push((go, told));
        }
        f(&turns, &volume)
    });
    trace::stop_clock(false);
    volume.shutdown();
    out
}

/// One operation: each line once, as written if it was.
fn feed(d: &mut Directory, lane: usize, accesses: &[Access], costs: &Costs) {
    let mut seen: HashMap<usize, Access> = HashMap::new();
    let mut lines = Vec::new();
    for a in accesses {
        for (line, _) in parts(a) {
            let known = seen.entry(line).or_insert_with(|| {
                lines.push(line);
                *a
            });
            if known.kind & WRITE == 0 && a.kind & WRITE != 0 {
                *known = *a;
            }
        }
    }
    for line in lines {
        d.touch(lane, line, &seen[&line], costs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_one_turn_a_round() {
        let mut state = 7;
        let (a, b) = (order(50, &mut state), order(50, &mut state));
        assert_ne!(a, b);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..50));
    }

    #[test]
    fn the_nineteen_are_there() {
        assert_eq!(all().len(), 19);
    }
}
