//! Code that sites share: which code a site needs, and where it lies.
//!
//! In: a site's actions. Out: chunks in the arena, each laid out before the first stub that leads to it. Each of two threads
//! that lay out a module has its own. Does not: write that code (`stub`).

use super::Emitter;
use crate::machine::ExitKind;
use crate::plan::Original;
use crate::refusal::Refusal;
use crate::x86_64::action::{PlacedAction, SiteAction};
use crate::x86_64::jump::JUMP;
use crate::x86_64::site::PatchedSite;
use crate::x86_64::stub::{self, RecordedExit, SharedTimed};
use trapline_code::NoCode;
use trapline_record::ring::RecordKind;
use trapline_record::{RemoteAddr, Svma};

/// Code that sites share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shared {
    Timed(SharedTimed),
    Record(RecordedExit),
}

/// A cache line, so that it takes as few as possible.
const ALIGN: u64 = 64;

impl Emitter<'_, '_> {
    /// Lays out the code that the site's stub leads to, as far as it is not there.
    ///
    /// # Errors
    /// The arena has no room, or some part has no code.
    pub(super) fn share(&mut self, site: &PatchedSite) -> Result<(), Refusal> {
        for placed in &site.actions {
            if let Some(which) = self.shared_by(site, placed)
                && !self.shared.iter().any(|(there, _)| *there == which)
            {
                let at = self.lay_out(site, which)?;
                self.shared.push((which, at));
            }
        }
        Ok(())
    }

    /// The code that an action leads to, and where it lies.
    pub(super) fn shared_at(&self, site: &PatchedSite, placed: &PlacedAction) -> Option<(Shared, u64)> {
        let which = self.shared_by(site, placed)?;
        self.shared.iter().find(|(there, _)| *there == which).copied()
    }

    /// Whether the stub does no more than lead to shared code.
    pub(super) fn is_short(&self, site: &PatchedSite, placed: &PlacedAction) -> bool {
        let shared = self.shared_by(site, placed);
        matches!(shared, Some(Shared::Timed(SharedTimed::Exit { .. }) | Shared::Record(_)))
    }

    fn shared_by(&self, site: &PatchedSite, placed: &PlacedAction) -> Option<Shared> {
        let red_zone_live = placed.dead.red_zone_live;
        match placed.action {
            SiteAction::Enter { .. } | SiteAction::Exit { .. } if self.set.latency.is_none() => None,
            SiteAction::Enter { looped, .. } => {
                Some(Shared::Timed(SharedTimed::Entry { red_zone_live, looped }))
            }
            SiteAction::Exit { kind, .. } => {
                let returns = kind == ExitKind::Return && self.may_return(site, placed);
                Some(Shared::Timed(SharedTimed::Exit { kind, red_zone_live, returns }))
            }
            SiteAction::Record { probe, kind, valued, floats, .. } if kind != RecordKind::Entry => {
                let in_slots = self.set.rings.is_some_and(|rings| !rings.area.is_compact());
                let is_plain = self.set.env.filter(probe).is_none() && in_slots;
                let returns = kind == RecordKind::Return && self.may_return(site, placed);
                let (results, by_go) = (floats.results, self.set.env.is_go_at(placed.at));
                let exit = RecordedExit { kind, red_zone_live, returns, results, by_go, valued };
                is_plain.then_some(Shared::Record(exit))
            }
            _ => None,
        }
    }

    /// Whether shared code may return in place of the exit: a plain `ret`, with no other action at the same place. In a
    /// program that catches faults the `ret` runs in its copy, because a fault of it is delivered at its own address.
    fn may_return(&self, site: &PatchedSite, placed: &PlacedAction) -> bool {
        let exit = placed.detour.map_or(placed.at, |detour| detour.exit);
        let is_alone = site.actions.iter().filter(|other| other.at == placed.at).count() == 1;
        is_alone && !self.set.env.traits.faults_delivered && self.is_plain_return(exit)
    }
    fn is_plain_return(&self, at: Svma) -> bool {
        const RET: &[u8] = &[0xC3];
        const REP_RET: &[u8] = &[0xF3, 0xC3];
        let begins = |with: &[u8]| self.set.env.image.text(at, with.len() as u64) == Some(with);
        begins(RET) || begins(REP_RET)
    }

    /// Appends the code, which starts at `at`.
    fn append(&mut self, at: u64, which: Shared) -> Result<(), NoCode> {
        let (out, set) = (&mut self.plan.bytes, self.set);
        match (which, &set.latency, &set.rings) {
            (Shared::Timed(which), Some(latency), _) => {
                stub::shared_timed(out, at, &set.machine, latency, which);
                Ok(())
            }
            (Shared::Record(exit), _, Some(rings)) => {
                stub::shared_record(out, at, &set.recorded_exit(rings, &exit), &exit)
            }
            // None is asked for then.
            _ => Ok(()),
        }
    }

    fn lay_out(&mut self, site: &PatchedSite, which: Shared) -> Result<u64, Refusal> {
        let place = self.set.env.place(site.start, JUMP);
        loop {
            let at = self.stubs.next(ALIGN);
            self.plan.bytes.truncate(self.start);
            self.append(at.0, which).map_err(|why| Refusal::NoCode { site: place, why })?;
            let len = self.len();
            if self.stubs.has(at, len) {
                self.stubs.take(at, len);
                self.split = self.plan.bytes.len();
                self.chunk(at);
                if self.set.gate.is_some() {
                    self.originals_behind.push(Original { copy: at, of: RemoteAddr(0) });
                }
                return Ok(at.0);
            }
            if !self.stubs.renew(&mut self.arena, len + ALIGN) {
                return Err(Refusal::NoRoom { site: place });
            }
        }
    }
}
