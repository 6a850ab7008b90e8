//! The sites of one process: those that are probed, with where their hits are counted, and those that were
//! refused.
//!
//! In: places that were patched or refused. Out: sites, each once; what reports keep of them between two
//! reports. Invariant: TRC-1 a (file, offset) is one site, however often its file was mapped; one for each probe
//! that counts for itself. Does not: read
//! counts, or patch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use trapline_patch::{Attached, Segment};
use trapline_plan::{Action, Results};
use trapline_record::FileOffset;
use trapline_tracee::FileId;

use crate::aggregation::{Settled, TableContents};
use crate::decode::{ProbeFacts, Shape};
use crate::filter::Filter;
use crate::group_by::{GroupNumber, parts, shares};
use crate::modules::Module;
use crate::report::{By, Refused, Share, Site, Tactic};
use crate::sites::NamedSite;
use crate::threads::Names;
use crate::values::Values;

/// Where the hits of a site are counted.
#[derive(Debug)]
pub(super) enum Source {
    Counter { segment: usize, index: u32, latency: Option<u32> },
    Kernel { link: usize, nth: usize },
}

/// Permanent identity of a site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SiteKey {
    file: FileId,
    offset: FileOffset,
    slot: u32,
    /// It counts returns.
    is_return: bool,
}

impl SiteKey {
    /// Key of a place's site.
    pub(super) fn of(modules: &[Module], place: &NamedSite) -> Self {
        let is_return = matches!(
            place.action,
            Action::CountExits | Action::Tally { exits: true } | Action::Record { returns: true, .. }
        );
        Self { file: modules[place.module].file.id, offset: place.offset, slot: place.slot, is_return }
    }
}

/// A site that is probed.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) site: Arc<Site>,
    pub(super) action: Action,
    pub(super) filter: Option<Arc<Filter>>,
    values: Values,
    /// If arguments of a USDT probe are read: the filter as requested, for the reader. `filter` then names
    /// the probe's operands instead.
    asked: Option<Arc<Filter>>,
    is_libcall: bool,
    pub(super) sources: Vec<Source>,
    /// Hits at the last report.
    pub(super) last: u64,
    /// The same by group.
    parts: HashMap<GroupNumber, u64>,
    /// Hits that were credited to a former name of their thread.
    pub(super) settled: Settled,
}

