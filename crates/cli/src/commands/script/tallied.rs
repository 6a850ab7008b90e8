//! Blocks that the target counts by itself: their probes, and what their tables hold as rows of maps.
//!
//! In: a program and what its attach points mean; counts and tables. Out: probes of the session; [`Totals`].
//! Invariant: SCR-3: hits that found no row in a table are counted with their map. Does not: attach.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use trapline::aggregation::{GroupHits, Tallied};
use trapline::filter::Filter;
use trapline::report::Group as Grouped;
use trapline::{ProbeAction, ProcessReport, Site};
use trapline_script::{Amount, Counted, Fate, Group, Hit, Probe, Program, Table, Totals, awaited, fates};

use super::found::Found;
use super::lowering::request;
use super::places::{name, real, spec};
use super::system;

/// Tables have 2 to the power of this many rows: twice as many as a map has keys.
pub(super) const ROWS: u8 = 13;

/// The blocks that the target counts.
#[derive(Debug)]
pub(super) struct Tallying {
    fates: Vec<Fate>,
    awaited: Vec<bool>,
    /// Those with tables come first, and all of them before the probes that record: there is a table for each site up to
    /// the last one that has one.
    probes: Vec<Probed>,
}

/// A probe of the session that counts for one attach point of a block.
#[derive(Debug)]
struct Probed {
    spec: String,
    block: usize,
    action: ProbeAction,
    filter: Filter,
    /// What its hits are to a block, by file and offset.
    places: HashMap<(PathBuf, u64), Hit>,
}

impl Tallying {
    /// Decides which blocks those are; none, if all are to be interpreted.
    pub(super) fn of(program: &Program, found: &Found, interpret: bool) -> Self {
        let mut fates = match interpret {
            true => Vec::new(),
            false => {
                let cpus = system::cpus();
                let fits = |block, counted: &Counted| fits(places(program, found, block), counted, cpus);
                fates(program, &beside(program, found), &fits)
            }
        };
        let awaited = awaited(program, &fates);
        let mut probes = Vec::new();
        for (block, fate) in fates.iter_mut().enumerate() {
            let Fate::Counted(counted) = fate else { continue };
            match probed(program, found, block, counted) {
                Some(more) => probes.extend(more),
                None => *fate = Fate::Read("the target cannot count it".to_owned()),
            }
        }
        probes.sort_by_key(|probed: &Probed| probed.action == ProbeAction::Count);
        Self { fates, awaited, probes }
    }
    /// Whether the target counts a block's hits.
    pub(super) fn counts(&self, block: usize) -> bool {
        matches!(self.fates.get(block), Some(Fate::Counted(_)))
    }
    /// Whether a block of our own names a map that the target counts.
    pub(super) fn is_awaited(&self, block: usize) -> bool {
        self.awaited.get(block).copied().unwrap_or(false)
    }
    /// How many places are counted at.
    pub(super) fn count(&self) -> usize {
        self.probes.iter().map(|probed| probed.places.len()).sum()
    }
    /// The probes of the session, to come before all others.
    pub(super) fn specs(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().map(|probed| probed.spec.as_str())
    }
    /// What these probes do, and their filters.
    pub(super) fn requests(&self) -> (Vec<ProbeAction>, Vec<Filter>) {
        self.probes.iter().map(|probed| (probed.action, probed.filter.clone())).unzip()
    }
    /// Whether tables need many rows.
    pub(super) fn has_keys(&self) -> bool {
        let has = |fate: &Fate| matches!(fate, Fate::Counted(counted) if counted.group != Group::All);
        self.fates.iter().any(has)
    }
    /// Where each block of programs runs, a line each.
    pub(super) fn lines(&self, program: &Program) -> String {
        let line = |(fate, block): (&Fate, &trapline_script::Block)| {
            let probe = block.probes.first()?;
            let more = if block.probes.len() > 1 { ", …" } else { "" };
            match fate {
                Fate::Own => None,
                Fate::Counted(_) => Some(format!("Counted in the target: {probe}{more}\n")),
                Fate::Read(why) => Some(format!("Interpreted: {probe}{more}: {why}\n")),
            }
        };
        self.fates.iter().zip(&program.blocks).filter_map(line).collect()
    }
    /// What was counted; and for how many hits what a block asks for was not known.
    pub(super) fn totals(&self, reports: &[ProcessReport], tallies: &[Tallied]) -> (Totals, u64) {
        let (mut totals, mut unknown) = (Totals::default(), 0);
        for report in reports {
            for count in &report.counts {
                let Some((probed, counted)) = self.of_site(&count.site) else { continue };
                if probed.action == ProbeAction::Count {
                    let amount = Amount { hits: count.hits, ..Amount::default() };
                    let hit = probed.hit(&count.site, report.pid);
                    counted.updates.iter().for_each(|update| totals.add(update, &hit, 0, &amount));
                }
            }
        }
        for tallied in tallies {
            if let Some((probed, counted)) = self.of_site(&tallied.site) {
                unknown += probed.add(counted, tallied, &mut totals);
            }
        }
        (totals, unknown)
    }
    /// The probe that counts at a site, and what.
    fn of_site(&self, site: &Site) -> Option<(&Probed, &Counted)> {
        let nth = (site.slot as usize).checked_sub(1)?;
        let probed = self.probes.get(nth)?;
        match &self.fates[probed.block] {
            Fate::Counted(counted) => Some((probed, counted)),
            _ => None,
        }
    }
}

