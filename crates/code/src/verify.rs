//! Whether a program is sound: it ends, and reads nothing that was not written.
//!
//! In: a program. Out: nothing, or the first rule that it breaks ([`Unsound`]). Invariants: CODE-2, CODE-3. All
//! branches lead forward, so one pass sees every path: what is written at a label is what is written at all branches
//! to it.

use crate::program::{MAX_OPS, Op, Operand, Program, Target, Unary, Var};

/// A rule that a program breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsound {
    /// It is too long.
    #[error("the program has {0} operations; at most {MAX_OPS} are allowed")]
    Long(usize),
    /// A variable may not have been written.
    #[error("operation {op} reads v{var}, which is not written on every path to it")]
    Unwritten {
        /// The operation's number; that of the end is the number of operations.
        op: usize,
        /// The variable's number.
        var: usize,
    },
    /// A branch leads to a label that is not ahead.
    #[error("operation {op} goes to label {label}, which is not ahead of it")]
    Backward {
        /// The operation's number.
        op: usize,
        /// The label's number.
        label: u16,
    },
    /// A label is bound twice.
    #[error("operation {op} binds label {label} for a second time")]
    BoundTwice {
        /// The operation's number.
        op: usize,
        /// The label's number.
        label: u16,
    },
    /// A shift is not by a number from 0 to 63.
    #[error("operation {0} shifts by something else than a number from 0 to 63")]
    Shift(usize),
    /// A division is not by a number from 1 to 2⁶³ - 1.
    #[error("operation {0} divides by something else than a number from 1 to 2^63 - 1")]
    Divisor(usize),
    /// An extension is not from 8, 16, 32 or 64 bits.
    #[error("operation {op} extends {bits} bits; there are 8, 16, 32 and 64")]
    Bits {
        /// The operation's number.
        op: usize,
        /// The number of bits.
        bits: u8,
    },
}

/// The variables that are written; `None` where no path leads.
type Written = Option<Vec<bool>>;

/// Checks all rules.
pub(crate) fn verify(program: &Program) -> Result<(), Unsound> {
    if program.ops.len() > MAX_OPS {
        return Err(Unsound::Long(program.ops.len()));
    }
    let mut at_labels: Vec<Written> = vec![None; program.labels.into()];
    let mut bound = vec![false; program.labels.into()];
    let mut at_end: Written = None;
    let mut now: Written = Some(vec![false; program.vars.into()]);
    for (nth, op) in program.ops.iter().enumerate() {
        is_written(&now, op.read(), nth)?;
        shape(program, nth)?;
        match op.target() {
            Some(Target::Label(label)) if bound[usize::from(label.0)] => {
                return Err(Unsound::Backward { op: nth, label: label.0 });
            }
            Some(Target::Label(label)) => meet(&mut at_labels[usize::from(label.0)], &now),
            Some(Target::Outcome(0)) => meet(&mut at_end, &now),
            Some(Target::Outcome(_)) | None => {}
        }
        match op {
            Op::Jump { .. } => now = None,
            Op::Bind { label } => {
                let label = usize::from(label.0);
                if core::mem::replace(&mut bound[label], true) {
                    return Err(Unsound::BoundTwice { op: nth, label: label as u16 });
                }
                meet(&mut now, &at_labels[label]);
            }
            _ => {}
        }
        if let (Some(now), Some(to)) = (&mut now, op.written()) {
            now[to.index()] = true;
        }
    }
    for (nth, op) in program.ops.iter().enumerate() {
        if let Some(Target::Label(label)) = op.target()
            && !bound[usize::from(label.0)]
        {
            return Err(Unsound::Backward { op: nth, label: label.0 });
        }
    }
    meet(&mut at_end, &now);
    is_written(&at_end, program.result.into_iter(), program.ops.len())
}

/// Where two paths come together, only what both have written is written.
fn meet(here: &mut Written, other: &Written) {
    match (here.as_mut(), other) {
        (Some(here), Some(other)) => here.iter_mut().zip(other).for_each(|(a, b)| *a &= b),
        (None, _) => here.clone_from(other),
        (_, None) => {}
    }
}

fn is_written(now: &Written, read: impl Iterator<Item = Var>, op: usize) -> Result<(), Unsound> {
    let Some(now) = now else { return Ok(()) };
    for var in read {
        if !now.get(var.index()).is_some_and(|written| *written) {
            return Err(Unsound::Unwritten { op, var: var.index() });
        }
    }
    Ok(())
}

