//! The library as programs in C see it: built and installed as a user does, compiled against and
//! linked to, shared and static, and run, once under valgrind.

mod kills;
mod programs;
