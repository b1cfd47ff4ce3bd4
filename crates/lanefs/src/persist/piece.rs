//! Some pages and the attributes of one inode, as the store takes them.

use super::Persist;
use crate::error::Result;
use crate::memfs::Inode;
use lanefs_store::Transaction;

/// The most pages captured at once; fewer where segments are small, so that a round needs few of
/// them free.
pub(crate) const MAX_PAGES: usize = 1024;

/// The most pages of an inode that goes with an epoch.
pub(super) const RIDES: usize = 32;

/// The extended attributes as they are now, if there are any.
pub(super) fn encoded_xattrs(inode: &Inode) -> Option<Vec<u8>> {
    let _l = inode.xattrs.lock();
    inode.xattrs.get(&crossbeam_epoch::pin()).map(|x| x.encoded().to_vec())
}

/// Hands a transaction to the store.
pub(super) fn submit_one(persist: &Persist, t: Transaction) -> Result<()> {
    persist.check_alive()?;
    persist.store.submit(t)?;
    Ok(())
}
