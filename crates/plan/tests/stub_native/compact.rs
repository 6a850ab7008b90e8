//! WORD-1, LOSS-2 and SAFE-2 for words of compact rings; WAIT-1 and WAIT-2 for threads that find them full.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_plan::x86_64::stub::{Liveness, Rings, ThreadId, Traced, Waits};
use trapline_plan::{Floats, Results};
use trapline_record::calls::{Behind, CallRecord, Found, Reading, SEQUENCE, WAITERS, WORD, text_words};
use trapline_record::ring::{RecordKind, RingArea};

use crate::aborted::at_each_instruction;
use crate::arena::{Arena, LINES, call, machines};
use crate::counts::{everywhere, storm};
use crate::records::{PROBE, built, every_hit, rings, view, with_rseq};
use crate::state::{ONE, Random, assert_kept, back, sets_vectors, tl_run};

const CALLS: u64 = 200_000;

struct Reader<'a> {
    rings: &'a Rings,
    /// What is behind an entry.
    values: Behind,
    tails: Vec<u64>,
    readings: Vec<Reading>,
}

impl<'a> Reader<'a> {
    fn new(rings: &'a Rings) -> Self {
        let many = rings.area.rings as usize;
        Self { rings, values: Behind::default(), tails: vec![0; many], readings: vec![Reading::START; many] }
    }
    /// Takes what is there, and hands on records with their ring and their values.
    fn take(&mut self, mut each: impl FnMut(u32, CallRecord, &[u64])) {
        let (area, view) = (self.rings.area, view(self.rings));
        for (ring, (tail, reading)) in (0..).zip(self.tails.iter_mut().zip(&mut self.readings)) {
            let ahead = area.words_ahead(view, ring, tail).expect("a head that can be");
            let mut bytes = vec![0; ahead as usize * 8];
            if area.take_words_of(view, ring, tail, &mut bytes) {
                wake(self.rings, ring);
            }
            let mut rest = bytes.as_chunks::<8>().0;
            while let Some((word, behind)) = rest.split_first() {
                rest = behind;
                match reading.next(u64::from_le_bytes(*word), 0) {
                    Found::Record(record) => {
                        let many = record.values(self.values, rest).expect("a whole record");
                        let (values, behind) = rest.split_at(many);
                        rest = behind;
                        let values: Vec<u64> = values.iter().map(|word| u64::from_le_bytes(*word)).collect();
                        each(ring, record, &values);
                    }
                    Found::Context => {}
                    Found::Nothing => panic!("{word:x?} is nothing"),
                }
            }
        }
    }
}

fn wake(rings: &Rings, ring: u32) {
    let at = rings.base + rings.area.ring(ring) + SEQUENCE;
    // SAFETY: the call only compares the address with those that threads wait on.
    unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, i32::MAX) };
}

fn compact(arena: &Arena, bytes: u32) -> Rings {
    rings(arena, bytes, WORD)
}

fn tid() -> u32 {
    // SAFETY: gettid has no precondition.
    unsafe { libc::gettid() }.cast_unsigned()
}

fn now() -> u64 {
    // SAFETY: rdtsc has no precondition.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[test]
fn word_1_words_say_what_was_there_and_state_is_kept() {
    let Some(machine) = with_rseq() else { return };
    let _one = ONE.lock();
    let mut random = Random(0x5151_1234_9876_0002);
    let dead = [0, 1 << 10, 1 << 11, 1 << 10 | 1 << 11 | 1 | 1 << 2];
    let sites = dead.into_iter().flat_map(|dead| {
        (0..4).map(move |n| Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 })
    });
    let mut arena = Arena::new();
    // Room for a context and a record; so most hits find it full until it is read.
    let rings = compact(&arena, 16);
    let dropped = arena.word(0);
    let mut reader = Reader::new(&rings);
    for (site, kind) in
        sites.flat_map(|site| [RecordKind::Entry, RecordKind::Return].map(|kind| (site, kind)))
    {
        let traced = Traced { site, ..every_hit(&machine, &rings, dropped) };
        let code = built(&mut arena, &traced, kind, 0, &back());
        assert_kept(&format!("{kind:?} {site:?}"), code, &site, &mut random);
        reader.take(|_, _, _| ());
        let before = now();
        let mut hit = || {
            let mut state = random.state();
            // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
            unsafe { tl_run(code, &mut state) };
            let mut seen = Vec::new();
            reader.take(|_, record, _| seen.push(record));
            let [record] = seen[..] else { panic!("{seen:?}") };
            assert_eq!((record.kind, record.probe, record.tid), (kind, PROBE, tid()));
            assert!((before..=now()).contains(&record.ticks), "{record:?}");
        };
        hit();
        assert!(at_each_instruction(code, arena.next(), hit) > 10);
    }
    assert!(arena.counted(0) > 0, "the ring was full at times");
}

