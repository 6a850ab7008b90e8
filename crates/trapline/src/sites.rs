//! Probe specifications to sites in the modules of one process.
//!
//! In: specifications, modules. Out: [`NamedSite`]s, one for each (module, address, kind), with all names
//! that led there as aliases; and a line for each specification that found nothing. The site of an IFUNC is
//! the implementation that runs. It is read from the pointers that the loader filled. Does not: plan or
//! patch.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use trapline_image::{
    Convention, Function, FunctionIndex, FunctionKind, Image, MarkArgument, NoMatch, Pattern, ProbeKind,
    ProbeSpec,
};
use trapline_order::Order as _;
use trapline_plan::Action;
use trapline_record::{FileOffset, Svma};
use trapline_tracee::Process;

use crate::error::nearest;
use crate::filter::Filter;
use crate::modules::{Module, is_short_name};
use crate::report::Refused;
use crate::session_request::{HitAction, LeftOut};
use crate::values::Values;

/// A site that a probe means.
#[derive(Clone, Debug)]
pub(crate) struct NamedSite {
    /// Index into the modules given.
    pub(crate) module: usize,
    pub(crate) at: Svma,
    pub(crate) offset: FileOffset,
    /// As in [`Site::slot`](crate::Site::slot).
    pub(crate) slot: u32,
    pub(crate) function: Option<FunctionIndex>,
    pub(crate) action: Action,
    pub(crate) probe: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) label: String,
    /// Address of the USDT probe's semaphore, which is raised while the site is probed.
    pub(crate) semaphore: Option<Svma>,
    /// Filter that decides which of its hits count.
    pub(crate) filter: Option<Arc<Filter>>,
    /// What the values of its records are.
    pub(crate) values: Values,
    /// If arguments of a USDT probe are read: the filter as requested, before `filter` was rewritten to its
    /// operands.
    pub(crate) asked: Option<Arc<Filter>>,
    /// It is a library's, and is probed because a program imports it.
    pub(crate) is_libcall: bool,
    /// Of a USDT probe: its arguments; of another place inside a function the variables that were asked for.
    pub(crate) arguments: Option<Vec<MarkArgument>>,
}

impl NamedSite {
    /// Whether calls are held or faults delivered there; its hits are not reported.
    pub(crate) const fn is_for_us(&self) -> bool {
        self.action.is_for_us()
    }
    /// Calling convention of its function; C's if it has none.
    pub(crate) fn convention(&self, image: &Image) -> Convention {
        let start = self.function.map(|index| image.function(index).start);
        start.map_or(Convention::C, |start| image.convention_at(start))
    }
}

/// What specifications found.
#[derive(Debug, Default)]
pub(crate) struct NamedSites {
    pub(crate) found: Vec<NamedSite>,
    pub(crate) refused: Vec<Refused>,
    index: HashMap<(usize, u64, u8, u32), usize>,
    /// The slot of the sites that are added next.
    pub(crate) slot: u32,
    /// Limit on a glob: it is followed no further than to one site beyond this number.
    most: Option<usize>,
    left_out: LeftOut,
}

/// A site in a function.
struct Selected {
    index: FunctionIndex,
    /// Bytes from the function's start.
    inside: u64,
    /// Names that led there.
    named: Vec<String>,
    /// File and place, if it was typed as an address or a line.
    typed: Option<String>,
}

/// Why a specification found nothing in one module.
pub(crate) type Miss = NoMatch;

impl LeftOut {
    /// Whether a function of a module is one of them: because it is small, or by its name.
    fn has(&self, bytes: u64, named: &[String], module: &Module) -> (bool, bool) {
        let is_in = |spec: &ProbeSpec| {
            let is_file = |wanted: &String| *wanted == module.called || is_short_name(&module.called, wanted);
            spec.file.as_ref().is_none_or(is_file) && named.iter().any(|name| spec.means(name))
        };
        (bytes < self.least_bytes, self.without.iter().any(is_in))
    }
    /// Refusal of a specification of which nothing is left.
    fn refused(&self, spec: &ProbeSpec, small: u64, others: u64) -> Refused {
        let small = (small > 0)
            .then(|| format!("{small} have less than {} bytes of code (--size-filter)", self.least_bytes));
        let others = (others > 0).then(|| format!("{others} are named by --unpatch"));
        let why: Vec<String> = small.into_iter().chain(others).collect();
        let reason = format!("all functions that it means are left out: {}", why.join(", "));
        Refused { probe: spec.text.clone(), kind: "left-out", reason }
    }
}

