//! `syscall(2)`: system calls that a program makes by their numbers.

use super::{
    attributes, copies, descriptors, directories, memory, names, open, status, transfer, working_dir,
};
use crate::hook::{answer, hook};
use crate::{placeholder, raw, table, volume};
use std::ffi::{c_int, c_long};

/// What openat2(2) is asked.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

hook! {
    /// Makes a system call.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let kernel = || raw::call(number, [a, b, c, d, e, f]) as c_long;
        let fd = a as c_int;
        match number {
            // What locks and clocks use, first.
            libc::SYS_futex | libc::SYS_getrandom | libc::SYS_io_uring_enter | libc::SYS_membarrier => kernel(),
            libc::SYS_io_uring_setup => {
                let fd = kernel();
                // The volume's own: the program must not come across it.
                if fd >= 0 && volume::is_inside() { placeholder::own(fd as c_int).into() } else { fd }
            }
            _ if crate::settings::settings().is_none() || volume::is_inside() => kernel(),
            libc::SYS_read => transfer::read(fd, b as _, c) as c_long,
            libc::SYS_write => transfer::write(fd, b as _, c) as c_long,
            libc::SYS_pread64 => transfer::pread(fd, b as _, c, d as _) as c_long,
            libc::SYS_pwrite64 => transfer::pwrite(fd, b as _, c, d as _) as c_long,
            libc::SYS_readv => transfer::readv(fd, b as _, c as _) as c_long,
            libc::SYS_writev => transfer::writev(fd, b as _, c as _) as c_long,
            libc::SYS_preadv => transfer::preadv(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_pwritev => transfer::pwritev(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_preadv2 => transfer::preadv2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_pwritev2 => transfer::pwritev2(fd, b as _, c as _, d as _, f as _) as c_long,
            libc::SYS_lseek => transfer::lseek(fd, b as _, c as _),
            libc::SYS_fsync => transfer::fsync(fd).into(),
            libc::SYS_fdatasync => transfer::fdatasync(fd).into(),
            libc::SYS_syncfs => transfer::syncfs(fd).into(),
            libc::SYS_sync_file_range => transfer::sync_file_range(fd, b as _, c as _, d as _).into(),
            libc::SYS_ftruncate => transfer::ftruncate(fd, b as _).into(),
            libc::SYS_fallocate => transfer::fallocate(fd, b as _, c as _, d as _).into(),
            libc::SYS_fadvise64 if table::is_ours(fd) => {
                match transfer::posix_fadvise(fd, b as _, c as _, d as _) {
                    0 => 0,
                    errno => answer(Err(errno)),
                }
            }
            libc::SYS_readahead => transfer::readahead(fd, b as _, c) as c_long,
            libc::SYS_open => open::open(a as _, b as _, c as _).into(),
            libc::SYS_creat => open::creat(a as _, b as _).into(),
            libc::SYS_openat => open::openat(fd, b as _, c as _, d as _).into(),
            libc::SYS_openat2 => match (c as *const OpenHow).as_ref() {
                Some(how) => open::open_at(&CALL, (fd, b as _), how.flags as c_int, how.mode as u32,
                    |at, path| raw::call(number, [at as usize, path as usize, c, d, 0, 0]) as c_int).into(),
                None => kernel(),
            },
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => descriptors::close_range(a as _, b as _, c as _).into(),
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup2 => descriptors::dup2(fd, b as _).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as _, c as _).into(),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as _, c).into(),
            libc::SYS_flock => descriptors::flock(fd, b as _).into(),
            libc::SYS_ioctl if table::is_ours(fd) => descriptors::ioctl(fd, b as _, c).into(),
            libc::SYS_stat => status::stat(a as _, b as _).into(),
            libc::SYS_lstat => status::lstat(a as _, b as _).into(),
            libc::SYS_fstat => status::fstat(fd, b as _).into(),
            libc::SYS_newfstatat => status::fstatat(fd, b as _, c as _, d as _).into(),
            libc::SYS_statx => status::statx(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_access => status::access(a as _, b as _).into(),
            libc::SYS_faccessat => status::faccessat(fd, b as _, c as _, 0).into(),
            libc::SYS_faccessat2 => status::faccessat(fd, b as _, c as _, d as _).into(),
            libc::SYS_statfs => status::statfs(a as _, b as _).into(),
            libc::SYS_fstatfs => status::fstatfs(fd, b as _).into(),
            libc::SYS_mkdir => names::mkdir(a as _, b as _).into(),
            libc::SYS_mkdirat => names::mkdirat(fd, b as _, c as _).into(),
            libc::SYS_mknod => names::mknod(a as _, b as _, c as _).into(),
            libc::SYS_mknodat => names::mknodat(fd, b as _, c as _, d as _).into(),
            libc::SYS_rmdir => names::rmdir(a as _).into(),
            libc::SYS_unlink => names::unlink(a as _).into(),
            libc::SYS_unlinkat => names::unlinkat(fd, b as _, c as _).into(),
            libc::SYS_rename => names::rename(a as _, b as _).into(),
            libc::SYS_renameat => names::renameat(fd, b as _, c as _, d as _).into(),
            libc::SYS_renameat2 => names::renameat2(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_link => names::link(a as _, b as _).into(),
            libc::SYS_linkat => names::linkat(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_symlink => names::symlink(a as _, b as _).into(),
            libc::SYS_symlinkat => names::symlinkat(a as _, b as _, c as _).into(),
            libc::SYS_readlink => names::readlink(a as _, b as _, c) as c_long,
            libc::SYS_readlinkat => names::readlinkat(fd, b as _, c as _, d) as c_long,
            libc::SYS_chmod => attributes::chmod(a as _, b as _).into(),
            libc::SYS_fchmod => attributes::fchmod(fd, b as _).into(),
            libc::SYS_fchmodat => attributes::fchmodat(fd, b as _, c as _, 0).into(),
            libc::SYS_chown => attributes::chown(a as _, b as _, c as _).into(),
            libc::SYS_lchown => attributes::lchown(a as _, b as _, c as _).into(),
            libc::SYS_fchown => attributes::fchown(fd, b as _, c as _).into(),
            libc::SYS_fchownat => attributes::fchownat(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_utimensat => attributes::utimensat(fd, b as _, c as _, d as _).into(),
            libc::SYS_truncate => attributes::truncate(a as _, b as _).into(),
            libc::SYS_getdents64 => directories::getdents64(fd, b as _, c) as c_long,
            libc::SYS_chdir => working_dir::chdir(a as _).into(),
            libc::SYS_fchdir => working_dir::fchdir(fd).into(),
            libc::SYS_getcwd if crate::route::cwd_is_ours() => {
                // The kernel answers how long it is.
                match working_dir::getcwd(a as _, b) {
                    path if path.is_null() => -1,
                    path => libc::strlen(path) as c_long + 1,
                }
            }
            libc::SYS_sendfile => copies::sendfile(fd, b as _, c as _, d) as c_long,
            libc::SYS_copy_file_range => {
                copies::copy_file_range(fd, b as _, c as _, d as _, e, f as _) as c_long
            }
            libc::SYS_mmap => memory::mmap(a as _, b, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_execve => super::process::execve(a as _, b as _, c as _).into(),
            libc::SYS_exit_group => {
                volume::close();
                kernel()
            }
            // A listing in a form that no program has used for long.
            libc::SYS_getdents if table::is_ours(fd) => answer(Err(CALL.refuse(libc::ENOSYS))),
            _ => kernel(),
        }
    }
}
