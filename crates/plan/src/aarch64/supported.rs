//! Whether a request is implemented here yet.
//!
//! In: a request, and its filter. Out: the refusal that names what no code does; for a word, what may forbid
//! it. Does not: examine functions.
//! x86-64 has code for all requests; what it refuses depends on the site (`env`).

use trapline_record::Svma;

use super::action::loads;
use super::go::not_in_go;
use super::stub::SIGNATURE;
use crate::filter::{TargetFilter, Tree};
use crate::input::ModuleInput;
use crate::machine::{Rseq, ThreadId};
use crate::refusal::Refusal;
use crate::request::{Action, ActionRequest, Unwind};

/// Checks everything except the request's role.
pub(super) fn check(input: &ModuleInput<'_>, request: &ActionRequest, at: Svma) -> Result<(), Refusal> {
    let timed = request.action.is_timed();
    let recorded =
        matches!(request.action, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..));
    let other = |rseq: Rseq| rseq.signature != SIGNATURE;
    let counts = matches!(
        request.action,
        Action::CountEntry
            | Action::CountExits
            | Action::CountAt(_)
            | Action::RunAt(_)
            | Action::Tally { .. }
    );
    let filter = input.filter(request.probe);
    let by_thread = input.layout.threads.rows > 0;
    let what = match () {
        () if input.traits.go
            && let Some(what) = not_in_go(request.action, filter) =>
        {
            what
        }
        () if request.action.calls() => "no code calls consumers",
        // They need neither a thread's number nor memory, and no counter.
        () if request.action.is_for_us() && !input.traits.shadow_stack => return Ok(()),
        // Such a process has one ring for each CPU, which only sections may write.
        () if recorded && input.traits.rseq.is_some_and(other) => "no code ends rseq sections otherwise",
        () if filter.is_some() && timed => "no code filters what it times",
        () if input.traits.go && filter.is_some_and(|filter| !filter.kept.is_empty()) => {
            "no code copies long texts, or texts at returns, in Go programs"
        }
        () if filter.is_some() && by_thread => "no code counts by thread what passes a filter",
        () if by_thread && !counts => "no code but counts by thread",
        () if input.traits.shadow_stack => "no code minds a shadow stack",
        () => match filter.and_then(|filter| undecided(filter, request.action)) {
            Some(what) => what,
            None => {
                let asked = by_thread || filter.is_some_and(|filter| filter.asks_for_thread());
                return numbered(input, asked, filter.is_some_and(|filter| loads(filter) > 0), at);
            }
        },
    };
    Err(Refusal::Unsupported { at, what })
}

/// What no code here can decide about a filter, and about its aggregation.
fn undecided(filter: &TargetFilter, role: Action) -> Option<&'static str> {
    let (tally, late) = (filter.tally.as_ref(), filter.late.as_ref());
    // For calls, the condition is about entries.
    let calls = late.is_some()
        && matches!(role, Action::Tally { exits: true } | Action::Record { returns: true, .. });
    let at_exit = matches!(role, Action::CountExits | Action::Tally { exits: true });
    let known = |tree: &Tree| match at_exit && !calls {
        true => tree.is_known_at_exit(),
        false => tree.is_known_at_entry(),
    };
    let value = tally.map(|tally| {
        let has = |tree: &Tree| match at_exit {
            _ if calls => tree.is_known_at_return(),
            true => tree.is_known_at_exit(),
            false if filter.reads.is_empty() => tree.is_known_at_entry(),
            false => tree.is_known_with_fields(),
        };
        // No text is copied for an exit alone.
        tally.is_sound() && tally.trees().all(has) && (calls || !at_exit || tally.texts() == 0)
    });
    // Actions for which memory is read.
    let reads = calls
        || matches!(
            role,
            Action::Record { .. }
                | Action::RecordMark(..)
                | Action::RunAt(_)
                | Action::Tally { exits: false }
        );
    match () {
        () if filter.by_name
            && !matches!(role, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..)) =>
        {
            Some("no code but records looks at what threads are called")
        }
        () if (filter.fields.is_some() || !filter.reads.is_empty()) && !reads => {
            Some("no code reads fields there")
        }
        () if filter.fields.is_some()
            && matches!(role, Action::Record { stack, .. } if stack != Unwind::None) =>
        {
            Some("no code reads fields beside stacks")
        }
        () if filter.fields.as_ref().is_some_and(|tree| !tree.is_known_with_fields()) => {
            Some("no code decides by what is not known there")
        }
        () if late.is_some() && !calls => Some("no code decides there by what entries left"),
        () if late.is_some_and(|late| !late.condition.is_known_at_return()) => {
            Some("no code decides by what is not known there")
        }
        () if value == Some(false) || filter.condition.as_ref().is_some_and(|tree| !known(tree)) => {
            Some("no code decides by what is not known there")
        }
        () => None,
    }
}

/// Checks that thread numbers can be read, if they are needed. What a system call loses is argued in
/// `stub::threads`. An action that `reads` memory makes one anyway, and [`readable`] decides whether anything is
/// lost.
fn numbered(input: &ModuleInput<'_>, asked: bool, reads: bool, at: Svma) -> Result<(), Refusal> {
    match input.traits.thread_id {
        ThreadId::Unknown if asked => Err(Refusal::NoThreadNumber { at }),
        ThreadId::Call if asked && input.traits.sve && !reads => {
            let what = "the C library is not known to keep thread numbers, and a call for one would lose vectors of SVE";
            Err(Refusal::Unsupported { at, what })
        }
        _ => Ok(()),
    }
}

/// Checks that memory can be read at the beginning of the function, if that is needed: this takes system
/// calls.
pub(super) fn readable(at: Svma, words: &[u32], asked: bool) -> Result<(), Refusal> {
    match asked && words.iter().any(|&word| is_scalable(word)) {
        true => {
            let what = "no code reads texts or fields where vectors of SVE or SME may be live";
            Err(Refusal::Unsupported { at, what })
        }
        false => Ok(()),
    }
}

/// Whether a word is one of SVE's or SME's (Arm ARM C4.1: the encodings 0b0010, and 0b0000 with bit 31).
const fn is_scalable(word: u32) -> bool {
    let group = word >> 25 & 0b1111;
    group == 0b0010 || group == 0 && word >> 31 == 1
}

/// Whether a word reads or writes memory that a register other than sp names (Arm ARM C4.1, loads and
/// stores).
pub(super) fn may_fault(word: u32) -> bool {
    let memory = word >> 25 & 0b0101 == 0b0100;
    // A word that is simulated from its own address reads literals of the code itself.
    let literal = word & 0x3B00_0000 == 0x1800_0000;
    memory && !literal && word >> 5 & 31 != 31
}
