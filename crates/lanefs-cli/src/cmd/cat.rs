//! `lanefs cat`

use crate::failure::{About, Outcome, plain, written};
use crate::image::Place;
use lanefs::OpenOptions;
use std::io::Write;

/// Write files of an unmounted image to standard output
///
/// With --keep-going what cannot be read is zeros, so that all else stays where it is, and is
/// reported on standard error. Exit code: 1 if anything could not be read.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Go on past what cannot be read, and say what it was
    #[arg(long)]
    pub keep_going: bool,
    /// What to write, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<Place>,
}

/// Writes.
pub fn run(args: &Args) -> Outcome {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; 1 << 20];
    let mut code = 0;
    for place in &args.places {
        let (_volume, fs) = place.open_to_read()?;
        let options = OpenOptions { flags: libc::O_RDONLY, mode: 0 };
        let file = match fs.open(place.path.as_path(), &options).about(place.show()) {
            Err(e) if args.keep_going => {
                eprintln!("lanefs: {}", e.message);
                code = 1;
                continue;
            }
            file => file?,
        };
        let mut skipped = Skipped::default();
        let mut at = 0;
        loop {
            let n = match file.read_at(&mut buffer, at) {
                Err(lanefs::Error::Store(_) | lanefs::Error::Posix(libc::EIO)) if args.keep_going => {
                    let size = file.stat().about(place.show())?.size;
                    skipped.read(&file, &mut buffer, at, size)
                }
                n => n.about(place.show())?,
            };
            if n == 0 {
                break;
            }
            written(out.write_all(&buffer[..n]))?;
            at += n as u64;
        }
        for (from, to) in &skipped.ranges {
            let place = plain(place.show());
            eprintln!("lanefs: {place}: bytes {from} to {} cannot be read; they are zeros", to - 1);
            code = 1;
        }
    }
    written(out.flush())?;
    Ok(code)
}

/// Parts of a file that could not be read.
#[derive(Default)]
pub struct Skipped {
    /// Their first bytes, and those behind their last.
    pub ranges: Vec<(u64, u64)>,
}

impl Skipped {
    /// Reads as `read_at` does, page by page, with zeros for those that cannot be read.
    pub fn read(&mut self, file: &lanefs::File, buffer: &mut [u8], at: u64, size: u64) -> usize {
        const PAGE: u64 = 4096;
        debug_assert!(at <= size, "behind the end nothing is read, so nothing fails");
        let end = size.min(at + buffer.len() as u64);
        let mut pos = at;
        while pos < end {
            let next = end.min((pos / PAGE + 1) * PAGE);
            let part = &mut buffer[(pos - at) as usize..(next - at) as usize];
            if !matches!(file.read_at(part, pos), Ok(n) if n == part.len()) {
                part.fill(0);
                match self.ranges.last_mut().filter(|r| r.1 == pos) {
                    Some(last) => last.1 = next,
                    None => self.ranges.push((pos, next)),
                }
            }
            pos = next;
        }
        debug_assert!(self.ranges.iter().all(|(from, to)| from < to));
        debug_assert!(self.ranges.is_sorted_by(|a, b| a.1 < b.0), "parts that touch are one");
        (end - at) as usize
    }
}
