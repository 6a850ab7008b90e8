//! `hist` where the reader aggregates: from records, as `trace` has them.
//!
//! In: calls; the value of each that is counted, and the group-by key. Out: [`Sums`]. Invariants: HER-1
//! memory is bounded whatever the calls hold: values and keys together, and their texts. Does not: read
//! rings, print.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trapline::aggregation::{GroupHits, Tallied, ValueSums};
use trapline::filter::{Sort, facts};
use trapline::report::Group;
use trapline::{By, Call, Site};
use trapline_order::Order as _;

use crate::args::aggregation::{Aggregation, Of};
use crate::args::hist::Hist;
use crate::report::hist::{Sums, What};
use crate::report::site::asked_for;
use crate::report::text;

/// Limit for the distinct values in one table.
const MOST: usize = 65_536;

/// The aggregation in the reader, from records.
pub(super) struct ReaderAggregation<'a> {
    args: &'a Hist,
    sites: BTreeMap<(u32, String), Added>,
    texts: Vec<String>,
    numbers: HashMap<String, u64>,
    /// Names of threads, where calls are grouped by thread number.
    names: HashMap<(u32, u32), Option<String>>,
}

struct Added {
    site: Arc<Site>,
    parts: BTreeMap<GroupKey, Part>,
    values: usize,
    overflow: u64,
    unseen: u64,
}

/// The calls of one group.
#[derive(Default)]
struct Part {
    hits: BTreeMap<u64, u64>,
    /// What their values gave, if that is asked for; then all are at 0 in `hits`.
    sums: Option<ValueSums>,
}

/// What calls are grouped by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum GroupKey {
    All,
    Thread(u32),
    Name(Option<String>),
    /// A value of the call.
    Value(u64),
}

