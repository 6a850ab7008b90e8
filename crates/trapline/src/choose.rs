//! Finds the places in modules that the specifications mean.
//!
//! In: modules that are newly mapped. Out: places to probe, and a line for each specification that found
//! nothing. A specification without a file means the first module that has what it names; the program comes
//! first. Does not: patch.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use trapline_image::ProbeSpec;
use trapline_plan::Action;
use trapline_tracee::{FileId, Mapping, Process};

use crate::files::Files;
use crate::filter::Filter;
use crate::maps::RunPlace;
use crate::modules::{Mapped, MappedPart, Module};
use crate::place_values::{fits, values};
use crate::report::Refused;
use crate::session_request::SessionRequest;
use crate::sites::{Miss, NamedSite, NamedSites, miss_text};
use crate::threads::{are_renumbered, own_number};

/// Gives a program that hits of a place run the numbers of its names.
fn name(requested: &SessionRequest, module: &Module, place: &mut NamedSite) {
    let filter = place.filter.as_ref().filter(|filter| filter.runs_program());
    let Some((filter, namer)) = filter.zip(requested.namer.as_ref()) else { return };
    let (file, probe, label) = (&module.file.path, &place.probe, &place.label);
    let place_of = RunPlace { slot: place.slot, file, offset: place.offset.0, probe, label };
    let numbers = namer.numbers(place_of);
    place.filter = Some(Arc::new(Filter::clone(filter).with_names(numbers)));
}

/// A symbol's name without its version.
fn bare(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// For each specification that has found something, by index, the file in which it last did.
pub(crate) type Matched = HashMap<usize, FileId>;

/// What was chosen in new modules.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// The modules that were opened, by which places are known.
    pub(crate) modules: Vec<Module>,
    pub(crate) places: NamedSites,
    /// Lines about specifications that found nothing.
    pub(crate) misses: Vec<String>,
    /// Files that were replaced on disk.
    pub(crate) notices: Vec<String>,
}

/// Places that the specifications mean in new modules. `name` is the process', for people; `maps` are its mappings.
/// What is found is added to `matched`.
pub(crate) fn choose(
    process: &Process,
    name: &str,
    files: &mut Files,
    requested: &SessionRequest,
    (maps, fresh): (&[Mapping], &[Mapped]),
    matched: &mut Matched,
) -> Chosen {
    let places = NamedSites::at_most(requested.most).without(&requested.left_out);
    let mut search = Search {
        process,
        requested,
        fresh,
        is_renumbered: are_renumbered(process.pid()),
        opened: vec![None; fresh.len()],
        unknown: Vec::new(),
        chosen: Chosen { places, ..Chosen::default() },
    };
    for (nth, spec) in requested.specs.iter().enumerate() {
        let Missed { missed, unread } = search.find(nth, spec, files, matched);
        if matched.contains_key(&nth) {
            // The program comes first, so a library's function may be another than the one that is meant.
            let program = unread.into_iter().find(|one| one.is_program);
            let line =
                |one: Unread| format!("{} was looked for in libraries only: {}", spec.text, one.reason);
            search.chosen.notices.extend(program.map(line));
            continue;
        }
        search.chosen.misses.push(match (&spec.file, missed.is_empty() && unread.is_empty()) {
            (Some(file), true) => format!("no file {file} is mapped by {name} ({}) so far", process.pid()),
            _ => {
                let (files, why): (Vec<String>, Vec<Miss>) = missed.into_iter().unzip();
                let more = unread_text(&unread);
                miss_text(spec, &files, &why) + &more
            }
        });
    }
    if requested.libcalls {
        search.libcalls(files);
    }
    search.finish(maps)
}

/// Functions of libraries that never come back to their caller, though the program goes on. What is called behind them is not
/// within them.
const LEAVING: [&str; 10] = [
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "__cxa_throw",
    "__cxa_rethrow",
    "_Unwind_Resume",
    "_Unwind_RaiseException",
    "_Unwind_ForcedUnwind",
    "pthread_exit",
];

