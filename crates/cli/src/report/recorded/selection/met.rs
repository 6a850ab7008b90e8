//! Why a selection shows nothing of a recording.
//!
//! In: functions and threads of the recording, the longest call, whether any call was shown. Out: lines for people, one for each
//! option that leaves out all by itself; or one that names all options. Does not: decide which calls are shown.

use trapline::recorded::Ticks;
use trapline::{ProbeSpec, Site};

use crate::args::command::record::Selection;
use crate::report::number::{duration, grouped};
use crate::report::site::nearness;

/// Most threads that a line names.
const SOME: usize = 5;

/// What a selection met.
#[derive(Debug)]
pub(crate) struct Met {
    functions: u64,
    /// For each function of `only`, `callers_of` and the triggers: whether the recording has one.
    only: Vec<bool>,
    callers_of: Vec<bool>,
    triggers: Vec<bool>,
    tids: Vec<u32>,
    is_any_chosen: bool,
    pub(super) ticks: Ticks,
    /// Ticks of the longest call.
    pub(super) longest: u64,
    pub(super) shown: bool,
}

fn note(met: &mut [bool], specs: &[ProbeSpec], site: &Site) {
    for (met, spec) in met.iter_mut().zip(specs) {
        *met |= nearness(spec, site).is_some();
    }
}

impl Met {
    pub(super) fn new(selection: &Selection) -> Self {
        let none = |many: usize| vec![false; many];
        Self {
            functions: 0,
            only: none(selection.only.len()),
            callers_of: none(selection.callers_of.len()),
            triggers: none(selection.triggers.len()),
            tids: Vec::new(),
            is_any_chosen: false,
            ticks: Ticks { start: 0, ns: 1.0 },
            longest: 0,
            shown: false,
        }
    }
    pub(super) fn function(&mut self, selection: &Selection, site: &Site) {
        self.functions += 1;
        note(&mut self.only, &selection.only, site);
        note(&mut self.callers_of, &selection.callers_of, site);
        for (met, trigger) in self.triggers.iter_mut().zip(&selection.triggers) {
            *met |= nearness(&trigger.function, site).is_some();
        }
    }
    pub(super) fn thread(&mut self, tid: u32, is_chosen: bool) {
        self.is_any_chosen |= is_chosen;
        if self.tids.len() <= SOME {
            self.tids.push(tid);
        }
    }
    /// The lines. Also if calls are shown, one for each function of a trigger that the recording does not have.
    pub(super) fn unmet(&self, selection: &Selection) -> Vec<String> {
        let functions = grouped(self.functions);
        let missing = |option: &str, met: &[bool], names: Vec<&str>| -> Vec<String> {
            let names = names.into_iter().zip(met).filter(|(_, met)| !**met);
            names.map(|(name, _)| format!("{option} {name} means none of the {functions} recorded functions; trapline report shows their names")).collect()
        };
        let texts = |specs: &'_ [ProbeSpec]| specs.iter().map(|spec| spec.text.clone()).collect::<Vec<_>>();
        let of = |option: &str, met: &[bool], texts: &[String]| {
            missing(option, met, texts.iter().map(String::as_str).collect())
        };
        let triggers: Vec<String> = selection.triggers.iter().map(|one| one.function.text.clone()).collect();
        let mut lines = of("--trigger", &self.triggers, &triggers);
        if self.shown || self.functions == 0 {
            return lines;
        }
        lines.extend(of("--filter", &self.only, &texts(&selection.only)));
        lines.extend(of("--caller", &self.callers_of, &texts(&selection.callers_of)));
        if !self.tids.is_empty() && !self.is_any_chosen {
            let more = if self.tids.len() > SOME { ", …" } else { "" };
            let tids: Vec<String> = self.tids.iter().take(SOME).map(u32::to_string).collect();
            lines.push(format!("--tid: no such thread made a call; recorded are {}{more}", tids.join(", ")));
        } else if self.longest > 0 && self.ticks.nanos(self.longest) < selection.least.as_nanos() as u64 {
            lines.push(format!(
                "--time-filter leaves out all calls: the longest took {}",
                duration(self.ticks.nanos(self.longest))
            ));
        }
        if lines.is_empty() {
            lines.push("no call passes all of the options together; leave some out".to_owned());
        }
        lines
    }
}
