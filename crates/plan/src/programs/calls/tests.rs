//! The protocol of compact rings, by the interpreter: what the reader finds, after an abort before any step, too.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_code::{Bytes, End, Program, Run};
use trapline_record::calls::{Behind, CallRecord, Found, PROBE_SHIFT, Reading, TIME_BITS, VALUES, WORD};
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::view::View;

use super::super::records::{Compact, Part};

const RINGS: u64 = 0x1000;
const CPUS: u32 = 3;
const WORDS: u32 = 8;
const AREA: RingArea = RingArea { off: 0, rings: CPUS, slot: WORD, most: WORD, bytes: WORDS * WORD };
/// Values of a record, where there are any.
const MANY: u16 = 2;
const PROBE: u32 = 0xF_FFF1;
const EPOCH: u64 = 1 << TIME_BITS;

#[derive(Clone, Copy, Debug)]
struct Hit {
    cpu: u32,
    thread: u32,
    time: u64,
    kind: RecordKind,
}

impl Hit {
    fn inputs(self, ring: u64, has_values: bool) -> [u64; 13] {
        let ids = u64::from(PROBE) << PROBE_SHIFT | self.kind as u64;
        let ids = if has_values { ids | VALUES } else { ids };
        let key = 0x7fff_1230 | self.kind as u64;
        let [first, second] = self.values();
        [RINGS, self.cpu.into(), ring, 0, 0, self.time, ids, key, 0, self.thread.into(), 0, first, second]
    }
    /// They look like a context, and like a record.
    const fn values(self) -> [u64; 2] {
        [self.time << 30 | 3, self.time << 30 | 4 << 10]
    }
    const fn record(self, has_values: bool) -> CallRecord {
        let (kind, probe, tid, ticks) = (self.kind, PROBE, self.thread, self.time);
        CallRecord { kind, probe, tid, ticks, place: 0x23, has_values }
    }
}

const fn hit(thread: u32, time: u64) -> Hit {
    Hit { cpu: 1, thread, time, kind: RecordKind::Entry }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Aborted,
    At(u8),
}

struct Parts {
    values: u16,
    area: RingArea,
    find: Program,
    word: Program,
    pair: Program,
    memory: Bytes,
    tails: [u64; CPUS as usize],
    readings: [Reading; CPUS as usize],
}

impl Parts {
    fn new(values: u16) -> Self {
        let of = |part: Part| part.program().expect("sound");
        let (compact, area) = (
            Compact { words: WORDS, values, texts: 0 },
            RingArea { most: WORD * (2 + u32::from(values)), ..AREA },
        );
        Self {
            values,
            area,
            find: of(Part::find_compact(&area, CPUS)),
            word: of(Part::Word(compact)),
            pair: of(Part::Pair(compact)),
            memory: Bytes { at: RINGS, bytes: vec![0; AREA.len() as usize] },
            tails: [0; CPUS as usize],
            readings: [Reading::default(); CPUS as usize],
        }
    }
    fn part(
        program: &Program,
        inputs: &[u64; 13],
        memory: &mut Bytes,
        left: &mut usize,
    ) -> Result<Vec<u64>, Ended> {
        let mut run = Run::new(program, inputs);
        loop {
            *left = left.checked_sub(1).ok_or(Ended::Aborted)?;
            match run.step(memory) {
                Some(End { outcome: 0, .. }) => return Ok(run.handed()),
                Some(End { outcome, .. }) => return Err(Ended::At(outcome)),
                None => {}
            }
        }
    }
    /// One of the sequences, from C1 to C4 or to an abort after so many steps.
    fn sequence(&mut self, is_pair: bool, hit: Hit, left: &mut usize) -> Result<(), Ended> {
        let Self { find, word, pair, memory, values, .. } = self;
        let inputs = |ring| hit.inputs(ring, *values > 0);
        let ring = Self::part(find, &inputs(0), memory, left)?[0];
        Self::part(if is_pair { pair } else { word }, &inputs(ring), memory, left).map(drop)
    }
    /// A whole hit, or one that is aborted after so many steps in all.
    fn hit(&mut self, hit: Hit, mut left: usize) -> Ended {
        let ended = match self.sequence(false, hit, &mut left) {
            Err(Ended::At(Part::SWITCH)) => self.sequence(true, hit, &mut left),
            other => other,
        };
        ended.map_or_else(|ended| ended, |()| Ended::At(0))
    }
    /// Takes what is there. Records have the values of their hits.
    fn take(&mut self, cpu: u32) -> Vec<CallRecord> {
        let words: Vec<AtomicU64> = (0..self.memory.bytes.len() as u64 / 8)
            .map(|nth| AtomicU64::new(self.memory.word(RINGS + 8 * nth)))
            .collect();
        let view = View::new(&words);
        let (tail, reading) = (&mut self.tails[cpu as usize], &mut self.readings[cpu as usize]);
        let ahead = self.area.words_ahead(view, cpu, tail).expect("a head that can be");
        let mut bytes = vec![0; ahead as usize * 8];
        self.area.take_words_of(view, cpu, tail, &mut bytes);
        for (nth, word) in (0..).zip(&words) {
            self.memory.set_word(RINGS + 8 * nth, word.load(Ordering::Relaxed));
        }
        let mut records = Vec::new();
        let mut rest = bytes.as_chunks::<8>().0;
        while let Some((word, behind)) = rest.split_first() {
            rest = behind;
            match reading.next(u64::from_le_bytes(*word), 0) {
                Found::Record(record) => {
                    let known = Behind { fixed: self.values, texts: 0 };
                    let (values, behind) = rest.split_at(record.values(known, rest).expect("whole"));
                    rest = behind;
                    let values: Vec<u64> = values.iter().map(|word| u64::from_le_bytes(*word)).collect();
                    let hit = hit(record.tid, record.ticks);
                    assert_eq!(values, hit.values()[..self.values.into()]);
                    records.push(record);
                }
                Found::Context => {}
                Found::Nothing => panic!("{word:x?} is nothing"),
            }
        }
        records
    }
}

