//! Copies that race by design: pages are read while they may be written, and the copy is thrown
//! away if the page's sequence word has moved (see `seqlock`).
//!
//! In the language two unsynchronised accesses of which one writes are a data race and undefined,
//! whatever becomes of the bytes. On x86_64 the copy is therefore done in assembly: what the
//! compiler sees is an opaque operation on memory, and what the machine does with a race is
//! defined, bytes old or new. Elsewhere the copy is made of relaxed atomics, which the language
//! allows to race.
//!
//! Both sides of a race must go through this file, or through atomics.
//!
//! Order: an `asm!` block without `nomem` is a compiler barrier. On x86 stores of one string
//! operation may show out of order among themselves but not against stores before or after it
//! (Intel SDM 3A, 9.2.4), and loads stay in order, which is all that a sequence lock needs. The
//! relaxed version relies on the fences in `seqlock`.

/// Copies of at least this many bytes use `rep movsb`; below it the vector loop is faster (12
/// against 22 ns for 1 KiB, 47 against 41 ns for 4 KiB where this was tuned).
/// `cargo run --release -p lanefs-sync --example nanoseconds` prints both.
#[cfg(target_arch = "x86_64")]
const STRING_OPERATION: usize = 2304;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(STRING_OPERATION >= 16, "what is shorter is for the loops, the shortest for the bytes");

/// Copies `len` bytes from `src` to `dst`; another thread may write `src` or access `dst`
/// meanwhile.
///
/// # Safety
/// Both ranges must be allocated for the whole call, may not overlap, and whoever else accesses
/// them meanwhile must do it with this function, [`fill_racy`] or atomics. A torn or mixed result
/// is possible; the caller must validate before it believes it.
#[inline]
pub unsafe fn copy_racy(src: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(src.addr().abs_diff(dst.addr()) >= len, "the ranges overlap");
    debug_assert!(len == 0 || !src.is_null() && !dst.is_null());
    debug_assert!(src.addr().checked_add(len).is_some() && dst.addr().checked_add(len).is_some());
    #[cfg(lanefs_trace)]
    // SAFETY: the recorder notes the two ranges and looks at neither.
    unsafe {
        seen::__tsan_read_range(src, len);
        seen::__tsan_write_range(dst, len);
    }
    // SAFETY: the contract is passed on unchanged.
    unsafe { machine::copy(src, dst, len) }
}

/// Sets `len` bytes at `dst` to `byte`; another thread may access them meanwhile.
///
/// # Safety
/// The range must be allocated for the whole call, and whoever else accesses it meanwhile must do
/// it with this function, [`copy_racy`] or atomics.
#[inline]
pub unsafe fn fill_racy(dst: *mut u8, byte: u8, len: usize) {
    debug_assert!(len == 0 || !dst.is_null());
    debug_assert!(dst.addr().checked_add(len).is_some());
    #[cfg(lanefs_trace)]
    // SAFETY: as above.
    unsafe {
        seen::__tsan_write_range(dst, len);
    }
    // SAFETY: the contract is passed on unchanged.
    unsafe { machine::fill(dst, byte, len) }
}

/// The recorder of `cargo xtask conflicts`, which sees what the compiler emits and would not see
/// into assembly.
#[cfg(lanefs_trace)]
mod seen {
    unsafe extern "C" {
        pub fn __tsan_read_range(from: *const u8, len: usize);
        pub fn __tsan_write_range(to: *mut u8, len: usize);
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;

    #[inline]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the caller's contract is that of each branch.
        unsafe {
            if len >= super::STRING_OPERATION {
                string_copy(src, dst, len);
            } else if len >= 16 {
                vector_copy(src, dst, len);
            } else {
                byte_copy(src, dst, len);
            }
        }
    }

