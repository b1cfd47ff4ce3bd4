//! Devices that come, go, shrink and are replaced in the middle of a history.
//!
//! A change that is answered holds: from then on the volume opens with its devices of after it.
//! One that is refused (EINVAL, ENOSPC) has changed nothing. Of one that met an error of a device,
//! or the power cut, nobody knows: the volume has the devices of before or those of after, one of
//! the two must open, and the history ends there. Whatever it is, nothing that was acknowledged may
//! be lost, and nothing of the model changes. But what a device that is replaced does not give is
//! lost, and the answer says so: then what can be read without an error must have been written.

use super::device::SimDevice;
use super::{Before, Run};
use crate::crash::image::{BLOCK, Image};
use crate::crash::system::{Live, System};
use lanefs::{Error, Volume};
use lanefs_lab_model::op::{Op, Outcome, Tagged};
use lanefs_lab_model::oracle::{Violation, broken};
use lanefs_store::device::Device;
use std::path::Path;
use std::sync::Arc;

/// A change of a volume's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// One more, of so many blocks.
    Add(usize),
    Remove,
    /// The last one has so many blocks at the most.
    Shrink(u64),
    /// The last one is used as far as it goes.
    Grow,
    /// Another one in the place of this, with so many blocks more.
    Replace(usize, usize),
}

/// The devices of a volume, in order.
pub(super) type Members = Vec<Arc<SimDevice>>;

impl Run {
    /// Opens the volume with the devices that it has. If nobody knows, with those with which it
    /// opens; it has these from then on.
    pub(super) fn open(&mut self) -> Result<Box<dyn Live>, String> {
        let mut refused = String::new();
        for members in self.members.clone() {
            let devices = members.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            match self.system.open(devices) {
                Ok(live) => {
                    self.members = vec![members];
                    return Ok(live);
                }
                Err(e) => refused = [refused, e].join("; "),
            }
        }
        Err(refused)
    }

    /// Returns the moments of a history of `len` steps at which the devices change, the first one
    /// last.
    pub(super) fn changes_of(&mut self, len: usize) -> Vec<usize> {
        let rng = &mut self.changes;
        if self.lies || self.only_misreads || !rng.one_in(3) {
            return Vec::new();
        }
        let mut at: Vec<usize> = (0..=rng.below(4)).map(|_| rng.below(len as u64) as usize).collect();
        at.sort_unstable_by(|a, b| b.cmp(a));
        at
    }

    /// In half of the cases has files lie at the end of the volume, and nothing before them, so
    /// that they have to be moved where it is made smaller. All of it is durable.
    pub(super) fn use_the_end(&mut self, before: &mut Before<'_>) -> Result<(), Violation> {
        const CHUNK: u64 = 32 << 10;
        const FILE: u32 = 20_000;
        let rng = &mut self.changes;
        if rng.one_in(2) {
            return Ok(());
        }
        let all = (self.shape.blocks * BLOCK) as u64;
        let (low, files) = (all * (10 + rng.below(50)) / 100, 1 + rng.below(8));
        let mut call = |op: Op| before.call(op);
        let open = |fd: u8, path: &str| Op::Open {
            fd,
            path: path.into(),
            flags: libc::O_RDWR | libc::O_CREAT,
            mode: 0o600,
        };
        let write = |fd, offset, tag, len| Op::Pwrite { fd, offset, data: Tagged { tag, len } };
        let mut done = call(open(100, "/low"));
        // As much as fits, in any case.
        let _ = (0..low / CHUNK).all(|n| call(write(100, n * CHUNK, 2000 + n as u32, CHUNK as u32)));
        done &= call(Op::Sync);
        for n in 0..files {
            let fd = 101 + n as u8;
            done &= call(open(fd, &format!("/high{n}")));
            // Of one that does not fit there may be a part.
            done &= call(write(fd, 0, 3000 + n as u32, FILE)) || call(Op::Ftruncate { fd, size: 0 });
        }
        done &= call(Op::Sync) && call(Op::Ftruncate { fd: 100, size: 0 }) && call(Op::Sync);
        *self.report.faults.entry("files at the end of the volume").or_default() += 1;
        if done { Ok(()) } else { Err(broken("E4", "no space for what a volume holds".into())) }
    }

