//! Uploads in parts.

use crate::error::{blocking, generic};
use crate::staged::Staged;
use async_trait::async_trait;
use futures_util::FutureExt;
use object_store::{MultipartUpload, PutMode, PutPayload, PutResult, Result, UploadPart};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An upload whose parts may be written in any order, and at once.
#[derive(Debug)]
pub struct Upload {
    /// The file; `None` when the upload has ended.
    staged: Option<Arc<Staged>>,
    /// Where the next part begins.
    next: u64,
    /// The bytes that were written. Release and Acquire: they are when they are counted.
    written: Arc<AtomicU64>,
    sync: bool,
}

impl Upload {
    /// Begins one.
    pub fn new(staged: Staged, sync: bool) -> Upload {
        Upload { staged: Some(Arc::new(staged)), next: 0, written: Arc::default(), sync }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (at, len) = (self.next, data.content_length() as u64);
        self.next += len;
        let (staged, written) = (self.staged.clone(), Arc::clone(&self.written));
        let write = move || {
            staged.ok_or_else(ended)?.write(&data, at)?;
            written.fetch_add(len, Ordering::Release);
            Ok(())
        };
        blocking(write).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(ended)?;
        let missing = self.next - self.written.load(Ordering::Acquire).min(self.next);
        // Whoever writes a part still has the file.
        let (Some(staged), 0) = (Arc::into_inner(staged), missing) else {
            return Err(generic(format!("{missing} bytes of the parts were not written; await them first")));
        };
        let sync = self.sync;
        blocking(move || staged.publish(&PutMode::Overwrite, sync)).await
    }

    async fn abort(&mut self) -> Result<()> {
        // The file has no name, and ends with its last user.
        match self.staged.take() {
            Some(staged) => {
                drop(staged);
                Ok(())
            }
            None => Err(ended()),
        }
    }
}

fn ended() -> object_store::Error {
    generic("the upload was completed or aborted before")
}
