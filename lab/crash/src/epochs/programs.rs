//! Programs that bring out what can go wrong, and random ones.

use super::{INODES, KEYS, Op, Program, made_by};
use Op::*;
use lanefs_lab_model::generate::Rng;

// Keys: two names in the root, in directory 2, in directory 3, and in what threads 0 and 1 make
// first.
const R0: u8 = 0;
const R1: u8 = 1;
const A0: u8 = 2;
const A1: u8 = 3;
const B0: u8 = 4;
const B1: u8 = 5;
const N0: u8 = 6;

/// The root holds directories 2 and 3; directory 2 holds file 4.
const BASE: [u8; KEYS] = [2, 3, 4, 0, 0, 0, 0, 0, 0, 0];
/// The same with a second name of file 4, and directory 2 in directory 3.
const NESTED: [u8; KEYS] = [0, 3, 4, 4, 2, 0, 0, 0, 0, 0];
/// Directory 2 in directory 3, with room in it.
const NESTED_FREE: [u8; KEYS] = [0, 3, 4, 0, 2, 0, 0, 0, 0, 0];
/// Directory 2 is empty.
const EMPTY: [u8; KEYS] = [2, 3, 0, 0, 4, 0, 0, 0, 0, 0];

fn program(threads: &[&[Op]], fsyncs: &[u8], seals: u8, clocks: [u8; 3], base: [u8; KEYS]) -> Program {
    let threads = threads.iter().map(|t| t.to_vec()).collect();
    Program { threads, fsyncs: fsyncs.to_vec(), seals, clocks, base, named: false }
}

/// The programs every mistake is tried on.
pub fn scripted() -> Vec<Program> {
    let made = made_by;
    vec![
        program(&[&[Link(A0, A1)], &[Unlink(A0), Create(A0)]], &[made(1, 1)], 0, [9, 0, 0], BASE),
        program(&[&[Link(A0, A1)], &[Unlink(A0), Create(A0)]], &[4], 1, [0, 0, 0], BASE),
        program(&[&[Create(A1), Unlink(A1)], &[Rename(A1, B0)]], &[made(0, 0)], 1, [0, 0, 0], BASE),
        program(&[&[Create(A1)], &[Unlink(A1)]], &[made(0, 0)], 1, [9, 0, 0], BASE),
        program(&[&[Rename(A0, A1)], &[Rename(A1, B0)]], &[4], 1, [5, 0, 0], BASE),
        program(&[&[Rename(A0, B0), Create(A0)], &[Rename(B0, B1)]], &[made(0, 1)], 1, [5, 0, 0], BASE),
        program(&[&[Create(A1), Rename(A1, B0)], &[Create(A0)]], &[made(0, 0), made(1, 0)], 1, [0; 3], BASE),
        program(&[&[Create(A1), Create(A1)], &[Rename(A1, B0)]], &[made(0, 1)], 2, [0, 0, 0], BASE),
        program(&[&[Create(A1), Rename(A1, A0)], &[Link(A0, B0)]], &[4, made(0, 0)], 0, [0, 3, 0], BASE),
        // A link whose source is removed while it is made, with nothing else: the seal falls
        // between.
        program(&[&[Link(A0, A1)], &[Unlink(A0)]], &[], 1, [0, 0, 0], BASE),
        // Two epochs, the second flushed first.
        program(&[&[Create(A1)], &[Create(A1)]], &[made(1, 0)], 2, [0, 0, 0], BASE),
        // A new directory and what is made in it.
        program(&[&[Mkdir(B0), Create(N0)], &[Create(N0 + 1)]], &[made(0, 1)], 0, [0, 0, 0], BASE),
        program(&[&[Mkdir(B0)], &[Create(N0), Unlink(N0)]], &[made(1, 0)], 1, [7, 0, 0], BASE),
        // Removing a directory, with what happens in it meanwhile.
        program(&[&[Rmdir(R0)], &[Create(A0)]], &[1], 0, [0, 5, 0], EMPTY),
        program(&[&[Unlink(A0), Rmdir(R0)], &[Rename(A0, B0)]], &[1], 1, [0, 0, 0], BASE),
        program(&[&[Rmdir(R0), Mkdir(R0)], &[Create(A1), Unlink(A1)]], &[1], 0, [0, 9, 0], EMPTY),
        program(&[&[Rename(A0, B0), Rmdir(R0)], &[Create(A1)]], &[1], 0, [0, 0, 0], BASE),
        // Moving directories.
        program(&[&[Rename(B0, R0)], &[Create(A1)]], &[2], 0, [0, 0, 0], NESTED),
        program(&[&[Rename(R0, B0)], &[Rename(R1, A1)]], &[2, 3], 0, [0, 0, 0], BASE),
        program(&[&[Rename(R0, B0), Create(A1)], &[Unlink(A0)]], &[2], 1, [0, 0, 0], BASE),
        program(&[&[Mkdir(B0), Rename(B0, A1)], &[Create(N0)]], &[made(1, 0)], 0, [0, 0, 0], BASE),
        program(&[&[Mkdir(R0), Rename(B0, N0)], &[Unlink(A0)]], &[1, 3], 0, [0, 0, 0], NESTED),
        // The first move alone is harmless, the second alone makes a loop.
        program(&[&[Rename(B0, R0), Rename(R1, A1), Create(R1)]], &[made(0, 2)], 0, [0; 3], NESTED_FREE),
        // Two fsyncs and two seals at once.
        program(&[&[Rename(A0, B0)], &[Create(A0)]], &[4, made(1, 0)], 1, [3, 0, 0], BASE),
        program(&[&[Create(A1)], &[Create(B0)]], &[], 2, [0, 0, 0], BASE),
    ]
}

/// A random program of two threads.
pub fn random(seed: u64) -> Program {
    let mut r = Rng::new(seed);
    let mut op = |first: bool| {
        let k = r.below(if first { 6 } else { 8 }) as u8;
        let mut other = r.below(6) as u8;
        if other == k {
            other = (other + 1) % 6;
        }
        match r.below(9) {
            0 | 1 => Create(k),
            2 => Unlink(k),
            3 => Rmdir(k),
            4 => Mkdir(k),
            5..=7 => Rename(k, other),
            _ => Link(k, other),
        }
    };
    let threads: Vec<Vec<Op>> = (0..2).map(|_| vec![op(true), op(false)]).collect();
    let base = *r.pick(&[BASE, NESTED, EMPTY]);
    let fsyncs: Vec<u8> = (0..r.below(3)).map(|_| 1 + r.below(INODES as u64 - 6) as u8).collect();
    let clocks = [r.below(9) as u8, r.below(9) as u8, 0];
    Program { threads, fsyncs, seals: r.below(3) as u8, clocks, base, named: false }
}
