//! The mount as a whole, in the process of its test.

mod operations;
mod requests;
mod served;
