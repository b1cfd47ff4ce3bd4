//! `lanefs label`

use crate::failure::{About, Failure, Outcome, written};
use crate::{image, mounted, names};
use lanefs::{Grown, MountOptions};
use lanefs_fuse::change::{IOC_LABEL, encode_label};
use std::io::Write;
use std::path::PathBuf;

/// Show a volume's label, or give it another one, mounted or not
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The volume's image or block device, or a directory of a mounted volume
    #[arg(value_name = "IMAGE|DIR")]
    pub volume: PathBuf,
    /// The new label: at most 64 bytes, '' for none
    #[arg(value_name = "NEW")]
    pub label: Option<String>,
}

/// Shows or sets.
pub fn run(args: &Args) -> Outcome {
    let images = match args.volume.is_dir() {
        true => vec![args.volume.clone()],
        false => names::images(args.volume.as_os_str()),
    };
    let Some(label) = &args.label else {
        let shown = super::info::about(&images)?;
        written(writeln!(std::io::stdout().lock(), "{}", shown.label))?;
        return Ok(0);
    };
    super::mkfs::check_label(label)?;
    let same = Grown { before: 0, after: 0 };
    mounted::either(
        &images,
        |dir| mounted::change(dir, IOC_LABEL, encode_label(label)),
        |images| unmounted(images, label).map(|()| same),
    )?;
    Ok(0)
}

/// Sets the label of a volume that is not mounted.
fn unmounted(images: &[PathBuf], label: &str) -> Result<(), Failure> {
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = image::open_with(images, &options)?;
    volume.set_label(label)?;
    volume.close().about(images[0].display())
}
