//! Chooses a window and a tactic for one action: jump, short jump, pun; for a consumer in our own process
//! also a trap.
//!
//! In: an instruction, the action there. Out: a site with bytes that no other site changes, or why there is
//! none.
//! Does not: know why the action is requested.

use super::Planner;
use crate::machine::TrapsPolicy;
use crate::refusal::Refusal;
use crate::x86_64::action::{PlacedAction, SiteAction};
use crate::x86_64::jump::JUMP;
use crate::x86_64::padding::{SHORT, island};
use crate::x86_64::site::{Owner, PatchedSite, Reach};
use crate::x86_64::window::{Stop, Stretch, Window, in_rseq, refusal, walk};
use smallvec::{SmallVec, smallvec};
use trapline_image::FunctionIndex;
use trapline_insn::x86_64::{Flow, faults_on_register, may_displace, sweep};
use trapline_record::Svma;

/// Bytes behind a window that are decoded: enough for the instructions that begin in a jump.
const MOST_BYTES: u64 = 2 * 15;

/// How many instructions back an exit's window may begin.
const BACK: usize = 16;

impl Planner<'_> {
    /// Puts an action at instruction `i`. Tries in turn an existing window that holds `i`, a window of its
    /// own (which begins earlier if `back` allows), and an existing window that is made longer. The tactic is
    /// a jump, a short jump or a pun, or a trap if the probe allows one.
    pub(super) fn place(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        placed: PlacedAction,
        owner: Owner,
        back: bool,
    ) -> Result<(), Refusal> {
        // A handler that returns to the instruction would have the call armed twice.
        if placed.action.arms() && self.env.traits.faults_delivered && faults_on_register(&stretch.insns[i]) {
            let insn = self.env.place(placed.at, stretch.insns[i].len.into());
            return Err(Refusal::MayFault { site: self.env.place(placed.at, JUMP), insn });
        }
        if let Some(site) = self.sites.with(placed.at) {
            self.sites.add(site, placed);
            return Ok(());
        }
        let SiteAction::Call { probe, .. } = placed.action else {
            return self.by_jump(stretch, i, placed, owner, back);
        };
        let asked = self.env.callee(probe).is_some_and(|callee| callee.by_trap);
        let allowed = asked || self.env.calls.is_some_and(|calls| calls.may_trap);
        let jump = if asked { None } else { Some(self.by_jump(stretch, i, placed, owner, back)) };
        match jump {
            None => self.trap(stretch, i, placed, owner),
            Some(Err(why)) if allowed => self.trap(stretch, i, placed, owner).map_err(|_| why),
            Some(done) => done,
        }
    }

    /// Puts an int3 over the instruction's first byte. Any instruction will do that does the same elsewhere
    /// as here, a call too: its return meets the next instruction, which is unchanged.
    fn trap(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        placed: PlacedAction,
        owner: Owner,
    ) -> Result<(), Refusal> {
        let insn = &stretch.insns[i];
        let start = Svma(insn.addr);
        let len = insn.len.into();
        let alone = Window { from: i, until: i + 1, start, len, pad: 0, faults_at: 0, stop: Stop::Enough };
        let site = self.env.place(start, insn.len.into());
        let place = self.env.place(start, 1);
        if insn.flow() == Flow::Invalid {
            return Err(Refusal::NotCode { site });
        }
        may_displace(insn).map_err(|why| Refusal::Immovable { site: place, insn: site, why })?;
        if self.env.traits.traps == TrapsPolicy::MustNotTrap {
            return Err(Refusal::MustNotTrap { site });
        }
        if self.env.traits.has_fault_handler && faults_on_register(insn) {
            return Err(Refusal::MayFault { site: place, insn: site });
        }
        if !self.is_clear(&alone, 1) {
            return Err(self.overlap(&alone).unwrap_or(Refusal::NoRoom { site }));
        }
        self.push(stretch, &alone, 1, Reach::Trap, placed, owner)
    }

    fn by_jump(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        placed: PlacedAction,
        owner: Owner,
        back: bool,
    ) -> Result<(), Refusal> {
        let own = walk(&self.env, stretch, i, i);
        let may_trap = self.env.traits.traps == TrapsPolicy::Guarded;
        if may_trap && own.room() >= JUMP && own.until > i && self.is_clear(&own, JUMP) {
            return self.push(stretch, &own, JUMP, Reach::Jump, placed, owner);
        }
        let windows = self.windows(stretch, i, back);
        if !may_trap
            && let Some((window, changed, reach)) = self.seamless(stretch, i, &windows)
            && !(matches!(placed.action, SiteAction::Deliver { .. }) && matches!(reach, Reach::Island(_)))
        {
            return self.push(stretch, &window, changed, reach, placed, owner);
        }
        let full = windows.iter().find(|w| w.room() >= JUMP && self.is_clear(w, JUMP));
        if let Some(window) = full {
            return self.push(stretch, window, JUMP, Reach::Jump, placed, owner);
        }
        if self.extend(stretch, i, placed) {
            return Ok(());
        }
        // An island would be removed before the handler's entry, which is the last one.
        let handles = matches!(placed.action, SiteAction::Deliver { .. });
        for window in windows.iter().filter(|_| !handles) {
            if let Some((window, changed, reach)) = self.short(stretch, i, window) {
                return self.push(stretch, &window, changed, reach, placed, owner);
            }
        }
        for window in &windows {
            if let Some((changed, reach)) = self.pun(stretch, window) {
                return self.push(stretch, window, changed, reach, placed, owner);
            }
        }
        let plain = own;
        Err(self.overlap(&plain).unwrap_or_else(|| refusal(&self.env, stretch, &plain)))
    }

    /// A window for `i` without an interior boundary, for a process in which no thread may trap.
    fn seamless(
        &mut self,
        stretch: Stretch<'_>,
        i: usize,
        windows: &[Window],
    ) -> Option<(Window, u64, Reach)> {
        let first = |w: &Window| u64::from(stretch.insns[w.from].len);
        let whole = |w: &&Window| w.room() >= JUMP && first(w) >= w.len.min(JUMP) && self.is_clear(w, JUMP);
        if let Some(window) = windows.iter().find(whole) {
            return Some((*window, JUMP, Reach::Jump));
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

    /// The windows that hold instruction `i`, in the order of their starts, the last one first.
    fn windows(&self, stretch: Stretch<'_>, i: usize, back: bool) -> SmallVec<[Window; 4]> {
        let mut windows = SmallVec::new();
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
            let before = from.checked_sub(1).map(|b| stretch.insns[b].flow());
            if !matches!(before, Some(Flow::Next | Flow::Branch(_))) || self.env.map.is_target(start) {
                break;
            }
        }
        windows
    }

    /// Whether this window's change touches no bytes of other sites, no claimed padding, and no restartable
    /// sequence; and whether a handler of faults can return to each of its instructions that may fault.
    pub(super) fn is_clear(&self, window: &Window, changed: u64) -> bool {
        if self.env.traits.faults_delivered && window.faults_at >= changed {
            return false;
        }
        let end = window.end(changed);
        // Only padding is claimed.
        let takes_padding = window.len < changed;
        self.sites.over(window.start, end).is_none()
            && (!takes_padding || self.claims.is_free(window.start, end))
            && in_rseq(&self.env, window.start, end).is_none()
    }

    fn overlap(&self, window: &Window) -> Option<Refusal> {
        let end = window.end(JUMP);
        if let Some(refusal) = in_rseq(&self.env, window.start, end) {
            return Some(refusal);
        }
        let other = self.sites.over(window.start, end)?;
        Some(Refusal::Overlap { site: self.env.place(window.start, JUMP), other: other.start })
    }

    fn push(
        &mut self,
        stretch: Stretch<'_>,
        window: &Window,
        changed: u64,
        reach: Reach,
        placed: PlacedAction,
        owner: Owner,
    ) -> Result<(), Refusal> {
        let taken = if matches!(reach, Reach::Pun(..)) { JUMP } else { changed };
        self.claims.claim(window.start + window.len, window.start + taken.max(window.len));
        self.sites.push(PatchedSite {
            owner,
            start: window.start,
            insns: SmallVec::from_slice(&stretch.insns[window.from..window.until]),
            actions: smallvec![placed],
            changed,
            reach,
            faults_before: window.from == 1 && faults_on_register(&stretch.insns[0]),
        });
        Ok(())
    }

    /// Makes the window right before instruction `i` longer, so that it includes `i`. Its jump stays as it
    /// is.
    fn extend(&mut self, stretch: Stretch<'_>, i: usize, placed: PlacedAction) -> bool {
        let before = self.sites.before(placed.at + 1).filter(|&index| {
            let site = self.sites.get(index);
            placed.at - site.start < 64 && site.reach == Reach::Jump
        });
        let Some(index) = before else { return false };
        let (start, site_end) = (self.sites.get(index).start, self.sites.get(index).code_end());
        let Ok(from) = stretch.insns.binary_search_by_key(&start.0, |i| i.addr) else { return false };
        let window = walk(&self.env, stretch, from, i);
        let end = window.end(JUMP);
        let alone = self.sites.before(end) == Some(index);
        let returns = !self.env.traits.faults_delivered || window.faults_at < JUMP;
        let fits = window.until > i && window.room() >= JUMP && alone && returns;
        if !fits || in_rseq(&self.env, start, end).is_some() || site_end - start > window.len {
            return false;
        }
        let insns = SmallVec::from_slice(&stretch.insns[from..window.until]);
        self.sites.change(index, |grown| grown.insns = insns);
        self.sites.add(index, placed);
        true
    }

    /// A short jump, which leaves all bytes but the first two as they are.
    fn short(&mut self, stretch: Stretch<'_>, i: usize, window: &Window) -> Option<(Window, u64, Reach)> {
        // Go's runtime looks up interrupted addresses in its own tables. It ends the program if it finds one
        // in padding.
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
        // Claim the window's own padding before looking for an island.
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
        if changed == 0 || self.puns.is_full() || !self.is_clear(window, JUMP) || !self.tail_stays(window) {
            return None;
        }
        let bytes: [u8; 5] = self.env.image.text(window.start, JUMP)?.try_into().ok()?;
        let boundaries = stretch.insns[window.from..window.until]
            .iter()
            .filter(|i| i.addr - window.start.0 < changed)
            .map(|i| i.addr - window.start.0)
            .chain(window.len..changed)
            .fold(0u8, |bits, n| bits | 1 << n);
        let pun = self.puns.find(
            self.bias.live(window.start),
            bytes,
            changed,
            (boundaries, self.starts_behind(stretch, window, changed)),
        )?;
        Some((changed, Reach::Pun(pun)))
    }

    /// Bit `n`: an instruction starts at byte `n` of a jump at the window's start, behind the `changed` bytes. Other
    /// tools may have an int3 there.
    fn starts_behind(&self, stretch: Stretch<'_>, window: &Window, changed: u64) -> u8 {
        let own = stretch.insns[window.from..window.until].iter().map(|insn| insn.addr);
        let behind = window.start + window.room();
        let bytes =
            (1..=MOST_BYTES).rev().find_map(|len| self.env.image.text(behind, len)).unwrap_or_default();
        let bits = |bits: u8, at: u64| bits | 1 << at;
        own.chain(sweep(bytes, behind.0).map(|insn| insn.addr))
            .map(|at| at - window.start.0)
            .filter(|at| (changed..JUMP).contains(at))
            .fold(0, bits)
    }

    /// Whether this plan leaves alone the bytes that a pun's displacement consists of. What a later plan
    /// changes is checked against [`Patch::relies`](crate::Patch::relies).
    fn tail_stays(&self, window: &Window) -> bool {
        let last = window.start + (JUMP - 1);
        let mine = self.env.map.part_at(window.start).is_ok_and(|p| last < p.end);
        mine || {
            let functions = self.env.image.functions();
            let below = functions.partition_point(|f| f.start <= last) as u32;
            let other = FunctionIndex(below.saturating_sub(1));
            self.requested.binary_search(&other).is_err() || functions[other.0 as usize].end() <= window.start
        }
    }
}
