//! Crashes of several threads at once. Each thread works in a directory of its own, beside a model
//! of its own, while another makes rounds of background work and checkpoints. What the threads do
//! commutes, so each has its own oracle for its own directory; that they share lanes' epochs, logs,
//! flushes and checkpoints is what is tested.

use super::*;
use lanefs::Volume;
use lanefs_lab_model::op::Name;
use lanefs_lab_model::target::volume::VolumeTarget;
use std::sync::atomic::{AtomicBool, Ordering};
use system::LaneFs;

/// A directory of a target as if it were the root. Paths must not climb out of it.
#[derive(Debug)]
pub struct Prefixed<T> {
    /// The target.
    pub inner: T,
    /// The directory, without a slash at its end.
    pub prefix: &'static str,
}

impl<T: Target> Target for Prefixed<T> {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        let mut op = op.clone();
        let prefix = self.prefix.as_bytes();
        let put = |p: &mut Name| {
            if p.0.first() == Some(&b'/') {
                p.0.splice(0..0, prefix.iter().copied());
            }
        };
        match &mut op {
            Op::Symlink { target: a, path: b }
            | Op::Link { old: a, new: b }
            | Op::Rename { old: a, new: b, .. } => {
                put(a);
                put(b);
            }
            Op::Open { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Rmdir { path }
            | Op::Unlink { path }
            | Op::LinkFd { new: path, .. }
            | Op::Readlink { path }
            | Op::Readdir { path }
            | Op::Stat { path }
            | Op::Lstat { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::Truncate { path, .. }
            | Op::FsyncDir { path }
            | Op::FsyncPath { path }
            | Op::Setxattr { path, .. }
            | Op::Getxattr { path, .. }
            | Op::Listxattr { path }
            | Op::Removexattr { path, .. }
            | Op::Access { path, .. } => put(path),
            _ => {}
        }
        let out = self.inner.call(who, &op);
        match out {
            Outcome::Bytes(b) if matches!(op, Op::Readlink { .. }) && b.starts_with(prefix) => {
                Outcome::Bytes(b[prefix.len()..].to_vec())
            }
            // A symbolic link is longer than in the model by the prefix of its absolute target.
            Outcome::Attr(mut a) if a.mode & libc::S_IFMT == libc::S_IFLNK => {
                if let Op::Lstat { path } | Op::Stat { path } = &op
                    && let Outcome::Bytes(t) =
                        self.inner.call(Who::Root, &Op::Readlink { path: path.clone() })
                    && t.starts_with(prefix)
                {
                    a.size = a.size.map(|s| s - prefix.len() as u64);
                }
                Outcome::Attr(a)
            }
            o => o,
        }
    }
}

/// A target that is somebody else's.
pub(crate) struct Borrowed<'a>(pub(crate) &'a mut dyn Target);

impl Target for Borrowed<'_> {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        self.0.call(who, op)
    }
}

pub(crate) const HOMES: [&str; 4] = ["/t0", "/t1", "/t2", "/t3"];

/// Checks the result of background work on a device without faults: it may fail only because space
/// is short.
pub(crate) fn must_work(done: lanefs::Result<()>) -> Result<(), Violation> {
    match done {
        Err(e) if e.errno() != libc::ENOSPC => Err(broken("answer", format!("background work: {e}"))),
        _ => Ok(()),
    }
}

