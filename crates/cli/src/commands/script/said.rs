//! What hits said: lines that the target evaluated.
//!
//! In: contents of maps. Out: lines, in the order in which hits said them. Invariant: HIT-5. Does not: read maps, or know
//! what is written (`trapline_script::native`).

use trapline::maps::MapContents;
use trapline_order::Order as _;
use trapline_script::native::{KeyValue, Native};
use trapline_script::{Hit, Machine, World};

use super::native::NativeScript;
use super::ran::{Known, parts};

/// What a hit said.
#[derive(Debug)]
pub(super) struct Line {
    order: (u64, u64),
    /// Which of what is said.
    said: usize,
    key: Vec<KeyValue>,
    value: Vec<KeyValue>,
}

impl Line {
    /// When the hit was, by the boot clock.
    pub(super) const fn at(&self) -> u64 {
        self.order.0
    }
    /// Writes it. Returns whether it asks the script to end.
    pub(super) fn write(
        &self,
        native: &Native,
        machine: &mut Machine,
        (hit, world): (&Hit, &mut dyn World),
    ) -> bool {
        machine.say(native, (self.said, &self.key, &self.value), (hit, world));
        native.ends(self.said)
    }
}

/// Lines that wait for their turn. A look goes through a map while hits fill it, so it may find a hit's line and miss an
/// earlier one of the same thread. That one is found by the next look. So a line waits for one look more.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: Vec<Line>,
    /// The latest time of the last look.
    until: u64,
}

impl Waiting {
    /// Takes what a look found. Returns the lines whose turn it is.
    pub(super) fn add(&mut self, found: Vec<Line>) -> Vec<Line> {
        let latest = found.last().map_or(self.until, |line| line.order.0);
        let due = self.until;
        self.until = due.max(latest);
        let mut all = self.all(found);
        self.lines = all.split_off(all.partition_point(|line| line.order.0 <= due));
        all
    }
    /// The same at the end: all lines.
    pub(super) fn all(&mut self, found: Vec<Line>) -> Vec<Line> {
        let mut all = std::mem::take(&mut self.lines);
        all.extend(found);
        all.order_by_key(|line| line.order);
        all
    }
}

/// The lines in what was read of maps.
pub(super) fn said(script: &NativeScript, contents: &[MapContents], known: &Known<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in contents.iter().flat_map(|one| &one.said) {
        let map = script.maps[row.map];
        let (Some(said), Some(how)) = (script.native.said_in(map), &script.native.maps[map]) else {
            continue;
        };
        let part = |are, words: &[_]| Some(parts(script, (are, words), row.pid, known)?.0);
        let (Some(key), Some(value)) = (part(&how.keys, &row.key), part(&how.values, &row.value)) else {
            continue;
        };
        lines.push(Line { order: Native::order_of(&key), said, key, value });
    }
    lines.order_by_key(|line| line.order);
    lines
}

/// How much of what hits said found no room, or was never finished.
pub(super) fn lost(script: &NativeScript, contents: &[MapContents]) -> u64 {
    let is_said = |(table, _): &(usize, &_)| script.native.said_in(script.maps[*table]).is_some();
    let missed = contents.iter().flat_map(|one| one.missed.iter().enumerate().filter(is_said));
    missed.map(|(_, missed)| missed.full + missed.met + missed.unfinished).sum()
}
