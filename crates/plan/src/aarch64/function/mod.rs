//! The words that one request needs, with their actions: of a function, or around one instruction.
//!
//! In: a request, its function's words. Out: words to be patched, or why one of them cannot be (PLAN-4). A request
//! is met as a whole or refused as a whole. `exits` finds where a function is left. Does not: choose where code lies.

pub(crate) mod exits;

use trapline_image::{FunctionIndex, Image};
use trapline_record::Svma;
use trapline_record::ring::RecordKind;

use super::action::{Record, SiteAction, deciding, loads};
use super::emit::patch::entry_index;
use super::go::{copies, is_go, is_goroutines, reads_g};
use super::return_address::may_arm_behind;
use super::site::PatchedSite;
use super::stub::ARGUMENTS;
use super::supported::{check, may_fault, readable};
use crate::filter::TargetFilter;
use crate::input::ModuleInput;
use crate::machine::ExitKind;
use crate::plan::PatchRole;
use crate::refusal::{CodeBytes, Refusal};
use crate::request::{Action, ActionRequest, Floats, Unwind};
use exits::{begins_elsewhere, exits, is_looped, landings, ways_out};

/// How far around an instruction outside all functions exclusive sequences are looked for, in bytes.
const AROUND: u64 = 128;

/// Words, each with its action.
pub(super) type PlannedSites = Vec<(PatchedSite, SiteAction)>;

/// The words that a request needs.
pub(super) fn words_of(input: &ModuleInput<'_>, request: &ActionRequest) -> Result<PlannedSites, Refusal> {
    let found = Requested::of(input, request)?.sites()?;
    found.iter().try_for_each(|(site, _)| movable(input, request.function, site)).map(|()| found)
}

/// A request that is supported, and the words of its function.
struct Requested<'a> {
    input: &'a ModuleInput<'a>,
    request: &'a ActionRequest,
    /// The function, or the instruction.
    at: Svma,
    /// Address of the first word.
    start: Svma,
    words: Vec<u32>,
    /// The calls are a goroutine's.
    goroutine: bool,
}

impl<'a> Requested<'a> {
    fn of(input: &'a ModuleInput<'a>, request: &'a ActionRequest) -> Result<Self, Refusal> {
        let image = input.image;
        let at = match (request.action, request.function) {
            (
                Action::CountAt(at)
                | Action::RecordAt(at, _)
                | Action::RecordMark(at, _)
                | Action::RunAt(at)
                | Action::HoldAt(at, _),
                _,
            ) => at,
            (_, Some(function)) => image.function(function).start,
            (_, None) => return Err(Refusal::Incomplete { at: Svma(0) }),
        };
        check(input, request, at)?;
        if request.action.pairs() && image.begins_within_frame(at) {
            return Err(Refusal::NotCalled { at });
        }
        let (start, words) = code(image, request.function, at).ok_or(Refusal::NotInFile { at })?;
        let filter = input.filter(request.probe);
        let asks = filter.is_some_and(|filter| filter.late.is_some()) || copies(request.action, filter);
        let goroutine = input.traits.go && is_goroutines(image, request, asks, (&words, at))?;
        Ok(Self { input, request, at, start, words, goroutine })
    }

