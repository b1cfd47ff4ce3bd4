//! The phases: fill, overwrite, and the workloads of the papers in what is left.

use super::StoreWork;
use super::metered::{Metered, MeteredFile};
use crate::clock::clock;
use crate::error::{Context, Failure, Op, Res};
use crate::interrupt;
use crate::rng::Rng;
use crate::runner::{CellOutcome, Plan, run};
use crate::target::{BLOCK, Block, DirTarget, Target, TargetFile, VolumeTarget, as_bytes, buffer, flags};
use crate::workload::Params;
use crate::workload::papers::fileserver::Fileserver;
use crate::workload::papers::varmail::Varmail;
use hdrhistogram::Histogram;

/// Bytes of a file that fills the volume, but for the last one.
const FILE: u64 = 16 << 20;
/// Bytes of a file of which it is known how long it lives, and the share of the volume that those
/// take which are short-lived.
const LIVING: usize = 256 << 10;
const SHORT_SHARE: f64 = 0.02;
/// Bytes that fill it with each write.
const CHUNK: usize = 1 << 20;
/// Bytes of the fileserver's and varmail's files, and of both together the most that they grow to.
const FILESERVER: f64 = 10_000.0 * 131_072.0;
const VARMAIL: f64 = 1000.0 * 16_384.0 * 2.0;
/// The part of them that a worker alone makes in any case.
const LEAST_SHARE: f64 = 0.01;
/// The longest latency that is recorded as it is: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// The wishes that phases depend on.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Workers of the phases behind the filling.
    pub workers: usize,
    /// How often the volume is overwritten.
    pub passes: f64,
    /// Writes between two fsyncs of a worker; 0: none.
    pub sync_every: u64,
    /// Seconds of fileserver and varmail.
    pub seconds: f64,
    /// Seconds after which overwriting ends in any case.
    pub limit: f64,
    /// The per cent of the overwrites that go to the rest of the blocks, if not to all alike.
    pub skew: Option<u8>,
    /// Files say how long they will live.
    pub hints: bool,
}

/// The outcome of a phase.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub ops: u64,
    pub ops_per_s: f64,
    pub p50_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
    /// Bytes that were written by the user and to the device.
    pub user_bytes: u64,
    pub device_bytes: u64,
    /// What the store did, if it is one in this process.
    pub store: Option<StoreWork>,
    /// Why the phase ended before its time.
    pub stopped: Option<String>,
}

/// A file system that is being filled.
pub trait Filled {
    /// What its files are made on.
    type T: Target;
    /// Returns the place of the files that fill it.
    fn place(&self) -> &Metered<Self::T>;
    /// Returns the bytes that its device was asked to write so far.
    fn device_bytes(&self) -> Res<u64>;
    /// Returns the work of its store so far, if that is in this process.
    fn store(&self) -> Res<Option<StoreWork>>;
    /// Runs the workload of this name.
    fn run(&mut self, workload: &str, plan: &Plan) -> Res<CellOutcome>;
}

/// A volume in this process. Its workloads run beside the files that fill it.
pub struct FilledVolume(pub Metered<VolumeTarget>);

impl Filled for FilledVolume {
    type T = VolumeTarget;
    fn place(&self) -> &Metered<VolumeTarget> {
        &self.0
    }
    fn device_bytes(&self) -> Res<u64> {
        let traffic = self.0.traffic().ok_or_else(|| Failure::new("nobody counts what the device gets"))?;
        Ok(traffic.bytes)
    }
    fn store(&self) -> Res<Option<StoreWork>> {
        let report = self.0.inner().volume().report().at("the figures of the volume")?.store;
        let blocks = |bytes: u64| bytes / BLOCK as u64;
        let (c, w) = (report.checkpoints, report.written);
        Ok(Some(StoreWork {
            checkpoints: c.folding + c.in_place + c.failed,
            checkpoint_s: c.total_ns as f64 / 1e9,
            segments_cleaned: report.cleaner.segments,
            blocks_moved: report.cleaner.blocks_moved,
            data_blocks: blocks(w.data_bytes),
            tree_blocks: blocks(w.tree_bytes),
            log_blocks: blocks(w.log_bytes),
        }))
    }
    fn run(&mut self, workload: &str, plan: &Plan) -> Res<CellOutcome> {
        workload_on(&mut self.0, workload, plan)
    }
}

