//! Makes programs, one operation after another.
//!
//! In: operations, in the order in which they run. Out: a verified [`Program`]. Numbers that no instruction holds get
//! a variable here, and what two numbers give is computed here, so back ends need not know.
//!
//! Does not: choose registers.

use crate::compute::{Compare, Compute, Unary};
use crate::operand::{Label, Memory, Operand, Place, Target, Var, Walk};
use crate::program::{Commit, Op, Program};
use crate::unsound::Unsound;
use crate::verify::verify;

/// A program that grows.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    ops: Vec<Op>,
    vars: u16,
    labels: u16,
}

/// A value on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// Is computed at the hit.
    Var(Var),
    /// Is known now.
    Number(u64),
    /// An input that is read wherever it is used. So it takes no register in between.
    Input(u16),
}

impl Builder {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// A variable that nothing has written yet.
    pub fn var(&mut self) -> Var {
        self.vars = self.vars.saturating_add(1);
        Var(self.vars - 1)
    }
    /// A label that must be bound later.
    pub fn label(&mut self) -> Label {
        self.labels = self.labels.saturating_add(1);
        Label(self.labels - 1)
    }
    /// The value of an input.
    pub fn input(&mut self, nth: u16) -> Value {
        let to = self.var();
        self.ops.push(Op::Input { to, nth });
        Value::Var(to)
    }
    /// A variable with this value.
    pub fn in_var(&mut self, value: Value) -> Var {
        match value {
            Value::Var(var) => var,
            _ => {
                let to = self.var();
                self.set(to, value);
                to
            }
        }
    }
    /// A number that several operations use: in a variable, if no instruction holds it.
    pub fn number(&mut self, number: u64) -> Value {
        match self.operand(Value::Number(number)) {
            Operand::Var(var) => Value::Var(var),
            Operand::Number(_) => Value::Number(number),
        }
    }
    /// Writes a variable that may be written at several places.
    pub fn set(&mut self, to: Var, value: Value) {
        self.ops.push(match value {
            Value::Var(from) => Op::Move { to, from },
            Value::Number(value) => Op::Number { to, value },
            Value::Input(nth) => Op::Input { to, nth },
        });
    }
    /// The result of a computation with one operand.
    pub fn unary(&mut self, op: Unary, of: Value) -> Value {
        match of {
            Value::Number(of) => Value::Number(op.apply(of)),
            _ => {
                let to = self.var();
                self.set_unary(to, op, of);
                Value::Var(to)
            }
        }
    }
    /// The result of a computation with two operands.
    pub fn compute(&mut self, op: Compute, left: Value, right: Value) -> Value {
        if let (Value::Number(a), Value::Number(b)) = (left, right) {
            return Value::Number(op.apply(a, b));
        }
        let to = self.var();
        self.set_computed(to, op, left, right);
        Value::Var(to)
    }
    /// Writes a variable that may be written at several places, with the result of a computation.
    pub fn set_unary(&mut self, to: Var, op: Unary, of: Value) {
        match of {
            Value::Number(of) => self.set(to, Value::Number(op.apply(of))),
            _ => {
                let from = self.in_var(of);
                self.ops.push(Op::Unary { op, to, from });
            }
        }
    }
    /// The same with two operands.
    pub fn set_computed(&mut self, to: Var, op: Compute, left: Value, right: Value) {
        if let (Value::Number(a), Value::Number(b)) = (left, right) {
            return self.set(to, Value::Number(op.apply(a, b)));
        }
        let (left, right) = (self.in_var(left), self.operand(right));
        self.ops.push(Op::Compute { op, to, left, right });
    }
    /// Goes to `to` if the comparison holds.
    pub fn branch(&mut self, when: Compare, left: Value, right: Value, to: Target) {
        if let (Value::Number(a), Value::Number(b)) = (left, right) {
            if when.holds(a, b) {
                self.jump(to);
            }
            return;
        }
        let left = self.in_var(left);
        let right = self.operand(right);
        self.ops.push(Op::Branch { when, left, right, to });
    }
    /// Goes to `to`.
    pub fn jump(&mut self, to: Target) {
        self.ops.push(Op::Jump { to });
    }
    /// Makes a label mean the next operation.
    pub fn bind(&mut self, label: Label) {
        self.ops.push(Op::Bind { label });
    }
    /// The value of an input that is a pointer.
    pub fn pointer(&mut self, nth: u16, memory: Memory) -> Var {
        let to = self.var();
        self.ops.push(Op::Pointer { to, nth, memory });
        to
    }
    /// Writes a variable with an address.
    pub fn set_address(&mut self, to: Var, place: Place) {
        self.ops.push(Op::Address { to, place });
    }
    /// The word there.
    pub fn load(&mut self, place: Place) -> Value {
        let to = self.var();
        self.ops.push(Op::Load { to, place, byte: false });
        Value::Var(to)
    }
    /// The byte there.
    pub fn load_byte(&mut self, place: Place) -> Value {
        let to = self.var();
        self.ops.push(Op::Load { to, place, byte: true });
        Value::Var(to)
    }
    /// Stores a word.
    pub fn store(&mut self, place: Place, value: Value) {
        let from = self.operand(value);
        self.ops.push(Op::Store { place, from });
    }
    /// Stores a byte.
    pub fn store_byte(&mut self, place: Place, value: u8) {
        self.ops.push(Op::StoreByte { place, value });
    }
    /// Goes to `to` if the comparison of the word there holds.
    pub fn branch_word(&mut self, when: Compare, place: Place, right: Value, to: Target) {
        let right = self.operand(right);
        self.ops.push(Op::BranchWord { when, place, right, to });
    }
    /// Looks at a word that other threads change: goes to `free` if it is 0, and to `claimed` if another thread has
    /// claimed it.
    pub fn look(&mut self, place: Place, free: Target, claimed: Target) {
        self.ops.push(Op::Look { place, free, claimed });
    }
    /// Such a word. `last`: what was loaded before is older.
    pub fn watch(&mut self, place: Place, last: bool) -> Var {
        let to = self.var();
        self.ops.push(Op::Watch { to, place, last });
        to
    }
    /// Claims such a word, and goes to `to`, if it is `from`.
    pub fn claim(&mut self, place: Place, from: Value, to: Target) {
        let from = self.operand(from);
        self.ops.push(Op::Claim { place, from, to });
    }
    /// Stores a word behind all earlier stores: one of this thread's own, or another while one is claimed. If it is the
    /// claimed one, the claim ends.
    pub fn publish(&mut self, place: Place, value: Value) {
        let value = self.operand(value);
        self.ops.push(Op::Publish { place, value });
    }
    /// Adds a value to such a word.
    pub fn add(&mut self, place: Place, value: Value) {
        let value = self.operand(value);
        self.ops.push(Op::Add { place, value });
    }
    /// Adds a value to a word of a CPU's line, or goes to `to` if the thread is on another CPU; input `nth` says so.
    pub fn add_here(&mut self, place: Place, value: Value, nth: u16, to: Target) {
        let value = self.operand(value);
        self.ops.push(Op::AddHere { place, value, nth, to });
    }
    /// Such a word becomes `value`, if the comparison of `value` with it holds.
    pub fn raise(&mut self, when: Compare, place: Place, value: Value) {
        let value = self.in_var(value);
        self.ops.push(Op::Raise { when, place, value });
    }
    /// A walk over `count` entries from `entry` on.
    pub fn walk(&mut self, entry: Var, stride: u16, count: u16) -> Walk {
        let walk = Walk { entry, end: self.var(), stride, count };
        self.ops.push(Op::Bound(walk, None));
        walk
    }
    /// A walk over the entries from `entry` to the one that is `reach` bytes further on. If that is none of `count`, it is
    /// another one. `stride` and `count` are powers of two.
    pub fn walk_within(&mut self, entry: Var, stride: u16, count: u16, reach: Value) -> Walk {
        let walk = Walk { entry, end: self.var(), stride, count };
        let mask = walk.bytes() - i32::from(stride);
        let reach = self.compute(Compute::And, reach, Value::Number(mask as u64));
        let reach = self.in_var(reach);
        self.ops.push(Op::Bound(walk, Some(reach)));
        walk
    }
    /// Begins the operations of a walk, or goes on with it.
    pub fn begin(&mut self, walk: Walk) {
        self.ops.push(Op::Begin(walk));
    }
    /// Goes on with the walk's next entry. Control comes through behind the last one.
    pub fn next(&mut self, walk: Walk) {
        self.ops.push(Op::Next(walk));
    }
    /// Ends the program: what is not left by a branch goes on behind its code, with the result.
    ///
    /// # Errors
    /// The rule that it breaks, with the operation's number.
    pub fn finish(mut self, result: Option<Value>) -> Result<Program, Unsound> {
        let result = result.map(|value| self.in_var(value));
        let Self { ops, vars, labels } = self;
        let (commit, handed) = (None, Vec::new());
        verified(Program { ops, vars, labels, result, commit, handed, is_sequence: false })
    }
    /// Ends the body of a restartable sequence: what is not left by a branch adds a value to the word there.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn commit(mut self, place: Place, value: Value) -> Result<Program, Unsound> {
        let value = match value {
            Value::Number(number) if Commit::holds(number.cast_signed()) => self.operand(value),
            _ => Operand::Var(self.in_var(value)),
        };
        let Self { ops, vars, labels } = self;
        let commit = Some(Commit { place, value });
        verified(Program { ops, vars, labels, result: None, commit, handed: Vec::new(), is_sequence: true })
    }
    /// Ends a part of a sequence's body that another part follows: what is not left by a branch goes on behind its code,
    /// with these values for that part.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn hand_on(self, handed: &[Var]) -> Result<Program, Unsound> {
        let Self { ops, vars, labels } = self;
        let (handed, is_sequence) = (handed.to_vec(), true);
        verified(Program { ops, vars, labels, result: None, commit: None, handed, is_sequence })
    }

    fn operand(&mut self, value: Value) -> Operand {
        match value {
            Value::Number(number) => match i32::try_from(number.cast_signed()) {
                Ok(number) => Operand::Number(number),
                Err(_) => Operand::Var(self.in_var(value)),
            },
            _ => Operand::Var(self.in_var(value)),
        }
    }
}

fn verified(program: Program) -> Result<Program, Unsound> {
    verify(&program)?;
    Ok(program)
}
