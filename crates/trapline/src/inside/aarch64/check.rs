//! Checks of an instruction before anything is planned.
//!
//! In: a file, a place in it. Out: the error that the kernel's probes have in the same case.

use std::path::Path;

use trapline_image::FunctionIndex;
use trapline_record::{FileOffset, Svma};

use crate::files::ModuleFile;
use crate::inside::Error;

/// Fails unless an instruction that can be probed may begin there.
pub(in crate::inside) fn instruction(
    path: &Path,
    file: &ModuleFile,
    (offset, at): (FileOffset, Svma),
    _: Option<FunctionIndex>,
) -> Result<(), Error> {
    let (path, inside) = (|| path.to_owned(), offset.0 % 4);
    if inside != 0 {
        return Err(Error::InsideInstruction { path: path(), offset: offset.0, begins: offset.0 - inside });
    }
    match word(file, at) {
        // Any `brk`, whatever its immediate.
        Some(word) if word & 0xFFE0_001F == trapline_plan::aarch64::BRK => {
            Err(Error::Breakpoint { path: path(), offset: offset.0 })
        }
        Some(_) => Ok(()),
        None => Err(Error::NotCode { path: path(), offset: offset.0 }),
    }
}

/// A word of a file's code.
pub(super) fn word(file: &ModuleFile, at: Svma) -> Option<u32> {
    file.image.text(at, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
