//! Plans all sites of one function: entry, exits, single instructions, and what they do to each other.
//! `code` has a function's code. `entry` and `exits` put actions at its entry and its exits; `sites` keeps what is planned.
//! `behind` decides when an entry's window begins behind the first instruction. `window_choice` chooses window and tactic.
//!
//! In: a function and its requests. Out: sites with disjoint windows. If two requests need the same
//! window, one site serves both. A request is met as a whole or refused as a whole. Invariant: RET-3 a call
//! that ends by a tail call is timed until its callee returns. That needs a return trampoline, so it does not
//! hold where none can stand in for the return address, or where the user asked for exits alone.

mod behind;
mod code;
mod entry;
mod exits;
mod pairs;
mod sites;
mod window_choice;

use super::action::{SiteAction, Stack};
use super::env::Env;
use super::kernel::takes_uprobe;
use super::padding::Claims;
use super::pun::Puns;
use super::site::Owner;
use super::stub;
use crate::machine::KernelUprobes;
use crate::plan::{KernelSite, PatchRole, Refused};
use crate::refusal::Refusal;
use crate::request::{Action, ActionRequest, Floats};
use code::{Code, code_for};
pub(crate) use sites::Sites;
use sites::SitesMark;
use trapline_image::FunctionIndex;
use trapline_insn::x86_64::{Body, Insn, Look};
use trapline_record::Svma;
use trapline_record::addr::Bias;
use trapline_record::ring::RecordKind;

/// The sum of what planning a module's functions gives.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) env: Env<'a>,
    pub(crate) bias: Bias,
    pub(crate) claims: Claims,
    pub(crate) puns: Puns,
    pub(crate) sites: Sites,
    pub(crate) kernel: Vec<KernelSite>,
    pub(crate) refused: Vec<Refused>,
    /// Replace return addresses where a call may end as another function, or where exits cannot be found or
    /// patched.
    pub(crate) or_trampolines: bool,
    /// Replace return addresses for all returns that are recorded or aggregated.
    pub(crate) by_trampolines: bool,
    /// The requests for which `or_trampolines` did that, and why.
    pub(crate) armed: Vec<Refused>,
    /// Entries' windows begin at the first instruction, whichever it is.
    at_head: bool,
    /// The requested functions, sorted. No pun relies on their bytes.
    requested: Vec<FunctionIndex>,
    scratch: Vec<Insn>,
    look: Looking,
    /// Memory of the function that was planned last.
    spent: Body,
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
#[derive(Clone, Copy, Debug)]
struct Mark {
    sites: SitesMark,
    claims: usize,
    puns: usize,
    kernel: usize,
    armed: usize,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(env: Env<'a>, bias: Bias, puns: Puns) -> Self {
        Self {
            env,
            bias,
            claims: Claims::default(),
            puns,
            sites: Sites::default(),
            kernel: Vec::new(),
            refused: Vec::new(),
            or_trampolines: false,
            by_trampolines: false,
            armed: Vec::new(),
            at_head: false,
            requested: Vec::new(),
            scratch: Vec::new(),
            look: Looking::default(),
            spent: Body::default(),
        }
    }

    /// Plans these requests, which are sorted by function.
    pub(crate) fn functions(&mut self, order: &[(u32, ActionRequest)]) {
        let of_one = order.chunk_by(|a, b| a.1.function == b.1.function);
        of_one.for_each(|group| self.function(group[0].1.function, group));
    }
    /// Sets all requested functions, which must be sorted, before any of them is planned.
    pub(crate) fn requests_of(&mut self, functions: impl Iterator<Item = FunctionIndex>) {
        self.requested = functions.collect();
        self.requested.dedup();
    }

    /// Plans all requests for one function or, without a function, for single instructions.
    pub(crate) fn function(&mut self, function: Option<FunctionIndex>, requests: &[(u32, ActionRequest)]) {
        let code = code_for(self.env, function, requests, &mut self.spent);
        self.sites.begin_function();
        let order = |role: Action| match role {
            Action::CountEntry | Action::CallEntry | Action::CallArmed => 0,
            Action::Latency
            | Action::LatencyByTrampoline
            | Action::Record { .. }
            | Action::Tally { exits: false } => 1,
            Action::CountExits | Action::CallExits | Action::Tally { exits: true } => 2,
            Action::CountAt(_)
            | Action::CallAt(_)
            | Action::RecordAt(..)
            | Action::RecordMark(..)
            | Action::RunAt(_) => 3,
            // If other requests are for the same function, the patch is named after those.
            Action::Hold(_) | Action::HoldAt(..) | Action::Deliver { .. } => 4,
        };
        self.behind_or_at_head(|planner| {
            for rank in 0..5 {
                for (index, request) in requests.iter().filter(|(_, w)| order(w.action) == rank) {
                    if let Err(why) = planner.request(*index, request, code.as_ref()) {
                        planner.refused.push(Refused { probe: request.probe, request: *index, why });
                    }
                }
            }
        });
        if let Some(code) = code {
            self.spent = code.body;
        }
    }

