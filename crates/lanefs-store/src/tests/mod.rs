//! Tests that look into the store while it works.

mod beside_tests;
mod clean_tests;
mod fault_tests;
mod host_tests;
mod life_tests;
mod meanwhile_tests;
mod one_log_tests;
mod pack_tests;
mod retry_tests;
mod room_tests;
mod size_tests;
mod slack_tests;
