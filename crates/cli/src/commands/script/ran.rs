//! Blocks that hits run in the target: their probes, and what they left in maps.
//!
//! In: a program and what its attach points mean; contents of maps. Out: probes of the session; rows of the program's
//! maps. Does not: attach.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use trapline::filter::Filter;
use trapline::listing::Listed;
use trapline::maps::hit::{HitProgram, NAMES};
use trapline::maps::{KeyPart, MapContents, MapKind, MapRow, MapTable, Namer, RunPlace};
use trapline::report::Refused;
use trapline::stacks::HitStack;
use trapline::{ProbeAction, Site};
use trapline_script::native::{Beside, Fate, KeyValue, KeyWord, Native, Natives, Processes};
use trapline_script::{Amount, Block, Lost, Machine, Probe, Program, Totals};

use super::found::Found;
use super::frames::Frames;
use super::host::UNNAMED;
use super::native::NativeScript;
use super::places::{name, real, spec, whole};
use super::said::{self, Line};

/// The blocks that hits run in the target.
#[derive(Debug)]
pub(super) struct Ran {
    natives: Natives,
    script: NativeScript,
    probes: Vec<Probed>,
    names: Arc<Names>,
}

/// A probe of the session that runs the blocks of one attach point.
#[derive(Debug)]
struct Probed {
    spec: String,
    at_return: bool,
    blocks: Vec<usize>,
    places: PlaceNames,
    /// How many places each probe has, as the session names it. A USDT probe may have several.
    named: HashMap<String, usize>,
}

/// The names of function, probe and sort, by file and offset.
type PlaceNames = HashMap<(PathBuf, u64), [String; NAMES]>;

/// The names of places, and their numbers.
#[derive(Debug, Default)]
struct Names {
    /// How many probes of the session come first.
    before: usize,
    /// By probe.
    places: Vec<PlaceNames>,
    /// By number.
    known: Mutex<Vec<String>>,
}

impl Names {
    /// The numbers of a place's names: function, probe, sort. A name that is new gets the next one.
    fn numbers(&self, place: RunPlace<'_>) -> [u32; NAMES] {
        let places = (place.slot as usize).checked_sub(self.before + 1).and_then(|nth| self.places.get(nth));
        let names = places.and_then(|places| places.get(&(real(place.file), place.offset)));
        // The site of an IFUNC is the function that was chosen.
        let other = [place.label, place.probe, ""];
        let names = names.map_or(other, |names| names.each_ref().map(String::as_str));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        names.map(|name| {
            let nth = known.iter().position(|one| one == name).unwrap_or(known.len());
            if nth == known.len() {
                known.push(name.to_owned());
            }
            nth as u32
        })
    }
    /// The name of a number.
    fn name(&self, number: u64) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(usize::try_from(number).ok()?).cloned()
    }
}

