//! Where each block runs: all of them together.
//!
//! In: a program; which blocks run at the same functions. Out: a [`Fate`] for each block, and what the target must know.
//! Fates depend on each other (NAT-1), so those that cannot be are taken back until none is left. Does not: attach.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::emit::Nothing;
use super::lower::{Lower, Of};
use super::maps::{Change, KeyWord, Native, NativeMap, Processes};
use super::uses::Uses;
use crate::attach::Probe;
use crate::program::{Block, Program};

/// The most keys of a map for which the target's tables have room.
const ROOM: usize = 1 << 20;

/// Where a block runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// In the tracer: it is no block of a program's hits.
    Own,
    /// In the tracer, over records; the reason.
    Read(String),
    /// In the target.
    Native,
}

/// What else is known of a block.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// Blocks that run at a function where it runs too; itself, if it does so twice.
    pub others: BTreeSet<usize>,
    /// It runs at an instruction, and not at a function.
    pub inside: bool,
    /// Some place is meant by two of its attach points or those of other blocks, which are written in different ways.
    pub overlaps: bool,
}

/// Where blocks run, and what the target must know.
#[derive(Debug, Clone, Default)]
pub struct Natives {
    /// By block.
    pub fates: Vec<Fate>,
    /// For those that it runs.
    pub native: Native,
    /// By block: whether it is one of the tracer's own that names a map of the target's.
    pub awaited: Vec<bool>,
}

impl Natives {
    /// Nothing runs in the target, for this reason.
    #[must_use]
    pub fn none(program: &Program, why: &str) -> Self {
        let fate = |block: &Block| if is_of_hits(block) { Fate::Read(why.to_owned()) } else { Fate::Own };
        let fates: Vec<Fate> = program.blocks.iter().map(fate).collect();
        let awaited = vec![false; fates.len()];
        Self { fates, native: Native::new(program.maps.len(), Processes::default(), Rc::default()), awaited }
    }
    /// Decides. `beside`: by block. `says`: whether hits may say what is written (`said`), as where records do not hold it.
    #[must_use]
    pub fn of(program: &Program, beside: &[Beside], (processes, says): (Processes, bool)) -> Self {
        let uses: Vec<Uses> = program.blocks.iter().map(Uses::of).collect();
        let of_hits = uses.iter().zip(&program.blocks).filter(|(_, block)| is_of_hits(block));
        let assigned = of_hits.flat_map(|(uses, _)| uses.assigned.iter().copied()).collect();
        let mut start = Native::new(program.maps.len(), processes, Rc::new(assigned));
        start.says = says;
        let fate = |block: &Block| if is_of_hits(block) { Fate::Native } else { Fate::Own };
        let mut fates: Vec<Fate> = program.blocks.iter().map(fate).collect();
        let native = loop {
            let native = lowered(program, &mut fates, start.clone());
            let together = Together { program, fates: &fates, uses: &uses, native: &native, beside };
            let impossible = together.impossible();
            if impossible.is_empty() {
                break native;
            }
            impossible.into_iter().for_each(|(block, why)| fates[block] = Fate::Read(why));
        };
        let is_native = |map: &usize| native.maps[*map].is_some();
        let awaited = uses.iter().map(|uses| uses.named.iter().any(is_native)).collect();
        Self { fates, native, awaited }
    }
    /// Whether the target runs a block.
    #[must_use]
    pub fn runs(&self, block: usize) -> bool {
        self.fates.get(block) == Some(&Fate::Native)
    }
}

/// Whether keys of different processes are different.
fn is_of_process(keys: &[KeyWord]) -> bool {
    keys.contains(&KeyWord::Thread)
}

fn is_of_hits(block: &Block) -> bool {
    block.probes.iter().any(Probe::is_of_program)
}

