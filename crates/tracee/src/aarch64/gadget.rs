//! Instructions in the target's own code, from which a call and the way back from it are put together.
//!
//! Input: executable memory. Output: addresses of `svc` followed by `ret`, and of a signal restorer, to which
//! x30 points. Nothing is written.
//!
//! ```text
//!   call          svc #0            x8 = number, x0 to x5 = arguments, x30 = restorer, sp = F (`frame`)
//!   call + 4      ret               x0 = result: to x30
//!   restorer      mov x8, #139      sp = F
//!   restorer + 4  svc #0            all registers, mask and vectors are those in the frame at F
//! ```

use trapline_order::Order as _;
use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps::Mapping;
use crate::process::Process;

/// `svc #0; ret`
const CALL: [u32; 2] = [0xd400_0001, 0xd65f_03c0];
/// `mov x8, #139; svc #0`: the vdso's signal restorer, and every libc's.
const RESTORER: [u32; 2] = [0xd280_1168, 0xd400_0001];
const CHUNK: usize = 1 << 18;
const OVERLAP: usize = 8;

/// The addresses that a remote call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gadgets {
    pub(crate) call: u64,
    pub(crate) restorer: u64,
}

impl Gadgets {
    /// Searches the process's executable mappings. The vdso comes first, because its code is never patched.
    pub(crate) fn find(process: &Process, maps: &[Mapping]) -> Result<Self, TargetError> {
        let (mut call, mut restorer) = (None, None);
        let mut order: Vec<&Mapping> = maps.iter().filter(|m| m.perms.exec).collect();
        order.order_by_key(|m| (m.path != "[vdso]", m.path.starts_with("/memfd:"), m.file.is_none()));
        for map in order {
            call = call.or_else(|| scan(process, map, CALL));
            restorer = restorer.or_else(|| scan(process, map, RESTORER));
            if let (Some(call), Some(restorer)) = (call, restorer) {
                return Ok(Self { call, restorer });
            }
        }
        Err(TargetError::NoCaller {
            pid: process.pid(),
            why: "its code holds no `svc` with a `ret` behind it, or no way to rt_sigreturn".into(),
        })
    }
    /// Whether the instructions are still there. A patch may have replaced them.
    pub(crate) fn hold(&self, process: &Process) -> bool {
        let is = |at: u64, words: [u32; 2]| {
            process.read_u64(RemoteAddr(at)).is_ok_and(|pair| pair == double(words))
        };
        is(self.call, CALL) && is(self.restorer, RESTORER)
    }
    /// The restorer, through which handlers return too.
    #[allow(clippy::unnecessary_wraps, reason = "a twin has none at times")]
    pub(crate) const fn restorer(&self) -> Option<u64> {
        Some(self.restorer)
    }
}

const fn double(words: [u32; 2]) -> u64 {
    words[0] as u64 | (words[1] as u64) << 32
}

fn scan(process: &Process, map: &Mapping, words: [u32; 2]) -> Option<u64> {
    let mut bytes = vec![0u8; CHUNK];
    let mut at = map.start.0;
    while at < map.end.0 {
        let len = CHUNK.min((map.end.0 - at) as usize);
        process.read(RemoteAddr(at), &mut bytes[..len]).ok()?;
        if let Some(found) = find(&bytes[..len], words) {
            return Some(at + found as u64);
        }
        if len < CHUNK {
            return None;
        }
        at += (len - OVERLAP) as u64;
    }
    None
}

/// Offset of two consecutive words.
fn find(bytes: &[u8], words: [u32; 2]) -> Option<usize> {
    let wanted = double(words).to_le_bytes();
    memchr::memmem::find_iter(bytes, &wanted).find(|at| at.is_multiple_of(4))
}

#[cfg(test)]
mod tests {
    use super::{CALL, RESTORER, find};

    #[test]
    fn only_whole_words_are_found() {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let nop = 0xd503_201f;
        let code = bytes(&[nop, RESTORER[0], RESTORER[1], CALL[1]]);
        assert_eq!((find(&code, RESTORER), find(&code, CALL)), (Some(4), Some(8)));
        let shifted = [&[0, 0], &code[..]].concat();
        assert_eq!(find(&shifted, CALL), None);
    }
}
