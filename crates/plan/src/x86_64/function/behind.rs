//! An entry's window that begins behind the function's first instruction and leaves that one's bytes to others.
//!
//! In: a function's first instructions, what is to happen at its entry. Out: what the deed has to know to happen one instruction later; or
//! none, and the window begins at the first instruction.
//! Invariant ENT-1: the deed sees the stack pointer of the entry, and each register that it asks for holds what it held there.
//! Does not: choose a tactic where such a window does not fit.
//!
//! Other tools put breakpoints on the first byte of a function, and kernel uprobes put the *file's* byte back when they go, whatever was there
//! (docs/guide/foreign-patches.md). The first instruction stays where it is and runs there; both tools then see each call, in whatever order they come and go.
//!
//! # What may stand before the window
//!
//! Any instruction that goes on to the next, when nothing is known to branch to that next one, and when the stack pointer afterwards is known.
//! A hit that is only counted asks for no more. One that is timed asks for the stack pointer, others for arguments too:
//!
//! | first instruction | what the deed does |
//! |---|---|
//! | changes flags, or registers that the deed does not ask for | nothing: what is dead is asked of the second instruction |
//! | `sub rsp, n` | runs with rsp raised by n; nothing was written below it |
//! | `push` | the same, and steps over 128 bytes below rsp first, where the pushed word is |
//! | writes a register that the deed asks for | begins at the first instruction |
//!
//! # Who may be there
//!
//! - *a thread that ran the first instruction before the patch came*: its call is counted or timed from there, although it began a moment before.
//! - *a branch to the second instruction that no analysis found*: the deed happens once more; it changes nothing for the program, since the stack
//!   pointer is put back and nothing is run twice.
//! - *a signal in the first instruction*: as without us.
//! - *a fault of the first instruction*: where the program catches faults, what may fault is not left in front: the call would not be seen
//!   if the handler leaves, and twice if the instruction runs again.

use super::{LEAST, LOOK, Mark, Planner};
use crate::request::TrapsPolicy;
use crate::x86_64::site::Deed;
use crate::x86_64::stub;
use crate::x86_64::window::{JUMP, Stretch, walk};
use trapline_insn::x86_64::{Class, Gpr, Insn, Lead, faults_on_register};
use trapline_record::Svma;

/// The longest instruction.
const MOST: u64 = 15;
/// `endbr64`, behind which windows begin anyway.
const ENDBR64: [u8; 4] = [0xF3, 0x0F, 0x1E, 0xFA];
/// Registers that carry no argument, nor lead to the caller's frame, in code that follows the psABI.
const PRIVATE: u16 = Gpr::Rax.bit()
    | Gpr::Rbx.bit()
    | Gpr::R11.bit()
    | Gpr::R12.bit()
    | Gpr::R13.bit()
    | Gpr::R14.bit()
    | Gpr::R15.bit();

/// What a deed has to know that happens behind the first instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    pub(super) dead: stub::Site,
    /// As [`Act::lowered`](crate::x86_64::site::Act::lowered).
    pub(super) lowered: u32,
}

/// What a deed asks for.
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
    fn of(deed: &Deed, is_filtered: impl Fn(u32) -> bool, go: bool) -> Self {
        match deed {
            Deed::Count { probe, .. } if !is_filtered(*probe) => {
                Self { stack: false, gprs: 0, others: false }
            }
            // What is timed is not filtered; Go's stubs find the goroutine in r14.
            Deed::Enter { .. } | Deed::Arm { .. } => {
                Self { stack: true, gprs: if go { Gpr::R14.bit() } else { 0 }, others: false }
            }
            // Go's arguments may be in any of them.
            _ => Self { stack: true, gprs: if go { !0 } else { !PRIVATE }, others: true },
        }
    }
}

/// By how much a deed has to raise the stack pointer to see what it asks for; `None` if that is not enough.
fn seen(lead: Lead, asked: Asked, red_zone_live: bool) -> Option<u32> {
    let kept = lead.gprs & asked.gprs == 0 && !(lead.others && asked.others);
    let stack = lead.lowered == 0 || !red_zone_live;
    (kept && stack).then_some(lead.lowered)
}

impl Planner<'_> {
    /// Whether the window of this deed may begin behind the first of `bytes`' instructions, which are left in `insns` then.
    pub(super) fn behind(
        &mut self,
        insns: &mut Vec<Insn>,
        (bytes, start): (&[u8], Svma),
        deed: &Deed,
        red_zone_live: bool,
    ) -> Option<Behind> {
        let is_called = matches!(deed, Deed::Call { .. });
        if self.at_head || is_called || bytes.starts_with(&ENDBR64) {
            return None;
        }
        let env = &self.env;
        let faulty = |i: &Insn| env.traits.has_fault_handler && faults_on_register(i);
        let least = LEAST.max(MOST + JUMP);
        let (lead, found) = self.look.0.behind(insns, (bytes, start.0), (LOOK, least), |i| !faulty(i))?;
        let [first, second, ..] = insns[..] else { return None };
        if first.class == Class::Int3 || env.map.is_target(Svma(second.addr)) {
            return None;
        }
        let go = env.traits.go || env.is_go_at(start);
        let asked = Asked::of(deed, |probe| env.filter(probe).is_some(), go);
        let lowered = if asked.stack { seen(lead, asked, red_zone_live)? } else { 0 };
        self.fits(insns, start + bytes.len() as u64)?;
        let red_zone_live = red_zone_live || (lowered != 0 && lead.pushed);
        let dead = stub::Site { flags_dead: found.flags, dead: found.gprs, red_zone_live };
        Some(Behind { dead, lowered })
    }

    /// Whether a whole jump has room behind the first instruction.
    fn fits(&self, insns: &[Insn], end: Svma) -> Option<()> {
        let whole = insns.last().is_some_and(|last| last.end() == end.0);
        let window = walk(&self.env, Stretch { insns, whole }, 1, 1);
        let seamless = u64::from(insns[1].len) >= window.len.min(JUMP);
        let may_trap = self.env.traits.traps == TrapsPolicy::Guarded;
        let fits = window.room() >= JUMP && window.until > 1 && (may_trap || seamless);
        // Another deed of this entry may be in that window already.
        let joins = self.sites[self.first..].iter().any(|site| site.start == window.start);
        (fits && (joins || self.is_clear(&window, JUMP))).then_some(())
    }

    /// Plans a function with its entries' windows behind the first instruction, and once more with them at it if that refuses less: short
    /// functions have no room for both that and their exits' windows.
    pub(super) fn behind_or_at_head(&mut self, plan: impl Fn(&mut Self)) {
        let (start, refused_before) = (self.mark(), self.refused.len());
        plan(self);
        let behind = self.not_by_jumps(&start);
        if behind == (refused_before, 0) {
            return;
        }
        self.refused.truncate(refused_before);
        self.roll_back(start.clone());
        self.at_head = true;
        plan(self);
        self.at_head = false;
        if self.not_by_jumps(&start) >= behind {
            self.refused.truncate(refused_before);
            self.roll_back(start);
            plan(self);
        }
    }

    /// How many wants were refused, and of how many others, since `start`, the exits could not be patched.
    fn not_by_jumps(&self, start: &Mark) -> (usize, usize) {
        let since = self.slotted.get(start.slotted..).unwrap_or_default();
        (self.refused.len(), since.iter().filter(|one| one.why.is_of_exits()).count())
    }
}