    #[inline]
    pub unsafe fn string_copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: reads `len` bytes at `src` and writes `len` at `dst`, both allocated by contract.
        // The ABI keeps the direction flag clear.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                 options(nostack, preserves_flags));
        }
    }

    /// Copies at least 16 bytes: 64 bytes at a time, then 16 at a time, then the last 16, which may
    /// overlap those before.
    #[inline]
    pub unsafe fn vector_copy(src: *const u8, dst: *mut u8, len: usize) {
        debug_assert!(len >= 16, "the last 16 bytes would begin before the range");
        // SAFETY: every access lies inside [0, len) of its range: the loops run while at least 64
        // and 16 bytes are left, the tail begins at len - 16 >= 0. All registers used are declared.
        unsafe {
            asm!(
                "lea {end}, [{src} + {len}]",
                "lea {last}, [{dst} + {len} - 16]",
                "sub {len}, 64",
                "jb 3f",
                "2:",
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movups [{dst}], {a}",
                "movups [{dst} + 16], {b}",
                "movups [{dst} + 32], {c}",
                "movups [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "sub {len}, 64",
                "jae 2b",
                "3:",
                "add {len}, 48",
                "jnc 5f",
                "4:",
                "movups {a}, [{src}]",
                "movups [{dst}], {a}",
                "add {src}, 16",
                "add {dst}, 16",
                "sub {len}, 16",
                "jae 4b",
                "5:",
                "movups {a}, [{end} - 16]",
                "movups [{last}], {a}",
                src = inout(reg) src => _, dst = inout(reg) dst => _, len = inout(reg) len => _,
                end = out(reg) _, last = out(reg) _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    #[inline]
    pub unsafe fn byte_copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: reads and writes [0, len) of the ranges; the test comes before the first access.
        unsafe {
            asm!(
                "test {len}, {len}",
                "jz 3f",
                "2:",
                "mov {byte}, byte ptr [{src}]",
                "mov byte ptr [{dst}], {byte}",
                "inc {src}",
                "inc {dst}",
                "dec {len}",
                "jnz 2b",
                "3:",
                src = inout(reg) src => _, dst = inout(reg) dst => _, len = inout(reg) len => _,
                byte = out(reg_byte) _,
                options(nostack),
            );
        }
    }

    #[inline]
    pub unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
        // SAFETY: writes `len` bytes at `dst`, allocated by contract. The ABI keeps the direction
        // flag clear.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") dst => _, in("al") byte,
                 options(nostack, preserves_flags));
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    /// Copies with relaxed atomics everywhere: only the absence of undefined behaviour is asked
    /// for, `seqlock` has the fences.
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            // SAFETY: `done < len`, and words only when 8 bytes are left, so every access is inside
            // the ranges; a word is used only when both addresses are aligned to it.
            unsafe {
                let (from, to) = (src.add(done), dst.add(done));
                if len - done >= 8 && from.addr() % 8 == 0 && to.addr() % 8 == 0 {
                    let word = AtomicU64::from_ptr(from.cast_mut().cast()).load(Relaxed);
                    AtomicU64::from_ptr(to.cast()).store(word, Relaxed);
                    done += 8;
                } else {
                    let byte = AtomicU8::from_ptr(from.cast_mut()).load(Relaxed);
                    AtomicU8::from_ptr(to).store(byte, Relaxed);
                    done += 1;
                }
            }
        }
    }

    pub unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
        let mut done = 0;
        while done < len {
            // SAFETY: as in `copy`.
            unsafe {
                let to = dst.add(done);
                if len - done >= 8 && to.addr() % 8 == 0 {
                    AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes([byte; 8]), Relaxed);
                    done += 8;
                } else {
                    AtomicU8::from_ptr(to).store(byte, Relaxed);
                    done += 1;
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable as machine;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);
    type Fill = unsafe fn(*mut u8, u8, usize);

    fn check_copy(copy: Copy, lengths: impl Iterator<Item = usize>) {
        let src: Vec<u8> = (0..5000u32).map(|number| (number * 7 + number / 256) as u8).collect();
        for len in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 5), (8, 16)] {
                let mut dst = vec![0xEE; 5000];
                // SAFETY: both vectors have 5000 bytes, more than any offset plus length here.
                unsafe { copy(src.as_ptr().add(from), dst.as_mut_ptr().add(to), len) };
                assert_eq!(dst[to..to + len], src[from..from + len], "len {len}");
                assert!(
                    dst[..to].iter().chain(&dst[to + len..]).all(|byte| *byte == 0xEE),
                    "wrote outside, len {len}"
                );
            }
        }
    }

    fn check_fill(fill: Fill) {
        for len in [0, 1, 7, 8, 9, 100, 4096] {
            for to in [0, 3] {
                let mut dst = vec![1u8; 5000];
                // SAFETY: 5000 bytes are more than any offset plus length here.
                unsafe { fill(dst.as_mut_ptr().add(to), 9, len) };
                let count = |wanted| dst.iter().filter(|byte| **byte == wanted).count();
                assert_eq!((count(9), count(1)), (len, 5000 - len));
                assert!(dst[to..to + len].iter().all(|byte| *byte == 9));
            }
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        check_copy(copy_racy, (0..300).chain([511, 512, 1023, 1024, 2303, 2304, 2305, 4095, 4096]));
        check_fill(fill_racy);
    }

    #[test]
    fn the_portable_version_agrees() {
        check_copy(portable::copy, (0..70).chain([4096]));
        check_fill(portable::fill);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn each_machine_version_is_right_by_itself() {
        check_copy(machine::byte_copy, 0..70);
        check_copy(machine::vector_copy, (16..300).chain([2303, 2304, 4080, 4095, 4096]));
        check_copy(machine::string_copy, (0..70).chain([4096]));
    }
}
