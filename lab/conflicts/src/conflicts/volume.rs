//! A volume under test: calls are made as by a program, and only the library's part of each is
//! recorded.
//!
//! The caller's buffers lie on the caller's stack, which the recorder leaves out. What belongs to
//! the library counts wherever it lies, so also the inside of a [`File`].

use super::trace;
use lanefs::{Error, File, Fs, OpenOptions, Result, SetTime, Volume};
use lanefs_lab_model::op::{Fd, Name, Op, Outcome, When, Who};
use lanefs_lab_model::target::volume::stat;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// On lines of its own.
#[repr(align(128))]
pub struct Apart<T>(pub T);

/// A counter that all lanes write: the conflict that a test plants.
#[derive(Default)]
#[repr(align(128))]
pub struct Planted {
    /// Calls made.
    pub calls: AtomicU64,
}

/// A volume, its handles and a view for each lane.
pub struct UnderTest {
    fs: Vec<Apart<Fs>>,
    open: Mutex<BTreeMap<Fd, Arc<Apart<File>>>>,
    planted: Option<Box<Planted>>,
}

impl UnderTest {
    /// An open volume, seen from `lanes` lanes.
    pub fn new(volume: &Volume, lanes: usize, plant: bool) -> UnderTest {
        UnderTest {
            fs: (0..lanes).map(|_| Apart(volume.as_user(Who::Root.cred()))).collect(),
            open: Mutex::default(),
            planted: plant.then(Box::default),
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<Fd, Arc<Apart<File>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call on a lane, recording it or not.
    pub fn call(&self, lane: usize, op: &Op, record: bool) -> Outcome {
        let rec = Recorder { on: record, planted: self.planted.as_deref() };
        self.act(lane, op, &rec).unwrap_or_else(|e| Outcome::Fail(e.errno()))
    }

    fn act(&self, lane: usize, op: &Op, rec: &Recorder<'_>) -> Result<Outcome> {
        let fs = &self.fs[lane].0;
        let file = |fd: &Fd| self.table().get(fd).cloned().ok_or(Error::Posix(libc::EBADF));
        // Paths, names and data are copied to the stack first.
        macro_rules! text {
            ($name:ident, $from:expr) => {
                let mut space = [0u8; 512];
                let $name = on_stack($from, &mut space)?;
            };
        }
        let done = |r: Result<()>| r.map(|()| Outcome::Done);
        match op {
            Op::Open { fd, path, flags, mode } => {
                text!(path, path);
                let options = OpenOptions { flags: *flags, mode: *mode };
                let f = rec.of(|| fs.open(path, &options))?;
                let old = self.table().insert(*fd, Arc::new(Apart(f)));
                if old.is_some() { Err(Error::Posix(libc::EMFILE)) } else { Ok(Outcome::Done) }
            }
            Op::Close { fd } => {
                let f = self.table().remove(fd).ok_or(Error::Posix(libc::EBADF))?;
                let f = Arc::into_inner(f).ok_or(Error::Posix(libc::EBUSY))?;
                let f = f.0;
                rec.of(|| drop(f));
                Ok(Outcome::Done)
            }
            Op::Mkdir { path, mode } => {
                text!(path, path);
                done(rec.of(|| fs.mkdir(path, *mode)))
            }
            Op::Mknod { path, mode } => {
                text!(path, path);
                done(rec.of(|| fs.mknod(path, *mode, 0)))
            }
            Op::Rmdir { path } => {
                text!(path, path);
                done(rec.of(|| fs.rmdir(path)))
            }
            Op::Unlink { path } => {
                text!(path, path);
                done(rec.of(|| fs.unlink(path)))
            }
            Op::Link { old, new } => {
                text!(old, old);
                text!(new, new);
                done(rec.of(|| fs.link(old, new)))
            }
            Op::Symlink { target, path } => {
                text!(target, target);
                text!(path, path);
                done(rec.of(|| fs.symlink(target, path)))
            }
            Op::Readlink { path } => {
                text!(path, path);
                rec.of(|| fs.readlink(path)).map(Outcome::Bytes)
            }
            Op::Rename { old, new, flags } => {
                text!(old, old);
                text!(new, new);
                done(rec.of(|| fs.rename2(old, new, *flags)))
            }
            Op::Readdir { path } => {
                text!(path, path);
                let mut found = [([0u8; 64], 0usize, 0u8, 0u64); 32];
                let mut n = 0;
                let r = rec.of(|| {
                    fs.read_dir_from(path, 0, &mut |e| {
                        if n < found.len() && e.name.len() <= 64 {
                            let (name, len, kind, ino) = &mut found[n];
                            name[..e.name.len()].copy_from_slice(e.name);
                            (*len, *kind, *ino) = (e.name.len(), (e.kind.mode_bits() >> 12) as u8, e.ino.0);
                        }
                        n += 1;
                        true
                    })
                });
                r?;
                if n > found.len() {
                    return Err(Error::Posix(libc::EOVERFLOW));
                }
                let list = found[..n]
                    .iter()
                    .map(|(name, len, kind, ino)| (Name(name[..*len].to_vec()), (*kind, *ino)));
                Ok(Outcome::List(list.filter(|e| e.0.0 != b"." && e.0.0 != b"..").collect()))
            }
            Op::Stat { path } => {
                text!(path, path);
                rec.of(|| fs.stat(path)).map(stat)
            }
            Op::Lstat { path } => {
                text!(path, path);
                rec.of(|| fs.lstat(path)).map(stat)
            }
            Op::Fstat { fd } => {
                let f = file(fd)?;
                rec.of(|| f.0.stat()).map(stat)
            }
            Op::Chmod { path, mode } => {
                text!(path, path);
                done(rec.of(|| fs.chmod(path, *mode)))
            }
            Op::Chown { path, uid, gid, follow } => {
                text!(path, path);
                done(rec.of(|| fs.chown(path, *uid, *gid, *follow)))
            }
            Op::Utimens { path, atime, mtime } => {
                text!(path, path);
                let t = |w: &When| match w {
                    When::Keep => None,
                    When::Now => Some(SetTime::Now),
                    When::At(t) => Some(SetTime::At(*t)),
                };
                let (a, m) = (t(atime), t(mtime));
                done(rec.of(|| fs.set_times(path, a, m, true)))
            }
            Op::Truncate { path, size } => {
                text!(path, path);
                done(rec.of(|| fs.truncate(path, *size)))
            }
            Op::Ftruncate { fd, size } => {
                let f = file(fd)?;
                done(rec.of(|| f.0.set_len(*size)))
            }
            Op::Read { fd, len } => {
                let f = file(fd)?;
                let mut space = [0u8; 4096];
                let buf = &mut space[..(*len as usize).min(4096)];
                let n = rec.of(|| f.0.read(buf))?;
                Ok(Outcome::Bytes(space[..n].to_vec()))
            }
            Op::Pread { fd, offset, len } => {
                let f = file(fd)?;
                let mut space = [0u8; 4096];
                let buf = &mut space[..(*len as usize).min(4096)];
                let n = rec.of(|| f.0.read_at(buf, *offset))?;
                Ok(Outcome::Bytes(space[..n].to_vec()))
            }
            Op::Write { fd, data } => {
                let f = file(fd)?;
                let append = f.0.flags() & libc::O_APPEND != 0;
                let at = if append { f.0.stat()?.size } else { f.0.lseek(0, libc::SEEK_CUR)? };
                let mut space = [0u8; 4096];
                let buf = data_on_stack(&data.bytes(at), &mut space);
                rec.of(|| f.0.write(buf)).map(|n| Outcome::Count(n as u64))
            }
            Op::Pwrite { fd, offset, data } => {
                let f = file(fd)?;
                let mut space = [0u8; 4096];
                let buf = data_on_stack(&data.bytes(*offset), &mut space);
                rec.of(|| f.0.write_at(buf, *offset)).map(|n| Outcome::Count(n as u64))
            }
            Op::Lseek { fd, offset, whence } => {
                let f = file(fd)?;
                rec.of(|| f.0.lseek(*offset, *whence)).map(Outcome::Count)
            }
            Op::Fsync { fd } => {
                let f = file(fd)?;
                done(rec.of(|| f.0.sync_all()))
            }
            Op::Fdatasync { fd } => {
                let f = file(fd)?;
                done(rec.of(|| f.0.sync_data()))
            }
            Op::Sync => done(rec.of(|| fs.volume().sync())),
            Op::Checkpoint => done(rec.of(|| fs.volume().checkpoint())),
            Op::Setxattr { path, name, value, flags } => {
                text!(path, path);
                text!(name, name);
                let mut space = [0u8; 4096];
                let value = data_on_stack(&value.bytes(0), &mut space);
                done(rec.of(|| fs.setxattr(path, name, value, *flags)))
            }
            Op::Getxattr { path, name } => {
                text!(path, path);
                text!(name, name);
                rec.of(|| fs.getxattr(path, name)).map(Outcome::Bytes)
            }
            Op::Access { path, mask } => {
                text!(path, path);
                done(rec.of(|| fs.access(path, *mask)))
            }
            _ => Ok(Outcome::Unsupported),
        }
    }
}

struct Recorder<'a> {
    on: bool,
    planted: Option<&'a Planted>,
}

impl Recorder<'_> {
    #[inline(always)]
    fn of<R>(&self, f: impl FnOnce() -> R) -> R {
        if !self.on {
            return f();
        }
        trace::during(|| {
            if let Some(p) = self.planted {
                count_call(p);
            }
            f()
        })
    }
}

