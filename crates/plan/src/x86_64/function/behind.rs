//! An entry's window that begins behind the function's first instruction, and leaves the bytes of that one to
//! other tools.
//!
//! In: a function's first instructions, and the action at its entry. Out: what the action needs to know to
//! run one instruction later; or nothing, and then the window begins at the first instruction.
//! Invariant: ENT-1 the action sees the stack pointer of the entry, and each register that it reads has the
//! value that it had there.
//! Does not: choose a tactic if such a window does not fit.
//!
//! Other tools put breakpoints on the first byte of a function. When a kernel uprobe is removed, the kernel
//! puts the *file's* byte back, whatever was there (docs/guide/foreign-patches.md). Here the first instruction
//! stays where it is and runs there. So both tools see each call, in whatever order they come and go.
//!
//! # What may stand before the window
//!
//! Any instruction that goes on to the next one, if nothing is known to branch to that next one, and if the
//! stack pointer afterwards is known. A counted hit needs nothing more. A timed hit needs the stack pointer,
//! and other hits need arguments too:
//!
//! | first instruction | what the action does |
//! |---|---|
//! | changes flags, or registers that the action does not read | nothing: |
//! | | what is dead is determined at the second instruction |
//! | `sub rsp, n` | runs with rsp raised by n; nothing was written below it |
//! | `push` | the same, and first steps over 128 bytes below rsp, where the pushed word is |
//! | stores below rsp, into the red zone | first steps over 128 bytes below rsp |
//! | writes a register that the action reads | the window begins at the first instruction |
//!
//! # Which threads may be there
//!
//! - *A thread that ran the first instruction before the patch came*: its call is counted or timed from
//!   there, although it began a moment earlier.
//! - *A branch to the second instruction that no analysis found*: the action runs once more. It changes
//!   nothing for the program, since the stack pointer is put back and no instruction runs twice.
//! - *A signal in the first instruction*: the same as without a patch.
//! - *A fault of the first instruction*: if the program catches faults, an instruction that may fault is not
//!   left in front. The call would not be seen if the handler leaves, and would be seen twice if the
//!   instruction runs again.
//! - *A fault of the second instruction, which a handler repairs*: the thread returns there, and would be seen
//!   twice. So no window begins there.

use super::entry::{LEAST, LOOK, ends_line};
use super::{Mark, Planner};
use crate::machine::TrapsPolicy;
use crate::request::Hold;
use crate::x86_64::action::SiteAction;
use crate::x86_64::env::Env;
use crate::x86_64::jump::JUMP;
use crate::x86_64::stub;
use crate::x86_64::window::{Stretch, walk};
use trapline_insn::x86_64::{Class, Gpr, Insn, Lead, faults_on_register};
use trapline_record::Svma;

/// Length in bytes of the longest instruction.
const MOST: u64 = 15;
/// `endbr64`, behind which windows begin in any case.
const ENDBR64: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
/// Registers that neither carry an argument nor lead to the caller's frame in code that follows the psABI.
const PRIVATE: u16 = Gpr::Rax.bit()
    | Gpr::Rbx.bit()
    | Gpr::R11.bit()
    | Gpr::R12.bit()
    | Gpr::R13.bit()
    | Gpr::R14.bit()
    | Gpr::R15.bit();

/// What an action needs to know if it runs behind the first instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    pub(super) dead: stub::Liveness,
    /// As [`PlacedAction::lowered`](crate::x86_64::action::PlacedAction::lowered).
    pub(super) lowered: u32,
}

/// What an action reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    /// The stack pointer of the entry.
    stack: bool,
    /// Bit `n`: general register `n`.
    gprs: u16,
    /// Vector registers.
    others: bool,
}

impl Asked {
    fn of(action: &SiteAction, env: &Env<'_>, go: bool) -> Self {
        match action {
            SiteAction::Count { probe, .. } if env.filter(*probe).is_none() => {
                Self { stack: false, gprs: 0, others: false }
            }
            // Timed hits are not filtered; Go's stubs find the goroutine in r14.
            SiteAction::Enter { .. } | SiteAction::Arm { .. } => {
                Self { stack: true, gprs: if go { Gpr::R14.bit() } else { 0 }, others: false }
            }
            SiteAction::Record { probe, .. } | SiteAction::Tally { probe, .. }
                if !go && env.registers_read(*probe) != 0 =>
            {
                Self { stack: true, gprs: !PRIVATE | env.registers_read(*probe), others: true }
            }
            // Go's arguments may be in any register.
            _ => Self { stack: true, gprs: if go { !0 } else { !PRIVATE }, others: true },
        }
    }
}

