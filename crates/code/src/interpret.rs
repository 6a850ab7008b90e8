//! Runs a program: the definition of its meaning. Machine code must agree with it (CODE-1).
//!
//! In: a program, the values of its inputs, memory. Out: the outcome that it takes, its result at outcome 0, and what it
//! stored. [`Run`] takes one operation after another, so that other threads may change memory in between, or abort the
//! sequence that it is the body of.

use crate::operand::{Operand, Place, Target, Var};
use crate::program::{CLAIMED, Op, Program};

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The outcome.
    pub outcome: u8,
    /// The result, if it has one and the outcome is 0.
    pub result: Option<u64>,
}

/// Memory that a program loads from and stores to. What lies outside is 0, and is not stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    /// Address of the first byte.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Bytes {
    fn range(&self, address: u64, len: usize) -> Option<core::ops::Range<usize>> {
        let begin = usize::try_from(address.wrapping_sub(self.at)).ok()?;
        let end = begin.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        Some(begin..end)
    }
    /// The word at an address.
    #[must_use]
    pub fn word(&self, address: u64) -> u64 {
        let mut word = [0; 8];
        if let Some(range) = self.range(address, 8) {
            word.copy_from_slice(&self.bytes[range]);
        }
        u64::from_le_bytes(word)
    }
    /// Stores a word at an address.
    pub fn set_word(&mut self, address: u64, value: u64) {
        self.store(address, &value.to_le_bytes());
    }
    fn byte(&self, address: u64) -> u64 {
        self.range(address, 1).map_or(0, |range| self.bytes[range.start].into())
    }
    fn store(&mut self, address: u64, bytes: &[u8]) {
        if let Some(range) = self.range(address, bytes.len()) {
            self.bytes[range].copy_from_slice(bytes);
        }
    }
}

/// Runs a program without memory. An input that is not given is 0.
#[must_use]
pub fn interpret(program: &Program, inputs: &[u64]) -> End {
    interpret_in(program, inputs, &mut Bytes::default())
}

/// Runs a program in memory that no other thread changes.
pub fn interpret_in(program: &Program, inputs: &[u64], memory: &mut Bytes) -> End {
    let mut run = Run::new(program, inputs);
    loop {
        if let Some(end) = run.step(memory) {
            return end;
        }
    }
}

/// A program on its way.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    program: &'a Program,
    inputs: &'a [u64],
    vars: Vec<u64>,
    next: usize,
}

/// Runs of one program are alike if they go on in the same way.
impl PartialEq for Run<'_> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.program, other.program)
            && self.state() == other.state()
            && self.inputs == other.inputs
    }
}