impl Probed {
    /// What hits at a site are to a block.
    fn hit(&self, site: &Site, pid: u32) -> Hit {
        let known = self.places.get(&(real(&site.file), site.offset));
        // The site of an IFUNC is the function that was chosen.
        let other = || Hit { probe: site.probe.clone(), func: site.label.clone(), ..Hit::default() };
        Hit { pid, ..known.cloned().unwrap_or_else(other) }
    }
    /// Adds what a table holds. Returns for how many hits what the block asks for was not known.
    fn add(&self, counted: &Counted, tallied: &Tallied, totals: &mut Totals) -> u64 {
        let hit = self.hit(&tallied.site, tallied.pid);
        // Exits by a tail call have no value.
        let without = if counted.asks_for_return() { 0 } else { tallied.unseen };
        for update in &counted.updates {
            if !update.is_grouped() && counted.table == Table::Hits {
                let hits = tallied.hits() - tallied.unseen + without;
                totals.add(update, &hit, 0, &Amount { hits, ..Amount::default() });
                continue;
            }
            for (group, amount) in amounts(counted, &tallied.parts) {
                totals.add(update, &hit, group, &amount);
            }
            totals.lose(update, tallied.overflow + without);
        }
        tallied.unseen - without
    }
}

/// What a table holds for each group.
fn amounts(counted: &Counted, parts: &[GroupHits]) -> BTreeMap<u64, Amount> {
    let mut amounts: BTreeMap<u64, Amount> = BTreeMap::new();
    let by_value = counted.table == Table::Hits && matches!(counted.group, Group::By(_));
    for part in parts {
        let group = match (&part.group, part.key) {
            (_, Some(key)) => key,
            (Some(Grouped::Thread { tid, .. }), _) => u64::from(*tid),
            _ => 0,
        };
        if by_value {
            for (&value, &hits) in &part.hits {
                amounts.entry(value).or_default().hits += hits;
            }
            continue;
        }
        let amount = amounts.entry(group).or_default();
        amount.hits += part.hits.values().sum::<u64>();
        match part.sums {
            Some(sums) => {
                amount.sum = amount.sum.wrapping_add(sums.sum);
                let (min, max) = amount.extremes.unwrap_or((sums.min, sums.max));
                amount.extremes = Some((min.min(sums.min), max.max(sums.max)));
            }
            None => {
                part.hits.iter().for_each(|(&cell, &hits)| *amount.buckets.entry(cell).or_default() += hits)
            }
        }
    }
    amounts
}

/// The probes that count for a block.
fn probed(program: &Program, found: &Found, block: usize, counted: &Counted) -> Option<Vec<Probed>> {
    let one = |probe: &Probe| {
        let (spec, at_return) = spec(probe)?;
        let (action, filter) = request(counted, at_return)?;
        let hit = |func: &str, name| Hit {
            probe: name,
            sort: probe.sort(),
            func: func.to_owned(),
            ..Hit::default()
        };
        let listed = found.listed(&spec).iter();
        let places = listed.map(|one| ((real(&one.file), one.offset), hit(&one.function, name(probe, one))));
        let places = places.collect();
        Some(Probed { spec, block, action, filter, places })
    };
    let probes: Option<Vec<Probed>> = program.blocks[block].probes.iter().map(one).collect();
    Some(probes?.into_iter().filter(|probed| !probed.places.is_empty()).collect())
}

/// How many places a block's attach points mean.
fn places(program: &Program, found: &Found, block: usize) -> u64 {
    let specs = program.blocks[block].probes.iter().filter_map(spec);
    specs.map(|(text, _)| found.listed(&text).len() as u64).sum()
}

/// Whether the tables of so many places have memory for their rows; with fewer rows, more hits would find none.
fn fits(places: u64, counted: &Counted, cpus: u64) -> bool {
    /// Bytes of a row with sums, and of one without.
    const ROW: (u64, u64) = (128, 32);
    /// Most bytes of all tables, where each has as many rows as are asked for. They get a quarter of it.
    const MOST: u64 = 1 << 30;
    let row = if matches!(counted.table, Table::Sums(_)) { ROW.0 } else { ROW.1 };
    counted.group == Group::All || places.saturating_mul(cpus + 1).saturating_mul(row << ROWS) <= MOST
}

/// For each block, those that run at a function where it runs too.
fn beside(program: &Program, found: &Found) -> Vec<BTreeSet<usize>> {
    let mut at: HashMap<(&str, u64), Vec<usize>> = HashMap::new();
    for (index, block) in program.blocks.iter().enumerate() {
        for (text, _) in block.probes.iter().filter_map(spec) {
            for one in found.listed(&text) {
                at.entry((&one.file, one.offset)).or_default().push(index);
            }
        }
    }
    let mut beside = vec![BTreeSet::new(); program.blocks.len()];
    for blocks in at.values() {
        for (nth, block) in blocks.iter().enumerate() {
            let others = blocks.iter().enumerate().filter(|(other, _)| *other != nth);
            beside[*block].extend(others.map(|(_, other)| *other));
        }
    }
    beside
}
