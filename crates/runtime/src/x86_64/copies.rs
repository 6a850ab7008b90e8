//! The copy of one displaced instruction.
//!
//! In: an instruction, and the address of the memory for its copy. Out: the bytes of that memory. Invariant:
//! COPY-1.
//! Does not: claim memory, or write it.
//!
//! ```text
//!   to                 the displaced instruction, as it runs there
//!   to + done          `syscall` only: rcx = next, where the kernel leaves the address behind the instruction
//!                      jmp next, if the instruction goes on
//!   … to + SLOT        int3
//!   registers, stack   the program's throughout
//! ```

use alloc::vec::Vec;

use trapline_insn::x86_64::{Flow, Options, RelocateError, decode_one, relocate_with};

use crate::trap::{Copy, PART_LEN};

/// Byte in the unused rest: int3.
const FILLER: u8 = 0xCC;

/// Why an instruction has no copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be moved.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
    /// It is not an instruction that is run out of line.
    #[error("{len} bytes in place of {bytes:02x?}: more than one instruction")]
    TooLong {
        /// The instruction.
        bytes: Vec<u8>,
        /// Length of its copy in bytes.
        len: usize,
    },
}

/// The copy at `to` of the first instruction of `bytes`; the original is at `original`.
///
/// # Errors
/// Why there is no copy.
pub fn copy(bytes: &[u8], original: u64, to: u64, options: Options) -> Result<Copy, CopyError> {
    let insn = decode_one(bytes, original).unwrap_or_default();
    let own = bytes.get(..usize::from(insn.len)).unwrap_or_default();
    let moved = relocate_with(core::slice::from_ref(&insn), own, to, options)?;
    let mut code = moved.bytes;
    let done = code.len();
    if insn.flow() == Flow::Syscall {
        // The kernel leaves the address behind the instruction in rcx, so the copy sets it: lea rcx, [rip +
        // distance], or a 64-bit immediate.
        let distance = moved.next.wrapping_sub(to.wrapping_add(code.len() as u64 + 7)).cast_signed();
        if let Ok(distance) = i32::try_from(distance) {
            code.extend([0x48, 0x8D, 0x0D]);
            code.extend(distance.to_le_bytes());
        } else {
            code.extend([0x48, 0xB9]);
            code.extend(moved.next.to_le_bytes());
        }
    }
    if moved.falls_through {
        way_back(&mut code, to, moved.next);
    }
    let mut whole = [FILLER; PART_LEN as usize];
    match whole.get_mut(..code.len()) {
        Some(room) => room.copy_from_slice(&code),
        None => return Err(CopyError::TooLong { bytes: own.to_vec(), len: code.len() }),
    }
    Ok(Copy { bytes: whole, len: insn.len, done: done as u8 })
}

/// `jmp next`, through an address in memory behind the jump if the distance is too large.
fn way_back(code: &mut Vec<u8>, to: u64, next: u64) {
    let end = to.wrapping_add(code.len() as u64 + 5);
    if let Ok(distance) = i32::try_from(next.wrapping_sub(end).cast_signed()) {
        code.push(0xE9);
        code.extend(distance.to_le_bytes());
    } else {
        code.extend([0xFF, 0x25, 0, 0, 0, 0]);
        code.extend(next.to_le_bytes());
    }
}