    /// Changes the devices. Returns false if nobody knows whether it did.
    pub(super) fn change_devices(&mut self, live: &mut dyn Live) -> Result<bool, Violation> {
        let Some(before) = self.members.first().cloned() else { return Ok(false) };
        let Some(volume) = live.volume() else { return Ok(true) };
        let rng = &mut self.changes;
        let last = before.len() - 1;
        let change = match rng.below(6) {
            0 if last < 3 => Change::Add(192 + rng.below(512) as usize),
            1 if last > 0 => Change::Remove,
            2 => {
                let size = before[last].size();
                Change::Shrink(size - size * rng.below(60) / 100)
            }
            3 => Change::Grow,
            _ => Change::Replace(rng.below(before.len() as u64) as usize, rng.below(64) as usize),
        };
        let (after, done) = self.make(change, &before, volume);
        if self.lost {
            *self.report.faults.entry("blocks that could not be copied").or_default() += 1;
        }
        let name = format!("    {change:?}");
        self.transcript
            .push((name, done.as_ref().map_or_else(|e| Outcome::Fail(e.errno()), |()| Outcome::Done)));
        let what = match (&done, change) {
            (Ok(()), Change::Add(_)) => "device added",
            (Ok(()), Change::Remove) => "device removed",
            (Ok(()), Change::Shrink(_)) => "device made smaller",
            (Ok(()), Change::Grow) => "device made larger",
            (Ok(()), Change::Replace(0, _)) => "first device replaced",
            (Ok(()), Change::Replace(..)) => "another device replaced",
            (Err(e), _) if is_refusal(e) => "change of devices refused",
            (Err(_), _) => "change of devices cut short",
        };
        *self.report.faults.entry(what).or_default() += 1;
        self.note(what.len() as u64);
        match done {
            Ok(()) => self.members = vec![after],
            Err(e) if is_refusal(&e) => {}
            Err(_) => {
                self.members = vec![before, after];
                return Ok(false);
            }
        }
        let Some(now) = self.members.first() else { return Ok(false) };
        let names: Vec<&str> = now.iter().map(|d| d.name()).collect();
        if volume.device_names() != names {
            let has = volume.device_names();
            return Err(broken("answer", format!("after {change:?} the volume has {has:?}, not {names:?}")));
        }
        live.has_devices(now.iter().map(|d| d.clone() as Arc<dyn Device>).collect());
        Ok(true)
    }

    /// Makes the change. Returns the devices that the volume has if it is made.
    fn make(&mut self, change: Change, before: &Members, volume: &Volume) -> (Members, Result<(), Error>) {
        let mut after = before.clone();
        let name = |n: usize| Path::new(before[n].name());
        let done = match change {
            Change::Add(blocks) => {
                let new = self.another(blocks);
                after.push(new.clone());
                volume.add_open_device(new, true).map(drop)
            }
            Change::Remove => {
                after.pop();
                volume.remove_device(name(before.len() - 1)).map(drop)
            }
            Change::Shrink(bytes) => volume.shrink(bytes).map(drop),
            Change::Grow => volume.grow(None).map(drop),
            Change::Replace(n, more) => {
                let new = self.another(before[n].size() as usize / BLOCK + more);
                after[n] = new.clone();
                let done = volume.replace_with_open_device(name(n), new, true, &|_, _| ());
                done.map(|replaced| self.lost |= replaced.unreadable > 0)
            }
        };
        (after, done)
    }

    /// Makes a device that breaks as the others do.
    fn another(&mut self, blocks: usize) -> Arc<SimDevice> {
        let (n, seed) = (self.devices.len(), self.changes.bits());
        let new = Arc::new(SimDevice::new(Image::zeros(blocks), blocks, seed, n));
        new.set_rates(self.rates_now);
        self.devices.push(new.clone());
        self.told.push(0);
        new
    }
}

/// Returns whether nothing was changed.
fn is_refusal(e: &Error) -> bool {
    matches!(e.errno(), libc::EINVAL | libc::ENOSPC)
}
