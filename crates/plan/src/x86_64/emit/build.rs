//! Builds one site's stub: its actions, and the displaced code between them.
//!
//! In: a site, the address at which its stub is to run. Out: bytes at the end of the plan's, and the guards, fixups,
//! deliveries and originals that belong to them. Does not: decide where the stub lies (`place` in [`emit`](super)).

use super::super::action::{PlacedAction, When};
use super::super::jump::{JUMP, jump};
use super::super::site::PatchedSite;
use super::super::stub::Liveness;
use super::Emitter;
use crate::plan::{Guard, Original};
use crate::refusal::{CodeBytes, Refusal};
use trapline_insn::x86_64::{Options, relocate_into, sweep};
use trapline_record::{RemoteAddr, Svma};

impl Emitter<'_, '_> {
    /// Writes the stub as it has to be at address `at`.
    pub(super) fn build(&mut self, site: &PatchedSite, at: RemoteAddr) -> Result<(), Refusal> {
        self.plan.bytes.truncate(self.start);
        self.pending.clear();
        self.returning.clear();
        self.guards.clear();
        self.fixups.clear();
        self.deliveries.clear();
        self.originals.clear();
        let mut falls = true;
        let mut from = 0;
        let mut actions = site.actions.as_slice();
        while from < site.insns.len() {
            let first = Svma(site.insns[from].addr);
            actions = self.actions_before(site, actions, first, at)?;
            if let Some(rest) = self.actions_taken(site, actions, first, at)? {
                actions = self.actions_after(site, rest, first, at)?;
                from += 1;
                continue;
            }
            let place = |a: &PlacedAction| {
                let found = site.insns.iter().position(|i| i.addr == a.at.0);
                found.map(|n| n + usize::from(a.when == When::After))
            };
            let until = actions.first().and_then(place).unwrap_or(site.insns.len()).max(from + 1);
            let last = site.insns[until - 1];
            falls = self.displaced(site, first, last.end() - first.0, at)?;
            actions = self.actions_after(site, actions, Svma(last.addr), at)?;
            from = until;
        }
        if falls {
            self.leave(site.code_end(), at);
        }
        self.stands_for(RemoteAddr(0), at);
        // Code that a return trampoline leads to lies behind its stub.
        let apart = (self.is_dense && self.returning.is_empty()).then(|| self.rests.next(1).0);
        let split = self.plan.bytes.len();
        let set = self.set;
        let refused = |why| Refusal::NoCode { site: set.env.place(site.start, JUMP), why };
        let mut pending = core::mem::take(&mut self.pending);
        for (nth, one) in pending.drain(..).enumerate() {
            let out = &mut self.plan.bytes;
            let fixups = match apart {
                Some(at) => one.finish_apart(out, split, at),
                None => one.finish(out, None),
            };
            self.keep_fixups(fixups.map_err(refused)?);
            if let Some((_, armed)) = self.returning.iter().find(|(of, _)| *of == nth).copied() {
                self.lead(&armed, at).map_err(refused)?;
            }
        }
        self.pending = pending;
        self.split = if apart.is_some() { split } else { self.plan.bytes.len() };
        Ok(())
    }
    pub(super) fn keep_fixups(&mut self, fixups: Vec<(u64, u64)>) {
        let guards = fixups.into_iter().map(|(at, to)| Guard { at: RemoteAddr(at), resume: RemoteAddr(to) });
        self.fixups.extend(guards);
    }

