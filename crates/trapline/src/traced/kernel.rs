//! Kernel uprobes for the places that no jump reaches, if the user asked for them.
//!
//! In: entries and single instructions whose hits are all counted. Out: links that count there, and a refusal for each
//! place on which the kernel sets no uprobe. One link serves all places of a file. The kernel takes it whole or not at
//! all, so a refused one is halved until the culprits stand alone. Semaphores of USDT probes are left to the kernel: it
//! lowers them even when the tracer is killed (SAFE-3).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use trapline_plan::KernelSite;
use trapline_tracee::TargetError;
use trapline_tracee::kernel::{Uprobe, UprobeMulti};

use super::site_table::Source;
use super::target_process::TargetProcess;
use crate::modules::Module;
use crate::names::leads_to;
use crate::report::Refused;
use crate::sites::NamedSite;

/// Most links that are tried for one file: enough to find four culprits among ten thousand places.
const ATTEMPTS: usize = 128;

/// What became of the places, by index.
#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) probed: Vec<(usize, Source)>,
    pub(super) refused: Vec<(usize, Refused)>,
    /// Semaphores that cannot be raised.
    pub(super) notices: Vec<String>,
}

/// All links of a process.
#[derive(Debug, Default)]
pub(super) struct KernelLinks(Vec<UprobeMulti>);

impl KernelLinks {
    /// Links what can be linked. Returns get links of their own.
    pub(super) fn attach(
        &mut self,
        target: &TargetProcess,
        modules: &[Module],
        places: &[NamedSite],
        sites: &[(u32, KernelSite)],
    ) -> Linked {
        let mut out = Linked::default();
        let mut groups: BTreeMap<usize, Vec<(usize, &NamedSite)>> = BTreeMap::new();
        let indices = sites.iter().map(|(_, site)| site.probe as usize);
        for (index, place) in indices.filter_map(|index| Some((index, places.get(index)?))) {
            groups.entry(place.module).or_default().push((index, place));
        }
        for (module, places) in groups {
            self.link(target, &modules[module], &places, &mut out);
        }
        out
    }
    /// Links places of one file.
    fn link(
        &mut self,
        target: &TargetProcess,
        module: &Module,
        places: &[(usize, &NamedSite)],
        out: &mut Linked,
    ) {
        let file = &module.file;
        let path = target.process.path_to(&file.path, file.id);
        if !leads_to(&path, file.id) {
            // A link by this path would count in the file that is there now, which the process does not run.
            out.refused.extend(places.iter().map(|(index, place)| (*index, replaced(place))));
            return;
        }
        let probes: Vec<Uprobe> =
            places.iter().map(|(_, place)| uprobe(module, place, &mut out.notices)).collect();
        let attach = |part| UprobeMulti::attach(&path, part, Some(target.pid()), false);
        let halved = halved(probes.len(), ATTEMPTS, |part| attach(&probes[part]));
        for (part, link) in halved.linked {
            self.0.push(link);
            let link = self.0.len() - 1;
            let some = places[part].iter().enumerate();
            out.probed.extend(some.map(|(nth, (index, _))| (*index, Source::Kernel { link, nth })));
        }
        for (part, error) in halved.refused {
            let culprits = part.len();
            let some = places[part].iter();
            out.refused.extend(some.map(|(index, place)| (*index, refusal(place, &error, culprits))));
        }
    }
    /// Hits of each link's places.
    pub(super) fn counts(&self) -> Vec<Vec<u64>> {
        self.0.iter().map(|link| link.counts().unwrap_or_default()).collect()
    }
    /// Takes all of them off. Their counts can still be read.
    pub(super) fn detach(&mut self) {
        self.0.iter_mut().for_each(UprobeMulti::detach);
    }
}

/// The kernel's description of a place.
fn uprobe(module: &Module, place: &NamedSite, notices: &mut Vec<String>) -> Uprobe {
    let semaphore = place.semaphore.and_then(|at| {
        let offset = module.file.image.offset_of(at);
        if offset.is_none() {
            notices.push(format!("{}: its semaphore lies in no file and is not raised", place.probe));
        }
        offset
    });
    Uprobe { offset: place.offset, semaphore }
}

