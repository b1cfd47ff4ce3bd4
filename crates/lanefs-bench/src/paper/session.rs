//! One run of a figure: who takes part, on what, and the cells that become pictures.

use super::PaperArgs;
use super::figure::{Curve, Figure};
use super::results::{Drawn, FigureResults, Panel, Point, Series};
use crate::ablation::VARIANTS;
use crate::compare::{Ground, Medium, Peer, Place, Skipped, Undo, check_memory, lanefs_command};
use crate::error::{Context, Failure, Res, say};
use crate::machine::Machine;
use crate::matrix::{Cells, matrix};
use crate::registry::{Entry, select};
use crate::results::CellResult;
use crate::target::{Memory, Named, OpenTarget, TargetSpec};
use crate::units::parse_size;
use lanefs::Order;
use std::path::PathBuf;

/// LaneFS with the closure of an fsync alone (`order=relaxed`).
const RELAXED: &str = "lanefs-relaxed";

/// A run.
pub struct Session<'a> {
    /// The arguments.
    pub args: &'a PaperArgs,
    /// What this program is given before its commands.
    pub front: &'static [&'static str],
    /// What to undo in the end.
    pub undo: &'a mut Undo,
    /// The figure.
    pub figure: &'static Figure,
    /// What came out so far.
    pub out: FigureResults,
}

/// Returns how a target is called.
pub fn how(named: &Named) -> &'static str {
    named.target.called()
}