/// What the target must know to run blocks. Those that it cannot run are read.
fn lowered(program: &Program, fates: &mut [Fate], mut native: Native) -> Native {
    for (fate, block) in fates.iter_mut().zip(&program.blocks).filter(|(fate, _)| **fate == Fate::Native) {
        let mut with_it = native.clone();
        let is_hit =
            |probe: &Probe| matches!(probe, Probe::Uprobe(..) | Probe::Uretprobe(..) | Probe::Usdt(..));
        // Texts have numbers of their own at each place.
        with_it.read.clear();
        match block.probes.iter().find(|probe| !is_hit(probe)) {
            Some(probe) => *fate = Fate::Read(format!("blocks at {} probes are interpreted", probe.sort())),
            None => match Lower::new(&mut Nothing, Of { program, block }, &mut with_it).block() {
                Ok(()) => native = with_it,
                Err(why) => *fate = Fate::Read(why.what),
            },
        }
    }
    native
}

/// Blocks that are to run in the target, together with all others.
struct Together<'a> {
    program: &'a Program,
    fates: &'a [Fate],
    uses: &'a [Uses],
    native: &'a Native,
    beside: &'a [Beside],
}

impl Together<'_> {
    /// Blocks that cannot run in the target, given what becomes of the others.
    fn impossible(&self) -> Vec<(usize, String)> {
        let native = (0..self.fates.len()).filter(|block| self.fates[*block] == Fate::Native);
        native.filter_map(|block| Some((block, self.why_not(block)?))).collect()
    }
    fn why_not(&self, block: usize) -> Option<String> {
        let beside = self.beside.get(block).cloned().unwrap_or_default();
        let assigns = |map: &usize| self.assigned(*map);
        let uses = &self.uses[block];
        match () {
            () if uses.named.is_empty() && !self.native.says => Some("it changes no map".to_owned()),
            () if beside.inside => Some("it runs at an instruction inside a function".to_owned()),
            () if beside.overlaps && uses.named.iter().any(assigns) => {
                Some("a function is meant by two attach points".to_owned())
            }
            () => uses
                .named
                .iter()
                .find_map(|map| self.of_map(*map))
                .or_else(|| self.of_returns(block, &beside)),
        }
    }
    fn assigned(&self, map: usize) -> bool {
        matches!(&self.native.maps[map], Some(NativeMap { change: Change::Assign, .. }))
    }
    /// Why a map cannot be the target's.
    fn of_map(&self, map: usize) -> Option<String> {
        let info = &self.program.maps[map];
        let name = &info.name;
        let read = |(fate, uses): (&Fate, &Uses)| matches!(fate, Fate::Read(_)) && uses.named.contains(&map);
        let emptied = || self.uses.iter().any(|uses| uses.emptied.contains(&map));
        let how = self.native.maps[map].as_ref();
        match how {
            _ if self.fates.iter().zip(self.uses).any(read) => {
                Some(format!("{name} is used in a block that is interpreted"))
            }
            _ if info.evicts => Some(format!("{name} gives up keys that were not used")),
            Some(NativeMap { keys, .. }) if !keys.is_empty() && info.room > ROOM => {
                Some(format!("{name} has more keys than the target has room for"))
            }
            Some(NativeMap { change: Change::Raise(_), .. }) if emptied() => {
                Some(format!("{name} is emptied"))
            }
            Some(how) if how.is_shared() && !self.native.processes.one && !is_of_process(&how.keys) => {
                Some(format!("{name} is of several processes, and its key has no tid"))
            }
            Some(NativeMap { change: Change::Assign, .. }) if self.is_changed_early(map) => {
                Some(format!("{name} is changed by a block of the tracer before the end"))
            }
            _ => None,
        }
    }
    /// Whether a block of the tracer other than those at the end changes a map.
    fn is_changed_early(&self, map: usize) -> bool {
        let early =
            |block: &Block| !is_of_hits(block) && block.probes.iter().any(|probe| *probe != Probe::End);
        let mut blocks = self.program.blocks.iter().zip(self.uses);
        blocks.any(|(block, uses)| early(block) && uses.changed.contains(&map))
    }
    /// Why the returns of a block's functions cannot be had beside what else happens there.
    fn of_returns(&self, block: usize, beside: &Beside) -> Option<String> {
        let at_return = |block: usize| {
            self.program.blocks[block].probes.iter().any(|probe| matches!(probe, Probe::Uretprobe(..)))
        };
        let is_read = |other: &usize| matches!(self.fates[*other], Fate::Read(_));
        let conflicts = at_return(block) && (beside.overlaps || beside.others.iter().any(is_read));
        conflicts.then(|| "another block at the same function is interpreted".to_owned())
    }
}