const ALL: usize = usize::MAX;

/// WORD-1: a hit is aborted before each step. Another one of this CPU runs then, of the same or of another thread, in the same
/// epoch or in a later one; the reader looks in between.
#[test]
fn word_1_an_aborted_record_is_written_once_with_its_thread_and_time() {
    let before = hit(4_194_303, EPOCH + 5);
    let aborted = [hit(4_194_303, EPOCH + 7), hit(8, EPOCH + 7), hit(4_194_303, 3 * EPOCH)];
    for (aborted, values) in aborted.into_iter().flat_map(|one| [(one, 0), (one, MANY)]) {
        for thread in [4_194_303, 8, 9] {
            for later in [0, EPOCH, 1500 * EPOCH] {
                let other = hit(thread, aborted.time + later);
                let again = Hit { time: other.time + 1, ..aborted };
                for steps in 0.. {
                    let mut parts = Parts::new(values);
                    assert_eq!(parts.hit(before, ALL), Ended::At(0));
                    let mut first = if values > 0 { parts.take(1) } else { Vec::new() };
                    let is_whole = parts.hit(aborted, steps) == Ended::At(0);
                    if steps % 2 == 0 || values > 0 {
                        first.extend(parts.take(1));
                    }
                    assert_eq!(parts.hit(other, ALL), Ended::At(0));
                    if values > 0 {
                        first.extend(parts.take(1));
                    }
                    if !is_whole {
                        assert_eq!(parts.hit(again, ALL), Ended::At(0));
                    }
                    first.extend(parts.take(1));
                    let order = if is_whole { [before, aborted, other] } else { [before, other, again] };
                    assert_eq!(first, order.map(|hit| hit.record(values > 0)), "at step {steps}");
                    assert!(parts.take(0).is_empty() && parts.take(2).is_empty());
                    if is_whole {
                        assert!(steps > 15, "{steps}");
                        break;
                    }
                }
            }
        }
    }
}

/// A context is written where it is needed, and nowhere else.
#[test]
fn word_1_records_of_one_thread_take_a_word_each() {
    let mut parts = Parts::new(0);
    let hits = [(5, 1, 2), (5, 2, 3), (6, 3, 5), (6, EPOCH, 7)];
    for (thread, time, words) in hits {
        assert_eq!(parts.hit(hit(thread, time), ALL), Ended::At(0));
        assert_eq!(parts.memory.word(RINGS + AREA.ring(1)) >> 32, words);
    }
    assert_eq!(parts.take(1), hits.map(|(thread, time, _)| hit(thread, time).record(false)));
}

/// A pair in place of a record says nothing wrong: the thread may have been moved in between.
#[test]
fn word_1_a_context_that_is_known_is_no_harm() {
    let mut parts = Parts::new(0);
    for time in 1..4 {
        assert_eq!(parts.sequence(true, hit(7, time), &mut ALL.clone()), Ok(()));
    }
    assert_eq!(parts.take(1), [1, 2, 3].map(|time| hit(7, time).record(false)));
}

#[test]
fn word_1_a_full_ring_and_an_unknown_cpu_are_outcomes() {
    let mut parts = Parts::new(0);
    for cpu in [CPUS, 1 << 31, u32::MAX] {
        assert_eq!(parts.hit(Hit { cpu, ..hit(4, 9) }, ALL), Ended::At(Part::NO_CPU));
    }
    for round in 0..40 {
        let mut written = 0;
        while parts.hit(hit(4 + round / 3, 9), ALL) == Ended::At(0) {
            written += 1;
        }
        let words = parts.memory.word(RINGS + AREA.ring(1)) >> 32;
        assert_eq!(words - parts.tails[1], u64::from(WORDS) - 1, "room for two is asked for");
        assert_eq!(parts.take(1).len(), written);
    }
}

/// Room is asked for a context, a record and its values, wherever the ring's end is.
#[test]
fn word_1_values_go_around_the_rings_end_and_never_into_what_is_not_taken() {
    let mut parts = Parts::new(MANY);
    let mut tid = 4;
    for round in 0..40 {
        let mut written = Vec::new();
        while parts.hit(hit(tid, 9 + round), ALL) == Ended::At(0) {
            written.push(hit(tid, 9 + round).record(true));
            tid += u32::from(round % 3 == 0);
        }
        let words = parts.memory.word(RINGS + AREA.ring(1)) >> 32;
        assert!(words - parts.tails[1] > u64::from(WORDS) - 4, "{words}");
        assert_eq!(parts.take(1), written);
    }
}
