//! A small recording of words, to test and to fuzz.

use std::sync::Arc;

use trapline_record::calls::{CONTEXT, PROBE_SHIFT, THREAD_SHIFT, TIME_BITS, TIME_SHIFT, VALUES};
use trapline_record::ring::RecordKind;

use crate::decode::{Clock, ProbeFacts, Probes, Shape};
use crate::report::{Site, Tactic};
use crate::saved::frame::{Kind, Put};
use crate::saved::tables::{
    Loss, Round, Table, TakenOut, TakenProbe, WordsHead, begin, end, put_losses, put_names,
};
use crate::values::Values;

pub(super) const CLOCK: Clock = (1000, 0.5);

pub(super) fn table() -> Vec<u8> {
    let mut probes = Probes::default();
    for (probe, name, waits) in [
        (0, "f", true),
        (1, "g", true),
        (5, "once", false),
        (6, "valued", true),
        (7, "puts", true),
        (8, "write", true),
        (9, "said", true),
    ] {
        let site = Arc::new(Site {
            probe: format!("uprobe:/bin/x:{name}"),
            aliases: Vec::new(),
            file: "/bin/x".to_owned(),
            offset: u64::from(probe),
            label: name.to_owned(),
            tactic: Tactic::Jump,
            slot: 0,
        });
        let shape =
            |values, texts, floats, fields| Some(Shape { values, texts, floats, fields, kept: Vec::new() });
        let shape = match probe {
            6 => shape(2, 0, 1, vec![4]),
            9 => shape(2, 0b11, 1, vec![4]),
            _ => None,
        };
        let facts = ProbeFacts {
            site,
            waits,
            shape,
            results: trapline_plan::Results::INTEGER,
            values: Values::AsRecorded,
            is_libcall: matches!(probe, 7 | 8),
            late: None,
        };
        probes.set(0, probe, facts);
    }
    Table { process: 0, pid: 7, name: "demo".to_owned(), exits_name_no_thread: false, probes }.put()
}

pub(crate) fn record(kind: RecordKind, probe: u64, place: u64, time: u64) -> u64 {
    time << TIME_SHIFT | probe << PROBE_SHIFT | place << 4 | kind as u64
}
pub(crate) const fn context(tid: u64, time: u64) -> u64 {
    time >> TIME_BITS << TIME_BITS | tid << THREAD_SHIFT | CONTEXT
}

pub(super) fn words(ring: u32, from: u64, words: &[u64]) -> Vec<u8> {
    block_of(WordsHead { ring, from, taken: u64::MAX, ..WordsHead::default() }, words)
}

/// A block with a head that says anything.
pub(super) fn block_of(head: WordsHead, words: &[u64]) -> Vec<u8> {
    let mut block = Put::block(Kind::Words);
    head.put(&mut block);
    for word in words {
        block.u64(*word);
    }
    block.done()
}

pub(super) const fn round(until: u64) -> Round {
    Round { clock: CLOCK, processes: 1, until: Some(until) }
}

/// A call with two arguments, a float, a field, and a value; the arguments look like a context and like a record.
pub(super) fn valued(time: u64) -> Vec<u64> {
    let [entry, end] = [(RecordKind::Entry, time), (RecordKind::Return, time + 10)]
        .map(|(kind, time)| record(kind, 6, 4, time) | VALUES);
    vec![entry, context(77, 0), record(RecordKind::Entry, 0, 3, 9), 1.5_f64.to_bits(), 4, 7, end, 42]
}

/// A call with two texts: a short one, and one that ends at the end of memory. Behind the first one's end is what was there.
pub(super) fn said(time: u64) -> Vec<u64> {
    let [entry, end] = [(RecordKind::Entry, time), (RecordKind::Return, time + 10)]
        .map(|(kind, time)| record(kind, 9, 4, time) | if kind == RecordKind::Entry { VALUES } else { 0 });
    let text = u64::from_le_bytes(*b"\x03abc\x00old");
    let broken = [*b"\x891234567", *b"89\x00old.."].map(u64::from_le_bytes);
    vec![entry, 0x1000, 0x2000, 2.5_f64.to_bits(), 4, 8, text, broken[0], broken[1], end]
}

/// Two threads on two CPUs; thread 8 moves in the middle of a call. A call is left by a longjmp, one by a tail call.
#[must_use]
pub fn example() -> Vec<u8> {
    use RecordKind::{Entry, Return, Tail};
    let first = [context(8, 0), record(Entry, 0, 1, 2000), record(Entry, 1, 2, 2010)];
    let second =
        [context(9, 0), record(Entry, 5, 9, 2005), record(Entry, 1, 9, 2007), record(Tail, 1, 9, 2008)];
    // It moved to the other CPU, where it comes behind thread 9; f's return ends g, too.
    let third = [context(8, 0), record(Return, 0, 1, 2100), record(Return, 0, 1, 2101)];
    let last = [&[context(8, 0), record(Entry, 0, 3, 2200)][..], &valued(2210), &said(2230)].concat();
    [
        begin(CLOCK, b"a note"),
        table(),
        words(1, 0, &second),
        words(0, 0, &first),
        put_names(0, &[(8, Some("main".to_owned())), (9, None)]),
        round(2020).put(),
        words(1, 4, &third),
        put_losses(0, &[Loss { segment: 0, probe: 1, cpu: Some(1), records: 5 }]),
        round(2150).put(),
        words(0, 3, &last),
        TakenOut {
            at: 2300,
            share: 0.25,
            record_ns: 40.0,
            probes: vec![TakenProbe { segment: 0, probe: 1, calls: 2 }],
        }
        .put(0),
        Round { clock: CLOCK, processes: 1, until: None }.put(),
        end(b"an end"),
    ]
    .concat()
}
