//! Guards: where a thread goes on that traps inside a window.
//!
//! In: the stub under construction, and the site. Out: guards of the plan, one for each boundary inside the
//! changed bytes (PLAN-2).

use super::Emitter;
use crate::machine::TrapsPolicy;
use crate::plan::{Delivery, Guard, Original};
use crate::x86_64::jump::INT3;
use crate::x86_64::site::{PatchedSite, Reach};
use trapline_insn::x86_64::{Class, Insn, Relocated, sweep};
use trapline_record::{RemoteAddr, Svma};

impl Emitter<'_, '_> {
    pub(super) fn guard(&mut self, insn: Svma, at: RemoteAddr) {
        let resume = at + self.len();
        self.guards.push(Guard { at: self.set.bias.live(insn), resume });
    }

    pub(super) fn copy_guards(&mut self, moved: &Relocated, live: RemoteAddr, here: RemoteAddr) {
        for &(old, new) in &moved.offsets {
            let (at, resume) = (live + u64::from(old), here + u64::from(new));
            self.guards.push(Guard { at, resume });
            if self.set.gate.is_some() {
                self.originals.push(Original { copy: resume, of: at });
            }
        }
    }

    /// Notes where faults of a window's copies are delivered. A detour's copies do not fault.
    pub(super) fn deliver(
        &mut self,
        site: &PatchedSite,
        moved: &Relocated,
        live: RemoteAddr,
        here: RemoteAddr,
    ) {
        let start = self.set.bias.live(site.start);
        let window = start..self.set.bias.live(site.code_end());
        if !self.set.env.traits.faults_delivered || !window.contains(&live) {
            return;
        }
        self.deliveries.extend(moved.offsets.iter().map(|&(old, new)| {
            let original = live + u64::from(old);
            let is_inside = original > start && original < start + site.changed;
            Delivery { copy: here + u64::from(new), original, is_inside }
        }));
    }

    /// Keeps the guards inside the changed bytes. If an instruction has two, the first one is kept: it leads
    /// to before the actions there.
    pub(super) fn keep_guards(&mut self, site: &PatchedSite) {
        let start = self.set.bias.live(site.start);
        let mut last = start;
        for guard in self.guards.drain(..) {
            if guard.at > last && guard.at < start + site.changed {
                self.plan.guards.push(guard);
                last = guard.at;
            }
        }
    }

    /// Adds guards for nops in the changed bytes that no known code runs: a thread there goes on behind them.
    pub(super) fn padding_guards(&mut self, site: &PatchedSite) {
        let (end, limit) = (site.code_end(), site.start + site.changed);
        if end >= limit {
            return;
        }
        let room = (limit - end) + 15;
        let bytes = (1..=room).rev().find_map(|len| self.set.env.image.text(end, len)).unwrap_or(&[]);
        let nops: Vec<Insn> =
            sweep(bytes, end.0).take_while(|i| i.is_padding() && i.class != Class::Int3).collect();
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
    pub(super) fn astray_guard(&mut self, site: &PatchedSite, head: RemoteAddr) {
        let first = self.set.env.image.text(site.start, 1).map_or(0, |bytes| bytes[0]);
        let at = self.set.bias.live(site.start) + 1;
        let traps =
            self.set.place.k.to_le_bytes()[0] == INT3 && site.insns.first().is_some_and(|i| i.len > 1);
        let served = self.set.gate.is_none() && self.set.env.traits.traps == TrapsPolicy::Guarded;
        if site.reach == Reach::Jump && served && traps && is_prefix_of_int3(first) {
            self.plan.guards.push(Guard { at, resume: head });
        }
    }
}

/// Prefixes that an int3 may have, and that do not change it: segments, sizes, `repne`, `rep`, REX.
const fn is_prefix_of_int3(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF2 | 0xF3)
}
