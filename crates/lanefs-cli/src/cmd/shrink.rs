//! `lanefs shrink`

use crate::failure::{Outcome, written};
use crate::size;
use lanefs::Grown;
use lanefs_fuse::change::DeviceChange;
use std::io::Write;
use std::path::PathBuf;

/// Make a volume smaller, mounted or not
///
/// What lies behind the new end is moved first, while programs go on. Then the image file is cut
/// off; a block device stays as long as it is, and what follows is not used. Of a volume of several
/// devices the last one shrinks. A power loss meanwhile leaves the old size or the new one. Where
/// the files do not fit nothing is changed, and the smallest size that is possible is told.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The new size, such as 4G; of a volume of several devices that of the last one
    #[arg(long, value_parser = size::parse)]
    pub size: u64,
    /// Do not say what was done
    #[arg(long, short)]
    pub quiet: bool,
    /// The volume's image or block device, all of them with commas between, or a directory of a
    /// mounted volume
    #[arg(value_name = "IMAGE|DIR")]
    pub volume: PathBuf,
}

/// Shrinks.
pub fn run(args: &Args) -> Outcome {
    let bytes = args.size - args.size % lanefs_format::BLOCK_SIZE as u64;
    let Grown { before, after } = super::device::change(&args.volume, &DeviceChange::Shrink(bytes))?;
    if !args.quiet {
        let (name, before, after) = (args.volume.display(), size::show(before), size::show(after));
        written(writeln!(std::io::stdout().lock(), "{name}: {after}, before {before}"))?;
    }
    Ok(0)
}
