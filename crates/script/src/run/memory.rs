//! Memory that pointers lead to: the program's as the hit's record holds it, and the script's own variables and parameters.
//!
//! In: addresses. Out: bytes. The script's own are at addresses that no program has. Does not: write.

use super::frame::Frame;
use crate::attach::Probe;
use crate::bytes::encode;
use crate::diagnostic::At;
use crate::memory::End;

/// Where variables are: so many bytes apart.
const LOCALS: u64 = 0xfffe_0000_0000_0000;
/// Where the texts of parameters are.
const POSITIONAL: u64 = 0xffff_0000_0000_0000;
/// Room of each of them.
const ROOM: u64 = 1 << 24;

/// The address of a variable.
pub(super) const fn of_local(slot: usize) -> i64 {
    (LOCALS + slot as u64 * ROOM) as i64
}

/// The address of a parameter's text.
pub(super) const fn of_positional(index: usize) -> i64 {
    (POSITIONAL + index as u64 * ROOM) as i64
}

impl Frame<'_> {
    /// Bytes at an address, as far as they are known. What is missing is warned of, and is zero.
    pub(super) fn memory(&mut self, address: u64, length: usize, at: &At) -> Vec<u8> {
        let (bytes, end) = self.bytes(address, length);
        self.note_missing(end, "probe_read_user", at);
        bytes
    }
    fn bytes(&self, address: u64, length: usize) -> (Vec<u8>, End) {
        let own = match address {
            POSITIONAL.. => {
                let index = ((address - POSITIONAL) / ROOM) as usize;
                let mut text =
                    self.state.program.positional.get(index).cloned().unwrap_or_default().into_bytes();
                text.push(0);
                text
            }
            LOCALS.. => {
                let slot = ((address - LOCALS) / ROOM) as usize;
                let Some(local) = self.locals.get(slot) else { return (Vec::new(), End::Fault) };
                encode(local, &self.block.locals[slot])
            }
            _ => {
                let (bytes, end) = self.hit.memory.read(address, length);
                // Blocks that are at no hit have no memory at all.
                let recorded = Probe::SORTS_OF_PROGRAMS.contains(&self.hit.sort);
                return (bytes, if recorded || end == End::Whole { end } else { End::Fault });
            }
        };
        let from = ((address % ROOM) as usize).min(own.len());
        let mut bytes = own[from..own.len().min(from.saturating_add(length))].to_vec();
        bytes.resize(length, 0);
        (bytes, End::Whole)
    }
    /// As bpftrace does, memory that cannot be read is zero, and `-k` asks for a warning. Memory that the record does
    /// not hold is always warned of: the program may have had a value there.
    fn note_missing(&mut self, end: End, helper: &str, at: &At) {
        match end {
            End::Fault if self.state.style.lookups => self.helper_error(at, "Bad address", helper, -14),
            End::Unrecorded => {
                self.warn(at, "Memory at this address was not recorded at the hit. 0 is used instead.");
            }
            End::Whole | End::Fault => {}
        }
    }
    /// The text at an address, at most so long.
    pub(super) fn text_at(&mut self, address: u64, most: usize, at: &At) -> Vec<u8> {
        /// As much as is read at once: a text often ends before a page that cannot be read.
        const CHUNK: usize = 64;
        let mut out = Vec::new();
        while out.len() < most {
            let wanted = CHUNK.min(most - out.len());
            let (bytes, end) = self.bytes(address.wrapping_add(out.len() as u64), wanted);
            if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                out.extend(&bytes[..end]);
                break;
            }
            out.extend(bytes);
            if end != End::Whole {
                self.note_missing(end, "probe_read_user_str", at);
                break;
            }
        }
        out
    }
}
