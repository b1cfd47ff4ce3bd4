//! `lanefs rm`

use super::ls::entries;
use crate::failure::{About, Failure, Outcome};
use crate::image::Place;
use crate::progress;
use indicatif::ProgressBar;
use lanefs::{FileKind, Fs, Ino};

/// Remove files of an unmounted image
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Remove directories and all that is in them
    #[arg(short)]
    pub recursive: bool,
    /// Say nothing about what is not there
    #[arg(short)]
    pub force: bool,
    /// Let -r remove all that is in the volume, if its root is named
    #[arg(long)]
    pub all: bool,
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
            Ok(stat) if args.recursive && !args.all && is_root(stat.ino) => {
                return Err(Failure::new(format_args!(
                    "{}: is the root: all that is in the volume would go; give --all to remove it",
                    place.show()
                )));
            }
            Ok(stat) => {
                if progress::is_shown() {
                    progress::set_total(&bar, bar.position() + count(&fs, place, stat.kind)?);
                }
                remove(&fs, place, stat.kind, args.recursive, &bar)?;
            }
        }
        volume.close().about(place.show())?;
    }
    bar.finish_and_clear();
    Ok(0)
}

/// Returns whether it is the directory that all others are in.
fn is_root(ino: Ino) -> bool {
    ino == lanefs_format::ROOT_INO
}

/// Counts files and directories at and below a place, for the progress bar.
fn count(fs: &Fs, place: &Place, kind: FileKind) -> Result<u64, Failure> {
    let mut sum = 1;
    if kind == FileKind::Dir {
        for e in entries(fs, place)? {
            sum += count(fs, &place.at(place.path.join(&e.name)), e.stat.kind)?;
        }
    }
    Ok(sum)
}

/// Removes what is at a place, and below it if `recursive`.
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
    // The root stays; its contents were what could be removed.
    if is_root(fs.lstat(place.path.as_path()).about(place.show())?.ino) {
        return Ok(());
    }
    fs.rmdir(place.path.as_path()).about(place.show())
}
