//! Turns sites into code: stubs at their mirrored addresses or in the arena, patches, guards.
//!
//! In: sites, where the module's space is. Out: chunks, patches and guards of a [`ModulePlan`]. Invariant:
//! EMIT-1 a chunk ends before the next one begins; a stub too long for its place in the mirrored range is
//! reached from there by one jump.

mod actions;

use super::Env;
use super::site::{PatchedSite, PlacedAction, Reach, SiteAction, When};
use super::stub::{Gate, Latency, Machine, Pending, Rings, Threads};
use super::window::JUMP;
use crate::layout::{DataAt, DataLayout};
use crate::machine::TrapsPolicy;
use crate::plan::{Call, Chunk, Guard, ModulePlan, Original, Patch, PatchRole};
use crate::refusal::Refusal;
use crate::space::ModuleSpace;
use trapline_insn::x86_64::{Insn, Options, Relocated, relocate_into, sweep};
use trapline_record::addr::Bias;
use trapline_record::journal::MAX_PATCH;
use trapline_record::{RemoteAddr, Svma};

/// Stubs go to the arena right away if the place has fewer bytes than this.
const LEAST_STUB: u64 = 128;
/// Bytes between the starts of two stubs in the arena; a cache line would be 64.
const ALIGN: u64 = 16;
/// `jmp rel32`
const E9: u8 = 0xE9;
/// `jmp rel8`
const EB: u8 = 0xEB;
const INT3: u8 = 0xCC;

/// What stubs depend on, in addition to their site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) bias: Bias,
    pub(crate) place: ModuleSpace,
    /// Where the segment's data is mapped.
    pub(crate) data: DataAt,
    /// End of the mirrored range: no stub there may reach beyond it.
    pub(crate) mirror_end: RemoteAddr,
    /// Sites of other batches may come between these, so the mirrored range holds only jumps.
    pub(crate) shared_space: bool,
    pub(crate) layout: &'a DataLayout,
    pub(crate) machine: Machine,
    /// Present if durations are measured.
    pub(crate) latency: Option<Latency>,
    /// Present if hits are counted by thread.
    pub(crate) threads: Option<Threads>,
    /// Present if records are written.
    pub(crate) rings: Option<Rings>,
    /// Present if consumers are called.
    pub(crate) gate: Option<Gate>,
}

/// Lays out code.
#[derive(Debug)]
pub(crate) struct Emitter<'a, 'p> {
    set: &'a Setting<'a>,
    plan: &'p mut ModulePlan,
    /// Next free byte of the arena, and its end.
    arena: (RemoteAddr, RemoteAddr),
    /// Chunks in the arena, and the originals of copies there. Each list is in order by itself; one list of
    /// all stubs would not be.
    behind: Vec<Chunk>,
    originals_behind: Vec<Original>,
    /// Where the stub under construction begins in the plan's bytes. It extends to their end.
    start: usize,
    pending: Vec<Pending<'a>>,
    /// Which of `pending` arm a return trampoline that leads on to a record or aggregation.
    returning: Vec<(usize, PlacedAction)>,
    guards: Vec<Guard>,
    fixups: Vec<Guard>,
    originals: Vec<Original>,
    insns: Vec<Insn>,
    moved: Relocated,
}

impl<'a, 'p> Emitter<'a, 'p> {
    pub(crate) fn new(
        set: &'a Setting<'a>,
        plan: &'p mut ModulePlan,
        arena: (RemoteAddr, RemoteAddr),
    ) -> Self {
        Self {
            set,
            start: plan.bytes.len(),
            plan,
            arena,
            behind: Vec::new(),
            originals_behind: Vec::new(),
            pending: Vec::new(),
            returning: Vec::new(),
            guards: Vec::new(),
            fixups: Vec::new(),
            originals: Vec::new(),
            insns: Vec::new(),
            moved: Relocated::default(),
        }
    }

    /// Puts the chunks in order. Returns the first free address of the arena.
    pub(crate) fn finish(mut self) -> RemoteAddr {
        self.plan.bytes.truncate(self.start);
        self.plan.chunks.append(&mut self.behind);
        self.plan.originals.append(&mut self.originals_behind);
        self.arena.0
    }

