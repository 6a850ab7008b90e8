//! The BPF program that reads a watched word at the very trap, assembled by hand.
//!
//! It runs in the overflow handler of the breakpoint, on the CPU that made the access, and before that thread
//! executes anything else. So it reads what the access left, unless another CPU wrote in between. It writes
//! `(tgid << 32 | tid, watched address, word at that address rounded down to 8, error or 0)` into the ring of
//! its CPU. That comes right before the sample of the same trap, which it keeps. Because the address is
//! rounded down, the word lies in the page of the watched bytes.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::bpf::{FP, Insn, add_imm, call, insn, mov, mov_imm, spill};

const PID_TGID: i32 = 14;
const PERF_EVENT_OUTPUT: i32 = 25;
const PROBE_READ_USER: i32 = 112;
/// Offset of the breakpoint's address in `struct bpf_perf_event_data`: behind `pt_regs` and the period.
const CTX_ADDR: i16 = 21 * 8 + 8;

/// The program; `rings` is an array of ring-owning events, one for each CPU.
pub(super) fn read_value(rings: BorrowedFd<'_>) -> Vec<Insn> {
    vec![
        mov(6, 1),
        // r7 = ctx->addr
        insn(0x79, 7, 6, CTX_ADDR, 0),
        spill(-24, 7),
        call(PID_TGID),
        spill(-32, 0),
        // The word starts as zero, for the verifier and for a failed read.
        mov_imm(1, 0),
        spill(-16, 1),
        mov(3, 7),
        insn(0x57, 3, 0, 0, -8),
        mov_imm(2, 8),
        mov(1, FP),
        add_imm(1, -16),
        call(PROBE_READ_USER),
        spill(-8, 0),
        // perf_event_output(ctx, rings, BPF_F_CURRENT_CPU, fp - 32, 32)
        mov(1, 6),
        insn(0x18, 2, 1, 0, rings.as_raw_fd()),
        0,
        // A 32-bit move: the flag is 0xffff_ffff without sign extension.
        insn(0xb4, 3, 0, 0, -1),
        mov(4, FP),
        add_imm(4, -32),
        mov_imm(5, 32),
        call(PERF_EVENT_OUTPUT),
        mov_imm(0, 1),
        insn(0x95, 0, 0, 0, 0),
    ]
}
