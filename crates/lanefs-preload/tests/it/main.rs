//! Programs in C and real ones, run through the preloaded library on a volume in an image.

mod crash;
mod differential;
mod mounted;
mod processes;
mod real_programs;
mod volume;
