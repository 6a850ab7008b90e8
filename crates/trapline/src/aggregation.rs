//! Aggregations: how often a probe's expression had which value.
//!
//! In: tables as segments hold them; the names of threads, present and former. Out: [`Tallied`], row by
//! row. Does not: know what a bucket means ([`Tally::key`] does), or read names (`traced::thread_names`
//! decides which name counts).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trapline_patch::Segment;
use trapline_plan::filter::{GroupBy, Sort, THREAD_UNIT, Tally};
use trapline_record::tally::{Rest, Summed, TEXT_BYTES};

use crate::report::{By, Group, Site};
use crate::threads::Names;

/// Aggregation of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tallied {
    /// Process id.
    pub pid: u32,
    /// The site.
    pub site: Arc<Site>,
    /// Hits by group, as requested; one part if no grouping was requested.
    pub parts: Vec<GroupHits>,
    /// Texts, where values or group-by keys are texts: by the value, or by the part's key. Bytes that are not
    /// UTF-8 appear as replacement characters.
    pub texts: BTreeMap<u64, String>,
    /// Hits for which the table had no row left.
    pub overflow: u64,
    /// Hits that had no value: exits by a tail call, where the value needs a return.
    pub unseen: u64,
    /// Hits that did not pass the filter and are not in `parts`: rejected in the target, or by the reader
    /// because of their threads' names.
    pub filtered: u64,
    /// Of these, hits of threads that were to be chosen by name and ended before their names were read.
    pub unnamed: u64,
}

/// Hits of one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupHits {
    /// Thread or CPU of the group; `None` if hits are not grouped by that.
    pub group: Option<Group>,
    /// Group-by key from the call itself: the number of [`GroupBy::Number`], or for [`GroupBy::Text`] the key
    /// of the text in [`Tallied::texts`].
    pub key: Option<u64>,
    /// Hits by bucket, or by value where each value has a row. All are at 0 with [`Sort::Sums`].
    pub hits: BTreeMap<u64, u64>,
    /// What the values of all hits gave, with [`Sort::Sums`].
    pub sums: Option<ValueSums>,
}

/// Sum and extremes of values, as numbers. All are exact: a sum has 128 bits, so it does not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueSums {
    /// Their sum.
    pub sum: i128,
    /// The least.
    pub min: i128,
    /// The greatest.
    pub max: i128,
}

impl ValueSums {
    /// Of one value. `unsigned`: whether its type has no sign.
    #[must_use]
    pub fn of(value: u64, unsigned: bool) -> Self {
        let value = number(value, unsigned);
        Self { sum: value, min: value, max: value }
    }
    /// Of what a row holds.
    fn of_row(row: Summed, unsigned: bool) -> Self {
        let [min, max] = [row.least, row.greatest].map(|value| number(value, unsigned));
        Self { sum: row.sum, min, max }
    }
    /// Of the values of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = self.sum.wrapping_add(other.sum);
        Self { sum, min: self.min.min(other.min), max: self.max.max(other.max) }
    }
    /// The sum of both, where either may have no values.
    #[must_use]
    pub fn merged(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        }
    }
}

fn number(value: u64, unsigned: bool) -> i128 {
    if unsigned { value.into() } else { value.cast_signed().into() }
}

/// Hits that are in no part because of their threads' names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FilteredByName {
    /// The name is not a requested one.
    pub(crate) others: u64,
    /// The name is not known.
    pub(crate) unnamed: u64,
}

impl Tallied {
    /// All hits: those in parts, the overflow, and those without a value.
    #[must_use]
    pub fn hits(&self) -> u64 {
        let cells = self.parts.iter().flat_map(|part| part.hits.values());
        cells.fold(self.overflow.wrapping_add(self.unseen), |sum, hits| sum.wrapping_add(*hits))
    }
}

