//! `lanefs bench paper NAME`: a figure or table of the papers, run here, drawn as there, with the
//! paper's own numbers beside it.
//!
//! [`figures`] holds what the papers say, `session` who takes part, `experiments` what is more
//! than a curve for each workload; `page` draws what came out ([`results`]).

mod draw;
mod experiments;
pub mod figure;
pub mod figures;
mod page;
pub mod results;
mod session;

pub use experiments::{CellArgs, cell};
pub use page::page;

use crate::compare::{Medium, Undo};
use crate::error::{Context, Failure, Res, say};
use figure::{Figure, How, Paper};
use session::Session;
use std::path::PathBuf;

/// Arguments of `paper`.
#[derive(Clone, Debug, clap::Args)]
pub struct PaperArgs {
    /// The figure; `list` tells which there are.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What devices are made of [default: as the paper's].
    #[arg(long, value_enum)]
    pub medium: Option<Medium>,
    /// Who takes part: peers of `compare`, lanefs-relaxed (the closure of an fsync alone), variants
    /// of `ablate` [default: the figure's].
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Numbers of workers [default: 1, 2, 4 .. up to the processors].
    #[arg(long, value_delimiter = ',')]
    pub workers: Vec<usize>,
    /// Timed seconds of each repeat.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Repeats of each cell; the median counts.
    #[arg(long, default_value_t = 3)]
    pub repeats: usize,
    /// Size of each device.
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    pub size: String,
    /// Multiply the papers' numbers of files by this.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// The loadfile that dbench replays.
    #[arg(long, value_name = "FILE")]
    pub loadfile: Option<PathBuf>,
    /// Leave devices as they are made: the first write to each page also has the system find space.
    #[arg(long)]
    pub fresh: bool,
    /// Where images are made on a disk.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub images: PathBuf,
    /// The `lanefs` command [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    pub lanefs: Option<PathBuf>,
    /// What `cargo xtask coherence --json` wrote: LaneFS is drawn beyond this machine's processors.
    #[arg(long, value_name = "FILE")]
    pub coherence: Option<PathBuf>,
    /// What `cargo xtask conflicts --json` wrote, for scalefs-6 and scalefs-8.
    #[arg(long, value_name = "FILE")]
    pub conflicts: Option<PathBuf>,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the page here; the pictures as SVG and all points as CSV go beside it.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Finds a figure.
fn find(name: &str) -> Res<(&'static Paper, &'static Figure)> {
    figures::all().find(|(_, f)| f.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<&str> = figures::all().map(|(_, f)| f.name).collect();
        Failure::new(format!("no figure `{name}`; there are list, {}", names.join(", ")))
    })
}

/// Tells what there is.
fn list() -> Res<i32> {
    for paper in figures::PAPERS {
        say(format_args!("{} ({})", paper.source, paper.machine))?;
        for f in paper.figures {
            let how = match f.how {
                How::Drawing(_) => " [a drawing]",
                How::Elsewhere(_) => " [elsewhere]",
                _ => "",
            };
            say(format_args!("  {:<17} {}: {}{how}", f.name, f.number, f.title))?;
        }
    }
    Ok(0)
}

/// Does it all and returns the exit status.
pub fn run(args: &PaperArgs, front: &'static [&'static str]) -> Res<i32> {
    if args.name.eq_ignore_ascii_case("list") {
        return list();
    }
    let (paper, figure) = find(&args.name)?;
    let mut undo = Undo::new()?;
    let out = session::blank(paper.source, figure, args);
    let mut session = Session { args, front, undo: &mut undo, figure, out };
    session.cells().check()?;
    say(format_args!("{} ({})\n{}", session.out.source, paper.machine, figure.title))?;
    let done = experiments::run(&mut session);
    session.out.beside(figure.stated);
    let out = std::mem::take(&mut session.out);
    // The targets are closed by now; what remains is to unmount and remove.
    let complaints = undo.all();
    complaints.iter().for_each(|c| eprintln!("lanefs-bench: {c}"));
    let interrupted = match done {
        Err(e) if e.interrupted => true,
        other => other.map(|()| false)?,
    };
    tell(&out)?;
    if let Some(path) = &args.json {
        session::write(path, &serde_json::to_vec_pretty(&out).at("encoding the results")?)?;
    }
    if let Some(path) = &args.html {
        session::write(path, page(&out, Some(path)).as_bytes())?;
        session::write(&path.with_extension("csv"), out.csv().as_bytes())?;
        for panel in &out.panels {
            let name = format!("{}.svg", page::picture(path, panel));
            session::write(&path.with_file_name(name), draw::alone(panel, out.machine.cpus).as_bytes())?;
        }
    }
    if interrupted {
        eprintln!("interrupted; everything made was removed, what was finished is kept");
        return Ok(130);
    }
    Ok(if complaints.is_empty() { 0 } else { 2 })
}

/// Prints the pictures as numbers, the paper's beside them, and what is missing.
fn tell(out: &results::FigureResults) -> Res<()> {
    for panel in out.panels.iter().filter(|p| p.drawn != results::Drawn::Map) {
        say(format_args!("\n{}: {} ({})", panel.name, panel.title, panel.y))?;
        for s in &panel.series {
            let points: Vec<String> = s
                .points
                .iter()
                .map(|p| match &p.label {
                    Some(label) => format!("{label} {}", draw::number(p.y)),
                    None => format!("{} at {}", draw::number(p.y), p.x),
                })
                .collect();
            say(format_args!("  {:<20} {:<13} {}", s.name, s.how, points.join(", ")))?;
        }
    }
    for (i, s) in out.stated.iter().enumerate() {
        if i == 0 {
            say("\nthe paper's number, and this run's")?;
        }
        let here = s.here.map_or("-".to_string(), draw::number);
        say(format_args!("  {}: {} {} [{}]; here {here} ({})", s.what, s.paper, s.unit, s.place, s.here_is))?;
    }
    for (i, m) in out.missing.iter().enumerate() {
        if i == 0 {
            say("\nnot here")?;
        }
        say(format_args!("  {}: {}", m.what, m.why))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_told_with_those_there_are() {
        let message = find("max-99").map(|_| ()).unwrap_err().message;
        assert!(message.contains("max-99") && message.contains("scalexfs-22"), "{message}");
        assert_eq!(find("Max-6").unwrap().1.name, "max-6");
    }
}
