//! Translates what one batch requests of one process into `trapline_patch`'s terms, and the answers into this
//! crate's.
//!
//! In: modules, the sites meant there, a session's requests. Out: a [`Request`] that borrows from a
//! [`Requests`]; which tactic each site got, and which sites were refused. An attach and a rehearsal ask
//! the same. Does not: change the process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use trapline_patch::{AttachReport, Durations, Request, Semaphore, Threads};
use trapline_plan::filter::TargetFilter;
use trapline_plan::{Action, ActionRequest, CodeMap, Tactic};
use trapline_tracee::Process;

use crate::modules::Module;
use crate::report::Refused;
use crate::session_request::SessionRequest;
use crate::sites::NamedSite;
use crate::why::kind_of;

/// Requests by module; `ActionRequest::probe` is the index of the site.
pub(crate) struct Requests<'a> {
    modules: &'a [Module],
    requests: Vec<Vec<ActionRequest>>,
    semaphores: Vec<Vec<Semaphore>>,
    maps: Vec<Option<Arc<CodeMap>>>,
    filters: Vec<Option<TargetFilter>>,
}

impl<'a> Requests<'a> {
    /// Collects requests for all sites. `guarded`: guard traps can be served there. `tick`: as in
    /// [`SessionRequest::tick`].
    pub(crate) fn new(modules: &'a [Module], sites: &[NamedSite], guarded: bool, tick: Option<u64>) -> Self {
        let mut requests: Vec<Vec<ActionRequest>> = vec![Vec::new(); modules.len()];
        let mut semaphores: Vec<Vec<Semaphore>> = vec![Vec::new(); modules.len()];
        for (probe, site) in (0u32..).zip(sites) {
            let latency = site.action.is_timed().then_some(probe);
            requests[site.module].push(ActionRequest {
                probe,
                latency,
                function: site.function,
                action: site.action,
            });
            semaphores[site.module].extend(site.semaphore.map(|at| Semaphore { probe, at }));
        }
        let map = |(module, requests): (&Module, &Vec<ActionRequest>)| {
            (!requests.is_empty()).then(|| module.file.code_map(requests, guarded, false))
        };
        let maps = modules.iter().zip(&requests).map(map).collect();
        let filter =
            |site: &NamedSite| site.filter.as_ref().and_then(|filter| filter.in_target(site.action, tick));
        let filters: Vec<_> = sites.iter().map(filter).collect();
        let filters = if filters.iter().any(Option::is_some) { filters } else { Vec::new() };
        Self { modules, requests, semaphores, maps, filters }
    }
    /// Modules in which something is requested.
    pub(crate) fn asked(&self) -> Vec<trapline_patch::Module<'_>> {
        let asked = self.maps.iter().enumerate().filter_map(|(index, map)| Some((index, map.as_deref()?)));
        asked
            .map(|(index, map)| trapline_patch::Module {
                name: &self.modules[index].file.path,
                file: self.modules[index].file.id,
                image: &self.modules[index].file.image,
                bias: self.modules[index].bias,
                map,
                requests: &self.requests[index],
                semaphores: &self.semaphores[index],
            })
            .collect()
    }
    /// Filters that run in the target, site by site; empty if none does.
    pub(crate) fn filters(&self) -> &[Option<TargetFilter>] {
        &self.filters
    }
    /// The whole batch.
    pub(crate) fn request<'b>(
        &self,
        asked: &'b [trapline_patch::Module<'b>],
        filters: &'b [Option<TargetFilter>],
        requested: &SessionRequest,
    ) -> Request<'b> {
        let program = self.modules.iter().find(|module| module.is_program && module.file.image.is_go());
        let go_g =
            program.and_then(|module| module.file.image.go_g_in_tls()).and_then(|at| i32::try_from(at).ok());
        let durations = Durations { go_g, ..requested.durations };
        Request {
            modules: asked,
            go: program.is_some(),
            threads: Threads::default(),
            durations,
            options: requested.options,
            calls: None,
            filters,
            unwinders: &[],
            own_code: &[],
        }
    }
}

