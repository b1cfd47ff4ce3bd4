//! Starts a cell's workers, as threads or as processes, watches over them, and gathers what they
//! counted.

use super::control::Control;
use super::shared_memory::Shared;
use super::sustained::Span;
use super::tally::{CellOutcome, Tally, merge};
use super::{Plan, timed};
use crate::clock::clock;
use crate::error::{Context, Failure, Res};
use crate::interrupt;
use crate::pin::{allowed, pin};
use crate::target::Target;
use crate::workload::{Cx, Workload};
use std::io::{Read, Write};
use std::time::Duration;

/// Runs workload `W` on `target` once.
pub fn run<T: Target, W: Workload<T>>(target: &mut T, plan: &Plan) -> Res<CellOutcome> {
    clock(); // measured before anything is timed
    target.enter()?;
    let outcome = within::<T, W>(target, plan);
    let left = target.leave();
    let outcome = outcome?;
    left?;
    Ok(outcome)
}

/// Runs the cell in the place that was opened.
fn within<T: Target, W: Workload<T>>(target: &T, plan: &Plan) -> Res<CellOutcome> {
    let cx = Cx { target, workers: plan.workers, params: &plan.params };
    W::shared(&cx)?;
    let span = Span::new(target.helpers());
    let control = Shared::new(Control::new(processors::<T, W>(&cx).len(), plan.warmup, plan.seconds))?;
    let tallies = if plan.processes {
        if !target.processes() {
            return Err(Failure::new("an in-process volume has worker threads only"));
        }
        if plan.sustained {
            return Err(Failure::new("a sustained run has worker threads only"));
        }
        processes::<T, W>(&cx, &control, plan, &span)?
    } else {
        threads::<T, W>(&cx, &control, plan, &span)?
    };
    Ok(merge(&tallies))
}

/// Runs a worker, from its own set-up to its end.
fn worker<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    id: usize,
    plan: &Plan,
    span: &Span,
) -> Res<Tally> {
    let result = match plan.ops {
        Some(ops) => W::prepare(cx, id).and_then(|worker| timed::counted(cx, worker, ops)),
        None => timed::live::<T, W>(cx, control, id, plan, span),
    };
    if result.is_err() {
        control.abort();
    }
    result
}

/// Returns the processors of each worker that is started.
fn processors<T: Target, W: Workload<T>>(cx: &Cx<'_, T>) -> Vec<Vec<usize>> {
    let cpus = allowed();
    debug_assert!(!cpus.is_empty() && cx.workers > 0);
    let theirs = (0..cx.workers).map(|id| cpus[id % cpus.len()]);
    if W::ALONE { vec![theirs.collect()] } else { theirs.map(|cpu| vec![cpu]).collect() }
}

/// Returns the first failure with a cause of its own; that of a worker that only had to stop comes
/// last.
fn first_failure(results: Vec<Res<Tally>>) -> Res<Vec<Tally>> {
    if interrupt::requested() {
        return Err(Failure::interrupted());
    }
    let (good, bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let mut bad: Vec<Failure> = bad.into_iter().filter_map(Result::err).collect();
    bad.sort_by_key(|f| f.interrupted);
    match bad.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(good.into_iter().flatten().collect()),
    }
}

/// Runs the workers as threads.
fn threads<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    plan: &Plan,
    span: &Span,
) -> Res<Vec<Tally>> {
    let results = std::thread::scope(|scope| {
        let handles: Vec<_> = processors::<T, W>(cx)
            .into_iter()
            .enumerate()
            .map(|(id, cpus)| {
                scope.spawn(move || {
                    pin(&cpus);
                    // A panic must free the others from their meeting.
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        worker::<T, W>(cx, control, id, plan, span)
                    }))
                    .unwrap_or_else(|_| {
                        control.abort();
                        Err(Failure::new(format!("worker {id} panicked")))
                    })
                })
            })
            .collect();
        while !handles.iter().all(|h| h.is_finished()) {
            if interrupt::requested() {
                control.abort();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err(Failure::new("a worker panicked"))))
            .collect()
    });
    first_failure(results)
}

/// A forked worker: its process and the pipe that brings its counts.
struct Child {
    pid: rustix::process::Pid,
    pipe: std::io::PipeReader,
}

/// Runs the workers as processes.
fn processes<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    plan: &Plan,
    span: &Span,
) -> Res<Vec<Tally>> {
    let mut children = Vec::new();
    let mut started = Ok(());
    for (id, cpus) in processors::<T, W>(cx).iter().enumerate() {
        match spawn::<T, W>(cx, control, id, cpus, plan, span) {
            Ok(child) => children.push(child),
            Err(e) => {
                control.abort();
                started = Err(e);
                break;
            }
        }
    }
    let readers: Vec<_> = children
        .into_iter()
        .map(|mut child| {
            (
                child.pid,
                std::thread::spawn(move || {
                    let mut text = String::new();
                    child.pipe.read_to_string(&mut text).map(|_| text)
                }),
            )
        })
        .collect();
    while !readers.iter().all(|(_, r)| r.is_finished()) {
        // A worker that ended well has passed the last meeting, and so have all others: an abort is
        // too late to hurt them. One that died leaves the others waiting: the abort frees them.
        if interrupt::requested() || readers.iter().any(|(_, r)| r.is_finished()) {
            control.abort();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut results = Vec::new();
    for (pid, reader) in readers {
        let text = reader.join().ok().and_then(Result::ok).unwrap_or_default();
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        results.push(match serde_json::from_str::<Result<Tally, (String, bool)>>(&text) {
            Ok(Ok(tally)) => Ok(tally),
            Ok(Err((_, true))) => Err(Failure::interrupted()),
            Ok(Err((message, false))) => Err(Failure::new(message)),
            Err(_) => Err(Failure::new("a worker process died")),
        });
    }
    started?;
    first_failure(results)
}

/// Forks a worker.
fn spawn<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    id: usize,
    cpus: &[usize],
    plan: &Plan,
    span: &Span,
) -> Res<Child> {
    let (reader, mut writer) = std::io::pipe().at("making a pipe")?;
    // SAFETY: the child runs only this function: it uses its own copies of the parent's memory
    // (glibc makes its allocator usable after a fork), touches no lock another thread of the parent
    // may hold, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Failure::new(format!("fork: {}", std::io::Error::last_os_error())));
    }
    if pid == 0 {
        drop(reader);
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        pin(cpus);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker::<T, W>(cx, control, id, plan, span)
        }))
        .unwrap_or_else(|_| {
            control.abort();
            Err(Failure::new(format!("worker {id} panicked")))
        })
        .map_err(|f| (f.message, f.interrupted));
        let code = match serde_json::to_vec(&result) {
            Ok(bytes) if writer.write_all(&bytes).is_ok() => 0,
            _ => 1,
        };
        drop(writer);
        // SAFETY: _exit ends the child without running the parent's destructors or buffers, as it
        // must.
        unsafe { libc::_exit(code) };
    }
    match rustix::process::Pid::from_raw(pid) {
        Some(pid) => Ok(Child { pid, pipe: reader }),
        None => Err(Failure::new("fork gave no process id")),
    }
}