/// Values are what registers and copies held, in a ring that ends anywhere among them; state is kept, at an abort too.
#[test]
fn word_1_values_are_what_was_there() {
    let Some(machine) = with_rseq() else { return };
    let _one = ONE.lock();
    let mut random = Random(0x5151_1234_9876_0003);
    let floats = |arguments, is_float: bool| {
        let results = if is_float { Results::FLOAT } else { Results::default() };
        Floats { arguments, results }
    };
    let site = Liveness { red_zone_live: true, ..Liveness::default() };
    for (kind, values, (texts, ended), floats, valued) in [
        (RecordKind::Entry, 1, (0, 0), floats(0, false), false),
        (RecordKind::Entry, 6, (0, 0), floats(0, false), true),
        (RecordKind::Entry, 3, (0, 0), floats(0b101, true), true),
        (RecordKind::Entry, 0, (0b10, 0b10), floats(0, false), true),
        (RecordKind::Entry, 3, (0b101, 0b1), floats(0b10, false), true),
        (RecordKind::Entry, 3, (0b1111, 0b1110), floats(0b1, false), true),
        (RecordKind::Entry, 2, (0b1110, 0b0110), floats(0b11, false), true),
        (RecordKind::Return, 3, (0, 0), floats(0, false), true),
        (RecordKind::Return, 3, (0b1, 0b1), floats(0b1, false), false),
        (RecordKind::Return, 3, (0, 0), floats(0b1, true), true),
        (RecordKind::Tail, 3, (0, 0), floats(0, false), true),
    ] {
        if floats != Floats::default() && !sets_vectors() {
            continue;
        }
        let mut arena = Arena::new();
        let plain = compact(&arena, 8 * 128);
        // Room for the longest hit, and the ring's end among its values.
        let rings = Rings { area: RingArea { most: 45 * WORD, ..plain.area }, ..plain };
        let dropped = arena.word(0);
        let text = *b"a text that is longer than those sixty-four bytes that a record has..";
        let short = *b"a short one\0, and what is behind its end, which no record has, and more than 64";
        let traced = Traced { site, texts, ended, floats, valued, ..every_hit(&machine, &rings, dropped) };
        let code = built(&mut arena, &traced, kind, values, &back());
        assert_kept(&format!("{kind:?} {values} {texts} {floats:?}"), code, &site, &mut random);
        let fixed = values as u16 + floats.arguments.count_ones() as u16;
        let behind = Behind { fixed, texts: texts.count_ones() as u8 };
        let mut reader = Reader { values: behind, ..Reader::new(&rings) };
        reader.take(|_, _, _| ());
        let lost = arena.counted(0);
        let mut hit = || {
            let mut before = random.state();
            // Arguments 0, 1 and 3 lead to a text, and argument 2 nowhere.
            (before.regs[7], before.regs[2]) = (text.as_ptr() as u64, 0x10);
            (before.regs[6], before.regs[1]) = (short.as_ptr() as u64, short.as_ptr() as u64);
            let mut after = before.clone();
            // SAFETY: as in `assert_kept`: the code runs from tl_run's loaded state to tl_back.
            unsafe { tl_run(code, &mut after) };
            let mut seen = Vec::new();
            reader.take(|_, record, values| seen.push((record, values.to_vec())));
            let [(record, found)] = &seen[..] else { panic!("{seen:x?}") };
            let vectors = |mask: u8| {
                let of: Vec<u64> =
                    (0..8).filter(|n| mask >> n & 1 == 1).map(|n: usize| before.zmm[n][0]).collect();
                of
            };
            let expected = match kind {
                RecordKind::Entry => {
                    let registers = [7, 6, 2, 1, 8, 9][..values].iter();
                    let mut all: Vec<u64> = registers.map(|&nth: &usize| before.regs[nth]).collect();
                    all.extend(vectors(floats.arguments));
                    let mut rest = &found[all.len().min(found.len())..];
                    for nth in (0..4).filter(|nth| texts >> nth & 1 == 1) {
                        // Of a text that cannot be read, the bytes mean nothing.
                        let (first, bytes): (u8, &[u8]) = match nth {
                            0 => (64, &text[..64]),
                            2 => (0x80, &[]),
                            _ if ended >> nth & 1 == 1 => (11, &short[..11]),
                            _ => (64, &short[..64]),
                        };
                        let (of, behind) = rest.split_at(text_words(first));
                        let there: Vec<u8> = of.iter().flat_map(|word| word.to_le_bytes()).collect();
                        assert_eq!((there[0], &there[1..=bytes.len()]), (first, bytes), "text {nth}");
                        rest = behind;
                    }
                    assert!(rest.is_empty(), "{rest:x?}");
                    all.extend(&found[all.len()..]);
                    all
                }
                RecordKind::Return if !valued => vec![],
                RecordKind::Return if floats.results == Results::FLOAT => vectors(1),
                RecordKind::Return => vec![before.regs[0]],
                RecordKind::Tail => vec![],
            };
            assert_eq!((record.kind, record.probe, found), (kind, PROBE, &expected));
        };
        (0..100).for_each(|_| hit());
        if texts == 0 || texts == 0b10 {
            assert!(at_each_instruction(code, arena.next(), hit) > 10);
        }
        assert_eq!(arena.counted(0), lost, "{kind:?} {values}");
    }
}

