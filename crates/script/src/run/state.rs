//! A program that runs, as its blocks see it: maps, clocks, whether it is to end.
//!
//! In: nothing. Out: plain data, and maps as they are written. Does not: run blocks.

use std::rc::Rc;

use super::maps::Map;
use super::world::{Clock, World};
use crate::json;
use crate::program::Program;
use crate::shown::Names;
use crate::table::{Asked, Table};
use crate::text;
use crate::time::Moment;

/// How output is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// As lines of JSON, not as text.
    pub json: bool,
    /// Without warnings.
    pub no_warnings: bool,
    /// With a warning where a map is read that does not have the key.
    pub lookups: bool,
}

/// What a program that runs consists of.
#[derive(Debug)]
pub(super) struct State {
    pub(super) program: Rc<Program>,
    pub(super) maps: Vec<Map>,
    pub(super) style: Style,
    /// When the script began, by [`Clock::Boot`].
    pub(super) begun: u64,
    /// Wall time less boot time.
    pub(super) wall: u64,
    /// The exit status, once the script has asked to end.
    pub(super) exit: Option<i32>,
    /// Whether nothing is written: the script has asked to end, and its blocks at `end` do not run yet.
    pub(super) muted: bool,
    /// The map that holds the time of series, for tests.
    pub(super) series_clock: Option<usize>,
    pub(super) random: u64,
}

impl State {
    pub(super) fn new(program: Rc<Program>, style: Style, world: &mut dyn World) -> Self {
        let maps = program.maps.iter().map(Map::new).collect();
        let begun = world.now(Clock::Boot);
        let wall = world.now(Clock::Wall).wrapping_sub(begun);
        Self {
            program,
            maps,
            style,
            begun,
            wall,
            exit: None,
            muted: false,
            series_clock: None,
            random: begun | 1,
        }
    }
    /// A map as text or JSON.
    pub(super) fn written(&self, map: usize, asked: Asked, world: &dyn World) -> Vec<u8> {
        let info = &self.program.maps[map];
        let names = names(&self.program, world);
        let table = Table::new(info, self.maps[map].rows(), asked, &names, &|nanos| moment(nanos, world));
        if self.style.json { json::map(&info.name, &table) } else { text::map(&info.name, &table) }
    }
}

/// What showing values needs to know.
pub(super) fn names<'a>(program: &'a Program, world: &'a dyn World) -> Names<'a> {
    Names {
        layouts: &program.layouts,
        config: &program.config,
        stack: Box::new(|frames, mode| world.stack(frames, mode)),
    }
}

/// A moment of wall time.
pub(super) fn moment(nanos: u64, world: &dyn World) -> Moment {
    let seconds = (nanos / 1_000_000_000) as i64;
    Moment { seconds, nanos: (nanos % 1_000_000_000) as u32, ahead: world.ahead(seconds) }
}