/// What one row of a table stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RowKey {
    /// CPU, if hits are grouped by CPU.
    cpu: Option<u32>,
    /// Thread, if rows belong to threads.
    pub(crate) thread: Option<u32>,
    /// Group-by key from the call itself, if there is one.
    key: Option<u64>,
    cell: u64,
}

/// Contents of tables.
#[derive(Debug, Default)]
pub(crate) struct TableContents {
    pub(crate) hits: BTreeMap<RowKey, u64>,
    sums: BTreeMap<RowKey, ValueSums>,
    pub(crate) texts: BTreeMap<u64, String>,
    pub(crate) rest: Rest,
}

impl TableContents {
    /// Adds a probe's rows from one segment. `owned`: each line belongs to one CPU.
    pub(crate) fn add(&mut self, segment: &Segment, probe: u32, by: Option<By>, tally: &Tally, owned: bool) {
        let area = segment.tallies();
        for line in 0..area.lines {
            let cpu = (by == Some(By::Cpu) && owned && line + 1 < area.lines).then_some(line);
            let rest = area.read_rows(segment.view(), probe, line, |row, word| {
                if tally.texts() != 0 {
                    self.texts.entry(row.key).or_insert_with(|| text(word));
                }
                let of_thread = |thread: u64, cell| (Some(thread as u32), None, cell);
                // Rows with sums have the group-by key alone.
                let summed = row.summed.filter(|_| tally.sort == Sort::Sums);
                let (thread, key, cell) = match (&tally.group_by, row.owner) {
                    (GroupBy::Nothing, _) if summed.is_some() => (None, None, 0),
                    (GroupBy::Thread, _) if summed.is_some() => of_thread(row.key, 0),
                    _ if summed.is_some() => (None, Some(row.key), 0),
                    (GroupBy::Number(_), Some(key)) => (None, Some(key), row.key),
                    (GroupBy::Text(_), Some(cell)) => (None, Some(row.key), cell),
                    (GroupBy::Thread, Some(thread)) if tally.has_owners() => of_thread(thread, row.key),
                    (GroupBy::Thread, _) => of_thread(row.key / THREAD_UNIT, row.key % THREAD_UNIT),
                    _ => (None, None, row.key),
                };
                let row_key = RowKey { cpu, thread, key, cell };
                let sum = self.hits.entry(row_key).or_default();
                *sum = sum.wrapping_add(row.hits);
                if let Some(summed) = summed {
                    let more = ValueSums::of_row(summed, tally.value.is_unsigned());
                    self.sums.entry(row_key).and_modify(|sums| *sums = sums.plus(more)).or_insert(more);
                }
            });
            self.rest.overflow = self.rest.overflow.wrapping_add(rest.overflow);
            self.rest.unseen = self.rest.unseen.wrapping_add(rest.unseen);
        }
    }
    /// All hits.
    pub(crate) fn sum(&self) -> u64 {
        let rest = self.rest.overflow.wrapping_add(self.rest.unseen);
        self.hits.values().fold(rest, |sum, hits| sum.wrapping_add(*hits))
    }
    /// Hits by group; only of threads with a name in `wanted`, unless that is empty.
    pub(crate) fn parts(
        &self,
        by: Option<By>,
        settled: &Settled,
        names: &Names,
        wanted: &[String],
    ) -> (Vec<GroupHits>, FilteredByName) {
        let (mut parts, mut left): (Vec<GroupHits>, FilteredByName) = (Vec::new(), FilteredByName::default());
        let mut places: HashMap<(Option<Group>, Option<u64>), usize> = HashMap::new();
        settled.each(self, names, &mut |row, comm, hits| {
            if !wanted.is_empty() && !comm.is_some_and(|comm| wanted.iter().any(|name| name == comm)) {
                let sum = if comm.is_some() { &mut left.others } else { &mut left.unnamed };
                *sum = sum.wrapping_add(hits);
                return;
            }
            let place = (group(by, row, comm, names), row.key);
            let at = *places.entry(place).or_insert_with_key(|(group, key)| {
                parts.push(GroupHits { group: group.clone(), key: *key, hits: BTreeMap::new(), sums: None });
                parts.len() - 1
            });
            let sum = parts[at].hits.entry(row.cell).or_default();
            *sum = sum.wrapping_add(hits);
        });
        // What a row of a thread gave under which of its names is not known.
        if wanted.is_empty() && settled.named.is_empty() {
            for (&row, &sums) in &self.sums {
                let comm = row.thread.and_then(|thread| names.get(thread).comm);
                if let Some(&at) = places.get(&(group(by, row, comm.as_deref(), names), row.key)) {
                    parts[at].sums = ValueSums::merged(parts[at].sums, Some(sums));
                }
            }
        }
        (parts, left)
    }
}

