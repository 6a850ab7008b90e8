//! Runs a program: the definition of its meaning. Machine code must agree with it (CODE-1).
//!
//! In: a program, the values of its inputs. Out: the outcome that it takes, and its result at outcome 0.

use crate::program::{Op, Operand, Program, Target, Var};

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The outcome.
    pub outcome: u8,
    /// The result, if it has one and the outcome is 0.
    pub result: Option<u64>,
}

/// Runs a program. An input that is not given is 0.
#[must_use]
pub fn interpret(program: &Program, inputs: &[u64]) -> End {
    let mut vars = vec![0_u64; program.vars.into()];
    let mut next = 0;
    while let Some(op) = program.ops.get(next) {
        next += 1;
        let read = |operand| match operand {
            Operand::Var(Var(var)) => vars[usize::from(var)],
            Operand::Number(number) => i64::from(number).cast_unsigned(),
        };
        let target = match *op {
            Op::Branch { when, left, right, to } => {
                when.holds(read(Operand::Var(left)), read(right)).then_some(to)
            }
            Op::Jump { to } => Some(to),
            _ => None,
        };
        let value = match *op {
            Op::Input { nth, .. } => inputs.get(usize::from(nth)).copied().unwrap_or(0),
            Op::Number { value, .. } => value,
            Op::Move { from, .. } => read(Operand::Var(from)),
            Op::Unary { op, from, .. } => op.apply(read(Operand::Var(from))),
            Op::Compute { op, left, right, .. } => op.apply(read(Operand::Var(left)), read(right)),
            Op::Branch { .. } | Op::Jump { .. } | Op::Bind { .. } => 0,
        };
        if let Some(to) = op.written() {
            vars[to.index()] = value;
        }
        match target {
            Some(Target::Outcome(0)) => break,
            Some(Target::Outcome(outcome)) => return End { outcome, result: None },
            Some(Target::Label(label)) => {
                let place = |op: &Op| matches!(op, Op::Bind { label: bound } if *bound == label);
                next += program.ops[next..].iter().position(place).unwrap_or(0);
            }
            None => {}
        }
    }
    End { outcome: 0, result: program.result.map(|var| vars[var.index()]) }
}
