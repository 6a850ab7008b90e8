//! The exits of a function: each return, tail call and fall-through gets an action, or the request is
//! refused.
//!
//! In: a function's code. Out: sites. An exit without room for a jump is patched where it is decided. Does
//! not: choose windows (see `window_choice`).

use super::code::Code;
use super::entry::entry_index;
use super::{Planner, kind_of};
use crate::plan::PatchRole;
use crate::refusal::{NoTrampoline, Refusal};
use crate::request::{Action, ActionRequest};
use crate::x86_64::action::{Detour, PlacedAction, SiteAction, Stack, When};
use crate::x86_64::site::Owner;
use crate::x86_64::stub;
use trapline_image::FunctionIndex;
use trapline_insn::x86_64::{Class, Exit, ExitKind, Flow, Insn, faults_on_register, may_displace};
use trapline_record::Svma;
use trapline_record::ring::RecordKind;

/// Upper bound of the instructions that are copied before an exit, if jumps lead to them.
const MAX_TAIL: usize = 10;

impl Planner<'_> {
    pub(super) fn latency(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        latency: u32,
    ) -> Result<(), Refusal> {
        let f = self.env.image.function(function);
        let code = code.ok_or(Refusal::NotInFile { at: f.start })?;
        self.exits_known(code)?;
        if code.body.exits.is_empty() {
            return Err(Refusal::NoExit { at: f.start });
        }
        let first =
            entry_index(&self.env, code.body.insns.get(..2.min(code.body.insns.len())).unwrap_or(&[]));
        let site = code.body.insns.get(first).map_or(f.start, |i| Svma(i.addr));
        let looped = [f.start, site].iter().any(|&to| code.jump_to(to).is_some());
        // A handler of faults may return to one of the first two instructions, where the action is.
        let faulty = |i: &Insn| self.env.traits.faults_delivered && faults_on_register(i);
        let looped = looped || code.body.insns.iter().take(first + 2).any(faulty);
        self.entry(function, SiteAction::Enter { latency, looped }, owner(PatchRole::Entry))?;
        self.each_exit(code, &owner, |_, kind| SiteAction::Exit { latency, kind })
    }

    /// Plans an entry that replaces the return address by a return trampoline.
    pub(super) fn armed(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        latency: u32,
    ) -> Result<(), Refusal> {
        self.may_arm(function, code)?;
        self.entry(function, SiteAction::Arm { latency }, owner(PatchRole::Entry))
    }

    /// Checks that the word a function is entered with is an address to which a call returns, and that no
    /// other code reads it.
    pub(super) fn may_arm(&self, function: FunctionIndex, code: Option<&Code>) -> Result<(), Refusal> {
        let at = self.env.image.function(function).start;
        let code = code.ok_or(Refusal::NotInFile { at })?;
        let refuse = |why| Err(Refusal::NoTrampoline { at, why });
        if self.env.traits.shadow_stack {
            return refuse(NoTrampoline::ShadowStack);
        }
        if self.env.traits.go {
            return refuse(NoTrampoline::Go);
        }
        if at == self.env.image.entry() {
            return refuse(NoTrampoline::ProgramEntry);
        }
        // A tail call is as good as a return, since the other function finds the return address in the same
        // place and returns to it. Code that leaves only by indirect jumps may be the loader's glue, which is
        // entered with other words on the stack.
        let returns = |kind| matches!(kind, ExitKind::Ret | ExitKind::TailJump(_) | ExitKind::TailBranch(_));
        if !code.body.exits.iter().any(|exit| returns(exit.kind)) {
            return match code.body.exits.is_empty() && code.body.exits_known() {
                true => Err(Refusal::NoExit { at }),
                false => refuse(NoTrampoline::NoReturn),
            };
        }
        if let Some(insn) = code.jump_to(at) {
            return refuse(NoTrampoline::Looped(self.env.place(Svma(insn.addr), insn.len.into())));
        }
        if self.env.map.is_looped(function) {
            return refuse(NoTrampoline::Looped(self.env.place(at, 1)));
        }
        if let Some(reads) = self.env.map.names_return_address(self.env.image, function) {
            return refuse(NoTrampoline::Named(self.env.place(reads, 4)));
        }
        Ok(())
    }

    /// Plans an entry and, with `returns`, all exits; with `by_trampoline` a return trampoline instead of the
    /// exits.
    pub(super) fn record(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        request: &ActionRequest,
        by_trampoline: bool,
    ) -> Result<(), Refusal> {
        let at = self.env.image.function(function).start;
        let (probe, Action::Record { values, returns, valued, texts, ended, floats, fields, stack: unwind }) =
            (request.probe, request.action)
        else {
            return Err(Refusal::Incomplete { at });
        };
        let stack = Stack { unwind, at_entry: true };
        self.env.recordable(at, probe, texts != 0 || fields != 0)?;
        let marked = returns && self.env.filter(probe).is_some();
        let action =
            |kind| SiteAction::Record { probe, kind, values, valued, marked, texts, ended, floats, stack };
        self.entry(function, action(RecordKind::Entry), owner(PatchRole::Entry))?;
        if !returns {
            return Ok(());
        }
        if by_trampoline {
            self.may_arm(function, code)?;
            // This comes behind the entry's record, which may read the stack.
            let arm = SiteAction::ArmRecord { probe, values, valued, marked, texts, ended, floats, stack };
            return self.entry(function, arm, owner(PatchRole::Entry));
        }
        let code = code.ok_or(Refusal::NotInFile { at })?;
        self.exits_known(code)?;
        self.each_exit(code, &owner, |_, kind| action(kind_of(kind)))
    }

    /// Plans all exits, and the entry too if exits aggregate what only the entry knew; with `by_trampoline` a
    /// return trampoline instead of the exits.
    pub(super) fn tally(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        request: &ActionRequest,
        by_trampoline: bool,
    ) -> Result<(), Refusal> {
        let probe = request.probe;
        self.env.recordable(self.env.image.function(function).start, probe, false)?;
        if self.env.filter(probe).is_some_and(|filter| filter.late.is_some()) {
            let entry = SiteAction::Tally { probe, kind: RecordKind::Entry };
            self.entry(function, entry, owner(PatchRole::Entry))?;
        }
        if by_trampoline {
            self.may_arm(function, code)?;
            return self.entry(function, SiteAction::ArmTally { probe }, owner(PatchRole::Entry));
        }
        self.at_exits(function, code, owner, |exit| SiteAction::Tally { probe, kind: kind_of(exit) })
    }

    /// Puts an action at each exit.
    pub(super) fn at_exits(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        action: impl Fn(stub::ExitKind) -> SiteAction,
    ) -> Result<(), Refusal> {
        let at = self.env.image.function(function).start;
        let code = code.ok_or(Refusal::NotInFile { at })?;
        self.exits_known(code)?;
        if code.body.exits.is_empty() {
            return Err(Refusal::NoExit { at });
        }
        self.each_exit(code, &owner, |_, kind| action(kind))
    }

    /// Plans calls of consumers at all exits. They see the returned value, and the address of the instruction
    /// that returns.
    pub(super) fn call_exits(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        probe: u32,
    ) -> Result<(), Refusal> {
        let at = self.env.image.function(function).start;
        let code = code.ok_or(Refusal::NotInFile { at })?;
        self.exits_known(code)?;
        if code.body.exits.is_empty() {
            return Err(Refusal::NoExit { at });
        }
        if let Some(tail) = code.body.exits.iter().find(|exit| exit.kind != ExitKind::Ret) {
            return Err(Refusal::TailCall { at: self.env.place(Svma(tail.insn.addr), tail.insn.len.into()) });
        }
        self.each_exit(code, &owner, |ip, _| SiteAction::Call { probe, ip, exit: true })
    }

    fn exits_known(&self, code: &Code) -> Result<(), Refusal> {
        if let Some(&at) = code.body.unresolved.first() {
            return Err(Refusal::ExitsUnknown { at: self.env.place(Svma(at), 3) });
        }
        match code.body.invalid {
            Some(at) => Err(Refusal::ExitsUnreadable { at: self.env.place(Svma(at), 4) }),
            None => Ok(()),
        }
    }

    fn each_exit(
        &mut self,
        code: &Code,
        owner: &impl Fn(PatchRole) -> Owner,
        action: impl Fn(Svma, stub::ExitKind) -> SiteAction,
    ) -> Result<(), Refusal> {
        let bound = 1 + self.env.map.exit_bound(code.function) as usize;
        for exit in &code.body.exits {
            let at = Svma(exit.insn.addr);
            self.exit(code, exit, owner, &action)
                .or_else(|why| self.ways_to(code, exit, owner, &action, bound).map_err(|()| why))
                .map_err(|why| Refusal::ExitUnpatchable { at, why: Box::new(why) })?;
        }
        Ok(())
    }

    fn exit(
        &mut self,
        code: &Code,
        exit: &Exit,
        owner: &impl Fn(PatchRole) -> Owner,
        action: &impl Fn(Svma, stub::ExitKind) -> SiteAction,
    ) -> Result<(), Refusal> {
        let at = Svma(exit.insn.addr);
        let (stretch, i) = code.stretch_of(at.0).ok_or(Refusal::NotInFile { at })?;
        let (role, kind) = match exit.kind {
            ExitKind::Ret => (PatchRole::ExitRet, stub::ExitKind::Return),
            _ => (PatchRole::ExitTail, stub::ExitKind::Tail),
        };
        let when = match exit.kind {
            ExitKind::TailBranch(to) => {
                When::Taken { condition: self.condition(&exit.insn)?, target: Svma(to) }
            }
            ExitKind::FallThrough(_) => When::After,
            _ => When::Before,
        };
        let dead = stub::Liveness { red_zone_live: exit.kind != ExitKind::Ret, ..stub::Liveness::default() };
        self.place(
            stretch,
            i,
            PlacedAction {
                at,
                when,
                action: action(at, kind),
                dead,
                request: owner(role).request,
                lowered: 0,
                detour: None,
            },
            owner(role),
            true,
        )
    }

    /// Patches an exit without room for a jump at the places that lead to it. The exit may have no room
    /// because a jump leads to it, or to one of the last instructions before it. Each jump to that tail, and
    /// the instruction that runs into it, get a copy of the tail. This is done only if nothing else leads
    /// there.
    fn ways_to(
        &mut self,
        code: &Code,
        exit: &Exit,
        owner: &impl Fn(PatchRole) -> Owner,
        action: &impl Fn(Svma, stub::ExitKind) -> SiteAction,
        bound: usize,
    ) -> Result<(), ()> {
        let (stretch, i) = code.stretch_of(exit.insn.addr).ok_or(())?;
        if exit.kind != ExitKind::Ret {
            return Err(());
        }
        let near =
            code.leads_near(Svma(stretch.insns[i.saturating_sub(MAX_TAIL)].addr), Svma(exit.insn.addr));
        for from in (i.saturating_sub(MAX_TAIL)..=i).rev() {
            // A handler that returns to an instruction of a detour would return past its action.
            let faulty = |insn: &Insn| self.env.traits.has_fault_handler && faults_on_register(insn);
            let plain =
                |insn: &Insn| insn.flow() == Flow::Next && may_displace(insn).is_ok() && !faulty(insn);
            if from != i && !plain(&stretch.insns[from]) {
                break;
            }
            let Some(ways) = self.ways_into(code, &near, &stretch.insns[from..=i]) else { continue };
            let done = self.whole(|p| {
                ways.iter().try_for_each(|&(at, when, detour)| {
                    let (stretch, i) = code.stretch_of(at.0).ok_or(Refusal::NotInFile { at })?;
                    let owner = owner(PatchRole::ExitRet);
                    let dead = stub::Liveness::default();
                    let action = action(Svma(exit.insn.addr), stub::ExitKind::Return);
                    let placed = PlacedAction {
                        at,
                        when,
                        action,
                        dead,
                        request: owner.request,
                        lowered: 0,
                        detour: Some(detour),
                    };
                    p.place(stretch, i, placed, owner, true)
                })?;
                let many = p.sites.current().len() > bound;
                if many {
                    Err(Refusal::NoRoom { site: p.env.place(Svma(exit.insn.addr), 1) })
                } else {
                    Ok(())
                }
            });
            if done.is_ok() {
                return Ok(());
            }
        }
        Err(())
    }

    /// Everything that leads into the straight line `tail`, which ends in an exit; `None` if this
    /// is not known. `near`: all instructions that may (see [`Code::leads_near`]).
    fn ways_into(&self, code: &Code, near: &[Insn], tail: &[Insn]) -> Option<Vec<(Svma, When, Detour)>> {
        let (first, exit) = (tail.first()?.addr, Svma(tail.last()?.addr));
        let inside = |at: u64| at >= first && at <= exit.0;
        let detour = |from: u64| Detour { from: Svma(from), exit };
        let mut ways = Vec::new();
        let mut reached = Vec::new();
        for insn in near {
            if insn.ip_rel().is_some_and(inside) {
                return None;
            }
            match insn.flow() {
                Flow::Branch(to) if inside(to) => {
                    let when = When::Taken { condition: self.condition(insn).ok()?, target: exit };
                    ways.push((Svma(insn.addr), when, detour(to)));
                    reached.push(to);
                }
                Flow::Jump(Some(to)) if inside(to) => {
                    ways.push((Svma(insn.addr), When::Before, detour(to)));
                    reached.push(to);
                }
                Flow::Call(Some(to)) if inside(to) => return None,
                _ => {}
            }
            match insn.flow() {
                Flow::Call(_) | Flow::Syscall if insn.end() == first => return None,
                _ if insn.end() == first && insn.flow().falls_through() => {
                    ways.push((Svma(insn.addr), When::After, detour(first)));
                }
                _ => {}
            }
        }
        let named = |at: u64| {
            // The map also holds addresses that data names.
            let by_data = || self.env.map.is_named_by_data(Svma(at));
            let elsewhere = || self.env.map.is_target(Svma(at)) && (!reached.contains(&at) || by_data());
            code.body.by_table.binary_search(&at).is_ok() || elsewhere()
        };
        (!tail.iter().any(|i| named(i.addr))).then_some(ways)
    }

    /// The condition of a jump, which the stub has to repeat.
    fn condition(&self, insn: &Insn) -> Result<u8, Refusal> {
        let site = self.env.place(Svma(insn.addr), u64::from(insn.len));
        let bytes = site.bytes();
        let opcode = bytes.len().checked_sub(usize::from(insn.rel_size) + 1).map(|n| bytes[n]);
        match (insn.class, opcode) {
            (Class::Jcc, Some(opcode)) => Ok(opcode & 15),
            _ => Err(Refusal::TooShort { site, room: insn.len }),
        }
    }
}
