//! What a program's code needs on x86-64: registers, stack words, bytes.
//!
//! In: a program; the registers and words that the stub names. Out: a location for each variable; an upper bound of the
//! code's bytes. Does not: make code (`emit`).

use super::asm::{R11, RAX, RDX, Reg};
use super::emit::Inputs;
use crate::allocate::{Allocated, Location, NoRoom, Pool};
use crate::compute::Unary;
use crate::operand::{Place, Var};
use crate::program::{Op, Program};

/// The registers that hold variables if the stub does not say which.
pub const REGISTERS: &[Reg] = &[RAX, R11];

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
    let registers: Vec<u8> = registers.iter().map(|register| register.0).collect();
    let divided = &[RAX.0, R11.0, RDX.0];
    let claims = Some(RAX.0);
    let pool = Pool {
        registers: &registers,
        divided,
        claims,
        ways: needs,
        words,
        result: RAX.0,
        handed: &registers,
    };
    Allocated::new(program, &pool, |nth| inputs.register(nth).is_some())
}

/// How many registers an operation needs on the way to memory.
fn needs(op: &Op, locations: &[Location]) -> usize {
    let waits = |var: &Var| matches!(locations[var.index()], Location::Word(_));
    let waiting = op.read().filter(waits).count();
    let is_written = usize::from(op.written().is_some_and(|var| waits(&var)));
    // x86-64 shifts an index by up to 3.
    let shifts = usize::from(matches!(op.place(), Some(Place { index: Some((_, 4..)), .. })));
    match op {
        // One of two words is compared in memory.
        Op::Branch { .. } => waiting.saturating_sub(1),
        Op::Next(walk) => usize::from(waits(&walk.entry)),
        Op::Begin(_) => 0,
        Op::Compute { .. } | Op::Unary { .. } | Op::Move { .. } => waiting.min(1).max(is_written),
        // rax cannot be the way.
        Op::Claim { place, .. } => 2 * usize::from(waits(&place.base)),
        Op::Raise { .. } => 2 * waiting,
        Op::AddHere { .. } => (waiting + shifts).max(1),
        _ => waiting + shifts + is_written,
    }
}

/// Upper bound of the code's bytes, wherever it lies.
///
/// `input`: upper bound of the bytes of [`Inputs::load`].
#[must_use]
pub fn most_bytes(program: &Program, input: usize) -> usize {
    // An announcement, a comparison, a jump; behind the code the abort handler and the descriptor.
    const BEGIN_ADD: usize = 128;
    // The longest forms: `mov to, imm64`; a load or store of a word; two moves and `op`; a compare with a word and an
    // immediate, `jcc`, and what may be put before both so that they lie within 32 bytes.
    const WORD: usize = 8;
    let most = |op: &Op| match op {
        Op::Input { .. } => input + WORD,
        Op::Number { .. } => 10 + WORD,
        Op::Move { .. } => 2 * WORD,
        Op::Unary { op: Unary::Bits, .. } => 2 * WORD + 2 * 18,
        Op::Unary { .. } => 2 * WORD + 7,
        op if op.divides() => 3 * WORD + 30,
        Op::Compute { .. } => 2 * WORD + 10,
        Op::Branch { .. } => WORD + 2 * 18,
        Op::Jump { .. } => 5,
        Op::Bind { .. } | Op::Begin(_) => 0,
        Op::Pointer { .. } => input + WORD,
        Op::Claim { .. } | Op::Raise { .. } => 6 * WORD + 40,
        Op::Next(_) => 4 * WORD + 6,
        Op::AddHere { .. } => 5 * WORD + 18 + BEGIN_ADD,
        // An address, and an instruction with an immediate.
        _ => 5 * WORD + 18,
    };
    let commit = program.commit().map_or(0, |_| 5 * WORD + 4);
    commit + program.ops().iter().map(most).sum::<usize>() + WORD
}