/// A mounted file system on a loop device.
pub struct FilledMount {
    place: Metered<DirTarget>,
    workloads: Metered<DirTarget>,
    device: String,
}

impl FilledMount {
    /// Takes two places of one file system, and the name of its device below `/sys/block`.
    pub fn new(place: DirTarget, workloads: DirTarget, device: String) -> Res<FilledMount> {
        let mut place = Metered::new(place);
        let workloads = place.beside(workloads);
        place.enter()?;
        Ok(FilledMount { place, workloads, device })
    }
}

impl Filled for FilledMount {
    type T = DirTarget;
    fn place(&self) -> &Metered<DirTarget> {
        &self.place
    }
    fn device_bytes(&self) -> Res<u64> {
        let path = format!("/sys/block/{}/stat", self.device);
        let text = std::fs::read_to_string(&path).at(&path)?;
        sectors_written(&text)
            .and_then(|n| n.checked_mul(512))
            .ok_or_else(|| Failure::new(format!("{path} does not tell what was written: {text}")))
    }
    fn store(&self) -> Res<Option<StoreWork>> {
        Ok(None)
    }
    fn run(&mut self, workload: &str, plan: &Plan) -> Res<CellOutcome> {
        workload_on(&mut self.workloads, workload, plan)
    }
}

/// Returns the seventh figure of a block device's statistics: sectors of 512 bytes.
fn sectors_written(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse().ok()
}

fn workload_on<T: Target>(target: &mut Metered<T>, workload: &str, plan: &Plan) -> Res<CellOutcome> {
    match workload {
        "fileserver" => run::<_, Fileserver>(target, plan),
        _ => run::<_, Varmail>(target, plan),
    }
}

fn histogram() -> Res<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 3).at("a histogram")
}

/// Puts together what a phase did.
struct Span {
    user: u64,
    device: u64,
    store: Option<StoreWork>,
    started: u64,
}

impl Span {
    fn begin<F: Filled>(on: &F) -> Res<Span> {
        let (user, device, store) = (on.place().written(), on.device_bytes()?, on.store()?);
        Ok(Span { user, device, store, started: clock().now() })
    }

    /// Ends the phase: all of it is on the device before the clock stops.
    fn end<F: Filled>(self, on: &F, ops: u64, latencies: &Histogram<u64>) -> Res<Done> {
        on.place().quiesce()?;
        let seconds = clock().seconds(clock().now().saturating_sub(self.started));
        debug_assert_eq!(ops, latencies.len(), "each operation is timed");
        Ok(Done {
            ops,
            ops_per_s: if seconds > 0.0 { ops as f64 / seconds } else { 0.0 },
            p50_ns: latencies.value_at_quantile(0.5),
            p999_ns: latencies.value_at_quantile(0.999),
            max_ns: latencies.max(),
            user_bytes: on.place().written().saturating_sub(self.user),
            device_bytes: on.device_bytes()?.saturating_sub(self.device),
            store: on.store()?.zip(self.store).map(|(now, before)| now.since(before)),
            stopped: None,
        })
    }
}

/// Does something and notes how long it took.
fn timed<R>(latencies: &mut Histogram<u64>, f: impl FnOnce() -> R) -> R {
    let before = clock().now();
    let done = f();
    let ns = clock().seconds(clock().now().saturating_sub(before)) * 1e9;
    latencies.saturating_record(ns.max(1.0) as u64);
    done
}

