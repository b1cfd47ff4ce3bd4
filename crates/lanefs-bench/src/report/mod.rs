//! `lanefs bench report`: results as one HTML page that needs nothing else: styles and drawings are
//! in it, there is no script, so it opens from a mail, on a phone, and on paper.

mod ablation;
mod circumstances;
mod html;
mod latency;
mod overview;
mod rates;
pub mod svg;

pub use circumstances::{banners, date};
pub use html::{page, pictures};

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
    /// Write each picture as SVG, and its numbers as CSV, into this directory.
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,
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
    if let Some(dir) = &args.pictures {
        std::fs::create_dir_all(dir).at(dir.display())?;
        for (name, text) in pictures(&files) {
            let path = dir.join(name);
            std::fs::write(&path, text).at(path.display())?;
        }
    }
    std::fs::write(&args.output, page(&files)).at(args.output.display())?;
    say(format_args!("wrote {}", args.output.display()))?;
    Ok(0)
}