/// Runs one sequence of steps per thread (at most four) at once on LaneFS, and checks the crash
/// states.
pub fn run_threads(
    system: &LaneFs,
    work: &[Vec<Step>],
    config: &Config,
    counts: &mut Counts,
) -> Result<(), Box<Failure>> {
    let all: Vec<Step> = work.concat();
    let fail = |v: Violation| failure(v, "running several threads", (0, 0), &all);
    let bases = formatted(system, config.blocks, config.devices).map_err(fail)?;
    let recorder = Recorder::new();
    let devices = recorded(&recorder, &bases);
    let ready = guarded(|| {
        let volume = Volume::open_devices(devices, &system.mount)
            .map_err(|e| broken("answer", format!("open: {e}")))?;
        let mut t = VolumeTarget::new(volume.clone(), None);
        let homes = HOMES.iter().take(work.len()).map(|h| Op::Mkdir { path: (*h).into(), mode: 0o755 });
        for op in homes.chain([Op::Sync]) {
            if let Outcome::Fail(e) = t.call(Who::Root, &op) {
                return Err(broken("answer", format!("{op:?}: errno {e}")));
            }
        }
        Ok(volume)
    });
    let volume = ready.map_err(fail)?;
    let start = recorder.mark("");
    let stop = AtomicBool::new(false);
    let driven: Vec<Result<Driven, (usize, Violation)>> = std::thread::scope(|s| {
        let threads: Vec<_> = work
            .iter()
            .zip(HOMES)
            .map(|(steps, prefix)| {
                let inner = VolumeTarget::new(volume.clone(), None);
                let recorder = &recorder;
                s.spawn(move || drive(&mut Pair::new(Prefixed { inner, prefix }), steps, recorder))
            })
            .collect();
        let maintenance = s.spawn(|| {
            // Relaxed: a hint to stop.
            for round in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                must_work(if round % 3 == 2 { volume.checkpoint() } else { volume.tick() })?;
                std::thread::yield_now();
            }
            Ok(())
        });
        let lost = || Err((0, broken("panic", "a thread died".into())));
        let done: Vec<_> = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect();
        stop.store(true, Ordering::Relaxed);
        let died = |_| Err(broken("panic", "the maintenance thread died".into()));
        match maintenance.join().unwrap_or_else(died) {
            Ok(()) => done,
            Err(v) => vec![Err((0, v))],
        }
    });
    let log = recorder.log();
    counts.cleaned += volume.cleaned().segments;
    counts.reused += reused(&log);
    volume.shutdown();
    drop(volume);
    let driven: Vec<Driven> = driven.into_iter().collect::<Result<_, _>>().map_err(|(_, v)| fail(v))?;
    let oracles: Vec<Oracle> = driven.iter().map(|d| Oracle::new(&d.history, system.mount.order)).collect();
    let mut answers: Vec<u64> = driven.iter().flat_map(|d| d.answered_at.iter().copied()).collect();
    answers.sort_unstable();
    let mut seen = HashSet::new();
    let mut failed = None;
    let before = counts.states;
    enumerate(&log, &bases, &answers, start, &config.levels, &mut |state: State| {
        let hash = state.hash();
        if !seen.insert(hash) {
            return true;
        }
        counts.state(hash);
        counts.recovered += 1;
        let devices = plain(&state.devices);
        let verdict = guarded(|| {
            let mut live =
                system.open(devices.clone()).map_err(|e| broken("R1", format!("recovery failed: {e}")))?;
            for ((oracle, d), prefix) in oracles.iter().zip(&driven).zip(HOMES) {
                let found = observe(&mut Prefixed { inner: Borrowed(&mut *live), prefix })?;
                let answered = d.answered_at.iter().take_while(|a| **a < state.at).count();
                let called = d.called_at.iter().take_while(|a| **a < state.at).count();
                oracle.check(answered, called, &found).map_err(|v| Violation {
                    rule: v.rule,
                    what: format!("{prefix} ({answered} answered, {called} called): {}", v.what),
                })?;
            }
            live.kill();
            Ok(())
        });
        let verdict = verdict.and_then(|()| checked(system, devices, counts));
        counts.checks += work.len() as u64;
        if let Err(v) = verdict {
            failed = Some(failure(v, &format!("crash at event {}, {}", state.at, state.how), (0, 0), &all));
            return false;
        }
        counts.states - before < config.limit
    });
    failed.map_or(Ok(()), Err)
}
