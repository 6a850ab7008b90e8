//! A checked script: every name resolved, every type known.
//!
//! In: nothing; the checker makes it. Out: plain data that the interpreter runs. Invariants: each expression has its
//! type; slots and maps are in range; nothing in it can fail but memory that is read and room in maps.
//! Does not: hold text of the script, but for places in it.

use std::rc::Rc;

use crate::attach::Probe;
use crate::calls::Meaning;
use crate::config::Config;
use crate::diagnostic::At;
use crate::fields::Bits;
use crate::layout::Layouts;
use crate::memory::Read;
use crate::source::{Source, Span};
use crate::tree::Binary;
use crate::types::{Sum, Type};

/// A script that can run.
#[derive(Debug)]
pub struct Program {
    /// What is run at probes, in the order of the source.
    pub blocks: Vec<Block>,
    /// All maps.
    pub maps: Vec<MapInfo>,
    /// Settings.
    pub config: Config,
    /// Structures and enumerations.
    pub layouts: Layouts,
    /// The text, for messages while it runs.
    pub source: Source,
    /// Texts to which positional parameters point.
    pub(crate) positional: Vec<String>,
}

/// A predicate and statements, at some probes.
#[derive(Debug, Default)]
pub struct Block {
    /// Where it runs.
    pub probes: Vec<Probe>,
    /// What is done.
    pub(crate) body: Vec<Step>,
    /// The types of its variables.
    pub(crate) locals: Vec<Type>,
    /// What it asks of a hit.
    pub needs: Needs,
    /// Where it stands.
    pub(crate) at: At,
    /// Its attach points as they are written, and where.
    pub(crate) attached: Vec<(String, Span)>,
}

/// What a block asks of a hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Bit `n`: argument `n`.
    pub args: u16,
    /// Arguments of which the first bytes that they point to are read.
    pub texts: Vec<u8>,
    /// What was returned.
    pub retval: bool,
    /// Bytes of what that points to; 0 if it is not asked for.
    pub returned_text: u16,
    /// Frames of the stack; 0 if it is not asked for.
    pub stack: u8,
    /// Whether the stack is to be found by the tables that serve exceptions, without frame pointers.
    pub unwound: bool,
    /// Memory, and values that are no arguments in registers.
    pub reads: Vec<Read>,
    /// Whether the address of the probed instruction is asked for.
    pub place: bool,
    /// What only the program's thread could tell, and where it is asked for.
    pub(crate) unavailable: Vec<(String, At)>,
}

/// A map.
#[derive(Debug, Clone)]
pub struct MapInfo {
    /// Its name, with the sign.
    pub name: String,
    /// The type of its keys; `None` if it has a single value.
    pub key: Option<Type>,
    /// The type of its values.
    pub value: Type,
    /// How many keys it has room for.
    pub room: usize,
    /// Whether a new key takes the place of the one that was used least recently.
    pub evicts: bool,
    /// How its values are added up.
    pub(crate) sums: SumArgs,
}

/// Constants of an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SumArgs {
    None,
    /// Bits behind the first one that tell buckets apart.
    Hist(u32),
    Lhist {
        min: i64,
        max: i64,
        step: i64,
    },
    Tseries {
        interval: u64,
        count: u64,
        by: Sum,
    },
}

/// One statement.
#[derive(Debug)]
pub(crate) enum Step {
    Set(usize, Typed),
    SetMap { map: usize, key: Option<Typed>, value: Typed },
    Do(Typed),
    While { condition: Typed, body: Vec<Self>, at: At },
    Times { count: u64, body: Vec<Self>, at: At },
    ForRange { slot: usize, from: Typed, to: Typed, body: Vec<Self>, at: At },
    ForMap { slot: usize, map: usize, body: Vec<Self>, at: At },
    Break,
    Continue,
    Return,
}

/// An expression with its type.
#[derive(Debug, Clone)]
pub(crate) struct Typed {
    pub(crate) op: Rc<Op>,
    pub(crate) ty: Type,
    pub(crate) at: At,
}

