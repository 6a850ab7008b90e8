//! Checks of an instruction before anything is planned.
//!
//! In: a file, a place in it. Out: the error that the kernel's probes have in the same case.

use std::path::Path;

use trapline_image::FunctionIndex;
use trapline_insn::x86_64::Flow;
use trapline_insn::x86_64::decode::sweep;
use trapline_record::{FileOffset, Svma};

use crate::files::ModuleFile;
use crate::inside::Error;

/// Fails unless an instruction that can be probed may begin there.
pub(in crate::inside) fn instruction(
    path: &Path,
    file: &ModuleFile,
    (offset, at): (FileOffset, Svma),
    function: Option<FunctionIndex>,
) -> Result<(), Error> {
    const INT3: u8 = 0xcc;
    let path = || path.to_owned();
    if file.image.text(at, 1) == Some(&[INT3]) {
        return Err(Error::Breakpoint { path: path(), offset: offset.0 });
    }
    match function.and_then(|function| around(file, function, at)) {
        Some(start) => {
            let back = at - start;
            Err(Error::InsideInstruction { path: path(), offset: offset.0, begins: offset.0 - back })
        }
        None => Ok(()),
    }
}

/// Start of the instruction that an address is inside of, if the function decodes from its start to its end
/// without a gap.
fn around(file: &ModuleFile, function: FunctionIndex, at: Svma) -> Option<Svma> {
    let function = file.image.function(function);
    if function.start == at {
        return None;
    }
    let bytes = file.image.text(function.start, function.end() - function.start)?;
    let mut found = None;
    for insn in sweep(bytes, function.start.0) {
        if insn.flow() == Flow::Invalid {
            return None;
        }
        if insn.addr < at.0 && at.0 < insn.end() {
            found = Some(Svma(insn.addr));
        }
    }
    found
}