/// A handler that hits in the reader's own thread would wait for itself. A tracer is another process.
fn block_signals() {
    // SAFETY: the calls change this thread's mask alone.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, core::ptr::null_mut()), 0);
    }
}

/// Eight threads that migrate, a timer's handler that hits too, and a reader that takes what it can of small rings. Gives
/// records, hits that were dropped, and the longest time in ticks from one beat of the reader to the next.
fn every_hit_is_one_or_the_other(arena: &mut Arena, rings: &Rings) -> (u64, u64, u64) {
    let machine = machines().pop().expect("one");
    let dropped = arena.word(0);
    let traced = every_hit(&machine, rings, dropped);
    let code = built(arena, &traced, RecordKind::Entry, 0, &[0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    let over = AtomicBool::new(false);
    let beats = rings.waits.map(|waits| waits.beat);
    let ((records, longest), handled) = std::thread::scope(|scope| {
        let over = &over;
        let reading = scope.spawn(move || {
            block_signals();
            let (mut reader, mut records, mut last) = (Reader::new(rings), HashMap::new(), HashMap::new());
            let (mut longest, mut before) = (0, beats.map_or_else(now, |at| word(at).load(Ordering::SeqCst)));
            loop {
                let ends = over.load(Ordering::Acquire);
                let beat = now();
                (longest, before) = (longest.max(beat.saturating_sub(before)), beat);
                if let Some(at) = beats {
                    word(at).store(beat, Ordering::SeqCst);
                }
                reader.take(|ring, record, _| {
                    *records.entry(record.tid).or_insert(0) += 1;
                    let before = last.insert(ring, record.ticks).unwrap_or(0);
                    assert!(record.ticks >= before, "times in a ring do not fall");
                });
                if ends {
                    return (records, longest);
                }
            }
        });
        let handled =
            storm(code, || everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n + 2), n + 2))));
        over.store(true, Ordering::Release);
        (reading.join().expect("the reader"), handled)
    });
    let lost = arena.counted(0);
    let sum: u64 = records.values().sum();
    println!("{sum} records, {lost} dropped, {handled} by the handler, {} threads", records.len());
    assert_eq!(sum + lost, 8 * CALLS + handled);
    if lost == 0 {
        let whole = records.values().filter(|many| **many >= CALLS).count();
        assert_eq!(whole, 8, "each thread's calls are its own: {records:?}");
    }
    (sum, lost, longest)
}

