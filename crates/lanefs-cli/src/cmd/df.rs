//! `lanefs df`

use crate::failure::{About, Outcome, written};
use crate::image::Place;
use crate::size::show;
use std::io::Write;

/// Show how full unmounted images are
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The images
    #[arg(required = true, value_name = "IMAGE")]
    pub places: Vec<Place>,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let mut out = std::io::stdout().lock();
    let mut list = Vec::new();
    if !args.json {
        written(writeln!(out, "{:<30} {:>10} {:>10} {:>10} {:>5}", "image", "size", "used", "free", "used"))?;
    }
    for place in &args.places {
        let (_volume, fs) = place.open_to_read()?;
        let s = fs.statfs().about(place.show())?;
        let (size, free) = (s.blocks * 4096, s.free * 4096);
        let used = size.saturating_sub(free);
        let image = place.images.iter().map(|i| i.display().to_string()).collect::<Vec<_>>().join(",");
        if args.json {
            list.push(serde_json::json!({
                "image": image, "size": size, "used": used, "free": free,
                "inodes": s.files, "inodes_free": s.files_free,
            }));
            continue;
        }
        let percent = used as f64 * 100.0 / size.max(1) as f64;
        let (size, used, free) = (show(size), show(used), show(free));
        written(writeln!(out, "{image:<30} {size:>10} {used:>10} {free:>10} {percent:>4.0}%"))?;
    }
    if args.json {
        written(writeln!(out, "{:#}", serde_json::Value::Array(list)))?;
    }
    Ok(0)
}
