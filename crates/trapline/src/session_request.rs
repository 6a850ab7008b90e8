//! What a session requests of each process.
//!
//! In: the user's choices, as `Builder` collected them. Out: plain values that all later steps read:
//! [`SessionRequest`], [`HitAction`], [`ReportOptions`]. Does not: touch a process.

use std::path::PathBuf;
use std::sync::Arc;

use trapline_image::ProbeSpec;
use trapline_patch::{Durations, Options};
use trapline_plan::{Action, Floats, Results, Unwind};
use trapline_record::Svma;

use crate::everyone::Everyone;
use crate::filter::Filter;
use crate::form::Returns;
use crate::histogram::{LinearBuckets, TickScale};
use crate::maps::{MapTable, Namer};
use crate::progress::OnProgress;
use crate::report::By;

/// What a session requests of each process.
#[derive(Clone, Debug)]
pub(crate) struct SessionRequest {
    pub(crate) specs: Vec<ProbeSpec>,
    /// Whether a probe may find something later only.
    pub(crate) waits: bool,
    /// Action at each hit.
    pub(crate) hit_action: HitAction,
    /// How the ends of calls are seen, where returns are recorded or aggregated.
    pub(crate) returns: Returns,
    /// How hits are grouped.
    pub(crate) by: Option<By>,
    pub(crate) options: Options,
    /// Threads that find a compact ring full wait for the reader.
    pub(crate) lossless: bool,
    /// What compact records hold, one entry for each specification in order.
    pub(crate) values: Vec<CompactValues>,
    /// Functions that programs import are probed, too.
    pub(crate) libcalls: bool,
    pub(crate) durations: Durations,
    /// Length of a clock tick, in nanoseconds times 2^32, as stubs compute with it
    /// ([`Late::tick_of`](trapline_plan::filter::Late::tick_of)); set where a return may decide whether a
    /// call passes.
    pub(crate) tick: Option<u64>,
    /// Equal steps for the histogram of durations, if requested.
    pub(crate) steps: Option<LinearBuckets>,
    /// Filter of each probe; the first is for the first specification, and so on.
    pub(crate) filters: Vec<Arc<Filter>>,
    /// Arguments that point to text, as bits, one word for each specification in order.
    pub(crate) texts: Vec<u16>,
    /// Floats that records hold, one entry for each specification in order.
    pub(crate) floats: Vec<Floats>,
    /// Which of the texts end at a zero byte, as bits, in the same order.
    pub(crate) ended: Vec<u16>,
    /// Whether each process's code is noted, so that addresses can be named once it has ended.
    pub(crate) notes_code: bool,
    /// A script's maps.
    pub(crate) maps: Vec<MapTable>,
    /// Whether the kernel's records about threads are read, so that threads that have ended are known.
    pub(crate) follows_threads: bool,
    /// All threads of the machine, if they are watched together: where all processes may be probed.
    pub(crate) everyone: Option<Everyone>,
    /// Gives the names of places their numbers.
    pub(crate) namer: Option<Namer>,
    /// What happens at the hits of each probe instead, in the same order. Those beyond do as the session does.
    pub(crate) actions: Vec<ProbeAction>,
    /// Folders in which separate debug information is looked for first.
    pub(crate) debug_folders: Arc<[PathBuf]>,
    /// Who shows how far the work is.
    pub(crate) progress: OnProgress,
    /// Once more places than this are found, searching may stop: one more shows as much as all of them.
    pub(crate) most: Option<usize>,
    /// Functions that are not probed, though probes mean them.
    pub(crate) left_out: LeftOut,
    /// The share of a process' time that recording may cost.
    pub(crate) budget: Option<f64>,
}

/// Functions that are not probed, though probes mean them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut {
    /// Those with fewer bytes of code than this.
    pub(crate) least_bytes: u64,
    /// Those that these mean.
    pub(crate) without: Vec<ProbeSpec>,
}

/// What words of a probe's calls hold besides the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompactValues {
    /// So many of the six argument registers.
    pub arguments: u8,
    /// The returned value.
    pub returned: bool,
}

/// What a session that records does at the hits of one of its probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProbeAction {
    /// Records them, as the session does.
    #[default]
    Record,
    /// Runs the program of its filter.
    Run {
        /// At exits.
        exits: bool,
    },
}

