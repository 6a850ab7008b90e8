//! What a program's code needs on arm64: registers, stack words, bytes.
//!
//! In: a program; the registers and words that the stub names. Out: a location for each variable; an upper bound of the
//! code's bytes. Does not: make code (`emit`).

use super::access::{is_byte_reach, is_reach, is_zero};
use super::asm::Reg;
use super::emit::{A, Inputs};
use crate::allocate::{Allocated, Location, NoRoom, Pool};
use crate::compute::Compute;
use crate::operand::{Operand, Place, Var};
use crate::program::{Commit, Op, Program};

/// The registers that hold variables if the stub does not say which.
pub const REGISTERS: &[Reg] = &[A, 17];

/// Chooses locations for a program that has these registers and `words` stack words. What a part hands on is in the first
/// registers.
///
/// # Errors
/// There are too few.
pub fn allocate(
    program: Program,
    registers: &[Reg],
    words: usize,
    inputs: &impl Inputs,
) -> Result<Allocated, NoRoom> {
    let registers: Vec<u8> = registers.iter().map(|register| *register as u8).collect();
    let pool = Pool {
        registers: &registers,
        divided: &registers,
        claims: None,
        ways: needs,
        words,
        result: A as u8,
        handed: &registers,
    };
    Allocated::new(program, &pool, |nth| inputs.register(nth).is_some())
}

/// How many registers an operation needs on the way to memory, besides x11.
fn needs(op: &Op, locations: &[Location]) -> usize {
    let waits = |var: Var| matches!(locations[var.index()], Location::Word(_));
    let is_fetched = |operand| match operand {
        Operand::Var(var) => usize::from(waits(var)),
        Operand::Number(_) => 1,
    };
    let is_added = |operand| match operand {
        Operand::Number(number) if Commit::holds(number.into()) => 0,
        operand => is_fetched(operand),
    };
    let is_written = usize::from(op.written().is_some_and(waits));
    let waiting = |place: Place| place.vars().into_iter().flatten().filter(|var| waits(*var)).count();
    let address = |place: Place, is_in_reach: fn(i32) -> bool| {
        waiting(place).max(usize::from(place.index.is_some() || !is_in_reach(place.offset)))
    };
    let ways = match *op {
        Op::Compute { op: Compute::Remainder | Compute::RemainderSigned, to, left, right } => {
            let fetched = usize::from(waits(left)) + is_fetched(right);
            let shares = |var: Var| locations[var.index()] == locations[to.index()];
            let is_shared = shares(left) || matches!(right, Operand::Var(right) if shares(right));
            // The quotient is where the result will be, if no operand is there.
            fetched + usize::from(if is_written == 1 { fetched > 0 } else { is_shared })
        }
        Op::Compute { left, right, .. } | Op::Branch { left, right, .. } => {
            (usize::from(waits(left)) + is_fetched(right)).max(is_written)
        }
        Op::Bound(walk, None) => usize::from(waits(walk.entry)).max(is_written),
        Op::Bound(walk, Some(reach)) => {
            (usize::from(waits(walk.entry)) + usize::from(waits(reach))).max(is_written)
        }
        Op::Next(walk) => usize::from(waits(walk.entry)) + usize::from(waits(walk.end)),
        Op::Address { place, .. } => waiting(place).max(is_written),
        Op::Load { place, byte, .. } => {
            address(place, if byte { is_byte_reach } else { is_reach }).max(is_written)
        }
        Op::Store { place, from } => address(place, is_reach) + is_fetched(from),
        Op::StoreByte { place, .. } => address(place, is_byte_reach) + 1,
        Op::BranchWord { place, right, .. } => address(place, is_reach).max(1) + is_fetched(right),
        Op::Look { place, .. } => address(place, is_zero).max(1),
        Op::Publish { place, value } => address(place, is_zero) + is_fetched(value),
        Op::Watch { place, .. } => address(place, is_zero).max(is_written),
        Op::Claim { place, from, .. } => {
            let number = usize::from(!matches!(from, Operand::Number(0)));
            address(place, is_zero) + 2 + is_fetched(from).min(number)
        }
        Op::Raise { place, value, .. } => address(place, is_zero) + usize::from(waits(value)) + 2,
        // Also a commit, which loads the word.
        Op::Add { place, value } | Op::AddHere { place, value, .. } => {
            address(place, is_zero) + 2 + is_added(value)
        }
        _ => is_written,
    };
    ways.saturating_sub(1)
}

/// Upper bound of the code's bytes, with its constants.
///
/// `input`: upper bound of the bytes of [`Inputs::load`].
#[must_use]
pub fn most_bytes(program: &Program, input: usize) -> usize {
    const WORD: usize = 4;
    // A number takes two instructions, or one and a constant.
    const NUMBER: usize = 12;
    let most = |op: &Op| match op {
        Op::Input { .. } => input + WORD,
        Op::Number { .. } => NUMBER + WORD,
        Op::Move { .. } => 2 * WORD,
        Op::Unary { .. } => 5 * WORD,
        Op::Compute { .. } => NUMBER + 5 * WORD,
        Op::Branch { .. } => NUMBER + 4 * WORD,
        Op::Jump { .. } => WORD,
        Op::Bind { .. } | Op::Begin(_) => 0,
        Op::Pointer { .. } => input + WORD,
        // An address, a number, and four instructions.
        _ => NUMBER + 10 * WORD,
    };
    // Besides: an announcement, a comparison, a jump; behind the code the abort handler and the descriptor.
    let here = program.ops().iter().filter(|op| matches!(op, Op::AddHere { .. })).count() * 128;
    let commit = here + program.commit().map_or(0, |_| NUMBER + 8 * WORD);
    commit + program.ops().iter().map(most).sum::<usize>() + WORD
}
