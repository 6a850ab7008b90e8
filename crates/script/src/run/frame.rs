//! One run of a block: its variables, and where it goes on.
//!
//! In: a block and a hit. Out: nothing but effects. Does not: outlive the block.

use super::state::State;
use super::world::{Hit, World};
use crate::program::{Block, Typed};
use crate::value::Value;

/// How often the loops of a block go round at most, all together; bpftrace has this bound for each.
pub(super) const MOST_TURNS: u64 = 1 << 23;

/// Where a block goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
    /// The block is done.
    Return,
}

/// A block that runs.
pub(super) struct Frame<'a> {
    pub(super) state: &'a mut State,
    pub(super) block: &'a Block,
    pub(super) hit: &'a Hit,
    pub(super) world: &'a mut dyn World,
    pub(super) locals: Vec<Value>,
    pub(super) flow: Flow,
    /// Turns that the loops of the block may still take.
    pub(super) turns_left: u64,
}

impl<'a> Frame<'a> {
    pub(super) fn new(
        state: &'a mut State,
        block: &'a Block,
        hit: &'a Hit,
        world: &'a mut dyn World,
    ) -> Self {
        let locals = vec![Value::Nothing; block.locals.len()];
        Self { state, block, hit, world, locals, flow: Flow::Next, turns_left: MOST_TURNS }
    }
    pub(super) fn run(mut self) {
        let block = self.block;
        self.steps(&block.body);
    }
    pub(super) fn int(&mut self, expr: &Typed) -> i64 {
        self.eval(expr).int()
    }
    pub(super) fn is_true(&mut self, expr: &Typed) -> bool {
        self.eval(expr).is_true()
    }
}
