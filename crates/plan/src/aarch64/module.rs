//! A module's plan on arm64: one word for each site, and a stub that it leads to.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`], as on x86-64, so that the code which writes it need not know for
//! which processor it is. Invariants: PLAN-3, PLAN-4. What is not implemented here yet is refused by name
//! ([`Refusal::NotHere`]). Counting, aggregating, timing and recording are implemented; calling consumers is
//! not. Where the code lies: `lay`.
//!
//! # How a site is made
//!
//! 1. The word. At an entry it is the first one behind the landing pads, which stay, since a branch may land
//!    there. For `func+off` it is the word there. For returns it is each word by which the function returns
//!    ([`exits`]). For durations, and for records with returns, it is the entry and each word that leaves the
//!    function, by jumps to others too ([`ways_out`]).
//! 2. The region: one region of code for the module, in a gap that a `b` reaches from every requested word,
//!    and from which a `b` reaches back (128 MiB). If there is no such gap, the region lies anywhere, and
//!    each word has an island within its reach (`island`), in as few pages as serve all. A word that has not
//!    even one page near it is refused. Data may lie anywhere: stubs hold its address.
//! 3. The stub. It does its action (counts, by thread or not, aggregates, or times; a filter decides before
//!    that) and what the word did, and jumps back. If a word has several actions, the stub of each but the
//!    last leads to the next one's.
//!
//! A patch is one aligned word, so it never crosses a line, and no thread can stand inside it: there are no
//! guards, and nothing traps.
//!
//! x16 and x17 are not taken to be free, even at an entry, which may be the head of a loop: stubs push them.

use trapline_image::{FunctionIndex, Image};
use trapline_record::Svma;
use trapline_record::ring::Kind;

use super::action::{Record, SiteAction, loads, nodes};
use super::exits::{begins_elsewhere, exits, is_looped, landings, ways_out};
use super::go::{copies, is_go, is_goroutines, reads_g};
use super::lay::lay;
use super::patch::entry_index;
use super::return_address::may_arm_behind;
use super::site::{PatchedSite, Sites, add};
use super::supported::{check, may_fault, readable};
use crate::input::ModuleInput;
use crate::machine::ExitKind;
use crate::plan::{ModulePlan, PatchRole, Refused};
use crate::refusal::{CodeBytes, PlanError, Refusal};
use crate::request::{Action, ActionRequest, Floats};

/// How far around an instruction outside all functions exclusive sequences are looked for, in bytes.
const AROUND: u64 = 128;

/// Plans all requests for one module.
///
/// # Errors
/// [`PlanError`] if nothing at all can be planned; a request that fails alone is in [`ModulePlan::refused`].
pub(crate) fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    let mut sites = Sites::new();
    let (mut refused, mut slotted) = (Vec::new(), Vec::new());
    let or_trampolines =
        input.latency.is_some_and(|latency| latency.or_trampolines && latency.trampolines.is_some());
    for (index, request) in (0..).zip(input.requests) {
        let timed = request.action == Action::Latency && or_trampolines;
        let instead = || words_of(input, &ActionRequest { action: Action::LatencyByTrampoline, ..*request });
        let one = |why| Refused { probe: request.probe, request: index, why };
        match words_of(input, request) {
            Ok(found) => {
                let tail =
                    found.iter().find(|(_, action)| timed && action.is_tail()).map(|(site, _)| site.at());
                let slot = tail.and_then(|at| Some((at, instead().ok()?)));
                if let Some((at, _)) = slot {
                    let at = CodeBytes::new(at, input.image.text(at, 4).unwrap_or(&[]));
                    slotted.push(one(Refusal::TailCall { at }));
                }
                add(&mut sites, index, slot.map_or(found, |(_, slot)| slot));
            }
            Err(why) if timed && why.is_of_exits() => match instead() {
                Ok(found) => {
                    add(&mut sites, index, found);
                    slotted.push(one(why));
                }
                Err(_) => refused.push(one(why)),
            },
            Err(why) => refused.push(one(why)),
        }
    }
    let mut plan = ModulePlan { refused, slotted, ..ModulePlan::default() };
    while let Err((request, why)) = lay(input, &sites, &mut plan)? {
        // The request is refused as a whole, and the others are laid out again.
        let probe = input.requests.get(request as usize).map_or(0, |request| request.probe);
        plan.refused.push(Refused { probe, request, why });
        sites.retain(|_, site| {
            site.actions.retain(|one| one.0 != request);
            !site.actions.is_empty()
        });
    }
    plan.refused.sort_by_key(|refused| refused.request);
    let actions = sites.values().flat_map(|site| &site.actions);
    plan.tails = actions.filter(|(_, action)| action.is_tail()).map(|&(request, _)| request).collect();
    for site in sites.values() {
        let first = site.actions[0].0;
        let others = site.actions[1..].iter().map(|other| other.0).filter(|&other| other != first);
        plan.shares.extend(others.map(|other| (first, other)));
    }
    for patch in &plan.patches {
        plan.stats.sites[patch.tactic as usize] += 1;
    }
    plan.stats.refused = plan.refused.len() as u32;
    Ok(plan)
}

