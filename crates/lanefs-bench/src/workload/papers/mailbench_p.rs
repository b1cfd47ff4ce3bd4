//! mailbench-p: every worker delivers to a mailbox of its own.

use super::mailbench::{Mailbench, make_box};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "mailbench-p", about: "queue and deliver mail, private mailboxes", unit: "messages" };

/// One worker.
pub struct MailbenchP(Mailbench);

impl<T: Target> Workload<T> for MailbenchP {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let boxes = cx.path(&format!("box{id}-"));
        make_box(cx, &boxes.join("0"))?;
        Ok(MailbenchP(Mailbench::new(cx, id, boxes, 1)?))
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.0.deliver(target)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.0.empty(cx)
    }
}
