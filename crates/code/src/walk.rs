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
use crate::compute::{Compare, Compute, Unary};
use crate::operand::{Operand, Place, Target, Var, Walk};
use crate::program::{Commit, Op, Program};

/// What a processor has for each kind of operation.
pub(crate) trait BackEnd {
    /// A register.
    type Reg: Copy + Eq + From<u8>;
    /// A jump whose target is not known yet.
    type Fix: Copy;
    /// Holds the result at outcome 0.
    const RESULT: Self::Reg;

    /// What follows is an operation's code; the end counts as one.
    fn at(&mut self, at: usize);
    /// A register that holds what is on its way to a stack word.
    fn way(&mut self) -> Self::Reg;
    /// Address of the next instruction.
    fn here(&self) -> u64;
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
    /// `to = left · right + plus`, if there is an instruction for that. Returns whether there is one.
    fn multiply_add(&mut self, _to: Self::Reg, _product: (Operand, Operand), _plus: Operand) -> bool {
        false
    }
    /// `to = left op [place]`, if there are instructions for that. Returns whether there are.
    fn compute_word(&mut self, _op: Compute, _to: Self::Reg, _left: Operand, _place: Place) -> bool {
        false
    }
    /// Two words, one behind the other, = `from`, if there is an instruction for that. Returns whether there is one.
    fn store_two(&mut self, _place: Place, _from: [Operand; 2]) -> bool {
        false
    }
    /// A stack word = `from`.
    fn store(&mut self, word: u8, from: Self::Reg);
    /// `to` = an address.
    fn address(&mut self, to: Self::Reg, place: Place);
    /// `to` = a word in memory, or a byte.
    fn load_from(&mut self, to: Self::Reg, place: Place, byte: bool);
    /// A word in memory = `from`.
    fn store_to(&mut self, place: Place, from: Operand);
    /// A byte in memory = `value`.
    fn store_byte(&mut self, place: Place, value: u8);
    /// A jump that is taken if the comparison of a word in memory holds.
    fn branch_word(&mut self, when: Compare, place: Place, right: Operand) -> Self::Fix;
    /// Jumps that are taken if a word that other threads change is 0, and if it is negative.
    fn look(&mut self, place: Place) -> [Self::Fix; 2];
    /// `to` = such a word. `last`: behind all loads.
    fn watch(&mut self, to: Self::Reg, place: Place, last: bool);
    /// A jump that is taken if a word was `from` and is claimed now.
    fn claim(&mut self, place: Place, from: Operand) -> Self::Fix;
    /// A word = `value`, behind all stores.
    fn publish(&mut self, place: Place, value: Operand);
    /// Adds a value to a word that other threads change.
    fn add(&mut self, place: Place, value: Operand);
    /// Adds a value to a word of this CPU's line. A jump that is taken if the thread has left that CPU, if that may be.
    fn add_here(&mut self, place: Place, value: Operand, nth: u16) -> Option<Self::Fix>;
    /// Such a word = `value`, if the comparison of `value` with it holds.
    fn raise(&mut self, when: Compare, place: Place, value: Operand);
    /// `entry += stride`, and back to `begin` unless that is the end.
    fn next(&mut self, walk: Walk, begin: u64);
    /// Adds a value to a word, by a store that is the last instruction. `ordered`: behind other stores.
    fn commit(&mut self, commit: Commit, ordered: bool);
}

/// Appends a program's code. Returns the jumps of the other outcomes, each with its outcome's number.
pub(crate) fn walk<B: BackEnd>(allocated: &Allocated, back_end: &mut B) -> Vec<(u8, B::Fix)> {
    let program = allocated.program();
    // Jumps that are not bound yet, and where they lead.
    let mut open: Vec<(Target, B::Fix)> = Vec::new();
    let mut begin = back_end.here();
    // An operation that was made together with the one before.
    let mut joined = None;
    for (at, op) in program.ops.iter().enumerate() {
        back_end.at(at);
        if joined == Some(at) {
            continue;
        }
        match *op {
            Op::Jump { to } if is_next(to, program.ops.get(at + 1)) => {}
            Op::Jump { to } => open.push((to, back_end.jump())),
            Op::Branch { when, left, right, to } => {
                open.push((to, back_end.branch(when, left.into(), right)));
            }
            Op::Bind { label } => bind(back_end, &mut open, Target::Label(label)),
            Op::Store { place, from } => match next_word(program, at) {
                Some(next) if back_end.store_two(place, [from, next]) => joined = Some(at + 1),
                _ => back_end.store_to(place, from),
            },
            Op::StoreByte { place, value } => back_end.store_byte(place, value),
            Op::BranchWord { when, place, right, to } => {
                open.push((to, back_end.branch_word(when, place, right)));
            }
            Op::Look { place, free, claimed } => {
                let [when_free, when_claimed] = back_end.look(place);
                open.extend([(free, when_free), (claimed, when_claimed)]);
            }
            Op::Claim { place, from, to } => open.push((to, back_end.claim(place, from))),
            Op::Publish { place, value } => back_end.publish(place, value),
            Op::Add { place, value } => back_end.add(place, value),
            Op::AddHere { place, value, nth, to } => {
                open.extend(back_end.add_here(place, value, nth).map(|moved| (to, moved)));
            }
            Op::Raise { when, place, value } => back_end.raise(when, place, value.into()),
            Op::Begin(_) => begin = back_end.here(),
            Op::Next(walk) => back_end.next(walk, begin),
            op => match add_product(allocated, back_end, at) || with_word(allocated, back_end, at) {
                true => joined = Some(at + 1),
                false => write(allocated, back_end, op),
            },
        }
    }
    back_end.at(program.ops.len());
    bind(back_end, &mut open, Target::Outcome(0));
    if let Some(result) = program.result {
        back_end.load(B::RESULT, result);
    }
    if let Some(commit) = program.commit {
        back_end.commit(commit, program.stores());
    }
    let outcome = |(to, fix)| match to {
        Target::Outcome(outcome) => Some((outcome, fix)),
        // All labels are bound (`verify`).
        Target::Label(_) => None,
    };
    open.into_iter().filter_map(outcome).collect()
}