    fn request(&mut self, index: u32, request: &ActionRequest, code: Option<&Code>) -> Result<(), Refusal> {
        self.decides(request)?;
        self.has_goroutine(request)?;
        self.begins_as_called(request)?;
        let owner = Owner { request: index, probe: request.probe, role: PatchRole::Entry };
        let function = match (request.action, request.function) {
            (Action::CountAt(at), f) => {
                let count = SiteAction::Count { probe: owner.probe, kind: RecordKind::Entry };
                let done = self.instruction(f, at, code, count, owner);
                return self.or_kernel(done, owner, at);
            }
            (Action::HoldAt(at, hold), f) => {
                return self.instruction(f, at, code, SiteAction::Hold(hold), owner);
            }
            (Action::CallAt(at), f) => return self.instruction(f, at, code, call(owner.probe, at), owner),
            (Action::RecordAt(at, unwind), f) => {
                self.env.recordable(at, request.probe, false)?;
                let record = record_at(owner.probe, 0, Stack { unwind, at_entry: false });
                return self.instruction(f, at, code, record, owner);
            }
            (Action::RecordMark(at, fields), f) => {
                self.env.recordable(at, request.probe, fields != 0)?;
                let record = record_at(owner.probe, 6, Stack::default());
                return self.instruction(f, at, code, record, owner);
            }
            (Action::RunAt(at), f) => {
                self.env.recordable(at, request.probe, false)?;
                let run = SiteAction::Tally { probe: owner.probe, kind: RecordKind::Entry };
                return self.instruction(f, at, code, run, owner);
            }
            (_, Some(f)) => f,
            (_, None) => return Err(Refusal::Incomplete { at: Svma(0) }),
        };
        match request.action {
            Action::CountEntry
            | Action::Hold(_)
            | Action::Deliver { .. }
            | Action::CallEntry
            | Action::CallArmed
            | Action::Tally { exits: false } => self.at_entry(function, code, owner, request),
            _ => self.calls(function, code, owner, request),
        }
    }

    /// Plans a request that needs only the function's entry.
    fn at_entry(
        &mut self,
        f: FunctionIndex,
        code: Option<&Code>,
        owner: Owner,
        request: &ActionRequest,
    ) -> Result<(), Refusal> {
        let (at, probe) = (self.env.image.function(f).start, owner.probe);
        match request.action {
            Action::CountEntry => {
                let done = self.entry(f, SiteAction::Count { probe, kind: RecordKind::Entry }, owner);
                self.or_kernel(done, owner, at)
            }
            Action::Hold(hold) => self.entry(f, SiteAction::Hold(hold), owner),
            Action::Deliver { informed } => self.entry(f, SiteAction::Deliver { informed }, owner),
            Action::CallArmed => {
                self.may_arm(f, code)?;
                self.entry(f, call(probe, at), owner)
            }
            Action::Tally { .. } => {
                self.env.recordable(at, probe, false)?;
                self.entry(f, SiteAction::Tally { probe, kind: RecordKind::Entry }, owner)
            }
            _ => self.entry(f, call(probe, at), owner),
        }
    }

    /// Plans a request that needs the function's exits, or a return trampoline.
    fn calls(
        &mut self,
        f: FunctionIndex,
        code: Option<&Code>,
        entry: Owner,
        request: &ActionRequest,
    ) -> Result<(), Refusal> {
        let owner = |role| Owner { role, ..entry };
        let latency = || request.latency.ok_or(Refusal::Incomplete { at: self.env.image.function(f).start });
        match request.action {
            Action::Record { returns: false, .. } => self.whole(|p| p.record(f, code, owner, request, false)),
            Action::Record { .. } => self.seen_to_end((entry.request, request), code, |p, by_trampoline| {
                p.record(f, code, owner, request, by_trampoline)
            }),
            Action::Tally { .. } => self.seen_to_end((entry.request, request), code, |p, by_trampoline| {
                p.tally(f, code, owner, request, by_trampoline)
            }),
            Action::CallExits => self.whole(|p| p.call_exits(f, code, owner, entry.probe)),
            Action::Latency => {
                let latency = latency()?;
                self.seen_to_end((entry.request, request), code, |p, by_trampoline| match by_trampoline {
                    true => p.armed(f, code, owner, latency),
                    false => p.latency(f, code, owner, latency),
                })
            }
            Action::LatencyByTrampoline => {
                let latency = latency()?;
                self.whole(|p| p.armed(f, code, owner, latency))
            }
            _ => {
                let count = |exit| SiteAction::Count { probe: entry.probe, kind: kind_of(exit) };
                self.whole(|p| p.at_exits(f, code, owner, count))
            }
        }
    }