/// By how many bytes an action has to raise the stack pointer to see what it reads; `None` if that is not
/// enough.
fn seen(lead: Lead, asked: Asked, red_zone_live: bool) -> Option<u32> {
    let kept = lead.gprs & asked.gprs == 0 && !(lead.others && asked.others);
    let stack = lead.lowered == 0 || !red_zone_live;
    (kept && stack).then_some(lead.lowered)
}

impl Planner<'_> {
    /// Whether this action's window may begin behind the first of `bytes`' instructions. If so, `insns` holds
    /// the instructions.
    pub(super) fn behind(
        &mut self,
        insns: &mut Vec<Insn>,
        (bytes, start): (&[u8], Svma),
        action: &SiteAction,
        red_zone_live: bool,
    ) -> Option<Behind> {
        // A call's place was chosen by what lies behind it (SYS-1).
        let is_chosen = matches!(action, SiteAction::Call { .. } | SiteAction::Hold(Hold::Call(_)));
        if self.at_head || is_chosen || bytes.starts_with(&ENDBR64) {
            return None;
        }
        let env = &self.env;
        let least = LEAST.max(MOST + JUMP);
        let (lead, found) =
            self.look.0.behind(insns, (bytes, start.0), (LOOK, least), |i| !ends_line(env, start, i))?;
        let [first, second, ..] = insns[..] else { return None };
        if first.class == Class::Int3 || env.map.is_target(Svma(second.addr)) {
            return None;
        }
        if env.traits.faults_delivered && faults_on_register(&second) {
            return None;
        }
        let go = env.traits.go || env.is_go_at(start);
        let asked = Asked::of(action, env, go);
        let lowered = if asked.stack { seen(lead, asked, red_zone_live)? } else { 0 };
        self.fits(insns, start + bytes.len() as u64)?;
        let red_zone_live = red_zone_live || lead.red_zone || (lowered != 0 && lead.pushed);
        let dead = stub::Liveness { flags_dead: found.flags, dead: found.gprs, red_zone_live };
        Some(Behind { dead, lowered })
    }

    /// Whether a whole jump fits behind the first instruction.
    fn fits(&self, insns: &[Insn], end: Svma) -> Option<()> {
        let whole = insns.last().is_some_and(|last| last.end() == end.0);
        let window = walk(&self.env, Stretch { insns, whole }, 1, 1);
        let seamless = u64::from(insns[1].len) >= window.len.min(JUMP);
        let may_trap = self.env.traits.traps == TrapsPolicy::Guarded;
        let fits = window.room() >= JUMP && window.until > 1 && (may_trap || seamless);
        // Another action of this entry may have that window already.
        let joins =
            self.sites.with(window.start).is_some_and(|index| self.sites.get(index).start == window.start);
        (fits && (joins || self.is_clear(&window, JUMP))).then_some(())
    }

    /// Plans a function with its entries' windows behind the first instruction. Then plans it again with the
    /// windows at that instruction, if that refuses less. Short functions have no room for both such windows
    /// and those of their exits.
    pub(super) fn behind_or_at_head(&mut self, plan: impl Fn(&mut Self)) {
        let (start, refused_before) = (self.mark(), self.refused.len());
        plan(self);
        let behind = self.not_by_jumps(&start);
        if behind == (refused_before, 0) {
            return;
        }
        self.refused.truncate(refused_before);
        self.roll_back(start);
        self.at_head = true;
        plan(self);
        self.at_head = false;
        if self.not_by_jumps(&start) >= behind {
            self.refused.truncate(refused_before);
            self.roll_back(start);
            plan(self);
        }
    }

    /// Since `start`: how many requests were refused, and for how many others the exits could not be patched.
    fn not_by_jumps(&self, start: &Mark) -> (usize, usize) {
        let since = self.armed.get(start.armed..).unwrap_or_default();
        (self.refused.len(), since.iter().filter(|one| one.why.is_of_exits()).count())
    }
}
