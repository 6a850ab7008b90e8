//! A program as text, one operation a line.
//!
//! In: a program. Out: what people read when a test fails. Does not: parse it back.

use core::fmt::{Display, Formatter, Result};

use crate::compute::{Compare, Compute, Unary};
use crate::operand::{Memory, Operand, Place, Target, Var};
use crate::program::{Op, Program};

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

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "[{}", self.base)?;
        if let Some((index, shift)) = self.index {
            write!(f, " + ({index} << {shift})")?;
        }
        if self.offset == 0 { f.write_str("]") } else { write!(f, " + {}]", self.offset) }
    }
}

impl Display for Memory {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Mine => "mine",
            Self::Shared => "shared",
            Self::Own => "own",
        })
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
            Self::Pointer { to, nth, memory } => write!(f, "{to} = pointer {nth}, {memory}"),
            Self::Address { to, place } => write!(f, "{to} = address {place}"),
            Self::Load { to, place, byte: false } => write!(f, "{to} = {place}"),
            Self::Load { to, place, byte: true } => write!(f, "{to} = byte {place}"),
            Self::Store { place, from } => write!(f, "{place} = {from}"),
            Self::StoreByte { place, value } => write!(f, "byte {place} = {value}"),
            Self::BranchWord { when, place, right, to } => {
                write!(f, "if {place} {} {right}, {to}", compare(*when))
            }
            Self::Look { place, free, claimed } => {
                write!(f, "look at {place}: free, {free}; claimed, {claimed}")
            }
            Self::Watch { to, place, last } => {
                write!(f, "{to} = {}watch {place}", if *last { "at last " } else { "" })
            }
            Self::Claim { place, from, to } => write!(f, "claim {place} from {from}, {to}"),
            Self::Publish { place, value } => write!(f, "publish {place} = {value}"),
            Self::Add { place, value } => write!(f, "atomic {place} += {value}"),
            Self::AddHere { place, value, nth, to } => {
                write!(f, "if input {nth}, {to}; else {place} += {value}")
            }
            Self::Raise { when, place, value } => {
                write!(f, "atomic {place} = {value} if {value} {} {place}", compare(*when))
            }
            Self::Bound(walk, None) => {
                write!(f, "{} = {} + {} * {}", walk.end, walk.entry, walk.stride, walk.count)
            }
            Self::Bound(walk, Some(reach)) => {
                write!(f, "{} = {} + {reach} + {}", walk.end, walk.entry, walk.stride)
            }
            Self::Begin(walk) => write!(f, "walk {} to {}:", walk.entry, walk.end),
            Self::Next(walk) => {
                write!(f, "{0} = {0} + {1}; if {0} != {2}, walk on", walk.entry, walk.stride, walk.end)
            }
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))?;
        match (self.result, self.commit) {
            (_, Some(commit)) => writeln!(f, "commit {} += {}", commit.place, commit.value),
            (Some(result), None) => writeln!(f, "end, result {result}"),
            (None, None) if self.is_sequence => {
                write!(f, "go on")?;
                self.handed.iter().try_for_each(|var| write!(f, ", {var}"))?;
                writeln!(f)
            }
            (None, None) => writeln!(f, "end"),
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
