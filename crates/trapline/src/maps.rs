//! A script's maps: what hits left in the target's tables, read and added up.
//!
//! In: which maps there are; segments. Out: entries, with threads and probes as a reader knows them. Entries of all
//! lines and of all segments of a process are put together: what is added up is added, of what is assigned the first
//! one counts. What hits say is taken (`record::said`). Does not: write to the tables otherwise, or know what values mean.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use trapline_patch::{Attached, Segment};
use trapline_record::maps::{MapShape, Missed};

use crate::report::Site;
use crate::sharers::Sharers;
use crate::stacks::HitStack;
use crate::threads::Names;

/// The programs that hits run, and what they are made with.
pub mod hit {
    pub use trapline_plan::fits;
    pub use trapline_plan::hit::{
        Builder, Compare, Compute, HitProgram, Label, Map, NAMES, NoCode, Program, StackTable, TEXTS_OF_KEYS,
        Target, TextLength, TextOfKey, Unary, Value, Var, Width, input, line,
    };
    pub use trapline_record::maps::{BITS, MAX_BITS, MAX_KEYS, MAX_VALUES, MapBytes, MapShape, Owner};
}

/// A map of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapTable {
    /// Where it lies, and how large its entries are.
    pub shape: MapShape,
    /// What the words of its keys are.
    pub keys: Vec<KeyWord>,
    /// What the words of its values are.
    pub values: Vec<KeyWord>,
    /// What hits do to its values.
    pub kind: MapKind,
}

impl MapTable {
    /// Whether its keys or values name stacks.
    pub(crate) fn names_stacks(&self) -> bool {
        self.words().any(|word| *word == KeyWord::Stack)
    }
    /// Whether its keys or values name threads by what they are called, or by their processes.
    pub(crate) fn names_threads(&self) -> bool {
        self.words().any(|word| matches!(word, KeyWord::ThreadName | KeyWord::Process))
    }
    fn words(&self) -> impl Iterator<Item = &KeyWord> {
        self.keys.iter().chain(&self.values)
    }
}

/// A place whose hits run a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunPlace<'a> {
    /// Number of the probe, as [`Site::slot`].
    pub slot: u32,
    /// The file's path as the process sees it.
    pub file: &'a str,
    /// Bytes from the start of the file to the instruction.
    pub offset: u64,
    /// As [`Site::probe`].
    pub probe: &'a str,
    /// As [`Site::label`].
    pub label: &'a str,
}

/// Gives the names of a place their numbers ([`hit::input::NAME`]). One name has one number.
#[derive(Clone)]
pub struct Namer(Arc<dyn Fn(RunPlace<'_>) -> [u32; hit::NAMES] + Send + Sync>);

impl Namer {
    /// By this function.
    pub fn new(names: impl Fn(RunPlace<'_>) -> [u32; hit::NAMES] + Send + Sync + 'static) -> Self {
        Self(Arc::new(names))
    }
    pub(crate) fn numbers(&self, place: RunPlace<'_>) -> [u32; hit::NAMES] {
        (self.0)(place)
    }
}

impl std::fmt::Debug for Namer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Namer")
    }
}

/// What hits do to a map's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapKind {
    /// All words are added up.
    Added,
    /// The first word is added up; the second one is the least value, or the greatest, with a sign or without.
    Extreme {
        /// The least.
        least: bool,
        /// Values have signs.
        signed: bool,
    },
    /// They are assigned.
    Assigned,
    /// Each hit puts an entry of its own, which is taken ([`MapContents::said`]).
    Said,
}

