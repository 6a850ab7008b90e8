//! All sites of one function: entry, exits, single instructions, and what they do to each other.
//!
//! In: a function and what is wanted there. Out: sites whose windows are disjoint; where two wants need the same window,
//! one site that does both. A want is met whole or refused whole.

use super::Env;
use super::kernel::takes_uprobe;
use super::padding::{Claims, SHORT, island};
use super::pun::Puns;
use super::site::{Act, Deed, Detour, Owner, Reach, Site, When};
use super::stub;
use super::window::{JUMP, Stretch, Window, in_rseq, refusal, walk};
use crate::codemap::body_of;
use crate::plan::{KernelSite, PatchRole, Refused};
use crate::refusal::Refusal;
use crate::request::{Role, TrapsPolicy, Want};
use trapline_image::FunctionIndex;
use trapline_insn::x86_64::{
    Body, Class, Exit, ExitKind, Flow, Insn, Look, faults_on_register, flags_dead_after, may_displace,
    overwritten_gprs, sweep,
};
use trapline_record::Svma;
use trapline_record::addr::Bias;

/// Instructions decoded at an entry: the window, and those that may show what is dead.
const LOOK: usize = 6;
/// Bytes decoded there at least: `endbr64` and a jump.
const LEAST: u64 = 4 + JUMP;
/// How far back an exit's window may begin.
const BACK: usize = 16;

/// Instructions before an exit that are copied, at most, where jumps lead to them.
const MAX_TAIL: usize = 10;

/// What planning a module's functions adds up to.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) bias: Bias,
    pub(crate) claims: Claims,
    pub(crate) puns: Puns<'a>,
    pub(crate) sites: Vec<Site>,
    pub(crate) kernel: Vec<KernelSite>,
    pub(crate) refused: Vec<Refused>,
    /// First of `sites` that belongs to the function in hand.
    first: usize,
    /// The functions wanted, sorted: no pun leans on their bytes.
    wanted: Vec<FunctionIndex>,
    scratch: Vec<Insn>,
    look: Looking,
}

/// What looking ahead keeps from call to call.
#[derive(Default)]
struct Looking(Look);

impl core::fmt::Debug for Looking {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Looking")
    }
}

/// A function's code in full.
struct Code {
    function: FunctionIndex,
    body: Body,
    /// Ranges of `body.insns`, one for each part.
    parts: Vec<core::ops::Range<usize>>,
}

impl Code {
    fn stretch_of(&self, at: u64) -> Option<(Stretch<'_>, usize)> {
        self.parts.iter().find_map(|part| {
            let insns = &self.body.insns[part.clone()];
            let i = insns.binary_search_by_key(&at, |i| i.addr).ok()?;
            Some((Stretch { insns, whole: true }, i))
        })
    }
}

impl<'a> Planner<'a> {
    pub(crate) fn new(env: Env<'a>, bias: Bias, puns: Puns<'a>) -> Self {
        Self {
            env,
            bias,
            claims: Claims::default(),
            puns,
            sites: Vec::new(),
            kernel: Vec::new(),
            refused: Vec::new(),
            first: 0,
            wanted: Vec::new(),
            scratch: Vec::new(),
            look: Looking::default(),
        }
    }

    /// Plans all wants, which are sorted by function.
    pub(crate) fn functions(&mut self, order: &[(u32, Want)]) {
        self.wanted = order.iter().filter_map(|(_, w)| w.function).collect();
        self.wanted.dedup();
        for group in order.chunk_by(|a, b| a.1.function == b.1.function) {
            self.function(group[0].1.function, group);
        }
    }