impl Ran {
    /// Those blocks that the target can run; none if all are to be interpreted.
    pub(super) fn of(program: &Program, found: &Found, (interpret, processes): (bool, Processes)) -> Self {
        let of = |says| Natives::of(program, &beside(program, found), (processes, says));
        let fits = |natives: &Natives| program.fits_records(|block| why_read(natives, block)).is_ok();
        let mut natives = match interpret {
            true => Natives::none(program, "--interpret"),
            false => of(false),
        };
        if !interpret && !fits(&natives) {
            natives = Some(of(true)).filter(fits).unwrap_or(natives);
        }
        let mut ran = Self::with(program, found, natives.clone(), true);
        // A block's code may not fit into a stub, on some processor.
        if ran.programs(program).is_err() {
            ran = Self::with(program, found, natives.clone(), false);
        }
        if let Err(why) = ran.programs(program) {
            natives = Natives::none(program, &why);
            ran = Self::with(program, found, natives, false);
        }
        ran
    }
    fn with(program: &Program, found: &Found, natives: Natives, beyond: bool) -> Self {
        let mut probes: Vec<Probed> = Vec::new();
        for block in (0..program.blocks.len()).filter(|block| natives.runs(*block)) {
            for probe in found.probes(block) {
                let Some((spec, at_return)) = spec(probe) else { continue };
                match probes.iter_mut().find(|probed| probed.spec == spec && probed.at_return == at_return) {
                    Some(probed) if probed.blocks.contains(&block) => {}
                    Some(probed) => probed.blocks.push(block),
                    None => probes.push(Probed::of(found, probe, spec, (block, at_return))),
                }
            }
        }
        probes.retain(|probed| !probed.places.is_empty());
        let script = NativeScript::new(natives.native.clone(), program, beyond);
        Self { natives, script, probes, names: Arc::default() }
    }
    /// Whether the target runs a block.
    pub(super) fn runs(&self, block: usize) -> bool {
        self.natives.runs(block)
    }
    /// Why a block is interpreted, if it is.
    pub(super) fn why_read(&self, block: usize) -> Option<&str> {
        why_read(&self.natives, block)
    }
    /// What the blocks are to the target.
    pub(super) const fn native(&self) -> &Native {
        &self.script.native
    }
    /// Whether a block of the tracer names a map that the target changes.
    pub(super) fn is_awaited(&self, block: usize) -> bool {
        self.natives.awaited.get(block).copied().unwrap_or(false)
    }
    /// Whether there are any.
    pub(super) const fn is_empty(&self) -> bool {
        self.probes.is_empty()
    }
    /// How many probes there are, without those that were refused at all of their places.
    pub(super) fn count(&self, refused: &[Refused]) -> usize {
        let refused = |probed: &str| refused.iter().filter(|one| whole(&one.probe) == probed).count();
        let named = self.probes.iter().flat_map(|probed| &probed.named);
        named.filter(|(probed, places)| **places > refused(probed)).count()
    }
    /// The probes of the session, to come behind all others.
    pub(super) fn specs(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().map(|probed| probed.spec.as_str())
    }
    /// The maps that their programs write.
    pub(super) fn tables(&self) -> Vec<MapTable> {
        self.script.tables.clone()
    }
    fn programs(&self, program: &Program) -> Result<Vec<HitProgram>, String> {
        self.probes.iter().map(|probed| self.script.program(program, &probed.blocks)).collect()
    }
    /// Adds the filters of these probes behind those of the others. Returns the actions of all.
    pub(super) fn add_to(&mut self, program: &Program, filters: &mut Vec<Filter>) -> Vec<ProbeAction> {
        let before = filters.len();
        let places = self.probes.iter().map(|probed| probed.places.clone()).collect();
        self.names = Arc::new(Names { before, places, known: Mutex::default() });
        // That they have code was seen before.
        let programs = self.programs(program).unwrap_or_default();
        filters.extend(programs.into_iter().map(|program| Filter::default().runs(program)));
        let mut actions = vec![ProbeAction::Record; before];
        actions.extend(self.probes.iter().map(|probed| ProbeAction::Run { exits: probed.at_return }));
        actions
    }
    /// Gives the names of places their numbers.
    pub(super) fn namer(&self) -> Namer {
        let names = Arc::clone(&self.names);
        Namer::new(move |place| names.numbers(place))
    }
    /// Where each block of programs runs, a line each.
    pub(super) fn lines(&self, program: &Program) -> String {
        let line = |(fate, block): (&Fate, &Block)| {
            let probe = block.probes.first()?;
            let more = if block.probes.len() > 1 { ", …" } else { "" };
            match fate {
                Fate::Own => None,
                Fate::Native => Some(format!("Run in the target: {probe}{more}\n")),
                Fate::Read(why) => Some(format!("Interpreted: {probe}{more}: {why}\n")),
            }
        };
        self.natives.fates.iter().zip(&program.blocks).filter_map(line).collect()
    }
    /// Gives a program's maps what hits added up and what threads assigned. Returns what hits said.
    pub(super) fn settle(
        &self,
        machine: &mut Machine,
        contents: &[MapContents],
        frames: &Frames,
    ) -> Vec<Line> {
        let known = Known {
            name: &|number| self.names.name(number),
            stack: &|pid, (site, stack)| {
                let at_return = self.probed(site).is_some_and(|probed| probed.at_return);
                // As in bpftrace, the first frame is the return address then.
                frames.numbers(pid, stack).split_off(usize::from(at_return))
            },
        };
        contents_into(&self.script, machine, contents, &known);
        said::said(&self.script, contents, &known)
    }
    /// How much of what hits said is lost.
    pub(super) fn lost(&self, contents: &[MapContents]) -> u64 {
        said::lost(&self.script, contents)
    }
    /// The probe of a site.
    fn probed(&self, site: &Site) -> Option<&Probed> {
        self.probes.get((site.slot as usize).checked_sub(self.names.before + 1)?)
    }
}

