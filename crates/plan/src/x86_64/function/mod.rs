//! Plans all sites of one function: entry, exits, single instructions, and what they do to each other.
//! `exits` finds the exits, `behind` decides when an entry's window begins behind the first instruction, and
//! `place` chooses window and tactic.
//!
//! In: a function and its requests. Out: sites whose windows are disjoint. If two requests need the same
//! window, one site serves both. A request is met as a whole or refused as a whole. Invariant: RET-3 a call
//! that ends by a tail call is timed until its callee returns, if a return trampoline can stand in for its
//! return address and the user did not ask for exits alone.

mod behind;
mod exits;
mod window_choice;

use super::action::{PlacedAction, SiteAction, Stack, When};
use super::body::body_of;
use super::env::Env;
use super::jump::JUMP;
use super::kernel::takes_uprobe;
use super::padding::Claims;
use super::pun::Puns;
use super::site::{Owner, PatchedSite};
use super::stub;
use super::window::Stretch;
use crate::plan::{KernelSite, PatchRole, Refused};
use crate::refusal::Refusal;
use crate::request::{Action, ActionRequest, Floats};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use trapline_image::{FunctionIndex, Image};
use trapline_insn::x86_64::{
    Body, Class, ExitKind, Insn, Look, faults_on_register, flags_dead_after, overwritten_gprs, sweep,
};
use trapline_record::Svma;
use trapline_record::addr::Bias;
use trapline_record::ring::Kind;

/// Number of instructions decoded at an entry: the window, and those that may show which registers are dead.
const LOOK: usize = 6;
/// Number of functions that are analysed in one round if several threads do it.
const ROUND: usize = 1024;
/// Least number of bytes decoded at an entry: `endbr64` and a jump.
const LEAST: u64 = 4 + JUMP;

/// The sum of what planning a module's functions gives.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) bias: Bias,
    pub(crate) claims: Claims,
    pub(crate) puns: Puns<'a>,
    pub(crate) sites: Vec<PatchedSite>,
    pub(crate) kernel: Vec<KernelSite>,
    pub(crate) refused: Vec<Refused>,
    /// Replace return addresses where a call may end as another function, or where exits cannot be found or
    /// patched.
    pub(crate) or_trampolines: bool,
    /// Replace return addresses for all returns that are recorded or aggregated.
    pub(crate) by_trampolines: bool,
    /// The requests for which `or_trampolines` did that, and why.
    pub(crate) slotted: Vec<Refused>,
    /// Index in `sites` of the first one that belongs to the current function.
    first: usize,
    /// Entries' windows begin at the first instruction, whichever it is.
    at_head: bool,
    /// The requested functions, sorted. No pun relies on their bytes.
    wanted: Vec<FunctionIndex>,
    scratch: Vec<Insn>,
    look: Looking,
}

/// Memory that looking ahead reuses from call to call.
#[derive(Default)]
struct Looking(Look);

impl core::fmt::Debug for Looking {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Looking")
    }
}