impl Tracked {
    /// Segments and counters in which its hits are counted.
    pub(super) fn counters(&self) -> impl Iterator<Item = (usize, u32)> {
        self.sources.iter().filter_map(|source| match *source {
            Source::Counter { segment, index, .. } => Some((segment, index)),
            Source::Kernel { .. } => None,
        })
    }
    /// Whether its values are aggregated.
    pub(super) const fn is_tallied(&self) -> bool {
        matches!(self.action, Action::Tally { .. })
    }
    /// Whether its values are aggregated at returns, from what the entry left.
    pub(super) fn tallies_calls(&self) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.tallies_calls())
    }
    /// Whether its hits run a program.
    pub(super) fn runs_program(&self) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.runs_program())
    }
    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self.action, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..))
    }
    /// Shape of its records, if they hold anything besides integers; in a compact ring, if they hold anything.
    fn shape(&self, returns_decide: bool, is_compact: bool) -> Option<Shape> {
        let fields = || self.filter.as_ref().map_or_else(Vec::new, |filter| filter.field_bytes());
        let kept = || {
            self.filter
                .as_ref()
                .map_or_else(Vec::new, |filter| filter.kept_bytes(self.action, returns_decide))
        };
        match self.action {
            Action::Record { values, valued, texts, floats, fields: words, .. }
                if texts != 0
                    || floats.arguments != 0
                    || words != 0
                    || is_compact && (values != 0 || valued) =>
            {
                Some(Shape { values, texts, floats: floats.arguments, fields: fields(), kept: kept() })
            }
            Action::RecordMark(_, 1..) => {
                Some(Shape { values: 6, texts: 0, floats: 0, fields: fields(), kept: Vec::new() })
            }
            _ => None,
        }
    }
    /// What decoding its records takes. `returns_decide` is false in programs where no return can decide.
    pub(super) fn facts(&self, returns_decide: bool, is_compact: bool) -> ProbeFacts {
        let late = match (&self.values, &self.asked) {
            (Values::Marked(_), asked) => asked.as_ref().map(|filter| Filter::clone(filter).by_reader()),
            _ => self.filter.as_ref().map(|filter| filter.left_to_reader(self.action, returns_decide)),
        };
        ProbeFacts {
            site: Arc::clone(&self.site),
            waits: matches!(self.action, Action::Record { returns: true, .. }),
            shape: self.shape(returns_decide, is_compact),
            results: match self.action {
                Action::Record { floats, .. } if !is_compact => floats.results,
                _ => Results::INTEGER,
            },
            values: self.values.clone(),
            is_libcall: self.is_libcall,
            late: late.filter(Filter::is_late).map(Arc::new),
        }
    }
    /// Contents of its aggregation table.
    pub(super) fn contents(&self, attached: &Attached, by: Option<By>) -> TableContents {
        let mut contents = TableContents::default();
        if let Some(tally) = self.filter.as_ref().and_then(|filter| filter.tallied()) {
            for (nth, probe) in self.counters() {
                contents.add(&attached.segments()[nth], probe, by, tally, attached.counts_by_cpu());
            }
        }
        contents
    }
    /// Its hits by group. Sites that the kernel counts have no groups.
    fn split(&mut self, by: By, owned: bool, segments: &[Segment], names: &Names) -> Vec<Share> {
        let mut now = HashMap::new();
        for (segment, index) in self.counters() {
            parts(by, owned, &segments[segment], index, &mut now);
        }
        shares(by, now, &mut self.parts, names)
    }
}

/// What became of the places that a batch refused.
#[derive(Debug, Default)]
pub(super) struct RefusedPlaces {
    /// Sites that are refused now, and were not before.
    pub(super) new: Vec<Refused>,
    /// Modules, by index, of which places are unmapped.
    pub(super) gone: HashSet<usize>,
    /// Number of sites that are probed in another mapping of the file, and one example.
    pub(super) partly: Option<(u64, Refused)>,
}

/// All sites of a process.
#[derive(Debug, Default)]
pub(super) struct SiteTable {
    sites: Vec<Tracked>,
    keys: HashMap<SiteKey, usize>,
    /// Sites that were refused.
    not_probed: HashSet<SiteKey>,
    refused: Arc<Vec<Refused>>,
}