    fn sites(&self) -> Result<PlannedSites, Refusal> {
        let unsupported = |what| Err(Refusal::Unsupported { at: self.at, what });
        match self.request.action {
            Action::CountEntry => Ok(vec![self.entry(self.count())]),
            Action::CountAt(at) => Ok(vec![(self.word(at)?, self.count())]),
            Action::RecordAt(at, unwind) => {
                Ok(vec![(self.word(at)?, SiteAction::Record(self.record_at(unwind)))])
            }
            Action::RecordMark(at, fields) => {
                readable(self.at, &self.words, fields != 0)?;
                Ok(vec![(self.word(at)?, self.record_mark())])
            }
            Action::RunAt(at) => {
                let filter = self.filter().ok_or(Refusal::Incomplete { at: self.at })?;
                readable(self.at, &self.words, loads(filter) > 0)?;
                Ok(vec![(self.word(at)?, self.aggregated(filter, RecordKind::Entry))])
            }
            Action::Record { returns: true, .. } | Action::Tally { exits: true }
                if self.input.latency.is_some_and(|latency| latency.by_trampolines) =>
            {
                unsupported("no code records returns by replaced return addresses (--ret=exits)")
            }
            Action::Record { .. } => self.records(),
            Action::CountExits => self.counted_exits(),
            Action::Latency => self.timed(),
            Action::Tally { exits } => self.tallied(exits),
            Action::LatencyByTrampoline => self.armed(),
            Action::Hold(hold) => Ok(vec![self.entry(SiteAction::Hold(hold))]),
            Action::HoldAt(at, hold) => Ok(vec![(self.word(at)?, SiteAction::Hold(hold))]),
            _ => unsupported("no code calls consumers from outside"),
        }
    }

