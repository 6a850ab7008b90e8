//! Checks of a request before anything is planned: of its file, and of the instruction.
//!
//! In: paths and offsets. Out: files that can be read, and what is at an offset; or the error that the
//! kernel's probes have in the same case. Does not: need the file to be mapped. What only the mapped code
//! shows is in the planner's refusals. What the instruction shows depends on the processor (`check` in the
//! twin folders).

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use trapline_image::FunctionIndex;
use trapline_record::{FileId, FileOffset, Svma};

use super::{Error, Request, arch};
use crate::files::ModuleFile;

/// Shows whether a file was written to: length, and time of the last change of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    len: u64,
    written: (i64, i64),
}

/// Opens a regular file; returns its identity and its stamp.
pub(super) fn opened(path: &Path) -> Result<(File, FileId, Stamp), Error> {
    let fail = |source| Error::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(Error::File { path: path.to_owned(), why: "it is no regular file".into() });
    }
    let id = FileId { dev: meta.dev(), inode: meta.ino() };
    let stamp = Stamp { len: meta.len(), written: (meta.mtime(), meta.mtime_nsec()) };
    Ok((file, id, stamp))
}

/// An instruction that can be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CheckedSite {
    pub(super) offset: FileOffset,
    pub(super) at: Svma,
    /// The function that it is in.
    pub(super) function: Option<FunctionIndex>,
}

/// What is at a request's offset. `near`: function of the request before.
pub(super) fn site(
    request: &Request,
    file: &ModuleFile,
    near: Option<FunctionIndex>,
) -> Result<CheckedSite, Error> {
    let Request { file: path, offset, consumer, .. } = request;
    if !consumer.has_handler() {
        return Err(Error::NoHandler);
    }
    let offset = FileOffset(*offset);
    let len = file.image.bytes().len() as u64;
    if offset.0 >= len {
        return Err(Error::BehindEnd { path: path.clone(), offset: offset.0, len });
    }
    let at = file.image.svma_of(offset).filter(|&at| file.image.text(at, 1).is_some());
    let at = at.ok_or_else(|| Error::NotCode { path: path.clone(), offset: offset.0 })?;
    let function = file.image.function_near(at, near);
    if consumer.has_return() && function.is_none_or(|f| file.image.function(f).start != at) {
        return Err(Error::NotAnEntry { path: path.clone(), offset: offset.0 });
    }
    arch::check::instruction(path, file, (offset, at), function)?;
    Ok(CheckedSite { offset, at, function })
}
