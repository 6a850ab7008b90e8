//! What a recording of words says, and every way in which it may be damaged.

use std::collections::BTreeMap;
use std::io::Cursor;

use trapline_record::ring::RecordKind;

use super::example::{CLOCK, context, example, record, round, table, valued, words};
use super::{Begun, Ended, Function, Process, Recorded, Thread, Visit};
use crate::calls::{CallEnd, Text};
use crate::saved::frame::{BLOCK, HEAD};
use crate::saved::tables::{TakenOut, TakenProbe, begin};
use crate::saved::{SavedError, Step};

/// What was visited, as text.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) lines: Vec<String>,
    names: Vec<String>,
    threads: Vec<u32>,
    open: BTreeMap<usize, Vec<usize>>,
    begun: u64,
    ended: u64,
    /// Ticks in calls within each, in the order of their ends.
    within: Vec<u64>,
}

impl Visit for Seen {
    fn function(&mut self, function: &Function) {
        self.names.push(function.site.label.clone());
    }
    fn thread(&mut self, thread: Thread, process: &Process) {
        assert_eq!(process.pid, 7);
        self.threads.push(thread.tid);
    }
    fn begun(&mut self, call: &Begun) {
        let open = self.open.entry(call.thread).or_default();
        assert_eq!(open.len(), call.depth);
        open.push(call.function);
        self.begun += 1;
        let (tid, name) = (self.threads[call.thread], &self.names[call.function]);
        let values = call.values.as_ref().map_or_else(String::new, |call| {
            let fields: Vec<_> = call.fields.iter().map(Text::word).collect();
            let floats = f64::from_bits(call.floats[0]);
            let texts = call.texts.iter().map(|Text { argument, bytes, reading }| {
                format!(" {argument} {:?} {reading:?}", String::from_utf8_lossy(bytes))
            });
            let texts: String = texts.collect();
            format!(" {:x?} [{floats}] {fields:?} {:?}{texts}", &call.arguments[..2], call.returned)
        });
        self.lines.push(format!("{tid} {} {name} {{ {}{values}", call.depth, call.begin));
    }
    fn ended(&mut self, ended: &Ended) {
        let call = &ended.call;
        assert_eq!(self.open.entry(call.thread).or_default().pop(), Some(call.function));
        self.ended += 1;
        self.within.push(ended.within);
        assert!(ended.end >= call.begin && ended.within <= ended.end - call.begin);
        let (tid, name) = (self.threads[call.thread], &self.names[call.function]);
        let how = match ended.how {
            CallEnd::Returned => "returned",
            CallEnd::TailCall => "tail",
            CallEnd::Unfinished => "unfinished",
            CallEnd::Entered => "entered",
        };
        let returned = call.values.as_ref().map_or_else(String::new, |call| format!(" {:?}", call.returned));
        self.lines.push(format!("{tid} {} {name} }} {} {how}{returned}", call.depth, ended.end));
    }
}

fn read(file: &[u8]) -> (Seen, Result<Step, SavedError>) {
    let mut seen = Seen::default();
    let mut recorded = match Recorded::open(Cursor::new(file)) {
        Ok(recorded) => recorded,
        Err(error) => return (seen, Err(error)),
    };
    loop {
        match recorded.round(&mut seen) {
            Ok(Step::Round { .. }) => {}
            other => return (seen, other),
        }
    }
}

/// REC-3
#[test]
fn rec_3_calls_are_within_calls_whichever_ring_their_records_were_in() {
    let file = example();
    let (seen, step) = read(&file);
    assert_eq!(step.expect("whole"), Step::End(b"an end".to_vec()));
    let expected = [
        "8 0 f { 2000",
        "9 0 once { 2005",
        "9 0 once } 2005 entered",
        "9 0 g { 2007",
        "9 0 g } 2008 tail",
        "8 1 g { 2010",
        "8 1 g } 2100 unfinished",
        "8 0 f } 2100 returned",
        "8 0 f { 2200",
        "8 1 valued { 2210 [4d3, 240000030] [1.5] [Some(7)] None",
        "8 1 valued } 2220 returned Some(42)",
        "8 1 said { 2230 [1000, 2000] [2.5] [Some(8)] None 0 \"abc\\0\" Whole 1 \"123456789\" Fault",
        "8 1 said } 2240 returned None",
        "8 0 f } 2240 unfinished",
    ];
    assert_eq!(seen.lines, expected);
    let mut recorded = Recorded::open(Cursor::new(&file)).expect("a file");
    let mut seen = Seen::default();
    while !matches!(recorded.round(&mut seen), Ok(Step::End(_))) {}
    let totals = recorded.totals();
    assert_eq!((totals.calls, totals.words, totals.lost), (7, 30, 5));
    assert_eq!((totals.unpaired, totals.skipped), (1, 0), "the second return of f");
    assert_eq!((recorded.thread_name(0), recorded.thread_name(1)), (Some("main"), None));
    assert_eq!(recorded.ticks().since_begin(3000), 1000);
}