    fn filter(&self) -> Option<&'a TargetFilter> {
        self.input.filter(self.request.probe)
    }
    /// Upper bound of the bytes of the filter's code, if it does not pass all hits.
    fn deciding(&self) -> Option<u32> {
        self.filter().filter(|filter| !filter.passes_all()).map(deciding)
    }
    fn site(&self, index: usize, role: PatchRole) -> PatchedSite {
        PatchedSite { words: self.words.clone(), start: self.start, index, role, actions: Vec::new() }
    }
    /// The word at an address.
    fn word(&self, at: Svma) -> Result<PatchedSite, Refusal> {
        let starts = Svma(at.0 & !3);
        if starts != at {
            let site = CodeBytes::new(at, self.input.image.text(starts, 4).unwrap_or(&[]));
            return Err(Refusal::InsideInstruction { site, starts });
        }
        Ok(self.site(((at - self.start) / 4) as usize, PatchRole::Entry))
    }
    fn entry(&self, action: SiteAction) -> (PatchedSite, SiteAction) {
        (self.site(entry_index(&self.words), PatchRole::Entry), action)
    }
    /// Each word that leaves the function, with the action for such an exit.
    fn exits(&self, action: impl Fn(ExitKind) -> SiteAction) -> Result<PlannedSites, Refusal> {
        let Self { input, at, start, words, .. } = self;
        let landings = landings(input.image, *start, words.len());
        let found = ways_out(words, start.0, &landings, |to| begins_elsewhere(input.image, *at, Svma(to)));
        let found = found.map_err(|why| Refusal::Word { why })?.into_iter();
        let role = |kind| if kind == ExitKind::Return { PatchRole::ExitRet } else { PatchRole::ExitTail };
        Ok(found.map(|(index, kind)| (self.site(index, role(kind)), action(kind))).collect())
    }

    /// The action that counts a hit.
    fn count(&self) -> SiteAction {
        let probe = self.request.probe;
        match self.deciding() {
            Some(bytes) => SiteAction::FilteredCount { probe, bytes },
            None => SiteAction::Count { probe },
        }
    }
    fn counted_exits(&self) -> Result<PlannedSites, Refusal> {
        let landings = landings(self.input.image, self.start, self.words.len());
        let found = exits(&self.words, self.start.0, &landings).map_err(|why| Refusal::Word { why })?;
        Ok(found.into_iter().map(|index| (self.site(index, PatchRole::ExitRet), self.count())).collect())
    }
    /// The record of a hit at an instruction.
    fn record_at(&self, unwind: Unwind) -> Record {
        Record {
            probe: self.request.probe,
            kind: RecordKind::Entry,
            values: 0,
            texts: 0,
            ended: 0,
            loads: 0,
            floats: Floats::default(),
            valued: false,
            unwind,
            at_entry: false,
            noted: self.filter().is_some_and(|filter| !filter.operands.is_empty()),
            decides: self.deciding(),
            returns: false,
            goroutine: self.goroutine,
        }
    }
    /// The record of a hit at a USDT probe, with its arguments.
    fn record_mark(&self) -> SiteAction {
        let (values, loads) = (ARGUMENTS as u8, self.filter().map_or(0, loads));
        SiteAction::Record(Record { values, loads, ..self.record_at(Unwind::None) })
    }
    /// The records of a call.
    fn records(&self) -> Result<PlannedSites, Refusal> {
        let Action::Record { values, returns, valued, texts, ended, floats, fields, stack } =
            self.request.action
        else {
            return Err(Refusal::Incomplete { at: self.at });
        };
        let loads = self.filter().map_or(0, loads);
        // A condition may read memory that no record holds.
        readable(self.at, &self.words, texts != 0 || fields != 0 || loads > 0)?;
        let decides = self.deciding();
        let action = |kind| {
            SiteAction::Record(Record {
                probe: self.request.probe,
                kind,
                values,
                texts,
                ended,
                loads,
                floats,
                valued,
                unwind: stack,
                at_entry: true,
                noted: false,
                decides,
                returns,
                goroutine: self.goroutine,
            })
        };
        let exits = if returns { self.exits(|kind| action(kind_of(kind)))? } else { Vec::new() };
        Ok([self.entry(action(RecordKind::Entry))].into_iter().chain(exits).collect())
    }
    /// Stamps at the entry and at each exit.
    fn timed(&self) -> Result<PlannedSites, Refusal> {
        let goroutine = self.goroutine;
        let latency = self.request.latency.ok_or(Refusal::Incomplete { at: self.at })?;
        let looped = is_looped(&self.words, entry_index(&self.words));
        let exits = self.exits(|kind| SiteAction::Exit { latency, kind, goroutine })?;
        let enter = SiteAction::Enter { latency, looped, goroutine };
        Ok([self.entry(enter)].into_iter().chain(exits).collect())
    }
    /// Aggregation at the entry or at each exit; at both if exits aggregate what the entry kept.
    fn tallied(&self, exits: bool) -> Result<PlannedSites, Refusal> {
        let filter = self.filter().ok_or(Refusal::Incomplete { at: self.at })?;
        let late = filter.late.is_some();
        readable(self.at, &self.words, loads(filter) > 0)?;
        let tally = |kind| self.aggregated(filter, kind);
        let entry = (!exits || late).then(|| self.entry(tally(RecordKind::Entry)));
        let exits = if exits { self.exits(|kind| tally(kind_of(kind)))? } else { Vec::new() };
        Ok(entry.into_iter().chain(exits).collect())
    }
    /// Adds a hit up, or runs its program.
    fn aggregated(&self, filter: &TargetFilter, kind: RecordKind) -> SiteAction {
        let (probe, goroutine) = (self.request.probe, self.goroutine);
        let (bytes, late, loads) = (deciding(filter), filter.late.is_some(), loads(filter));
        SiteAction::Tally { probe, kind, late, bytes, loads, goroutine }
    }
    /// A return trampoline at the entry.
    fn armed(&self) -> Result<PlannedSites, Refusal> {
        let latency = self.request.latency.ok_or(Refusal::Incomplete { at: self.at })?;
        let function = self.request.function.ok_or(Refusal::Incomplete { at: self.at })?;
        let signed =
            may_arm_behind(self.input, function, (&self.words, self.start, entry_index(&self.words)))
                .map_err(|why| Refusal::Word { why })?;
        Ok(vec![self.entry(SiteAction::Arm { latency, signed })])
    }
}

const fn kind_of(exit: ExitKind) -> RecordKind {
    match exit {
        ExitKind::Return => RecordKind::Return,
        ExitKind::Tail => RecordKind::Tail,
    }
}

/// The words of a function, with their start address; for an instruction outside all known functions, the
/// words around it.
pub(in crate::aarch64) fn code(
    image: &Image,
    function: Option<FunctionIndex>,
    at: Svma,
) -> Option<(Svma, Vec<u32>)> {
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
