//! The traits of `std::io` for open files, so that whatever reads and writes by them does it here
//! too. Errors are those of the call of the same name, turned into `std::io::Error`.

use super::File;
use crate::error::Error;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(File::read(self, buf)?)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let at = self.position();
        let n = self.read_vectored_at(bufs, at)?;
        self.move_to(at, at + n as u64);
        Ok(n)
    }

    fn read_to_end(&mut self, out: &mut Vec<u8>) -> io::Result<usize> {
        let at = self.position();
        let n = File::read_to_end_at(self, out, at)?;
        self.move_to(at, at + n as u64);
        Ok(n)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(File::write(self, buf)?)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        Ok(File::write(self, &all)?)
    }

    /// Does nothing: there is no buffer between a write and the file. It makes nothing durable;
    /// [`File::sync_all`] does.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (offset, whence) = match to {
            SeekFrom::Start(at) => {
                (i64::try_from(at).map_err(|_| Error::Posix(libc::EINVAL))?, libc::SEEK_SET)
            }
            SeekFrom::Current(by) => (by, libc::SEEK_CUR),
            SeekFrom::End(by) => (by, libc::SEEK_END),
        };
        Ok(self.lseek(offset, whence)?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Read::read_vectored(&mut &*self, bufs)
    }

    fn read_to_end(&mut self, out: &mut Vec<u8>) -> io::Result<usize> {
        Read::read_to_end(&mut &*self, out)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        Write::write_vectored(&mut &*self, bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Seek::seek(&mut &*self, to)
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        Ok(File::read_exact_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        Ok(File::write_all_at(self, buf, offset)?)
    }
}