/// The state of a function's plan at some moment.
#[derive(Clone, Debug)]
struct Mark {
    sites: Vec<PatchedSite>,
    claims: usize,
    puns: Vec<trapline_record::RemoteAddr>,
    kernel: usize,
    slotted: usize,
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

/// The code of a function, if a request needs more than its entry.
fn code_for(
    env: Env<'_>,
    function: Option<FunctionIndex>,
    requests: &[(u32, ActionRequest)],
) -> Option<Code> {
    let entry_only = requests
        .iter()
        .all(|(_, w)| matches!(w.action, Action::CountEntry | Action::CallEntry | Action::Hold(_)));
    function.filter(|_| !entry_only).map(|f| code_of(env.image, f))
}

fn code_of(image: &Image, function: FunctionIndex) -> Code {
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
            or_trampolines: false,
            by_trampolines: false,
            slotted: Vec::new(),
            first: 0,
            at_head: false,
            wanted: Vec::new(),
            scratch: Vec::new(),
            look: Looking::default(),
        }
    }

    /// Plans all requests, which are sorted by function.
    pub(crate) fn functions(&mut self, order: &[(u32, ActionRequest)]) {
        self.requests_of(order.iter().filter_map(|(_, w)| w.function));
        let of_one = order.chunk_by(|a, b| a.1.function == b.1.function);
        of_one.for_each(|group| self.function(group[0].1.function, group));
    }
    /// Does the same with the help of other threads, and gives the same plan. Each function's code is
    /// analysed independently of the others, which takes most of the time. Few functions are analysed at a
    /// time, since an analysis is large.
    pub(crate) fn functions_with_help(&mut self, order: &[(u32, ActionRequest)], threads: usize) {
        self.requests_of(order.iter().filter_map(|(_, w)| w.function));
        let groups: Vec<&[(u32, ActionRequest)]> =
            order.chunk_by(|a, b| a.1.function == b.1.function).collect();
        let env = self.env;
        for round in groups.chunks(ROUND) {
            let (next, codes) = (AtomicUsize::new(0), Vec::from_iter(round.iter().map(|_| OnceLock::new())));
            let work = || {
                let take = || {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    round.get(nth).copied().zip(codes.get(nth))
                };
                while let Some((group, code)) = take() {
                    drop(code.set(code_for(env, group[0].1.function, group)));
                }
            };
            std::thread::scope(|scope| {
                (1..threads).for_each(|_| drop(scope.spawn(work)));
                work();
            });
            for (group, code) in round.iter().zip(codes) {
                self.plan(group, code.into_inner().flatten().as_ref());
            }
        }
    }
    /// Sets the requested functions, which must be sorted, before [`function`](Self::function) is called for
    /// each of them.
    pub(crate) fn requests_of(&mut self, functions: impl Iterator<Item = FunctionIndex>) {
        self.wanted = functions.collect();
        self.wanted.dedup();
    }

    /// Plans all requests for one function or, without a function, for single instructions.
    pub(crate) fn function(&mut self, function: Option<FunctionIndex>, requests: &[(u32, ActionRequest)]) {
        self.plan(requests, code_for(self.env, function, requests).as_ref());
    }
    fn plan(&mut self, requests: &[(u32, ActionRequest)], code: Option<&Code>) {
        self.first = self.sites.len();
        let order = |role: Action| match role {
            Action::CountEntry | Action::CallEntry | Action::CallArmed => 0,
            Action::Latency
            | Action::LatencyByTrampoline
            | Action::Record { .. }
            | Action::Tally { exits: false } => 1,
            Action::CountExits | Action::CallExits | Action::Tally { exits: true } => 2,
            Action::CountAt(_) | Action::CallAt(_) | Action::RecordAt(..) | Action::RecordMark(..) => 3,
            // If other requests are for the same function, the patch is named after those.
            Action::Hold(_) => 4,
        };
        self.behind_or_at_head(|planner| {
            for rank in 0..5 {
                for (index, request) in requests.iter().filter(|(_, w)| order(w.action) == rank) {
                    if let Err(why) = planner.request(*index, request, code) {
                        planner.refused.push(Refused { probe: request.probe, request: *index, why });
                    }
                }
            }
        });
    }

    fn request(&mut self, index: u32, request: &ActionRequest, code: Option<&Code>) -> Result<(), Refusal> {
        let owner = |role| Owner { request: index, probe: request.probe, role };
        let count = |kind| SiteAction::Count { probe: request.probe, kind };
        let call = |ip| SiteAction::Call { probe: request.probe, ip, exit: false };
        self.decides(request)?;
        self.has_goroutine(request)?;
        match (request.action, request.function) {
            (Action::CountEntry, Some(f)) => {
                let done = self.entry(f, count(Kind::Entry), owner(PatchRole::Entry));
                self.or_kernel(done, owner(PatchRole::Entry), self.env.image.function(f).start)
            }
            (Action::CountAt(at), f) => {
                let done = self.instruction(f, at, code, count(Kind::Entry), owner(PatchRole::Entry));
                self.or_kernel(done, owner(PatchRole::Entry), at)
            }
            (Action::Hold(hold), Some(f)) => self.entry(f, SiteAction::Hold(hold), owner(PatchRole::Entry)),
            (Action::CallEntry, Some(f)) => {
                let at = self.env.image.function(f).start;
                self.entry(f, call(at), owner(PatchRole::Entry))
            }
            (Action::CallArmed, Some(f)) => {
                self.may_arm(f, code)?;
                let at = self.env.image.function(f).start;
                self.entry(f, call(at), owner(PatchRole::Entry))
            }
            (Action::RecordAt(at, unwind), f) => {
                self.env.recordable(at, request.probe, false)?;
                let (probe, kind, stack) = (request.probe, Kind::Entry, Stack { unwind, at_entry: false });
                let floats = Floats::default();
                let action =
                    SiteAction::Record { probe, kind, values: 0, marked: false, texts: 0, floats, stack };
                self.instruction(f, at, code, action, owner(PatchRole::Entry))
            }
            (Action::RecordMark(at, fields), f) => {
                self.env.recordable(at, request.probe, fields != 0)?;
                let (probe, kind, floats) = (request.probe, Kind::Entry, Floats::default());
                let stack = Stack::default();
                let action =
                    SiteAction::Record { probe, kind, values: 6, marked: false, texts: 0, floats, stack };
                self.instruction(f, at, code, action, owner(PatchRole::Entry))
            }
            (Action::CallAt(at), f) => self.instruction(f, at, code, call(at), owner(PatchRole::Entry)),
            (Action::Record { returns: true, .. }, Some(f)) => {
                self.seen_to_end((index, request), code, |p, by_slot| {
                    p.record(f, code, owner, request, by_slot)
                })
            }
            (Action::Record { .. }, Some(f)) => self.whole(|p| p.record(f, code, owner, request, false)),
            (Action::Tally { exits: false }, Some(f)) => {
                self.env.recordable(self.env.image.function(f).start, request.probe, false)?;
                let action = SiteAction::Tally { probe: request.probe, kind: Kind::Entry };
                self.entry(f, action, owner(PatchRole::Entry))
            }
            (Action::Tally { exits: true }, Some(f)) => {
                self.seen_to_end((index, request), code, |p, by_slot| {
                    p.tally(f, code, owner, request, by_slot)
                })
            }
            (Action::CallExits, Some(f)) => self.whole(|p| p.call_exits(f, code, owner, request.probe)),
            (Action::CountExits, Some(f)) => {
                self.whole(|p| p.at_exits(f, code, owner, |exit| count(kind_of(exit))))
            }
            (Action::Latency, Some(f)) => {
                let latency =
                    request.latency.ok_or(Refusal::Incomplete { at: self.env.image.function(f).start })?;
                self.seen_to_end((index, request), code, |p, by_slot| match by_slot {
                    true => p.armed(f, code, owner, latency),
                    false => p.latency(f, code, owner, latency),
                })
            }
            (Action::LatencyByTrampoline, Some(f)) => {
                let latency =
                    request.latency.ok_or(Refusal::Incomplete { at: self.env.image.function(f).start })?;
                self.whole(|p| p.armed(f, code, owner, latency))
            }
            (_, None) => Err(Refusal::Incomplete { at: Svma(0) }),
        }
    }

    /// Checks a request that neither records nor aggregates: see [`Env::decides`].
    fn decides(&self, request: &ActionRequest) -> Result<(), Refusal> {
        let at = match (request.action, request.function) {
            (
                Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..) | Action::Tally { .. },
                _,
            ) => {
                return Ok(());
            }
            (Action::CountAt(at) | Action::CallAt(at), _) => at,
            (_, Some(f)) => self.env.image.function(f).start,
            (_, None) => Svma(0),
        };
        self.env.decides(at, request)
    }

    /// The end of a call is seen at the function's exits or, with `plan`'s flag, by a return trampoline.
    /// `by_trampolines` and `or_trampolines` say which. With `or_trampolines`, a function that leaves by a
    /// jump to another one gets a trampoline, as its call ends when that other one returns. So does a
    /// function whose exits cannot be found or patched.
    fn seen_to_end(
        &mut self,
        (index, request): (u32, &ActionRequest),
        code: Option<&Code>,
        plan: impl Fn(&mut Self, bool) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if self.by_trampolines || !self.or_trampolines {
            let by_trampolines = self.by_trampolines;
            return self.whole(|p| plan(p, by_trampolines));
        }
        let goes_on = code.and_then(|code| code.body.exits.iter().find(|exit| exit.kind != ExitKind::Ret));
        let goes_on = goes_on.map(|exit| self.env.place(Svma(exit.insn.addr), exit.insn.len.into()));
        let slot = |p: &mut Self, why: Refusal| {
            p.whole(|p| plan(p, true)).is_ok().then(|| {
                p.slotted.push(Refused { probe: request.probe, request: index, why });
            })
        };
        if goes_on.and_then(|at| slot(self, Refusal::TailCall { at })).is_some() {
            return Ok(());
        }
        let exits = self.whole(|p| plan(p, false));
        exits.or_else(|why| match why.is_of_exits() {
            true => slot(self, why.clone()).ok_or(why),
            false => Err(why),
        })
    }

    /// Refuses a request that needs the goroutine where there is none yet. A program that begins has none:
    /// `rt0_go` sets the thread pointer by `settls`, which threads of older versions also call first. All
    /// that `rt0_go` calls later has a goroutine.
    fn has_goroutine(&self, request: &ActionRequest) -> Result<(), Refusal> {
        let counts = matches!(
            request.action,
            Action::CountEntry | Action::CountExits | Action::CountAt(_) | Action::Hold(_)
        );
        let (Some(function), true) = (request.function, self.env.traits.go && !counts) else { return Ok(()) };
        let image = self.env.image;
        let f = image.function(function);
        let is_before = |name: &str| {
            let name = name.strip_suffix(".abi0").unwrap_or(name);
            matches!(name, "runtime.rt0_go" | "runtime.settls") || name.starts_with("_rt0_")
        };
        match image.names(f).any(|name| is_before(name.raw)) {
            true => Err(Refusal::BeforeGoroutine { at: f.start }),
            false => Ok(()),
        }
    }

    /// Undoes everything if `plan` fails.
    fn whole(&mut self, plan: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let before = self.mark();
        plan(self).inspect_err(|_| self.roll_back(before))
    }

    fn mark(&self) -> Mark {
        let sites = self.sites[self.first..].to_vec();
        let (claims, puns) = (self.claims.mark(), self.puns.mark());
        Mark { sites, claims, puns, kernel: self.kernel.len(), slotted: self.slotted.len() }
    }
    fn roll_back(&mut self, to: Mark) {
        self.sites.truncate(self.first);
        self.sites.extend(to.sites);
        self.claims.rollback(to.claims);
        self.puns.rollback(to.puns);
        self.kernel.truncate(to.kernel);
        self.slotted.truncate(to.slotted);
    }

    fn or_kernel(&mut self, done: Result<(), Refusal>, owner: Owner, at: Svma) -> Result<(), Refusal> {
        let Err(why) = done else { return Ok(()) };
        let impossible = matches!(why, Refusal::NotInFile { .. } | Refusal::InsideInstruction { .. });
        let bytes = (1..=15).rev().find_map(|len| self.env.image.text(at, len)).unwrap_or(&[]);
        // The kernel counts every hit, so a filtered probe cannot have a uprobe.
        let all = self.env.filter(owner.probe).is_none();
        let allowed = self.env.traits.kernel_allowed && all && !impossible && takes_uprobe(bytes);
        match self.env.image.offset_of(at).filter(|_| allowed) {
            Some(offset) => {
                self.kernel.push(KernelSite { probe: owner.probe, request: owner.request, offset });
                Ok(())
            }
            None => Err(why),
        }
    }

    fn entry(&mut self, function: FunctionIndex, action: SiteAction, owner: Owner) -> Result<(), Refusal> {
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
        let faulty = |i: &Insn| self.env.traits.has_fault_handler && faults_on_register(i);
        // If a consumer is called, everything is saved, so what is dead does not matter.
        let asks = !matches!(action, SiteAction::Call { .. });
        // `endbr64` neither reads nor writes, so what is dead at it is dead behind it.
        let found = self.look.0.ahead(&mut insns, (bytes, f.start.0), (LOOK, LEAST), |i| asks && !faulty(i));
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

    fn instruction(
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

pub(super) const fn kind_of(exit: stub::ExitKind) -> Kind {
    match exit {
        stub::ExitKind::Return => Kind::Return,
        stub::ExitKind::Tail => Kind::Tail,
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

/// Index of the instruction at which an entry's patch begins: behind `endbr64`, unless something branches
/// there.
fn entry_index(env: &Env<'_>, insns: &[Insn]) -> usize {
    match insns {
        [first, second, ..] if first.class == Class::Endbr64 && !env.map.is_target(Svma(second.addr)) => 1,
        _ => 0,
    }
}

/// What the straight line of code that begins here overwrites before reading it. If the process catches
/// faults, only what is overwritten before anything can fault counts, so that a handler sees true registers.
fn dead_at(env: &Env<'_>, insns: &[Insn], red_zone_live: bool) -> stub::Liveness {
    let faulty = |i: &Insn| env.traits.has_fault_handler && faults_on_register(i);
    let sure = insns.iter().position(faulty).unwrap_or(insns.len());
    let insns = &insns[..sure];
    let len: u64 = insns.iter().map(|i| u64::from(i.len)).sum();
    let bytes = insns.first().and_then(|i| env.image.text(Svma(i.addr), len)).unwrap_or(&[]);
    stub::Liveness {
        flags_dead: flags_dead_after(insns, bytes),
        dead: overwritten_gprs(insns, bytes),
        red_zone_live,
    }
}