fn group(by: Option<By>, row: RowKey, comm: Option<&str>, names: &Names) -> Option<Group> {
    let comm = comm.map(str::to_owned);
    Some(match (by?, row) {
        (By::Cpu, RowKey { cpu: Some(cpu), .. }) => Group::Cpu(cpu),
        (By::Thread, RowKey { thread: Some(thread), .. }) => {
            Group::Thread { tid: names.get(thread).tid, comm }
        }
        (By::ThreadName, RowKey { thread: Some(_), .. }) => Group::Name { comm, threads: 0 },
        _ => Group::Other,
    })
}

/// Hits that were made under a former name of their thread.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Hits of each row that are already credited to a name.
    done: BTreeMap<RowKey, u64>,
    /// The same hits, by row and name.
    named: BTreeMap<(RowKey, Option<String>), u64>,
}

/// Most (row, name) pairs that are kept; hits beyond count under no name.
const MOST: usize = 1 << 16;

impl Settled {
    /// Credits what the rows of these threads have grown to the threads' former names.
    pub(crate) fn settle(&mut self, contents: &TableContents, were: &HashMap<u32, Option<String>>) {
        for (&row, &hits) in &contents.hits {
            let Some(was) = row.thread.and_then(|thread| were.get(&thread)) else { continue };
            let done = self.done.entry(row).or_default();
            let more = hits.wrapping_sub(std::mem::replace(done, hits));
            let full = self.named.len() >= MOST && !self.named.contains_key(&(row, was.clone()));
            let sum = self.named.entry((row, was.clone().filter(|_| !full))).or_default();
            *sum = sum.wrapping_add(more);
        }
    }
    /// Calls `each` with all hits of the rows, by name.
    fn each(&self, contents: &TableContents, names: &Names, each: &mut dyn FnMut(RowKey, Option<&str>, u64)) {
        for (&row, &hits) in &contents.hits {
            let more = hits.wrapping_sub(self.done.get(&row).copied().unwrap_or(0));
            let comm = row.thread.and_then(|thread| names.get(thread).comm);
            if more > 0 {
                each(row, comm.as_deref(), more);
            }
        }
        let settled = self.named.iter().filter(|(_, hits)| **hits > 0);
        settled.for_each(|((row, comm), &hits)| each(*row, comm.as_deref(), hits));
    }
}

