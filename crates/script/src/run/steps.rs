//! Statements.
//!
//! In: steps. Out: effects; [`Flow`] says where the block goes on. Invariant: a loop ends after [`MOST_TURNS`] turns.
//! Does not: compute values.

use super::frame::{Flow, Frame};
use crate::diagnostic::At;
use crate::program::{Op, Step, Typed};
use crate::types::Type;
use crate::value::Value;

/// How often a loop goes round at most; bpftrace's own bound.
const MOST_TURNS: u64 = 1 << 23;

impl Frame<'_> {
    /// Runs steps until one of them leaves.
    pub(super) fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
            if self.flow != Flow::Next {
                return;
            }
        }
    }
    fn step(&mut self, step: &Step) {
        match step {
            Step::Set(slot, value) => self.locals[*slot] = self.eval(value),
            Step::SetMap { map, key, value } => self.set_map(*map, key.as_ref(), value),
            Step::Do(value) => drop(self.eval(value)),
            Step::While { condition, body, at } => {
                let turns = self.turns(body, |frame, _| frame.is_true(condition) && frame.flow == Flow::Next);
                self.check_turns(turns, at);
            }
            Step::Times { count, body } => {
                self.turns(body, |_, turn| turn < *count);
            }
            Step::ForRange { slot, from, to, body, at } => {
                let (from, to) = (self.int(from), self.int(to));
                let turns = self.turns(body, |frame, turn| {
                    let next = from.checked_add_unsigned(turn).filter(|next| *next < to);
                    frame.locals[*slot] = next.map_or(Value::Nothing, Value::Int);
                    next.is_some()
                });
                self.check_turns(turns, at);
            }
            Step::ForMap { slot, map, body } => self.for_map(*slot, *map, body),
            Step::Break => self.flow = Flow::Break,
            Step::Continue => self.flow = Flow::Continue,
            Step::Return => self.flow = Flow::Return,
        }
    }
    /// Runs a body while `goes_on` holds; how often it did.
    fn turns(&mut self, body: &[Step], mut goes_on: impl FnMut(&mut Self, u64) -> bool) -> u64 {
        let mut turn = 0;
        while turn < MOST_TURNS && goes_on(self, turn) {
            turn += 1;
            if !self.turn(body) {
                break;
            }
        }
        turn
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
    fn check_turns(&mut self, turns: u64, at: &At) {
        if turns >= MOST_TURNS {
            self.warn(at, &format!("The loop was ended after {MOST_TURNS} turns."));
        }
    }
    /// Goes through the keys that a map has now; those that are removed meanwhile are left out.
    fn for_map(&mut self, slot: usize, map: usize, body: &[Step]) {
        let signed = self.state.program.maps[map].value.is_signed();
        for key in self.state.maps[map].keys() {
            let Some(cell) = self.state.maps[map].get(&key) else { continue };
            self.locals[slot] = Value::Parts([key, cell.value(signed)].into());
            if !self.turn(body) {
                return;
            }
        }
    }
    fn set_map(&mut self, map: usize, key: Option<&Typed>, value: &Typed) {
        let key = key.map_or(Value::Nothing, |key| self.eval(key));
        self.assign(map, key, value, &value.at);
    }
    /// Assigns to a map, or adds to it.
    fn assign(&mut self, map: usize, key: Value, value: &Typed, at: &At) {
        match &*value.op {
            Op::Sum(sum, added, args) => {
                let (signed, sum, args) = (value.ty.is_signed(), *sum, *args);
                let added = self.int(added);
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
