//! `lanefs rm`

use super::ls::entries;
use crate::failure::{About, Failure, Outcome};
use crate::image::Place;
use crate::progress;
use indicatif::ProgressBar;
use lanefs::{FileKind, Fs};

/// Remove files of an unmounted image
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Remove directories and all that is in them
    #[arg(short)]
    pub recursive: bool,
    /// Say nothing about what is not there
    #[arg(short)]
    pub force: bool,
    /// What to remove, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<Place>,
}

/// Removes.
pub fn run(args: &Args) -> Outcome {
    let bar = progress::items("removing");
    for place in &args.places {
        let (volume, fs) = place.open_to_write()?;
        match fs.lstat(place.path.as_path()) {
            Err(e) if args.force && e.errno() == libc::ENOENT => {}
            Err(e) => return Err(e).about(place.show()),
            Ok(stat) => remove(&fs, place, stat.kind, args.recursive, &bar)?,
        }
        volume.close().about(place.show())?;
    }
    bar.finish_and_clear();
    Ok(0)
}

fn remove(fs: &Fs, place: &Place, kind: FileKind, recursive: bool, bar: &ProgressBar) -> Result<(), Failure> {
    bar.inc(1);
    if kind != FileKind::Dir {
        return fs.unlink(place.path.as_path()).about(place.show());
    }
    if !recursive {
        return Err(Failure::new(format_args!("{}: is a directory; give -r to remove it", place.show())));
    }
    for e in entries(fs, place)? {
        remove(fs, &place.at(place.path.join(&e.name)), e.stat.kind, true, bar)?;
    }
    match place.path.parent() {
        // The root stays; its contents were what could be removed.
        None => Ok(()),
        Some(_) => fs.rmdir(place.path.as_path()).about(place.show()),
    }
}