#[test]
fn loss_2_every_hit_is_a_word_or_counted() {
    if with_rseq().is_none() {
        return;
    }
    let mut arena = Arena::new();
    let rings = compact(&arena, 8 * 256);
    let (records, _, _) = every_hit_is_one_or_the_other(&mut arena, &rings);
    assert!(records >= 128);
}

/// Words for `MAY_WAIT` and `BEAT`, behind the rings.
fn waits(rings: &Rings, ticks: u64) -> Waits {
    let behind = rings.base + rings.area.len();
    Waits { may_wait: behind, beat: behind + 8, ticks }
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: a word of an arena, which stays mapped as long as the test.
    unsafe { &*(at as *const AtomicU64) }
}

#[test]
fn wait_1_with_a_reader_that_lives_every_hit_is_a_word() {
    if with_rseq().is_none() {
        return;
    }
    let mut arena = Arena::new();
    let plain = compact(&arena, 8 * 256);
    let ticks = 20_000_000_000;
    let waits = waits(&plain, ticks);
    word(waits.beat).store(now(), Ordering::SeqCst);
    word(waits.may_wait).store(1, Ordering::SeqCst);
    let rings = Rings { waits: Some(waits), ..plain };
    let (_, lost, longest) = every_hit_is_one_or_the_other(&mut arena, &rings);
    let may_wait = word(waits.may_wait).load(Ordering::SeqCst);
    // A machine that stands still for longer than the bound looks like a reader that died.
    assert!(
        (lost, may_wait) == (0, 1) || longest >= ticks,
        "{lost} lost, {may_wait}, {longest} ticks between beats"
    );
}

/// No reader: the thread waits as long as the bound, sets `MAY_WAIT` to 0, and no hit waits any more.
#[test]
fn wait_2_without_a_reader_a_thread_waits_once() {
    let Some(machine) = with_rseq() else { return };
    let mut arena = Arena::new();
    let plain = compact(&arena, 16);
    let ticks = 300_000_000;
    let waits = waits(&plain, ticks);
    word(waits.may_wait).store(1, Ordering::SeqCst);
    let rings = Rings { waits: Some(waits), ..plain };
    let traced = every_hit(&machine, &rings, arena.word(0));
    let code = built(&mut arena, &traced, RecordKind::Entry, 0, &[0x48, 0x89, 0xF8, 0xC3]);
    let begun = now();
    word(waits.beat).store(begun, Ordering::SeqCst);
    // A thread may move, so each CPU's ring is filled.
    let calls = u64::from(LINES) * 2 + 1000;
    (0..calls).for_each(|n| assert_eq!(call(code, n), n));
    let took = now() - begun;
    assert!(took >= ticks, "{took}");
    assert_eq!(word(waits.may_wait).load(Ordering::SeqCst), 0);
    let waited = (0..rings.area.rings).filter(|ring| view(&rings).get(rings.area.ring(*ring) + WAITERS) == 1);
    assert!(waited.count() > 0);
    let mut records = 0;
    Reader::new(&rings).take(|_, _, _| records += 1);
    assert_eq!(records + arena.counted(0), calls);
    let begun = now();
    assert_eq!(call(code, 7), 7);
    assert!(now() - begun < ticks / 2);
    assert!(matches!(rings.id, ThreadId::At(_)) && RingArea::is_compact(&rings.area));
}
