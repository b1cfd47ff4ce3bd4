//! `lanefs cp`

use crate::endpoint::{CopyAttrs, Endpoint, Id, ImageEndpoint, Meta};
use crate::failure::{About, Failure, Outcome, plain, without_numbers};
use crate::host::HostEndpoint;
use crate::image::{Anywhere, Place};
use crate::progress;
use indicatif::ProgressBar;
use lanefs::{Cred, FileKind, Volume};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Copy files into, out of and between unmounted images
///
/// A copy has the content (holes stay holes), the permission bits and the targets of symbolic
/// links, and belongs to who copies. With -p it also keeps times, extended attributes (user,
/// trusted and security), ACLs, hard links between files of one copy, and, for root, owner and
/// group with the setuid and setgid bits. What the other side cannot keep is reported.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Copy directories and all that is in them
    #[arg(short, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep times, extended attributes, ACLs and hard links; for root owner and group too
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
    /// Returns the endpoint of a place whose volume was opened.
    fn endpoint(&mut self, place: &Place) -> Result<Box<dyn Endpoint>, Failure> {
        let known = self.volumes.iter().position(|(images, ..)| same(images, &place.images));
        let at = known.expect("every volume named was opened first");
        Ok(Box::new(ImageEndpoint::new(self.volumes[at].1.clone(), place, at + 1)))
    }

    /// Opens a place's volume, unless it is open.
    fn open(&mut self, place: &Place, write: bool) -> Result<(), Failure> {
        if !self.volumes.iter().any(|(images, ..)| same(images, &place.images)) {
            let (volume, _) = if write { place.open_to_write()? } else { place.open_to_read()? };
            self.volumes.push((place.images.clone(), volume, write));
        }
        Ok(())
    }
}

/// Returns whether two lists name the same images.
fn same(a: &[PathBuf], b: &[PathBuf]) -> bool {
    let whole =
        |p: &[PathBuf]| p.iter().map(|i| i.canonicalize().unwrap_or_else(|_| i.clone())).collect::<Vec<_>>();
    whole(a) == whole(b)
}

/// A run of the command.
struct Copy<'a> {
    args: &'a Args,
    bar: ProgressBar,
    cred: Cred,
    /// The images that are open, as files of the host.
    images: Vec<Id>,
    /// With -p: the places that files with several names were copied to.
    linked: RefCell<HashMap<Id, PathBuf>>,
    /// Extended attributes of which it was reported that they are not kept.
    reported: RefCell<HashSet<(Vec<u8>, i32)>>,
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
    let mut endpoint = |at: &Anywhere| -> Result<(Box<dyn Endpoint>, PathBuf), Failure> {
        Ok(match at {
            Anywhere::Host(path) => (Box::new(HostEndpoint::new(path)) as Box<dyn Endpoint>, path.clone()),
            Anywhere::Image(place) => (opened.endpoint(place)?, place.path.clone()),
        })
    };
    let (to, to_path) = endpoint(&args.to)?;
    let into_dir = to.stat(&to_path, true)?.is_some_and(|m| m.kind == FileKind::Dir);
    if !into_dir && (args.from.len() > 1 || super::ls::wants_dir(&to_path)) {
        return Err(Failure::new(format_args!("{}: not a directory; make it first", to.show(&to_path))));
    }
    let mut sources = Vec::new();
    let mut total = 0;
    for from in &args.from {
        let (endpoint, path) = endpoint(from)?;
        total += size_of_tree(&*endpoint, &path, args.recursive)?;
        sources.push((endpoint, path));
    }
    let images = opened.volumes.iter().flat_map(|(images, ..)| images);
    let copy = Copy {
        args,
        bar: progress::bytes(total, "copying"),
        cred: Cred::current(),
        images: images.filter_map(|i| Some(HostEndpoint::new(i).stat(i, true).ok()??.id)).collect(),
        linked: RefCell::default(),
        reported: RefCell::default(),
    };
    let target = |path: &Path| match (into_dir, path.file_name()) {
        (true, Some(name)) => to_path.join(name),
        _ => to_path.clone(),
    };
    // What is refused is refused before anything is changed.
    for (from, path) in &sources {
        copy.check(&**from, path, &*to, &target(path))?;
    }
    for (from, path) in &sources {
        copy.any(&**from, path, &*to, &target(path), true)?;
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

fn missing(endpoint: &dyn Endpoint, path: &Path) -> Failure {
    Failure::new(format_args!("{}: no such file or directory", endpoint.show(path)))
}

/// Counts the bytes to copy, for the progress bar.
fn size_of_tree(endpoint: &dyn Endpoint, path: &Path, recursive: bool) -> Result<u64, Failure> {
    let meta = endpoint.stat(path, !recursive)?.ok_or_else(|| missing(endpoint, path))?;
    Ok(match meta.kind {
        FileKind::File => meta.size,
        FileKind::Dir if recursive => {
            let mut sum = 0;
            for name in endpoint.list(path)? {
                sum += size_of_tree(endpoint, &path.join(name), true).unwrap_or(0);
            }
            sum
        }
        _ => 0,
    })
}

/// Returns whether `path`, which need not be there, lies below the directory `id`.
fn is_inside(endpoint: &dyn Endpoint, path: &Path, id: Id) -> Result<bool, Failure> {
    let mut at = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => path.to_path_buf(),
    };
    let mut below = None;
    while let Some(meta) = endpoint.stat(&at, true)? {
        if meta.id == id {
            return Ok(true);
        }
        if below == Some(meta.id) {
            break; // The root is its own parent.
        }
        below = Some(meta.id);
        at.push("..");
    }
    Ok(false)
}