/// Text in these words, up to a zero byte.
fn text(word: &dyn Fn(u64) -> u64) -> String {
    let bytes = (0..TEXT_BYTES as u64 / 8).flat_map(|n| word(n).to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use trapline_tracee::Changed;

    use super::{FilteredByName, MOST, RowKey, Settled, TableContents};
    use crate::report::{By, Group};
    use crate::threads::Names;

    /// Numbers that no thread has.
    const GONE: u32 = 1 << 30;

    fn contents<const N: usize>(rows: [(u32, u64, u64); N]) -> TableContents {
        let row = |(thread, cell, hits)| (RowKey { cpu: None, thread: Some(thread), key: None, cell }, hits);
        TableContents { hits: rows.map(row).into(), ..TableContents::default() }
    }

    fn names(known: &[(u32, &str)]) -> Names {
        let mut names = Names::default();
        for (thread, name) in known {
            assert_eq!(names.note_change(*thread, Changed::Name((*name).to_owned())), Some(*thread));
        }
        names
    }

    type ByName = BTreeMap<(Option<String>, u64), u64>;

    fn parts_of(
        settled: &Settled,
        now: &TableContents,
        names: &Names,
        wanted: &[&str],
    ) -> (ByName, FilteredByName) {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let (parts, left) = now.parts(Some(By::ThreadName), settled, names, &wanted);
        let mut hits = ByName::new();
        for part in parts {
            let Some(Group::Name { comm, .. }) = part.group else { panic!("{:?}", part.group) };
            hits.extend(part.hits.into_iter().map(|(cell, hits)| ((comm.clone(), cell), hits)));
        }
        (hits, left)
    }

    fn of(hits: &[(&str, u64, u64)]) -> ByName {
        hits.iter().map(|&(name, cell, hits)| ((Some(name.to_owned()), cell), hits)).collect()
    }

    #[test]
    fn what_was_settled_stays_with_its_name() {
        let (one, other, unknown) = (GONE, GONE + 1, GONE + 2);
        let (mut settled, mut names) = (Settled::default(), names(&[(one, "a"), (other, "b")]));
        let before = contents([(one, 5, 10), (other, 5, 3), (unknown, 7, 1)]);
        let unnamed_row = ((None, 7), 1);
        let all = |hits: &[_]| {
            [of(hits), BTreeMap::from([unnamed_row.clone()])].into_iter().flatten().collect::<ByName>()
        };
        assert_eq!(
            parts_of(&settled, &before, &names, &[]),
            (all(&[("a", 5, 10), ("b", 5, 3)]), FilteredByName::default())
        );
        // Between two looks the two threads swap names.
        let counted = contents([(one, 5, 12), (other, 5, 3), (unknown, 7, 1)]);
        settled
            .settle(&counted, &HashMap::from([(one, Some("a".to_owned())), (other, Some("b".to_owned()))]));
        for (thread, name) in [(one, "b"), (other, "a")] {
            assert_eq!(names.note_change(thread, Changed::Name(name.to_owned())), Some(thread));
        }
        assert_eq!(parts_of(&settled, &counted, &names, &[]).0, all(&[("a", 5, 12), ("b", 5, 3)]));
        let now = contents([(one, 5, 13), (one, 6, 1), (other, 5, 103), (unknown, 7, 1)]);
        assert_eq!(parts_of(&settled, &now, &names, &[]).0, all(&[("a", 5, 112), ("b", 5, 4), ("b", 6, 1)]));
        assert_eq!(
            parts_of(&settled, &now, &names, &["b", "c"]),
            (of(&[("b", 5, 4), ("b", 6, 1)]), FilteredByName { others: 112, unnamed: 1 })
        );
        // By thread, the names stay separate too.
        let (parts, _) = now.parts(Some(By::Thread), &settled, &names, &["a".to_owned()]);
        let group = |tid| Some(Group::Thread { tid, comm: Some("a".to_owned()) });
        let hits: Vec<_> = parts.into_iter().map(|part| (part.group, part.hits[&5])).collect();
        assert_eq!(hits, [(group(other), 100), (group(one), 12)]);
    }

    #[test]
    fn more_names_than_are_kept_are_nobodys() {
        let (mut settled, mut all) = (Settled::default(), 0);
        let names = names(&[(GONE, "last")]);
        for n in 0..MOST as u64 + 5 {
            all += 2;
            settled.settle(&contents([(GONE, 1, all)]), &HashMap::from([(GONE, Some(format!("n{n}")))]));
        }
        let (hits, left) = parts_of(&settled, &contents([(GONE, 1, all)]), &names, &[]);
        assert_eq!(
            (hits[&(None, 1)], hits.values().sum::<u64>(), left),
            (10, all, FilteredByName::default())
        );
        assert_eq!(hits.len(), MOST + 1);
    }
}