    /// Checks a request that neither records nor aggregates: see [`Env::decides`].
    fn decides(&self, request: &ActionRequest) -> Result<(), Refusal> {
        let at = match (request.action, request.function) {
            (
                Action::Record { .. }
                | Action::RecordAt(..)
                | Action::RecordMark(..)
                | Action::RunAt(_)
                | Action::Tally { .. },
                _,
            ) => {
                return Ok(());
            }
            (Action::CountAt(at) | Action::CallAt(at) | Action::HoldAt(at, _), _) => at,
            (_, Some(f)) => self.env.image.function(f).start,
            (_, None) => Svma(0),
        };
        self.env.decides(at, request)
    }

    /// The end of a call is seen at the function's exits or, with `plan`'s flag, by a return trampoline.
    /// `by_trampolines` and `or_trampolines` decide which. With `or_trampolines`, a function that leaves by a
    /// jump to another one gets a trampoline, as its call ends when that other one returns. So does a
    /// function with exits that cannot be found or patched.
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
        let goes_on = code.and_then(Code::tail);
        let goes_on = goes_on.map(|exit| self.env.place(Svma(exit.insn.addr), exit.insn.len.into()));
        let trampoline = |p: &mut Self, why: Refusal| {
            p.whole(|p| plan(p, true)).is_ok().then(|| {
                p.armed.push(Refused { probe: request.probe, request: index, why });
            })
        };
        if goes_on.and_then(|at| trampoline(self, Refusal::TailCall { at })).is_some() {
            return Ok(());
        }
        let exits = self.whole(|p| plan(p, false));
        exits.or_else(|why| match why.is_of_exits() {
            true => trampoline(self, why.clone()).ok_or(why),
            false => Err(why),
        })
    }

    /// Undoes everything if `plan` fails.
    fn whole(&mut self, plan: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let before = self.mark();
        plan(self).inspect_err(|_| self.roll_back(before))
    }

    fn mark(&self) -> Mark {
        let sites = self.sites.mark();
        let (claims, puns) = (self.claims.mark(), self.puns.mark());
        Mark { sites, claims, puns, kernel: self.kernel.len(), armed: self.armed.len() }
    }
    fn roll_back(&mut self, to: Mark) {
        self.sites.roll_back(to.sites);
        self.claims.rollback(to.claims);
        self.puns.rollback(to.puns);
        self.kernel.truncate(to.kernel);
        self.armed.truncate(to.armed);
    }

    fn or_kernel(&mut self, done: Result<(), Refusal>, owner: Owner, at: Svma) -> Result<(), Refusal> {
        let Err(why) = done else { return Ok(()) };
        let impossible = matches!(why, Refusal::NotInFile { .. } | Refusal::InsideInstruction { .. });
        let bytes = (1..=15).rev().find_map(|len| self.env.image.text(at, len)).unwrap_or(&[]);
        // The kernel counts every hit, so a filtered probe cannot have a uprobe.
        let all = self.env.filter(owner.probe).is_none();
        let takes = all && !impossible && takes_uprobe(bytes);
        match (self.env.image.offset_of(at).filter(|_| takes), self.env.traits.kernel_uprobes) {
            (Some(offset), KernelUprobes::Asked) => {
                self.kernel.push(KernelSite { probe: owner.probe, request: owner.request, offset });
                Ok(())
            }
            (Some(_), KernelUprobes::NotAsked) => Err(Refusal::KernelOnly { why: Box::new(why) }),
            _ => Err(why),
        }
    }
}

/// The call of a consumer at an entry or a single instruction.
const fn call(probe: u32, ip: Svma) -> SiteAction {
    SiteAction::Call { probe, ip, exit: false }
}

/// A record at a single instruction, with this many values.
fn record_at(probe: u32, values: u8, stack: Stack) -> SiteAction {
    let (kind, floats) = (RecordKind::Entry, Floats::default());
    let (texts, ended, valued, marked) = (0, 0, false, false);
    SiteAction::Record { probe, kind, values, valued, marked, texts, ended, floats, stack }
}

pub(super) const fn kind_of(exit: stub::ExitKind) -> RecordKind {
    match exit {
        stub::ExitKind::Return => RecordKind::Return,
        stub::ExitKind::Tail => RecordKind::Tail,
    }
}
