//! Descriptors that go from one process to another, through a socket.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Sends a descriptor. Who receives it has one of its own of the same open file.
pub(crate) fn send(socket: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the space is made for one");
    loop {
        match sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => continue,
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Returns the descriptor that comes through a socket; `None` if it is closed first. Allocates
/// nothing.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let rights = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_descriptor_arrives_and_the_end_is_told_from_one() {
        let (from, to) = UnixStream::pair().unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        send(&from, std::os::fd::AsFd::as_fd(&write)).unwrap();
        drop(write);
        let there = receive(&to).unwrap().unwrap();
        std::fs::File::from(there).write_all(b"x").unwrap();
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x", "it was the last that could be written to");
        drop(from);
        assert!(receive(&to).unwrap().is_none());
    }
}