/// Makes a product and the sum that comes next by one instruction, if there is one and nothing else reads the product.
fn add_product<B: BackEnd>(allocated: &Allocated, back_end: &mut B, at: usize) -> bool {
    let program = allocated.program();
    let (Some(Op::Compute { op: Compute::Multiply, to: product, left, right }), Some(next)) =
        (program.ops.get(at), program.ops.get(at + 1))
    else {
        return false;
    };
    let (to, one, other) = match *next {
        Op::Compute { op: Compute::Add, to, left, right: right @ Operand::Var(_) } => (to, left, right),
        Op::Address { to, place: Place { base, index: Some((index, 0)), offset: 0 } } => {
            (to, base, index.into())
        }
        _ => return false,
    };
    let is_read_once = allocated.is_read_once(*product);
    let product: Operand = (*product).into();
    let plus = match (Operand::from(one), other) {
        (one, other) if one == product && other != product => other,
        (one, other) if other == product && one != product => one,
        _ => return false,
    };
    match allocated.location(to) {
        Location::Register(to) if is_read_once => {
            back_end.multiply_add(B::Reg::from(to), ((*left).into(), *right), plus)
        }
        _ => false,
    }
}

/// Makes a load and the computation that comes next by one instruction, if there is one and nothing else reads the word.
fn with_word<B: BackEnd>(allocated: &Allocated, back_end: &mut B, at: usize) -> bool {
    let ops = &allocated.program().ops;
    let (Some(&Op::Load { to: word, place, byte: false }), Some(&Op::Compute { op, to, left, right })) =
        (ops.get(at), ops.get(at + 1))
    else {
        return false;
    };
    let is_right = right == word.into() && left != word && allocated.is_read_once(word);
    match allocated.location(to) {
        Location::Register(to) if is_right => back_end.compute_word(op, to.into(), left.into(), place),
        _ => false,
    }
}

/// What is stored next, if that is in the word behind the one that is stored here.
fn next_word(program: &Program, at: usize) -> Option<Operand> {
    match (program.ops.get(at)?, program.ops.get(at + 1)?) {
        (Op::Store { place: here, .. }, Op::Store { place: next, from }) => {
            let offset = here.offset.checked_add(8)?;
            (*next == Place { offset, ..*here }).then_some(*from)
        }
        _ => None,
    }
}

/// An operation that writes a variable.
fn write<B: BackEnd>(allocated: &Allocated, back_end: &mut B, op: Op) {
    let Some(var) = op.written() else { return };
    let (to, word) = match allocated.location(var) {
        Location::Register(register) => (B::Reg::from(register), None),
        Location::Word(word) => (back_end.way(), Some(word)),
        Location::Input(_) | Location::Nowhere => return,
    };
    match op {
        Op::Input { nth, .. } | Op::Pointer { nth, .. } => back_end.input(to, nth),
        Op::Number { value, .. } => back_end.number(to, value),
        Op::Move { from, .. } => back_end.load(to, from),
        Op::Unary { op, from, .. } => back_end.unary(op, to, from),
        Op::Compute { op, left, right, .. } => back_end.compute(op, to, left.into(), right),
        Op::Address { place, .. } => back_end.address(to, place),
        Op::Load { place, byte, .. } => back_end.load_from(to, place, byte),
        Op::Watch { place, last, .. } => back_end.watch(to, place, last),
        Op::Bound(walk, None) => back_end.address(to, Place::at(walk.entry, walk.bytes())),
        Op::Bound(Walk { entry: base, stride, .. }, Some(reach)) => {
            back_end.address(to, Place { base, index: Some((reach, 0)), offset: stride.into() });
        }
        _ => {}
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
