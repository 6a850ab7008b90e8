//! What was tallied: how often a probe's expression had which value.
//!
//! In: tables as segments hold them. Out: [`Tallied`], cell by cell. Does not: know what a cell means ([`Tally::key`] does).

use std::collections::BTreeMap;
use std::sync::Arc;

use trapline_patch::Segment;
use trapline_plan::filter::{THREAD_UNIT, Tally};
use trapline_record::tally::{Rest, TEXT_BYTES};

use crate::report::{By, Site, Whose};
use crate::threads::Names;

/// One site's values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tallied {
    /// The process.
    pub pid: u32,
    /// Where.
    pub site: Arc<Site>,
    /// What was counted, split as asked for; one part if not asked for.
    pub parts: Vec<Part>,
    /// The text of each key, where texts were counted; what is no UTF-8 as its replacement.
    pub texts: BTreeMap<u64, String>,
    /// Hits for which the table had no row left.
    pub overflow: u64,
    /// Hits that had no value: exits by a tail call, where a return is asked for.
    pub unseen: u64,
    /// Hits that a filter kept back, besides.
    pub filtered: u64,
}

/// Hits of somebody's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Whose; `None` for all.
    pub whose: Option<Whose>,
    /// Hits by cell, or by value where each has a row.
    pub hits: BTreeMap<u64, u64>,
}

impl Tallied {
    /// All hits: every cell, the overflow and those without a value.
    #[must_use]
    pub fn hits(&self) -> u64 {
        let cells = self.parts.iter().flat_map(|part| part.hits.values());
        cells.fold(self.overflow.wrapping_add(self.unseen), |sum, hits| sum.wrapping_add(*hits))
    }
}

/// Hits as tables have them: by CPU or thread, if they are told apart, and cell.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) hits: BTreeMap<(Option<u32>, u64), u64>,
    pub(crate) texts: BTreeMap<u64, String>,
    pub(crate) rest: Rest,
}

impl Gathered {
    /// Adds what a segment has of a probe; `owned` says whether lines belong to CPUs.
    pub(crate) fn add(&mut self, segment: &Segment, probe: u32, by: Option<By>, tally: &Tally, owned: bool) {
        let area = segment.tallies();
        for line in 0..area.lines {
            let cpu = (by == Some(By::Cpu) && owned && line + 1 < area.lines).then_some(line);
            let rest = area.read_rows(segment.view(), probe, line, |row, word| {
                if tally.texts() != 0 {
                    self.texts.entry(row.key).or_insert_with(|| text(word));
                }
                let (owner, cell) = match (tally.by_thread, tally.has_owners()) {
                    (_, true) => (row.owner, row.key),
                    (true, _) => (Some((row.key / THREAD_UNIT) as u32), row.key % THREAD_UNIT),
                    (false, _) => (cpu, row.key),
                };
                let sum = self.hits.entry((owner, cell)).or_default();
                *sum = sum.wrapping_add(row.hits);
            });
            self.rest.overflow = self.rest.overflow.wrapping_add(rest.overflow);
            self.rest.unseen = self.rest.unseen.wrapping_add(rest.unseen);
        }
    }
    /// All of it.
    pub(crate) fn sum(&self) -> u64 {
        let rest = self.rest.overflow.wrapping_add(self.rest.unseen);
        self.hits.values().fold(rest, |sum, hits| sum.wrapping_add(*hits))
    }
    /// By whoever the hits are of.
    pub(crate) fn parts(&self, by: Option<By>, names: &Names) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (&(owner, cell), &hits) in &self.hits {
            let whose = match (by, owner) {
                (None, _) => None,
                (Some(_), None) => Some(Whose::Other),
                (Some(By::Cpu), Some(cpu)) => Some(Whose::Cpu(cpu)),
                (Some(By::Thread), Some(tid)) => {
                    let thread = names.get(tid);
                    Some(Whose::Thread { tid: thread.tid, comm: thread.comm })
                }
                (Some(By::ThreadName), Some(tid)) => {
                    Some(Whose::Name { comm: names.get(tid).comm, threads: 0 })
                }
            };
            let part = match parts.iter_mut().position(|part| part.whose == whose) {
                Some(known) => &mut parts[known],
                None => {
                    parts.push(Part { whose, hits: BTreeMap::new() });
                    let last = parts.len() - 1;
                    &mut parts[last]
                }
            };
            let sum = part.hits.entry(cell).or_default();
            *sum = sum.wrapping_add(hits);
        }
        parts
    }
}

/// A text by its words, up to a 0.
fn text(word: &dyn Fn(u64) -> u64) -> String {
    let bytes = (0..TEXT_BYTES as u64 / 8).flat_map(|n| word(n).to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl crate::traced::Traced {
    /// What was tallied, site by site.
    pub(crate) fn tallies(&mut self, by: Option<By>) -> Vec<Tallied> {
        let gathered: Vec<(usize, Gathered)> = self.gathered(by);
        if matches!(by, Some(By::Thread | By::ThreadName)) {
            let threads =
                gathered.iter().flat_map(|(_, one)| one.hits.keys().filter_map(|(owner, _)| *owner));
            self.look_at_names(&threads.collect());
        }
        gathered.iter().map(|(index, one)| self.tallied(*index, one, by)).collect()
    }
}
