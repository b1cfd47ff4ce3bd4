//! `lanefs install-helper`

use crate::failure::{About, Failure, Outcome};
use std::path::PathBuf;

/// Let mount(8) and /etc/fstab mount volumes: link mount.fuse.lanefs to this program
///
/// A line of /etc/fstab is then: /path/to/image /mnt/point fuse.lanefs defaults,nofail 0 0
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where mount(8) looks for helpers
    #[arg(long, value_name = "DIR", default_value = "/usr/sbin")]
    pub dir: PathBuf,
}

/// Links.
pub fn run(args: &Args) -> Outcome {
    if !args.dir.is_dir() {
        return Err(Failure::new(format_args!(
            "{}: no such directory; make it, or name with --dir where mount(8) looks for helpers",
            args.dir.display()
        )));
    }
    let program = std::env::current_exe().about("this program's own path")?;
    let link = args.dir.join("mount.fuse.lanefs");
    match std::fs::read_link(&link) {
        Ok(there) if there == program => return Ok(0),
        Ok(_) => std::fs::remove_file(&link).about(link.display())?,
        Err(_) if link.exists() => {
            return Err(Failure::new(format_args!("{}: is not a link; remove it first", link.display())));
        }
        Err(_) => {}
    }
    std::os::unix::fs::symlink(&program, &link).about(link.display())?;
    Ok(0)
}
