//! The number of the process that a hit is in: H1 to H3 of `record::sharers`; the same as x86-64's twin.
//!
//! In: where the process' own page is, and the word that counts the numbers. Out: code that sees to it that the page has
//! the number. Uses `A`, `B`, `C`, `KEY`, `D`. Invariant: SHR-1. Does not: put the number into a key (the hit's program).

use super::asm::Asm;
use super::frame::{A, B, C, D, KEY};
use super::machine::Machine;
use crate::hit::MapsAt;

/// Appends it. A process whose page has its number goes past all but the first three instructions.
pub(super) fn look(asm: &mut Asm, machine: &Machine, at: MapsAt) {
    asm.constant(B, at.own_page);
    asm.load(A, B);
    let known = asm.unless_zero_later(A);
    asm.constant(A, at.sharers);
    asm.number(KEY, 1);
    asm.fetch_add(machine.lse, D, KEY, A, [C, B]);
    asm.add(D, D, KEY);
    asm.shift_left_by(D, D, 32);
    asm.constant(B, at.own_page);
    let again = asm.here();
    asm.load_exclusive(A, B);
    let others = asm.unless_zero_later(A);
    asm.store_exclusive(C, D, B);
    asm.unless_zero(C, again);
    asm.bind(others);
    asm.bind(known);
}