/// The words that a request needs, each with its action.
fn words_of(
    input: &ModuleInput<'_>,
    request: &ActionRequest,
) -> Result<Vec<(PatchedSite, SiteAction)>, Refusal> {
    let image = input.image;
    let at = match (request.action, request.function) {
        (Action::CountAt(at) | Action::RecordAt(at, _) | Action::RecordMark(at, _), _) => at,
        (_, Some(function)) => image.function(function).start,
        (_, None) => return Err(Refusal::Incomplete { at: Svma(0) }),
    };
    check(input, request, at)?;
    let (start, words) = code(image, request.function, at).ok_or(Refusal::NotInFile { at })?;
    let one =
        |index: usize, role| PatchedSite { words: words.clone(), start, index, role, actions: Vec::new() };
    let count = counting(input, request.probe);
    let waits = input.filter(request.probe).is_some_and(|filter| filter.late.is_some());
    let asks = waits || copies(request.action, input.filter(request.probe));
    let goroutine = input.traits.go && is_goroutines(image, request, asks, (&words, at))?;
    let decided = input.filter(request.probe).filter(|filter| !filter.passes_all()).map(nodes);
    let found = match request.action {
        Action::CountEntry => vec![(one(entry_index(&words), PatchRole::Entry), count)],
        Action::CountAt(at) | Action::RecordAt(at, _) if !at.0.is_multiple_of(4) => {
            let site = image.text(Svma(at.0 & !3), 4).map(|bytes| CodeBytes::new(at, bytes));
            let site = site.unwrap_or_else(|| CodeBytes::new(at, &[]));
            return Err(Refusal::InsideInstruction { site, starts: Svma(at.0 & !3) });
        }
        Action::CountAt(at) => vec![(one(((at - start) / 4) as usize, PatchRole::Entry), count)],
        Action::RecordMark(..) => {
            return Err(Refusal::NotHere { at, what: "no code reads a mark's arguments" });
        }
        Action::RecordAt(at, unwind) => {
            let (probe, kind, floats) = (request.probe, Kind::Entry, Floats::default());
            let (nodes, at_entry, returns) = (decided, false, false);
            let (values, texts, loads) = (0, 0, 0);
            let record = Record {
                probe,
                kind,
                values,
                texts,
                loads,
                floats,
                unwind,
                at_entry,
                nodes,
                returns,
                goroutine,
            };
            vec![(one(((at - start) / 4) as usize, PatchRole::Entry), SiteAction::Record(record))]
        }
        Action::Record { returns: true, .. } | Action::Tally { exits: true }
            if input.latency.is_some_and(|latency| latency.by_trampolines) =>
        {
            let what = "no code records returns by replaced return addresses (--ret=exits)";
            return Err(Refusal::NotHere { at, what });
        }
        Action::Record { values, returns, texts, floats, fields, stack: unwind } => {
            let probe = request.probe;
            let loads = input.filter(probe).map_or(0, loads);
            // A condition may read memory that no record holds.
            readable(at, &words, texts != 0 || fields != 0 || loads > 0)?;
            let action = |kind| {
                let (nodes, at_entry) = (decided, true);
                SiteAction::Record(Record {
                    probe,
                    kind,
                    values,
                    texts,
                    loads,
                    floats,
                    unwind,
                    at_entry,
                    nodes,
                    returns,
                    goroutine,
                })
            };
            let entry = (one(entry_index(&words), PatchRole::Entry), action(Kind::Entry));
            let found = if returns { left(image, at, &words, start)? } else { Vec::new() };
            let exits =
                found.into_iter().map(|(index, kind, role)| (one(index, role), action(kind_of(kind))));
            [entry].into_iter().chain(exits).collect()
        }
        Action::CountExits => {
            let landings = landings(image, start, words.len());
            let found = exits(&words, start.0, &landings).map_err(|why| Refusal::Word { why })?;
            found.into_iter().map(|index| (one(index, PatchRole::ExitRet), count)).collect()
        }
        Action::Latency => {
            let latency = request.latency.ok_or(Refusal::Incomplete { at })?;
            let entry = entry_index(&words);
            let enter = SiteAction::Enter { latency, looped: is_looped(&words, entry), goroutine };
            let exits = left(image, at, &words, start)?.into_iter();
            let exits = exits
                .map(|(index, kind, role)| (one(index, role), SiteAction::Exit { latency, kind, goroutine }));
            [(one(entry, PatchRole::Entry), enter)].into_iter().chain(exits).collect()
        }
        Action::Tally { exits } => {
            let filter = input.filter(request.probe).ok_or(Refusal::Incomplete { at })?;
            let (nodes, late, loads) = (nodes(filter), filter.late.is_some(), loads(filter));
            readable(at, &words, loads > 0)?;
            let tally =
                |kind| SiteAction::Tally { probe: request.probe, kind, late, nodes, loads, goroutine };
            let entry =
                (!exits || late).then(|| (one(entry_index(&words), PatchRole::Entry), tally(Kind::Entry)));
            let found = if exits { left(image, at, &words, start)? } else { Vec::new() };
            let exits = found.into_iter().map(|(index, kind, role)| (one(index, role), tally(kind_of(kind))));
            entry.into_iter().chain(exits).collect()
        }
        Action::LatencyByTrampoline => {
            let latency = request.latency.ok_or(Refusal::Incomplete { at })?;
            let function = request.function.ok_or(Refusal::Incomplete { at })?;
            let entry = entry_index(&words);
            let signed = may_arm_behind(input, function, (&words, start, entry))
                .map_err(|why| Refusal::Word { why })?;
            vec![(one(entry, PatchRole::Entry), SiteAction::Arm { latency, signed })]
        }
        _ => return Err(Refusal::NotHere { at, what: "no code calls consumers from outside" }),
    };
    found.iter().try_for_each(|(site, _)| movable(input, request.function, site)).map(|()| found)
}