impl Session<'_> {
    /// Returns the medium: the one asked for, or the figure's.
    pub fn medium(&self) -> Medium {
        self.args.medium.unwrap_or(if self.figure.disk { Medium::Disk } else { Medium::Mem })
    }

    /// Returns the numbers of workers: those asked for, or 1, 2, 4 .. up to the processors.
    pub fn workers(&self) -> Vec<usize> {
        if !self.args.workers.is_empty() {
            let mut workers = self.args.workers.clone();
            workers.sort_unstable();
            workers.dedup();
            return workers;
        }
        let most = crate::pin::allowed().len();
        debug_assert!(most > 0);
        let mut workers: Vec<usize> = (0..).map(|n| 1 << n).take_while(|&n| n < most).collect();
        workers.push(most);
        workers
    }

    /// Returns the parameters of the cells.
    pub fn cells(&self) -> Cells {
        Cells {
            workloads: Vec::new(),
            workers: self.workers(),
            seconds: self.args.seconds,
            warmup: None,
            sustained: false,
            stock: None,
            repeats: self.args.repeats,
            processes: false,
            direct: false,
            scale: self.args.scale,
            loadfile: self.args.loadfile.clone(),
        }
    }

    /// Returns the bytes of each device.
    pub fn size(&self) -> Res<u64> {
        parse_size(&self.args.size)
    }

    /// Returns the names of who takes part.
    pub fn names(&self) -> Vec<String> {
        if self.args.peers.is_empty() {
            self.figure.peers.iter().map(|p| p.to_string()).collect()
        } else {
            self.args.peers.clone()
        }
    }

    /// Makes the place for devices on a medium.
    pub fn ground(&mut self, medium: Medium, mounts: bool) -> Res<Ground> {
        let name = if medium == Medium::Disk { "disk" } else { "memory" };
        if !self.out.medium.iter().any(|m| m == name) {
            self.out.medium.push(name.to_string());
        }
        let place = Place { medium, images: &self.args.images, size: self.size()? };
        let mut ground = Ground::new(&place, self.args.lanefs.clone(), mounts, self.undo)?;
        ground.written = medium == Medium::Mem && !self.args.fresh;
        ground.zeroed = medium == Medium::Disk && !self.args.fresh;
        Ok(ground)
    }

    /// Makes and opens who takes part. Who cannot be had is left out with a word; nobody at all is
    /// an error.
    pub fn targets(&mut self, medium: Medium) -> Res<Vec<Named>> {
        let mut wanted = Vec::new();
        for name in self.names() {
            match self.cannot(&name, medium)? {
                Some(why) => self.leave_out(&name, &why)?,
                None => wanted.push(name),
            }
        }
        let peers: Vec<Peer> = wanted.iter().filter_map(|n| Peer::parse(n).ok()).collect();
        if medium == Medium::Mem && !self.args.fresh {
            let bare = peers.iter().filter(|p| !p.has_device()).count();
            check_memory((wanted.len() - bare) as u64, self.size()?)?;
        }
        let mounts = peers.iter().any(Peer::mounts);
        let ground = self.ground(medium, mounts)?;
        let mut targets = Vec::new();
        for name in wanted {
            if crate::interrupt::requested() {
                return Err(Failure::interrupted());
            }
            match self.target(&name, &ground)? {
                Ok(named) => targets.push(named),
                Err(Skipped(why)) => self.leave_out(&name, &why)?,
            }
        }
        if targets.is_empty() {
            return Err(Failure::new("nobody takes part"));
        }
        for named in &targets {
            if let OpenTarget::Dir(_) = named.target {
                self.out.machine.note_mount(&ground.base.join(&named.name));
            }
        }
        Ok(targets)
    }

    fn leave_out(&mut self, name: &str, why: &str) -> Res<()> {
        self.out.lacks(name, why);
        say(format_args!("{name} takes no part: {why}"))
    }

    /// Returns why somebody cannot take part; an error if there is nobody of that name.
    fn cannot(&self, name: &str, medium: Medium) -> Res<Option<String>> {
        if name == RELAXED {
            return Ok(None);
        }
        if let Some(v) = VARIANTS.iter().skip(1).find(|v| v.name == name) {
            let switches = TargetSpec::parse(&format!("mem:64M{}", v.spec)).is_err();
            return Ok(match medium {
                _ if switches => Some(
                    "this program was built without the switches; in the sources: cargo run \
                     --release -p lanefs-bench --features ablation -- paper .."
                        .to_string(),
                ),
                Medium::Disk => Some("techniques are taken out of volumes in memory only".to_string()),
                Medium::Mem => None,
            });
        }
        let peer = Peer::parse(name).map_err(|e| {
            let variants: Vec<&str> = VARIANTS.iter().skip(1).map(|v| v.name).collect();
            Failure::new(format!("{e}, {RELAXED}, {}", variants.join(", ")))
        })?;
        if peer.mounts() && !rustix::process::geteuid().is_root() {
            return Ok(Some("mounting takes root".to_string()));
        }
        Ok(peer.missing(&lanefs_command(self.args.lanefs.clone())))
    }

    /// Makes and opens one.
    fn target(&mut self, name: &str, ground: &Ground) -> Res<Result<Named, Skipped>> {
        if name == RELAXED {
            return self.relaxed(ground).map(Ok);
        }
        if let Some(v) = VARIANTS.iter().skip(1).find(|v| v.name == name) {
            let written = if ground.written { ",written=yes" } else { "" };
            let spec = format!("mem:{}{written}{}", ground.size, v.spec);
            let mut named = TargetSpec::parse(&spec)?.named(name, false)?;
            if v.spec.contains("mlogs=1") {
                named.without.push("mlogs".to_string());
            }
            return Ok(Ok(named));
        }
        let peer = Peer::parse(name)?;
        if let Peer::Kernel { mkfs, .. } = peer {
            self.out.machine.note_version(mkfs[0], "-V");
        }
        ground.make(peer, self.undo)
    }

    /// Makes LaneFS with the closure of an fsync alone.
    fn relaxed(&mut self, ground: &Ground) -> Res<Named> {
        let spec = if ground.on_disk {
            TargetSpec::Image(ground.lanefs_image(RELAXED, self.undo)?, Order::Relaxed)
        } else {
            let written = ground.written;
            TargetSpec::Memory(Memory { written, order: Order::Relaxed, ..Memory::new(ground.size) })
        };
        spec.named(RELAXED, false)
    }

    /// Runs workloads on all targets and keeps the cells. Returns the index of the first new one.
    pub fn run(&mut self, workloads: &[&Entry], targets: &mut [Named], workers: &[usize]) -> Res<usize> {
        let cells = Cells { workers: workers.to_vec(), ..self.cells() };
        let mut file = crate::results::ResultsFile::default();
        let before = self.out.results.len();
        let done = matrix(&cells, workloads, targets, &mut file, |_| Ok(()));
        // What was measured before somebody asked for the end is kept.
        self.out.results.append(&mut file.results);
        for f in &file.failures {
            self.out.lacks(format!("{} on {}, {} workers", f.workload, f.target, f.workers), &f.message);
        }
        self.out.failures.append(&mut file.failures);
        done?;
        Ok(before)
    }

    /// Runs a curve for each of some workloads, by number of workers.
    pub fn curves(&mut self, curves: &[Curve], normalised: bool, targets: &mut [Named]) -> Res<()> {
        for curve in curves {
            let entries = select(&[curve.workload.to_string()])?;
            let first = self.run(&entries, targets, &self.workers())?;
            let unit = entries.first().map_or("ops", |e| e.info.unit);
            let mut panel = Panel {
                name: curve.name.to_string(),
                title: curve.title.to_string(),
                drawn: Drawn::Lines,
                x: "workers".to_string(),
                y: if normalised { "over the fewest workers".into() } else { format!("{unit} per second") },
                series: Vec::new(),
            };
            for named in targets.iter() {
                let cells: Vec<&CellResult> =
                    self.out.results[first..].iter().filter(|r| r.target == named.name).collect();
                let mut points: Vec<Point> =
                    cells.iter().map(|r| Point::of(r.workers as f64, &r.runs)).collect();
                if normalised && let Some(base) = points.first().map(|p| p.y).filter(|y| *y > 0.0) {
                    points = points.iter().map(|p| p.over(base)).collect();
                }
                if !points.is_empty() {
                    let (name, how) = (named.name.clone(), how(named).to_string());
                    panel.series.push(Series { name, how, predicted: false, points });
                }
            }
            self.predict(&mut panel, curve.workload)?;
            if !panel.series.is_empty() {
                self.out.panels.push(panel);
            }
            self.keep()?;
        }
        Ok(())
    }

    /// Adds what the coherence model says of LaneFS beyond this machine's processors.
    fn predict(&mut self, panel: &mut Panel, workload: &str) -> Res<()> {
        let cpus = self.out.machine.cpus;
        let what = format!("more than {cpus} processors");
        let Some(path) = &self.args.coherence else {
            self.out.lacks(
                what,
                "this machine has none; the model's word for FxMark's workloads: cargo xtask coherence \
                 --json FILE, then --coherence FILE",
            );
            return Ok(());
        };
        let text = std::fs::read(path).at(path.display())?;
        let json: serde_json::Value = serde_json::from_slice(&text).at(path.display())?;
        let Some(curves) = json["curves"].as_array() else {
            return Err(Failure::new(format!("{} is none of `cargo xtask coherence`", path.display())));
        };
        let named =
            |c: &&serde_json::Value| c["workload"].as_str().is_some_and(|w| w.eq_ignore_ascii_case(workload));
        let one = panel.series.iter().find(|s| s.name == "lanefs").and_then(|s| s.points.first());
        let (Some(curve), Some(one)) = (curves.iter().find(named), one.filter(|p| p.x == 1.0)) else {
            self.out.lacks(
                format!("{workload} on {what}"),
                "the model has no such workload, or one worker was not measured",
            );
            return Ok(());
        };
        let points = curve["points"].as_array().into_iter().flatten().filter_map(|p| {
            let (lanes, factor) = (p["lanes"].as_u64()?, p["speed_up"].as_f64()?);
            Some(Point::of(lanes as f64, &[one.y * factor]))
        });
        let points: Vec<Point> = points.filter(|p| p.x as usize >= cpus).collect();
        let name = "lanefs, predicted".to_string();
        panel.series.push(Series { name, how: "model".to_string(), predicted: true, points });
        Ok(())
    }

    /// Writes what is there so far.
    pub fn keep(&mut self) -> Res<()> {
        let Some(path) = self.args.json.clone() else { return Ok(()) };
        self.out.beside(self.figure.stated);
        write(&path, &serde_json::to_vec_pretty(&self.out).at("encoding the results")?)
    }
}

/// Writes a file in one go: either the whole is there, or what was there before.
pub fn write(path: &std::path::Path, bytes: &[u8]) -> Res<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, bytes).at(beside.display())?;
    std::fs::rename(&beside, path).at(path.display())
}

/// Makes the empty results of a figure.
pub fn blank(source: &str, figure: &Figure, args: &PaperArgs) -> FigureResults {
    let mut out = FigureResults {
        format: super::results::FORMAT,
        figure: figure.name.to_string(),
        title: figure.title.to_string(),
        source: format!("{source}, {}", figure.number),
        command: crate::matrix::command_line(),
        started: crate::matrix::now(),
        machine: Machine::here(),
        seconds: args.seconds,
        repeats: args.repeats,
        ..FigureResults::default()
    };
    for (what, why) in figure.lacks {
        out.lacks(*what, *why);
    }
    out
}
