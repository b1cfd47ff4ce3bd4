//! The commands, a file each.

pub mod bench;
pub mod cat;
pub mod completions;
pub mod cp;
pub mod df;
pub mod dump;
pub mod fsck;
pub mod grow;
pub mod info;
pub mod install;
pub mod install_helper;
pub mod label;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod rm;
pub mod run;
pub mod scrub;
pub mod stat;
pub mod top;
pub mod tree;
pub mod umount;
pub mod virtiofs;
