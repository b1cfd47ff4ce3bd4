//! `lanefs cp`

use crate::failure::{About, Failure, Outcome};
use crate::image::{Anywhere, Place};
use crate::progress;
use crate::side::{HostSide, ImageSide, Meta, Side};
use indicatif::ProgressBar;
use lanefs::{FileKind, Volume};
use std::path::{Path, PathBuf};

/// Copy files into, out of and between unmounted images
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy directories and all that is in them
    #[arg(short, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep owner and times too
    #[arg(short)]
    pub preserve: bool,
    /// What to copy, as IMAGE:/path or a path of the host
    #[arg(required = true, value_name = "FROM")]
    pub from: Vec<Anywhere>,
    /// Where to, as IMAGE:/path or a path of the host
    #[arg(value_name = "TO")]
    pub to: Anywhere,
}

/// Volumes opened so far: an image named twice is opened once.
#[derive(Default)]
struct Opened {
    volumes: Vec<(Vec<PathBuf>, Volume, bool)>,
}

impl Opened {
    fn side(&mut self, place: &Place) -> Result<Box<dyn Side>, Failure> {
        let known = self.volumes.iter().find(|(images, ..)| same(images, &place.images));
        let volume = known.map(|(_, v, _)| v.clone()).expect("every volume named was opened first");
        Ok(Box::new(ImageSide::new(volume, place)))
    }

    fn open(&mut self, place: &Place, write: bool) -> Result<(), Failure> {
        if !self.volumes.iter().any(|(images, ..)| same(images, &place.images)) {
            let (volume, _) = if write { place.open_to_write()? } else { place.open_to_read()? };
            self.volumes.push((place.images.clone(), volume, write));
        }
        Ok(())
    }
}

fn same(a: &[PathBuf], b: &[PathBuf]) -> bool {
    let whole =
        |p: &[PathBuf]| p.iter().map(|i| i.canonicalize().unwrap_or_else(|_| i.clone())).collect::<Vec<_>>();
    whole(a) == whole(b)
}

struct Copy<'a> {
    args: &'a Args,
    bar: ProgressBar,
}

/// Copies.
pub fn run(args: &Args) -> Outcome {
    if !args.from.iter().chain([&args.to]).any(|a| matches!(a, Anywhere::Image(_))) {
        return Err(Failure::new("neither side is inside an image; write IMAGE:/path, or use cp(1)"));
    }
    let mut opened = Opened::default();
    if let Anywhere::Image(place) = &args.to {
        opened.open(place, true)?;
    }
    for from in &args.from {
        if let Anywhere::Image(place) = from {
            opened.open(place, false)?;
        }
    }
    let mut side = |at: &Anywhere| -> Result<(Box<dyn Side>, PathBuf), Failure> {
        Ok(match at {
            Anywhere::Host(path) => (Box::new(HostSide) as Box<dyn Side>, path.clone()),
            Anywhere::Image(place) => (opened.side(place)?, place.path.clone()),
        })
    };
    let (to, to_path) = side(&args.to)?;
    let into_dir = to.stat(&to_path, true)?.is_some_and(|m| m.kind == FileKind::Dir);
    if !into_dir && (args.from.len() > 1 || super::ls::wants_dir(&to_path)) {
        return Err(Failure::new(format_args!("{}: not a directory; make it first", to.show(&to_path))));
    }
    let mut sources = Vec::new();
    let mut total = 0;
    for from in &args.from {
        let (side, path) = side(from)?;
        total += size_of_tree(&*side, &path, args.recursive)?;
        sources.push((side, path));
    }
    let copy = Copy { args, bar: progress::bytes(total, "copying") };
    for (from, path) in &sources {
        let target = match (into_dir, path.file_name()) {
            (true, Some(name)) => to_path.join(name),
            _ => to_path.clone(),
        };
        copy.any(&**from, path, &*to, &target, true)?;
    }
    copy.bar.finish_and_clear();
    drop((to, sources));
    for (images, volume, write) in opened.volumes {
        if write {
            volume.close().about(images[0].display())?;
        }
    }
    Ok(0)
}

fn missing(side: &dyn Side, path: &Path) -> Failure {
    Failure::new(format_args!("{}: no such file or directory", side.show(path)))
}

/// Bytes to copy, for the progress bar.
fn size_of_tree(side: &dyn Side, path: &Path, recursive: bool) -> Result<u64, Failure> {
    let meta = side.stat(path, !recursive)?.ok_or_else(|| missing(side, path))?;
    Ok(match meta.kind {
        FileKind::File => meta.size,
        FileKind::Dir if recursive => {
            let mut sum = 0;
            for name in side.list(path)? {
                sum += size_of_tree(side, &path.join(name), true).unwrap_or(0);
            }
            sum
        }
        _ => 0,
    })
}

impl Copy<'_> {
    fn any(
        &self,
        from: &dyn Side,
        path: &Path,
        to: &dyn Side,
        target: &Path,
        top: bool,
    ) -> Result<(), Failure> {
        let follow = top && !self.args.recursive;
        let meta = from.stat(path, follow)?.ok_or_else(|| missing(from, path))?;
        match meta.kind {
            FileKind::Dir if !self.args.recursive => {
                return Err(Failure::new(format_args!(
                    "{}: is a directory; give -r to copy it",
                    from.show(path)
                )));
            }
            FileKind::Dir => {
                to.mkdir(target, meta.mode | 0o700)?;
                for name in from.list(path)? {
                    self.any(from, &path.join(&name), to, &target.join(&name), false)?;
                }
            }
            FileKind::File => self.file(from, path, to, target, &meta)?,
            FileKind::Symlink => to.symlink(&from.readlink(path)?, target)?,
            _ => to.mknod(target, meta.mode, meta.rdev)?,
        }
        to.set_meta(target, &meta, self.args.preserve)
    }

    /// Copies content; runs of zeros become holes.
    fn file(
        &self,
        from: &dyn Side,
        path: &Path,
        to: &dyn Side,
        target: &Path,
        meta: &Meta,
    ) -> Result<(), Failure> {
        const CHUNK: usize = 1 << 20;
        const HOLE: usize = 64 << 10;
        let source = from.open(path)?;
        let sink = to.create(target, meta.mode)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        loop {
            let n = source.read_at(&mut buffer, at)?;
            if n == 0 {
                break;
            }
            for (i, part) in buffer[..n].chunks(HOLE).enumerate() {
                if part.iter().any(|b| *b != 0) {
                    sink.write_at(part, at + (i * HOLE) as u64)?;
                }
            }
            at += n as u64;
            self.bar.inc(n as u64);
        }
        sink.set_len(at)
    }
}
