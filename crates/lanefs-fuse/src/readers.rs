//! The threads that read requests, have them done, and answer.
//!
//! Each has a descriptor of its own: what it has read is answered there and nowhere else (FUSE_DEV_IOC_CLONE). How many of
//! them read at a time: [`crate::crowd`].

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::crowd::Crowd;
use crate::wire::{Answer, Device, Errno, Reply, Request};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Starts them. The thread returned ends when the connection has ended, with the first error of any.
pub(crate) fn start(
    adaptor: Adaptor,
    device: Arc<Device>,
    config: &MountConfig,
) -> io::Result<JoinHandle<io::Result<()>>> {
    // The least the kernel reads into is its largest write and that request's headers.
    let most = (config.max_write as usize).max(1 << 17) + 4096;
    let mut devices = vec![device];
    while devices.len() < config.threads() {
        devices.push(Arc::new(devices[0].another()?));
    }
    let adaptor = Arc::new(adaptor);
    let crowd = Arc::new(Crowd::new(config.readers()));
    let readers: Vec<JoinHandle<io::Result<()>>> = devices
        .into_iter()
        .enumerate()
        .map(|(i, device)| {
            let (adaptor, crowd) = (Arc::clone(&adaptor), Arc::clone(&crowd));
            Builder::new().name(format!("lanefs-fuse-{i}")).spawn(move || {
                let result = if crowd.join() { read(&adaptor, &device, &crowd, most) } else { Ok(()) };
                crowd.end();
                result
            })
        })
        .collect::<io::Result<_>>()?;
    Builder::new().name("lanefs-fuse".into()).spawn(move || {
        let ended = readers.into_iter().map(|r| {
            r.join().unwrap_or_else(|_| Err(io::Error::other("a reader thread of the mount panicked")))
        });
        let result = ended.fold(Ok(()), Result::and);
        adaptor.end();
        result
    })
}

fn read(adaptor: &Adaptor, device: &Arc<Device>, crowd: &Crowd, most: usize) -> io::Result<()> {
    let mut buffer = vec![0; most];
    let mut reply = Reply::new(most);
    while let Some(n) = device.receive(&mut buffer)? {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "/dev/fuse gave no request");
        let request = Request::decode(&buffer[..n]).ok_or_else(bad)?;
        reply.begin();
        // A panic is a bug, and what it leaves in memory is not to be trusted: the volume stops as a crash would stop it.
        let result = catch_unwind(AssertUnwindSafe(|| adaptor.serve(&request, &mut reply, device)))
            .unwrap_or_else(|_| {
                tracing::error!("request {} panicked; the volume is stopped as by a crash", request.op);
                adaptor.volume.shutdown();
                reply.answer = Answer::Now;
                Err(Errno(libc::EIO))
            });
        let taken = match (reply.answer, result) {
            (Answer::None, _) | (Answer::Elsewhere, Ok(())) => true,
            (_, result) => {
                let sent = device.send(reply.finish(request.unique, result));
                result.is_ok()
                    && sent.unwrap_or_else(|e| {
                        tracing::error!("the kernel refused the answer to request {}: {e}", request.op);
                        false
                    })
            }
        };
        if !taken {
            adaptor.undo(&mut reply);
        }
        if !crowd.done() {
            break;
        }
    }
    Ok(())
}