/// Fills a file system up to this share of what it offers when it is empty; an operation is a write
/// of 1 MiB. Returns the files' names and sizes as well.
pub fn fill<F: Filled>(on: &F, percent: f64) -> Res<(Done, Vec<(String, u64)>)> {
    let place = on.place();
    let offered = place.statfs().at("statfs")?;
    let stays = (offered as f64 * (1.0 - percent / 100.0)) as u64;
    let data = buffer(CHUNK);
    let mut latencies = histogram()?;
    let mut files: Vec<(String, u64)> = Vec::new();
    let (mut ops, mut stopped) = (0, None);
    let span = Span::begin(on)?;
    'files: loop {
        let name = format!("fill{}", files.len());
        let path = place.prefix().join(&name);
        // What a file system has promised it may tell only when it has written it.
        if place.statfs().at("statfs")? <= stays {
            place.quiesce()?;
        }
        let free = place.statfs().at("statfs")?;
        let wanted = (free.saturating_sub(stays) * BLOCK as u64).min(FILE) / BLOCK as u64 * BLOCK as u64;
        if wanted == 0 {
            break;
        }
        let file = match place.open(&path, flags::NEW | flags::DATA) {
            Err(e) if e.0 == libc::ENOSPC => {
                stopped = Some(format!("{e} after {ops} writes"));
                break;
            }
            file => file.at(format!("creating {name}"))?,
        };
        files.push((name, 0));
        let mut at = 0;
        while at < wanted {
            stop_if_asked()?;
            let part = (wanted - at).min(CHUNK as u64) as usize;
            let done = timed(&mut latencies, || file.write_at(&as_bytes(&data)[..part], at));
            ops += 1;
            match done {
                Ok(n) if n == part => at += n as u64,
                Ok(n) => stopped = Some(format!("{n} of {part} bytes after {ops} writes")),
                Err(e) if e.0 == libc::ENOSPC => stopped = Some(format!("{e} after {ops} writes")),
                Err(e) => return Err(e).at("filling"),
            }
            if let Some(last) = files.last_mut() {
                last.1 = at;
            }
            if stopped.is_some() {
                break 'files;
            }
        }
    }
    let done = Done { stopped, ..span.end(on, ops, &latencies)? };
    Ok((done, files))
}

fn stop_if_asked() -> Res<()> {
    if interrupt::requested() { Err(Failure::interrupted()) } else { Ok(()) }
}

/// What a worker that overwrites did.
struct Overwritten {
    latencies: Histogram<u64>,
    stopped: Option<String>,
}

/// Overwrites blocks of 4 KiB at random, so many times the bytes of the volume in all.
pub fn overwrite<F: Filled>(on: &F, files: &[(String, u64)], bytes: u64, wishes: &Wishes) -> Res<Done> {
    let files: Vec<_> = files.iter().filter(|f| f.1 >= BLOCK as u64).collect();
    if files.is_empty() {
        return Err(Failure::new("nothing was filled that could be overwritten"));
    }
    let place = on.place();
    let open = |f: &&(String, u64)| -> Res<(MeteredFile<_>, u64)> {
        let file = place.open(&place.prefix().join(&f.0), flags::RW | flags::DATA).at(&f.0)?;
        Ok((file, f.1 / BLOCK as u64))
    };
    let files = files.iter().map(open).collect::<Res<Vec<_>>>()?;
    let each = (bytes as f64 * wishes.passes) as u64 / BLOCK as u64 / wishes.workers as u64;
    let span = Span::begin(on)?;
    let deadline = span.started + clock().ticks(wishes.limit);
    let work = |id: usize| overwriter(&files, each, id, deadline, wishes);
    let workers: Vec<Res<Overwritten>> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..wishes.workers).map(|id| s.spawn(move || work(id))).collect();
        let joined = workers.into_iter().map(|w| w.join());
        joined.map(|w| w.unwrap_or_else(|_| Err(Failure::new("a worker panicked")))).collect()
    });
    let mut all = histogram()?;
    let mut stopped = None;
    for worker in workers {
        let worker = worker?;
        all.add(&worker.latencies).at("adding histograms up")?;
        stopped = stopped.or(worker.stopped);
    }
    let ops = all.len();
    Ok(Done { stopped, ..span.end(on, ops, &all)? })
}

