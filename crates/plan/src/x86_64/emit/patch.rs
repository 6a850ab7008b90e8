//! The bytes that are written at a site, and what a trap handler needs to know of it.
//!
//! In: a site, and where its stub begins. Out: patches and calls of the plan.

use super::Emitter;
use crate::plan::{Call, Patch, PatchRole};
use crate::x86_64::action::{PlacedAction, SiteAction, When};
use crate::x86_64::jump::{E9, EB, INT3, JUMP};
use crate::x86_64::pun::Pun;
use crate::x86_64::site::{PatchedSite, Reach};
use trapline_record::journal::MAX_PATCH;
use trapline_record::{RemoteAddr, Svma};

impl Emitter<'_, '_> {
    /// Notes what a trap handler needs to call the site's consumers without the stub.
    pub(super) fn calls(&mut self, site: &PatchedSite) {
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

    /// Adds the site's patch, and its island if it has one.
    pub(super) fn patch(&mut self, site: &PatchedSite, head: RemoteAddr) {
        let k = self.set.place.k.to_le_bytes();
        let mut new = [0; MAX_PATCH];
        match site.reach {
            Reach::Jump => new[..5].copy_from_slice(&[E9, k[0], k[1], k[2], k[3]]),
            Reach::Pun(Pun { rel, .. }) => {
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
        let handles = site.actions.iter().any(|placed| matches!(placed.action, SiteAction::Deliver { .. }));
        let role = if handles { PatchRole::Handler } else { site.owner.role };
        self.push(site, site.start, site.changed, new, head, role);
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
            faults_before: site.faults_before,
        };
        self.plan.patches.push(patch);
    }
}