/// Where a specification found nothing.
#[derive(Default)]
struct Missed {
    /// Files that have none of it, and why.
    missed: Vec<(String, Miss)>,
    /// Files that could not be looked at.
    unread: Vec<Unread>,
}

/// A file that could not be looked at.
struct Unread {
    is_program: bool,
    reason: String,
}

/// Which files were not looked at, behind a line about what was found nowhere.
fn unread_text(unread: &[Unread]) -> String {
    match unread {
        [] => String::new(),
        [one] => format!("; not looked at: {}", one.reason),
        [first, rest @ ..] => format!("; not looked at: {}, and {} more files", first.reason, rest.len()),
    }
}

/// A search under way.
struct Search<'a> {
    process: &'a Process,
    requested: &'a SessionRequest,
    fresh: &'a [Mapped],
    /// The process' threads see other numbers than the tracer.
    is_renumbered: bool,
    /// Index of each opened module in `chosen`.
    opened: Vec<Option<usize>>,
    /// Sites with values that cannot be read. They stay in the list until all are found, since places are
    /// known by index.
    unknown: Vec<usize>,
    chosen: Chosen,
}

impl Search<'_> {
    /// Adds the places of one specification. Returns where it found nothing.
    fn find(&mut self, nth: usize, spec: &ProbeSpec, files: &mut Files, matched: &mut Matched) -> Missed {
        let mut found = Missed::default();
        for (index, one) in self.fresh.iter().enumerate() {
            // Without a file, the first module that has it is meant, wherever that is mapped.
            if spec.file.is_none() && matched.get(&nth).is_some_and(|file| *file != one.id) {
                continue;
            }
            let called = match spec.file.as_deref() {
                Some(name) => one.path_as(self.process, name),
                None => Some(one.usual_path(self.process)),
            };
            let Some(called) = called else { continue };
            let module = match self.open(index, files) {
                Ok(module) => module,
                Err(reason) => {
                    if spec.file.is_some() {
                        let probe = spec.text.clone();
                        self.chosen.places.refused.push(Refused { probe, kind: "file-unreadable", reason });
                        matched.insert(nth, one.id);
                    } else {
                        found.unread.push(Unread { is_program: one.is_program, reason });
                    }
                    continue;
                }
            };
            self.chosen.modules[module].called = called;
            match self.select(nth, spec, module) {
                Ok(()) => drop(matched.insert(nth, one.id)),
                Err(miss) => found.missed.push((self.chosen.modules[module].called.clone(), miss)),
            }
        }
        found
    }
    /// Adds the functions of libraries that new programs import, each from the first library that has it: calls through the
    /// program's PLT lead there.
    fn libcalls(&mut self, files: &mut Files) {
        let programs: Vec<usize> =
            (0..self.fresh.len()).filter(|index| self.fresh[*index].is_program).collect();
        for program in programs {
            let Ok(module) = self.open(program, files) else { continue };
            let image = Arc::clone(&self.chosen.modules[module].file);
            let names: BTreeSet<&str> = image.image.imported().map(|name| bare(name.raw)).collect();
            let libraries = (0..self.fresh.len()).filter(|index| !self.fresh[*index].is_program);
            let libraries: Vec<usize> = libraries.collect();
            for name in names {
                // A name of the program's own file may be anything.
                let Ok(spec) = name.parse::<ProbeSpec>() else { continue };
                for &index in &libraries {
                    let Ok(module) = self.open(index, files) else { continue };
                    let Chosen { places, .. } = &self.chosen;
                    let (known, refused) = (places.found.len(), places.refused.len());
                    let is_found = self.select(usize::MAX, &spec, module).is_ok();
                    let places = &mut self.chosen.places;
                    // What is left out needs no word of its own.
                    let kept = places.refused.split_off(refused);
                    places.refused.extend(kept.into_iter().filter(|one| one.kind != "left-out"));
                    let comes_back = !LEAVING.contains(&name);
                    for place in &mut places.found[known..] {
                        place.is_libcall = comes_back;
                        // An implementation that was chosen at the start has another name.
                        place.label = name.to_owned();
                        let called = format!("uprobe:{}:{name}", self.chosen.modules[module].called);
                        if place.probe != called && !place.aliases.contains(&called) {
                            place.aliases.push(called);
                        }
                    }
                    if is_found {
                        break;
                    }
                }
            }
        }
    }
    /// Opens a module, once. Returns its index.
    fn open(&mut self, index: usize, files: &mut Files) -> Result<usize, String> {
        if let Some(module) = self.opened[index] {
            return Ok(module);
        }
        let module = self.fresh[index].open(self.process, files)?;
        if module.file.replaced {
            self.chosen.notices.push(format!(
                "{} was replaced on disk since process {} mapped it; the mapped file is probed",
                module.file.path,
                self.process.pid()
            ));
        }
        self.chosen.modules.push(module);
        self.opened[index] = Some(self.chosen.modules.len() - 1);
        Ok(self.chosen.modules.len() - 1)
    }
    /// Adds the places of a specification in one module, with their filters and values.
    fn select(&mut self, nth: usize, spec: &ProbeSpec, module: usize) -> Result<(), Miss> {
        let Self { process, requested, is_renumbered, .. } = *self;
        // Stubs compare thread numbers as the threads themselves see them.
        let own = |tid: u64| {
            let own = u32::try_from(tid).ok().and_then(|tid| own_number(process.pid(), tid));
            own.unwrap_or(u32::MAX).into()
        };
        let Chosen { modules, places, notices, .. } = &mut self.chosen;
        let known = places.found.len();
        places.slot = requested.slot_of(nth);
        let selected = places.select(Some(process), modules, module, spec, requested.action_of(nth));
        places.found[known..].iter_mut().for_each(|place| {
            let filter = requested.filters.get(nth);
            let renumbered =
                filter.filter(|_| is_renumbered).map(|filter| Arc::new(filter.with_threads(&own)));
            place.filter = renumbered.or_else(|| filter.cloned());
            name(requested, &modules[module], place);
            let is_compact = requested.options.compact;
            if let Action::Record { values, valued, texts, ended, floats, fields, .. } = &mut place.action {
                if is_compact {
                    let asked = requested.values.get(nth).copied().unwrap_or_default();
                    (*values, *valued) = (asked.arguments.min(6), asked.returned);
                }
                let of = |bits: &[u16]| bits.get(nth).copied().unwrap_or(0) as u8 & 0x3f;
                (*texts, *ended) = (of(&requested.texts), of(&requested.ended));
                *fields = place.filter.as_ref().map_or(0, |filter| filter.field_words());
                *floats = requested.floats.get(nth).copied().unwrap_or_default();
            }
        });
        for (index, place) in places.found.iter_mut().enumerate().skip(known) {
            let read = fits(place, requested.options.compact)
                .and_then(|()| values(&modules[module].file.image, requested, nth, place));
            match read {
                Ok(unknown) => {
                    for (argument, why) in unknown {
                        let local = requested.specs[nth].locals.get(argument).cloned();
                        let name = local.unwrap_or_else(|| format!("arg{argument}"));
                        let notice = format!("{name} of {} is not known: {why}", place.probe);
                        if !notices.contains(&notice) {
                            notices.push(notice);
                        }
                    }
                }
                Err((kind, reason)) => {
                    let (probe, reason) = (place.probe.clone(), reason.to_owned());
                    places.refused.push(Refused { probe, kind, reason });
                    self.unknown.push(index);
                }
            }
        }
        selected
    }
    fn finish(mut self, maps: &[Mapping]) -> Chosen {
        let Chosen { modules, places, .. } = &mut self.chosen;
        self.unknown.into_iter().rev().for_each(|index| drop(places.found.remove(index)));
        let parts: Vec<MappedPart<'_>> = modules.iter().map(|module| MappedPart::of(module, maps)).collect();
        places.found.retain(|place| !parts[place.module].lacks(place.at, place.offset));
        places.distinguish();
        self.chosen
    }
}