#[inline(never)]
fn count_call(planted: &Planted) {
    planted.calls.fetch_add(1, Relaxed);
}

fn on_stack<'a>(from: &Name, space: &'a mut [u8; 512]) -> Result<&'a [u8]> {
    let n = from.0.len();
    space.get_mut(..n).ok_or(Error::Posix(libc::ENAMETOOLONG))?.copy_from_slice(&from.0);
    Ok(&space[..n])
}

fn data_on_stack<'a>(from: &[u8], space: &'a mut [u8; 4096]) -> &'a [u8] {
    let n = from.len().min(4096);
    space[..n].copy_from_slice(&from[..n]);
    &space[..n]
}

/// A device on which a checkpoint can be stopped: the thread that armed it waits at its n-th write
/// until it is let go.
#[derive(Debug)]
pub struct Gate {
    inner: Arc<dyn Device>,
    /// Writes until the stop; negative: open.
    left: std::sync::atomic::AtomicI64,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum GateState {
    #[default]
    Open,
    Armed,
    Stopped,
}

impl Gate {
    /// A device with an open gate.
    pub fn new(inner: Arc<dyn Device>) -> Gate {
        Gate { inner, left: (-1).into(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Stops the next thread at its `n`-th write from now on (1: the next).
    pub fn arm(&self, n: i64) {
        *self.lock() = GateState::Armed;
        self.left.store(n, SeqCst);
    }

    /// Waits until a thread has stopped, or the gate was opened because none came.
    pub fn wait_stopped(&self) {
        let mut s = self.lock();
        while *s == GateState::Armed {
            s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets it go; later writes pass.
    pub fn open(&self) {
        self.left.store(-1, SeqCst);
        *self.lock() = GateState::Open;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) {
        if self.left.load(SeqCst) < 0 || self.left.fetch_sub(1, SeqCst) != 1 {
            return;
        }
        // What the stop itself does is no business of the file system's.
        trace::set_recording(false);
        self.left.store(-1, SeqCst);
        {
            let mut s = self.lock();
            if *s == GateState::Armed {
                *s = GateState::Stopped;
                self.changed.notify_all();
                while *s == GateState::Stopped {
                    s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        // From here on the checkpoint is recorded: its seal is behind it.
        trace::start_anew();
    }
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        self.pass();
        self.inner.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.inner.flush()
    }
    fn needs_flush(&self) -> bool {
        self.inner.needs_flush()
    }
    /// A hint, which costs a forked device more than all the rest of a test.
    fn discard(&self, _offset: u64, _len: u64) -> lanefs_store::Result<()> {
        Ok(())
    }
}
