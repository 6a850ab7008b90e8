//! Which blocks are counted in the target: all of them together.
//!
//! In: a program, and for each block the blocks that run at one of its functions. Out: a [`Fate`] for each block.
//! Fates depend on each other (LOW-2), so those that cannot be are taken back until none is left. Does not: attach.

use std::collections::BTreeSet;

use super::block::counted;
use super::uses::Uses;
use crate::attach::Probe;
use crate::counted::{Counted, Fate, Group};
use crate::program::{Block, Program};
use crate::types::{Sum, Type};

/// The most keys of a map for which the target's tables have room.
const ROOM: usize = 8192;

/// Where each block runs. `beside`: for each block, those that run at a function where it runs too; itself, if it does so
/// twice. `fits`: whether the target has memory for a block's tables.
#[must_use]
pub fn fates(
    program: &Program,
    beside: &[BTreeSet<usize>],
    fits: &dyn Fn(usize, &Counted) -> bool,
) -> Vec<Fate> {
    let uses: Vec<Uses> = program.blocks.iter().map(Uses::of).collect();
    let mut fates: Vec<Fate> = program.blocks.iter().map(|block| alone(program, block)).collect();
    for (block, fate) in fates.iter_mut().enumerate() {
        if let Fate::Counted(counted) = fate
            && !fits(block, counted)
        {
            *fate = Fate::Read("it has more places than there is memory for tables".to_owned());
        }
    }
    while let Some((block, why)) = impossible(program, &fates, &uses, beside) {
        fates[block] = Fate::Read(why);
    }
    fates
}

/// Which blocks of our own name a map that is counted in the target: it is read before they run.
#[must_use]
pub fn awaited(program: &Program, fates: &[Fate]) -> Vec<bool> {
    let updates = |fate: &Fate| match fate {
        Fate::Counted(counted) => counted.updates.iter().map(|update| update.map).collect(),
        _ => Vec::new(),
    };
    let maps: BTreeSet<usize> = fates.iter().flat_map(updates).collect();
    program.blocks.iter().map(|block| !Uses::of(block).named.is_disjoint(&maps)).collect()
}

/// What would become of a block if it were the only one.
fn alone(program: &Program, block: &Block) -> Fate {
    if !block.probes.iter().any(Probe::is_of_program) {
        return Fate::Own;
    }
    match counted(program, block) {
        Ok(counted) => Fate::Counted(counted),
        Err(why) => Fate::Read(why),
    }
}

/// A block that cannot be counted in the target, given what becomes of the others.
fn impossible(
    program: &Program,
    fates: &[Fate],
    uses: &[Uses],
    beside: &[BTreeSet<usize>],
) -> Option<(usize, String)> {
    fates.iter().enumerate().find_map(|(block, fate)| {
        let Fate::Counted(counted) = fate else { return None };
        let maps = counted.updates.iter();
        let of_maps = maps.map(|update| {
            let dynamic = update.is_grouped() && counted.group != Group::All;
            of_map(program, fates, uses, update.map, dynamic)
        });
        let why = of_maps.flatten().next().or_else(|| of_returns(program, fates, beside, block))?;
        Some((block, why))
    })
}

/// Why a map cannot be counted in the target.
fn of_map(program: &Program, fates: &[Fate], uses: &[Uses], map: usize, dynamic: bool) -> Option<String> {
    let info = &program.maps[map];
    let name = &info.name;
    let read = |(fate, uses): (&Fate, &Uses)| matches!(fate, Fate::Read(_)) && uses.named.contains(&map);
    let emptied = || uses.iter().any(|uses| uses.emptied.contains(&map));
    match &info.value {
        _ if fates.iter().zip(uses).any(read) => {
            Some(format!("{name} is used in a block that is interpreted"))
        }
        _ if info.evicts => Some(format!("{name} gives up keys that were not used")),
        _ if dynamic && info.room > ROOM => {
            Some(format!("{name} has more keys than the target has room for"))
        }
        Type::Sum(Sum::Min | Sum::Max, _) if emptied() => Some(format!("{name} is emptied")),
        _ => None,
    }
}

/// Why the returns of a block's functions cannot be counted beside what else happens there.
fn of_returns(program: &Program, fates: &[Fate], beside: &[BTreeSet<usize>], block: usize) -> Option<String> {
    let at_return =
        |block: usize| program.blocks[block].probes.iter().any(|probe| matches!(probe, Probe::Uretprobe(..)));
    let other = |other: &&usize| at_return(**other) || matches!(fates[**other], Fate::Read(_));
    let others = beside.get(block).filter(|_| at_return(block))?;
    others.iter().find(other).map(|_| "another block runs at the same function".to_owned())
}