impl SiteTable {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Tracked> {
        self.sites.iter()
    }
    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Tracked> {
        self.sites.iter_mut()
    }
    pub(super) const fn len(&self) -> usize {
        self.sites.len()
    }
    /// Whether nothing is probed and nothing was refused.
    pub(super) fn is_unconcerned(&self) -> bool {
        self.sites.is_empty() && self.refused.is_empty()
    }
    pub(super) const fn refused(&self) -> &Arc<Vec<Refused>> {
        &self.refused
    }
    /// Number of sites and of sources: changes with each that is added.
    pub(super) fn version(&self) -> (usize, usize) {
        (self.sites.len(), self.sites.iter().map(|tracked| tracked.sources.len()).sum())
    }
    /// Adds one more place at which a site's hits are counted.
    pub(super) fn track(&mut self, modules: &[Module], place: &NamedSite, tactic: Tactic, source: Source) {
        let key = SiteKey::of(modules, place);
        if let Some(&known) = self.keys.get(&key) {
            let known = &mut self.sites[known];
            known.sources.push(source);
            if known.site.tactic < tactic {
                Arc::make_mut(&mut known.site).tactic = tactic;
            }
            return;
        }
        let site = Site {
            probe: place.probe.clone(),
            aliases: place.aliases.clone(),
            file: modules[place.module].file.path.clone(),
            offset: place.offset.0,
            label: place.label.clone(),
            tactic,
            slot: place.slot,
        };
        self.keys.insert(key, self.sites.len());
        self.sites.push(Tracked {
            site: Arc::new(site),
            action: place.action,
            filter: place.filter.clone(),
            values: place.values.clone(),
            asked: place.asked.clone(),
            is_libcall: place.is_libcall,
            sources: vec![source],
            last: 0,
            parts: HashMap::new(),
            settled: Settled::default(),
        });
    }
    /// Turns refusals of places into refusals of sites. A place yields none if its site is probed in another
    /// mapping of the file, was already refused in one, or is unmapped by now. `again`: the places have lost their
    /// own patches.
    pub(super) fn sort_refusals(
        &mut self,
        modules: &[Module],
        places: &[NamedSite],
        why: Vec<(usize, Refused)>,
        again: bool,
    ) -> RefusedPlaces {
        let mut out = RefusedPlaces::default();
        let why = why.into_iter().filter(|(index, _)| !places.get(*index).is_some_and(NamedSite::is_for_us));
        for (place, why) in why.filter_map(|(index, why)| Some((places.get(index)?, why))) {
            let key = SiteKey::of(modules, place);
            match (why.kind, self.keys.contains_key(&key)) {
                ("not-mapped", _) => drop(out.gone.insert(place.module)),
                // The site's own patch is there.
                ("held", true) if !again => {}
                (_, true) => {
                    out.partly = Some(out.partly.map_or((1, why), |(n, first): (u64, _)| (n + 1, first)));
                }
                (_, false) if !self.not_probed.insert(key) => {}
                (_, false) => out.new.push(why),
            }
        }
        out
    }
    /// Adds refusals to the reports.
    pub(super) fn refuse(&mut self, refused: Vec<Refused>) {
        if !refused.is_empty() {
            Arc::make_mut(&mut self.refused).extend(refused);
        }
    }
    /// Sites with a counter, given as (segment, index), that is closed.
    pub(super) fn closed(&self, closed: &HashSet<(usize, u32)>) -> HashSet<SiteKey> {
        let is_closed = |index: usize| self.sites[index].counters().any(|counter| closed.contains(&counter));
        self.keys.iter().filter(|(_, index)| is_closed(**index)).map(|(key, _)| *key).collect()
    }
    /// Contents of the aggregation tables, each with its site.
    pub(super) fn contents(&self, attached: &Attached, by: Option<By>) -> Vec<(&Tracked, TableContents)> {
        let tallied = self.sites.iter().filter(|tracked| tracked.is_tallied());
        tallied.map(|tracked| (tracked, tracked.contents(attached, by))).collect()
    }
    /// The places of all counters, by segment and number.
    pub(super) fn by_counter(&self) -> HashMap<(usize, u32), Arc<Site>> {
        let all = self.sites.iter().flat_map(|tracked| tracked.counters().map(move |at| (at, tracked)));
        all.map(|(at, tracked)| (at, Arc::clone(&tracked.site))).collect()
    }
    /// Credits what the rows of renamed threads have grown to the threads' former names.
    pub(super) fn settle(
        &mut self,
        attached: &Attached,
        by: Option<By>,
        renamed: &HashMap<u32, Option<String>>,
    ) {
        for tracked in self.sites.iter_mut().filter(|tracked| tracked.is_tallied()) {
            let contents = tracked.contents(attached, by);
            tracked.settled.settle(&contents, renamed);
        }
    }
    /// Hits of each site, by group.
    pub(super) fn split(&mut self, attached: &Attached, by: By, names: &Names) -> Vec<Vec<Share>> {
        let (segments, owned) = (attached.segments(), attached.counts_by_cpu());
        self.sites.iter_mut().map(|tracked| tracked.split(by, owned, segments, names)).collect()
    }
    /// Hits at the last report: those counted by stubs, and those counted by kernel uprobes.
    pub(super) fn last_hits(&self) -> (u64, u64) {
        let sum = |kernel: bool| {
            let some = self.sites.iter().filter(|tracked| (tracked.site.tactic == Tactic::Kernel) == kernel);
            some.map(|tracked| tracked.last).fold(0, u64::wrapping_add)
        };
        (sum(false), sum(true))
    }
}