fn replaced(place: &NamedSite) -> Refused {
    let reason =
        "no jump fits, and a kernel uprobe cannot reach the file, which was replaced on disk".to_owned();
    Refused { probe: place.probe.clone(), kind: "kernel-uprobe", reason }
}

fn refusal(place: &NamedSite, error: &TargetError, among: usize) -> Refused {
    let others = if among > 1 { format!(", for one of {among} sites or more") } else { String::new() };
    let reason = format!("no jump fits, and {error}{others}");
    Refused { probe: place.probe.clone(), kind: "kernel-uprobe", reason }
}

/// What became of the places, as ranges of their indices.
struct Halved<L, E> {
    linked: Vec<(Range<usize>, L)>,
    refused: Vec<(Range<usize>, E)>,
}

/// Links all of `count` places: together if that works. Otherwise it tries what `link` refused in halves, the
/// larger ones first. At most `attempts` links are tried. A place that still shares a range with a culprit
/// then is refused with it.
fn halved<L, E>(
    count: usize,
    attempts: usize,
    mut link: impl FnMut(Range<usize>) -> Result<L, E>,
) -> Halved<L, E> {
    let mut halved = Halved { linked: Vec::new(), refused: Vec::new() };
    let mut parts = VecDeque::new();
    parts.push_back(0..count);
    let mut tried = 0;
    while let Some(part) = parts.pop_front() {
        tried += 1;
        match link(part.clone()) {
            Ok(link) => halved.linked.push((part, link)),
            Err(_) if part.len() > 1 && tried + parts.len() + 2 <= attempts => {
                let middle = part.start.midpoint(part.end);
                parts.extend([part.start..middle, middle..part.end]);
            }
            Err(error) => halved.refused.push((part, error)),
        }
    }
    halved
}

#[cfg(test)]
mod tests {
    use super::halved;

    /// For `count` places of which `bad` are the culprits: those linked, those refused, and the number of
    /// attempts.
    fn outcome(count: usize, attempts: usize, bad: &[usize]) -> (Vec<usize>, Vec<usize>, usize) {
        let mut tried = 0;
        let halved = halved(count, attempts, |part| {
            tried += 1;
            if bad.iter().any(|index| part.contains(index)) { Err(part.len()) } else { Ok(()) }
        });
        let mut linked: Vec<usize> = halved.linked.into_iter().flat_map(|(part, ())| part).collect();
        let mut refused: Vec<usize> = halved.refused.into_iter().flat_map(|(part, _)| part).collect();
        linked.sort_unstable();
        refused.sort_unstable();
        (linked, refused, tried)
    }

    #[test]
    fn only_culprits_are_refused() {
        for bad in [&[][..], &[0], &[9999], &[17, 18, 5000], &[1, 3000, 6000, 9999]] {
            let (linked, refused, tried) = outcome(10_000, super::ATTEMPTS, bad);
            assert_eq!(refused, bad);
            assert_eq!(linked.len(), 10_000 - bad.len());
            assert!(tried <= super::ATTEMPTS, "{tried}");
        }
        assert_eq!(outcome(1, 1, &[0]), (vec![], vec![0], 1));
    }

    #[test]
    fn attempts_are_bounded_and_every_place_has_an_answer() {
        let all: Vec<usize> = (0..1000).collect();
        for attempts in [1, 2, 3, 10, 128] {
            let (linked, refused, tried) = outcome(1000, attempts, &all);
            assert_eq!((linked.len(), refused.len()), (0, 1000));
            assert!(tried <= attempts, "{tried} of {attempts}");
            let (linked, refused, tried) = outcome(1000, attempts, &[3, 700]);
            assert_eq!(linked.len() + refused.len(), 1000);
            assert!(refused.contains(&3) && refused.contains(&700) && tried <= attempts);
        }
    }
}