impl NamedSites {
    /// No sites yet. A glob that means more than `most` sites is followed to one more than that.
    pub(crate) fn at_most(most: Option<usize>) -> Self {
        Self { most, ..Self::default() }
    }
    /// The same, but for some functions.
    pub(crate) fn without(self, left_out: &LeftOut) -> Self {
        Self { left_out: left_out.clone(), ..self }
    }
    /// Adds the sites that a specification means in one module.
    pub(crate) fn select(
        &mut self,
        process: Option<&Process>,
        modules: &[Module],
        module: usize,
        spec: &ProbeSpec,
        hit_action: HitAction,
    ) -> Result<(), Miss> {
        let one = &modules[module];
        let file = &one.file;
        if spec.kind == ProbeKind::Usdt {
            return self.select_markers(one, module, spec, hit_action);
        }
        let (before, mut small, mut others) = ((self.found.len(), self.refused.len()), 0, 0);
        for &selected in &*file.select(&spec.func, one.basename())? {
            if self.most.is_some_and(|most| self.found.len() > most) {
                break;
            }
            let function = file.image.function(selected.function);
            let named = names(&file.image, function, one.basename());
            match self.left_out.has(function.len, &named, one) {
                (true, _) => {
                    small += 1;
                    continue;
                }
                (_, true) => {
                    others += 1;
                    continue;
                }
                _ => {}
            }
            // This leads back to the probe as it was typed.
            let typed = match &spec.func {
                Pattern::Address(at) => Some(format!("{}:{:#x}", one.called, at.0)),
                Pattern::Line(line) => Some(format!("{}@{line}", one.called)),
                _ => None,
            };
            if function.kind != FunctionKind::Ifunc || process.is_none() {
                let site = Selected { index: selected.function, inside: selected.offset, named, typed };
                self.put(module, one, spec, site, hit_action);
                continue;
            }
            match process.and_then(|process| implementation(process, modules, module, function)) {
                Some(running) => {
                    let site = Selected { index: running, inside: selected.offset, named, typed };
                    self.put(module, one, spec, site, hit_action);
                }
                None => self.refused.push(Refused {
                    probe: probe_text(spec.kind, &one.called, &named[0]),
                    kind: "ifunc-unresolved",
                    reason:
                        "its implementation is chosen when it is first called, and nothing here has called it"
                            .into(),
                }),
            }
        }
        if before == (self.found.len(), self.refused.len()) && small + others > 0 {
            self.refused.push(self.left_out.refused(spec, small, others));
        }
        Ok(())
    }
    /// Adds addresses to labels that several functions share, so each can be probed by it (`FILE:0xADDRESS`).
    /// Functions share a name if they are constructors of a whole object and of a base, versions of a symbol,
    /// or static functions of several sources.
    pub(crate) fn distinguish(&mut self) {
        let mut of: HashMap<(usize, &str), BTreeSet<u64>> = HashMap::new();
        for site in &self.found {
            of.entry((site.module, &site.label)).or_default().insert(site.at.0);
        }
        let shared: Vec<bool> = self
            .found
            .iter()
            .map(|site| of.get(&(site.module, site.label.as_str())).is_some_and(|all| all.len() > 1))
            .collect();
        for (site, _) in self.found.iter_mut().zip(shared).filter(|(_, shared)| *shared) {
            site.label.push_str(&format!(" ({:#x})", site.at.0));
        }
    }
    /// Adds a site in a function of the module `one`, the one with the index `module`.
    fn put(&mut self, module: usize, one: &Module, spec: &ProbeSpec, site: Selected, hit_action: HitAction) {
        let kind = spec.kind;
        let Module { file, is_program, .. } = one;
        let Selected { index, inside, mut named, typed } = site;
        let function = file.image.function(index);
        for name in names(&file.image, function, one.basename()) {
            if !named.contains(&name) {
                named.push(name);
            }
        }
        let at = function.start + inside;
        // A line may begin where a function does; its variables are asked for as at any other instruction.
        let names_variables = !spec.locals.is_empty();
        let is_place = inside > 0 || names_variables;
        let action = hit_action.action(kind == ProbeKind::Return, is_place.then_some(at));
        let Some(offset) = file.image.offset_of(at) else { return };
        let suffix = if inside > 0 { format!("+{inside}") } else { String::new() };
        let texts = named.iter().map(|name| probe_text(kind, &one.called, &format!("{name}{suffix}")));
        let texts = texts.chain(typed.map(|typed| format!("{kind}:{typed}")));
        let arguments = names_variables.then(|| file.locals(at, &spec.locals));
        let mut label = file.image.display_name(function, one.basename()) + &suffix;
        if !is_program && !function.names.is_empty() {
            label = format!("{}:{label}", one.basename());
        }
        self.add(
            texts.collect(),
            NamedSite {
                module,
                at,
                offset,
                slot: self.slot,
                function: Some(index),
                action,
                probe: String::new(),
                aliases: Vec::new(),
                label,
                semaphore: None,
                filter: None,
                values: Values::default(),
                asked: None,
                is_libcall: false,
                arguments,
            },
        );
    }
    fn select_markers(
        &mut self,
        one: &Module,
        module: usize,
        spec: &ProbeSpec,
        hit_action: HitAction,
    ) -> Result<(), Miss> {
        let image = &one.file.image;
        let matches = |provider: &str, name: &str| {
            spec.provider.as_ref().is_none_or(|pattern| pattern.matches(provider)) && spec.func.matches(name)
        };
        let mut any = false;
        for marker in image.usdt().iter().filter(|marker| matches(&marker.provider, &marker.name)) {
            any = true;
            let Some(offset) = image.offset_of(marker.location) else { continue };
            let name = format!("{}:{}", marker.provider, marker.name);
            self.add(
                vec![format!("usdt:{}:{name}", one.called)],
                NamedSite {
                    module,
                    at: marker.location,
                    offset,
                    slot: self.slot,
                    function: image.function_at(marker.location),
                    action: hit_action.at(marker.location),
                    probe: String::new(),
                    aliases: Vec::new(),
                    label: format!("{}:{name}", one.basename()),
                    semaphore: marker.semaphore,
                    filter: None,
                    values: Values::default(),
                    asked: None,
                    is_libcall: false,
                    arguments: Some(image.mark_arguments(marker)),
                },
            );
        }
        if any { Ok(()) } else { Err(marker_miss(image, spec)) }
    }
    /// Adds a site; if it is already there, adds only its names.
    fn add(&mut self, names: Vec<String>, site: NamedSite) {
        let kind = match site.action {
            Action::CountExits | Action::CallExits | Action::Tally { exits: true } => 1,
            _ => 0,
        };
        let next = self.found.len();
        let at = *self.index.entry((site.module, site.at.0, kind, site.slot)).or_insert(next);
        if at == next {
            self.found.push(site);
        }
        let site = &mut self.found[at];
        for name in names {
            if site.probe.is_empty() {
                site.probe = name;
            } else if site.probe != name && !site.aliases.contains(&name) {
                site.aliases.push(name);
            }
        }
        if site.semaphore.is_some()
            && !matches!(site.action, Action::CountAt(_) | Action::RecordAt(..) | Action::RecordMark(..))
        {
            site.semaphore = None;
        }
    }
}

