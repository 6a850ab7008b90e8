//! The cell (histogram bucket) of a value.
//!
//! In: how an aggregation sorts values. Out: code that turns the value in rax into its cell, as [`Tally::key`].
//!
//! ```text
//!   rax    the value, then the cell; the value itself if each value has a row
//!   uses   rdx, r10, flags
//! ```

use super::asm::{Alu, Asm, Cond, R10, RAX, RDX, Shift};
use crate::filter::{Sort, Tally};

/// rax = the cell of the value in rax, or the value itself if there are no cells. Uses r10, rdx and flags.
pub(super) fn cell_of(asm: &mut Asm<'_>, tally: &Tally) {
    let unsigned = tally.value.is_unsigned();
    match tally.sort {
        Sort::Each | Sort::Text(_) => {}
        Sort::Log2 => log2(asm, unsigned),
        Sort::Linear { min, step, count } => linear(asm, unsigned, (min, step.max(1), count)),
    }
}

/// ```text
///   value < 0    rax = 0
///   value = 0    rax = 1
///   value > 0    rax = 2 + floor(log2 value)
/// ```
fn log2(asm: &mut Asm<'_>, unsigned: bool) {
    asm.mov_imm32(R10, 0);
    asm.test(RAX, RAX, true);
    let negative = (!unsigned).then(|| asm.jcc_later(Cond::Sign));
    asm.mov_imm32(R10, 1);
    let zero = asm.jcc_later(Cond::Equal);
    asm.bsr(R10, RAX);
    asm.alu_imm(Alu::Add, R10, 2, false);
    negative.into_iter().chain([zero]).for_each(|fix| asm.bind(fix));
    asm.mov32(RAX, R10);
}

/// ```text
///   value < min     rax = 0
///   value >= min    rax = 1 + min((value - min) / step, count)
/// ```
fn linear(asm: &mut Asm<'_>, unsigned: bool, (min, step, count): (i64, u64, u32)) {
    let mut below = None;
    if min != 0 || !unsigned {
        asm.mov_imm64(R10, min.cast_unsigned());
        // No unsigned value is below a minimum that is not above 0.
        if !unsigned || min > 0 {
            asm.alu(Alu::Cmp, RAX, R10);
            let cond = if unsigned { Cond::Below } else { Cond::Less };
            below = Some(asm.jcc_later(cond));
        }
        asm.alu(Alu::Sub, RAX, R10);
    }
    if step.is_power_of_two() {
        asm.shift(Shift::Right, RAX, step.trailing_zeros() as u8, true);
    } else {
        asm.mov_imm64(R10, step);
        asm.mov_imm32(RDX, 0);
        asm.div(R10);
    }
    asm.alu_imm(Alu::Cmp, RAX, count as i32, true);
    let within = asm.jcc_later(Cond::Below);
    asm.mov_imm32(RAX, count);
    asm.bind(within);
    asm.alu_imm(Alu::Add, RAX, 1, true);
    if let Some(below) = below {
        let done = asm.jmp_later();
        asm.bind(below);
        asm.mov_imm32(RAX, 0);
        asm.bind(done);
    }
}
