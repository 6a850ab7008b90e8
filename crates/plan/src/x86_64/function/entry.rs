//! One action at a function's entry, or at a single instruction: what is dead there, and how the stack pointer
//! stands.
//!
//! In: a function or an address, the action. Out: a site, by `window_choice`. Does not: know why the action is
//! requested.

use super::Planner;
use super::code::Code;
use crate::refusal::Refusal;
use crate::x86_64::action::{PlacedAction, SiteAction, When};
use crate::x86_64::env::Env;
use crate::x86_64::jump::JUMP;
use crate::x86_64::site::Owner;
use crate::x86_64::stub;
use crate::x86_64::window::Stretch;
use trapline_image::FunctionIndex;
use trapline_insn::x86_64::{Class, Insn, faults_on_register, flags_dead_after, overwritten_gprs, sweep};
use trapline_record::Svma;

/// Number of instructions decoded at an entry: the window, and those that may show which registers are dead.
pub(super) const LOOK: usize = 12;
/// Least number of bytes decoded at an entry: `endbr64` and a jump.
pub(super) const LEAST: u64 = 4 + JUMP;

impl Planner<'_> {
    pub(super) fn entry(
        &mut self,
        function: FunctionIndex,
        action: SiteAction,
        owner: Owner,
    ) -> Result<(), Refusal> {
        let f = self.env.image.function(function);
        let bytes = self.env.image.text(f.start, f.len).ok_or(Refusal::NotInFile { at: f.start })?;
        let mut insns = core::mem::take(&mut self.scratch);
        // Nothing below rsp is live when a function is called. If it jumps back to its entry, its red zone
        // may be live, except in Go, which has none.
        let red_zone_live = self.env.map.is_looped(function) && !self.env.traits.go;
        if let Some(behind) = self.behind(&mut insns, (bytes, f.start), &action, red_zone_live) {
            let whole = insns.last().is_some_and(|last| last.end() == f.end().0);
            let (at, request) = (Svma(insns[1].addr), owner.request);
            let (dead, lowered) = (behind.dead, behind.lowered);
            let placed =
                PlacedAction { at, when: When::Before, action, dead, request, lowered, detour: None };
            let done = self.place(Stretch { insns: &insns, whole }, 1, placed, owner, false);
            self.scratch = insns;
            return done;
        }
        let ends = |i: &Insn| ends_line(&self.env, f.start, i);
        // If a consumer is called, everything is saved, so what is dead does not matter.
        let asks = !matches!(action, SiteAction::Call { .. });
        // `endbr64` neither reads nor writes, so what is dead at it is dead behind it.
        let found = self.look.0.ahead(&mut insns, (bytes, f.start.0), (LOOK, LEAST), |i| asks && !ends(i));
        let dead = stub::Liveness { flags_dead: found.flags, dead: found.gprs, red_zone_live };
        let whole = insns.last().is_some_and(|last| last.end() == f.end().0);
        let i = entry_index(&self.env, &insns);
        let stretch = Stretch { insns: &insns, whole };
        let placed = PlacedAction {
            at: Svma(insns[i].addr),
            when: When::Before,
            action,
            dead,
            request: owner.request,
            lowered: 0,
            detour: None,
        };
        let done = self.place(stretch, i, placed, owner, false);
        self.scratch = insns;
        done
    }

    pub(super) fn instruction(
        &mut self,
        function: Option<FunctionIndex>,
        at: Svma,
        code: Option<&Code>,
        action: SiteAction,
        owner: Owner,
    ) -> Result<(), Refusal> {
        if let Some(f) = function
            && self.env.image.function(f).start == at
        {
            return self.entry(f, action, owner);
        }
        if let Some((stretch, i)) = code.and_then(|c| c.stretch_of(at.0)) {
            let dead = dead_at(&self.env, &stretch.insns[i..stretch.insns.len().min(i + LOOK)], true);
            return self.place(
                stretch,
                i,
                PlacedAction {
                    at,
                    when: When::Before,
                    action,
                    dead,
                    request: owner.request,
                    lowered: 0,
                    detour: None,
                },
                owner,
                true,
            );
        }
        if let Some(insn) = code.and_then(|c| c.body.insns.iter().find(|i| i.addr < at.0 && at.0 < i.end())) {
            return Err(Refusal::InsideInstruction { site: self.env.place(at, 5), starts: Svma(insn.addr) });
        }
        self.loose(at, action, owner)
    }

    /// Plans an instruction outside all known functions.
    fn loose(&mut self, at: Svma, action: SiteAction, owner: Owner) -> Result<(), Refusal> {
        let bytes =
            (1..=64).rev().find_map(|len| self.env.image.text(at, len)).ok_or(Refusal::NotInFile { at })?;
        let insns: Vec<Insn> = sweep(bytes, at.0).take(LOOK).collect();
        let dead = dead_at(&self.env, &insns, true);
        let placed = PlacedAction {
            at,
            when: When::Before,
            action,
            dead,
            request: owner.request,
            lowered: 0,
            detour: None,
        };
        self.place(Stretch { insns: &insns, whole: false }, 0, placed, owner, false)
    }
}

/// Index of the instruction at which an entry's patch begins: behind `endbr64`, unless something branches
/// there.
pub(super) fn entry_index(env: &Env<'_>, insns: &[Insn]) -> usize {
    match insns {
        [first, second, ..] if first.class == Class::Endbr64 && !env.map.is_target(Svma(second.addr)) => 1,
        _ => 0,
    }
}

/// Whether nothing from this instruction on shows what is dead at `start`: a fault of it would show the registers
/// to the program's handler, or a probe there reads them (VAL-1).
pub(super) fn ends_line(env: &Env<'_>, start: Svma, insn: &Insn) -> bool {
    (env.traits.has_fault_handler && faults_on_register(insn)) || env.is_observed(start, Svma(insn.addr))
}

/// What the straight line of code that begins here overwrites before anything reads it.
fn dead_at(env: &Env<'_>, insns: &[Insn], red_zone_live: bool) -> stub::Liveness {
    let start = insns.first().map_or(Svma(0), |first| Svma(first.addr));
    let sure = insns.iter().position(|i| ends_line(env, start, i)).unwrap_or(insns.len());
    let insns = &insns[..sure];
    let len: u64 = insns.iter().map(|i| u64::from(i.len)).sum();
    let bytes = insns.first().and_then(|i| env.image.text(Svma(i.addr), len)).unwrap_or(&[]);
    stub::Liveness {
        flags_dead: flags_dead_after(insns, bytes),
        dead: overwritten_gprs(insns, bytes),
        red_zone_live,
    }
}
