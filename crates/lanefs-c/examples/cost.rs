//! What a call in C costs over the same call in Rust, in nanoseconds: `cargo run --release -p
//! lanefs-c --example cost`. Of each the least of many short windows is taken, Rust's and C's in
//! turn, so that what else the machine does is in neither.

use lanefs::{OpenOptions, Volume};
use lanefs_c::{
    lanefs_close, lanefs_close_volume, lanefs_file, lanefs_lseek, lanefs_memory_volume, lanefs_open,
    lanefs_pread, lanefs_pwrite, lanefs_stat, lanefs_volume,
};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Instant;

const CALLS: u32 = 2000;
const WINDOWS: usize = 400;

/// Returns the least time of a call in a window, for both in turn.
fn least(mut rust: impl FnMut(), mut c: impl FnMut()) -> (f64, f64) {
    let window = |call: &mut dyn FnMut()| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut all = (f64::MAX, f64::MAX);
    for _ in 0..WINDOWS {
        all = (all.0.min(window(&mut rust)), all.1.min(window(&mut c)));
    }
    all
}

fn main() -> lanefs::Result<()> {
    let volume = Volume::in_memory(64 << 20)?;
    let fs = volume.fs();
    fs.mkdir("d", 0o755)?;
    let file = fs.create("d/f")?;
    file.write_all_at(&[7; 8192], 0)?;

    let mut v: *mut lanefs_volume = null_mut();
    let mut f: *mut lanefs_file = null_mut();
    // SAFETY: places for results on the stack, texts with a zero.
    unsafe {
        assert_eq!(lanefs_memory_volume(64 << 20, &mut v), 0);
        lanefs_c::lanefs_mkdir(v, c"d".as_ptr(), 0o755);
        assert_eq!(lanefs_open(v, c"d/f".as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o644, &mut f), 0);
        assert_eq!(lanefs_pwrite(f, [7_u8; 8192].as_ptr().cast(), 8192, 0), 8192);
    }
    let (mut buf, mut buf2) = (vec![0; 4096], vec![0; 4096]);
    let mut out = MaybeUninit::uninit();
    let rows = [
        (
            "stat of d/f",
            least(
                || drop(black_box(fs.stat("d/f"))),
                // SAFETY: as above.
                || assert_eq!(unsafe { lanefs_stat(v, c"d/f".as_ptr(), out.as_mut_ptr()) }, 0),
            ),
        ),
        (
            "lseek",
            least(
                || drop(black_box(file.lseek(0, libc::SEEK_SET))),
                // SAFETY: as above.
                || assert_eq!(unsafe { lanefs_lseek(f, 0, libc::SEEK_SET) }, 0),
            ),
        ),
        (
            "pread of 8 bytes",
            least(
                || drop(black_box(file.read_at(&mut buf[..8], 0))),
                // SAFETY: as above.
                || assert_eq!(unsafe { lanefs_pread(f, buf2.as_mut_ptr().cast(), 8, 0) }, 8),
            ),
        ),
        (
            "pread of 4096 bytes",
            least(
                || drop(black_box(file.read_at(&mut buf, 0))),
                // SAFETY: as above.
                || assert_eq!(unsafe { lanefs_pread(f, buf2.as_mut_ptr().cast(), 4096, 0) }, 4096),
            ),
        ),
        (
            "pwrite of 4096 bytes",
            least(
                || drop(black_box(file.write_at(&[1; 4096], 4096))),
                // SAFETY: as above.
                || assert_eq!(unsafe { lanefs_pwrite(f, [1_u8; 4096].as_ptr().cast(), 4096, 4096) }, 4096),
            ),
        ),
        (
            "open and close",
            least(
                || drop(black_box(fs.open("d/f", OpenOptions::new().read(true)))),
                || {
                    let mut g = null_mut();
                    // SAFETY: as above; closed once.
                    unsafe {
                        assert_eq!(lanefs_open(v, c"d/f".as_ptr(), libc::O_RDONLY, 0, &mut g), 0);
                        assert_eq!(lanefs_close(g), 0);
                    }
                },
            ),
        ),
    ];
    println!("{:<22} {:>8} {:>8} {:>8}", "ns a call", "Rust", "C", "more");
    for (what, (rust, c)) in rows {
        println!("{what:<22} {rust:>8.1} {c:>8.1} {:>8.1}", c - rust);
    }
    // SAFETY: closed once.
    unsafe {
        assert_eq!(lanefs_close(f), 0);
        assert_eq!(lanefs_close_volume(v), 0);
    }
    Ok(())
}
