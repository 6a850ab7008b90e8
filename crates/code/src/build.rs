//! Makes programs, one operation after another.
//!
//! In: operations, in the order in which they run. Out: a verified [`Program`]. Numbers that no instruction holds get
//! a variable here, and what two numbers give is computed here, so back ends need not know.
//!
//! Does not: choose registers.

use crate::program::{Compare, Compute, Label, Op, Operand, Program, Target, Unary, Var};
use crate::verify::{Unsound, verify};

/// A program that grows.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    ops: Vec<Op>,
    vars: u16,
    labels: u16,
}

/// A value on the way: a variable, or a number that is known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// Is computed at the hit.
    Var(Var),
    /// Is known now.
    Number(u64),
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
            Value::Number(value) => {
                let to = self.var();
                self.ops.push(Op::Number { to, value });
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
        });
    }
    /// The result of a computation with one operand.
    pub fn unary(&mut self, op: Unary, of: Value) -> Value {
        match of {
            Value::Number(of) => Value::Number(op.apply(of)),
            Value::Var(_) => {
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
            Value::Var(from) => self.ops.push(Op::Unary { op, to, from }),
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
    /// Ends the program: what is not left by a branch goes on behind its code, with the result.
    ///
    /// # Errors
    /// The rule that it breaks, with the operation's number.
    pub fn finish(mut self, result: Option<Value>) -> Result<Program, Unsound> {
        let result = result.map(|value| self.in_var(value));
        let Self { ops, vars, labels } = self;
        let program = Program { ops, vars, labels, result };
        verify(&program)?;
        Ok(program)
    }

    fn operand(&mut self, value: Value) -> Operand {
        match value {
            Value::Number(number) => match i32::try_from(number.cast_signed()) {
                Ok(number) => Operand::Number(number),
                Err(_) => Operand::Var(self.in_var(value)),
            },
            Value::Var(var) => Operand::Var(var),
        }
    }
}
