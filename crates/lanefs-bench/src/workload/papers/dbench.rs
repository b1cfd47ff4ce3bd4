//! dbench: replays a client's loadfile, again and again, each worker in a directory of its own; one
//! call is one operation.
//!
//! Calls that failed when they were recorded may fail here: a missing file, an existing directory.
//! Byte locks are not replayed.

use super::dbench_script::{Call, Script, load};
use crate::error::{Op, Res};
use crate::name::Name;
use crate::target::{Target, TargetFile, flags, remove_tree};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, as_bytes_mut, buffer};

/// The workload's name and description.
pub const INFO: Info = Info { name: "dbench", about: "replay of dbench's client.txt", unit: "calls" };

/// One worker.
pub struct Dbench<T: Target> {
    script: Script,
    at: usize,
    player: Player<T>,
}

/// The files and buffers that a worker's calls act on.
struct Player<T: Target> {
    base: Name,
    handles: Vec<Option<(T::File, Box<str>)>>,
    buf: Vec<Block>,
    /// dbench's `--sync-dir`.
    sync_dirs: bool,
}

/// Lets errors pass that a replay meets where the recording met something else.
fn tolerate<R>(result: Op<R>) -> Op<()> {
    match result {
        Ok(_) => Ok(()),
        Err(e)
            if [libc::ENOENT, libc::EEXIST, libc::ENOTEMPTY, libc::EISDIR, libc::ENOTDIR].contains(&e.0) =>
        {
            Ok(())
        }
        Err(e) => Err(e),
    }
}

impl<T: Target> Player<T> {
    /// Returns a path of the script below the worker's directory.
    fn path(&self, path: &str) -> Name {
        let mut name = self.base.join(path);
        if path.is_empty() {
            name.cut(name.len() - 1);
        }
        name
    }

    fn file(&self, handle: u16) -> Option<&T::File> {
        self.handles[usize::from(handle)].as_ref().map(|(file, _)| file)
    }

    /// Syncs the directory of what a call changed, if that is asked for.
    fn changed(&self, target: &T, path: &Name) -> Op<()> {
        if !self.sync_dirs {
            return Ok(());
        }
        debug_assert!(path.bytes().contains(&b'/'), "it lies in the worker's directory");
        let mut dir = path.clone();
        dir.cut(path.bytes().iter().rposition(|b| *b == b'/').unwrap_or(0));
        tolerate(target.sync_dir(&dir))
    }

    fn perform(&mut self, target: &T, call: &Call) -> Op<()> {
        match call {
            Call::Open { path, create, truncate, handle, ok } => {
                let how = flags::RW
                    | if *create { libc::O_CREAT } else { 0 }
                    | if *truncate { libc::O_TRUNC } else { 0 };
                let name = self.path(path);
                let opened = match target.open(&name, how) {
                    Err(e) if e.0 == libc::EISDIR => target.open(&name, flags::READ | libc::O_DIRECTORY),
                    other => other,
                };
                match opened {
                    Ok(file) if *ok => self.handles[usize::from(*handle)] = Some((file, path.clone())),
                    other => tolerate(other)?,
                }
            }
            Call::Mkdir { path } => tolerate(target.mkdir(&self.path(path)))?,
            Call::Close { handle } => self.handles[usize::from(*handle)] = None,
            Call::Read { handle, offset, size } => {
                let size = (*size as usize).min(self.buf.len() * 4096);
                // The buffer is taken out for the call: the file is borrowed from the same worker.
                let mut buf = std::mem::take(&mut self.buf);
                let done =
                    self.file(*handle).map(|f| f.read_at(&mut as_bytes_mut(&mut buf)[..size], *offset));
                self.buf = buf;
                done.transpose()?;
            }
            Call::Write { handle, offset, size } => {
                let size = (*size as usize).min(self.buf.len() * 4096);
                if let Some(file) = self.file(*handle) {
                    file.write_at(&as_bytes(&self.buf)[..size], *offset)?;
                }
            }
            Call::Unlink { path } => {
                let path = self.path(path);
                tolerate(target.unlink(&path))?;
                self.changed(target, &path)?;
            }
            Call::Rename { old, new } => {
                let new = self.path(new);
                tolerate(target.rename(&self.path(old), &new))?;
                self.changed(target, &new)?;
            }
            Call::Rmdir { path } => tolerate(target.rmdir(&self.path(path)))?,
            Call::Deltree { path } => tolerate(remove_tree(target, &self.path(path)))?,
            Call::Stat { path } => tolerate(target.stat(&self.path(path)))?,
            Call::Fstat { handle } => {
                self.file(*handle).map(T::File::size).transpose()?;
            }
            Call::Statfs => target.statfs().map(drop)?,
            Call::List { path } => tolerate(target.read_dir(&self.path(path), |_, _| ()))?,
            Call::SetTimes { handle } => {
                if let Some((_, path)) = &self.handles[usize::from(*handle)] {
                    tolerate(target.set_times_now(&self.path(path)))?;
                }
            }
            Call::Fsync { handle } => {
                self.file(*handle).map(T::File::sync).transpose()?;
            }
        }
        Ok(())
    }
}

impl<T: Target> Dbench<T> {
    /// Makes worker `id`; with `sync_dirs` every unlink and every rename syncs the directory.
    pub fn new(cx: &Cx<'_, T>, id: usize, sync_dirs: bool) -> Res<Self> {
        let player = Player {
            base: cx.private(id)?,
            handles: (0..=u16::MAX).map(|_| None).collect(),
            buf: buffer(1 << 17),
            sync_dirs,
        };
        Ok(Dbench { script: load(cx.params.loadfile.as_deref())?, at: 0, player })
    }
}

impl<T: Target> Workload<T> for Dbench<T> {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        load(cx.params.loadfile.as_deref()).map(drop)
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        Dbench::new(cx, id, false)
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        debug_assert!(self.at < self.script.len());
        self.player.perform(target, &self.script[self.at])?;
        self.at = (self.at + 1) % self.script.len();
        Ok(1)
    }
}