impl SessionRequest {
    /// Whether a probe may find something in a library that is loaded later. No program is loaded as one.
    pub(crate) fn waits_for_library(&self) -> bool {
        let may_be = |file: &str| file.contains(".so") || !file.contains('/') && file.starts_with("lib");
        self.waits && self.specs.iter().any(|spec| spec.file.as_deref().is_none_or(may_be))
    }
    /// Action at the hits of a probe.
    pub(crate) fn action_of(&self, nth: usize) -> HitAction {
        match self.actions.get(nth).copied().unwrap_or_default() {
            ProbeAction::Record => self.hit_action,
            ProbeAction::Run { exits } => HitAction::Tally { exits },
        }
    }
    /// Number of a probe that runs a program, from 1 on; 0 for all others.
    pub(crate) fn slot_of(&self, nth: usize) -> u32 {
        match self.actions.get(nth) {
            None | Some(ProbeAction::Record) => 0,
            Some(_) => nth as u32 + 1,
        }
    }
    /// How the ends of calls are seen, for actions that leave a choice.
    pub(crate) fn form(&self) -> Returns {
        let exits = self.actions.contains(&ProbeAction::Run { exits: true });
        match self.hit_action {
            _ if exits => self.returns,
            HitAction::Time(form) => form,
            HitAction::Record { returns: true, .. }
            | HitAction::Stack { returns: true, .. }
            | HitAction::Tally { exits: true } => self.returns,
            _ => Returns::Exits,
        }
    }
}

/// Action at each hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HitAction {
    /// Count it.
    Count,
    /// Time the call from its entry to its end; the end is seen in this way.
    Time(Returns),
    /// Aggregate a value, at entries or at exits.
    Tally {
        /// At exits.
        exits: bool,
    },
    /// Record it: the first arguments and, if requested, the return.
    Record {
        /// How many arguments.
        values: u8,
        /// Exits too.
        returns: bool,
    },
    /// Record the stack of callers.
    Stack {
        /// How the stack is read.
        unwind: Unwind,
        /// Exits too.
        returns: bool,
    },
}

impl HitAction {
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Self::Time(_))
    }
    /// Whether hits, or their values, are reported one by one or in rows.
    pub(crate) const fn is_reported(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Tally { .. })
    }
    pub(crate) const fn is_recorded(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Stack { .. })
    }
    /// Action of a single instruction, given this action.
    pub(crate) const fn at(self, at: Svma) -> Action {
        match self {
            Self::Record { .. } => Action::RecordAt(at, Unwind::None),
            Self::Stack { unwind, .. } => Action::RecordAt(at, unwind),
            _ => Action::CountAt(at),
        }
    }
    /// Action of a function's entry, or of the instruction `inside` it.
    pub(crate) const fn action(self, returns: bool, inside: Option<Svma>) -> Action {
        match (self, returns, inside) {
            (Self::Record { values, .. }, true, _) => recorded(values, true, Unwind::None),
            (Self::Record { values, returns }, false, None) => recorded(values, returns, Unwind::None),
            (Self::Stack { unwind, .. }, true, _) => recorded(0, true, unwind),
            (Self::Stack { unwind, returns }, false, None) => recorded(0, returns, unwind),
            (_, false, Some(at)) if self.is_recorded() => self.at(at),
            (Self::Tally { .. }, true, _) => Action::Tally { exits: true },
            (Self::Tally { exits }, false, None) => Action::Tally { exits },
            (_, true, _) => Action::CountExits,
            (Self::Time(Returns::Stack), ..) => Action::LatencyByTrampoline,
            (Self::Time(_), ..) => Action::Latency,
            (_, false, Some(at)) => Action::CountAt(at),
            (_, false, None) => Action::CountEntry,
        }
    }
}

/// Registers hold six arguments; only USDT probes have more.
const fn recorded(values: u8, returns: bool, stack: Unwind) -> Action {
    let values = if values > 6 { 6 } else { values };
    let floats = Floats { arguments: 0, results: Results::INTEGER };
    Action::Record { values, returns, valued: false, texts: 0, ended: 0, floats, fields: 0, stack }
}

/// How a session reports what it counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions {
    pub(crate) scale: TickScale,
    pub(crate) timed: bool,
    /// How counters are split.
    pub(crate) by: Option<By>,
    /// How rows of tables are split.
    pub(crate) rows_by: Option<By>,
}

impl ReportOptions {
    /// Options of a session that groups hits by `by`, on a clock with a tick of so many nanoseconds.
    pub(crate) fn new(hit_action: HitAction, by: Option<By>, ns_per_tick: f64) -> Self {
        Self {
            scale: TickScale::new(ns_per_tick),
            timed: hit_action.is_timed(),
            // Only counters are split by it; a table's rows name their thread or key themselves.
            by: by.filter(|_| hit_action == HitAction::Count),
            rows_by: by,
        }
    }
}
