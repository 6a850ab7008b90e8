//! The layout as a contract; the same records both ways; every way to end too early.

use std::sync::Arc;
use std::time::Duration;

use trapline_image::MARK_ARGUMENTS;
use trapline_record::ring::RecordKind as Records;

use super::example::{example, reseal, site, slot, slots};
use super::frame::{BLOCK, HEAD, Kind, sum};
use super::pack::unpack;
use super::tables::{Round, Table, put_names};
use super::{Saved, SavedError, Step, begin, end};
use crate::calls::{Call, CallEnd, ReadOutcome, in_order};
use crate::decode::{Decoder, ProbeFacts, Probes, Shape};
use crate::filter::{Filter, Known as Fact, Symbol};
use crate::filter::{Float, Int};
use crate::values::{ArgumentSource, Marked, Number, Values};

/// All calls of a file, and how it ends.
fn read(file: &[u8]) -> (Vec<Call>, Result<Step, SavedError>) {
    let mut calls = Vec::new();
    let mut saved = match Saved::open(file) {
        Ok(saved) => saved,
        Err(error) => return (calls, Err(error)),
    };
    loop {
        match saved.each_call(&mut |call| calls.push(call.clone())) {
            Ok(Step::Round { .. }) => {}
            other => return (calls, other),
        }
    }
}