/// What an expression computes.
#[derive(Debug)]
pub(crate) enum Op {
    /// Zero of any type.
    Zero,
    Int(i64),
    Text(Rc<[u8]>),
    Local(usize),
    Map {
        map: usize,
        key: Option<Typed>,
    },
    Compute(Binary, Typed, Typed),
    /// By value, for what is no number.
    Same {
        equal: bool,
        left: Typed,
        right: Typed,
    },
    And(Typed, Typed),
    Or(Typed, Typed),
    Not(Typed),
    Invert(Typed),
    Negate(Typed),
    If {
        condition: Typed,
        then: Typed,
        other: Typed,
    },
    Block {
        steps: Vec<Step>,
        value: Typed,
    },
    Cast(Typed),
    Tuple(Vec<Typed>),
    /// Parts of a record in another order.
    Reorder(Typed, Vec<usize>),
    Part(Typed, usize),
    /// Bytes of a structure or array that is a value.
    Slice {
        of: Typed,
        offset: Typed,
        scale: u32,
        bits: Option<Bits>,
    },
    /// Bytes of memory.
    Load {
        address: Typed,
        bits: Option<Bits>,
    },
    AddressOfLocal(usize),
    /// A pointer, and bytes added to it.
    Offset {
        pointer: Typed,
        by: Typed,
        scale: i64,
    },
    Step {
        place: Place,
        by: i64,
        before: bool,
    },
    Call {
        meaning: Meaning,
        args: Vec<Typed>,
    },
    /// A function of one map.
    OnMap {
        meaning: Meaning,
        map: usize,
        args: Vec<Typed>,
    },
    /// Reads a key into a variable.
    Find {
        map: usize,
        key: Typed,
        slot: usize,
    },
    /// What adds to a map.
    Sum(Sum, Typed, SumArgs),
    /// A text by a format.
    Format {
        meaning: Meaning,
        format: Rc<crate::format::Format>,
        args: Vec<Typed>,
    },
    /// Parameters point to their texts.
    Positional {
        index: usize,
        offset: Typed,
    },
}

/// What can be counted up and down.
#[derive(Debug)]
pub(crate) enum Place {
    Local(usize),
    Map { map: usize, key: Option<Typed> },
}

impl Typed {
    pub(crate) fn new(op: Op, ty: Type, at: &At) -> Self {
        Self { op: Rc::new(op), ty, at: at.clone() }
    }
    pub(crate) fn nothing(at: &At) -> Self {
        Self::new(Op::Zero, Type::None, at)
    }
    pub(crate) fn int(value: i64, ty: Type, at: &At) -> Self {
        Self::new(Op::Int(value), ty, at)
    }
    /// The number, if it is known now.
    pub(crate) fn constant(&self) -> Option<i64> {
        match &*self.op {
            Op::Int(value) => Some(*value),
            _ => None,
        }
    }
    /// The expressions in it, but for those in statements.
    pub(crate) fn inner(&self) -> Vec<&Self> {
        match &*self.op {
            Op::Zero
            | Op::Int(_)
            | Op::Text(_)
            | Op::Local(_)
            | Op::AddressOfLocal(_)
            | Op::Map { key: None, .. }
            | Op::Step { place: Place::Local(_) | Place::Map { key: None, .. }, .. } => Vec::new(),
            Op::Map { key: Some(of), .. }
            | Op::Step { place: Place::Map { key: Some(of), .. }, .. }
            | Op::Not(of)
            | Op::Invert(of)
            | Op::Negate(of)
            | Op::Cast(of)
            | Op::Reorder(of, _)
            | Op::Part(of, _)
            | Op::Load { address: of, .. }
            | Op::Find { key: of, .. }
            | Op::Sum(_, of, _)
            | Op::Positional { offset: of, .. }
            | Op::Block { value: of, .. } => vec![of],
            Op::Compute(_, left, right)
            | Op::Same { left, right, .. }
            | Op::And(left, right)
            | Op::Or(left, right)
            | Op::Slice { of: left, offset: right, .. }
            | Op::Offset { pointer: left, by: right, .. } => vec![left, right],
            Op::If { condition, then, other } => vec![condition, then, other],
            Op::Tuple(all)
            | Op::Call { args: all, .. }
            | Op::OnMap { args: all, .. }
            | Op::Format { args: all, .. } => all.iter().collect(),
        }
    }
    /// The text, if it is known now.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        match &*self.op {
            Op::Text(text) => Some(text),
            _ => None,
        }
    }
}
