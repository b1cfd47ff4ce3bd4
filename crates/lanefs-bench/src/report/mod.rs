//! `lanefs bench report`: results as one HTML page that needs nothing else: styles and drawings are
//! in it, there is no script, so it opens from a mail, on a phone, and on paper.

mod ablation;
mod html;
mod latency;
mod rates;
mod svg;

pub use html::page;

use crate::error::{Context, Failure, Res, say};
use crate::results::ResultsFile;
use std::path::PathBuf;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Results files of `run` and `compare`.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The page.
    #[arg(short, long, value_name = "HTML", default_value = "report.html")]
    pub output: PathBuf,
}

/// Reads the files, writes the page.
pub fn run(args: &ReportArgs) -> Res<i32> {
    let mut files = Vec::new();
    for path in &args.files {
        let text = std::fs::read(path).at(path.display())?;
        let file: ResultsFile =
            serde_json::from_slice(&text).at(format!("{} is not a results file", path.display()))?;
        if file.results.is_empty() {
            return Err(Failure::new(format!("{} holds no results", path.display())));
        }
        files.push(file);
    }
    std::fs::write(&args.output, page(&files)).at(args.output.display())?;
    say(format_args!("wrote {}", args.output.display()))?;
    Ok(0)
}