/// Offsets of blocks, with their kinds; then the file's end.
fn blocks(file: &[u8]) -> Vec<(usize, Option<Kind>)> {
    let (mut at, mut blocks) = (HEAD, Vec::new());
    while at < file.len() {
        let number = |at: usize, len: usize| {
            file[at..at + len].iter().rev().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        blocks.push((at, Kind::from_word(number(at, 4) as u32)));
        at += BLOCK + number(at + 8, 8) as usize;
    }
    blocks.push((at, None));
    blocks
}

#[test]
fn the_layout_is_a_contract() {
    let file = example();
    assert_eq!(&file[..16], b"trapline\x06\0\0\0\0\0\0\0");
    // Begin: its length, and after the time of day the clock and the note.
    assert_eq!((&file[16..20], &file[24..32]), (&b"\x01\0\0\0"[..], &b"\x22\0\0\0\0\0\0\0"[..]));
    // The checksum is the one that zip has, of kind, length and contents.
    let mut sealed = file.clone();
    reseal(&mut sealed);
    assert_eq!(sealed, file);
    assert_eq!(sum(7, b""), 0x0f4d_2fe0);
    assert_eq!(&file[40..66], b"\xe8\x03\0\0\0\0\0\0\0\0\0\0\0\0\xe0\x3f\x06\0\0\0a note");
    let at = blocks(&file);
    use Kind::{Begin, End, Losses, Names, Probes, Round, Slots};
    let kinds: Vec<Kind> = at.iter().filter_map(|block| block.1).collect();
    assert_eq!(kinds, [Begin, Probes, Slots, Names, Round, Slots, Losses, Round, End]);
    assert_eq!(kinds.map_words(), [1, 2, 3, 4, 6, 3, 5, 6, 7]);
    let block = |nth: usize| &file[at[nth].0 + BLOCK..at[nth + 1].0];
    let probes = b"\0\0\0\0\x07\0\0\0\x04\0\0\0demo\0\x02\0\0\0\
\0\0\0\0\x03\0\0\0\x01\x0f\0\0\0uprobe:/bin/x:f\x01\0\0\0\x15\0\0\0uprobe:/bin/x:f_alias\
\x06\0\0\0/bin/x\0\x10\0\0\0\0\0\0\x01\0\0\0f\0\x01\x06\x01\x02\x01\0\0\0\x08\
\x01\0\0\0\0\0\0\0\0\x0f\0\0\0uprobe:/bin/x:g\x01\0\0\0\x15\0\0\0uprobe:/bin/x:g_alias\
\x06\0\0\0/bin/x\0\x20\0\0\0\0\0\0\x01\0\0\0g\0\0";
    assert_eq!(block(1), probes);
    assert_eq!(block(2)[..16], *b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\x01\0\0");
    let slots = [slot(Records::Entry, 8, 2000, 0x90), slot(Records::Entry, 9, 2100, 0x190)].concat();
    assert_eq!(unpack(&block(2)[16..], 256), Some(slots));
    assert_eq!(block(3), b"\0\0\0\0\x02\0\0\0\x08\0\0\0\x01\x05\0\0\0main?\x09\0\0\0\0\0\0\0\0");
    assert_eq!(block(4), b"\xe8\x03\0\0\0\0\0\0\0\0\0\0\0\0\xe0\x3f\xc4\x09\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(
        block(6),
        b"\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x01\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\xff\xff\xff\xff\x02\0\0\0\0\0\0\0"
    );
    assert_eq!(block(7)[16..], *b"\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0");
    assert_eq!(block(8), b"\x06\0\0\0an end");
}

trait Words {
    fn map_words(&self) -> Vec<u32>;
}

impl Words for Vec<Kind> {
    fn map_words(&self) -> Vec<u32> {
        self.iter().map(|kind| *kind as u32).collect()
    }
}

#[test]
fn a_file_tells_what_its_records_say() {
    let file = example();
    let mut saved = Saved::open(&file[..]).expect("a file");
    assert_eq!(saved.note(), b"a note");
    assert!(saved.began() > Duration::from_secs(1_700_000_000));
    let mut calls = Vec::new();
    let mut step = |saved: &mut Saved<'_, &[u8]>| saved.each_call(&mut |call| calls.push(call.clone()));
    assert_eq!(step(&mut saved).expect("a round"), Step::Round { last: false });
    assert_eq!(step(&mut saved).expect("a round"), Step::Round { last: true });
    assert_eq!(step(&mut saved).expect("an end"), Step::End(b"an end".to_vec()));
    assert_eq!((saved.counted(), saved.left_out(), saved.notices()), ((2, 7), 0, vec![]));
    assert_eq!(
        saved.losses_of(0).iter().map(|loss| (loss.cpu, loss.records)).collect::<Vec<_>>(),
        [(Some(1), 5), (None, 2)]
    );
    let [ended, open] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((ended.tid, ended.how, open.tid, open.how), (8, CallEnd::Returned, 9, CallEnd::Unfinished));
    assert_eq!((ended.at, ended.took), (Duration::from_nanos(500), Some(Duration::from_nanos(500))));
    assert_eq!((&ended.arguments[..6], ended.returned), (&[3, 4, 5, 6, 7, 8][..], Some(3)));
    assert_eq!((&ended.texts[0].bytes[..], ended.texts[0].reading), (&b"a text\0!"[..], ReadOutcome::Fault));
    assert_eq!((ended.floats[1], ended.fields[0].word()), (18, Some(20)));
    assert_eq!((saved.thread_name(ended).as_deref(), saved.thread_name(open)), (Some("main?"), None));
    assert_eq!(saved.processes().collect::<Vec<_>>(), [(7, "demo")]);
}

/// Numbers that look random, and are the same each time.
fn chance(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Probe 3 of segment 0, with returns and texts, as a session knows it.
fn probes() -> Probes {
    let mut probes = Probes::default();
    let shape = Some(Shape { values: 6, texts: 1, floats: 2, fields: vec![8], kept: Vec::new() });
    probes.set(
        0,
        3,
        ProbeFacts {
            site: site("f", 1),
            waits: true,
            shape,
            results: trapline_plan::Results::INTEGER,
            values: Values::AsRecorded,
            is_libcall: false,
            late: None,
        },
    );
    probes
}

fn table(process: u32) -> Vec<u8> {
    let (pid, name) = (100 + process, "p".to_owned());
    Table { process, pid, name, exits_name_no_thread: false, probes: probes() }.put()
}

/// Entries and exits of threads in two rings, in rounds that end anywhere, so an exit may come a round before
/// its entry.
fn rounds(seed: &mut u64) -> Vec<Vec<Vec<Vec<u8>>>> {
    let mut rounds = vec![vec![Vec::new(), Vec::new()]];
    for n in 0..400_u64 {
        let kind = [Records::Entry, Records::Return, Records::Tail, Records::Entry][chance(seed, 4) as usize];
        let (tid, sp) = (chance(seed, 3) as u32, 0x1000 + chance(seed, 4) * 8);
        let ring = chance(seed, 2) as usize;
        let last = rounds.last_mut().expect("one");
        last[ring].push(slot(kind, tid, 5000 + n * 10, sp));
        if chance(seed, 20) == 0 {
            rounds.push(vec![Vec::new(), Vec::new()]);
        }
    }
    rounds
}

/// Reports from saved records are those that the session would have made: for one process, and for two.
#[test]
fn the_same_records_are_the_same_calls() {
    for processes in [1_u32, 2] {
        let mut seed = 7 + u64::from(processes);
        let each: Vec<_> = (0..processes).map(|_| rounds(&mut seed)).collect();
        let most = each.iter().map(Vec::len).max().unwrap_or(0);
        let (mut file, mut live) = (begin((1000, 0.5), b""), Vec::new());
        let mut decoders: Vec<Decoder> = Vec::new();
        for number in 0..processes {
            file.extend(table(number));
            let mut decoder = Decoder::default();
            decoder.probes = probes();
            decoders.push(decoder);
        }
        for nth in 0..most {
            // The clock is known more exactly with time.
            let (clock, last) = ((1000, 0.5 + nth as f64 / 1e6), nth + 1 == most);
            let until = (!last).then_some(5000 + nth as u64 * 200);
            let mut calls = Vec::new();
            for (number, decoder) in (0..processes).zip(&mut decoders) {
                for ring in each[number as usize].get(nth).into_iter().flatten() {
                    file.extend(slots(number, 0, 256, ring));
                    decoder.take(0, 256, &ring.concat());
                }
                decoder.report(100 + number, clock, until, &|_| None, &mut |call| calls.push(call));
            }
            if processes > 1 && !last {
                in_order(&mut calls);
            }
            live.append(&mut calls);
            file.extend(Round { clock, processes, until }.put());
        }
        file.extend(end(b""));
        let (calls, step) = read(&file);
        assert_eq!(step.expect("whole"), Step::End(Vec::new()));
        assert!(live.len() > 100 && live.iter().any(|call| call.how == CallEnd::TailCall));
        assert_eq!(calls, live);
        let mut saved = Saved::open(&file[..]).expect("a file");
        while saved.each_call(&mut |_| {}).expect("whole") != Step::End(Vec::new()) {}
        let unpaired: u64 = decoders.iter().map(|decoder| decoder.pairing.unpaired).sum();
        assert!(unpaired > 0 && saved.notices().len() == processes as usize);
    }
}

/// SAV-2: wherever the file is cut, all whole blocks are reported, and so is where it ends.
#[test]
fn a_file_is_readable_to_its_last_whole_block() {
    let file = example();
    let at = blocks(&file);
    let whole = |kind: Kind, cut: usize| {
        at.windows(2).filter(|pair| pair[0].1 == Some(kind) && pair[1].0 <= cut).count()
    };
    for cut in 0..file.len() {
        let (calls, step) = read(&file[..cut]);
        match step {
            Err(SavedError::Cut(where_it_ends)) => {
                assert!(cut < at[1].0 && where_it_ends == cut as u64, "{cut}");
            }
            Ok(Step::Cut(where_it_ends)) => {
                assert_eq!(where_it_ends, cut as u64);
                // Two entries in the first slots, one return in the second.
                let expected = if whole(Kind::Slots, cut) == 0 { 0 } else { 2 };
                assert_eq!(calls.len(), expected, "{cut}");
                let ended = calls.iter().filter(|call| call.took.is_some()).count();
                assert_eq!(ended, usize::from(whole(Kind::Slots, cut) == 2), "{cut}");
            }
            other => panic!("{cut}: {other:?}"),
        }
    }
}

#[test]
fn what_is_wrong_is_said_and_where() {
    let file = example();
    let at = blocks(&file);
    let with = |place: usize, bytes: &[u8]| {
        let mut other = file.clone();
        other[place..place + bytes.len()].copy_from_slice(bytes);
        if place >= HEAD && bytes != [0x5a] {
            reseal(&mut other);
        }
        read(&other).1.expect_err("damaged").to_string()
    };
    assert!(with(0, b"T").contains("no recording"));
    assert_eq!(with(8, &[1]), "it is a recording of version 1, and this trapline reads version 6");
    for (block, offset, bytes, says) in [
        (0, 0, &[10][..], "is of no kind"),
        (0, 0, &[2], "stands where the begin should"),
        (0, BLOCK, &[0x5a], "has another checksum than it says"),
        (4, 5, &[0x5a], "has another checksum than it says"),
        (1, 0, &[1], "is a second begin"),
        (1, 12, &[1], "is longer than any"),
        (1, BLOCK, &[1], "is of a process that was left out"),
        (1, BLOCK + 17, &[3], "is no table of probes"),
        (2, BLOCK, &[1], "holds no slots"),
        (2, BLOCK + 12, &[32, 0], "holds no slots"),
        (2, BLOCK + 13, &[3], "holds no slots"),
        (3, BLOCK, &[1], "names threads of no process"),
        (3, BLOCK + 4, &[9], "holds no names"),
        (3, BLOCK + 17, &[7], "holds no names"),
        (4, BLOCK + 14, &[0xf0, 0x7f], "is no round"),
        (4, BLOCK + 28, &[1], "stands behind the last round"),
        (6, BLOCK + 4, &[3], "holds no losses"),
        (8, BLOCK, &[5], "is no end"),
    ] {
        let error = with(at[block].0 + offset, bytes);
        assert!(error.contains(says), "{says}: {error}");
    }
    let more = [file.clone(), vec![0]].concat();
    assert!(read(&more).1.expect_err("more").to_string().contains("is the end, and not the last"));
}

#[test]
fn numbers_that_would_take_all_memory_are_refused() {
    for (segment, probe) in [(1 << 12, 0), (0, 1 << 21), (0, u32::MAX)] {
        let mut probes = probes();
        probes.set(
            1,
            0,
            ProbeFacts {
                site: site("g", 2),
                waits: false,
                shape: None,
                results: trapline_plan::Results::INTEGER,
                values: Values::AsRecorded,
                is_libcall: false,
                late: None,
            },
        );
        let mut block = Table { probes, ..Table::default() }.put();
        // The first probe's segment and number come after the process, its pid, an empty name, a flag and the
        // number of probes.
        let at = BLOCK + 4 + 4 + 4 + 1 + 4;
        block[at..at + 4].copy_from_slice(&u32::to_le_bytes(segment));
        block[at + 4..at + 8].copy_from_slice(&u32::to_le_bytes(probe));
        let mut file = [begin((0, 1.0), b""), block].concat();
        reseal(&mut file);
        assert!(matches!(read(&file).1, Err(SavedError::Damaged { .. })), "{segment} {probe}");
    }
}

#[test]
fn the_reader_may_choose() {
    let file = [
        begin((1000, 0.5), b""),
        table(0),
        slots(0, 0, 256, &[slot(Records::Entry, 8, 2000, 0x90), slot(Records::Entry, 9, 2010, 0x98)]),
        slots(0, 0, 256, &[slot(Records::Return, 8, 3000, 0x90), slot(Records::Return, 9, 3010, 0x98)]),
        put_names(0, &[(8, Some("one".to_owned())), (9, Some("two".to_owned()))]),
        Round { clock: (1000, 0.5), processes: 1, until: None }.put(),
        end(b""),
    ]
    .concat();
    let tid = [("tid".to_owned(), Symbol::Known(Fact::Thread))];
    let by_tid = Filter::default().condition("tid == 9", &tid).expect("a condition").by_reader();
    for filter in [by_tid, Filter::default().named(vec!["two".to_owned()]).by_reader()] {
        let filter = Arc::new(filter);
        let mut saved = Saved::open(&file[..]).expect("a file").choose(|_| Some(Arc::clone(&filter)));
        let (calls, _) = saved.calls().expect("a round");
        assert_eq!(calls.iter().map(|call| call.tid).collect::<Vec<_>>(), [9]);
        assert_eq!(saved.left_out(), 1);
    }
}

/// The values of a USDT probe are saved, and impossible ones are not read.
#[test]
fn values_come_back_as_they_were() {
    const HEAD: usize = 16;
    let int = Int { bits: 32, signed: true };
    let mut sources = [ArgumentSource::Unknown; MARK_ARGUMENTS];
    sources[..2].copy_from_slice(&[
        ArgumentSource::Value(Number::Int(int)),
        ArgumentSource::Field(1, Number::Int(Int::U64)),
    ]);
    sources[4] = ArgumentSource::Value(Number::Int(int));
    let first_form = Values::Marked(Box::new(Marked { sources, texts: vec![(1, 2), (5, 3)] }));
    sources[3] = ArgumentSource::Value(Number::Float(Float::Single));
    sources[11] = ArgumentSource::Field(4, Number::Float(Float::Double));
    let marked = Values::Marked(Box::new(Marked { sources, texts: vec![(1, 2), (11, 3)] }));
    for values in [Values::AsRecorded, Values::Unknown, first_form, marked] {
        let mut probes = Probes::default();
        let known = ProbeFacts {
            site: site("m", 1),
            waits: true,
            shape: None,
            results: trapline_plan::Results::INTEGER,
            values: values.clone(),
            is_libcall: false,
            late: None,
        };
        probes.set(0, 0, known);
        let bytes = Table { probes, ..Table::default() }.put();
        let read = Table::get(&bytes[HEAD..]).expect("a table");
        let read = read.probes.get(0, 0).expect("a probe");
        assert_eq!((&read.values, read.waits), (&values, true));
        let end = bytes.len() - 1;
        assert!(Table::get(&bytes[HEAD..end]).is_none(), "cut");
    }
}
