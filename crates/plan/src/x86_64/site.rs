//! One patched site: which instructions are displaced, which actions run between them, and how a thread gets
//! to the stub.

use super::stub;
use super::window::JUMP;
use crate::plan::Tactic;
use crate::request::{Floats, Hold, Unwind};
use smallvec::SmallVec;
use trapline_insn::x86_64::{Insn, faults_on_register};
use trapline_record::ring::Kind;
use trapline_record::{RemoteAddr, Svma};

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
    Count { probe: u32, kind: Kind },
    /// Write the entry stamp of this latency area's function.
    Enter { latency: u32, looped: bool },
    /// Replace the return address by a return trampoline.
    Arm { latency: u32 },
    /// Write a record; the probe's counter counts dropped ones. `marked`: both entries and exits are
    /// recorded, behind a filter.
    Record { probe: u32, kind: Kind, values: u8, marked: bool, texts: u8, floats: Floats, stack: Stack },
    /// Replace the return address by a return trampoline, which leads on to the record of the return.
    ArmRecord { probe: u32, values: u8, marked: bool, texts: u8, floats: Floats, stack: Stack },
    /// Add one to a row of the probe's table of values.
    Tally { probe: u32, kind: Kind },
    /// Replace the return address by a return trampoline, which leads on to the aggregation at the return.
    ArmTally { probe: u32 },
    /// Measure the duration at an exit.
    Exit { latency: u32, kind: stub::ExitKind },
    /// Call a consumer. It sees this address as the instruction pointer.
    Call { probe: u32, ip: Svma, exit: bool },
    /// Hold the thread if it is about to change a fact that patches rely on.
    Hold(Hold),
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
    /// The action at the return of a call that this action arms, if its return trampoline leads on to one.
    pub(crate) const fn leads_to(self) -> Option<Self> {
        match self {
            Self::ArmRecord { probe, values, marked, texts, floats, stack } => {
                Some(Self::Record { probe, kind: Kind::Return, values, marked, texts, floats, stack })
            }
            Self::ArmTally { probe } => Some(Self::Tally { probe, kind: Kind::Return }),
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
            | SiteAction::Tally { kind, .. } => kind == Kind::Tail,
            SiteAction::Exit { kind, .. } => kind == stub::ExitKind::Tail,
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

/// The request that a site is named after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// Index of the request.
    pub(crate) request: u32,
    pub(crate) probe: u32,
    pub(crate) role: crate::plan::PatchRole,
}

/// How a thread gets from the site to the stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// `jmp rel32` by the module's displacement K.
    Mirror,
    /// `jmp rel8` to an island at this address.
    Island(Svma),
    /// `jmp rel32` with these bytes as its displacement, to this address.
    Pun([u8; 4], RemoteAddr),
    /// `int3`, from which the guard table leads to the stub.
    Trap,
}

/// One patched site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PatchedSite {
    pub(crate) owner: Owner,
    pub(crate) start: Svma,
    /// The displaced instructions, at stated addresses.
    pub(crate) insns: SmallVec<[Insn; 3]>,
    /// Actions, in the order in which they run.
    pub(crate) actions: SmallVec<[PlacedAction; 1]>,
    /// Number of changed bytes.
    pub(crate) changed: u64,
    pub(crate) reach: Reach,
}

impl PatchedSite {
    /// First byte behind the displaced instructions.
    pub(crate) fn code_end(&self) -> Svma {
        Svma(self.insns.last().map_or(self.start.0, Insn::end))
    }
    /// First byte behind everything that must stay as planned.
    pub(crate) fn end(&self) -> Svma {
        let taken = if matches!(self.reach, Reach::Pun(..)) { JUMP } else { self.changed };
        self.code_end().max(self.start + taken)
    }
    /// Whether an instruction that runs as a copy may fault. The code that a detour copies is not examined:
    /// it is assumed to.
    pub(crate) fn may_fault(&self) -> bool {
        self.insns.iter().any(faults_on_register) || self.actions.iter().any(|placed| placed.detour.is_some())
    }
    pub(crate) fn overlaps(&self, start: Svma, end: Svma) -> bool {
        self.start < end && start < self.end()
    }
    pub(crate) fn tactic(&self) -> Tactic {
        match self.reach {
            Reach::Mirror => Tactic::Jump,
            Reach::Island(_) => Tactic::Short,
            Reach::Pun(..) => Tactic::Pun,
            Reach::Trap => Tactic::Trap,
        }
    }
    /// Removes what one request asked for. Returns whether any action is left here.
    pub(crate) fn forget(&mut self, request: u32, probe_of: impl Fn(u32) -> u32) -> bool {
        self.actions.retain(|a| a.request != request);
        let Some(first) = self.actions.first() else { return false };
        if self.owner.request == request {
            self.owner.request = first.request;
            self.owner.probe = probe_of(first.request);
        }
        true
    }
    /// Adds an action behind those of the same moment.
    pub(crate) fn add(&mut self, placed: PlacedAction) {
        let key = |a: &PlacedAction| (a.at, a.moment());
        let place = self.actions.partition_point(|other| key(other) <= key(&placed));
        self.actions.insert(place, placed);
    }
    /// Bit `n`: an instruction that can run starts at byte `n` of the changed bytes; the first one is not
    /// counted.
    pub(crate) fn starts(&self) -> u8 {
        let inside = self.insns.iter().skip(1).map(|i| i.addr - self.start.0);
        inside.take_while(|&at| at < self.changed).fold(0, |starts, at| starts | 1 << at)
    }
}