/// Why a block is interpreted, if it is.
fn why_read(natives: &Natives, block: usize) -> Option<&str> {
    match natives.fates.get(block)? {
        Fate::Read(why) => Some(why),
        Fate::Own | Fate::Native => None,
    }
}

impl Probed {
    fn of(found: &Found, probe: &Probe, spec: String, (block, at_return): (usize, bool)) -> Self {
        let names = |one: &Listed| [one.function.clone(), name(probe, one), probe.sort().to_owned()];
        let listed = found.listed(&spec).iter();
        let places = listed.map(|one| ((real(&one.file), one.offset), names(one))).collect();
        let mut named: HashMap<String, usize> = HashMap::new();
        found.listed(&spec).iter().for_each(|one| *named.entry(whole(&one.probe)).or_default() += 1);
        Self { spec, at_return, blocks: vec![block], places, named }
    }
}

/// The numbers of a stack's frames.
type StackNumbers<'a> = dyn Fn(u32, (&Site, &HitStack)) -> Vec<u64> + 'a;

/// What names and stacks in keys are to a block.
pub(super) struct Known<'a> {
    /// The name of a number.
    pub(super) name: &'a dyn Fn(u64) -> Option<String>,
    /// The numbers of the frames of a process' stack at a site.
    pub(super) stack: &'a StackNumbers<'a>,
}

/// Gives a program's maps what is in those of the target.
pub(super) fn contents_into(
    script: &NativeScript,
    machine: &mut Machine,
    contents: &[MapContents],
    known: &Known<'_>,
) {
    let mut totals = Totals::default();
    for one in contents {
        for row in one.rows.iter().filter(|row| script.tables[row.map].kind != MapKind::Assigned) {
            let Some((map, key, bucket)) = key(script, row, known) else { continue };
            let [hits, sum] = [0, 1].map(|word| match row.value.get(word) {
                Some(KeyPart::Number(number)) => *number,
                _ => 0,
            });
            let buckets = bucket.map(|bucket| BTreeMap::from([(bucket, hits)])).unwrap_or_default();
            let signed = !matches!(script.tables[row.map].kind, MapKind::Extreme { signed: false, .. });
            let value = if signed { sum.cast_signed().into() } else { i128::from(sum) };
            let amount = Amount { hits, sum: value, buckets, extremes: Some((value, value)) };
            totals.add_key(machine.program(), map, &key, &amount);
        }
        for (table, missed) in one.missed.iter().enumerate() {
            let lost = Lost { full: missed.full, met: missed.met + missed.unfinished };
            if script.tables[table].kind != MapKind::Said {
                totals.lose_in(script.maps[table], lost);
            }
        }
    }
    machine.settle(totals);
    for (table, map) in script.maps.iter().enumerate() {
        // Rows of the map beyond come behind: of entries with one key the first counts.
        let is_first = table == 0 || script.maps[table - 1] != *map;
        if script.tables[table].kind == MapKind::Assigned && is_first {
            let of = |nth: usize| contents.iter().flat_map(|one| &one.rows).filter(move |row| row.map == nth);
            let beyond = (script.maps.get(table + 1) == Some(map)).then_some(table + 1);
            let rows = of(table).chain(beyond.into_iter().flat_map(of));
            let entry = |row: &MapRow| Some((key(script, row, known)?.1, value(script, row, known)?));
            machine.replace(*map, rows.filter_map(entry));
        }
    }
}