/// Does a worker's part of it.
fn overwriter<F: TargetFile>(
    files: &[(F, u64)],
    writes: u64,
    id: usize,
    deadline: u64,
    wishes: &Wishes,
) -> Res<Overwritten> {
    let sync_every = wishes.sync_every;
    // The first block of each file, counted through all of them.
    let starts: Vec<u64> = files
        .iter()
        .scan(0, |next, f| {
            *next += f.1;
            Some(*next - f.1)
        })
        .collect();
    let blocks: u64 = files.iter().map(|f| f.1).sum();
    debug_assert!(starts.first() == Some(&0) && blocks > 0, "nothing to overwrite");
    let mut rng = Rng::new(id as u64 + 1);
    let mut block = Block::new(id);
    let mut did = Overwritten { latencies: histogram()?, stopped: None };
    for n in 1..=writes {
        stop_if_asked()?;
        let at = target_block(&mut rng, blocks, wishes.skew);
        let n_file = starts.partition_point(|&s| s <= at) - 1;
        let (file, in_file) = (&files[n_file].0, at - starts[n_file]);
        block.0[..8].copy_from_slice(&n.to_ne_bytes());
        let is_synced = sync_every > 0 && n % sync_every == 0;
        let done: Op<usize> = timed(&mut did.latencies, || {
            let done = file.write_at(&block.0, in_file * BLOCK as u64)?;
            if is_synced {
                file.sync()?;
            }
            Ok(done)
        });
        match done {
            Ok(BLOCK) => {}
            Ok(short) => did.stopped = Some(format!("{short} of {BLOCK} bytes in write {n} of {writes}")),
            Err(e) => did.stopped = Some(format!("{e} in write {n} of {writes}")),
        }
        if did.stopped.is_none() && clock().now() > deadline {
            did.stopped = Some(format!("its time was over after write {n} of {writes}"));
        }
        if did.stopped.is_some() {
            break;
        }
    }
    Ok(did)
}

/// Draws a block. With `skew` that per cent of the draws hit the same few, which are the rest of
/// each hundred: with 90 nine of ten writes go to a tenth of the blocks.
fn target_block(rng: &mut Rng, blocks: u64, skew: Option<u8>) -> u64 {
    let Some(skew) = skew else { return rng.below(blocks) };
    let often = 100 - u64::from(skew);
    let range = if rng.below(100) < u64::from(skew) { 0..often } else { often..100 };
    let in_hundred = range.start + rng.below(range.end - range.start);
    (rng.below(blocks.div_ceil(100)) * 100 + in_hundred).min(blocks - 1)
}

