//! mailbench-s: all workers deliver to a thousand shared mailboxes.

use super::mailbench::{Mailbench, make_box};
use crate::error::{Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "mailbench-s", about: "queue and deliver mail, 1,000 shared mailboxes", unit: "messages" };

/// One worker.
pub struct MailbenchS(Mailbench);

impl<T: Target> Workload<T> for MailbenchS {
    fn shared(cx: &Cx<'_, T>) -> Res<()> {
        for user in 0..cx.params.scaled(1000, 10) {
            make_box(cx, &cx.path(&format!("box{user}")))?;
        }
        Ok(())
    }

    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let users = cx.params.scaled(1000, 10);
        Ok(MailbenchS(Mailbench::new(cx, id, cx.path("box"), users)?))
    }

    fn operate(&mut self, target: &T) -> Op<u32> {
        self.0.deliver(target)
    }

    fn refill(&mut self, cx: &Cx<'_, T>) -> Res<()> {
        self.0.empty(cx)
    }
}
