//! The BPF programs, assembled by hand so that no compiler is needed.
//!
//! Input: map descriptors. Output: instructions. Adds are atomic, because another program may preempt one on
//! its CPU.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::bpf::{FP, Insn, add_imm, call, insn, mov, mov_imm, spill};

const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const KTIME_NS: i32 = 5;
const PID_TGID: i32 = 14;
const COOKIE: i32 = 174;

/// `*(u32 *)(fp + off) = src`.
const fn spill32(off: i16, src: u8) -> Insn {
    insn(0x63, FP, src, off, 0)
}
const EXIT: [Insn; 2] = [mov_imm(0, 0), insn(0x95, 0, 0, 0, 0)];

/// `r1 = map; r2 = fp + off`.
fn map_and_key(map: BorrowedFd<'_>, off: i32) -> [Insn; 4] {
    [insn(0x18, 1, 1, 0, map.as_raw_fd()), 0, mov(2, FP), add_imm(2, off)]
}

/// Looks up the key at fp − 4, adds one to its entry, and ends.
fn count_and_exit(code: &mut Vec<Insn>, counts: BorrowedFd<'_>) {
    code.extend(map_and_key(counts, -4));
    // if r0 == 0 skip the add
    code.extend([call(LOOKUP), insn(0x15, 0, 0, 2, 0), mov_imm(1, 1), insn(0xdb, 0, 1, 0, 0)]);
    code.extend(EXIT);
}

/// Counts each hit in the entry that the site's cookie numbers.
pub(super) fn count(counts: BorrowedFd<'_>) -> Vec<Insn> {
    let mut code = vec![call(COOKIE), spill32(-4, 0)];
    count_and_exit(&mut code, counts);
    code
}

/// Puts a key at fp − 24: thread, then site.
fn thread_and_site(code: &mut Vec<Insn>) {
    code.extend([mov(6, 1), call(PID_TGID), spill(-24, 0), mov(1, 6), call(COOKIE), spill(-16, 0)]);
}

/// Stores the time of an entry.
pub(super) fn enter(starts: BorrowedFd<'_>) -> Vec<Insn> {
    let mut code = Vec::new();
    thread_and_site(&mut code);
    code.extend([call(KTIME_NS), spill(-32, 0)]);
    code.extend(map_and_key(starts, -24));
    code.extend([mov(3, FP), add_imm(3, -32), mov_imm(4, 0), call(UPDATE)]);
    code.extend(EXIT);
    code
}

/// Counts the logarithm of the time since the entry.
pub(super) fn leave(starts: BorrowedFd<'_>, counts: BorrowedFd<'_>) -> Vec<Insn> {
    let mut code = Vec::new();
    thread_and_site(&mut code);
    code.extend(map_and_key(starts, -24));
    // if r0 != 0 go on, else end
    code.extend([call(LOOKUP), insn(0x55, 0, 0, 2, 0)]);
    code.extend(EXIT);
    // r7 = now − *r0
    code.extend([insn(0x79, 6, 0, 0, 0), call(KTIME_NS), mov(7, 0), insn(0x1f, 7, 6, 0, 0)]);
    code.extend(map_and_key(starts, -24));
    code.extend([call(DELETE), mov_imm(8, 0)]);
    for shift in [32, 16, 8, 4, 2, 1] {
        // r1 = r7 >> shift; if r1 != 0 { r8 += shift; r7 = r1 }
        code.extend([
            mov(1, 7),
            insn(0x77, 1, 0, 0, shift),
            insn(0x15, 1, 0, 2, 0),
            add_imm(8, shift),
            mov(7, 1),
        ]);
    }
    code.push(spill32(-4, 8));
    count_and_exit(&mut code, counts);
    code
}