    /// Plans all wants of one function (or, without one, single instructions).
    fn function(&mut self, function: Option<FunctionIndex>, wants: &[(u32, Want)]) {
        self.first = self.sites.len();
        let entry_only = wants.iter().all(|(_, w)| w.role == Role::CountEntry);
        let code = function.filter(|_| !entry_only).map(|f| self.code_of(f));
        let order = |role: Role| match role {
            Role::CountEntry => 0,
            Role::Latency => 1,
            Role::CountExits => 2,
            Role::CountAt(_) => 3,
        };
        for rank in 0..4 {
            for (index, want) in wants.iter().filter(|(_, w)| order(w.role) == rank) {
                if let Err(why) = self.want(*index, want, code.as_ref()) {
                    self.refused.push(Refused { probe: want.probe, want: *index, why });
                }
            }
        }
    }

    fn want(&mut self, index: u32, want: &Want, code: Option<&Code>) -> Result<(), Refusal> {
        let owner = |role| Owner { want: index, probe: want.probe, role };
        let count = Deed::Count { probe: want.probe };
        match (want.role, want.function) {
            (Role::CountEntry, Some(f)) => {
                let done = self.entry(f, count, owner(PatchRole::Entry));
                self.or_kernel(done, owner(PatchRole::Entry), self.env.image.function(f).start)
            }
            (Role::CountAt(at), f) => {
                let done = self.instruction(f, at, code, count, owner(PatchRole::Entry));
                self.or_kernel(done, owner(PatchRole::Entry), at)
            }
            (Role::CountExits, Some(f)) => self.whole(|p| p.count_exits(f, code, owner, count)),
            (Role::Latency, Some(f)) => {
                let latency =
                    want.latency.ok_or(Refusal::Incomplete { at: self.env.image.function(f).start })?;
                self.whole(|p| p.latency(f, code, owner, latency))
            }
            (_, None) => Err(Refusal::Incomplete { at: Svma(0) }),
        }
    }

    /// Undoes everything when `plan` fails.
    fn whole(&mut self, plan: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let sites = self.sites[self.first..].to_vec();
        let (claims, puns, kernel) = (self.claims.mark(), self.puns.mark(), self.kernel.len());
        plan(self).inspect_err(|_| {
            self.sites.truncate(self.first);
            self.sites.extend(sites);
            self.claims.rollback(claims);
            self.puns.rollback(puns);
            self.kernel.truncate(kernel);
        })
    }

    fn or_kernel(&mut self, done: Result<(), Refusal>, owner: Owner, at: Svma) -> Result<(), Refusal> {
        let Err(why) = done else { return Ok(()) };
        let impossible = matches!(why, Refusal::NotInFile { .. } | Refusal::InsideInstruction { .. });
        let bytes = (1..=15).rev().find_map(|len| self.env.image.text(at, len)).unwrap_or(&[]);
        let allowed = self.env.traits.kernel_allowed && !impossible && takes_uprobe(bytes);
        match self.env.image.offset_of(at).filter(|_| allowed) {
            Some(offset) => {
                self.kernel.push(KernelSite { probe: owner.probe, want: owner.want, offset });
                Ok(())
            }
            None => Err(why),
        }
    }

    fn code_of(&self, function: FunctionIndex) -> Code {
        let image = self.env.image;
        let f = image.function(function);
        let mut cold = f.cold.clone();
        loop {
            let body = body_of(image, f.start, f.len, &cold);
            let fragment = body.exits.iter().find_map(|exit| match exit.kind {
                ExitKind::TailJump(to) | ExitKind::TailBranch(to) => fragment_at(image.fragments(), Svma(to)),
                _ => None,
            });
            match fragment.filter(|f| !cold.contains(f) && cold.len() < 8) {
                Some(fragment) => cold.push(fragment),
                None => {
                    let all = [(f.start, f.len)].into_iter().chain(cold);
                    let parts = all.filter_map(|(start, len)| part_of(&body, start, len)).collect();
                    return Code { function, body, parts };
                }
            }
        }
    }

