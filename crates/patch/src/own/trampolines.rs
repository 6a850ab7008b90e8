//! Memory for return trampolines of our own process: code that returns lead to, and the entries that name the
//! real return addresses.
//!
//! In: how many, how long their code is, and the function that makes it once its address is known. Out:
//! trampolines that are mapped, and not taken. They are made once and never unmapped: a stack may name one
//! for as long as the process lives, and a forked child goes on with its parent's code and a copy of the
//! entries. Does not: hand out trampolines (`trapline_runtime::trampolines`), inform unwinders. Which
//! trampolines the process has is stored in `own` of the twin folders.
//!
//! On arm64, too, code is complete before it is mapped executable. The caches are cleaned for a page of a
//! memfd when it is first mapped so (`aarch64::protocol`), and no thread has fetched from there before.

use trapline_plan::TrampolineCode;
use trapline_record::RemoteAddr;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{OwnCaller, Process, SharedMap};

use crate::error::PatchError;
use crate::install::caller::flags;
use crate::memory::segment::MadeTrampolines;
use crate::returns::armed::write_hints;

/// Distinguishes them from segments, which begin with a control block.
const NAME: &str = "trapline-slots";

/// Return trampolines of our own process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnTrampolines {
    /// Where they lie.
    pub trampolines: Trampolines,
    /// Address to be passed to `__register_frame`.
    pub unwind: RemoteAddr,
}

impl From<MadeTrampolines> for OwnTrampolines {
    fn from(made: MadeTrampolines) -> Self {
        Self { trampolines: made.trampolines, unwind: RemoteAddr(made.unwind) }
    }
}

/// Maps `count` of them, within the limits of [`Trampolines`]. Their code, of at most `len` bytes, is made by
/// `code`.
///
/// # Errors
/// If there is no room, or the system refuses. Nothing is mapped then.
pub(crate) fn make(
    process: &Process,
    count: u32,
    len: impl Fn(&Trampolines) -> u64,
    code: impl FnOnce(&Trampolines) -> TrampolineCode,
) -> Result<MadeTrampolines, PatchError> {
    let (least, most) = Trampolines::LIMITS;
    let unplaced = Trampolines { code: 0, table: 0, count: count.clamp(least, most).next_power_of_two() };
    let code_len = len(&unplaced).next_multiple_of(4096);
    let (len, pid) = (code_len + unplaced.table_len(), process.pid());
    let maps = process.maps()?;
    let space =
        trapline_plan::AddressSpace { occupied: process.taken(&maps), heap_end: process.heap_end(&maps)? };
    let at = space.find(len).ok_or(PatchError::NoRoomForStamps { pid, len })?;
    let trampolines = Trampolines { code: at.0, table: at.0 + code_len, ..unplaced };
    let TrampolineCode { bytes, shared, unwind } = code(&trampolines);

    let mut caller = OwnCaller::default();
    let (fd, ours) = caller.memfd(NAME)?;
    let memory = SharedMap::new(ours, code_len)?;
    if !memory.write(0, &bytes) {
        return Err(PatchError::Layout { what: "return trampolines", at: bytes.len() as u64, len: code_len });
    }
    // The protection is final from the start: nothing that runs is ever writable.
    let (code, table) = (RemoteAddr(trampolines.code), RemoteAddr(trampolines.table));
    let fixed = flags::FIXED_NOREPLACE;
    caller.mmap(code, code_len, flags::READ | flags::EXEC, flags::SHARED | fixed, fd, 0)?;
    let private = flags::PRIVATE | flags::ANONYMOUS | flags::NORESERVE | fixed;
    let mapped = caller.mmap(table, trampolines.table_len(), flags::READ | flags::WRITE, private, -1, 0);
    if let Err(error) = mapped {
        // Nothing leads there. The error that counts is that of the entries.
        drop(caller.munmap(code, code_len));
        return Err(error.into());
    }
    write_hints(process, &trampolines)?;
    Ok(MadeTrampolines { trampolines, shared, unwind })
}
