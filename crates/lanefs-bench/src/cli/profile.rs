//! Instructions of an operation, counted by valgrind, and the transfers of cache lines that the
//! coherence model found.

use crate::error::{Context, Failure, Res};
use crate::registry::select;
use crate::runner::Plan;
use crate::target::{Memory, TargetSpec};
use crate::workload::Params;
use std::path::Path;
use std::process::{Command, Stdio};

/// Arguments of `count`, which `cost --instructions` runs under valgrind.
#[derive(Debug, clap::Args)]
pub struct CountArgs {
    /// The workload.
    #[arg(long)]
    pub workload: String,
    /// How many operations.
    #[arg(long)]
    pub ops: u64,
}

/// Does the operations, in a volume whose own threads are off: they would do some of the work now
/// and then, and some not.
pub(super) fn count(args: &CountArgs) -> Res<i32> {
    let plan = Plan {
        workers: 1,
        seconds: 0.0,
        warmup: 0.0,
        processes: false,
        sustained: false,
        ops: Some(args.ops),
        // A stock as large as it is otherwise takes long under valgrind.
        params: Params { scale: 0.125, ..Params::default() },
    };
    let memory = Memory { background: false, ..Memory::new(1 << 30) };
    let mut target = TargetSpec::Memory(memory.counted()).open(false)?;
    for entry in select(std::slice::from_ref(&args.workload))? {
        entry.run(&mut target, &plan)?;
    }
    Ok(0)
}

/// Counts the instructions of one operation. `front`: the arguments of this program before `count`.
pub(super) fn instructions(workload: &str, ops: u64, front: &[&str]) -> Res<f64> {
    let out = std::env::temp_dir().join(format!("lanefs-callgrind-{}.out", std::process::id()));
    let mut place = std::ffi::OsString::from("--callgrind-out-file=");
    place.push(&out);
    let program = std::env::current_exe().at("finding this program")?;
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*counted_round*"])
        .arg(place)
        .arg(program)
        .args(front)
        .args(["count", "--workload", workload, "--ops", &ops.to_string()])
        .stdin(Stdio::null())
        .output()
        .at("running valgrind, which is needed for this");
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    let done = done?;
    if !done.status.success() {
        return Err(Failure::new(format!("{workload}: {}", String::from_utf8_lossy(&done.stderr))));
    }
    match total(&text.at(out.display())?) {
        Some(n) if n > 0 => Ok(n as f64 / ops as f64),
        _ => Err(Failure::new(format!("{workload}: valgrind counted nothing"))),
    }
}

/// Returns the sum in callgrind's file.
fn total(text: &str) -> Option<u64> {
    text.lines()
        .rev()
        .find_map(|l| l.strip_prefix("totals: ").or(l.strip_prefix("summary: ")))?
        .trim()
        .parse()
        .ok()
}

/// Returns each workload's transfers of cache lines for one unit, at the largest number of lanes in
/// a file of `cargo xtask coherence`.
pub(super) fn transfers(path: &Path) -> Res<Vec<(String, f64)>> {
    let text = std::fs::read(path).at(path.display())?;
    let json: serde_json::Value = serde_json::from_slice(&text).at(path.display())?;
    let curves = json["curves"].as_array().into_iter().flatten();
    let found: Vec<(String, f64)> = curves
        .filter_map(|c| {
            let most = c["points"].as_array()?.iter().max_by_key(|p| p["lanes"].as_u64())?;
            Some((c["workload"].as_str()?.to_string(), most["transfers"].as_f64()?))
        })
        .collect();
    if found.is_empty() {
        return Err(Failure::new(format!("{} tells no transfers", path.display())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found() {
        assert_eq!(total("version: 1\nevents: Ir\nfn=(1)\n1 2\n\ntotals: 8051914\n"), Some(8_051_914));
        assert_eq!(total("version: 1\nsummary: 12\n"), Some(12));
        assert_eq!(total("nothing"), None);
    }

    #[test]
    fn operations_are_counted_on_every_workload() {
        for workload in ["DWTL", "MWUL", "MRDM"] {
            assert_eq!(count(&CountArgs { workload: workload.into(), ops: 100 }).unwrap(), 0);
        }
    }
}
