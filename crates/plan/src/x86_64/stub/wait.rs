//! A thread that finds its compact ring full waits for the reader, within a bound.
//!
//! In: where the words `MAY_WAIT` and `BEAT` lie, within ±2 GiB; the bound in ticks of the clock; the ring in r11.
//! Out: code that goes on where the record's sequence begins, once there is room, or where the record is dropped.
//! Invariants: WAIT-1 no thread waits for longer than the bound and one slice ([`SLICE_NS`]) after the last beat, whatever handlers
//! interrupt it. WAIT-2 a thread
//! that waited in vain sets `MAY_WAIT` to 0, so no other thread waits for longer than a slice. Steps and interleavings
//! stand in docs/design/recording.md; these are F1 to F7.
//!
//! This is no program of `trapline_code`, which has no system calls.
//!
//! ```text
//!   rsp - 128   rdi      rsp - 56    RING
//!   rsp - 120   rsi      rsp - 48    the timeout: seconds, and nanoseconds
//!   rsp - 112   rcx      rsp         as in `saves`
//! ```
//!
//! ```text
//!   F1    if [MAY_WAIT] = 0: dropped
//!   F2    edx = low half of [ring + SEQUENCE]
//!   F3    if [MAY_WAIT] = 0: dropped
//!   F4    if ([ring + HEAD] - [ring + TAIL]) >> 32 < full: the record again
//!   F5    [ring + WAITERS] = 1;  futex(ring + SEQUENCE, FUTEX_WAIT, edx, timeout)
//!   F6    if clock - [BEAT] >= ticks, as signed numbers: [MAY_WAIT] = 0
//!   F7    F2
//!   uses  rax, rdx, r10, r11, flags; all other registers are as before, behind a system call too
//! ```

use trapline_record::calls::{SEQUENCE, WAITERS, WORDS_SHIFT};
use trapline_record::ring::{HEAD, RingArea, TAIL};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};

/// Where a thread finds what tells it to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// Address of `MAY_WAIT`.
    pub may_wait: u64,
    /// Address of `BEAT`: the tick of the reader's last sign of life.
    pub beat: u64,
    /// The bound, in ticks of the clock: how old such a sign may be.
    pub ticks: u64,
}

/// Longest sleep: 50 ms.
const SLICE_NS: u32 = 50_000_000;
const SYS_FUTEX: u32 = 202;
/// `FUTEX_WAIT`, and not the private one: the ring is shared memory, which a forked child has too.
const FUTEX_WAIT: u32 = 0;

const SAVED: [(Reg, i32); 3] = [(RDI, -128), (RSI, -120), (RCX, -112)];
const RING: Mem = Mem::At(RSP, -56);
const TIMEOUT: i32 = -48;

impl Waits {
    /// Appends the code, for a ring of this shape; `again`: where the record's sequence begins. It runs on into the code
    /// behind it where the record is to be dropped.
    pub(super) fn append(self, asm: &mut Asm<'_>, area: &RingArea, again: u64) {
        let waits_not = self.unless_may(asm);
        SAVED.into_iter().for_each(|(reg, at)| asm.store(Mem::At(RSP, at), reg));
        asm.store(RING, R11);
        let look = asm.here();
        asm.load32(RDX, Mem::At(R11, SEQUENCE as i32));
        let denied = self.unless_may(asm);
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.alu_load(Alu::Sub, RAX, Mem::At(R11, TAIL as i32));
        asm.shift(Shift::Right, RAX, WORDS_SHIFT as u8, true);
        asm.alu_imm(Alu::Cmp, RAX, area.full_words() as i32, true);
        let room = asm.jcc_later(Cond::Below);
        sleep(asm);
        asm.load(R11, RING);
        asm.clock(RDX);
        asm.alu_load(Alu::Sub, RDX, Mem::Rip(self.beat));
        asm.mov_imm64(RAX, self.ticks);
        asm.alu(Alu::Cmp, RDX, RAX);
        asm.jcc(Cond::Less, look);
        asm.store_imm(Mem::Rip(self.may_wait), 0);
        asm.jmp(look);
        asm.bind(room);
        leave(asm);
        asm.jmp(again);
        asm.bind(denied);
        leave(asm);
        asm.bind(waits_not);
    }
    /// F1 and F3.
    fn unless_may(self, asm: &mut Asm<'_>) -> Fix {
        asm.alu_mem_imm(Alu::Cmp, Mem::Rip(self.may_wait), 0, false);
        asm.jcc_later(Cond::Equal)
    }
}

/// F5, with the sequence in edx.
fn sleep(asm: &mut Asm<'_>) {
    asm.store_imm(Mem::At(R11, WAITERS as i32), 1);
    asm.store_imm(Mem::At(RSP, TIMEOUT), 0);
    asm.store_imm(Mem::At(RSP, TIMEOUT + 8), SLICE_NS.cast_signed());
    asm.lea(RDI, Mem::At(R11, SEQUENCE as i32));
    asm.mov_imm32(RSI, FUTEX_WAIT);
    asm.lea(R10, Mem::At(RSP, TIMEOUT));
    asm.mov_imm32(RAX, SYS_FUTEX);
    asm.syscall();
}

fn leave(asm: &mut Asm<'_>) {
    SAVED.into_iter().for_each(|(reg, at)| asm.load(reg, Mem::At(RSP, at)));
}
