//! Blocks that hits run in the target: their probes, and what they left in maps.
//!
//! In: a program and what its attach points mean; contents of maps. Out: probes of the session; rows of the program's maps.
//! Invariant: all blocks of programs are run there, or none. Does not: attach.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use trapline::filter::Filter;
use trapline::maps::{KeyPart, MapContents, MapRow, MapTable};
use trapline::{ProbeAction, Site};
use trapline_script::native::{KeyValue, KeyWord};
use trapline_script::{Amount, Hit, Machine, Probe, Program, Totals};

use super::found::Found;
use super::native::NativeScript;
use super::places::{name, real, spec};

/// The blocks that hits run in the target.
#[derive(Debug)]
pub(super) struct Ran {
    script: NativeScript,
    probes: Vec<Probed>,
    /// How many probes of the session come first.
    before: usize,
}

/// A probe of the session that runs the blocks of one attach point.
#[derive(Debug)]
struct Probed {
    spec: String,
    at_return: bool,
    blocks: Vec<usize>,
    /// What its hits are to a block, by file and offset.
    places: HashMap<(PathBuf, u64), Hit>,
}

impl Ran {
    /// All blocks of programs.
    ///
    /// # Errors
    /// Why the target cannot run them.
    pub(super) fn of(program: &Program, found: &Found) -> Result<Self, String> {
        let script = NativeScript::of(program).map_err(|not| not.what)?;
        let mut probes: Vec<Probed> = Vec::new();
        for (block, def) in program.blocks.iter().enumerate() {
            for probe in &def.probes {
                let Some((spec, at_return)) = spec(probe) else { continue };
                if spec.contains('+') || spec.contains(":0x") {
                    return Err(format!("{spec} is an instruction"));
                }
                match probes.iter_mut().find(|probed| probed.spec == spec && probed.at_return == at_return) {
                    Some(probed) if probed.blocks.contains(&block) => {}
                    Some(probed) => probed.blocks.push(block),
                    None => probes.push(Probed::of(found, probe, spec, (block, at_return))),
                }
            }
        }
        probes.retain(|probed| !probed.places.is_empty());
        let mut known: HashMap<(&(PathBuf, u64), bool), &str> = HashMap::new();
        for probed in &probes {
            for place in probed.places.keys() {
                if known.insert((place, probed.at_return), &probed.spec).is_some() {
                    return Err(format!("{} means a function that another probe means too", probed.spec));
                }
            }
        }
        Ok(Self { script, probes, before: 0 })
    }
    /// How many places are probed.
    pub(super) fn count(&self) -> usize {
        self.probes.iter().map(|probed| probed.places.len()).sum()
    }
    /// The probes of the session, to come behind all others.
    pub(super) fn specs(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().map(|probed| probed.spec.as_str())
    }
    /// The maps that their programs write.
    pub(super) fn tables(&self) -> Vec<MapTable> {
        self.script.tables.clone()
    }
    /// Adds the filters and actions of these probes behind those of the others.
    ///
    /// # Errors
    /// Why a program has no code.
    pub(super) fn add_to(
        &mut self,
        program: &Program,
        filters: &mut Vec<Filter>,
        actions: &mut Vec<ProbeAction>,
    ) -> Result<(), String> {
        let programs = self.probes.iter().map(|probed| self.script.program(program, &probed.blocks));
        let programs: Vec<_> = programs.collect::<Result<_, _>>()?;
        self.before = filters.len();
        filters.extend(programs.into_iter().map(|program| Filter::default().runs(program)));
        actions.extend(self.probes.iter().map(|probed| ProbeAction::Tally { exits: probed.at_return }));
        Ok(())
    }
    /// Gives a program's maps what hits added up and what threads assigned.
    pub(super) fn settle(&self, machine: &mut Machine, contents: &[MapContents]) {
        contents_into(&self.script, machine, contents, &|site| self.hit(site));
    }
    /// What hits at a site are to a block.
    fn hit(&self, site: &Site) -> Option<Hit> {
        let nth = (site.slot as usize).checked_sub(self.before + 1)?;
        let known = self.probes.get(nth)?.places.get(&(real(&site.file), site.offset));
        // The site of an IFUNC is the function that was chosen.
        let other = || Hit { probe: site.probe.clone(), func: site.label.clone(), ..Hit::default() };
        Some(known.cloned().unwrap_or_else(other))
    }
}

impl Probed {
    fn of(found: &Found, probe: &Probe, spec: String, (block, at_return): (usize, bool)) -> Self {
        let hit = |func: &str, name| Hit { probe: name, func: func.to_owned(), ..Hit::default() };
        let listed = found.listed(&spec).iter();
        let places = listed.map(|one| ((real(&one.file), one.offset), hit(&one.function, name(probe, one))));
        let places = places.collect();
        Self { spec, at_return, blocks: vec![block], places }
    }
}

/// Gives a program's maps what is in those of the target. `hit`: what hits at a site are to a block.
pub(super) fn contents_into(
    script: &NativeScript,
    machine: &mut Machine,
    contents: &[MapContents],
    hit: &dyn Fn(&Site) -> Option<Hit>,
) {
    let mut totals = Totals::default();
    for one in contents {
        for row in one.rows.iter().filter(|row| script.tables[row.map].is_added) {
            let Some((map, key, bucket)) = key(script, row, hit) else { continue };
            let [hits, sum] = [0, 1].map(|word| row.value.get(word).copied().unwrap_or(0));
            let buckets = bucket.map(|bucket| BTreeMap::from([(bucket, hits)])).unwrap_or_default();
            let amount = Amount { hits, sum: i128::from(sum.cast_signed()), buckets, extremes: None };
            totals.add_key(machine.program(), map, &key, &amount);
        }
        for (table, dropped) in one.dropped.iter().enumerate() {
            totals.lose_in(script.maps[table], *dropped);
        }
    }
    machine.settle(totals);
    for (table, map) in script.maps.iter().enumerate() {
        if !script.tables[table].is_added {
            let rows = contents.iter().flat_map(|one| &one.rows).filter(|row| row.map == table);
            let entry =
                |row: &MapRow| Some((key(script, row, hit)?.1, row.value.first().copied().unwrap_or(0)));
            machine.replace(*map, rows.filter_map(entry));
        }
    }
}

/// Which of the program's maps a row is of, its key, and a histogram's bucket.
fn key(
    script: &NativeScript,
    row: &MapRow,
    hit: &dyn Fn(&Site) -> Option<Hit>,
) -> Option<(usize, Vec<KeyValue>, Option<u64>)> {
    let map = script.maps[row.map];
    let words = &script.native.maps[map].as_ref()?.keys;
    let (mut key, mut bucket) = (Vec::new(), None);
    for (part, word) in row.key.iter().zip(words) {
        key.push(match (part, word) {
            (KeyPart::Number(number), KeyWord::Bucket) => {
                bucket = Some(*number);
                continue;
            }
            (KeyPart::Number(number), KeyWord::Text) => {
                let text = script.native.texts.get(usize::try_from(*number).ok()?)?;
                KeyValue::Text(text.to_vec())
            }
            (KeyPart::Number(_), KeyWord::Func | KeyWord::Probe) => return None,
            (KeyPart::Number(number), _) => KeyValue::Int(number.cast_signed()),
            (KeyPart::Thread(tid), _) => KeyValue::Int((*tid).into()),
            (KeyPart::Site(site), word) => {
                let hit = hit(site)?;
                let text = if *word == KeyWord::Func { &hit.func } else { &hit.probe };
                KeyValue::Text(text.as_bytes().to_vec())
            }
        });
    }
    Some((map, key, bucket))
}
