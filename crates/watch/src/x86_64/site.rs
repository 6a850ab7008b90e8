//! Which instruction made an access.
//!
//! In: code bytes up to the address behind the access. Out: candidates, the most likely first. A data
//! breakpoint traps behind the access. So the instruction before the trap's address in *memory* is the one,
//! with two exceptions: control came from elsewhere (a `call` pushes and then is no longer there), or a
//! repeated instruction traps at itself. Decoding from a function's start is certain to be in step. Decoding
//! backwards is not, so candidates are weighed by the number of forward decodings that lead through them.
//! Invariant: a candidate is believed only if the registers show that it accessed the watched bytes (see
//! [`crate::value`]). Does not: read code.

use trapline_insn::x86_64::{Accessor, decode_one, sweep};
use trapline_order::Order as _;

pub use crate::trap_state::Code;

/// Bytes that are looked at in front of an address if no function's start is known.
pub const BACK: u64 = 96;
/// Bytes that are needed behind an address, for an instruction that traps at itself.
pub const AHEAD: u64 = 15;
/// Length of the longest instruction in bytes.
const LONGEST: u64 = 15;

/// Instructions that may have made the access that trapped with `ip` behind it.
#[must_use]
pub fn accessors(code: Code<'_>, ip: u64) -> Vec<Accessor> {
    let mut starts = Vec::new();
    let until = ip.saturating_sub(code.addr).min(code.bytes.len() as u64) as usize;
    let before = &code.bytes[..until];
    let ends = code.addr + until as u64 == ip;
    if ends && code.in_step {
        starts.extend(last_before(before, code.addr, ip));
    }
    if ends && starts.is_empty() {
        starts = weighed(before, code.addr, ip);
    }
    // The trap may be in the middle of a repeated instruction.
    starts.push(ip);
    let decode = |start: u64| {
        let at = start.checked_sub(code.addr)? as usize;
        Accessor::decode(code.bytes.get(at..)?, start)
    };
    let mut found: Vec<Accessor> = starts.into_iter().filter_map(decode).collect();
    found.retain(|one| one.end() == ip || one.addr() == ip && one.repeats());
    found
}

/// The start of the instruction that ends at `ip`, found by decoding from the first byte.
fn last_before(bytes: &[u8], addr: u64, ip: u64) -> Option<u64> {
    sweep(bytes, addr).last().filter(|insn| insn.end() == ip).map(|insn| insn.addr)
}

/// Starts of instructions that end at `ip`. Those through which most decodings pass come first.
fn weighed(bytes: &[u8], addr: u64, ip: u64) -> Vec<u64> {
    let end = bytes.len() as u64;
    let mut votes: Vec<(u32, u64)> = Vec::new();
    for len in 1..=LONGEST.min(end) {
        let start = end - len;
        let fits =
            decode_one(&bytes[start as usize..], addr + start).is_some_and(|insn| u64::from(insn.len) == len);
        if fits {
            votes.push((0, addr + start));
        }
    }
    for from in end.saturating_sub(BACK)..end.saturating_sub(LONGEST) {
        let last = last_before(&bytes[from as usize..], addr + from, ip);
        if let Some(vote) = votes.iter_mut().find(|(_, start)| Some(*start) == last) {
            vote.0 += 1;
        }
    }
    votes.order_by_key(|&(count, start)| (std::cmp::Reverse(count), start));
    votes.into_iter().map(|(_, start)| start).collect()
}

#[cfg(test)]
mod tests {
    use super::{Code, accessors};

    // push rbp; mov rbp, rsp; mov rax, [rip+0x10]; add rax, 1; mov [rip+0x20], rax; nop; pop rbp; ret
    const FUNCTION: [u8; 26] = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0x48, 0x83, 0xc0, 0x01, 0x48, 0x89, 0x05,
        0x20, 0, 0, 0, 0x90, 0x5d, 0xc3, 0x90,
    ];

    #[test]
    fn the_instruction_before_the_trap_is_found() {
        for in_step in [true, false] {
            let found = accessors(Code { bytes: &FUNCTION, addr: 0x1000, in_step }, 0x1016);
            assert_eq!(found[0].addr(), 0x100f, "in step: {in_step}");
            assert!(found[0].writes());
        }
    }

    #[test]
    fn out_of_step_or_out_of_bytes_is_no_answer_or_a_candidate() {
        let code = Code { bytes: &FUNCTION, addr: 0x1000, in_step: true };
        assert!(accessors(code, 0x2000).is_empty());
        assert!(accessors(code, 0x10).is_empty());
        assert!(accessors(Code { bytes: &[], addr: 0x1000, in_step: false }, 0x1000).is_empty());
        // The trap stands behind a nop, which accesses nothing.
        assert!(accessors(code, 0x1017).is_empty());
    }

    #[test]
    fn a_repeated_store_traps_at_itself() {
        let bytes = [0x90, 0xf3, 0x48, 0xab, 0xc3];
        let found = accessors(Code { bytes: &bytes, addr: 0x1000, in_step: true }, 0x1001);
        assert_eq!((found.len(), found[0].addr()), (1, 0x1001));
    }
}
