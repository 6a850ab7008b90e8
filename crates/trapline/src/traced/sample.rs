//! What words of a recording say about its cost: how long a record takes, and which functions call no recorded one.
//!
//! In: words, as they were taken from a ring. Out: the least time between two records of one thread, and the probes within whose
//! calls another one began. Only the first words of each block are looked at. Does not: decide anything.
//!
//! Some processors' clocks go on in steps that are longer than a record takes (26 ticks, 10 ns), so most times between two
//! records are 0. What counts is the mean of the same two records, which comes many times in a block: the one with the least mean.

use trapline_record::calls::{CONTEXT, KIND_BITS, PROBE_BITS, PROBE_SHIFT, TIME_BITS, TIME_SHIFT, VALUES};
use trapline_record::ring::RecordKind;

use crate::decode::Probes;
use crate::quick::Quick;

/// Words of a block that are looked at.
const MOST: usize = 1 << 12;
/// Blocks of which the least times are kept.
const BLOCKS: usize = 256;
/// How often two records have to follow each other in a block for their mean to count.
const ENOUGH: u64 = 64;
/// More ticks than a record takes in any case: what is longer was interrupted, or is the program's own work.
const LONG: u64 = 2000;

/// What was seen since the last look.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Ticks: the least time between two records of one thread in each block.
    least: Vec<f64>,
    /// Probes within whose calls another one began, by segment and number.
    pub(super) callers: Quick<(usize, u32), ()>,
    /// Words of the next round may be older than the last change.
    rests: bool,
}