/// Whether an operation's operands have the form that it demands.
fn shape(program: &Program, nth: usize) -> Result<(), Unsound> {
    match program.ops[nth] {
        Op::Unary { op: Unary::Extend(width), .. } if !matches!(width.bits, 8 | 16 | 32 | 64) => {
            Err(Unsound::Bits { op: nth, bits: width.bits })
        }
        Op::Compute { op, right, .. } if op.shifts() => match right {
            Operand::Number(0..=63) => Ok(()),
            _ => Err(Unsound::Shift(nth)),
        },
        Op::Compute { op, right, .. } if op.divides() => divisor(program, right, nth),
        _ => Ok(()),
    }
}

/// A divisor is a number, or a variable that one operation writes, and this is a number.
fn divisor(program: &Program, right: Operand, nth: usize) -> Result<(), Unsound> {
    let is_sound = match right {
        Operand::Number(number) => number >= 1,
        Operand::Var(var) => {
            let mut writes = program.ops.iter().filter(|op| op.written() == Some(var));
            matches!((writes.next(), writes.next()), (Some(Op::Number { value, .. }), None) if value.cast_signed() >= 1)
        }
    };
    if is_sound { Ok(()) } else { Err(Unsound::Divisor(nth)) }
}

#[cfg(test)]
mod tests {
    use super::Unsound;
    use crate::{Builder, Compare, Compute, MAX_OPS, Target, Unary, Value, Width};

    /// What `make` builds breaks a rule. It may return the program's result.
    fn broken(make: impl FnOnce(&mut Builder) -> Option<Value>) -> Unsound {
        let mut builder = Builder::new();
        let result = make(&mut builder);
        builder.finish(result).expect_err("a rule is broken")
    }

    #[test]
    fn code_3_a_variable_must_be_written_on_every_path() {
        let on_one_path = |builder: &mut Builder| {
            let (var, skip) = (builder.var(), builder.label());
            let input = builder.input(0);
            builder.branch(Compare::Equal, input, Value::Number(0), Target::Label(skip));
            builder.set(var, Value::Number(1));
            builder.bind(skip);
            Some(Value::Var(var))
        };
        assert_eq!(broken(on_one_path), Unsound::Unwritten { op: 4, var: 0 });
        let never = |builder: &mut Builder| {
            let var = builder.var();
            Some(builder.unary(Unary::Negate, Value::Var(var)))
        };
        assert_eq!(broken(never), Unsound::Unwritten { op: 0, var: 0 });
    }

    #[test]
    fn code_2_branches_lead_forward_and_programs_are_short() {
        let backward = |builder: &mut Builder| {
            let label = builder.label();
            builder.bind(label);
            builder.jump(Target::Label(label));
            None
        };
        assert_eq!(broken(backward), Unsound::Backward { op: 1, label: 0 });
        let nowhere = |builder: &mut Builder| {
            let label = builder.label();
            builder.jump(Target::Label(label));
            None
        };
        assert_eq!(broken(nowhere), Unsound::Backward { op: 0, label: 0 });
        let twice = |builder: &mut Builder| {
            let label = builder.label();
            (0..2).for_each(|_| builder.bind(label));
            None
        };
        assert_eq!(broken(twice), Unsound::BoundTwice { op: 1, label: 0 });
        let long = |builder: &mut Builder| {
            (0..=MAX_OPS).for_each(|_| _ = builder.input(0));
            None
        };
        assert_eq!(broken(long), Unsound::Long(MAX_OPS + 1));
    }

    #[test]
    fn operands_have_the_form_that_back_ends_expect() {
        let compute = |op, right| {
            broken(|builder: &mut Builder| {
                let input = builder.input(0);
                Some(builder.compute(op, input, right))
            })
        };
        assert_eq!(compute(Compute::ShiftLeft, Value::Number(64)), Unsound::Shift(1));
        for divisor in [0, u64::MAX] {
            assert_eq!(compute(Compute::Divide, Value::Number(divisor)), Unsound::Divisor(1));
        }
        assert_eq!(compute(Compute::Remainder, Value::Number(1 << 63)), Unsound::Divisor(2));
        let odd = |builder: &mut Builder| {
            let input = builder.input(0);
            Some(builder.unary(Unary::Extend(Width { bits: 24, signed: true }), input))
        };
        assert_eq!(broken(odd), Unsound::Bits { op: 1, bits: 24 });
    }
}