impl<'a> ReaderAggregation<'a> {
    pub(super) fn new(args: &'a Hist) -> Self {
        let (sites, names) = (BTreeMap::new(), HashMap::new());
        Self { args, sites, texts: Vec::new(), numbers: HashMap::new(), names }
    }
    /// Adds one round of calls; `name` returns the present name of a call's thread.
    pub(super) fn add(&mut self, calls: &[Call], mut name: impl FnMut(&Call) -> Option<String>) {
        let Aggregation::InReader { of, keys, .. } = &self.args.aggregation else { return };
        let mut names = HashMap::new();
        let mut last: Option<(&Arc<Site>, Option<usize>)> = None;
        for call in calls {
            let nth = match last {
                Some((site, nth)) if Arc::ptr_eq(site, &call.site) => nth,
                _ => asked_for(of, &call.site).next().map(|(nth, _)| nth),
            };
            last = Some((&call.site, nth));
            let Some(nth) = nth else { continue };
            let key = match (keys.as_ref().and_then(|keys| keys.get(nth)), self.args.by) {
                (Some(key), _) => self.value(call, key).map(GroupKey::Value),
                (None, None) => Some(GroupKey::All),
                (None, Some(by)) => {
                    let thread = (call.pid, call.tid);
                    let known = names.entry(thread).or_insert_with(|| name(call));
                    if by == By::Thread {
                        self.names.insert(thread, known.clone());
                    }
                    Some(if by == By::Thread {
                        GroupKey::Thread(call.tid)
                    } else {
                        GroupKey::Name(known.clone())
                    })
                }
            };
            let value = key.zip(self.value(call, &of[nth].1));
            let added = self.sites.entry((call.pid, call.site.probe.clone())).or_insert_with(|| Added {
                site: call.site.clone(),
                parts: BTreeMap::new(),
                values: 0,
                overflow: 0,
                unseen: 0,
            });
            let sums = match &of[nth].1 {
                Of::Number(tally) if tally.sort == Sort::Sums => Some(tally.value.is_unsigned()),
                _ => None,
            };
            match value {
                Some((key, value)) => match sums {
                    Some(unsigned) => added.add(key, 0, Some(ValueSums::of(value, unsigned))),
                    None => added.add(key, value, None),
                },
                None => added.unseen += 1,
            }
        }
    }
    /// The histogram bucket, or the value; `None` if it is not known.
    fn value(&mut self, call: &Call, of: &Of) -> Option<u64> {
        match of {
            Of::Number(tally) => tally.value.evaluate(&facts(call)).map(|value| tally.key(value)),
            Of::Text(parameter) => {
                let read = text::read(call, parameter).filter(|read| !read.is_nothing())?;
                let text = String::from_utf8_lossy(read.bytes).into_owned();
                if let Some(&number) = self.numbers.get(&text) {
                    return Some(number);
                }
                let number = self.texts.len() as u64;
                // A text that is not kept gets a number that no kept text has.
                if self.texts.len() < 2 * MOST {
                    self.texts.push(text.clone());
                    self.numbers.insert(text, number);
                }
                Some(number)
            }
        }
    }
    pub(super) fn sums(&self) -> Sums {
        let Aggregation::InReader { of, .. } = &self.args.aggregation else {
            return Sums::default();
        };
        let (mut tallied, mut keys) = (Vec::new(), Vec::new());
        for ((pid, _), added) in &self.sites {
            let mut parts: Vec<(&GroupKey, &Part)> = added.parts.iter().collect();
            if self.args.key.is_some() {
                // Most calls first, since there may be many keys.
                parts.order_by_key(|(_, part)| std::cmp::Reverse(part.hits.values().sum::<u64>()));
            }
            keys.push(parts.iter().map(|(key, _)| self.key_of(&added.site, key)).collect());
            let group = |key: &GroupKey| match key {
                GroupKey::All | GroupKey::Value(_) => None,
                GroupKey::Thread(tid) => {
                    let comm = self.names.get(&(*pid, *tid)).cloned().flatten();
                    Some(Group::Thread { tid: *tid, comm })
                }
                GroupKey::Name(comm) => Some(Group::Name { comm: comm.clone(), threads: 0 }),
            };
            let part = |(key, part): (&GroupKey, &Part)| GroupHits {
                group: group(key),
                key: None,
                hits: part.hits.clone(),
                sums: part.sums,
            };
            tallied.push(Tallied {
                pid: *pid,
                site: added.site.clone(),
                parts: parts.into_iter().map(part).collect(),
                texts: BTreeMap::new(),
                overflow: added.overflow,
                unseen: added.unseen,
                filtered: 0,
                unnamed: 0,
            });
        }
        let are_texts = self.args.sort == Sort::Each && of.iter().any(|(_, of)| matches!(of, Of::Text(_)));
        let keys = if self.args.key.is_some() { keys } else { Vec::new() };
        Sums { tallied, texts: are_texts.then(|| self.texts.clone()), keys }
    }
    /// A group-by key for people and machines, where calls are grouped by one of their values.
    fn key_of(&self, site: &Site, key: &GroupKey) -> What {
        let GroupKey::Value(value) = *key else { return What::Value(0) };
        let Aggregation::InReader { of, keys: Some(keys), .. } = &self.args.aggregation else {
            return What::Value(0);
        };
        let nth = asked_for(of, site).next().map(|(nth, _)| nth);
        match nth.and_then(|nth| keys.get(nth)) {
            Some(Of::Text(_)) => {
                let text = usize::try_from(value).ok().and_then(|at| self.texts.get(at));
                What::Text(text.cloned().unwrap_or_default())
            }
            _ => {
                let by = self.args.key.as_ref();
                let shown = by.and_then(|by| by.shown(site));
                let unsigned = by.is_some_and(|by| by.unsigned);
                What::of(value, shown, unsigned)
            }
        }
    }
}

impl Added {
    fn add(&mut self, key: GroupKey, value: u64, sums: Option<ValueSums>) {
        let known = self.parts.get(&key).is_some_and(|part| part.hits.contains_key(&value));
        if !known && self.values == MOST {
            self.overflow += 1;
            return;
        }
        self.values += usize::from(!known);
        let part = self.parts.entry(key).or_default();
        *part.hits.entry(value).or_default() += 1;
        part.sums = ValueSums::merged(part.sums, sums);
    }
}
