//! Compares planned sites with memory: which of them may be written.
//!
//! In: sites, the process. Out: sites that may be written, and refusals. Invariants: PATCH-11; a request is
//! refused as a whole if not all of its sites are as the file says: half a probe would miscount (SAFE-5).
//! Does not: change the process.

use std::collections::HashMap;
use std::ops::Range;

use trapline_plan::{ModulePlan, Patch, Region, layout::SMALL_REGIONS};
use trapline_record::RemoteAddr;
use trapline_record::journal::Entry;
use trapline_tracee::{Mapping, Process};

use crate::both::{MANY, both};
use crate::held::conflict;
use crate::install::prepared::PreparedSite;
use crate::install::survey::Survey;
use crate::report::{AttachReport, Refused};
use crate::request::Module;
use crate::space::change::Outcome;
use crate::space::remote::Still;
use crate::space::soft::Masked;
use crate::space::write::verify;
use crate::why::Why;

/// What sites are compared with.
#[derive(Clone, Copy)]
pub(crate) struct Compared<'a> {
    pub(crate) process: &'a Process,
    pub(crate) modules: &'a [Module<'a>],
    pub(crate) survey: &'a Survey,
    /// Patches of earlier batches.
    pub(crate) held: &'a [Patch],
    pub(crate) plans: &'a [ModulePlan],
}

impl Compared<'_> {
    /// Indices of the sites that may not be written, each with the reason; on this thread alone if `alone`, or
    /// if they are few.
    pub(crate) fn unfit(&self, sites: &[PreparedSite], alone: bool) -> Vec<(usize, Why)> {
        if alone || sites.len() < MANY {
            return self.unfit_of(sites, 0..sites.len());
        }
        let middle = sites.len() / 2;
        let (first, second) =
            both(|| self.unfit_of(sites, 0..middle), || self.unfit_of(sites, middle..sites.len()));
        [first, second].concat()
    }
    /// The same for some of the sites.
    fn unfit_of(&self, sites: &[PreparedSite], some: Range<usize>) -> Vec<(usize, Why)> {
        let Self { process, modules, survey, held, plans } = *self;
        let is_changing = |old: &Patch| survey.soft.contains_key(&old.addr.0);
        let mut bad = Vec::new();
        let entries: Vec<Entry> = sites[some.clone()].iter().map(PreparedSite::entry).collect();
        let mut space = Masked { space: Still { process }, soft: &survey.soft };
        let present = verify(&mut space, &entries);
        // As many as the list of regions has room for. Puns respect that when they are planned, islands do not.
        let room = SMALL_REGIONS as usize;
        for (index, outcome) in some.zip(present) {
            let site = &sites[index];
            let Patch { addr, len, old, head, crosses_line, .. } = site.patch;
            let bytes = |b: [u8; 8]| b[..usize::from(len)].to_vec();
            let puns: &[Region] = &plans[site.module as usize].pun_regions;
            let why = match outcome {
                Outcome::Unreachable => Why::NotMapped { addr },
                _ if !shows_file(&survey.maps, &modules[site.module as usize], addr, len.into()) => {
                    Why::NotMapped { addr }
                }
                _ if conflict(held, &site.patch)
                    .is_some_and(|old| !is_changing(old) && is_live(process, old)) =>
                {
                    Why::Held { addr }
                }
                Outcome::Differs { found } => Why::Differs { addr, file: bytes(old), found: bytes(found) },
                _ if puns.len() > room && puns[room..].iter().any(|r| r.contains(head)) => {
                    Why::TooManyRegions { addr }
                }
                _ => match survey.no_traps {
                    Some(because) if crosses_line => Why::CrossesLine { addr, because },
                    _ => continue,
                },
            };
            bad.push((index, why));
        }
        bad
    }
}

/// Whether a patch is still in place. Its library may have been unloaded, and loaded there again.
fn is_live(process: &Process, patch: &Patch) -> bool {
    let len = usize::from(patch.len);
    let mut bytes = [0; 8];
    process.read(patch.addr, &mut bytes[..len]).is_ok() && bytes[..len] == patch.new[..len]
}

/// Whether `len` bytes of code at `addr` are mapped from the module's file, at the offset that the file
/// states.
fn shows_file(maps: &[Mapping], module: &Module<'_>, addr: RemoteAddr, len: u64) -> bool {
    let after = maps.partition_point(|m| m.start <= addr);
    let Some(mapping) = after.checked_sub(1).map(|i| &maps[i]) else { return false };
    let offset = mapping.offset + addr.0.wrapping_sub(mapping.start.0);
    mapping.file == Some(module.file)
        && mapping.perms.exec
        && addr + len <= mapping.end
        && module.image.offset_of(module.bias.stated(addr)) == Some(offset)
}

/// Removes all sites of a request if one of them is unfit, and reports each request once.
pub(crate) fn refuse(sites: &mut Vec<PreparedSite>, bad: Vec<(usize, Why)>, report: &mut AttachReport) {
    if bad.is_empty() {
        return;
    }
    let mut requests: HashMap<(u32, u32), Refused> = HashMap::new();
    for (index, why) in bad {
        let site = &sites[index];
        requests.entry((site.module, site.patch.request)).or_insert_with(|| site.refused(why));
    }
    sites.retain(|s| !requests.contains_key(&(s.module, s.patch.request)));
    let mut refused: Vec<Refused> = requests.into_values().collect();
    refused.sort_unstable_by_key(|r| (r.module, r.request));
    report.refused.extend(refused);
}
