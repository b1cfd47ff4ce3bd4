//! Max figure 8: how long a checkpoint takes by what is dirty, and what readers see of checkpoints
//! that never end. Of the kernel's file systems the checkpoint is `syncfs`.

use crate::error::{Context, Failure, Res, say};
use crate::name::Name;
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::{Session, how};
use crate::registry::select;
use crate::results::{join, quantile};
use crate::target::{BLOCK, Named, OpenTarget, Target, TargetFile, as_bytes, buffer, flags};
use lanefs::Volume;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// MiB that are dirty.
const DIRTY: [u64; 4] = [1, 4, 16, 64];
/// The readers: workloads, and what they are called in the paper.
const READERS: [(&str, &str); 3] = [("DRBL", "read"), ("mdtest-stat", "stat"), ("MRDL", "readdir")];
/// Blocks that are dirtied before each checkpoint beside readers.
const EACH: u64 = 64;

/// The file whose blocks are dirtied beside readers.
const NAME: &str = "lanefs-bench-checkpoints";

/// Somebody who makes checkpoints of a target that another thread works on. Its file is there
/// before the workload begins: that has a directory of its own then.
enum Checkpointer {
    Here(Volume, lanefs::File),
    Mounted(PathBuf, File),
}

impl Checkpointer {
    fn of(named: &Named) -> Res<Checkpointer> {
        Ok(match &named.target {
            OpenTarget::Volume(t) => {
                let volume = t.volume().clone();
                let file = volume.fs().create(NAME).at(NAME)?;
                Checkpointer::Here(volume, file)
            }
            OpenTarget::Dir(t) => {
                let path = t.root().join(NAME);
                let file = File::create_new(&path).at(path.display())?;
                Checkpointer::Mounted(path, file)
            }
        })
    }

    /// Dirties some blocks and makes a checkpoint, again and again, until told to stop. Returns how
    /// many.
    fn endless(&self, stop: &AtomicBool) -> Res<u64> {
        let data = buffer(BLOCK * EACH as usize);
        let mut made = 0;
        // Relaxed: nothing is read because of it.
        while !stop.load(Ordering::Relaxed) {
            match self {
                Checkpointer::Here(volume, file) => {
                    file.write_at(as_bytes(&data), 0).at("dirtying blocks")?;
                    volume.checkpoint().at("a checkpoint")?;
                }
                Checkpointer::Mounted(_, file) => {
                    file.write_all_at(as_bytes(&data), 0).at("dirtying blocks")?;
                    rustix::fs::syncfs(file).at("syncfs")?;
                }
            }
            made += 1;
        }
        Ok(made)
    }

    /// Removes the file.
    fn end(self) -> Res<()> {
        match self {
            Checkpointer::Here(volume, file) => {
                drop(file);
                volume.fs().unlink(NAME).at(NAME)
            }
            Checkpointer::Mounted(path, file) => {
                drop(file);
                std::fs::remove_file(&path).at(path.display())
            }
        }
    }
}

/// Returns the milliseconds of a checkpoint with so many MiB dirty, beside a writer that overwrites
/// a block of its own file all the while.
fn latency<T: Target>(target: &mut T, mib: u64, checkpoint: impl Fn(&T) -> Res<()>) -> Res<f64> {
    target.enter()?;
    let once = || -> Res<f64> {
        let target = &*target;
        let path = |text: &str| -> Name { target.prefix().join(text) };
        let chunk = buffer(1 << 20);
        let file = target.open(&path("dirty"), flags::NEW).at("creating a file")?;
        let own = target.open(&path("own"), flags::NEW).at("creating a file")?;
        own.write_at(&as_bytes(&chunk)[..BLOCK], 0).at("writing")?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let write = || own.write_at(&as_bytes(&chunk)[..BLOCK], 0).is_ok();
                while !stop.load(Ordering::Relaxed) {
                    if !write() {
                        return;
                    }
                }
            });
            let timed = || -> Res<f64> {
                for i in 0..mib {
                    file.write_at(as_bytes(&chunk), i << 20).at("dirtying blocks")?;
                }
                let before = Instant::now();
                checkpoint(target)?;
                Ok(before.elapsed().as_secs_f64() * 1e3)
            };
            let took = timed();
            stop.store(true, Ordering::Relaxed);
            took
        })
    };
    let took = once();
    target.leave()?;
    took
}