impl MapKind {
    /// Takes an entry's value; `None` if its key was deleted.
    fn put(self, found: &mut Words, key: (usize, Vec<u64>), value: Option<&[u64]>) {
        match found.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(value.map(<[u64]>::to_vec)),
            // A signal handler may have taken a second entry, which no hit finds (`programs::maps`).
            Entry::Occupied(_) if self == Self::Assigned => {}
            Entry::Occupied(mut entry) => {
                if let (Some(into), Some(value)) = (entry.get_mut(), value) {
                    self.join(into, value);
                }
            }
        }
    }
    /// What two lines hold of one key, put together.
    fn join(self, into: &mut [u64], other: &[u64]) {
        let extreme = if let Self::Extreme { .. } = self { into.len().saturating_sub(1) } else { into.len() };
        for (nth, (word, other)) in into.iter_mut().zip(other).enumerate() {
            *word = match self {
                Self::Assigned | Self::Said => *word,
                Self::Extreme { least, signed } if nth == extreme => {
                    let order = if signed {
                        word.cast_signed().cmp(&other.cast_signed())
                    } else {
                        (*word).cmp(other)
                    };
                    if order.is_lt() == least { *word } else { *other }
                }
                _ => word.wrapping_add(*other),
            };
        }
    }
}

/// What a word of a key, or of a value, is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyWord {
    /// A number.
    Number,
    /// A thread, by its process' number in the segment and its own ([`trapline_record::sharers`]).
    Thread,
    /// The name of a thread, in the same way.
    ThreadName,
    /// The process of a thread, in the same way.
    Process,
    /// A stack, by its number in its segment's table.
    Stack,
    /// A text, by its number in its segment's table.
    Text,
}

/// The place that was hit, and the stack.
pub type StackAt = (Arc<Site>, Arc<HitStack>);

/// A word of a key, or of a value, as a reader knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyPart {
    /// A number.
    Number(u64),
    /// A thread, by the number that the tracer sees.
    Thread(u32),
    /// A thread's name; `None` if it ended before that was known.
    Name(Option<String>),
    /// A thread's process: the one that was probed if it ended before that was known.
    Process(u32),
    /// The place that was hit, and the stack; `None` if the thread ended while it stored it.
    Stack(Option<StackAt>),
    /// A text.
    Text(Arc<[u8]>),
}

/// An entry of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRow {
    /// The process.
    pub pid: u32,
    /// Which of the session's maps.
    pub map: usize,
    /// Its key's words.
    pub key: Vec<KeyPart>,
    /// Its value's words.
    pub value: Vec<KeyPart>,
}

/// What a process' maps hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapContents {
    /// All entries, but those that hits said.
    pub rows: Vec<MapRow>,
    /// What hits said since the last time: entries of maps that are [`MapKind::Said`].
    pub said: Vec<MapRow>,
    /// By map: what is not in it.
    pub missed: Vec<Missed>,
    /// Entries that are left out, as it is not known which thread they are of.
    pub nameless: u64,
    /// Hits that ran no program: a value was not known, a call went on as another function, or there was no room for a
    /// stack or a text of a key.
    pub unseen: u64,
}

impl MapContents {
    /// Leaves out what hits are just changing: rows whose stack is not known, entries that are not finished.
    pub(crate) fn keep_known(&mut self) {
        let unknown = KeyPart::Stack(None);
        self.rows.retain(|row| !row.key.contains(&unknown) && !row.value.contains(&unknown));
        self.missed.iter_mut().for_each(|missed| missed.unfinished = 0);
    }
    /// Whether anything was counted.
    pub(crate) fn has_any(&self) -> bool {
        !self.rows.is_empty()
            || !self.said.is_empty()
            || self.unseen > 0
            || self.nameless > 0
            || self.missed.iter().any(|missed| *missed != Missed::default())
    }
}

/// A key's words, behind the segment whose stacks and texts they name; and a value's words, unless the key was deleted.
type Words = BTreeMap<(usize, Vec<u64>), Option<Vec<u64>>>;

/// Segment and map of what a hit said, and the words of its key and of its value.
type SaidWords = ((usize, usize), Vec<u64>, Vec<u64>);

