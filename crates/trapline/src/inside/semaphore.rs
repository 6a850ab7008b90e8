//! The USDT semaphore of one site.
//!
//! In: a request that names one. Out: where it is in the file, and in each mapping; or why it cannot be there.
//! Does not: write it (`semaphores`).

use trapline_record::addr::Bias;
use trapline_record::{FileOffset, RemoteAddr, Svma};

use super::site_request::Load;
use super::{Error, Request};
use crate::files::ModuleFile;

/// Semaphore of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Semaphore {
    pub(super) offset: FileOffset,
    at: Svma,
}

impl Semaphore {
    /// Semaphore that a request names, if its offset is possible.
    pub(super) fn of(request: &Request, file: &ModuleFile) -> Result<Option<Self>, Error> {
        let Some(offset) = request.semaphore else { return Ok(None) };
        let bad = |why| Error::BadSemaphore { path: request.file.clone(), semaphore: offset, why };
        if !offset.is_multiple_of(2) {
            return Err(bad("it is odd"));
        }
        let len = file.image.bytes().len() as u64;
        if offset >= len {
            return Err(bad("it is behind the file's end"));
        }
        let at = file.image.svma_of(FileOffset(offset)).ok_or_else(|| bad("no segment has it"))?;
        if file.image.text(at, 1).is_some() {
            return Err(bad("it is code"));
        }
        Ok(Some(Self { offset: FileOffset(offset), at }))
    }
    /// Address of its word in a mapping.
    pub(super) fn live(self, load: Load) -> RemoteAddr {
        Bias(load.bias).live(self.at)
    }
}