    fn entry(&mut self, function: FunctionIndex, deed: Deed, owner: Owner) -> Result<(), Refusal> {
        let f = self.env.image.function(function);
        let bytes = self.env.image.text(f.start, f.len).ok_or(Refusal::NotInFile { at: f.start })?;
        let mut insns = core::mem::take(&mut self.scratch);
        let faulty = |i: &Insn| self.env.traits.has_fault_handler && faults_on_register(i);
        // `endbr64` neither reads nor writes: what is dead at it is dead behind it.
        let found = self.look.0.ahead(&mut insns, (bytes, f.start.0), (LOOK, LEAST), |i| !faulty(i));
        // Nothing below rsp is live when a function is called; when it jumps back to its entry, its red zone is. Go has none.
        let red_zone_live = self.env.map.is_looped(function) && !self.env.traits.go;
        let dead = stub::Site { flags_dead: found.flags, dead: found.gprs, red_zone_live };
        let whole = insns.last().is_some_and(|last| last.end() == f.end().0);
        let i = entry_index(&self.env, &insns);
        let stretch = Stretch { insns: &insns, whole };
        let act =
            Act { at: Svma(insns[i].addr), when: When::Before, deed, dead, want: owner.want, detour: None };
        let done = self.place(stretch, i, act, owner, false);
        self.scratch = insns;
        done
    }

    fn instruction(
        &mut self,
        function: Option<FunctionIndex>,
        at: Svma,
        code: Option<&Code>,
        deed: Deed,
        owner: Owner,
    ) -> Result<(), Refusal> {
        if let Some(f) = function
            && self.env.image.function(f).start == at
        {
            return self.entry(f, deed, owner);
        }
        if let Some((stretch, i)) = code.and_then(|c| c.stretch_of(at.0)) {
            let dead = dead_at(&self.env, &stretch.insns[i..stretch.insns.len().min(i + LOOK)], true);
            return self.place(
                stretch,
                i,
                Act { at, when: When::Before, deed, dead, want: owner.want, detour: None },
                owner,
                true,
            );
        }
        if let Some(insn) = code.and_then(|c| c.body.insns.iter().find(|i| i.addr < at.0 && at.0 < i.end())) {
            return Err(Refusal::InsideInstruction { site: self.env.place(at, 5), starts: Svma(insn.addr) });
        }
        self.loose(at, deed, owner)
    }

    /// An instruction outside all known functions.
    fn loose(&mut self, at: Svma, deed: Deed, owner: Owner) -> Result<(), Refusal> {
        let bytes =
            (1..=64).rev().find_map(|len| self.env.image.text(at, len)).ok_or(Refusal::NotInFile { at })?;
        let insns: Vec<Insn> = sweep(bytes, at.0).take(LOOK).collect();
        let dead = dead_at(&self.env, &insns, true);
        let act = Act { at, when: When::Before, deed, dead, want: owner.want, detour: None };
        self.place(Stretch { insns: &insns, whole: false }, 0, act, owner, false)
    }

    fn latency(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        latency: u32,
    ) -> Result<(), Refusal> {
        let f = self.env.image.function(function);
        let code = code.ok_or(Refusal::NotInFile { at: f.start })?;
        self.exits_known(code)?;
        let first =
            entry_index(&self.env, code.body.insns.get(..2.min(code.body.insns.len())).unwrap_or(&[]));
        let site = code.body.insns.get(first).map_or(f.start, |i| Svma(i.addr));
        let looped = code.body.insns.iter().any(|i| match i.flow {
            Flow::Jump(Some(to)) | Flow::Branch(to) => to == f.start.0 || to == site.0,
            _ => false,
        });
        self.entry(function, Deed::Enter { latency, looped }, owner(PatchRole::Entry))?;
        self.each_exit(code, &owner, |kind| Deed::Exit { latency, kind })
    }

