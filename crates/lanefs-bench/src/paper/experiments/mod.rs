//! How figures are run: curves of workloads, and the experiments that are more than that.

mod ablation;
mod calls;
mod checkpoints;
mod conflicts;
mod devices;
mod levels;
mod memory;
mod one_core;
mod partition;
mod probe;
mod spread;
mod strides;

pub use memory::{CellArgs, cell};

use super::figure::{Curve, Experiment, How};
use super::session::Session;
use crate::error::Res;
use crate::registry::{Group, all};

/// Runs the session's figure.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    match session.figure.how {
        How::Curves { curves, normalised } => {
            let mut targets = session.targets(session.medium())?;
            session.curves(curves, normalised, &mut targets)
        }
        How::All => {
            let curves: Vec<Curve> = all()
                .iter()
                .filter(|e| e.group == Group::Micro)
                .map(|e| Curve { name: e.info.name, title: e.info.about, workload: e.info.name })
                .collect();
            let mut targets = session.targets(session.medium())?;
            session.curves(&curves, false, &mut targets)
        }
        How::Drawing(place) => {
            session.out.lacks("the same of LaneFS", format!("it is told in {place}"));
            Ok(())
        }
        How::Elsewhere(command) => {
            session.out.lacks("the measurement", format!("another command makes it: {command}"));
            Ok(())
        }
        How::Experiment(experiment) => match experiment {
            Experiment::Levels => levels::run(session),
            Experiment::Memory => memory::in_use(session),
            Experiment::PeakMemory => memory::peak(session),
            Experiment::Checkpoints => checkpoints::run(session),
            Experiment::Ablation => ablation::run(session),
            Experiment::Conflicts { memory_only } => conflicts::run(session, memory_only),
            Experiment::Durability => calls::durability(session),
            Experiment::OneCore => one_core::run(session),
            Experiment::Devices => devices::run(session),
            Experiment::Calls => calls::latencies(session),
            Experiment::Waits => calls::waits(session),
            Experiment::Strides => strides::run(session),
            Experiment::Partition => partition::run_all(session),
        },
    }
}
