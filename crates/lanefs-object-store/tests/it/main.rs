//! The store as programs see it: the trait's own tests, what is durable, and who may disturb whom.

mod crash;
mod store;
mod table;
