//! The results of a figure, as they are written to JSON and CSV (the layout: docs/BENCHMARKS.md).

use super::figure::{Counterpart, Stated};
use crate::machine::Machine;
use crate::results::{CellFailure, CellResult, median};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The layout of the file; raised when a field changes its meaning.
pub const FORMAT: u32 = 1;

/// A figure as it came out here.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FigureResults {
    /// Layout of this file: [`FORMAT`].
    pub format: u32,
    /// The figure's name on the command line.
    pub figure: String,
    /// What it shows.
    pub title: String,
    /// The paper, and the number of the figure in it.
    pub source: String,
    /// The command that made it.
    pub command: String,
    /// Seconds since 1970.
    pub started: u64,
    /// The machine that made it.
    pub machine: Machine,
    /// What devices are made of: `memory`, `disk`, or both.
    pub medium: Vec<String>,
    /// Timed seconds of each repeat.
    pub seconds: f64,
    /// Repeats of each cell.
    pub repeats: usize,
    /// The pictures, in the paper's order.
    pub panels: Vec<Panel>,
    /// What the paper says in numbers, and the same of this run where it has it.
    pub stated: Vec<StatedHere>,
    /// What of the figure is not here, and why.
    pub missing: Vec<Missing>,
    /// The cells behind the pictures, as `lanefs bench run` writes them.
    pub results: Vec<CellResult>,
    /// The cells that could not be measured.
    pub failures: Vec<CellFailure>,
}

/// The way a picture is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drawn {
    /// A line for each series over a numeric axis.
    #[default]
    Lines,
    /// Groups of bars, by label, a bar for each series.
    Bars,
    /// A square for each pair of labels; a point's `x` is the index of its column.
    Map,
}

/// One picture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Panel {
    /// Its letter in the paper, or what it adds to the paper's.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// How it is drawn.
    pub drawn: Drawn,
    /// What the horizontal axis counts.
    pub x: String,
    /// What the vertical axis counts.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// The file system, or the operation.
    pub name: String,
    /// `in process` (calls of the library), `system calls`, `model`, or `program`.
    pub how: String,
    /// Nobody measured it: a model's word for more processors than there are.
    pub predicted: bool,
    /// Its points.
    pub points: Vec<Point>,
}

/// One point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// Where it lies; with bars the index of the group.
    pub x: f64,
    /// The name of the bar's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The median of the repeats.
    pub y: f64,
    /// The smallest of the repeats.
    pub low: f64,
    /// The largest of the repeats.
    pub high: f64,
}

impl Point {
    /// Makes the point of some repeats.
    pub fn of(x: f64, runs: &[f64]) -> Point {
        let y = median(runs);
        let low = runs.iter().copied().fold(y, f64::min);
        let high = runs.iter().copied().fold(y, f64::max);
        debug_assert!(low <= y && y <= high);
        Point { x, label: None, y, low, high }
    }

    /// Makes the point of a group of bars.
    pub fn bar(group: usize, label: &str, runs: &[f64]) -> Point {
        Point { label: Some(label.to_string()), ..Point::of(group as f64, runs) }
    }

    /// Divides all of it.
    pub fn over(&self, by: f64) -> Point {
        debug_assert!(by > 0.0, "a point over nothing");
        Point { y: self.y / by, low: self.low / by, high: self.high / by, ..self.clone() }
    }
}

/// A number of the paper beside the one of this run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatedHere {
    /// What it is about.
    pub what: String,
    /// The paper's number.
    pub paper: f64,
    /// Its unit.
    pub unit: String,
    /// Where in the paper it stands.
    pub place: String,
    /// The number of this run, in the same unit.
    pub here: Option<f64>,
    /// What it compares here, or why there is none.
    pub here_is: String,
}

/// Something that is not here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

impl FigureResults {
    /// Says that something is not here, once.
    pub fn lacks(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let one = Missing { what: what.into(), why: why.into() };
        if !self.missing.contains(&one) {
            self.missing.push(one);
        }
    }

    /// Finds a measured series.
    fn series(&self, panel: &str, name: &str) -> Option<&Series> {
        let panel = self.panels.iter().find(|p| p.name == panel)?;
        panel.series.iter().find(|s| s.name == name && !s.predicted)
    }

    /// Puts the paper's numbers beside those of this run.
    pub fn beside(&mut self, stated: &[Stated]) {
        self.stated = stated
            .iter()
            .map(|s| {
                let (here, here_is) = self.counterpart(&s.here);
                StatedHere {
                    what: s.what.to_string(),
                    paper: s.value,
                    unit: s.unit.to_string(),
                    place: s.place.to_string(),
                    here,
                    here_is,
                }
            })
            .collect();
    }