    /// Lays out one site's stub, then its patches. A thread enters at `stub_start`; `room` is the number of
    /// bytes from there to the next site's place.
    ///
    /// # Errors
    /// The refusal, if an instruction cannot be moved after all. Nothing is planned then.
    pub(crate) fn site(
        &mut self,
        site: &PatchedSite,
        stub_start: RemoteAddr,
        room: u64,
    ) -> Result<(), Refusal> {
        let direct = room >= LEAST_STUB && !matches!(site.reach, Reach::Pun(..) | Reach::Trap);
        if direct {
            self.build(site, stub_start)?;
        }
        let head = if direct && self.len() <= room {
            self.chunk(stub_start);
            stub_start
        } else {
            let head = RemoteAddr(self.arena.0.0.next_multiple_of(ALIGN));
            self.build(site, head)?;
            if head.0 + self.len() > self.arena.1.0 {
                return Err(Refusal::NoRoom { site: self.set.env.place(site.start, JUMP) });
            }
            self.arena.0 = head + self.len();
            self.chunk(head);
            if site.reach != Reach::Trap {
                self.plan.bytes.extend_from_slice(&jump(stub_start, head));
                self.chunk(stub_start);
            }
            head
        };
        if self.set.gate.is_some() {
            self.calls(site);
        }
        let list = if self.is_behind(head) { &mut self.originals_behind } else { &mut self.plan.originals };
        list.append(&mut self.originals);
        self.plan.fixups.append(&mut self.fixups);
        self.keep_guards(site);
        self.padding_guards(site);
        self.astray_guard(site, head);
        self.patch(site, head);
        Ok(())
    }

    /// Notes what a trap handler needs to call the site's consumers without the stub.
    fn calls(&mut self, site: &PatchedSite) {
        let head = self.set.bias.live(site.start);
        let is_trap = site.reach == Reach::Trap;
        let call = |placed: &PlacedAction| match placed.action {
            SiteAction::Call { probe, exit, .. } if placed.when == When::Before => Some((probe, exit)),
            _ => None,
        };
        for actions in site.actions.chunk_by(|a, b| a.at == b.at) {
            let at = self.set.bias.live(actions[0].at);
            let copy = self.originals.iter().find(|o| o.of == at).map_or(at, |o| o.copy);
            let called = actions.iter().filter_map(call).collect();
            self.plan.calls.push(Call { at, head, is_trap, copy, called });
        }
    }

    /// Keeps the guards inside the changed bytes. If an instruction has two, the first one is kept: it leads
    /// to before the actions there.
    fn keep_guards(&mut self, site: &PatchedSite) {
        let start = self.set.bias.live(site.start);
        let mut last = start;
        for guard in self.guards.drain(..) {
            if guard.at > last && guard.at < start + site.changed {
                self.plan.guards.push(guard);
                last = guard.at;
            }
        }
    }

    fn chunk(&mut self, addr: RemoteAddr) {
        let (off, len) = (self.start as u32, self.len() as u32);
        self.start = self.plan.bytes.len();
        let list = if self.is_behind(addr) { &mut self.behind } else { &mut self.plan.chunks };
        list.push(Chunk { addr, off, len });
    }

    /// Whether the address lies in the arena.
    fn is_behind(&self, addr: RemoteAddr) -> bool {
        addr >= self.set.place.arena && self.set.place.code.contains(addr)
    }

    /// Length in bytes of the stub under construction.
    const fn len(&self) -> u64 {
        (self.plan.bytes.len() - self.start) as u64
    }

    /// Writes the stub as it has to be at address `at`.
    fn build(&mut self, site: &PatchedSite, at: RemoteAddr) -> Result<(), Refusal> {
        self.plan.bytes.truncate(self.start);
        self.pending.clear();
        self.returning.clear();
        self.guards.clear();
        self.fixups.clear();
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
        let mut pending = core::mem::take(&mut self.pending);
        for (nth, one) in pending.drain(..).enumerate() {
            let fixups = one.finish(&mut self.plan.bytes, None);
            self.keep_fixups(fixups);
            if let Some((_, armed)) = self.returning.iter().find(|(of, _)| *of == nth).copied() {
                self.lead(&armed, at);
            }
        }
        self.pending = pending;
        Ok(())
    }
    fn keep_fixups(&mut self, fixups: Vec<(u64, u64)>) {
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
        for placed in now {
            self.raise_stack(placed.lowered.cast_signed());
            self.placed(placed, at);
            self.raise_stack(-placed.lowered.cast_signed());
        }
        if let Some(detour) = detour {
            self.leave(detour.exit, at);
        }
        Ok(rest)
    }

    /// `lea rsp, [rsp + by]`, which leaves the flags as they are.
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

    fn guard(&mut self, insn: Svma, at: RemoteAddr) {
        let resume = at + self.len();
        self.guards.push(Guard { at: self.set.bias.live(insn), resume });
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
        self.plan.bytes.extend_from_slice(&moved.bytes);
        let falls_through = moved.falls_through;
        self.moved = moved;
        Ok(falls_through)
    }

    fn copy_guards(&mut self, moved: &Relocated, live: RemoteAddr, here: RemoteAddr) {
        for &(old, new) in &moved.offsets {
            let (at, resume) = (live + u64::from(old), here + u64::from(new));
            self.guards.push(Guard { at, resume });
            if self.set.gate.is_some() {
                self.originals.push(Original { copy: resume, of: at });
            }
        }
    }