    fn count_exits(
        &mut self,
        function: FunctionIndex,
        code: Option<&Code>,
        owner: impl Fn(PatchRole) -> Owner,
        deed: Deed,
    ) -> Result<(), Refusal> {
        let at = self.env.image.function(function).start;
        let code = code.ok_or(Refusal::NotInFile { at })?;
        self.exits_known(code)?;
        if code.body.exits.is_empty() {
            return Err(Refusal::NoExit { at });
        }
        self.each_exit(code, &owner, |_| deed)
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
        deed: impl Fn(stub::ExitKind) -> Deed,
    ) -> Result<(), Refusal> {
        let bound = 1 + self.env.map.exit_bound(code.function) as usize;
        for exit in &code.body.exits {
            let at = Svma(exit.insn.addr);
            self.exit(code, exit, owner, &deed)
                .or_else(|why| self.ways_to(code, exit, owner, &deed, bound).map_err(|()| why))
                .map_err(|why| Refusal::ExitUnpatchable { at, why: Box::new(why) })?;
        }
        Ok(())
    }

    fn exit(
        &mut self,
        code: &Code,
        exit: &Exit,
        owner: &impl Fn(PatchRole) -> Owner,
        deed: &impl Fn(stub::ExitKind) -> Deed,
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
        let dead = stub::Site { red_zone_live: exit.kind != ExitKind::Ret, ..stub::Site::default() };
        self.place(
            stretch,
            i,
            Act { at, when, deed: deed(kind), dead, want: owner(role).want, detour: None },
            owner(role),
            true,
        )
    }

