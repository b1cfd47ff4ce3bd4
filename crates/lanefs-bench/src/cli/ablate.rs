//! `lanefs-bench ablate`: LaneFS as usual beside LaneFS with techniques taken out, in one
//! interleaved run.

use crate::ablation::{KEYS, VARIANTS, Variant};
use crate::error::{Failure, Res, say};
use crate::machine::Machine;
use crate::matrix::{Cells, command_line, matrix_to, now};
use crate::registry::select;
use crate::results::ResultsFile;
use crate::target::{Named, TargetSpec};
use crate::units::parse_size;
use std::path::PathBuf;

/// Arguments of `ablate`.
#[derive(Debug, clap::Args)]
pub struct AblateArgs {
    #[command(flatten)]
    #[allow(missing_docs)] // what is flattened has its own
    pub cells: Cells,
    /// Size of each volume in memory.
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    pub size: String,
    /// Leave the volumes' memory as it is made, so that the first write to each page also has the
    /// system clear it.
    #[arg(long)]
    pub fresh: bool,
    /// Only these variants, beside LaneFS as usual.
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    pub variants: Vec<String>,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Returns the variants that are named, and the usual one.
fn chosen(names: &[String]) -> Res<Vec<&'static Variant>> {
    let known = |n: &&String| !VARIANTS.iter().any(|v| v.name == n.as_str());
    if let Some(unknown) = names.iter().find(known) {
        let all: Vec<&str> = VARIANTS.iter().map(|v| v.name).collect();
        return Err(Failure::new(format!("no variant `{unknown}`; there are {}", all.join(", "))));
    }
    Ok(VARIANTS
        .iter()
        .enumerate()
        .filter(|(i, v)| *i == 0 || names.is_empty() || names.iter().any(|n| n == v.name))
        .map(|(_, v)| v)
        .collect())
}

/// Runs it and returns the exit status.
pub(super) fn run(args: &AblateArgs) -> Res<i32> {
    args.cells.check()?;
    let workloads = select(&args.cells.workloads)?;
    let bytes = parse_size(&args.size)?;
    let written = if args.fresh { "no" } else { "yes" };
    let variants = chosen(&args.variants)?;
    let switches = |v: &&&Variant| KEYS.iter().any(|k| v.spec.contains(k.key));
    if let Some(v) = variants.iter().find(switches).filter(|_| !cfg!(feature = "ablation")) {
        return Err(Failure::refused(format!(
            "this program was built without the switches that `{}` needs; in the sources: \
             cargo run --release -p lanefs-bench --features ablation -- ablate ...",
            v.name
        )));
    }
    let mut targets: Vec<Named> = Vec::new();
    for v in variants {
        say(format_args!("{:<14} {}", v.name, v.about))?;
        let mut named = TargetSpec::parse(&format!("mem:{bytes},written={written}{}", v.spec))?
            .named(v.name, args.cells.direct)?;
        if v.spec.contains("mlogs=1") {
            named.without.push("mlogs".to_string());
        }
        targets.push(named);
    }
    let file = ResultsFile {
        format: 1,
        command: command_line(),
        started: now(),
        machine: Machine::here(),
        ablation: true,
        ..ResultsFile::default()
    };
    matrix_to(&args.cells, &workloads, &mut targets, file, args.json.as_deref())
}
