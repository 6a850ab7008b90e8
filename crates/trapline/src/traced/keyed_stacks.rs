//! Stacks that keys of a script's maps name.
//!
//! In: the tables of stacks of all segments; what is mapped as code. Out: the stack of each number. A stack is looked
//! up when it is first read, and before other code is known to be mapped, since its addresses mean what was mapped at
//! its hit. Invariant: HIT-2. Does not: name functions.

use std::collections::HashMap;
use std::sync::Arc;

use trapline_patch::Segment;
use trapline_tracee::{Mapping, Process};

use super::stack_reader::update;
use crate::report::Site;
use crate::stacks::{HitStack, SeenCode, StackId, Sums, open};

/// The stacks of one process.
#[derive(Debug, Default)]
pub(super) struct KeyedStacks {
    sums: Sums,
    /// By segment and number: the stack, and the probe that was hit.
    known: HashMap<(usize, u64), (StackId, u32)>,
}

impl KeyedStacks {
    /// Notes where code is mapped now.
    pub(super) fn note_code(&mut self, process: &Process, maps: &[Mapping], segments: &[Segment]) {
        self.read(process, segments);
        if self.sums.places.update(maps, open(process)) {
            self.sums.renumber();
        }
    }
    /// Reads what is new. Returns how many hits found no room for their stack.
    pub(super) fn read(&mut self, process: &Process, segments: &[Segment]) -> u64 {
        let Self { sums, known } = self;
        let (mut looked, mut dropped) = (false, 0);
        let mut look =
            |places: &mut SeenCode| !std::mem::replace(&mut looked, true) && update(process, places);
        for (nth, segment) in segments.iter().enumerate() {
            let maps = segment.maps();
            if maps.stacks.is_empty() {
                continue;
            }
            dropped += maps.read_stacks(segment.view(), &segment.mapped_entries(), |stack| {
                known
                    .entry((nth, stack.number))
                    .or_insert_with(|| (sums.number(stack.addresses, stack.is_cut, &mut look), stack.probe));
            });
        }
        dropped
    }
    /// Whether a number was read.
    pub(super) fn has(&self, number: (usize, u64)) -> bool {
        self.known.contains_key(&number)
    }
    /// The place and the stack of a number. `site`: the place of a segment's probe.
    pub(super) fn stack(
        &self,
        (segment, number): (usize, u64),
        site: impl FnOnce(u32) -> Option<Arc<Site>>,
    ) -> Option<(Arc<Site>, HitStack)> {
        let (stack, probe) = self.known.get(&(segment, number))?;
        let (seen, site) = (self.sums.stack(*stack)?, site(*probe)?);
        let here = self.sums.places.site(&site.file, site.offset);
        let stack = HitStack { here, callers: Arc::clone(&seen.callers), cut: seen.cut };
        Some((site, stack))
    }
}