/// Runs both parts.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    let mut targets = session.targets(session.medium())?;
    let most = session.size()? >> 23;
    let dirty: Vec<u64> = DIRTY.into_iter().filter(|m| *m <= most.max(1)).collect();
    let mut series = Vec::new();
    for named in &mut targets {
        let how = how(named).to_string();
        let mut points = Vec::new();
        for &mib in &dirty {
            let mut runs = Vec::new();
            for _ in 0..session.args.repeats {
                if crate::interrupt::requested() {
                    return Err(Failure::interrupted());
                }
                runs.push(match &mut named.target {
                    OpenTarget::Volume(t) => latency(t, mib, |t| t.volume().checkpoint().at("a checkpoint"))?,
                    OpenTarget::Dir(t) => latency(t, mib, |t| t.quiesce())?,
                });
            }
            points.push(Point::of(mib as f64, &runs));
        }
        say(format_args!("checkpoints of {} are done", named.name))?;
        series.push(Series { name: named.name.clone(), how, predicted: false, points });
    }
    session.out.panels.push(Panel {
        name: "a".to_string(),
        title: "a checkpoint by what is dirty, beside a writer (the kernel's: syncfs)".to_string(),
        drawn: Drawn::Lines,
        x: "MiB dirty".to_string(),
        y: "milliseconds".to_string(),
        series,
    });
    session.keep()?;
    readers(session, &mut targets)
}

/// Readers alone, then beside checkpoints that never end.
fn readers(session: &mut Session<'_>, targets: &mut [Named]) -> Res<()> {
    // A processor is left to who makes the checkpoints.
    let cpus = crate::pin::allowed().len().max(1);
    let workers = cpus.saturating_sub(1).max(1);
    let plan = session.cells().plan(workers, false);
    let names: Vec<String> = READERS.iter().map(|(w, _)| w.to_string()).collect();
    let entries = select(&names)?;
    for quiet in [true, false] {
        let mut series = Vec::new();
        for named in targets.iter_mut() {
            let how = how(named).to_string();
            let mut points = Vec::new();
            for (at, entry) in entries.iter().enumerate() {
                let mut runs = Vec::new();
                for _ in 0..session.args.repeats {
                    if crate::interrupt::requested() {
                        return Err(Failure::interrupted());
                    }
                    let checkpointer = if quiet { None } else { Some(Checkpointer::of(named)?) };
                    let stop = AtomicBool::new(false);
                    let done = std::thread::scope(|scope| {
                        let beside = checkpointer.as_ref().map(|c| {
                            scope.spawn(|| {
                                // The readers have the first processors.
                                crate::pin::pin(&crate::pin::allowed().split_off(workers.min(cpus - 1)));
                                c.endless(&stop)
                            })
                        });
                        let done = entry.run(&mut named.target, &plan);
                        stop.store(true, Ordering::Relaxed);
                        let panicked = |_| Err("a thread panicked".to_string().into());
                        let made = beside.map(|b| b.join().unwrap_or_else(panicked));
                        (done, made)
                    });
                    checkpointer.map_or(Ok(()), Checkpointer::end)?;
                    if let Some(made) = done.1
                        && made? == 0
                    {
                        session
                            .out
                            .lacks(format!("checkpoints of {}", named.name), "none ended beside the readers");
                    }
                    runs.push(quantile(&join(done.0?.latencies), 0.999) as f64 / 1e3);
                }
                points.push(Point::bar(at, READERS[at].1, &runs));
            }
            say(format_args!(
                "readers of {} {} are done",
                named.name,
                if quiet { "alone" } else { "beside checkpoints" }
            ))?;
            series.push(Series { name: named.name.clone(), how, predicted: false, points });
        }
        let (name, what) =
            if quiet { ("b-alone", "alone") } else { ("b-beside", "beside checkpoints that never end") };
        session.out.panels.push(Panel {
            name: name.to_string(),
            title: format!("p99.9 of {workers} reader(s), {what}"),
            drawn: Drawn::Bars,
            x: "call".to_string(),
            y: "microseconds".to_string(),
            series,
        });
        session.keep()?;
    }
    grown(session);
    Ok(())
}

/// Draws how much the tails grew.
fn grown(session: &mut Session<'_>) {
    let find = |name: &str| session.out.panels.iter().find(|p| p.name == name);
    let (Some(alone), Some(beside)) = (find("b-alone"), find("b-beside")) else { return };
    let series = alone.series.iter().zip(&beside.series).map(|(a, b)| {
        debug_assert_eq!(a.name, b.name, "the same targets in the same order");
        let points = a.points.iter().zip(&b.points).filter(|(p, _)| p.y > 0.0).map(|(p, q)| {
            let label = p.label.clone().unwrap_or_default();
            Point::bar(p.x as usize, &label, &[(q.y / p.y - 1.0) * 100.0])
        });
        Series { points: points.collect(), ..a.clone() }
    });
    let panel = Panel {
        name: "b".to_string(),
        title: "growth of p99.9 beside checkpoints that never end".to_string(),
        drawn: Drawn::Bars,
        x: "call".to_string(),
        y: "percent".to_string(),
        series: series.collect(),
    };
    session.out.panels.push(panel);
}
