//! Which maps a block names, and which it may empty.
//!
//! In: a block. Out: sets of maps. Does not: know why they are named.

use std::collections::BTreeSet;

use crate::calls::Meaning;
use crate::program::{Block, Op, Place, Step, Typed};

/// The maps of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// All that it names.
    pub(super) named: BTreeSet<usize>,
    /// Those of which it removes keys, or sets values to zero.
    pub(super) emptied: BTreeSet<usize>,
}

impl Uses {
    pub(super) fn of(block: &Block) -> Self {
        let mut uses = Self::default();
        uses.steps(&block.body);
        uses
    }
    fn steps(&mut self, steps: &[Step]) {
        steps.iter().for_each(|step| self.step(step));
    }
    fn step(&mut self, step: &Step) {
        match step {
            Step::Set(_, value) | Step::Do(value) => self.expr(value),
            Step::SetMap { map, key, value } => {
                self.named.insert(*map);
                key.iter().for_each(|key| self.expr(key));
                self.expr(value);
            }
            Step::While { condition, body, .. } => {
                self.expr(condition);
                self.steps(body);
            }
            Step::Times { body, .. } => self.steps(body),
            Step::ForRange { from, to, body, .. } => {
                self.expr(from);
                self.expr(to);
                self.steps(body);
            }
            Step::ForMap { map, body, .. } => {
                self.named.insert(*map);
                self.steps(body);
            }
            Step::Break | Step::Continue | Step::Return => {}
        }
    }
    fn expr(&mut self, expr: &Typed) {
        match &*expr.op {
            Op::Zero | Op::Int(_) | Op::Text(_) | Op::Local(_) | Op::AddressOfLocal(_) => {}
            Op::Map { map, key } => self.map(*map, key.as_ref()),
            Op::Compute(_, left, right)
            | Op::Same { left, right, .. }
            | Op::And(left, right)
            | Op::Or(left, right) => {
                self.expr(left);
                self.expr(right);
            }
            Op::Not(of)
            | Op::Invert(of)
            | Op::Negate(of)
            | Op::Cast(of)
            | Op::Reorder(of, _)
            | Op::Part(of, _)
            | Op::Sum(_, of, _)
            | Op::Load { address: of, .. }
            | Op::Positional { offset: of, .. } => self.expr(of),
            Op::If { condition, then, other } => {
                [condition, then, other].into_iter().for_each(|part| self.expr(part));
            }
            Op::Block { steps, value } => {
                self.steps(steps);
                self.expr(value);
            }
            Op::Slice { of, offset, .. } => {
                self.expr(of);
                self.expr(offset);
            }
            Op::Offset { pointer, by, .. } => {
                self.expr(pointer);
                self.expr(by);
            }
            Op::Tuple(parts) | Op::Call { args: parts, .. } | Op::Format { args: parts, .. } => {
                parts.iter().for_each(|part| self.expr(part));
            }
            Op::Step { place: Place::Map { map, key }, .. } => self.map(*map, key.as_ref()),
            Op::Step { place: Place::Local(_), .. } => {}
            Op::OnMap { meaning, map, args } => {
                self.named.insert(*map);
                if matches!(meaning, Meaning::Clear | Meaning::Zero | Meaning::Delete) {
                    self.emptied.insert(*map);
                }
                args.iter().for_each(|arg| self.expr(arg));
            }
            Op::Find { map, key, .. } => self.map(*map, Some(key)),
        }
    }
    fn map(&mut self, map: usize, key: Option<&Typed>) {
        self.named.insert(map);
        key.into_iter().for_each(|key| self.expr(key));
    }
}
