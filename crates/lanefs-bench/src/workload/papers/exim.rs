//! exim: a mail transfer agent's deliveries as FxMark and ScaleXFS run them, without fsync: the
//! message body and header are spooled into a split spool directory (the header under a temporary
//! name, then renamed), the message is appended to the user's mailbox and a line to the log, header
//! and body are deleted.

use crate::error::{Context, Op, Res};
use crate::name::Name;
use crate::rng::Rng;
use crate::target::{Target, TargetFile, flags};
use crate::workload::{Block, Cx, Info, Workload, as_bytes, buffer, write_all};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "exim", about: "mail delivery: spool, rename, append, delete; no fsync", unit: "messages" };

/// Exim splits its spool into 62 directories, one for each letter and digit.
const SPLIT: u64 = 62;
/// Bytes of a message.
const MESSAGE: usize = 20 << 10;
/// Mailboxes of a worker; each is cut back, untimed, with the stock.
const USERS: u64 = 16;
/// Messages between two cuts.
const STOCK: u64 = 4000;

/// One worker.
pub struct Exim {
    id: u64,
    spool: Name,
    base: usize,
    user: Name,
    user_base: usize,
    log: Name,
    n: u64,
    left: u64,
    message: Vec<Block>,
    rng: Rng,
}

impl Exim {
    /// Returns the spool file of message `n` with this suffix.
    fn spooled(&mut self, suffix: &str) -> Name {
        self.spool
            .cut(self.base)
            .num(self.n % SPLIT)
            .push("/")
            .num(self.id)
            .push("-")
            .num(self.n)
            .push(suffix)
            .clone()
    }
}

impl<T: Target> Workload<T> for Exim {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        cx.ensure_dir(&cx.path("spool"))?;
        cx.ensure_dir(&cx.path("mail"))?;
        for dir in 0..SPLIT {
            cx.ensure_dir(&cx.path(&format!("spool/{dir}")))?;
        }
        Ok(())
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let (spool, user) = (cx.path("spool/"), cx.path(&format!("mail/u{id}-")));
        let log = cx.path(&format!("log{id}"));
        cx.touch(&log)?;
        for u in 0..USERS {
            cx.touch(user.clone().num(u))?;
        }
        Ok(Exim {
            id: id as u64,
            base: spool.len(),
            spool,
            user_base: user.len(),
            user,
            log,
            n: 0,
            left: STOCK,
            message: buffer(MESSAGE),
            rng: Rng::new(id as u64),
        })
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        if self.left == 0 {
            return Ok(0);
        }
        let (body, part, header) = (self.spooled("-D"), self.spooled("-H.part"), self.spooled("-H"));
        write_all(&target.open(&body, flags::NEW)?, as_bytes(&self.message))?;
        write_all(&target.open(&part, flags::NEW)?, &as_bytes(&self.message)[..700])?;
        target.rename(&part, &header)?;
        self.user.cut(self.user_base).num(self.rng.below(USERS));
        write_all(&target.open(&self.user, flags::APPEND)?, as_bytes(&self.message))?;
        write_all(&target.open(&self.log, flags::APPEND)?, &as_bytes(&self.message)[..120])?;
        target.unlink(&header)?;
        target.unlink(&body)?;
        self.n += 1;
        self.left -= 1;
        Ok(1)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        let mut grown = vec![self.log.clone()];
        for u in 0..USERS {
            grown.push(self.user.cut(self.user_base).num(u).clone());
        }
        for name in &grown {
            let file = cx.target.open(name, flags::RW).at(format!("open {name}"))?;
            file.set_len(0).at(format!("truncating {name}"))?;
        }
        self.left = STOCK;
        Ok(())
    }
}