    fn refused(&self, site: &PatchedSite, why: trapline_insn::x86_64::RelocateError) -> Refusal {
        use trapline_insn::x86_64::RelocateError as E;
        let place = self.set.env.place(site.start, JUMP);
        match why {
            E::Immovable { addr, bytes, why } => {
                let insn = crate::refusal::CodeBytes::new(self.set.bias.stated(RemoteAddr(addr)), &bytes);
                Refusal::Immovable { site: place, insn, why }
            }
            E::IntoInstruction { target, .. } => {
                Refusal::BranchIn { site: place, target: self.set.bias.stated(RemoteAddr(target)) }
            }
            E::Mismatch { .. } => Refusal::NotCode { site: place },
        }
    }

    /// Adds guards for nops in the changed bytes that no known code runs: a thread there goes on behind them.
    fn padding_guards(&mut self, site: &PatchedSite) {
        let (end, limit) = (site.code_end(), site.start + site.changed);
        if end >= limit {
            return;
        }
        let room = (limit - end) + 15;
        let bytes = (1..=room).rev().find_map(|len| self.set.env.image.text(end, len)).unwrap_or(&[]);
        let nops: Vec<Insn> = sweep(bytes, end.0)
            .take_while(|i| i.is_padding() && i.class != trapline_insn::x86_64::Class::Int3)
            .collect();
        let Some(behind) = nops.iter().map(Insn::end).find(|e| *e >= limit.0) else { return };
        for nop in nops.iter().filter(|i| i.addr < limit.0) {
            let at = self.set.bias.live(Svma(nop.addr));
            self.plan.guards.push(Guard { at, resume: self.set.bias.live(Svma(behind)) });
        }
    }

    /// Adds a guard for the moment at which a kernel uprobe on the site's first byte is removed: the kernel
    /// puts the file's first byte in front of our displacement. A prefix there has no effect on the int3
    /// behind it. So a thread that traps on that int3 has not executed anything yet, and begins with the stub
    /// (docs/guide/foreign-patches.md).
    fn astray_guard(&mut self, site: &PatchedSite, head: RemoteAddr) {
        let first = self.set.env.image.text(site.start, 1).map_or(0, |bytes| bytes[0]);
        let at = self.set.bias.live(site.start) + 1;
        let traps =
            self.set.place.k.to_le_bytes()[0] == INT3 && site.insns.first().is_some_and(|i| i.len > 1);
        let served = self.set.gate.is_none() && self.set.env.traits.traps == TrapsPolicy::Guarded;
        if site.reach == Reach::Mirror && served && traps && is_prefix_of_int3(first) {
            self.plan.guards.push(Guard { at, resume: head });
        }
    }

    fn patch(&mut self, site: &PatchedSite, head: RemoteAddr) {
        let k = self.set.place.k.to_le_bytes();
        let mut new = [0; MAX_PATCH];
        match site.reach {
            Reach::Mirror => new[..5].copy_from_slice(&[E9, k[0], k[1], k[2], k[3]]),
            Reach::Pun(rel, _) => {
                let whole = [E9, rel[0], rel[1], rel[2], rel[3]];
                let changed = site.changed as usize;
                new[..changed].copy_from_slice(&whole[..changed]);
            }
            Reach::Trap => new[0] = INT3,
            Reach::Island(island) => {
                let rel = island.0.wrapping_sub(site.start.0 + 2) as u8;
                new[..2].copy_from_slice(&[EB, rel]);
                let mut jump = [0; MAX_PATCH];
                jump[..5].copy_from_slice(&[E9, k[0], k[1], k[2], k[3]]);
                self.push(site, island, JUMP, jump, head, PatchRole::Island);
            }
        }
        self.push(site, site.start, site.changed, new, head, site.owner.role);
    }

    fn push(
        &mut self,
        site: &PatchedSite,
        start: Svma,
        changed: u64,
        new: [u8; MAX_PATCH],
        head: RemoteAddr,
        role: PatchRole,
    ) {
        let addr = self.set.bias.live(start);
        let mut old = [0; MAX_PATCH];
        if let Some(bytes) = self.set.env.image.text(start, changed) {
            old[..bytes.len()].copy_from_slice(bytes);
        }
        let patch = Patch {
            probe: site.owner.probe,
            request: site.owner.request,
            role,
            tactic: site.tactic(),
            addr,
            len: changed as u8,
            relies: if role != PatchRole::Island && matches!(site.reach, Reach::Pun(..)) {
                JUMP
            } else {
                changed
            } as u8,
            old,
            new,
            head,
            crosses_line: addr.0 / 64 != (addr.0 + changed - 1) / 64,
            starts: if role == PatchRole::Island { 0 } else { site.starts() },
            faults: site.may_fault(),
        };
        self.plan.patches.push(patch);
    }
}

/// Prefixes that an int3 may have, and that do not change it: segments, sizes, `repne`, `rep`, REX.
const fn is_prefix_of_int3(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF2 | 0xF3)
}

fn jump(from: RemoteAddr, to: RemoteAddr) -> [u8; 5] {
    let rel = (to.distance_from(from + JUMP) as i32).to_le_bytes();
    [E9, rel[0], rel[1], rel[2], rel[3]]
}
