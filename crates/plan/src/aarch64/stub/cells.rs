//! The cell (histogram bucket) of a value.
//!
//! In: how an aggregation sorts values. Out: code that turns the value in `A` into its cell, as [`Tally::key`].
//!
//! ```text
//!   Log2     cell = 0 if value < 0; else 65 - clz(value)           0 in cell 1, 2^n in cell n + 2
//!   Linear   cell = 0 if value < min; else 1 + lesser((value - min) / step, count)
//!
//!   x16 A    the value, then the cell; the value itself if each value has a row
//!   uses     B, C, KEY, flags
//! ```

use super::asm::{Asm, Cond, ZERO};
use super::frame::{A, B, C, KEY};
use crate::filter::{Sort, Tally};

/// From `A` = value to `A` = its cell, or the value itself if there are no cells. Uses `B`, `C`, `KEY`,
/// flags.
pub(super) fn cell_of(asm: &mut Asm, tally: &Tally) {
    let unsigned = tally.value.is_unsigned();
    match tally.sort {
        Sort::Each | Sort::Text(_) => {}
        Sort::Log2 => log2(asm, unsigned),
        Sort::Linear { min, step, count } => linear(asm, unsigned, (min, step.max(1), count)),
    }
}

/// `A = 65 - clz(A)`, or 0 if A < 0.
fn log2(asm: &mut Asm, unsigned: bool) {
    asm.leading_zeros(B, A);
    asm.number(C, 65);
    asm.sub(B, C, B);
    if !unsigned {
        asm.compare(A, ZERO);
        asm.select(B, ZERO, B, Cond::Negative);
    }
    asm.mov(A, B);
}

fn linear(asm: &mut Asm, unsigned: bool, (min, step, count): (i64, u64, u32)) {
    asm.constant(B, min.cast_unsigned());
    asm.sub(C, A, B);
    if step.is_power_of_two() {
        asm.shift_right_by(C, C, step.trailing_zeros());
    } else {
        asm.constant(KEY, step);
        asm.div(C, C, KEY);
    }
    asm.number(KEY, count);
    asm.compare(C, KEY);
    asm.select(C, C, KEY, Cond::BelowEq);
    asm.add_imm(C, C, 1);
    // No unsigned value is below a minimum that is not above 0.
    if !unsigned || min > 0 {
        asm.compare(A, B);
        asm.select(C, ZERO, C, if unsigned { Cond::Below } else { Cond::Less });
    }
    asm.mov(A, C);
}