impl Sample {
    /// Functions were taken out, so what called them may call no recorded one any more. What a ring holds by now is taken in the next
    /// round at the latest, and is not looked at.
    pub(super) fn begin_anew(&mut self) {
        (self.least, self.callers) = (Vec::new(), Quick::default());
        self.rests = true;
    }
    /// All rings were emptied.
    pub(super) const fn end_round(&mut self) {
        self.rests = false;
    }
    /// Looks at the words of a block.
    pub(super) fn look(&mut self, segment: usize, words: &[[u8; 8]], probes: &Probes) {
        if self.rests {
            return;
        }
        let (mut rest, mut times) = (&words[..words.len().min(MOST)], Times::default());
        // The record before, of the same thread: its time, its probe, and whether it is an entry.
        let mut before: Option<(u64, u32, bool)> = None;
        while let Some((word, behind)) = rest.split_first() {
            rest = behind;
            let word = u64::from_le_bytes(*word);
            let kind = word & ((1 << KIND_BITS) - 1);
            if kind >= CONTEXT && kind & !(VALUES | 1) != 0 {
                before = None;
                continue;
            }
            let (time, probe) = (word >> TIME_SHIFT, (word >> PROBE_SHIFT) as u32 & ((1 << PROBE_BITS) - 1));
            let is_entry = kind & !VALUES == RecordKind::Entry as u64;
            if let Some((at, outer, is_within)) = before {
                let took = time.wrapping_sub(at) & ((1 << TIME_BITS) - 1);
                times.add([(outer, is_within), (probe, is_entry)], took);
                if is_within && is_entry {
                    self.callers.insert((segment, outer), ());
                }
            }
            before = Some((time, probe, is_entry));
            let values = match kind & VALUES != 0 {
                true if is_entry => probes.get(segment, probe).and_then(|known| known.behind().len(rest)),
                true => Some(1),
                false => Some(0),
            };
            match values.and_then(|values| rest.get(values..)) {
                Some(behind) => rest = behind,
                None => break,
            }
        }
        self.least.extend(times.least().filter(|_| self.least.len() < BLOCKS));
    }
    /// Takes the ticks of a record: the median over blocks, since a single one may be too low by a clock that is read early.
    pub(super) fn take_ticks(&mut self) -> Option<f64> {
        let mut least = std::mem::take(&mut self.least);
        let middle = least.len() / 2;
        (!least.is_empty()).then(|| *least.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

/// Times between records that follow each other, of one block.
#[derive(Default)]
struct Times {
    /// Of the same two records (probe, and whether it is an entry): the sum, and how often they came.
    pairs: Quick<[(u32, bool); 2], (u64, u64)>,
    /// The least one that is not 0.
    single: Option<u64>,
}

impl Times {
    fn add(&mut self, pair: [(u32, bool); 2], ticks: u64) {
        if ticks < LONG {
            let (sum, times) = self.pairs.entry(pair).or_default();
            (*sum, *times) = (*sum + ticks, *times + 1);
        }
        self.single = self.single.into_iter().chain([ticks]).filter(|ticks| *ticks > 0).min();
    }
    /// The least mean; the least single time if nothing came often.
    fn least(&self) -> Option<f64> {
        let often = self.pairs.values().filter(|(_, times)| *times >= ENOUGH);
        let means = often.map(|(sum, times)| *sum as f64 / *times as f64);
        means.min_by(f64::total_cmp).or_else(|| self.single.map(|ticks| ticks as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;
    use crate::decode::Probes;
    use crate::recorded::{context, record};
    use trapline_record::ring::RecordKind::{Entry, Return, Tail};

    fn bytes(words: &[u64]) -> Vec<[u8; 8]> {
        words.iter().map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn callers_are_those_within_whose_calls_one_began() {
        let mut sample = Sample::default();
        // f calls g, which goes on as h; then g is called by itself. Thread 9 comes in between.
        let words = [
            context(8, 0),
            record(Entry, 0, 1, 2000),
            record(Entry, 1, 2, 2100),
            record(Tail, 1, 2, 2150),
            record(Entry, 2, 2, 2190),
            context(9, 0),
            record(Entry, 5, 3, 2195),
            record(Return, 5, 3, 2295),
            context(8, 0),
            record(Entry, 1, 2, 2300),
            record(Return, 1, 2, 2360),
        ];
        sample.look(0, &bytes(&words), &Probes::default());
        assert_eq!(sample.callers.keys().copied().collect::<Vec<_>>(), [(0, 0)]);
        // Not the 5 ticks between records of two threads.
        assert_eq!((sample.take_ticks(), sample.take_ticks()), (Some(40.0), None));
    }

    /// Words that are older than a change say nothing about what is left.
    #[test]
    fn what_was_written_before_a_change_does_not_count() {
        let mut sample = Sample::default();
        let words = bytes(&[context(8, 0), record(Entry, 0, 1, 2000), record(Entry, 1, 2, 2100)]);
        sample.look(0, &words, &Probes::default());
        sample.begin_anew();
        sample.look(0, &words, &Probes::default());
        assert!(sample.callers.is_empty() && sample.take_ticks().is_none());
        sample.end_round();
        sample.look(0, &words, &Probes::default());
        assert_eq!((sample.callers.len(), sample.take_ticks()), (1, Some(100.0)));
    }

    /// One block with a clock that was read too early does not count.
    #[test]
    fn the_cost_is_what_most_blocks_say() {
        let mut sample = Sample::default();
        for apart in [40, 41, 2, 42, 39] {
            let words = [context(8, 0), record(Entry, 0, 1, 2000), record(Return, 0, 1, 2000 + apart)];
            sample.look(0, &bytes(&words), &Probes::default());
        }
        assert_eq!(sample.take_ticks(), Some(40.0));
    }

    /// A record takes 10 ticks, and the clock goes on by 26 at a time.
    #[test]
    fn a_clock_of_long_steps_tells_the_mean() {
        let mut sample = Sample::default();
        let at = |nth: u64| 2000 + nth * 10 / 26 * 26;
        let calls = (0..1000)
            .flat_map(|nth| [record(Entry, 0, 1, at(2 * nth)), record(Return, 0, 1, at(2 * nth + 1))]);
        let words: Vec<u64> = [context(8, 0)].into_iter().chain(calls).collect();
        sample.look(0, &bytes(&words), &Probes::default());
        let ticks = sample.take_ticks().expect("many records");
        assert!((9.0..11.0).contains(&ticks), "{ticks}");
    }
}