const fn kind_of(exit: ExitKind) -> Kind {
    match exit {
        ExitKind::Return => Kind::Return,
        ExitKind::Tail => Kind::Tail,
    }
}

/// Each word that leaves the function at `at`, and how it does so.
fn left(
    image: &Image,
    at: Svma,
    words: &[u32],
    start: Svma,
) -> Result<Vec<(usize, ExitKind, PatchRole)>, Refusal> {
    let landings = landings(image, start, words.len());
    let found = ways_out(words, start.0, &landings, |to| begins_elsewhere(image, at, Svma(to)));
    let found = found.map_err(|why| Refusal::Word { why })?.into_iter();
    let role = |kind| if kind == ExitKind::Return { PatchRole::ExitRet } else { PatchRole::ExitTail };
    Ok(found.map(|(index, kind)| (index, kind, role(kind))).collect())
}

/// The action that counts a probe's hits.
fn counting(input: &ModuleInput<'_>, probe: u32) -> SiteAction {
    match input.filter(probe).filter(|filter| !filter.passes_all()) {
        Some(filter) => SiteAction::FilteredCount { probe, nodes: nodes(filter) },
        None => SiteAction::Count { probe },
    }
}

/// The words of a function, with their start address; for an instruction outside all known functions, the
/// words around it.
fn code(image: &Image, function: Option<FunctionIndex>, at: Svma) -> Option<(Svma, Vec<u32>)> {
    let of = |start: Svma, len: u64| {
        let bytes = image.text(start, len & !3)?;
        Some(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>())
    };
    if let Some(function) = function.map(|function| image.function(function))
        && (function.start..function.end()).contains(&at)
        && let Some(words) = of(function.start, function.len)
    {
        return Some((function.start, words));
    }
    let at = Svma(at.0 & !3);
    let word = |at: u64| of(Svma(at), 4)?.first().copied();
    word(at.0)?;
    let before = (1..=AROUND).take_while(|n| at.0 >= 4 * n && word(at.0 - 4 * n).is_some()).count() as u64;
    let start = Svma(at.0 - 4 * before);
    let words = (0..before + AROUND).map_while(|n| word(start.0 + 4 * n)).collect();
    Some((start, words))
}

/// Checks what the process forbids.
fn movable(
    input: &ModuleInput<'_>,
    function: Option<FunctionIndex>,
    site: &PatchedSite,
) -> Result<(), Refusal> {
    let at = site.at();
    let Some(&word) = site.words.get(site.index) else { return Ok(()) };
    let place = CodeBytes::new(at, &word.to_le_bytes());
    let inside = |s: &&trapline_image::RseqSection| s.start <= at && at < s.start + s.len;
    if let Some(section) = input.image.rseq_sections().iter().find(inside) {
        return Err(Refusal::InRseq { site: place, section: section.start });
    }
    let is_g = || input.traits.go && reads_g(word) && is_go(input.image, function);
    if input.traits.has_fault_handler && may_fault(word) && !is_g() {
        return Err(Refusal::MayFault { site: place, insn: place });
    }
    Ok(())
}
