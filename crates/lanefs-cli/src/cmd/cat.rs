//! `lanefs cat`

use crate::failure::{About, Outcome, written};
use crate::image::Place;
use lanefs::OpenOptions;
use std::io::Write;

/// Write files of an unmounted image to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to write, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<Place>,
}

/// Writes.
pub fn run(args: &Args) -> Outcome {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; 1 << 20];
    for place in &args.places {
        let (_volume, fs) = place.open_to_read()?;
        let options = OpenOptions { flags: libc::O_RDONLY, mode: 0 };
        let file = fs.open(place.path.as_path(), &options).about(place.show())?;
        let mut at = 0;
        loop {
            let n = file.read_at(&mut buffer, at).about(place.show())?;
            if n == 0 {
                break;
            }
            written(out.write_all(&buffer[..n]))?;
            at += n as u64;
        }
    }
    written(out.flush())?;
    Ok(0)
}