impl Copy<'_> {
    /// Refuses a copy onto itself or into itself, and the images themselves.
    fn check(
        &self,
        from: &dyn Endpoint,
        path: &Path,
        to: &dyn Endpoint,
        target: &Path,
    ) -> Result<(), Failure> {
        let meta = from.stat(path, !self.args.recursive)?.ok_or_else(|| missing(from, path))?;
        if self.images.contains(&meta.id) {
            let path = from.show(path);
            return Err(Failure::new(format_args!(
                "{path}: is an image in use by this copy; copy it with cp(1)"
            )));
        }
        self.refuse_same(from, path, &meta, to, target)?;
        if meta.kind == FileKind::Dir && self.args.recursive && is_inside(to, target, meta.id)? {
            let (path, target) = (from.show(path), to.show(target));
            return Err(Failure::new(format_args!("cannot copy a directory, {path}, into itself, {target}")));
        }
        Ok(())
    }

    /// Refuses a copy of a file onto itself, or onto an image.
    fn refuse_same(
        &self,
        from: &dyn Endpoint,
        path: &Path,
        meta: &Meta,
        to: &dyn Endpoint,
        target: &Path,
    ) -> Result<(), Failure> {
        // The content of a file goes through a link at its target.
        let through = matches!(meta.kind, FileKind::File | FileKind::Dir);
        let Some(there) = to.stat(target, through)? else { return Ok(()) };
        if there.id == meta.id {
            let (path, target) = (from.show(path), to.show(target));
            return Err(Failure::new(format_args!("{path} and {target} are the same file")));
        }
        if self.images.contains(&there.id) {
            let target = to.show(target);
            return Err(Failure::new(format_args!(
                "{target}: is an image in use by this copy; name another file to write to"
            )));
        }
        Ok(())
    }

    /// Returns what the copy takes over from its source.
    fn attrs_for(&self, from: &dyn Endpoint, path: &Path, meta: &Meta) -> Result<CopyAttrs, Failure> {
        let keep = self.args.preserve;
        let uid = (keep && self.cred.is_root()).then_some(meta.uid);
        let gid = (keep && (self.cred.is_root() || self.cred.in_group(meta.gid))).then_some(meta.gid);
        let mut mode = meta.mode & 0o1777;
        // A program runs as its owner only if that is still the same.
        if keep && uid.unwrap_or(self.cred.uid) == meta.uid {
            mode |= meta.mode & libc::S_ISUID;
        }
        if gid.is_some() {
            mode |= meta.mode & libc::S_ISGID;
        }
        debug_assert!(mode & libc::S_ISUID == 0 || uid.unwrap_or(self.cred.uid) == meta.uid);
        debug_assert!(mode & libc::S_ISGID == 0 || gid == Some(meta.gid), "it would run as another group");
        Ok(CopyAttrs {
            kind: meta.kind,
            uid,
            gid,
            mode: (meta.kind != FileKind::Symlink).then_some(mode),
            times: keep.then_some((meta.atime, meta.mtime)),
            xattrs: if keep { Some(from.xattrs(path, meta.kind)?) } else { None },
        })
    }

    /// Reports, once each, the extended attributes that are not kept.
    fn report(&self, to: &dyn Endpoint, target: &Path, refused: crate::endpoint::Refused) {
        for (name, errno) in refused {
            if self.reported.borrow_mut().insert((name.clone(), errno.raw_os_error())) {
                let (target, name) = (to.show(target), String::from_utf8_lossy(&name));
                let why = without_numbers(&std::io::Error::from(errno).to_string());
                let line = plain(format_args!("{target}: {name} is not kept: {why}"));
                self.bar.suspend(|| eprintln!("lanefs: {line}"));
            }
        }
    }

    /// Copies a file of any kind.
    fn any(
        &self,
        from: &dyn Endpoint,
        path: &Path,
        to: &dyn Endpoint,
        target: &Path,
        top: bool,
    ) -> Result<(), Failure> {
        let follow = top && !self.args.recursive;
        let meta = from.stat(path, follow)?.ok_or_else(|| missing(from, path))?;
        let several = self.args.preserve && meta.nlink > 1 && meta.kind != FileKind::Dir;
        if let Some(first) = several.then(|| self.linked.borrow().get(&meta.id).cloned()).flatten() {
            self.refuse_same(from, path, &meta, to, target)?;
            self.bar.inc(if meta.kind == FileKind::File { meta.size } else { 0 });
            let there = |path: &Path| -> Result<_, Failure> { Ok(to.stat(path, false)?.map(|m| m.id)) };
            return if there(&first)? == there(target)? { Ok(()) } else { to.link(&first, target) };
        }
        match meta.kind {
            FileKind::Dir if !self.args.recursive => {
                return Err(Failure::new(format_args!(
                    "{}: is a directory; give -r to copy it",
                    from.show(path)
                )));
            }
            FileKind::Dir => {
                to.mkdir(target, meta.mode)?;
                for name in from.list(path)? {
                    self.any(from, &path.join(&name), to, &target.join(&name), false)?;
                }
            }
            FileKind::File => self.file(from, path, to, target, &meta)?,
            FileKind::Symlink => to.symlink(&from.readlink(path)?, target)?,
            _ => to.mknod(target, meta.mode, meta.rdev)?,
        }
        let attrs = self.attrs_for(from, path, &meta)?;
        self.report(to, target, to.set_attrs(target, &attrs)?);
        if several {
            self.linked.borrow_mut().insert(meta.id, target.to_path_buf());
        }
        Ok(())
    }

    /// Copies content: holes are passed over, and runs of zeros become holes.
    fn file(
        &self,
        from: &dyn Endpoint,
        path: &Path,
        to: &dyn Endpoint,
        target: &Path,
        meta: &Meta,
    ) -> Result<(), Failure> {
        const CHUNK: usize = 1 << 20;
        const HOLE: usize = 64 << 10;
        self.refuse_same(from, path, meta, to, target)?;
        let source = from.open(path)?;
        // Extended attributes are set, and nobody else comes in, before it has its own mode.
        let mode = if self.args.preserve { meta.mode & 0o700 | 0o600 } else { meta.mode };
        let sink = to.create(target, mode)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        loop {
            // Behind the end it grew, or it is one of those that do not report their size.
            let next = if at < meta.size { source.next_data(at)?.unwrap_or(meta.size) } else { at };
            debug_assert!(next >= at, "the next data begins at or behind an offset");
            self.bar.inc(next - at);
            at = next;
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
