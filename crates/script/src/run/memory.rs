//! Memory that pointers lead to: the program's, and the script's own variables and parameters.
//!
//! In: addresses. Out: bytes. The script's own are at addresses that no program has. Does not: write.

use super::frame::Frame;
use crate::bytes::encode;

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
    /// Bytes at an address; `None` if they cannot be read.
    pub(super) fn memory(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
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
                encode(self.locals.get(slot)?, &self.block.locals[slot])
            }
            _ => return self.world.read(address, length),
        };
        let from = ((address % ROOM) as usize).min(own.len());
        let mut bytes = own[from..own.len().min(from.saturating_add(length))].to_vec();
        bytes.resize(length, 0);
        Some(bytes)
    }
    /// The text at an address, at most so long.
    pub(super) fn text_at(&mut self, address: u64, most: usize) -> Vec<u8> {
        /// As much as is read at once: a text often ends before a page that cannot be read.
        const CHUNK: usize = 64;
        let mut out = Vec::new();
        while out.len() < most {
            let wanted = CHUNK.min(most - out.len());
            let Some(bytes) = self.memory(address.wrapping_add(out.len() as u64), wanted) else { break };
            if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                out.extend(&bytes[..end]);
                break;
            }
            out.extend(bytes);
        }
        out
    }
}
