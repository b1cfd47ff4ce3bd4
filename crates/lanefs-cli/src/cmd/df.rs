//! `lanefs df`

use crate::failure::{About, Failure, Outcome, written};
use crate::image::Place;
use crate::mounted;
use crate::size::show;
use lanefs::StatFs;
use std::io::Write;

/// Show how full volumes are
///
/// Of a volume that is mounted the mount is asked: name its image, or a directory of it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The images, or directories of mounted volumes
    #[arg(required = true, value_name = "IMAGE|DIR")]
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
        let s = space(place)?;
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

/// Returns the sizes of an image, from the mount that has it if there is one.
fn space(place: &Place) -> Result<StatFs, Failure> {
    let dir = match &place.images[..] {
        [dir] if dir.is_dir() => Some(dir.clone()),
        [dir] if mounted::is_dead(dir) => return Err(mounted::dead(dir)),
        images => mounted::dir_of(images),
    };
    let Some(dir) = dir else {
        let (_volume, fs) = place.open_to_read()?;
        return fs.statfs().about(place.show());
    };
    let about = mounted::ask(&dir)?;
    Ok(StatFs {
        blocks: about.usable,
        free: about.free,
        available: about.free,
        files: about.inodes.saturating_add(about.free),
        files_free: about.free,
        name_max: 255,
        fsid: 0,
    })
}
