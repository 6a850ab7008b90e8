//! SEL-2: a part of a recording, beside a recording that has that part alone; and how much of the file is read for it.

use std::cell::Cell;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::time::Duration;

use trapline_record::ring::RecordKind;

use crate::recorded::Recorded;
use crate::recorded::example::{CLOCK, block_of, context, record, round, table};
use crate::recorded::tests::Seen;
use crate::saved::frame::BLOCK;
use crate::saved::tables::{Round, WordsHead, begin, end};
use crate::saved::{SavedError, Step};

const ROUNDS: u64 = 100;
/// Ticks from one round to the next.
const EACH: u64 = 10_000;
/// Calls of a round, each with another one within it.
const CALLS: u64 = 200;

/// A file that counts what is read of it.
struct Counted<'a> {
    file: Cursor<&'a [u8]>,
    read: &'a Cell<u64>,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let many = self.file.read(into)?;
        self.read.set(self.read.get() + many as u64);
        Ok(many)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

/// What thread 8 does, as (kind, function, place, tick): one call from the begin to the end, and short ones in each round.
fn records() -> Vec<(RecordKind, u64, u64, u64)> {
    let mut all = vec![(RecordKind::Entry, 1, 9, EACH)];
    for round in 0..ROUNDS {
        for call in 0..CALLS {
            let at = EACH * (1 + round) + 10 + call * 40;
            all.push((RecordKind::Entry, 0, 1, at));
            all.push((RecordKind::Entry, 1, 2, at + 10));
            all.push((RecordKind::Return, 1, 2, at + 20));
            all.push((RecordKind::Return, 0, 1, at + 30));
        }
    }
    all.push((RecordKind::Return, 1, 9, EACH * (ROUNDS + 1)));
    all
}

/// A recording of those between two ticks. The thread is on one CPU in 25 rounds each. Only the first block of a ring has a
/// context in it.
fn file(from: u64, to: u64) -> Vec<u8> {
    let mut file = [begin(CLOCK, b"a note"), table()].concat();
    let all = records();
    let (mut taken, mut known) = ([0; 2], [0; 2]);
    for nth in 1..=ROUNDS + 1 {
        let ring = (nth / 25 % 2) as usize;
        let is_now = |at: u64| (nth * EACH..(nth + 1) * EACH).contains(&at);
        let mut words = Vec::new();
        for &(kind, function, place, at) in all.iter().filter(|record| is_now(record.3)) {
            if (from..=to).contains(&at) {
                words.push(record(kind, function, place, at));
            }
        }
        let context = context(8, 0);
        let head = WordsHead {
            ring: ring as u32,
            from: taken[ring],
            context: known[ring],
            taken: (nth + 1) * EACH,
            ..WordsHead::default()
        };
        if known[ring] == 0 && !words.is_empty() {
            words.insert(0, context);
            known[ring] = context;
        }
        taken[ring] += words.len() as u64;
        file.extend(block_of(head, &words));
        file.extend(round((nth + 1) * EACH).put());
    }
    file.extend(Round { clock: CLOCK, processes: 1, until: None }.put());
    file.extend(end(b"an end"));
    file
}

/// Lines, how it ended, and bytes read.
fn read(file: &[u8], since: u64, until: Option<u64>) -> (Vec<String>, Result<Step, SavedError>, u64) {
    let (count, mut seen) = (Cell::new(0), Seen::default());
    let time = |tick: u64| Duration::from_nanos((tick - CLOCK.0) / 2);
    let from = Counted { file: Cursor::new(file), read: &count };
    let recorded = Recorded::open(from).expect("a file");
    let since = if since == 0 { Duration::ZERO } else { time(since) };
    let mut recorded = recorded.between(since, until.map(time));
    loop {
        match recorded.round(&mut seen) {
            Ok(Step::Round { .. }) => {}
            other => return (seen.lines, other, count.get()),
        }
    }
}

/// SEL-2
#[test]
fn sel_2_a_part_is_what_a_recording_of_that_time_alone_has() {
    let whole = file(0, u64::MAX);
    for (since, until) in [
        (0, None),
        (0, Some(7 * EACH + 32)),
        (50 * EACH + 20, None),
        (50 * EACH + 20, Some(60 * EACH + 54)),
        (74 * EACH, Some(76 * EACH)),
        (2 * EACH, Some(2 * EACH)),
        (99 * EACH + 8, Some(200 * EACH)),
        (300 * EACH, None),
        (60 * EACH, Some(50 * EACH)),
    ] {
        let (lines, step, bytes) = read(&whole, since, until);
        let part = file(since, until.unwrap_or(u64::MAX));
        let (expected, ..) = read(&part, 0, None);
        assert_eq!(lines, expected, "{since} {until:?}");
        assert_eq!(step.expect("whole"), Step::End(b"an end".to_vec()));
        // Blocks outside are passed over; some beside the part are read. A file's buffer reads more at once.
        let rounds = until.unwrap_or(ROUNDS * EACH).min(ROUNDS * EACH).saturating_sub(since) / EACH;
        let most = (rounds + 4) * (CALLS * 4 * 8 + 200) + ROUNDS * 200;
        assert!(bytes < most, "{since} {until:?}: {bytes} of {}", whole.len());
    }
    assert!(read(&whole, 0, None).0.len() as u64 == 2 * (1 + ROUNDS * CALLS * 2));
}

/// SEL-2: what is passed over is not looked at; what is read is, as ever.
#[test]
fn sel_2_damage_outside_of_a_part_is_not_met() {
    let mut damaged = file(0, u64::MAX);
    let (expected, ..) = read(&damaged, 50 * EACH, Some(60 * EACH));
    let at = damaged.len() / 10;
    damaged[at] ^= 1;
    let (lines, step, _) = read(&damaged, 50 * EACH, Some(60 * EACH));
    assert_eq!(lines, expected);
    assert!(matches!(step, Ok(Step::End(_))), "{step:?}");
    assert!(read(&damaged, 0, None).1.is_err());
    assert!(read(&damaged, 5 * EACH, Some(60 * EACH)).1.is_err());
}

/// SAV-2: a file that ends within a block that is passed over ends where it ends.
#[test]
fn sav_2_a_cut_within_a_passed_block_is_found() {
    let whole = file(0, u64::MAX);
    for len in [whole.len() / 2, whole.len() / 2 + 1, whole.len() / 3, whole.len() - 1] {
        let (_, step, _) = read(&whole[..len], 300 * EACH, None);
        assert_eq!(step.expect("no damage"), Step::Cut(len as u64));
    }
    let many = whole.len() as u64 / (BLOCK as u64);
    assert!(many > ROUNDS);
}
