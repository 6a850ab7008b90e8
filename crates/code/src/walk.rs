//! The walk over a program's operations, in which a back end makes code of them.
//!
//! In: a program with locations; a back end, which appends instructions ([`BackEnd`]). Out: the jumps of all outcomes but
//! 0, at which control goes on behind the code. Neutral.
//!
//! ```text
//!   a branch ahead     waits until its label is bound, or is returned with its outcome
//!   a jump to what is next      needs no code
//!   a variable in a register    is written there
//!   a variable in a stack word  is made in the way to memory, then stored
//! ```
//!
//! Does not: know instructions, choose locations.

use crate::allocate::{Allocated, Location};
use crate::program::{Compare, Compute, Op, Operand, Target, Unary, Var};

/// What a processor has for each kind of operation.
pub(crate) trait BackEnd {
    /// A register.
    type Reg: Copy + From<u8>;
    /// A jump whose target is not known yet.
    type Fix: Copy;
    /// Holds what is on its way to a stack word.
    const WAY: Self::Reg;
    /// Holds the result at outcome 0.
    const RESULT: Self::Reg;

    /// Makes a jump lead here.
    fn bind(&mut self, fix: Self::Fix);
    /// A jump.
    fn jump(&mut self) -> Self::Fix;
    /// A jump that is taken if the comparison holds.
    fn branch(&mut self, when: Compare, left: Operand, right: Operand) -> Self::Fix;
    /// `to` = an input.
    fn input(&mut self, to: Self::Reg, nth: u16);
    /// `to` = a number.
    fn number(&mut self, to: Self::Reg, value: u64);
    /// `to = from`
    fn load(&mut self, to: Self::Reg, from: Var);
    /// `to = op from`
    fn unary(&mut self, op: Unary, to: Self::Reg, from: Var);
    /// `to = left op right`
    fn compute(&mut self, op: Compute, to: Self::Reg, left: Operand, right: Operand);
    /// A stack word = `from`.
    fn store(&mut self, word: u8, from: Self::Reg);
}

/// Appends a program's code. Returns the jumps of the other outcomes, each with its outcome's number.
pub(crate) fn walk<B: BackEnd>(allocated: &Allocated, back_end: &mut B) -> Vec<(u8, B::Fix)> {
    let program = allocated.program();
    // Jumps that are not bound yet, and where they lead.
    let mut open: Vec<(Target, B::Fix)> = Vec::new();
    for (at, op) in program.ops.iter().enumerate() {
        match *op {
            Op::Jump { to } if is_next(to, program.ops.get(at + 1)) => {}
            Op::Jump { to } => open.push((to, back_end.jump())),
            Op::Branch { when, left, right, to } => {
                open.push((to, back_end.branch(when, left.into(), right)));
            }
            Op::Bind { label } => bind(back_end, &mut open, Target::Label(label)),
            op => write(allocated, back_end, op),
        }
    }
    bind(back_end, &mut open, Target::Outcome(0));
    if let Some(result) = program.result {
        back_end.load(B::RESULT, result);
    }
    let outcome = |(to, fix)| match to {
        Target::Outcome(outcome) => Some((outcome, fix)),
        // All labels are bound (`verify`).
        Target::Label(_) => None,
    };
    open.into_iter().filter_map(outcome).collect()
}

/// An operation that writes a variable.
fn write<B: BackEnd>(allocated: &Allocated, back_end: &mut B, op: Op) {
    let Some(var) = op.written() else { return };
    let (to, word) = match allocated.location(var) {
        Location::Register(register) => (B::Reg::from(register), None),
        Location::Word(word) => (B::WAY, Some(word)),
        Location::Input(_) | Location::Nowhere => return,
    };
    match op {
        Op::Input { nth, .. } => back_end.input(to, nth),
        Op::Number { value, .. } => back_end.number(to, value),
        Op::Move { from, .. } => back_end.load(to, from),
        Op::Unary { op, from, .. } => back_end.unary(op, to, from),
        Op::Compute { op, left, right, .. } => back_end.compute(op, to, left.into(), right),
        Op::Branch { .. } | Op::Jump { .. } | Op::Bind { .. } => {}
    }
    if let Some(word) = word {
        back_end.store(word, to);
    }
}

/// Makes all that lead there lead here.
fn bind<B: BackEnd>(back_end: &mut B, open: &mut Vec<(Target, B::Fix)>, target: Target) {
    let mut nth = 0;
    while let Some((to, fix)) = open.get(nth) {
        if *to == target {
            back_end.bind(*fix);
            open.swap_remove(nth);
        } else {
            nth += 1;
        }
    }
}

/// Whether a jump leads to the next operation.
fn is_next(to: Target, next: Option<&Op>) -> bool {
    match next {
        Some(Op::Bind { label }) => to == Target::Label(*label),
        Some(_) => false,
        None => to == Target::Outcome(0),
    }
}
