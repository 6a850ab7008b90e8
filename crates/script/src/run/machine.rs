//! A program that runs: its blocks at hits, and how it ends.
//!
//! In: hits, block by block. Out: output through the world; the exit status. Invariant: what finds no room in a map is
//! counted and reported. Does not: decide when a block runs.

use std::rc::Rc;

use trapline_order::Order as _;

use super::frame::Frame;
use super::maps::Map;
use super::state::{State, Style};
use super::totals::Totals;
use super::world::{Hit, Stream, World};
use crate::attach::Probe;
use crate::cell::Cell;
use crate::program::{Block, Program, Typed};
use crate::table::Asked;
use crate::value::Value;

/// A program that runs.
#[derive(Debug)]
pub struct Machine {
    state: State,
    /// What maps have been given of the target's tables.
    settled: Totals,
}

impl Machine {
    /// A program with empty maps.
    pub fn new(program: Rc<Program>, style: Style, world: &mut dyn World) -> Self {
        Self { state: State::new(program, style, world), settled: Totals::default() }
    }
    /// Lets series take their time from a map's single value instead of the clock, so tests know it.
    pub fn series_clock(&mut self, map: &str) {
        self.state.series_clock = self.state.program.maps.iter().position(|info| info.name == map);
    }
    /// The program.
    pub fn program(&self) -> &Program {
        &self.state.program
    }
    /// The program, and its maps.
    pub(crate) fn maps(&mut self) -> (Rc<Program>, &mut [Map]) {
        (Rc::clone(&self.state.program), &mut self.state.maps)
    }
    /// The exit status, if the script has asked to end.
    pub const fn exit(&self) -> Option<i32> {
        self.state.exit
    }
    /// All probes are gone: the blocks at `end` write again, even if the script has asked to end.
    pub const fn end(&mut self) {
        self.state.muted = false;
    }
    /// Runs a block for a hit.
    pub fn run(&mut self, block: usize, hit: &Hit, world: &mut dyn World) {
        let program = self.state.program.clone();
        Frame::new(&mut self.state, &program.blocks[block], hit, world).run();
    }
    /// Evaluates a call that writes, with the values of its variables. It was made before the script asked to end.
    pub(crate) fn write(&mut self, call: &Typed, locals: Vec<Value>, hit: &Hit, world: &mut dyn World) {
        let block = Block::default();
        let muted = std::mem::take(&mut self.state.muted);
        let mut frame = Frame::new(&mut self.state, &block, hit, world);
        frame.locals = locals;
        drop(frame.eval(call));
        self.state.muted |= muted;
    }
    /// Runs the blocks at probes of one kind, in the order of the source.
    pub fn run_all(&mut self, is: impl Fn(&Probe) -> bool, hit: &Hit, world: &mut dyn World) {
        let program = self.state.program.clone();
        for (index, block) in program.blocks.iter().enumerate() {
            for probe in block.probes.iter().filter(|probe| is(probe)) {
                let hit = Hit { probe: probe.to_string(), sort: probe.sort(), ..hit.clone() };
                self.run(index, &hit, world);
            }
        }
    }
    /// Gives maps what the target's tables hold more than the last time. So what a script did to a map meanwhile, such as
    /// `clear`, stays done.
    pub fn settle(&mut self, now: Totals) {
        let state = &mut self.state;
        for ((map, key), more) in now.since(&self.settled) {
            let ty = &state.program.maps[*map].value;
            match state.maps[*map].entry(key.clone(), || Cell::empty(ty)) {
                Some(cell) => cell.add_all(ty, &more),
                // The entry has counted one.
                None => state.maps[*map].lost += more.hits - 1,
            }
        }
        for (map, lost) in now.lost_since(&self.settled) {
            state.maps[map].lost += lost.full;
            state.maps[map].met += lost.met;
        }
        self.settled = now;
    }
    /// Writes what is written when all probes are gone: the maps, and what found no room in them.
    pub fn finish(&mut self, world: &mut dyn World) {
        let state = &self.state;
        if !state.style.json {
            world.write(Stream::Output, b"\n\n");
        }
        let mut order: Vec<usize> = (0..state.maps.len()).collect();
        order.order_by(|a, b| state.program.maps[*a].name.cmp(&state.program.maps[*b].name));
        for map in order {
            if state.program.config.print_maps_on_exit {
                let text = state.written(map, Asked::default(), world);
                world.write(Stream::Output, &text);
            }
            let (name, room) = (&state.program.maps[map].name, state.program.maps[map].room);
            let lost = [
                (state.maps[map].lost, format!("found no room ({room} keys)")),
                (state.maps[map].met, "came while another one of the same key did not end".to_owned()),
            ];
            for (lost, why) in lost.iter().filter(|(lost, _)| *lost > 0 && !state.style.no_warnings) {
                let noun = if *lost == 1 { "update" } else { "updates" };
                let text = format!("WARNING: {name}: {lost} {noun} {why}\n");
                world.write(Stream::Error, text.as_bytes());
            }
        }
    }
}
