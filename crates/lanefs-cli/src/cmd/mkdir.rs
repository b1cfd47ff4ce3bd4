//! `lanefs mkdir`

use crate::failure::{About, Outcome};
use crate::image::Place;

/// Make directories in an unmounted image
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Make missing parents too, and accept what is there
    #[arg(short)]
    pub parents: bool,
    /// What to make, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<Place>,
}

/// Makes.
pub fn run(args: &Args) -> Outcome {
    for place in &args.places {
        let (volume, fs) = place.open_to_write()?;
        let made = match args.parents {
            true => fs.mkdir_all(place.path.as_path(), 0o755),
            false => fs.mkdir(place.path.as_path(), 0o755),
        };
        made.about(place.show())?;
        volume.close().about(place.show())?;
    }
    Ok(0)
}
