//! System calls of the library itself, which no function of the C library and so no hook sees.

use crate::hook::set_errno;
use std::arch::asm;

/// Makes a system call; returns -1 with errno set when it fails.
///
/// # Safety
/// That of the system call.
pub unsafe fn call(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11; the rest is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// Makes a system call with up to six arguments, each cast to a word.
macro_rules! sys {
    ($number:expr $(, $arg:expr)*) => {{
        let mut args = [0usize; 6];
        let mut _next = 0;
        $( args[_next] = $arg as usize; _next += 1; )*
        $crate::raw::call($number, args)
    }};
}
pub(crate) use sys;
