//! What a figure is: where it stands, what it shows, how it is run here, and the paper's numbers.

/// A number that the paper gives, in its text or in a table.
#[derive(Clone, Copy, Debug)]
pub struct Stated {
    /// What it is about.
    pub what: &'static str,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Where in the paper it stands.
    pub place: &'static str,
    /// The same of a run here.
    pub here: Counterpart,
}

/// What of a run here is of the same kind as a number of the paper.
#[derive(Clone, Copy, Debug)]
pub enum Counterpart {
    /// A series over another, at the most workers that both were measured with.
    Ratio {
        /// The panel.
        panel: &'static str,
        /// The series.
        of: &'static str,
        /// The series it is divided by.
        over: &'static str,
    },
    /// A series at the most workers over the same at the fewest.
    Growth {
        /// The panel.
        panel: &'static str,
        /// The series.
        of: &'static str,
    },
    /// A bar.
    Bar {
        /// The panel.
        panel: &'static str,
        /// The series.
        of: &'static str,
        /// The group.
        label: &'static str,
    },
    /// Nothing is, and why.
    None(&'static str),
}

/// A picture that is one workload by number of workers.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    /// Its letter.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// The workload.
    pub workload: &'static str,
}

/// How a figure is run here.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// A curve for each file system, by number of workers.
    Curves {
        /// The pictures.
        curves: &'static [Curve],
        /// Whether each series is divided by its first point.
        normalised: bool,
    },
    /// The same for all of FxMark.
    All,
    /// An experiment of its own.
    Experiment(Experiment),
    /// The paper's figure is a drawing and has no numbers; where LaneFS tells of the same.
    Drawing(&'static str),
    /// Another command does it.
    Elsewhere(&'static str),
}

/// The experiments beyond curves of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// Max table 2: where processor time goes, by perf.
    Levels,
    /// Max table 5: memory while workloads run.
    Memory,
    /// ScaleFS figure 12: peak memory with and without durability.
    PeakMemory,
    /// Max figure 8: checkpoints, and readers beside them.
    Checkpoints,
    /// Max figure 12: techniques taken out, numbers of mlogs.
    Ablation,
    /// ScaleFS figures 6 and 8: calls by calls; true: without fsync and sync.
    Conflicts {
        /// Whether calls that make durable are left out.
        memory_only: bool,
    },
    /// ScaleFS figure 7: the workloads on the kernel's file systems, as they are and without fsync.
    Durability,
    /// ScaleFS figure 10: one worker, memory and disk.
    OneCore,
    /// ScaleFS figure 11: one to four devices.
    Devices,
    /// ScaleXFS figures 6, 8 and 19: latency of each call within a workload.
    Calls,
    /// ScaleXFS figures 7, 9, 10 and 17: how long the calls of a workload wait.
    Waits,
    /// ScaleXFS figure 22: stride lengths.
    Strides,
    /// FxMark: one volume, or as many as workers.
    Partition,
}

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// The number of the figure, or of the table, in the paper.
    pub number: &'static str,
    /// One line that says what it shows.
    pub title: &'static str,
    /// How it is run here.
    pub how: How,
    /// Who takes part unless told otherwise: peers of `compare`, `lanefs-relaxed`, and variants of
    /// `ablate`.
    pub peers: &'static [&'static str],
    /// Whether images are on a disk unless told otherwise.
    pub disk: bool,
    /// The paper's numbers, as far as text and tables give them.
    pub stated: &'static [Stated],
    /// What cannot be had here, and why.
    pub lacks: &'static [(&'static str, &'static str)],
}

/// A paper and its figures.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Authors' short name, title, venue.
    pub source: &'static str,
    /// The machine it measured on.
    pub machine: &'static str,
    /// Its figures.
    pub figures: &'static [Figure],
}