    /// Emits the actions before instruction `insn`. A guard for it leads to before they run.
    fn actions_before<'s>(
        &mut self,
        site: &PatchedSite,
        actions: &'s [PlacedAction],
        insn: Svma,
        at: RemoteAddr,
    ) -> Result<&'s [PlacedAction], Refusal> {
        if actions.first().is_some_and(|a| a.at == insn && a.when == When::Before) {
            self.guard(insn, at);
        }
        let rest = self.moment(site, actions, (insn, 0), at)?;
        self.moment(site, rest, (insn, 1), at)
    }

    /// Emits a conditional jump that has an action when it is taken.
    fn actions_taken<'s>(
        &mut self,
        site: &PatchedSite,
        actions: &'s [PlacedAction],
        insn: Svma,
        at: RemoteAddr,
    ) -> Result<Option<&'s [PlacedAction]>, Refusal> {
        let Some(&PlacedAction { when: When::Taken { condition, target }, detour, .. }) =
            actions.first().filter(|a| a.at == insn)
        else {
            return Ok(None);
        };
        self.guard(insn, at);
        self.stands_for(self.set.bias.live(insn), at);
        self.plan.bytes.extend_from_slice(&[0x0F, 0x80 | (condition ^ 1), 0, 0, 0, 0]);
        let hole = self.plan.bytes.len();
        let rest = self.moment(site, actions, (insn, 2), at)?;
        if detour.is_none() {
            self.leave(target, at);
        }
        let over = (self.plan.bytes.len() - hole) as i32;
        self.plan.bytes[hole - 4..hole].copy_from_slice(&over.to_le_bytes());
        Ok(Some(rest))
    }

    /// Emits the actions that run when instruction `insn` has gone on to the next one.
    fn actions_after<'s>(
        &mut self,
        site: &PatchedSite,
        actions: &'s [PlacedAction],
        insn: Svma,
        at: RemoteAddr,
    ) -> Result<&'s [PlacedAction], Refusal> {
        let rest = self.moment(site, actions, (insn, 3), at)?;
        self.moment(site, rest, (insn, 4), at)
    }

    /// Emits the actions of one moment, and the detour that they share.
    fn moment<'s>(
        &mut self,
        site: &PatchedSite,
        actions: &'s [PlacedAction],
        (insn, moment): (Svma, u8),
        at: RemoteAddr,
    ) -> Result<&'s [PlacedAction], Refusal> {
        let count = actions.iter().take_while(|a| a.at == insn && a.moment() == moment).count();
        let (now, rest) = actions.split_at(count);
        let detour = now.first().and_then(|a| a.detour);
        if let Some(detour) = detour.filter(|d| d.from < d.exit) {
            self.displaced(site, detour.from, detour.exit - detour.from, at)?;
        }
        if !now.is_empty() {
            self.stands_for(RemoteAddr(0), at);
        }
        for (nth, placed) in now.iter().enumerate() {
            self.raise_stack(placed.lowered.cast_signed());
            let is_read = now[nth + 1..].iter().any(|later| self.set.reads_registers(&later.action));
            let dead = if is_read { Liveness { dead: 0, ..placed.dead } } else { placed.dead };
            let shared = self.shared_at(site, placed);
            self.placed(&PlacedAction { dead, ..*placed }, shared, at);
            self.raise_stack(-placed.lowered.cast_signed());
        }
        if let Some(detour) = detour {
            self.leave(detour.exit, at);
        }
        Ok(rest)
    }

    /// rsp += `by`, by `lea`, which leaves the flags as they are.
    fn raise_stack(&mut self, by: i32) {
        if by != 0 {
            self.plan.bytes.extend_from_slice(&[0x48, 0x8D, 0xA4, 0x24]);
            self.plan.bytes.extend_from_slice(&by.to_le_bytes());
        }
    }

    /// Notes that a thread from here on would be at `of` if nothing were patched; 0 if that is not known.
    fn stands_for(&mut self, of: RemoteAddr, at: RemoteAddr) {
        if self.set.gate.is_some() && self.originals.last().is_none_or(|last| last.of != of) {
            self.originals.push(Original { copy: at + self.len(), of });
        }
    }

    /// Emits a jump back to the module.
    fn leave(&mut self, to: Svma, at: RemoteAddr) {
        self.stands_for(self.set.bias.live(to), at);
        let (here, to) = (at + self.len(), self.set.bias.live(to));
        if i32::try_from(to.distance_from(here + JUMP)).is_ok() {
            self.plan.bytes.extend_from_slice(&jump(here, to));
        } else {
            // jmp [rip]
            self.plan.bytes.extend_from_slice(&[0xFF, 0x25, 0, 0, 0, 0]);
            self.plan.bytes.extend_from_slice(&to.0.to_le_bytes());
        }
    }

    /// Appends the copies of instructions. Returns whether control runs off their end.
    fn displaced(
        &mut self,
        site: &PatchedSite,
        start: Svma,
        len: u64,
        at: RemoteAddr,
    ) -> Result<bool, Refusal> {
        let live = self.set.bias.live(start);
        let here = at + self.len();
        let bytes = self.set.env.image.text(start, len).ok_or(Refusal::NotInFile { at: start })?;
        self.insns.clear();
        let (end, by) = (start + len, live.0.wrapping_sub(start.0));
        match site.insns.iter().position(|i| i.addr == start.0) {
            Some(first) if end <= site.code_end() => {
                let known = site.insns[first..].iter().take_while(|i| i.addr < end.0);
                self.insns.extend(known.map(|i| i.moved(by)));
            }
            _ => self.insns.extend(sweep(bytes, live.0)),
        }
        let options = Options { shadow_stack: self.set.env.traits.shadow_stack };
        let mut moved = core::mem::take(&mut self.moved);
        relocate_into(&mut moved, &self.insns, bytes, here.0, options)
            .map_err(|why| self.refused(site, why))?;
        self.copy_guards(&moved, live, here);
        self.deliver(site, &moved, live, here);
        self.plan.bytes.extend_from_slice(&moved.bytes);
        let falls_through = moved.falls_through;
        self.moved = moved;
        Ok(falls_through)
    }

    fn refused(&self, site: &PatchedSite, why: trapline_insn::x86_64::RelocateError) -> Refusal {
        use trapline_insn::x86_64::RelocateError as E;
        let place = self.set.env.place(site.start, JUMP);
        match why {
            E::Immovable { addr, bytes, why } => {
                let insn = CodeBytes::new(self.set.bias.stated(RemoteAddr(addr)), &bytes);
                Refusal::Immovable { site: place, insn, why }
            }
            E::IntoInstruction { target, .. } => {
                Refusal::BranchIn { site: place, target: self.set.bias.stated(RemoteAddr(target)) }
            }
            E::Mismatch { .. } => Refusal::NotCode { site: place },
        }
    }
}