/// Makes files, half of which die soon, in a file system that is empty before and kept as full as
/// asked. Each turn writes a short-lived file and a long-lived one and syncs both; it removes the
/// oldest short-lived one and any of the long-lived ones. What fills it is not counted.
/// `bytes`: of the volume; so many times as many are written.
pub fn lives<F: Filled>(on: &F, percent: f64, bytes: u64, wishes: &Wishes) -> Res<Done> {
    let place = on.place();
    let offered = place.statfs().at("statfs")?;
    let stays = (offered as f64 * (1.0 - percent / 100.0)) as u64;
    let data = buffer(LIVING);
    let (mut rng, mut made) = (Rng::new(1), 0);
    let mut write = |is_short: bool| -> Res<String> {
        stop_if_asked()?;
        made += 1;
        let name = format!("{}{made}", if is_short { "short" } else { "long" });
        let file = place.open(&place.prefix().join(&name), flags::NEW | flags::DATA).at(&name)?;
        if wishes.hints {
            file.set_life(is_short).at("the life of a file")?;
        }
        match file.write_at(as_bytes(&data), 0) {
            Ok(LIVING) => file.sync().at(&name)?,
            Ok(n) => return Err(Failure::new(format!("{n} bytes of {LIVING} were written to {name}"))),
            Err(e) => return Err(e).at(&name),
        }
        Ok(name)
    };
    let remove = |name: &str| place.unlink(&place.prefix().join(name)).at(name);
    let most = (bytes as f64 * SHORT_SHARE) as usize / LIVING + 1;
    let mut short = (0..most).map(|_| write(true)).collect::<Res<std::collections::VecDeque<_>>>()?;
    let mut long = Vec::new();
    while place.statfs().at("statfs")? > stays {
        long.push(write(false)?);
    }
    if long.is_empty() {
        return Err(Failure::new("it is too full: `lives` makes the files that fill it"));
    }
    place.quiesce()?;
    let turns = (bytes as f64 * wishes.passes) as usize / (2 * LIVING);
    let mut latencies = histogram()?;
    let span = Span::begin(on)?;
    let deadline = span.started + clock().ticks(wishes.limit);
    let mut stopped = None;
    for turn in 1..=turns {
        if let Some(oldest) = short.pop_front() {
            remove(&oldest)?;
        }
        short.push_back(timed(&mut latencies, || write(true))?);
        let any = rng.below(long.len() as u64) as usize;
        remove(&long[any])?;
        long[any] = timed(&mut latencies, || write(false))?;
        if clock().now() > deadline {
            stopped = Some(format!("its time was over after turn {turn} of {turns}"));
            break;
        }
    }
    Ok(Done { stopped, ..span.end(on, latencies.len(), &latencies)? })
}