/// SAV-2: cut anywhere, each call that began has ended, and no more is seen than before.
#[test]
fn sav_2_a_cut_recording_is_read_to_its_last_whole_block() {
    let file = example();
    let (whole, _) = read(&file);
    for len in 0..file.len() {
        let (seen, step) = read(&file[..len]);
        assert!(!matches!(step, Ok(Step::End(_))), "{len}");
        assert_eq!(seen.begun, seen.ended, "{len}");
        assert!(seen.begun <= whole.begun, "{len}");
        assert!(seen.open.values().all(Vec::is_empty));
    }
}

/// REC-5: values that are not all there are none. What is left of a block says nothing, and the next one begins anew.
#[test]
fn rec_5_half_a_record_at_a_blocks_end_has_no_values() {
    let whole = valued(2000);
    for cut in 1..whole.len() {
        let first = [&[context(8, 0)][..], &whole[..cut]].concat();
        let second = valued(3000);
        let file = [begin(CLOCK, b""), table(), words(0, 0, &first), words(0, first.len() as u64, &second)];
        let (seen, _) = read(&file.concat());
        let calls = seen.lines.iter().filter(|line| line.contains("valued {"));
        let times: Vec<&str> = calls.filter_map(|line| line.split(' ').nth(4)).collect();
        match cut {
            6.. => assert_eq!(times, ["2000", "3000"], "{cut}"),
            _ => assert_eq!(times, ["3000"], "{cut}"),
        }
        let ends = seen.lines.iter().filter(|line| line.ends_with("returned Some(42)")).count();
        assert_eq!(ends, 1, "{cut}: {:?}", seen.lines);
    }
}

/// REC-3: a library's function is called by the program if the call that it is directly within is the program's own.
#[test]
fn rec_3_what_libraries_call_among_themselves_is_not_visited() {
    use RecordKind::{Entry, Return};
    // f calls puts, which calls write twice, and then g in the program, which calls write.
    let all = [
        (Entry, 0, 1, 2000),
        (Entry, 7, 2, 2010),
        (Entry, 8, 3, 2020),
        (Return, 8, 3, 2030),
        (Entry, 8, 3, 2040),
        (Return, 8, 3, 2050),
        (Entry, 1, 3, 2060),
        (Entry, 8, 4, 2070),
        (Return, 8, 4, 2075),
        (Return, 1, 3, 2080),
        (Return, 7, 2, 2090),
        (Entry, 8, 2, 2100),
        (Return, 8, 2, 2110),
        (Return, 0, 1, 2120),
    ];
    let all = all.map(|(kind, probe, place, time)| record(kind, probe, place, time));
    let file = [begin(CLOCK, b""), table(), words(0, 0, &[&[context(8, 0)][..], &all].concat())].concat();
    let (seen, _) = read(&file);
    let expected = [
        "8 0 f { 2000",
        "8 1 puts { 2010",
        "8 2 g { 2060",
        "8 3 write { 2070",
        "8 3 write } 2075 returned",
        "8 2 g } 2080 returned",
        "8 1 puts } 2090 returned",
        "8 1 write { 2100",
        "8 1 write } 2110 returned",
        "8 0 f } 2120 returned",
    ];
    assert_eq!(seen.lines, expected);
    // Of write within g, g within puts, and puts and write within f.
    assert_eq!(seen.within, [0, 5, 20, 0, 90]);
}

