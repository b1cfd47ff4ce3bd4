//! Step 4 of a simulation: a recovery without faults, and whether what it finds is what it should
//! be.

use super::{Ended, Run};
use crate::crash::medium::{Readings, only_truth, read_what_can_be};
use crate::crash::system::{Live, System};
use lanefs_lab_model::op::{Identity, Name, Op, Outcome, Who};
use lanefs_lab_model::oracle::{Oracle, Violation, broken, observe};

impl Run {
    /// Without lies.
    pub(super) fn judge(&mut self, ended: &Ended) -> Result<(), Violation> {
        let oracle = Oracle::new(&ended.history, self.system.mount.order);
        let mut live = self.open().map_err(|e| broken("R1", format!("recovery failed: {e}")))?;
        let found = observe(&mut *live)?;
        oracle.check(ended.moment.0, ended.moment.1, &found)?;
        // What an earlier recovery showed was durable (R3), and what was read under fire was right
        // or an error (E1).
        let now = read_what_can_be(&mut *live);
        for before in &self.readings {
            only_truth(&now, before)?;
        }
        // It must be of use again.
        let path = "/after all this";
        let flags = libc::O_RDWR | libc::O_CREAT;
        for op in [
            Op::Open { fd: 200, path: path.into(), flags, mode: 0o600 },
            Op::Fsync { fd: 200 },
            Op::Close { fd: 200 },
            Op::Unlink { path: path.into() },
            Op::Sync,
        ] {
            match live.call(Who::Root, &op) {
                Outcome::Fail(libc::ENOSPC) => break,
                Outcome::Fail(e) => return Err(broken("R1", format!("{op:?} after recovery: errno {e}"))),
                _ => {}
            }
        }
        live.kill();
        if let Some(Err(what)) = self.system.fsck(self.devices()) {
            return Err(broken("fsck", what));
        }
        Ok(())
    }

    /// With lies: an error, or a state that was. What was acknowledged last may be gone (C3, F2):
    /// if the device swallowed the last batches, or the last slot, what is there is what a crash
    /// before them would have left.
    pub(super) fn judge_lies(&mut self, ended: &Ended) -> Result<(), Violation> {
        let Ok(mut live) = self.open() else {
            self.count("lies: not opened");
            return Ok(());
        };
        let found = read_what_can_be(&mut *live);
        let identities = identities(&mut *live, &found);
        live.kill();
        let whole = found.values().all(Option::is_some);
        let oracle = Oracle::new(&ended.history, self.system.mount.order);
        if whole {
            self.count("lies: judged in full");
            let mut live = self.open().map_err(|e| broken("R1", format!("the second recovery: {e}")))?;
            let again = observe(&mut *live);
            live.kill();
            return match oracle.check(0, ended.history.steps.len(), &again?) {
                Err(v) => Err(broken("E1", format!("no error, but no state that ever was: {v}"))),
                Ok(()) => Ok(()),
            };
        }
        // Some of it is lost, and said so. What bytes can be read are their file's own.
        self.count("lies: partly judged");
        for (path, identity) in identities {
            if let Some(Some((file, _))) = found.get(&path) {
                oracle.own_bytes(identity, file)?;
            }
        }
        // The rest must not change from one look to the next.
        let Ok(mut live) = self.open() else {
            self.count("lies: not opened again");
            return Ok(());
        };
        let again = read_what_can_be(&mut *live);
        live.kill();
        only_truth(&found, &again)
    }
}

/// The identities of the regular files among what could be read.
fn identities(t: &mut dyn Live, found: &Readings) -> Vec<(Name, Identity)> {
    let files =
        found.iter().filter(|f| f.1.as_ref().is_some_and(|f| f.0.mode & libc::S_IFMT == libc::S_IFREG));
    let of = |(path, _): (&Name, _)| match t.call(Who::Root, &Op::Lstat { path: path.clone() }) {
        Outcome::Attr(a) => Some((path.clone(), a.id)),
        _ => None,
    };
    files.filter_map(of).collect()
}