    fn counterpart(&self, c: &Counterpart) -> (Option<f64>, String) {
        let found = match *c {
            Counterpart::Ratio { panel, of, over } => self.ratio(panel, of, over),
            Counterpart::Growth { panel, of } => self.growth(panel, of),
            Counterpart::Bar { panel, of, label } => self.bar(panel, of, label),
            Counterpart::None(why) => return (None, why.to_string()),
        };
        match found {
            Some((value, text)) => (Some(value), text),
            None => (None, "not measured in this run".to_string()),
        }
    }

    /// One series over another, at the most workers both have.
    fn ratio(&self, panel: &str, of: &str, over: &str) -> Option<(f64, String)> {
        let (a, b) = (self.series(panel, of)?, self.series(panel, over)?);
        let pairs = a.points.iter().filter_map(|p| Some((p, b.points.iter().find(|q| q.x == p.x)?)));
        let (p, q) = pairs.max_by(|l, r| l.0.x.total_cmp(&r.0.x)).filter(|(_, q)| q.y > 0.0)?;
        Some((p.y / q.y, format!("{of} over {over} at {}", p.x)))
    }

    /// A series' last point over its first.
    fn growth(&self, panel: &str, of: &str) -> Option<(f64, String)> {
        let points = &self.series(panel, of)?.points;
        let (first, last) = (points.first()?, points.last()?);
        (points.len() > 1 && first.y > 0.0)
            .then(|| (last.y / first.y, format!("{of}: {} over {}", last.x, first.x)))
    }

    /// A bar.
    fn bar(&self, panel: &str, of: &str, label: &str) -> Option<(f64, String)> {
        let points = &self.series(panel, of)?.points;
        let point = points.iter().find(|p| p.label.as_deref() == Some(label))?;
        Some((point.y, format!("{of}, {label}")))
    }

    /// Formats all points as CSV.
    pub fn csv(&self) -> String {
        let mut out = String::from("panel,series,how,predicted,x,label,y,low,high\n");
        for panel in &self.panels {
            for s in &panel.series {
                for p in &s.points {
                    let fields = [&panel.name, &s.name, &s.how, &s.predicted.to_string(), &p.x.to_string()];
                    let fields = fields.map(|f| quoted(f)).join(",");
                    let label = quoted(p.label.as_deref().unwrap_or(""));
                    let _ = writeln!(out, "{fields},{label},{},{},{}", p.y, p.low, p.high);
                }
            }
        }
        out
    }
}

/// Formats a field of CSV.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> FigureResults {
        let line = |name: &str, points: &[(f64, f64)]| Series {
            name: name.into(),
            points: points.iter().map(|&(x, y)| Point::of(x, &[y])).collect(),
            ..Series::default()
        };
        let series =
            vec![line("lanefs", &[(1.0, 10.0), (2.0, 18.0)]), line("ext4", &[(1.0, 5.0), (2.0, 6.0)])];
        let panel = Panel { name: "a".into(), series, ..Panel::default() };
        FigureResults { panels: vec![panel], ..FigureResults::default() }
    }

    #[test]
    fn the_papers_numbers_stand_beside_this_runs() {
        let mut r = results();
        let say = |here| Stated { what: "", value: 35.0, unit: "x", place: "", here };
        r.beside(&[
            say(Counterpart::Ratio { panel: "a", of: "lanefs", over: "ext4" }),
            say(Counterpart::Growth { panel: "a", of: "lanefs" }),
            say(Counterpart::Ratio { panel: "a", of: "lanefs", over: "f2fs" }),
            say(Counterpart::None("nobody counted")),
        ]);
        let here: Vec<_> = r.stated.iter().map(|s| s.here).collect();
        assert_eq!(here, [Some(3.0), Some(1.8), None, None]);
        assert_eq!(r.stated[0].here_is, "lanefs over ext4 at 2");
        assert_eq!(r.stated[3].here_is, "nobody counted");
    }

    #[test]
    fn csv_is_quoted() {
        let mut r = results();
        r.panels[0].series[0].name = "a,\"b\"".into();
        assert!(r.csv().contains("a,\"a,\"\"b\"\"\",,false,1,,10,10,10\n"), "{}", r.csv());
        assert_eq!(r.csv().lines().count(), 5);
    }
}
