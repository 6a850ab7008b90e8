//! The actions at a site: what is done there, at which instruction, and when.
//!
//! In: nothing; the planner makes these values. Out: plain values, and the order in which they run.
//! Does not: emit code (`emit::actions`).

use super::stub;
use crate::machine::ExitKind;
use crate::request::{Floats, Hold, Unwind};
use trapline_record::Svma;
use trapline_record::ring::RecordKind;

/// Which part of the stack a record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stack {
    pub(crate) unwind: Unwind,
    /// The hit is at a function's entry.
    pub(crate) at_entry: bool,
}

/// An action at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SiteAction {
    /// Add one to this probe's counter, if the hit passes the filter.
    Count { probe: u32, kind: RecordKind },
    /// Write the entry stamp of this latency area's function.
    Enter { latency: u32, looped: bool },
    /// Replace the return address by a return trampoline.
    Arm { latency: u32 },
    /// Write a record; the probe's counter counts dropped ones. `marked`: both entries and exits are
    /// recorded, behind a filter. `valued`: as in [`Action::Record`](crate::Action::Record).
    Record {
        probe: u32,
        kind: RecordKind,
        values: u8,
        valued: bool,
        marked: bool,
        texts: u8,
        ended: u8,
        floats: Floats,
        stack: Stack,
    },
    /// Replace the return address by a return trampoline, which leads on to the record of the return.
    ArmRecord {
        probe: u32,
        values: u8,
        valued: bool,
        marked: bool,
        texts: u8,
        ended: u8,
        floats: Floats,
        stack: Stack,
    },
    /// Add one to a row of the probe's table of values.
    Tally { probe: u32, kind: RecordKind },
    /// Replace the return address by a return trampoline, which leads on to the aggregation at the return.
    ArmTally { probe: u32 },
    /// Measure the duration at an exit.
    Exit { latency: u32, kind: ExitKind },
    /// Call a consumer. It sees this address as the instruction pointer.
    Call { probe: u32, ip: Svma, exit: bool },
    /// Hold the thread if it is about to change a fact that patches rely on.
    Hold(Hold),
    /// Give the context of a copy's fault the original address.
    Deliver { informed: bool },
}

/// When the action runs, relative to its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// Before the instruction.
    Before,
    /// When the instruction, a conditional jump, is about to be taken.
    Taken {
        /// Low nibble of the condition's opcode.
        condition: u8,
        /// Target of the jump.
        target: Svma,
    },
    /// After the instruction.
    After,
}

/// An action at one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlacedAction {
    /// Address of the instruction.
    pub(crate) at: Svma,
    pub(crate) when: When,
    pub(crate) action: SiteAction,
    /// Which flags and registers are dead there.
    pub(crate) dead: stub::Liveness,
    /// Index of the request that asked for the action.
    pub(crate) request: u32,
    /// The instruction before has lowered the stack pointer by this many bytes. The action sees it as it was
    /// before that.
    pub(crate) lowered: u32,
    /// Code that runs right before the action, in place of what would follow.
    pub(crate) detour: Option<Detour>,
}

/// The straight line of code from a jump's target to an exit. It is copied up to the exit, which then runs in
/// its own place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Detour {
    pub(crate) from: Svma,
    pub(crate) exit: Svma,
}

impl SiteAction {
    /// Whether it replaces the return address.
    pub(crate) const fn arms(self) -> bool {
        matches!(self, Self::Arm { .. } | Self::ArmRecord { .. } | Self::ArmTally { .. })
    }
    /// The action at the return of a call that this action arms, if its return trampoline leads on to one.
    pub(crate) const fn leads_to(self) -> Option<Self> {
        match self {
            Self::ArmRecord { probe, values, valued, marked, texts, ended, floats, stack } => {
                let kind = RecordKind::Return;
                Some(Self::Record { probe, kind, values, valued, marked, texts, ended, floats, stack })
            }
            Self::ArmTally { probe } => Some(Self::Tally { probe, kind: RecordKind::Return }),
            _ => None,
        }
    }
}

impl PlacedAction {
    /// Whether the call goes on as another function (a tail call).
    pub(crate) fn is_tail(&self) -> bool {
        match self.action {
            SiteAction::Count { kind, .. }
            | SiteAction::Record { kind, .. }
            | SiteAction::Tally { kind, .. } => kind == RecordKind::Tail,
            SiteAction::Exit { kind, .. } => kind == ExitKind::Tail,
            _ => false,
        }
    }
    /// Orders the actions at one instruction. Actions of one moment share the code around them.
    pub(crate) fn moment(&self) -> u8 {
        let detour = u8::from(self.detour.is_some());
        match self.when {
            When::Before => detour,
            When::Taken { .. } => 2,
            When::After => 3 + detour,
        }
    }
}
