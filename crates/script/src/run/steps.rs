//! Statements.
//!
//! In: steps. Out: effects; [`Flow`] says where the block goes on. Invariant: the loops of
//! a block have [`MOST_TURNS`] turns together.
//! Does not: compute values.

use super::frame::{Flow, Frame, MOST_TURNS};
use crate::diagnostic::At;
use crate::program::{Op, Step, Typed};
use crate::types::Type;
use crate::value::Value;

impl Frame<'_> {
    /// Runs steps until one of them leaves.
    pub(super) fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            if self.flow != Flow::Next {
                return;
            }
            self.step(step);
        }
    }
    fn step(&mut self, step: &Step) {
        match step {
            Step::Set(slot, value) => self.locals[*slot] = self.eval(value),
            Step::SetMap { map, key, value } => self.set_map(*map, key.as_ref(), value),
            Step::Do(value) => drop(self.eval(value)),
            Step::While { condition, body, at } => {
                self.turns(body, at, |frame, _| frame.is_true(condition) && frame.flow == Flow::Next);
            }
            Step::Times { count, body, at } => self.turns(body, at, |_, turn| turn < *count),
            Step::ForRange { slot, from, to, body, at } => {
                let (from, to) = (self.int(from), self.int(to));
                self.turns(body, at, |frame, turn| {
                    let next = from.checked_add_unsigned(turn).filter(|next| *next < to);
                    frame.locals[*slot] = next.map_or(Value::Nothing, Value::Int);
                    next.is_some()
                });
            }
            Step::ForMap { slot, map, body, at } => self.for_map(*slot, *map, body, at),
            Step::Break => self.flow = Flow::Break,
            Step::Continue => self.flow = Flow::Continue,
            Step::Return => self.flow = Flow::Return,
        }
    }
    /// Runs a body while `goes_on` holds, and the block has turns left.
    fn turns(&mut self, body: &[Step], at: &At, mut goes_on: impl FnMut(&mut Self, u64) -> bool) {
        for turn in 0.. {
            if !goes_on(self, turn) || !self.has_turn(at) || !self.turn(body) {
                return;
            }
        }
    }
    /// Takes one of the turns that the loops of a block have together; when the last is gone, the block ends.
    fn has_turn(&mut self, at: &At) -> bool {
        if self.turns_left == 0 && self.flow == Flow::Next {
            self.warn(at, &format!("The block was ended after {MOST_TURNS} turns of its loops."));
            self.flow = Flow::Return;
        }
        self.turns_left = self.turns_left.saturating_sub(1);
        self.flow == Flow::Next
    }
    /// Runs a body once; whether the loop goes on.
    fn turn(&mut self, body: &[Step]) -> bool {
        self.steps(body);
        match self.flow {
            Flow::Next | Flow::Continue => {
                self.flow = Flow::Next;
                true
            }
            Flow::Break => {
                self.flow = Flow::Next;
                false
            }
            Flow::Return => false,
        }
    }
    /// Goes through the keys that a map has now; those that are removed meanwhile are left out.
    fn for_map(&mut self, slot: usize, map: usize, body: &[Step], at: &At) {
        let signed = self.state.program.maps[map].value.is_signed();
        for key in self.state.maps[map].keys() {
            let Some(cell) = self.state.maps[map].get(&key) else { continue };
            self.locals[slot] = Value::Parts([key, cell.value(signed)].into());
            if !self.has_turn(at) || !self.turn(body) {
                return;
            }
        }
    }
    fn set_map(&mut self, map: usize, key: Option<&Typed>, value: &Typed) {
        let key = key.map_or(Value::Nothing, |key| self.key(key));
        if self.flow == Flow::Next {
            self.assign(map, key, value, &value.at);
        }
    }
    /// Assigns to a map, or adds to it.
    fn assign(&mut self, map: usize, key: Value, value: &Typed, at: &At) {
        match &*value.op {
            Op::Sum(sum, added, args) => {
                let (signed, sum, args) = (value.ty.is_signed(), *sum, *args);
                let added = self.int(added);
                if self.flow != Flow::Next {
                    return;
                }
                let now = self.series_time();
                let signed = signed || self.state.program.maps[map].value.is_signed();
                let full = match self.cell(map, key) {
                    Some(cell) => {
                        cell.add(sum, added, signed, args, now);
                        false
                    }
                    None => true,
                };
                self.check_room(full, at);
            }
            Op::Block { steps, value: inner } if matches!(inner.ty, Type::Sum(..)) => {
                self.steps(steps);
                if self.flow == Flow::Next {
                    self.assign(map, key, inner, at);
                }
            }
            Op::If { condition, then, other } if matches!(value.ty, Type::Sum(..)) => {
                let chosen = if self.is_true(condition) { then } else { other };
                self.assign(map, key, chosen, at);
            }
            _ => {
                let new = self.eval(value);
                if self.flow == Flow::Next {
                    self.put(map, key, new, at);
                }
            }
        }
    }
    /// Puts a plain value into a map.
    pub(super) fn put(&mut self, map: usize, key: Value, value: Value, at: &At) {
        let full = match self.cell(map, key) {
            Some(cell) => {
                *cell = crate::cell::Cell::Plain(value);
                false
            }
            None => true,
        };
        self.check_room(full, at);
    }
    fn cell(&mut self, map: usize, key: Value) -> Option<&mut crate::cell::Cell> {
        let state = &mut *self.state;
        let ty = &state.program.maps[map].value;
        state.maps[map].entry(key, || crate::cell::Cell::empty(ty))
    }
    fn check_room(&mut self, full: bool, at: &At) {
        if full {
            let message = "Map full; can't update element. Try increasing max_map_keys config or manually setting \
                           the max entries in a map declaration e.g. `let @a = hash(5000)`";
            self.helper_error(at, message, "map_update_elem", -7);
        }
    }
    /// The time that series go by.
    fn series_time(&mut self) -> u64 {
        match self.state.series_clock {
            Some(map) => {
                self.state.maps[map].get(&Value::Nothing).map_or(0, |cell| cell.value(false).int() as u64)
            }
            None => self.world.now(super::world::Clock::Wall),
        }
    }
}
