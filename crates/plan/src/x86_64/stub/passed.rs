//! The number of the probe that was hit, where probes share code: the stub passes it in a word below rsp.
//!
//! In: nothing. Out: the word, and the address of the probe's counter. `shared_record` has the
//! picture.

use trapline_record::counters::PER_LINE;

use super::asm::{Alu, Asm, Mem, R10, RAX, RSP, Shift};
use super::machine::Machine;

const PASSED: i32 = -40;
pub(super) const DROPPED: Mem = Mem::At(RSP, -32);

/// The code is shared: see `shared_record`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// It goes on where the stub says, and does not return from the function.
    pub goes_on: bool,
}

/// The word with the probe's number, if rsp is lower by `depth`.
pub(super) const fn passed(depth: i32) -> Mem {
    Mem::At(RSP, depth + PASSED)
}

/// `[DROPPED]` = address of the passed probe's counter on line 0; `first` is that of probe 0's. Uses rax, r10 and flags.
pub(super) fn dropped_of_passed(asm: &mut Asm<'_>, machine: &Machine, first: u64) {
    const SHIFT: u8 = PER_LINE.trailing_zeros() as u8;
    const { assert!(PER_LINE.is_power_of_two()) };
    asm.load(RAX, passed(0));
    asm.mov(R10, RAX);
    asm.shift(Shift::Right, R10, SHIFT, true);
    asm.imul_imm(R10, R10, machine.lines as i32 * 64, true);
    asm.alu_imm(Alu::And, RAX, PER_LINE as i32 - 1, true);
    asm.lea(R10, Mem::Sum(R10, RAX, 3, 0));
    asm.mov_imm64(RAX, first);
    asm.alu(Alu::Add, R10, RAX);
    asm.store(DROPPED, R10);
}
