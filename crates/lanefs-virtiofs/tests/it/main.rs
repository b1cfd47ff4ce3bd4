//! The back end as a virtual machine sees it: a front end of vhost-user in this process, with a
//! memory of its own that both share, drives the queues as a guest's kernel does.

mod chains;
mod operations;
mod vm;