/// A function that was taken out: its calls that run then end there, and what stubs still write counts for nothing.
#[test]
fn thin_1_calls_of_what_was_taken_out_end_then() {
    use RecordKind::{Entry, Return};
    let first = [
        context(8, 0),
        record(Entry, 0, 1, 2000),
        record(Entry, 1, 2, 2010),
        record(Return, 1, 2, 2020),
        record(Entry, 1, 2, 2030),
        // Behind the change at 2035: an exit and an entry of threads that were in stubs, and what goes on without them.
        context(9, 0),
        record(Entry, 1, 3, 2036),
        record(Entry, 0, 5, 2040),
        record(Return, 0, 5, 2050),
        context(8, 0),
        record(Return, 1, 2, 2060),
        record(Entry, 0, 2, 2070),
        record(Return, 0, 2, 2080),
        record(Return, 0, 1, 2090),
    ];
    let probes = vec![TakenProbe { segment: 0, probe: 1, calls: 2 }];
    let out = TakenOut { at: 2035, share: 0.5, record_ns: 40.0, probes };
    let file = [begin(CLOCK, b""), table(), words(0, 0, &first), out.put(0)].concat();
    let (seen, _) = read(&file);
    let expected = [
        "8 0 f { 2000",
        "8 1 g { 2010",
        "8 1 g } 2020 returned",
        "8 1 g { 2030",
        "8 1 g } 2035 unfinished",
        "9 0 g { 2036",
        "9 0 g } 2036 entered",
        "9 0 f { 2040",
        "9 0 f } 2050 returned",
        "8 1 f { 2070",
        "8 1 f } 2080 returned",
        "8 0 f } 2090 returned",
    ];
    assert_eq!(seen.lines, expected);
    let mut recorded = Recorded::open(Cursor::new(&file)).expect("a file");
    let mut seen = Seen::default();
    while let Ok(Step::Round { .. }) = recorded.round(&mut seen) {}
    assert_eq!(recorded.totals().unpaired, 0);
    let [taken] = recorded.taken_out() else { panic!("one") };
    assert_eq!((taken.function, taken.calls, taken.at, taken.record_ns), (1, 2, 2035, 40.0));
    // A function goes once.
    let (_, step) = read(&[begin(CLOCK, b""), table(), out.put(0), out.put(0)].concat());
    assert!(matches!(step, Err(SavedError::Damaged { .. })), "{step:?}");
    // A block that names what there is not is no block.
    for (process, probe) in [(1, 1), (0, 2), (0, u32::MAX)] {
        let out = TakenOut { probes: vec![TakenProbe { segment: 0, probe, calls: 2 }], ..out.clone() };
        let (_, step) = read(&[begin(CLOCK, b""), table(), out.put(process)].concat());
        assert!(matches!(step, Err(SavedError::Damaged { .. })), "{process} {probe}: {step:?}");
    }
}

/// SAV-1: a changed byte is found by the checksum, or by the rules behind it.
#[test]
fn sav_1_each_changed_byte_is_noticed() {
    let file = example();
    for at in HEAD..file.len() {
        for bit in [1, 0x80] {
            let mut damaged = file.clone();
            damaged[at] ^= bit;
            let (seen, step) = read(&damaged);
            assert!(!matches!(step, Ok(Step::End(_))), "byte {at}");
            assert_eq!(seen.begun, seen.ended, "byte {at}");
        }
    }
}

/// WORD-2, SAV-1: any words, in blocks with a right checksum.
#[test]
fn sav_1_words_that_no_session_writes_are_skipped() {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 29
    };
    for _ in 0..200 {
        let mut file = [begin(CLOCK, b""), table()].concat();
        for nth in 0..8 {
            let some: Vec<u64> =
                (0..60).map(|_| if random() % 3 == 0 { random() } else { random() & !0xc }).collect();
            file.extend(words((random() % 3) as u32, random() % 2 * nth * 60, &some));
            if random() % 2 == 0 {
                file.extend(round(random() >> (random() % 64)).put());
            }
        }
        let (seen, step) = read(&file);
        assert!(matches!(step, Ok(Step::Cut(_))), "{step:?}");
        assert_eq!(seen.begun, seen.ended);
    }
}

/// A file with other blocks belongs to another verb, and says so.
#[test]
fn each_kind_of_recording_has_its_reader() {
    let (_, step) = read(&crate::saved::example());
    assert!(matches!(step, Err(SavedError::NotCompact)), "{step:?}");
    let file = example();
    let mut saved = crate::saved::Saved::open(&file[..]).expect("a file");
    assert!(matches!(saved.each_call(&mut |_| ()), Err(SavedError::Compact)));
    assert_eq!(BLOCK, 16);
}