/// Runs a workload of the papers in what is left, as large as half of that lets it be.
pub fn workload<F: Filled>(on: &mut F, name: &str, wishes: &Wishes) -> Res<Done> {
    let free = on.place().statfs().at("statfs")? as f64 * BLOCK as f64;
    let full = if name == "fileserver" { FILESERVER } else { VARMAIL };
    if free / 2.0 < full * LEAST_SHARE {
        return Err(Failure::new("too little is left for its files; a larger --size leaves more"));
    }
    let plan = Plan {
        workers: wishes.workers,
        seconds: wishes.seconds,
        warmup: 0.0,
        processes: false,
        ops: None,
        sustained: false,
        params: Params { scale: (free / 2.0 / full).clamp(0.000_001, 1.0), ..Params::default() },
    };
    let span = Span::begin(on)?;
    let outcome = on.run(name, &plan)?;
    let mut latencies = histogram()?;
    outcome.latencies.iter().for_each(|&(ns, n)| latencies.saturating_record_n(ns.max(1), n));
    // The set-up and what was removed at the end are in these two, on both sides.
    Ok(Done { ops_per_s: outcome.rate, ops: outcome.ops, ..span.end(on, latencies.len(), &latencies)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs::{Volume, WriteLife};

    const SIZE: u64 = 64 << 20;

    /// A volume in memory of which the test has hold, and whose device nobody counts.
    struct Held(Metered<VolumeTarget>);

    impl Filled for Held {
        type T = VolumeTarget;
        fn place(&self) -> &Metered<VolumeTarget> {
            &self.0
        }
        fn device_bytes(&self) -> Res<u64> {
            Ok(0)
        }
        fn store(&self) -> Res<Option<StoreWork>> {
            Ok(None)
        }
        fn run(&mut self, workload: &str, plan: &Plan) -> Res<CellOutcome> {
            workload_on(&mut self.0, workload, plan)
        }
    }

    fn held() -> (Volume, Held) {
        let volume = Volume::in_memory(SIZE).unwrap();
        let target = VolumeTarget::of(volume.clone());
        (volume, Held(Metered::new(target)))
    }

    fn wishes() -> Wishes {
        Wishes {
            workers: 1,
            passes: 0.25,
            sync_every: 0,
            seconds: 1.0,
            limit: 3600.0,
            skew: None,
            hints: false,
        }
    }

    #[test]
    fn lives_keep_as_many_files_as_they_made_and_say_their_lives_if_asked() {
        for hints in [false, true] {
            let (volume, on) = held();
            let done = lives(&on, 50.0, SIZE, &Wishes { hints, ..wishes() }).unwrap();
            // A quarter of the volume, by turns of one file of either kind.
            let turns = SIZE / 4 / (2 * LIVING as u64);
            assert_eq!((done.ops, done.stopped), (2 * turns, None));
            assert_eq!(done.user_bytes, 2 * turns * LIVING as u64);
            let fs = volume.fs();
            let names: Vec<String> =
                fs.read_dir("/").unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            let count = |kind: &str| names.iter().filter(|n| n.starts_with(kind)).count() as u64;
            assert_eq!(count("short"), (SIZE as f64 * SHORT_SHARE) as u64 / LIVING as u64 + 1);
            assert!(
                count("long") > turns && names.len() as u64 == count("long") + count("short"),
                "{names:?}"
            );
            // The short-lived ones are the last that were made of their kind.
            let made = |n: &String| n.trim_start_matches("short").parse::<u64>().unwrap();
            let oldest = names.iter().filter(|n| n.starts_with("short")).map(made).min().unwrap();
            assert!(oldest > names.len() as u64, "short{oldest} is there since the beginning");
            // Lives are said while a file is open, and kept as long as its inode is in memory.
            for name in &names {
                let file = fs.open(name, &lanefs::OpenOptions::new()).unwrap();
                assert_eq!(file.stat().unwrap().size, LIVING as u64);
                let life = if name.starts_with("short") { WriteLife::Short } else { WriteLife::Extreme };
                assert_eq!(file.write_life(), if hints { life } else { WriteLife::NotSet }, "{name}");
            }
        }
    }

    #[test]
    fn skewed_overwrites_hit_a_tenth_of_the_blocks_and_leave_most_of_the_rest() {
        let mut touched = [0.0, 0.0];
        for (touched, skew) in touched.iter_mut().zip([Some(90), None]) {
            let (volume, on) = held();
            let (_, files) = fill(&on, 50.0).unwrap();
            let bytes: u64 = files.iter().map(|f| f.1).sum();
            let done = overwrite(&on, &files, bytes, &Wishes { skew, passes: 1.0, ..wishes() }).unwrap();
            assert_eq!((done.ops, done.user_bytes, done.stopped), (bytes / BLOCK as u64, bytes, None));
            let content: Vec<u8> = files.iter().flat_map(|f| volume.fs().read(&f.0).unwrap()).collect();
            let filled = as_bytes(&buffer(BLOCK))[8];
            // Block by block in the order in which they are drawn: the cold ninety of each hundred.
            let cold: Vec<bool> = content
                .chunks(BLOCK)
                .enumerate()
                .filter(|(n, _)| n % 100 >= 10)
                .map(|(_, block)| block[8] != filled)
                .collect();
            *touched = cold.iter().filter(|t| **t).count() as f64 / cold.len() as f64;
        }
        // As many draws as blocks: of all alike 1 - 1/e are hit, of the cold ones with a tenth of
        // the draws 1 - e^(-1/9). The draws are the same each time.
        assert!((0.09..0.13).contains(&touched[0]), "{touched:?}");
        assert!((0.60..0.66).contains(&touched[1]), "{touched:?}");
    }

    #[test]
    fn every_block_can_be_drawn_and_none_behind_the_last() {
        let mut rng = Rng::new(1);
        for (skew, blocks) in [(None, 7), (Some(90), 7), (Some(90), 250)] {
            let mut hits = vec![0; blocks as usize];
            (0..100_000).for_each(|_| hits[target_block(&mut rng, blocks, skew) as usize] += 1);
            assert!(hits.iter().all(|n| *n > 0), "{skew:?}: {hits:?}");
        }
    }

    #[test]
    fn the_seventh_figure_is_what_was_written() {
        let stat = "    1090        0     6208       12       33       44      8200       19        0\n";
        assert_eq!(sectors_written(stat), Some(8200));
        assert_eq!(sectors_written("1 2 3"), None);
    }
}
