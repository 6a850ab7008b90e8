//! The protocol of records, by the interpreter: what the reader finds, after an abort before any step, too.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_code::{Bytes, End, Program, Run};
use trapline_record::ring::{HEAD, LOCKED, Record, RecordKind, RingArea};
use trapline_record::stack::FIRST;
use trapline_record::view::View;

use super::{Part, Publish};

const RINGS: u64 = 0x1000;
const CPUS: u32 = 3;
const SLOT: u32 = 64;
const PROBE: u64 = 5;

const fn area(most: u32) -> RingArea {
    RingArea { off: 0, rings: CPUS, slot: SLOT, most, bytes: 8 * SLOT }
}

/// What one hit records: a thread's number decides all of its words. `used`: bytes of a record with a stack.
#[derive(Clone, Copy, Debug)]
struct Hit {
    cpu: u32,
    thread: u64,
    used: Option<u64>,
}

const VALUES: u8 = 2;

impl Hit {
    const fn inputs(self, ring: u64, head: u64, slot: u64) -> [u64; 13] {
        let Self { cpu, thread, used } = self;
        let used = if let Some(used) = used { used } else { 0 };
        let key = thread * 16 + RecordKind::Entry as u64;
        [
            RINGS,
            cpu as u64,
            ring,
            head,
            slot,
            thread + 7,
            thread << 32 | PROBE,
            key,
            used,
            0,
            0,
            thread + 1,
            thread + 2,
        ]
    }
    fn is_in(self, record: &Record) -> bool {
        // Of a stack, how long it is, and a word of it.
        let values = match self.used {
            Some(used) => [used, 0, 0, FIRST],
            None => [self.thread + 1, self.thread + 2, 0, 0],
        };
        (u64::from(record.tid), record.ticks, u64::from(record.probe))
            == (self.thread, self.thread + 7, PROBE)
            && record.values[..4] == values
    }
}

/// The parts, for rings of one shape.
struct Parts {
    area: RingArea,
    parts: [Program; 3],
}

/// How a hit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Aborted,
    At(u8),
}

impl Parts {
    fn new(most: u32, is_locked: bool) -> Self {
        let (area, is_long) = (area(most), most > SLOT);
        let publish = Some(Publish { bytes: SLOT, is_long, is_locked });
        let values = if is_long { 0 } else { VALUES };
        let parts = [
            Part::find(&area, CPUS, area.full()),
            Part::Slot { bytes: area.bytes, ahead: 0 },
            Part::Words { values, publish },
        ];
        Self { area, parts: parts.map(|part| part.program().expect("sound")) }
    }
    fn memory(&self) -> Bytes {
        Bytes { at: RINGS, bytes: vec![0; self.area.len() as usize] }
    }
    /// Runs a part; `left`: steps until an abort.
    fn part(
        &self,
        nth: usize,
        inputs: &[u64; 13],
        memory: &mut Bytes,
        left: &mut usize,
    ) -> Result<Vec<u64>, Ended> {
        let mut run = Run::new(&self.parts[nth], inputs);
        loop {
            *left = left.checked_sub(1).ok_or(Ended::Aborted)?;
            match run.step(memory) {
                Some(End { outcome: 0, .. }) => return Ok(run.handed()),
                Some(End { outcome, .. }) => return Err(Ended::At(outcome)),
                None => {}
            }
        }
    }
    /// Runs a hit from W1 on, or aborts it after so many steps.
    fn hit(&self, hit: Hit, memory: &mut Bytes, steps: usize) -> Ended {
        self.from(hit, memory, steps, None).unwrap_or_else(|ended| ended)
    }
    /// The same; `slot`: a ring and a slot that were found before.
    fn from(
        &self,
        hit: Hit,
        memory: &mut Bytes,
        mut left: usize,
        slot: Option<[u64; 2]>,
    ) -> Result<Ended, Ended> {
        let [ring, slot] = match slot {
            Some(found) => found,
            None => {
                let found = self.part(0, &hit.inputs(0, 0, 0), memory, &mut left)?;
                let slot = self.part(1, &hit.inputs(found[0], found[1], 0), memory, &mut left)?;
                [found[0], slot[0]]
            }
        };
        if let Some(used) = hit.used {
            // The stub's: the stack.
            (FIRST..used / 8).for_each(|nth| memory.set_word(slot + 8 * nth, nth));
        }
        self.part(2, &hit.inputs(ring, 0, slot), memory, &mut left)?;
        Ok(Ended::At(0))
    }
    /// Takes the records of a CPU's ring.
    fn take(&self, cpu: u32, memory: &mut Bytes, tail: &mut u64) -> Vec<Record> {
        let words: Vec<AtomicU64> = (0..memory.bytes.len() as u64 / 8)
            .map(|nth| AtomicU64::new(memory.word(RINGS + 8 * nth)))
            .collect();
        let mut taken = Vec::new();
        let head = self.area.take(View::new(&words), cpu, tail, |record| taken.push(*record));
        head.expect("a head that can be");
        for (nth, word) in (0..).zip(&words) {
            memory.set_word(RINGS + 8 * nth, word.load(Ordering::Relaxed));
        }
        taken
    }
}

