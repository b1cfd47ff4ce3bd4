//! A file system small enough to be surely right, and to be surely wrong on purpose: the reference
//! model with one journal of all steps. It shows that the simulator accepts what is right and
//! catches what is not, without LaneFS.
//!
//! Block `n` holds record `n`: magic, checksum, number, count, and from the block's end backwards
//! indices into the list of steps of this process (which stands for their encoding). A sync writes
//! the steps since the last record and flushes. Recovery replays records until one is missing or
//! damaged.

use super::image::BLOCK;
use super::system::{Live, System};
use lanefs::Order;
use lanefs_lab_model::model::{Change, Id, Model, Persist};
use lanefs_lab_model::op::{Op, Outcome, Step, Who};
use lanefs_lab_model::target::Target;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use std::sync::{Arc, Mutex, PoisonError};

/// A bug of a [`Toy`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Nothing.
    None,
    /// fsync answers without a flush.
    SkippedFlush,
    /// fsync answers before it writes; the write comes with the next call.
    EarlyAnswer,
    /// Recovery does not look at the checksum.
    UncheckedRecord,
    /// Only the last step before an fsync is written.
    DroppedDependency,
    /// fsync writes nothing when the file was not written since its last fsync, although it was
    /// renamed.
    StaleClean,
    /// Recovery takes a record although one before it is missing.
    Gap,
    /// A rename is written as a link in one record and an unlink in the next.
    SplitRename,
    /// Recovery replays one step more than was written: what was never called.
    FromTheFuture,
    /// Shrinking forgets to clear the last block.
    OldTail,
    /// Recovery starts a second one in the same place and leaves it half done.
    HalfRecovery,
    /// The mode a file was given is not journalled.
    LostMode,
    /// Rights are journalled only when their own inode is made durable, out of the order of names.
    RightsBeside,
}

impl Bug {
    /// All planted bugs.
    pub const ALL: [Bug; 12] = [
        Bug::SkippedFlush,
        Bug::EarlyAnswer,
        Bug::UncheckedRecord,
        Bug::DroppedDependency,
        Bug::StaleClean,
        Bug::Gap,
        Bug::SplitRename,
        Bug::FromTheFuture,
        Bug::OldTail,
        Bug::HalfRecovery,
        Bug::LostMode,
        Bug::RightsBeside,
    ];
}

/// The toy.
#[derive(Debug)]
pub struct Toy {
    /// The bug that it has.
    pub bug: Bug,
    /// The order that it promises. It always journals in the order of the calls.
    pub order: Order,
    steps: Arc<Mutex<Vec<Step>>>,
}

const MAGIC: u64 = 0x746f_795f_6a72_6e6c;

fn checksum(b: &[u8; BLOCK]) -> u64 {
    b[24..].iter().fold(0xcbf2_9ce4_8422_2325, |h, x| (h ^ u64::from(*x)).wrapping_mul(0x100_0000_01b3))
}

impl Toy {
    /// A toy with a bug.
    pub fn new(bug: Bug) -> Toy {
        let order = if bug == Bug::RightsBeside { Order::Ordered } else { Order::Relaxed };
        Toy { bug, order, steps: Arc::default() }
    }
}

impl System for Toy {
    fn format(&self, _: &[Arc<dyn Device>]) -> Result<(), String> {
        Ok(())
    }

    fn order(&self) -> Order {
        self.order
    }

    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String> {
        let device = devices[0].clone();
        let mut model = Model::new();
        let mut next = 0;
        let mut misses = 0;
        let all = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut last = 0;
        for block in 0..device.size() / BLOCK as u64 {
            let mut b = [0; BLOCK];
            device
                .read(&mut [ReadReq { offset: block * BLOCK as u64, data: &mut b }])
                .map_err(|e| e.to_string())?;
            let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| b[i * 8 + k]));
            let good = word(0) == MAGIC && word(1) == checksum(&b) && word(3) == block;
            let plausible = word(0) == MAGIC && self.bug == Bug::UncheckedRecord;
            if !good && !plausible {
                misses += 1;
                if self.bug == Bug::Gap && misses < 4 {
                    continue;
                }
                break;
            }
            for i in 0..word(4).min(500) as usize {
                last = word(511 - i) as usize;
                match all.get(last) {
                    Some(s) => drop(model.apply(s.who, &s.op)),
                    None => return Err("a record names no step".into()),
                }
            }
            next = block + 1;
        }
        if self.bug == Bug::FromTheFuture
            && next > 0
            && let Some(s) = all.get(last + 1)
        {
            model.apply(s.who, &s.op);
        }
        for fd in model.handles.keys().copied().collect::<Vec<_>>() {
            model.apply(Who::Root, &Op::Close { fd });
        }
        model.take_changes();
        // What was read may lie in a volatile cache that outlived the process alone: it is durable
        // before anything is concluded from it.
        device.flush().map_err(|e| e.to_string())?;
        let live = LiveToy {
            bug: self.bug,
            steps: self.steps.clone(),
            device,
            model,
            next,
            pending: vec![],
            beside: vec![],
            late: None,
            dirty: true,
        };
        if self.bug == Bug::HalfRecovery && next > 1 {
            // "Compacts" the journal into its first record, in place.
            let b = live.record(0, &[]);
            live.put(0, &b)?;
            live.device.flush().map_err(|e| e.to_string())?;
        }
        Ok(Box::new(live))
    }
}