fn marker_miss(image: &Image, spec: &ProbeSpec) -> Miss {
    let mut near: Vec<String> =
        image.usdt().iter().map(|one| format!("{}:{}", one.provider, one.name)).collect();
    near.order();
    near.dedup();
    let wanted = spec.func.to_string();
    near.order_by_key(|name| !name.contains(&wanted));
    near.truncate(3);
    NoMatch { nearest: near, no_functions: image.usdt().is_empty(), ..NoMatch::default() }
}

fn names(image: &Image, function: &Function, basename: &str) -> Vec<String> {
    let mut names: Vec<String> = image.names(function).map(|name| name.raw.to_owned()).collect();
    names.dedup();
    if names.is_empty() {
        names.push(image.display_name(function, basename));
    }
    names
}

fn probe_text(kind: ProbeKind, path: &str, name: &str) -> String {
    format!("{kind}:{path}:{name}")
}

/// The function that an IFUNC's resolver chose, as a pointer in some module shows.
fn implementation(
    process: &Process,
    modules: &[Module],
    owner: usize,
    resolver: &Function,
) -> Option<FunctionIndex> {
    let own_module = &modules[owner];
    let image = &own_module.file.image;
    let raw: Vec<&str> = image.names(resolver).map(|name| name.raw).collect();
    // The owner's own pointers come first: one elsewhere may be bound to another library of the same name.
    let own_first =
        std::iter::once(own_module).chain(modules.iter().filter(|m| !Arc::ptr_eq(&m.file, &own_module.file)));
    for module in own_first {
        for name in &raw {
            for word in module.file.image.pointer_words(name, resolver.start) {
                let Ok(value) = process.read_u64(module.bias.live(word)) else { continue };
                let svma = own_module.bias.stated(trapline_record::RemoteAddr(value));
                let found = image.function_at(svma).filter(|&index| {
                    let function = image.function(index);
                    function.start == svma && function.kind == FunctionKind::Plain && svma != resolver.start
                });
                if found.is_some() {
                    return found;
                }
            }
        }
    }
    None
}

