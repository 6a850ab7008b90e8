//! Memory for slots of our own process: code that returns lead to, and what says where they really go.
//!
//! In: how many, how long their code is, and who makes it once it is known where it lies. Out: slots that are mapped, and lent to nobody. It is made once and
//! never unmapped: a stack may name a slot for as long as the process lives, and a forked child goes on with its parent's code and a copy of the
//! entries. Does not: lend (`trapline_runtime::slots`), tell unwinders. Whose slots these are, `own` of the twins knows.
//!
//! On arm64, too, code is whole before it is mapped executable: what a page of a memfd holds is cleaned from caches when it is first mapped so (`aarch64::protocol`), and nobody
//! has fetched from there before.

use trapline_plan::SlotCode;
use trapline_record::RemoteAddr;
use trapline_record::slots::Slots;
use trapline_target::{OwnCaller, Process, SharedMap};

use crate::error::PatchError;
use crate::map::flags;
use crate::segment::MadeSlots;
use crate::slots::write_hints;

/// Told apart from segments, which begin with a control block.
const NAME: &str = "trapline-slots";

/// Slots of our own process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSlots {
    /// Where they are.
    pub slots: Slots,
    /// What `__register_frame` takes.
    pub unwind: RemoteAddr,
}

impl From<MadeSlots> for OwnSlots {
    fn from(made: MadeSlots) -> Self {
        Self { slots: made.slots, unwind: RemoteAddr(made.unwind) }
    }
}

/// `count` of them, in the limits of [`Slots`], with code of at most `len` bytes, made by `code`.
///
/// # Errors
/// When there is no room, or the system refuses. Nothing is mapped then.
pub(crate) fn make(
    process: &Process,
    count: u32,
    len: impl Fn(&Slots) -> u64,
    code: impl FnOnce(&Slots) -> SlotCode,
) -> Result<MadeSlots, PatchError> {
    let (least, most) = Slots::LIMITS;
    let unplaced = Slots { code: 0, table: 0, count: count.clamp(least, most).next_power_of_two() };
    let code_len = len(&unplaced).next_multiple_of(4096);
    let (len, pid) = (code_len + unplaced.table_len(), process.pid());
    let space = trapline_plan::AddressSpace {
        occupied: process.maps()?.iter().map(|m| (m.start, m.end)).collect(),
        heap_end: process.heap_end()?,
    };
    let at = space.find(len).ok_or(PatchError::NoRoomForStamps { pid, len })?;
    let slots = Slots { code: at.0, table: at.0 + code_len, ..unplaced };
    let SlotCode { bytes, shared, unwind } = code(&slots);

    let mut caller = OwnCaller::default();
    let (fd, ours) = caller.memfd(NAME)?;
    let memory = SharedMap::new(ours, code_len)?;
    if !memory.write(0, &bytes) {
        return Err(PatchError::Layout { what: "slots", at: bytes.len() as u64, len: code_len });
    }
    // From birth as it stays: nothing that runs is ever writable.
    let (code, table) = (RemoteAddr(slots.code), RemoteAddr(slots.table));
    let fixed = flags::FIXED_NOREPLACE;
    caller.mmap(code, code_len, flags::READ | flags::EXEC, flags::SHARED | fixed, fd, 0)?;
    let private = flags::PRIVATE | flags::ANONYMOUS | flags::NORESERVE | fixed;
    let mapped = caller.mmap(table, slots.table_len(), flags::READ | flags::WRITE, private, -1, 0);
    if let Err(error) = mapped {
        // Nothing leads there; what counts is why the entries could not be had.
        drop(caller.munmap(code, code_len));
        return Err(error.into());
    }
    write_hints(process, &slots)?;
    Ok(MadeSlots { slots, shared, unwind })
}
