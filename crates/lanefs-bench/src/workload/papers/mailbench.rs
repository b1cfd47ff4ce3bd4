//! mailbench (ScaleFS 7.4): a mail server's queue and delivery, six fsyncs a message. Spools are
//! per worker; mailboxes are maildirs (a directory with `tmp`, `new` and `cur`), of the worker's
//! own (`-p`) or a thousand shared ones (`-s`).
//!
//! Queueing: the message is written under `pid`, fsynced (1), renamed into `mess`, which is fsynced
//! (2); the envelope is written into `todo`, fsynced (3), and so is `todo` (4). Delivery: envelope
//! and message are read, the message written into the mailbox's `tmp`, fsynced (5), renamed into
//! `new`, which is fsynced (6); envelope and message are removed from the spool.

use super::{create_synced, read_whole};
use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::rng::Rng;
use crate::target::{Target, flags};
use crate::workload::{Block, Cx, as_bytes, buffer};

/// Bytes of a message.
const MESSAGE: usize = 4096;
/// Messages a worker delivers before the mailboxes are emptied, untimed.
const STOCK: usize = 2000;

/// One worker.
pub struct Mailbench {
    id: usize,
    spool: Name,
    boxes: Name,
    users: u64,
    next: u64,
    delivered: Vec<Name>,
    message: Vec<Block>,
    buf: Vec<Block>,
    rng: Rng,
}

/// Makes the maildir `path`.
pub fn make_box<T: Target>(cx: &Cx<'_, T>, path: &Name) -> Res<()> {
    cx.ensure_dir(path)?;
    for sub in ["/tmp", "/new", "/cur"] {
        cx.ensure_dir(&path.join(sub))?;
    }
    Ok(())
}

impl Mailbench {
    /// Makes worker `id`, delivering to the mailboxes `boxes` plus 0..`users`.
    pub fn new<T: Target>(cx: &Cx<'_, T>, id: usize, boxes: Name, users: u64) -> Res<Mailbench> {
        debug_assert!(users > 0, "a message has a receiver");
        let spool = cx.private(id)?;
        for sub in ["pid", "mess", "todo"] {
            cx.ensure_dir(&spool.join(sub))?;
        }
        Ok(Mailbench {
            id,
            spool,
            boxes,
            users,
            next: 0,
            delivered: Vec::with_capacity(STOCK),
            message: buffer(MESSAGE),
            buf: buffer(1 << 16),
            rng: Rng::new(id as u64),
        })
    }

    /// Queues and delivers one message.
    pub fn deliver<T: Target>(&mut self, target: &T) -> Op<u32> {
        if self.delivered.len() == STOCK {
            return Ok(0);
        }
        let n = self.next;
        self.next += 1;
        let named = |dir: &Name, sub: &str| {
            let mut name = dir.join(sub);
            name.push("/").num(n);
            name
        };
        let text = as_bytes(&self.message);
        let (pid, mess, todo) =
            (named(&self.spool, "pid"), named(&self.spool, "mess"), named(&self.spool, "todo"));
        create_synced(target, &pid, text)?;
        target.rename(&pid, &mess)?;
        target.sync_dir(&self.spool.join("mess"))?;
        create_synced(target, &todo, &text[..64])?;
        target.sync_dir(&self.spool.join("todo"))?;

        read_whole(&target.open(&todo, flags::READ)?, &mut self.buf)?;
        read_whole(&target.open(&mess, flags::READ)?, &mut self.buf)?;
        let mut mailbox = self.boxes.clone();
        mailbox.num(self.rng.below(self.users));
        let (mut tmp, mut new) = (mailbox.join("/tmp/"), mailbox.join("/new/"));
        for name in [&mut tmp, &mut new] {
            name.num(self.id as u64).push("-").num(n);
        }
        create_synced(target, &tmp, text)?;
        target.rename(&tmp, &new)?;
        target.sync_dir(&mailbox.join("/new"))?;
        target.unlink(&todo)?;
        target.unlink(&mess)?;
        self.delivered.push(new);
        debug_assert!(self.delivered.len() <= STOCK);
        Ok(1)
    }

    /// Empties the mailboxes of what this worker delivered.
    pub fn empty<T: Target>(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        for name in self.delivered.drain(..) {
            cx.target.unlink(&name).at(format!("unlink {name}"))?;
        }
        Ok(())
    }
}
