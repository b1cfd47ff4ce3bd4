//! The credential of a caller.

use lanefs_store::Claimant;
use smallvec::SmallVec;

/// A caller's credential. Every operation that checks a permission or makes an inode takes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    /// Effective user id; 0 may do everything.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 8]>,
    /// Permissions were already checked by somebody else (the kernel, under `default_permissions`):
    /// this credential counts only for who owns what is made, and whether setgid survives a chmod.
    pub prechecked: bool,
}

impl Cred {
    /// Returns the superuser's.
    pub fn root() -> Cred {
        Cred { uid: 0, gid: 0, groups: SmallVec::new(), prechecked: false }
    }
    /// Returns an ordinary user's.
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: SmallVec::from_slice(groups), prechecked: false }
    }
    /// Returns the calling process's.
    pub fn current() -> Cred {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Cred {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.iter().map(|g| g.as_raw()).collect(),
            prechecked: false,
        }
    }
    /// Returns whether this is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    /// Returns who pays for what the caller makes. Of a caller whose user the kernel does not tell
    /// nothing is left to root.
    pub(crate) fn claimant(&self) -> Claimant {
        if self.is_root() || self.prechecked && self.uid == u32::MAX {
            Claimant::Root
        } else {
            Claimant::User
        }
    }
    /// Returns whether the caller is in group `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