/// Line about a specification that found nothing.
pub(crate) fn miss_text(spec: &ProbeSpec, files: &[String], misses: &[Miss]) -> String {
    let what = match (spec.kind, &spec.func) {
        (ProbeKind::Usdt, _) => "marker",
        (_, Pattern::Line(_)) => "code of",
        _ => "function",
    };
    let name = match (&spec.provider, &spec.func) {
        (Some(provider), func) => format!("{provider}:{func}"),
        (None, func) => func.to_string(),
    };
    let searched = match files {
        [] => "any file".to_owned(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {} libraries", rest.len()),
    };
    if let Some(length) = misses.iter().find_map(|miss| miss.beyond) {
        return format!("{name} in {searched}: the function is only {length} bytes long");
    }
    let inlined: u32 = misses.iter().map(|miss| miss.inlined).sum();
    let why = if misses.iter().any(|miss| miss.no_lines) {
        ": it has no debug information; compile it with -g, or install its debug symbols".to_owned()
    } else if inlined > 0 {
        format!(": all {inlined} calls of it were inlined; probe a function that calls it")
    } else if misses.iter().any(|miss| miss.imported) && spec.func.is_wild() {
        ": what is called so is only imported there; name the library that defines it, or install the file's debug symbols".to_owned()
    } else if misses.iter().any(|miss| miss.imported) {
        ": it is only called from there through the PLT; name the library that defines it".to_owned()
    } else if !misses.is_empty() && misses.iter().all(|miss| miss.no_functions) {
        match spec.kind {
            ProbeKind::Usdt => ": it has no USDT markers".to_owned(),
            _ => ": it has no symbols, no unwind tables and no debug file; install its debug symbols"
                .to_owned(),
        }
    } else {
        let mut near: Vec<String> =
            misses.iter().flat_map(|miss| miss.nearest.iter().take(3).cloned()).collect();
        near.truncate(3);
        match (near.is_empty(), &spec.func) {
            (true, Pattern::Exact(_)) => "; try trapline list with a glob such as '*'".to_owned(),
            _ => nearest(&near),
        }
    };
    format!("no {what} {name} in {searched}{why}")
}