/// Whether guard traps can be served: the program's runtime leaves SIGTRAP alone, and no thread blocks it
/// now.
pub(crate) fn is_guarded(process: &Process, modules: &[Module]) -> bool {
    const SIGTRAP: u64 = 1 << 4;
    let is_go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
    let blocks = |tid| process.thread_status(tid).is_ok_and(|status| status.blocked & SIGTRAP != 0);
    !is_go && process.threads().is_ok_and(|threads| !threads.into_iter().any(blocks))
}

/// Notice about functions with patched exits, of which some are jumps to other functions. `left_alone`: why
/// return addresses were not replaced instead.
pub(crate) fn tails_notice(
    report: &AttachReport,
    sites: &[NamedSite],
    left_alone: Option<&str>,
) -> Option<String> {
    let lasts = |site: &NamedSite| match site.action {
        Action::Latency | Action::Record { returns: true, .. } => true,
        Action::Tally { exits } => exits && site.filter.as_ref().is_some_and(|filter| filter.tallies_calls()),
        _ => false,
    };
    let placed: HashSet<u32> = report.placed.iter().map(|placed| placed.probe).collect();
    let tails: BTreeSet<u32> = report.tails.iter().copied().filter(|probe| placed.contains(probe)).collect();
    let mut of = tails.iter().filter_map(|&probe| sites.get(probe as usize)).filter(|site| lasts(site));
    let first = &of.next()?.probe;
    let others = match of.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let instead = match left_alone {
        Some(why) => format!("their return addresses were not replaced: {why}"),
        None => "--ret=stack times them until they return".to_owned(),
    };
    Some(format!(
        "calls of {first}{others} that end by a jump to another function are timed until that jump, and what they return and how long they \
         take is unknown to conditions; {instead}"
    ))
}

/// Refusal of a site that needs a return trampoline, where that cannot be registered with all unwinders.
pub(crate) fn no_unwinder(site: &NamedSite, why: &str) -> Refused {
    let reason =
        format!("its return address cannot be replaced: {why}; its exits may be patched (--ret=exits)");
    Refused { probe: site.probe.clone(), kind: "no-unwinder", reason }
}

/// Refusal of a site in a Go program where calls of different goroutines cannot be distinguished.
pub(crate) fn no_goroutine(site: &NamedSite) -> Refused {
    let reason = "where this Go program's threads keep their goroutine is not known, so that what its calls return cannot be put together with what they were given";
    Refused { probe: site.probe.clone(), kind: "no-goroutine", reason: reason.into() }
}

/// Refusal of a site whose hits would assign in other maps than those of earlier sites.
pub(crate) fn other_maps(site: &NamedSite) -> Refused {
    let reason = "its module was loaded later, and what hits assign there would not be seen by those of earlier probes";
    Refused { probe: site.probe.clone(), kind: "other-maps", reason: reason.into() }
}

/// Least preferred tactic of each site that has one, by index.
pub(crate) fn tactics(report: &AttachReport) -> HashMap<u32, Tactic> {
    let mut tactics: HashMap<u32, Tactic> = HashMap::new();
    for placed in &report.placed {
        let worst = tactics.entry(placed.probe).or_insert(placed.tactic);
        *worst = (*worst).max(placed.tactic);
    }
    tactics
}

/// Places that were refused, by index.
pub(crate) fn refusals(report: &AttachReport, sites: &[NamedSite]) -> Vec<(usize, Refused)> {
    let one = |r: &trapline_patch::Refused| {
        let site = sites.get(r.probe as usize)?;
        let refused = Refused { probe: site.probe.clone(), kind: kind_of(&r.why), reason: r.why.to_string() };
        Some((r.probe as usize, refused))
    };
    report.refused.iter().filter_map(one).collect()
}

/// Refusal of a site because its whole batch failed.
pub(crate) fn batch_failed(site: &NamedSite, why: &dyn Display) -> Refused {
    Refused { probe: site.probe.clone(), kind: "batch-failed", reason: why.to_string() }
}
