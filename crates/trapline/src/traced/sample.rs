//! What words of a recording say about its cost: how long a record takes, and which functions call no recorded one.
//!
//! In: words, as they were taken from a ring. Out: the least time between two records of one thread, and the probes within whose
//! calls another one began. Only the first words of each block are looked at. Does not: decide anything.

use trapline_record::calls::{CONTEXT, KIND_BITS, PROBE_BITS, PROBE_SHIFT, TIME_BITS, TIME_SHIFT, VALUES};
use trapline_record::ring::RecordKind;

use crate::decode::Probes;
use crate::quick::Quick;

/// Words of a block that are looked at.
const MOST: usize = 1 << 12;
/// Blocks of which the least times are kept.
const BLOCKS: usize = 256;

/// What was seen since the last look.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Ticks: the least time between two records of one thread in each block.
    least: Vec<u64>,
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
        let (mut rest, mut least) = (&words[..words.len().min(MOST)], u64::MAX);
        // The record before, of the same thread: its time, and the probe if it is an entry.
        let mut before: Option<(u64, Option<u32>)> = None;
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
            if let Some((at, outer)) = before {
                least = least.min(time.wrapping_sub(at) & ((1 << TIME_BITS) - 1));
                if let Some(outer) = outer.filter(|_| is_entry) {
                    self.callers.insert((segment, outer), ());
                }
            }
            before = Some((time, is_entry.then_some(probe)));
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
        if least != u64::MAX && self.least.len() < BLOCKS {
            self.least.push(least);
        }
    }
    /// Takes the ticks of a record: the median over blocks, since a single one may be too low by a clock that is read early.
    pub(super) fn take_ticks(&mut self) -> Option<u64> {
        let mut least = std::mem::take(&mut self.least);
        let middle = least.len() / 2;
        (!least.is_empty()).then(|| *least.select_nth_unstable(middle).1)
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
        assert_eq!((sample.take_ticks(), sample.take_ticks()), (Some(40), None));
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
        assert_eq!((sample.callers.len(), sample.take_ticks()), (1, Some(100)));
    }

    /// One block with a clock that was read too early does not count.
    #[test]
    fn the_cost_is_what_most_blocks_say() {
        let mut sample = Sample::default();
        for apart in [40, 41, 2, 42, 39] {
            let words = [context(8, 0), record(Entry, 0, 1, 2000), record(Return, 0, 1, 2000 + apart)];
            sample.look(0, &bytes(&words), &Probes::default());
        }
        assert_eq!(sample.take_ticks(), Some(40));
    }
}