    /// An exit that leaves no room for a jump, because what leads to it, or to the last instructions before it, is a jump
    /// as well: it is taken where it is decided. Each jump to that tail, and the instruction that runs into it, get a
    /// copy of the tail. Only if nothing else leads there.
    fn ways_to(
        &mut self,
        code: &Code,
        exit: &Exit,
        owner: &impl Fn(PatchRole) -> Owner,
        deed: &impl Fn(stub::ExitKind) -> Deed,
        bound: usize,
    ) -> Result<(), ()> {
        let (stretch, i) = code.stretch_of(exit.insn.addr).ok_or(())?;
        if exit.kind != ExitKind::Ret {
            return Err(());
        }
        for from in (i.saturating_sub(MAX_TAIL)..=i).rev() {
            let plain = |insn: &Insn| insn.flow == Flow::Next && may_displace(insn).is_ok();
            if from != i && !plain(&stretch.insns[from]) {
                break;
            }
            let Some(ways) = self.ways_into(code, &stretch.insns[from..=i]) else { continue };
            let done = self.whole(|p| {
                ways.iter().try_for_each(|&(at, when, detour)| {
                    let (stretch, i) = code.stretch_of(at.0).ok_or(Refusal::NotInFile { at })?;
                    let owner = owner(PatchRole::ExitRet);
                    let dead = stub::Site::default();
                    let deed = deed(stub::ExitKind::Return);
                    let act = Act { at, when, deed, dead, want: owner.want, detour: Some(detour) };
                    p.place(stretch, i, act, owner, true)
                })?;
                let many = p.sites.len() - p.first > bound;
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

    /// All that leads into the straight line `tail`, whose last instruction is an exit; `None` if that is not known.
    fn ways_into(&self, code: &Code, tail: &[Insn]) -> Option<Vec<(Svma, When, Detour)>> {
        let (first, exit) = (tail.first()?.addr, Svma(tail.last()?.addr));
        let inside = |at: u64| at >= first && at <= exit.0;
        let detour = |from: u64| Detour { from: Svma(from), exit };
        let mut ways = Vec::new();
        let mut reached = Vec::new();
        for insn in &code.body.insns {
            if insn.ip_rel().is_some_and(inside) {
                return None;
            }
            match insn.flow {
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
            match insn.flow {
                Flow::Call(_) | Flow::Syscall if insn.end() == first => return None,
                _ if insn.end() == first && insn.flow.falls_through() => {
                    ways.push((Svma(insn.addr), When::After, detour(first)));
                }
                _ => {}
            }
        }
        let named = |at: u64| {
            let by_data = || self.env.image.code_targets().binary_search(&Svma(at)).is_ok();
            let elsewhere = || self.env.map.is_target(Svma(at)) && !reached.contains(&at);
            code.body.by_table.binary_search(&at).is_ok() || by_data() || elsewhere()
        };
        (!tail.iter().any(|i| named(i.addr))).then_some(ways)
    }

    /// The condition of a jump that the stub has to repeat.
    fn condition(&self, insn: &Insn) -> Result<u8, Refusal> {
        let site = self.env.place(Svma(insn.addr), u64::from(insn.len));
        let bytes = site.bytes();
        let opcode = bytes.len().checked_sub(usize::from(insn.rel_size) + 1).map(|n| bytes[n]);
        match (insn.class, opcode) {
            (Class::Jcc, Some(opcode)) => Ok(opcode & 15),
            _ => Err(Refusal::TooShort { site, room: insn.len }),
        }
    }

    /// Puts a deed at instruction `i`: into a window that is there, into one of its own (beginning earlier where `back`
    /// allows), or into one that is there and made longer; by jump, short jump or pun.
    fn place(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        act: Act,
        owner: Owner,
        back: bool,
    ) -> Result<(), Refusal> {
        if let Some(site) =
            self.sites[self.first..].iter_mut().find(|s| s.insns.iter().any(|known| known.addr == act.at.0))
        {
            site.add(act);
            return Ok(());
        }
        let own = walk(&self.env, stretch, i, i);
        let may_trap = self.env.traits.traps == TrapsPolicy::Guarded;
        if may_trap && own.room() >= JUMP && own.until > i && self.is_clear(&own, JUMP) {
            return self.push(stretch, &own, JUMP, Reach::Mirror, act, owner);
        }
        let windows = self.windows(stretch, i, back);
        if !may_trap && let Some((window, changed, reach)) = self.seamless(stretch, i, &windows) {
            return self.push(stretch, &window, changed, reach, act, owner);
        }
        let full = windows.iter().find(|w| w.room() >= JUMP && self.is_clear(w, JUMP));
        if let Some(window) = full {
            return self.push(stretch, window, JUMP, Reach::Mirror, act, owner);
        }
        if self.extend(stretch, i, act) {
            return Ok(());
        }
        for window in &windows {
            if let Some((window, changed, reach)) = self.short(stretch, i, window) {
                return self.push(stretch, &window, changed, reach, act, owner);
            }
        }
        for window in &windows {
            if let Some((changed, reach)) = self.pun(stretch, window) {
                return self.push(stretch, window, changed, reach, act, owner);
            }
        }
        let plain = own;
        Err(self.overlap(&plain).unwrap_or_else(|| refusal(&self.env, stretch, &plain)))
    }

    /// A window for `i` without an instruction boundary inside, for a process in which nobody may trap.
    fn seamless(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        windows: &[Window],
    ) -> Option<(Window, u64, Reach)> {
        let first = |w: &Window| u64::from(stretch.insns[w.from].len);
        let whole = |w: &&Window| w.room() >= JUMP && first(w) >= w.len.min(JUMP) && self.is_clear(w, JUMP);
        if let Some(window) = windows.iter().find(whole) {
            return Some((*window, JUMP, Reach::Mirror));
        }
        let narrow = windows.iter().filter(|w| first(w) >= w.len.min(SHORT));
        if let Some(found) = narrow.clone().find_map(|w| self.short(stretch, i, w)) {
            return Some(found);
        }
        let alone = *windows.iter().find(|w| w.from == i)?;
        let alone = Window { until: i + 1, len: first(&alone), pad: 0, ..alone };
        let (changed, reach) = self.pun(stretch, &alone)?;
        Some((alone, changed, reach))
    }

    /// The windows that hold instruction `i`, the latest beginning first.
    fn windows(&self, stretch: Stretch<'_>, i: usize, back: bool) -> Vec<Window> {
        let mut windows = Vec::new();
        let floor = if back { i.saturating_sub(BACK) } else { i };
        for from in (floor..=i).rev() {
            let window = walk(&self.env, stretch, from, i);
            let full = window.room() >= JUMP;
            if window.until > i {
                windows.push(window);
                if full && self.is_clear(&window, JUMP) {
                    break;
                }
            }
            let start = Svma(stretch.insns[from].addr);
            let before = from.checked_sub(1).map(|b| stretch.insns[b].flow);
            if !matches!(before, Some(Flow::Next | Flow::Branch(_))) || self.env.map.is_target(start) {
                break;
            }
        }
        windows
    }

    /// Whether nothing else is where this window's change would be, padding included.
    fn is_clear(&self, window: &Window, changed: u64) -> bool {
        let end = window.end(changed);
        !self.sites[self.first..].iter().any(|s| s.overlaps(window.start, end))
            && self.claims.is_free(window.start, end)
            && in_rseq(&self.env, window.start, end).is_none()
    }

    fn overlap(&self, window: &Window) -> Option<Refusal> {
        let end = window.end(JUMP);
        if let Some(refusal) = in_rseq(&self.env, window.start, end) {
            return Some(refusal);
        }
        let other = self.sites[self.first..].iter().find(|s| s.overlaps(window.start, end))?;
        Some(Refusal::Overlap { site: self.env.place(window.start, JUMP), other: other.start })
    }

    fn push(
        &mut self,
        stretch: Stretch<'_>,
        window: &Window,
        changed: u64,
        reach: Reach,
        act: Act,
        owner: Owner,
    ) -> Result<(), Refusal> {
        let taken = if matches!(reach, Reach::Pun(..)) { JUMP } else { changed };
        self.claims.claim(window.start + window.len, window.start + taken.max(window.len));
        self.sites.push(Site {
            owner,
            start: window.start,
            insns: stretch.insns[window.from..window.until].to_vec(),
            acts: vec![act],
            changed,
            reach,
        });
        Ok(())
    }

    /// Makes the window right before instruction `i` longer, so that it holds it. Its jump stays as it is.
    fn extend(&mut self, stretch: Stretch<'_>, i: usize, act: Act) -> bool {
        let before = self.sites[self.first..]
            .iter()
            .rposition(|s| s.start.0 <= act.at.0 && act.at.0 - s.start.0 < 64 && s.reach == Reach::Mirror);
        let Some(site) = before.map(|n| self.first + n) else { return false };
        let start = self.sites[site].start;
        let Ok(from) = stretch.insns.binary_search_by_key(&start.0, |i| i.addr) else { return false };
        let window = walk(&self.env, stretch, from, i);
        let (others, end) = (&self.sites[self.first..], window.end(JUMP));
        let alone = others.iter().filter(|s| s.overlaps(start, end)).count() == 1;
        if window.until <= i || window.room() < JUMP || !alone || in_rseq(&self.env, start, end).is_some() {
            return false;
        }
        let grown = &mut self.sites[site];
        if grown.code_end() - start > window.len {
            return false;
        }
        grown.insns = stretch.insns[from..window.until].to_vec();
        grown.add(act);
        true
    }

    /// A short jump that leaves all but the first two bytes alone.
    fn short(&mut self, stretch: Stretch<'_>, i: usize, window: &Window) -> Option<(Window, u64, Reach)> {
        // Go's runtime looks interrupted addresses up in its own tables, and ends the program at one in padding.
        if window.room() < SHORT || self.env.traits.go {
            return None;
        }
        let mut least = Window { until: window.from, len: 0, ..*window };
        while least.until < window.until && (least.len < SHORT || least.until <= i) {
            least.len += u64::from(stretch.insns[least.until].len);
            least.until += 1;
        }
        if !self.is_clear(&least, SHORT) {
            return None;
        }
        let traps = stretch.insns[window.from].len == 1;
        // The window's own padding is taken before an island can be.
        let mark = self.claims.mark();
        self.claims.claim(least.start + least.len, least.start + SHORT.max(least.len));
        let found = island(&self.env, &mut self.claims, least.start, traps);
        if found.is_none() {
            self.claims.rollback(mark);
        }
        found.map(|at| (least, SHORT, Reach::Island(at)))
    }

    fn pun(&mut self, stretch: Stretch<'_>, window: &Window) -> Option<(u64, Reach)> {
        let changed = window.room().min(JUMP - 1);
        if changed == 0 || !self.is_clear(window, JUMP) || !self.tail_stays(window) {
            return None;
        }
        let bytes: [u8; 5] = self.env.image.text(window.start, JUMP)?.try_into().ok()?;
        let boundaries = stretch.insns[window.from..window.until]
            .iter()
            .filter(|i| i.addr - window.start.0 < changed)
            .map(|i| i.addr - window.start.0)
            .chain(window.len..changed)
            .fold(0u8, |bits, n| bits | 1 << n);
        let (rel, target) = self.puns.find(self.bias.live(window.start), bytes, changed, boundaries)?;
        Some((changed, Reach::Pun(rel, target)))
    }

    /// Whether nobody in this plan is going to change the bytes that dictate a pun. What a later plan changes is checked
    /// against [`Patch::relies`](crate::Patch::relies).
    fn tail_stays(&self, window: &Window) -> bool {
        let last = window.start + (JUMP - 1);
        let mine = self.env.map.piece_at(window.start).is_ok_and(|p| last < p.end);
        mine || {
            let functions = self.env.image.functions();
            let below = functions.partition_point(|f| f.start <= last) as u32;
            let other = FunctionIndex(below.saturating_sub(1));
            self.wanted.binary_search(&other).is_err() || functions[other.0 as usize].end() <= window.start
        }
    }
}

fn fragment_at(fragments: &[(Svma, u64)], at: Svma) -> Option<(Svma, u64)> {
    let next = fragments.partition_point(|f| f.0 <= at);
    let found = *fragments.get(next.checked_sub(1)?)?;
    (at.0 - found.0.0 < found.1).then_some(found)
}

fn part_of(body: &Body, start: Svma, len: u64) -> Option<core::ops::Range<usize>> {
    let first = body.insns.iter().position(|i| i.addr == start.0)?;
    let end = start.0.saturating_add(len);
    let count = body.insns[first..].iter().take_while(|i| i.addr >= start.0 && i.addr < end).count();
    Some(first..first + count)
}

/// Which instruction the patch of an entry begins at: behind `endbr64`, unless something branches there.
fn entry_index(env: &Env<'_>, insns: &[Insn]) -> usize {
    match insns {
        [first, second, ..] if first.class == Class::Endbr64 && !env.map.is_target(Svma(second.addr)) => 1,
        _ => 0,
    }
}

/// What the straight line that begins here overwrites before reading it. Where faults are caught, only what is overwritten
/// before anything can fault counts, so that a handler sees true registers.
fn dead_at(env: &Env<'_>, insns: &[Insn], red_zone_live: bool) -> stub::Site {
    let faulty = |i: &Insn| env.traits.has_fault_handler && faults_on_register(i);
    let sure = insns.iter().position(faulty).unwrap_or(insns.len());
    let insns = &insns[..sure];
    let len: u64 = insns.iter().map(|i| u64::from(i.len)).sum();
    let bytes = insns.first().and_then(|i| env.image.text(Svma(i.addr), len)).unwrap_or(&[]);
    stub::Site {
        flags_dead: flags_dead_after(insns, bytes),
        dead: overwritten_gprs(insns, bytes),
        red_zone_live,
    }
}