const ALL: usize = usize::MAX;

/// Records of one slot, and with a stack, of up to three.
fn kinds() -> [(u32, [Option<u64>; 2]); 2] {
    [(SLOT, [None; 2]), (3 * SLOT, [Some(8 * FIRST + 8), Some(3 * u64::from(SLOT) - 8)])]
}

/// W1 to W3: a hit is aborted before each step. Another one of this CPU runs then, as a whole; the reader looks in between.
#[test]
fn loss_2_an_aborted_record_is_written_once_and_whole() {
    for (most, used) in kinds() {
        let parts = Parts::new(most, false);
        let [aborted, other] =
            [(9, used[0]), (3, used[1])].map(|(thread, used)| Hit { cpu: 1, thread, used });
        for steps in 0.. {
            let (mut memory, mut tail) = (parts.memory(), 0);
            let is_whole = parts.hit(aborted, &mut memory, steps) == Ended::At(0);
            let first = parts.take(1, &mut memory, &mut tail);
            assert_eq!(first.len(), usize::from(is_whole), "at step {steps}: {first:?}");
            assert_eq!(parts.hit(other, &mut memory, ALL), Ended::At(0));
            if !is_whole {
                assert_eq!(parts.hit(aborted, &mut memory, ALL), Ended::At(0));
            }
            let taken = [first, parts.take(1, &mut memory, &mut tail)].concat();
            let order = if is_whole { [aborted, other] } else { [other, aborted] };
            assert_eq!(taken.len(), 2, "at step {steps}");
            assert!(order.iter().zip(&taken).all(|(hit, record)| hit.is_in(record)), "{steps}: {taken:?}");
            assert!([0, 2].iter().all(|cpu| parts.take(*cpu, &mut memory, &mut 0).is_empty()));
            if is_whole {
                assert!(steps > 12, "{steps}");
                break;
            }
        }
    }
}

/// The same, but the sequence goes on with the slot that it found: then one record is written over the other.
#[test]
fn loss_2_a_sequence_that_does_not_begin_again_loses_a_record() {
    let parts = Parts::new(SLOT, false);
    let [aborted, other] = [9, 3].map(|thread| Hit { cpu: 1, thread, used: None });
    let (mut memory, mut tail) = (parts.memory(), 0);
    let ring = RINGS + parts.area.ring(1);
    let slot = ring + trapline_record::ring::SLOTS;
    assert_eq!(parts.hit(other, &mut memory, ALL), Ended::At(0));
    assert_eq!(parts.from(aborted, &mut memory, ALL, Some([ring, slot])), Ok(Ended::At(0)));
    let taken = parts.take(1, &mut memory, &mut tail);
    assert!(!taken.iter().any(|record| other.is_in(record)), "{taken:?}");
}

#[test]
fn loss_2_a_full_ring_and_an_unknown_cpu_are_outcomes() {
    let (parts, mut tail) = (Parts::new(SLOT, false), 0);
    let mut memory = parts.memory();
    let hit = |cpu| Hit { cpu, thread: 4, used: None };
    for cpu in [CPUS, 1 << 31, u32::MAX] {
        assert_eq!(parts.hit(hit(cpu), &mut memory, ALL), Ended::At(Part::NO_CPU));
    }
    assert_eq!(memory, parts.memory());
    for _ in 0..3 {
        let ends: Vec<Ended> = (0..10).map(|_| parts.hit(hit(2), &mut memory, ALL)).collect();
        assert_eq!(ends, [Ended::At(0); 8].into_iter().chain([Ended::At(2); 2]).collect::<Vec<_>>());
        assert_eq!(parts.take(2, &mut memory, &mut tail).len(), 8);
    }
}

/// L4 and L5: the lock stands until the last step, which publishes the record and takes it away.
#[test]
fn loss_2_a_locked_ring_is_unlocked_by_its_record() {
    for (most, used) in kinds() {
        let parts = Parts::new(most, true);
        for used in used {
            let hit = Hit { cpu: 0, thread: 8, used };
            for steps in 0.. {
                let mut memory = parts.memory();
                memory.set_word(RINGS + HEAD, LOCKED);
                let found = Some([RINGS, RINGS + trapline_record::ring::SLOTS]);
                let ended = parts.from(hit, &mut memory, steps, found);
                let (head, taken) = (memory.word(RINGS + HEAD), parts.take(0, &mut memory, &mut 0));
                if ended == Ok(Ended::At(0)) {
                    assert_eq!(head, used.unwrap_or(1).next_multiple_of(SLOT.into()));
                    assert!(taken.len() == 1 && hit.is_in(&taken[0]), "{taken:?}");
                    break;
                }
                assert_eq!((head, taken.len()), (LOCKED, 0), "at step {steps}");
            }
        }
    }
}
