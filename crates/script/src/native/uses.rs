//! Which maps a block names, changes, and may empty.
//!
//! In: a block. Out: sets of maps. Does not: know why they are named.

use std::collections::BTreeSet;

use crate::calls::Meaning;
use crate::program::{Block, Op, Place, Step, Typed};
use crate::tree::Binary;
use crate::types::Type;

/// The maps of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// All that it names.
    pub(super) named: BTreeSet<usize>,
    /// Those that it assigns, adds to or empties.
    pub(super) changed: BTreeSet<usize>,
    /// Those of which it removes keys, or sets values to zero.
    pub(super) emptied: BTreeSet<usize>,
    /// Those to whose plain values it does more than counting them up and down.
    pub(super) assigned: BTreeSet<usize>,
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
            Step::Set(_, value) => self.expr(value),
            Step::Do(value) => self.effect(value),
            Step::SetMap { map, key, value } => {
                self.named.insert(*map);
                self.changed.insert(*map);
                key.iter().for_each(|key| self.expr(key));
                match &*value.op {
                    Op::Compute(Binary::Add, left, right) if key.is_none() && is_whole(left, *map) => {
                        self.expr(right);
                    }
                    _ => {
                        if !matches!(value.ty, Type::Sum(..)) {
                            self.assigned.insert(*map);
                        }
                        self.expr(value);
                    }
                }
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
    /// An expression whose value is not used.
    fn effect(&mut self, expr: &Typed) {
        match &*expr.op {
            Op::Step { place: Place::Map { map, key }, .. } => {
                self.named.insert(*map);
                self.changed.insert(*map);
                key.iter().for_each(|key| self.expr(key));
            }
            Op::Block { steps, value } => {
                self.steps(steps);
                self.effect(value);
            }
            Op::If { condition, then, other } => {
                self.expr(condition);
                self.effect(then);
                self.effect(other);
            }
            _ => self.expr(expr),
        }
    }
    fn expr(&mut self, expr: &Typed) {
        match &*expr.op {
            Op::Map { map, .. } | Op::Find { map, .. } => {
                self.named.insert(*map);
                self.assigned.insert(*map);
            }
            Op::Step { place: Place::Map { map, .. }, .. } => {
                self.named.insert(*map);
                self.changed.insert(*map);
                self.assigned.insert(*map);
            }
            Op::OnMap { meaning, map, .. } => {
                self.named.insert(*map);
                if matches!(meaning, Meaning::HasKey | Meaning::Delete) {
                    self.assigned.insert(*map);
                }
                if matches!(meaning, Meaning::Clear | Meaning::Zero | Meaning::Delete) {
                    self.changed.insert(*map);
                    self.emptied.insert(*map);
                }
            }
            Op::Block { steps, .. } => self.steps(steps),
            _ => {}
        }
        expr.inner().into_iter().for_each(|inner| self.expr(inner));
    }
}

/// Whether the key has the thread in it.
pub(super) fn has_thread(key: Option<&Typed>) -> bool {
    let is_thread =
        |part: &Typed| matches!(&*part.op, Op::Call { meaning: Meaning::Tid, args } if !is_init(args));
    key.is_some_and(|key| match &*key.op {
        Op::Tuple(parts) => parts.iter().any(is_thread),
        _ => is_thread(key),
    })
}

/// Whether an expression is the single value of this map.
pub(super) fn is_whole(expr: &Typed, map: usize) -> bool {
    match &*expr.op {
        Op::Map { map: named, key: None } => *named == map,
        Op::Cast(of) => is_whole(of, map),
        _ => false,
    }
}

/// Whether a `pid` or `tid` is the one that the first PID namespace has.
pub(super) fn is_init(args: &[Typed]) -> bool {
    args.first().and_then(Typed::literal) == Some(b"init")
}