impl<'a> Run<'a> {
    /// Before its first operation.
    #[must_use]
    pub fn new(program: &'a Program, inputs: &'a [u64]) -> Self {
        Self { program, inputs, vars: vec![0; program.vars.into()], next: 0 }
    }
    /// Other inputs from here on: of those, what an operation reads when it runs ([`Op::AddHere`]) may change meanwhile.
    pub const fn set_inputs(&mut self, inputs: &'a [u64]) {
        self.inputs = inputs;
    }
    /// The number of its next operation, and its variables. Nothing else of a run changes.
    #[must_use]
    pub fn state(&self) -> (usize, &[u64]) {
        (self.next, &self.vars)
    }
    /// The operation that it runs next, unless that is the end.
    #[must_use]
    pub fn op(&self) -> Option<&'a Op> {
        self.program.ops.get(self.next)
    }
    /// What a part of a sequence's body leaves to the next one. It must have ended with outcome 0.
    #[must_use]
    pub fn handed(&self) -> Vec<u64> {
        self.program.handed.iter().map(|var| self.vars[var.index()]).collect()
    }
    /// Runs one operation; the last one is the end, with its commit.
    pub fn step(&mut self, memory: &mut Bytes) -> Option<End> {
        let Some(op) = self.op().copied() else { return Some(self.end(memory)) };
        self.next += 1;
        if let Some(value) = self.value(op, memory)
            && let Some(to) = op.written()
        {
            self.vars[to.index()] = value;
        }
        match self.target(op, memory)? {
            Target::Outcome(0) => Some(self.end(memory)),
            Target::Outcome(outcome) => Some(End { outcome, result: None }),
            Target::Label(label) => {
                let place = |op: &Op| matches!(op, Op::Bind { label: bound } if *bound == label);
                self.next += self.program.ops[self.next..].iter().position(place).unwrap_or(0);
                None
            }
        }
    }
    fn end(&self, memory: &mut Bytes) -> End {
        if let Some(commit) = self.program.commit {
            let address = self.address(commit.place);
            memory.set_word(address, memory.word(address).wrapping_add(self.read(commit.value)));
        }
        End { outcome: 0, result: self.program.result.map(|var| self.vars[var.index()]) }
    }
    fn read(&self, operand: impl Into<Operand>) -> u64 {
        match operand.into() {
            Operand::Var(Var(var)) => self.vars[usize::from(var)],
            Operand::Number(number) => i64::from(number).cast_unsigned(),
        }
    }
    fn address(&self, Place { base, index, offset }: Place) -> u64 {
        let index = index.map_or(0, |(index, shift)| self.read(index) << (shift & 63));
        self.read(base).wrapping_add(index).wrapping_add_signed(offset.into())
    }
    /// What an operation computes; stores what it stores.
    fn value(&mut self, op: Op, memory: &mut Bytes) -> Option<u64> {
        Some(match op {
            Op::Input { nth, .. } | Op::Pointer { nth, .. } => {
                self.inputs.get(usize::from(nth)).copied().unwrap_or(0)
            }
            Op::Number { value, .. } => value,
            Op::Move { from, .. } => self.read(from),
            Op::Unary { op, from, .. } => op.apply(self.read(from)),
            Op::Compute { op, left, right, .. } => op.apply(self.read(left), self.read(right)),
            Op::Address { place, .. } => self.address(place),
            Op::Load { place, byte: false, .. } | Op::Watch { place, .. } => memory.word(self.address(place)),
            Op::Load { place, byte: true, .. } => memory.byte(self.address(place)),
            Op::Bound(walk, None) => self.read(walk.entry).wrapping_add_signed(walk.bytes().into()),
            Op::Bound(walk, Some(reach)) => {
                self.read(walk.entry).wrapping_add(walk.stride.into()).wrapping_add(self.read(reach))
            }
            Op::Next(walk) => self.read(walk.entry).wrapping_add(walk.stride.into()),
            Op::Store { place, from } | Op::Publish { place, value: from } => {
                memory.set_word(self.address(place), self.read(from));
                return None;
            }
            Op::StoreByte { place, value } => {
                memory.store(self.address(place), &[value]);
                return None;
            }
            Op::Add { place, value } => {
                let address = self.address(place);
                memory.set_word(address, memory.word(address).wrapping_add(self.read(value)));
                return None;
            }
            Op::Raise { when, place, value } => {
                let (address, value) = (self.address(place), self.read(value));
                if when.holds(value, memory.word(address)) {
                    memory.set_word(address, value);
                }
                return None;
            }
            Op::Branch { .. }
            | Op::Jump { .. }
            | Op::Bind { .. }
            | Op::BranchWord { .. }
            | Op::Look { .. }
            | Op::Claim { .. }
            | Op::AddHere { .. }
            | Op::Begin(_) => return None,
        })
    }
    /// Where an operation goes, unless that is the next one; claims what it claims.
    fn target(&mut self, op: Op, memory: &mut Bytes) -> Option<Target> {
        match op {
            Op::Branch { when, left, right, to } => {
                when.holds(self.read(left), self.read(right)).then_some(to)
            }
            Op::Jump { to } => Some(to),
            Op::BranchWord { when, place, right, to } => {
                when.holds(memory.word(self.address(place)), self.read(right)).then_some(to)
            }
            Op::Look { place, free, claimed } => match memory.word(self.address(place)).cast_signed() {
                0 => Some(free),
                ..0 => Some(claimed),
                _ => None,
            },
            Op::Claim { place, from, to } => {
                let (address, from) = (self.address(place), self.read(from));
                let is_there = memory.word(address) == from;
                if is_there {
                    memory.set_word(address, from | CLAIMED);
                }
                is_there.then_some(to)
            }
            Op::AddHere { place, value, nth, to } => {
                let moved = self.inputs.get(usize::from(nth)).is_some_and(|moved| *moved != 0);
                if !moved {
                    let address = self.address(place);
                    memory.set_word(address, memory.word(address).wrapping_add(self.read(value)));
                }
                moved.then_some(to)
            }
            Op::Next(walk) => {
                if self.read(walk.entry) != self.read(walk.end) {
                    let begin = |op: &Op| *op == Op::Begin(walk);
                    self.next = self.program.ops[..self.next].iter().rposition(begin).unwrap_or(0);
                }
                None
            }
            _ => None,
        }
    }
}
