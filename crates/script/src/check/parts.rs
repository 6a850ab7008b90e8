//! What is inside a checked block: its expressions, and what is assigned to what.
//!
//! In: steps. Out: all expressions, outermost first; the values of variables and maps. Does not: judge them.

use std::collections::{HashMap, HashSet};

use crate::program::{Op, Place, Step, Typed};

/// All that is inside a block.
#[derive(Default)]
pub(super) struct Parts<'p> {
    pub(super) exprs: Vec<&'p Typed>,
    /// The values that are assigned to each variable, and to each map.
    pub(super) locals: HashMap<usize, Vec<&'p Typed>>,
    pub(super) maps: HashMap<usize, Vec<&'p Typed>>,
    /// Variables that loops or functions assign, too.
    pub(super) changing: HashSet<usize>,
}

impl<'p> Parts<'p> {
    pub(super) fn of(steps: &'p [Step]) -> Self {
        let mut parts = Self::default();
        parts.steps(steps);
        parts
    }
    fn steps(&mut self, steps: &'p [Step]) {
        steps.iter().for_each(|step| self.step(step));
    }
    fn step(&mut self, step: &'p Step) {
        match step {
            Step::Set(slot, value) => {
                self.locals.entry(*slot).or_default().push(value);
                self.expr(value);
            }
            Step::SetMap { map, key, value } => {
                self.maps.entry(*map).or_default().push(value);
                key.iter().for_each(|key| self.expr(key));
                self.expr(value);
            }
            Step::Do(expr) => self.expr(expr),
            Step::While { condition, body, .. } => {
                self.expr(condition);
                self.steps(body);
            }
            Step::Times { body, .. } => self.steps(body),
            Step::ForRange { slot, from, to, body, .. } => {
                self.changing.insert(*slot);
                self.expr(from);
                self.expr(to);
                self.steps(body);
            }
            Step::ForMap { slot, body, .. } => {
                self.changing.insert(*slot);
                self.steps(body);
            }
            Step::Break | Step::Continue | Step::Return => {}
        }
    }
    fn expr(&mut self, expr: &'p Typed) {
        self.exprs.push(expr);
        match &*expr.op {
            Op::Zero | Op::Int(_) | Op::Text(_) | Op::Local(_) | Op::AddressOfLocal(_) => {}
            Op::Map { key, .. } => key.iter().for_each(|key| self.expr(key)),
            Op::Compute(_, a, b) | Op::Same { left: a, right: b, .. } | Op::And(a, b) | Op::Or(a, b) => {
                self.expr(a);
                self.expr(b);
            }
            Op::Not(of)
            | Op::Invert(of)
            | Op::Negate(of)
            | Op::Cast(of)
            | Op::Reorder(of, _)
            | Op::Part(of, _) => {
                self.expr(of);
            }
            Op::If { condition, then, other } => {
                [condition, then, other].into_iter().for_each(|part| self.expr(part))
            }
            Op::Block { steps, value } => {
                self.steps(steps);
                self.expr(value);
            }
            Op::Slice { of, offset, .. } => {
                self.expr(of);
                self.expr(offset);
            }
            Op::Load { address, .. } => self.expr(address),
            Op::Offset { pointer, by, .. } => {
                self.expr(pointer);
                self.expr(by);
            }
            Op::Step { place, .. } => match place {
                Place::Local(slot) => drop(self.changing.insert(*slot)),
                Place::Map { key, .. } => key.iter().for_each(|key| self.expr(key)),
            },
            Op::Tuple(parts) => parts.iter().for_each(|part| self.expr(part)),
            Op::Call { args, .. } | Op::OnMap { args, .. } | Op::Format { args, .. } => {
                args.iter().for_each(|arg| self.expr(arg));
            }
            Op::Find { key, slot, .. } => {
                self.changing.insert(*slot);
                self.expr(key);
            }
            Op::Sum(_, value, _) => self.expr(value),
            Op::Positional { offset, .. } => self.expr(offset),
        }
    }
}