/// What is in a process' tables, as hits left it.
#[derive(Debug)]
pub(crate) struct RawMaps<'a> {
    tables: &'a [MapTable],
    found: Vec<Words>,
    /// What hits said.
    said: Vec<SaidWords>,
    missed: Vec<Missed>,
    /// By segment and number.
    texts: HashMap<(usize, u64), Arc<[u8]>>,
    /// Hits that found no room for a text.
    without_text: u64,
}

impl<'a> RawMaps<'a> {
    /// Reads all segments.
    pub(crate) fn read(attached: &Attached, tables: &'a [MapTable]) -> Self {
        let (found, missed) = (vec![Words::new(); tables.len()], vec![Missed::default(); tables.len()]);
        let (said, texts) = (Vec::new(), HashMap::new());
        let mut maps = Self { tables, found, said, missed, texts, without_text: 0 };
        for (nth, segment) in attached.segments().iter().enumerate() {
            let written = segment.mapped_entries();
            for (map, table) in tables.iter().enumerate() {
                let copies = 0..segment.maps().copies(table.shape);
                copies.for_each(|copy| maps.copy((segment, &written), (map, table), (nth, copy)));
            }
            // Behind the keys: what these name is published (HIT-4).
            let texts = &mut maps.texts;
            maps.without_text += segment.maps().read_texts(segment.view(), &written, |text| {
                texts.insert((nth, text.number), text.bytes.into());
            });
        }
        maps
    }
    fn copy(
        &mut self,
        (segment, written): (&Segment, &[Range<u64>]),
        (map, table): (usize, &MapTable),
        (nth, copy): (usize, u32),
    ) {
        // Stacks, texts and processes have numbers of their own in each segment.
        let is_of_segment = |word: &KeyWord| *word != KeyWord::Number;
        let of = if table.words().any(is_of_segment) { nth } else { 0 };
        let found = &mut self.found[map];
        let is_said = table.kind == MapKind::Said;
        let missed = segment.maps().read(segment.view(), (table.shape, copy), written, |key, value| {
            if !is_said {
                table.kind.put(found, (of, key.to_vec()), value);
            }
        });
        self.missed[map] = self.missed[map].plus(missed);
    }
    /// Takes what hits said, but what names a stack or a text that is not known yet (S3 of `record::said`). `stack`: whether a
    /// segment's stack is known. `last`: no hit is under way any more, so nothing waits.
    pub(crate) fn take_said(
        &mut self,
        attached: &Attached,
        (stack, last): (&dyn Fn(usize, u64) -> bool, bool),
    ) {
        let Self { tables, said, texts, .. } = self;
        for (nth, segment) in attached.segments().iter().enumerate() {
            let of_hits = tables.iter().enumerate().filter(|(_, table)| table.kind == MapKind::Said);
            for (map, table) in of_hits {
                let is_known = |(word, is): (&u64, &KeyWord)| match is {
                    KeyWord::Stack => stack(nth, *word),
                    KeyWord::Text => texts.contains_key(&(nth, *word)),
                    _ => true,
                };
                segment.maps().take(segment.view(), table.shape, &segment.mapped_entries(), |key, value| {
                    let mut words = key.iter().zip(&table.keys).chain(value.iter().zip(&table.values));
                    let takes = last || words.all(is_known);
                    said.extend(takes.then(|| ((nth, map), key.to_vec(), value.to_vec())));
                    takes
                });
            }
        }
    }
    /// The threads in keys and values, by the numbers that they see.
    pub(crate) fn threads(&self) -> HashSet<u32> {
        let mut threads = HashSet::new();
        for (table, found) in self.tables.iter().zip(&self.found) {
            let is_thread =
                |word: &KeyWord| matches!(word, KeyWord::Thread | KeyWord::ThreadName | KeyWord::Process);
            if !table.words().any(is_thread) {
                continue;
            }
            let said = self.said.iter().filter(|((_, of), ..)| std::ptr::eq(&self.tables[*of], table));
            for (_, key, value) in said {
                let words = table.keys.iter().zip(key).chain(table.values.iter().zip(value));
                threads.extend(words.filter(|(is, _)| is_thread(is)).map(|(_, word)| *word as u32));
            }
            for ((_, key), value) in found {
                let words = table.keys.iter().zip(key).chain(table.values.iter().zip(value.iter().flatten()));
                threads.extend(words.filter(|(is, _)| is_thread(is)).map(|(_, word)| *word as u32));
            }
        }
        threads
    }
    /// The entries, as a reader knows them. `stack`: that of a number in a segment.
    pub(crate) fn known(
        self,
        (pid, names, sharers): (u32, &Names, &Sharers),
        stack: &dyn Fn(usize, u64) -> Option<(Arc<Site>, HitStack)>,
    ) -> MapContents {
        let mut stacks: HashMap<(usize, u64), Option<StackAt>> = HashMap::new();
        let (texts, nameless) = (&self.texts, Cell::new(0));
        let thread = |segment: usize, word: u64| {
            let thread = sharers.thread(names, (segment, word));
            nameless.set(nameless.get() + u64::from(thread.is_none()));
            thread
        };
        let mut row = |map: usize, segment: usize, key: Vec<u64>, value: Vec<u64>| {
            let table = &self.tables[map];
            let mut part = |(word, is): (u64, &KeyWord)| match is {
                KeyWord::Number => Some(KeyPart::Number(word)),
                KeyWord::Thread => Some(KeyPart::Thread(thread(segment, word)?.tid)),
                KeyWord::Process => Some(KeyPart::Process(thread(segment, word)?.process.unwrap_or(pid))),
                KeyWord::ThreadName => {
                    Some(KeyPart::Name(sharers.thread(names, (segment, word)).and_then(|thread| thread.comm)))
                }
                KeyWord::Stack => {
                    let known = || stack(segment, word).map(|(site, stack)| (site, Arc::new(stack)));
                    Some(KeyPart::Stack(stacks.entry((segment, word)).or_insert_with(known).clone()))
                }
                KeyWord::Text => texts.get(&(segment, word)).cloned().map(KeyPart::Text),
            };
            let mut parts = |words: Vec<u64>, are: &[KeyWord]| -> Option<Vec<KeyPart>> {
                words.into_iter().zip(are).map(&mut part).collect()
            };
            // A broken target may name any text; a thread may not be known (SHR-2).
            Some(MapRow { pid, map, key: parts(key, &table.keys)?, value: parts(value, &table.values)? })
        };
        let mut rows = Vec::new();
        for (map, found) in self.found.into_iter().enumerate() {
            let live = found.into_iter().filter_map(|((segment, key), value)| Some((segment, key, value?)));
            rows.extend(live.filter_map(|(segment, key, value)| row(map, segment, key, value)));
        }
        let said = self.said.into_iter();
        let said = said.filter_map(|((segment, map), key, value)| row(map, segment, key, value)).collect();
        MapContents { rows, said, missed: self.missed, nameless: nameless.get(), unseen: self.without_text }
    }
}

#[cfg(test)]
mod tests {
    use super::{MapKind, Words};

    #[test]
    fn of_entries_with_one_assigned_key_the_first_counts_also_if_it_was_deleted() {
        let put = |kind: MapKind, values: [Option<&[u64]>; 2]| {
            let mut found = Words::new();
            values.into_iter().for_each(|value| kind.put(&mut found, (0, vec![7]), value));
            found.remove(&(0, vec![7])).expect("an entry")
        };
        assert_eq!(put(MapKind::Assigned, [None, Some(&[5])]), None);
        assert_eq!(put(MapKind::Assigned, [Some(&[4]), Some(&[5])]), Some(vec![4]));
        assert_eq!(put(MapKind::Added, [Some(&[1, 4]), Some(&[2, 5])]), Some(vec![3, 9]));
    }
}