/// Which of the program's maps a row is of, its key, and a histogram's bucket.
fn key(
    script: &NativeScript,
    row: &MapRow,
    known: &Known<'_>,
) -> Option<(usize, Vec<KeyValue>, Option<u64>)> {
    let map = script.maps[row.map];
    let are = &script.native.maps[map].as_ref()?.keys;
    let (key, bucket) = parts(script, (are, &row.key), row.pid, known)?;
    Some((map, key, bucket))
}

/// A row's value.
fn value(script: &NativeScript, row: &MapRow, known: &Known<'_>) -> Option<Vec<KeyValue>> {
    let are = &script.native.maps[script.maps[row.map]].as_ref()?.values;
    Some(parts(script, (are, &row.value), row.pid, known)?.0)
}

/// The parts of a key or a value of a process, and a histogram's bucket. `are`: what they are.
pub(super) fn parts(
    script: &NativeScript,
    (are, words): (&[KeyWord], &[KeyPart]),
    pid: u32,
    known: &Known<'_>,
) -> Option<(Vec<KeyValue>, Option<u64>)> {
    let (mut all, mut bucket, mut words) = (Vec::new(), None, words.iter());
    for part in are {
        all.push(match (words.next()?, part) {
            (KeyPart::Number(number), KeyWord::Bucket) => {
                bucket = Some(*number);
                continue;
            }
            (KeyPart::Number(number), KeyWord::Text) => {
                let text = script.native.texts.get(usize::try_from(*number).ok()?)?;
                KeyValue::Text(text.to_vec())
            }
            (KeyPart::Number(number), KeyWord::Func | KeyWord::Probe | KeyWord::Sort) => {
                KeyValue::Text((known.name)(*number)?.into_bytes())
            }
            (KeyPart::Number(number), _) => KeyValue::Int(number.cast_signed()),
            (KeyPart::Stack(stack), part) => {
                // One that is not known has no frames.
                let mut frames =
                    stack.as_ref().map_or_else(Vec::new, |(site, stack)| (known.stack)(pid, (site, stack)));
                let (most, mode) =
                    if let KeyWord::Stack(most, mode) = part { (*most, *mode) } else { Default::default() };
                frames.truncate(most.into());
                KeyValue::Stack(frames, mode)
            }
            (KeyPart::Text(text), KeyWord::ReadBytes) => KeyValue::Bytes(text.to_vec()),
            (KeyPart::Text(text), _) => KeyValue::Text(text.to_vec()),
            (KeyPart::Thread(number) | KeyPart::Process(number), _) => KeyValue::Int((*number).into()),
            (KeyPart::Name(name), _) => {
                KeyValue::Text(name.as_deref().unwrap_or(UNNAMED).as_bytes().to_vec())
            }
        });
    }
    Some((all, bucket))
}

/// What else is at the places of each block.
fn beside(program: &Program, found: &Found) -> Vec<Beside> {
    let mut all = vec![Beside::default(); program.blocks.len()];
    /// A block, its probe of the session, and whether the return is meant.
    type Here = (usize, String, bool);
    let mut at: HashMap<(&str, u64), Vec<Here>> = HashMap::new();
    for (index, beside) in all.iter_mut().enumerate() {
        for (spec, at_return) in found.probes(index).iter().filter_map(spec) {
            let function = spec.rsplit(':').next().unwrap_or_default();
            beside.inside |= spec.starts_with("uprobe:")
                && (function.contains('+') || function.starts_with(|letter: char| letter.is_ascii_digit()));
            for one in found.listed(&spec) {
                at.entry((&one.file, one.offset)).or_default().push((index, spec.clone(), at_return));
            }
        }
    }
    for here in at.values() {
        for (nth, (block, spec, at_return)) in here.iter().enumerate() {
            for (_, (other, by, end)) in here.iter().enumerate().filter(|(other, _)| *other != nth) {
                all[*block].others.insert(*other);
                all[*block].overlaps |= end == at_return && by != spec;
            }
        }
    }
    all
}
