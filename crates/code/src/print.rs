//! A program as text, one operation a line.
//!
//! In: a program. Out: what people read when a test fails. Does not: parse it back.

use core::fmt::{Display, Formatter, Result};

use crate::program::{Compare, Compute, Op, Operand, Program, Target, Unary, Var};

impl Display for Var {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Var(var) => var.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Label(label) => write!(f, "goto l{}", label.0),
            Self::Outcome(outcome) => write!(f, "outcome {outcome}"),
        }
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Input { to, nth } => write!(f, "{to} = input {nth}"),
            Self::Number { to, value } => write!(f, "{to} = {value:#x}"),
            Self::Move { to, from } => write!(f, "{to} = {from}"),
            Self::Unary { op, to, from } => match op {
                Unary::Negate => write!(f, "{to} = -{from}"),
                Unary::Complement => write!(f, "{to} = ~{from}"),
                Unary::Bits => write!(f, "{to} = bits of {from}"),
                Unary::Extend(width) => {
                    let sign = if width.signed { "signed" } else { "unsigned" };
                    write!(f, "{to} = extend {from}, {} bits, {sign}", width.bits)
                }
            },
            Self::Compute { op, to, left, right } => write!(f, "{to} = {left} {} {right}", sign_of(*op)),
            Self::Branch { when, left, right, to } => {
                write!(f, "if {left} {} {right}, {to}", compare(*when))
            }
            Self::Jump { to } => to.fmt(f),
            Self::Bind { label } => write!(f, "l{}:", label.0),
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))?;
        match self.result {
            Some(result) => writeln!(f, "end, result {result}"),
            None => writeln!(f, "end"),
        }
    }
}

/// A computation's sign; `u` marks what takes its operands for unsigned.
const fn sign_of(op: Compute) -> &'static str {
    match op {
        Compute::Add => "+",
        Compute::Subtract => "-",
        Compute::Multiply => "*",
        Compute::And => "&",
        Compute::Or => "|",
        Compute::Xor => "^",
        Compute::ShiftLeft => "<<",
        Compute::ShiftRight => ">>u",
        Compute::ShiftSigned => ">>",
        Compute::Divide => "/u",
        Compute::DivideSigned => "/",
        Compute::Remainder => "%u",
        Compute::RemainderSigned => "%",
    }
}

const fn compare(when: Compare) -> &'static str {
    match when {
        Compare::Equal => "==",
        Compare::NotEqual => "!=",
        Compare::Less => "<",
        Compare::LessEqual => "<=",
        Compare::Greater => ">",
        Compare::GreaterEqual => ">=",
        Compare::Below => "<u",
        Compare::BelowEqual => "<=u",
        Compare::Above => ">u",
        Compare::AboveEqual => ">=u",
    }
}