struct LiveToy {
    bug: Bug,
    steps: Arc<Mutex<Vec<Step>>>,
    device: Arc<dyn Device>,
    model: Model,
    next: u64,
    pending: Vec<u64>,
    /// Steps that changed rights, each with its inode, if they are not journalled with the others.
    beside: Vec<(Id, u64)>,
    late: Option<Box<[u8; BLOCK]>>,
    dirty: bool,
}

impl LiveToy {
    fn record(&self, block: u64, steps: &[u64]) -> Box<[u8; BLOCK]> {
        let mut b = Box::new([0u8; BLOCK]);
        let mut set = |i: usize, v: u64| b[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
        set(3, block);
        set(4, steps.len() as u64);
        for (i, s) in steps.iter().enumerate().take(500) {
            set(511 - i, *s);
        }
        set(0, MAGIC);
        let sum = checksum(&b);
        b[8..16].copy_from_slice(&sum.to_le_bytes());
        b
    }

    fn put(&self, block: u64, b: &[u8; BLOCK]) -> Result<(), String> {
        self.device.write(&[WriteReq { offset: block * BLOCK as u64, data: b }]).map_err(|e| e.to_string())
    }

    fn commit(&mut self, op: &Op) -> Result<(), String> {
        let mut steps = std::mem::take(&mut self.pending);
        if self.bug == Bug::DroppedDependency {
            steps = steps.split_off(steps.len().saturating_sub(1));
        }
        if self.bug == Bug::StaleClean && !self.dirty && !matches!(op, Op::Sync) {
            self.pending = steps;
            return Ok(());
        }
        self.dirty = false;
        let halves: Vec<Vec<u64>> = if matches!(self.bug, Bug::SplitRename | Bug::Gap) && steps.len() > 1 {
            let at = steps.len() / 2;
            vec![steps[..at].to_vec(), steps[at..].to_vec()]
        } else {
            vec![steps]
        };
        for h in &halves {
            let b = self.record(self.next, h);
            self.next += 1;
            if self.bug == Bug::EarlyAnswer {
                self.late = Some(b);
            } else {
                self.put(self.next - 1, &b)?;
            }
        }
        if !matches!(self.bug, Bug::SkippedFlush | Bug::EarlyAnswer) {
            self.device.flush().map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Target for LiveToy {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        if let Some(b) = self.late.take()
            && self
                .put(self.next - 1, &b)
                .and_then(|()| self.device.flush().map_err(|e| e.to_string()))
                .is_err()
        {
            return Outcome::Fail(libc::EIO);
        }
        let out = self.model.apply(who, op);
        let changes = self.model.take_changes();
        let persists = changes.iter().any(|c| matches!(c, Change::Persist(_)));
        self.dirty |= changes
            .iter()
            .any(|c| matches!(c, Change::Page { .. } | Change::Size { .. } | Change::New { .. }));
        let handle_op = matches!(op, Op::Close { .. } | Op::Open { .. } | Op::Lseek { .. } | Op::Read { .. });
        let mut journal = |op: Op| {
            let mut all = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            self.pending.push(all.len() as u64);
            all.push(Step { who, op });
        };
        let done = matches!(out, Outcome::Done | Outcome::Count(_));
        match op {
            Op::Rename { old, new, flags: 0 } if self.bug == Bug::SplitRename && done => {
                journal(Op::Unlink { path: new.clone() });
                journal(Op::Link { old: old.clone(), new: new.clone() });
                journal(Op::Unlink { path: old.clone() });
            }
            Op::Chmod { .. } if self.bug == Bug::LostMode => {}
            Op::Chmod { .. } | Op::Chown { .. } if self.bug == Bug::RightsBeside && done => {
                journal(op.clone());
                let step = self.pending.pop();
                let id = changes
                    .iter()
                    .find_map(|c| if let Change::Attr { id, .. } = c { Some(*id) } else { None });
                self.beside.extend(id.zip(step));
            }
            Op::Ftruncate { fd, size } if self.bug == Bug::OldTail && done => {
                // Bytes behind the new end stay in the block and come back when the file grows.
                let at = size.saturating_sub(1);
                let data = lanefs_lab_model::op::Tagged { tag: 0xbad, len: 64 };
                journal(Op::Ftruncate { fd: *fd, size: *size });
                if *size > 0 {
                    journal(Op::Pwrite { fd: *fd, offset: at + 1, data });
                    journal(Op::Ftruncate { fd: *fd, size: at + 1 + 32 });
                }
            }
            _ if done && (!changes.is_empty() || handle_op) => journal(op.clone()),
            Op::Read { .. } => journal(op.clone()),
            _ => {}
        }
        for c in &changes {
            let Change::Persist(p) = c else { continue };
            let own = |id: Id| *p == Persist::All || *p == Persist::Inode(id);
            self.pending.extend(self.beside.extract_if(.., |b| own(b.0)).map(|b| b.1));
        }
        if persists && done && self.commit(op).is_err() {
            return Outcome::Fail(libc::EIO);
        }
        out
    }
}

impl Live for LiveToy {
    fn kill(self: Box<Self>) {}
}
