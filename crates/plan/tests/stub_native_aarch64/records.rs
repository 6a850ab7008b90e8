//! Stubs that write records, executed: LOSS-2 and SAFE-2, as far as this machine goes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::aarch64::stub::{Code as _, Filtered, Machine, Rings, Rseq, Traced, trace};
use trapline_plan::filter::TargetFilter;
use trapline_plan::{Floats, Stacks, ThreadId, Unwind};
use trapline_record::addr::Bias;
use trapline_record::ring::{HEAD, LOCKED, Record, RecordKind, RingArea, TRIES};
use trapline_record::view::View;

use super::{
    ADD, AREA, CodeMemory, DATA, LEN, LINES, RET, by_hand, call, changes, registered, storm, thread_pointer,
};

pub(crate) const PROBE: u32 = 5;
/// Offset of the rings in a room's data.
const RINGS: u64 = 64 << 10;
pub(crate) const FILTER: u64 = 4096;

thread_local! {
    /// The thread's number, stored as a C library would store it.
    static NUMBER: AtomicU64 = const { AtomicU64::new(0) };
}

pub(crate) fn kept() -> ThreadId {
    let at = NUMBER.with(|number| {
        number.store(u64::from(tid()) | 7 << 32, Ordering::Relaxed);
        std::ptr::from_ref(number) as u64
    });
    ThreadId::At(at.wrapping_sub(thread_pointer()).cast_signed() as i32)
}

fn tid() -> u32 {
    // SAFETY: the call has no arguments.
    unsafe { libc::gettid() }.cast_unsigned()
}

pub(crate) fn on_cpu(cpu: u32) {
    AREA.with(|area| area.cpu[1].store(cpu, Ordering::Relaxed));
}

/// Machines with a CPU's line: only those have rings.
pub(crate) fn machines(rseq: fn() -> Option<Rseq>) -> Vec<Machine> {
    super::machines(rseq).into_iter().filter(|machine| machine.lines > 1).collect()
}

/// Code, rings, and their reader.
pub(crate) struct Bench {
    pub(crate) room: CodeMemory,
    pub(crate) machine: Machine,
    pub(crate) rings: Rings,
    pub(crate) tails: Vec<u64>,
}

impl Bench {
    pub(crate) fn new(machine: Machine, bytes: u32, slot: u32, id: ThreadId) -> Self {
        let room = CodeMemory::new();
        let cpus = machine.lines.saturating_sub(1);
        let rings = if machine.rseq.is_some() { cpus } else { RingArea::shared(cpus) };
        let area = RingArea { off: 0, rings, slot, most: slot, bytes };
        assert!(DATA + RINGS + area.len() <= LEN as u64, "{area:?}");
        let rings = Rings { area, base: room.base + DATA + RINGS, id, stacks: Stacks::default() };
        Self { room, machine, rings, tails: vec![0; rings.area.rings as usize] }
    }
    pub(crate) fn traced(&self, unwind: Unwind) -> Traced<'_> {
        let (machine, rings, dropped) = (&self.machine, &self.rings, self.room.base + DATA);
        Traced {
            machine,
            rings,
            probe: PROBE,
            dropped,
            filter: None,
            marks: None,
            texts: 0,
            ended: 0,
            floats: Floats::default(),
            valued: false,
            fields: &[],
            unwind,
            at_entry: true,
            goroutine: false,
            bias: Bias::default(),
        }
    }
    fn words(&self, kind: RecordKind, values: usize, rest: &[u32]) -> Vec<u32> {
        let pending = trace(self.room.next(), self.traced(Unwind::None), kind, values);
        pending.finish(rest, None).expect("in reach")
    }
    pub(crate) fn code(&self, kind: RecordKind, values: usize, rest: &[u32]) -> u64 {
        self.room.put(&self.words(kind, values, rest))
    }
    /// A function of two arguments behind a filter, which then does `rest`.
    pub(crate) fn passing(&self, filter: &TargetFilter, rest: &[u32]) -> u64 {
        let words = self.room.base + DATA + FILTER;
        let traced =
            Traced { filter: Some(Filtered { filter, words, names: None }), ..self.traced(Unwind::None) };
        let pending = trace(self.room.next(), traced, RecordKind::Entry, 2);
        self.room.put(&pending.finish(rest, None).expect("in reach"))
    }
    /// Hits that did not pass.
    pub(crate) fn filtered(&self) -> u64 {
        let of = |line| self.room.word(FILTER / 64 + line).load(Ordering::Relaxed);
        (0..self.machine.lines.into()).map(of).sum()
    }
    pub(crate) fn view(&self) -> View<'_> {
        view(self.rings)
    }
    pub(crate) fn take(&mut self) -> Vec<Record> {
        let Self { rings, tails, .. } = self;
        take(*rings, tails)
    }
    pub(crate) fn dropped(&self) -> u64 {
        self.room.counts().iter().sum()
    }
}

pub(crate) fn view<'a>(rings: Rings) -> View<'a> {
    // SAFETY: words of a room, which stay mapped meanwhile and are stored to as a whole.
    View::new(unsafe {
        std::slice::from_raw_parts(rings.base as *const AtomicU64, (rings.area.len() / 8) as usize)
    })
}

pub(crate) fn take(rings: Rings, tails: &mut [u64]) -> Vec<Record> {
    let mut all = Vec::new();
    for (ring, tail) in (0..).zip(tails) {
        rings.area.take(view(rings), ring, tail, |record| all.push(*record)).expect("a head that can be");
    }
    all
}

fn ticks() -> u64 {
    let now: u64;
    // SAFETY: the instruction reads a register.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) now) };
    now
}

#[test]
fn records_hold_what_was_there_and_state_is_kept() {
    for machine in machines(by_hand) {
        for id in [kept(), ThreadId::Call, ThreadId::Unknown] {
            for (kind, values, slot) in [
                (RecordKind::Entry, 0, 64),
                (RecordKind::Entry, 5, 64),
                (RecordKind::Entry, 6, 128),
                (RecordKind::Return, 6, 64),
                (RecordKind::Tail, 6, 64),
            ] {
                on_cpu(2);
                // Two records have room, and each is taken at once.
                let mut bench = Bench::new(machine, 2 * slot, slot, id);
                let code = bench.code(kind, values, &[RET]);
                for flags in 0..16_u64 {
                    let start = ticks();
                    let (before, after) = changes(code, flags);
                    let what = format!("{machine:?} {id:?} {kind:?} {values}");
                    assert_eq!(after, before, "{what}");
                    let [record] = bench.take()[..] else { panic!("one: {what}") };
                    let expected = match kind {
                        RecordKind::Entry => &before[..values],
                        RecordKind::Return => &before[..1],
                        RecordKind::Tail => &[],
                    };
                    assert_eq!((record.kind, record.probe), (kind, PROBE), "{what}");
                    assert_eq!(&record.values[..expected.len()], expected, "{what}");
                    assert!((start..=ticks()).contains(&record.ticks), "{what}");
                    // A local variable of this thread lies a little above.
                    let here = (&raw const record) as u64;
                    assert!(record.sp % 16 == 0 && here.wrapping_sub(record.sp) < 1 << 16, "{what}");
                    // No system call finds the number: see `Rings::id`.
                    let named = matches!(id, ThreadId::At(_));
                    assert_eq!(record.tid, if named { tid() } else { 0 }, "{what}");
                }
                assert_eq!(bench.dropped(), 0);
            }
        }
    }
}

#[test]
fn state_is_kept_where_nothing_is_written() {
    for machine in machines(by_hand) {
        for (cpu, id) in [(2, kept()), (2, ThreadId::Call), (u32::MAX, kept()), (4000, ThreadId::Call)] {
            on_cpu(cpu);
            let mut bench = Bench::new(machine, 128, 64, id);
            let code = bench.code(RecordKind::Entry, 5, &[RET]);
            let rounds = 16;
            for flags in 0..rounds {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?} {cpu}");
            }
            let written = bench.take().len() as u64;
            assert_eq!(bench.dropped(), rounds - written);
            if machine.rseq.is_some() {
                // Two records have room. On a CPU without a ring, or without an area, none has.
                assert_eq!(written, if cpu == 2 { 2 } else { 0 }, "{machine:?} {cpu}");
                let line = if cpu == 2 { 2 } else { 8 };
                assert_eq!(bench.room.counts()[line], rounds - written, "{machine:?} {cpu}");
            } else {
                // When the ring is full, no more is written.
                assert_eq!(written, 2, "{machine:?}");
            }
        }
    }
}

/// A call's two records have the same stack pointer, by which readers pair them.
#[test]
fn an_entry_and_its_return_name_one_stack_pointer() {
    for machine in machines(by_hand) {
        on_cpu(1);
        let mut bench = Bench::new(machine, 64 * 64, 64, kept());
        let exit = bench.code(RecordKind::Return, 0, &[RET]);
        let pending = trace(bench.room.next(), bench.traced(Unwind::None), RecordKind::Entry, 2);
        let entry = bench.room.put(&pending.finish(&[ADD], Some(exit)).expect("in reach"));
        assert_eq!(call(entry, 30, 12), 42);
        let [first, last] = bench.take()[..] else { panic!("two") };
        assert_eq!((first.kind, last.kind), (RecordKind::Entry, RecordKind::Return));
        assert_eq!((&first.values[..2], last.values[0]), (&[30, 12][..], 42));
        assert_eq!((first.sp, first.tid), (last.sp, last.tid));
        assert!(first.ticks <= last.ticks);
    }
}

#[test]
fn each_cpu_has_its_ring() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_some()) {
        let mut bench = Bench::new(machine, 64 * 64, 64, kept());
        let code = bench.code(RecordKind::Entry, 1, &[ADD, RET]);
        for cpu in 0..LINES - 1 {
            on_cpu(cpu);
            (0..=cpu).for_each(|n| assert_eq!(call(code, n.into(), 1), u64::from(n) + 1));
            let head = bench.view().get(bench.rings.area.ring(cpu) + HEAD);
            assert_eq!(head, 64 * u64::from(cpu + 1));
            assert_eq!(AREA.with(|area| area.section.load(Ordering::Relaxed)), 0, "cleared");
        }
        assert_eq!(bench.take().len(), 36);
        assert_eq!(bench.dropped(), 0);
    }
}

/// The committing word leads back to the abort handler twice, as the kernel does when it moves a thread. Then
/// it commits.
#[test]
fn what_is_broken_off_before_its_last_word_is_written_once() {
    const TURNS: u64 = 3;
    for (kind, unwind) in [
        (RecordKind::Entry, Unwind::None),
        (RecordKind::Return, Unwind::None),
        (RecordKind::Entry, Unwind::Frames(3)),
        (RecordKind::Entry, Unwind::Copy(256)),
    ] {
        on_cpu(3);
        let machine = Machine { rseq: by_hand(), lse: false, lines: LINES };
        let mut bench = Bench::new(machine, 64 * 64, 64, kept());
        bench.rings.area.most = 256;
        let pending = trace(bench.room.next(), bench.traced(unwind), kind, 2);
        let words = pending.finish(&[ADD, RET], None).expect("in reach");
        let (code, counter) = broken_off(&bench.room, words, TURNS);
        assert_eq!(call(code, 40, 2), 42, "{kind:?} {unwind:?}");
        assert_eq!(counter.load(Ordering::Relaxed), 0, "it was broken off");
        let [record] = bench.take()[..] else { panic!("one: {kind:?} {unwind:?}") };
        assert_eq!((record.kind, bench.dropped()), (kind, 0));
        if unwind == Unwind::None {
            assert_eq!(record.values[0], 40);
        }
    }
}

/// Makes code for a room's next place. Its first section is aborted before its last word, `turns` less one
/// times. Also returns the word that counts these down.
pub(crate) fn broken_off(room: &CodeMemory, words: Vec<u32>, turns: u64) -> (u64, &AtomicU64) {
    // stlr x17, [x14]
    broken_off_at(room, words, 0xC89F_FDD1, turns)
}

/// The same with `store` as the last word; x11 and x16 must be free.
pub(crate) fn broken_off_at(
    room: &CodeMemory,
    mut words: Vec<u32>,
    store: u32,
    turns: u64,
) -> (u64, &AtomicU64) {
    let code = room.next();
    let double = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let signature = words.iter().position(|word| *word == 0xD428_BC00).expect("a signature");
    let abort = code + 4 * (signature as u64 + 1);
    let is_descriptor = |at: &usize| double(*at) == 0 && double(*at + 6) == abort;
    let descriptor = (0..words.len() - 7).step_by(2).find(is_descriptor).expect("a descriptor");
    assert!((code + 4 * descriptor as u64).is_multiple_of(32));
    let end = double(descriptor + 2) + double(descriptor + 4);
    let last = ((end - code) / 4 - 1) as usize;
    assert_eq!(words[last], store);
    // ldr x16, +32; ldr x11, [x16]; sub x11, x11, #1; str x11, [x16]; cbz x11, +8; b abort; the store; b end.
    let at = code + 4 * words.len() as u64;
    assert_eq!(room.base % 4096, 0);
    let there = at.next_multiple_of(64);
    words[last] = encode::b(end - 4, there).expect("near");
    let code = room.put(&words);
    let counter = room.base + DATA + 8192;
    let detour = [
        0x5800_0110,
        0xF940_020B,
        0xD100_056B,
        0xF900_020B,
        0xB400_004B,
        encode::b(there + 20, abort).expect("near"),
        store,
        encode::b(there + 28, end).expect("near"),
        counter as u32,
        (counter >> 32) as u32,
    ];
    assert_eq!(room.put(&detour), there);
    // SAFETY: a word of the room's data that nothing else uses.
    let counter = unsafe { &*(counter as *const AtomicU64) };
    counter.store(turns, Ordering::Relaxed);
    (code, counter)
}

/// L1: a ring that another thread has locked is passed over. If all are locked, the hit is dropped.
#[test]
fn a_ring_that_is_taken_is_passed_over() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_none()) {
        let mut bench = Bench::new(machine, 64 * 64, 64, kept());
        let code = bench.code(RecordKind::Entry, 1, &[ADD, RET]);
        let rings = bench.rings;
        let head = |ring| rings.area.ring(ring) + HEAD;
        let lock = |ring| view(rings).set(head(ring), view(rings).get(head(ring)) | LOCKED);
        let written = || -> Vec<u64> { (0..rings.area.rings).map(|n| view(rings).get(head(n))).collect() };
        assert_eq!(call(code, 1, 1), 2);
        let first = written().iter().position(|&head| head != 0).expect("one was written to") as u32;
        assert!(first.is_multiple_of(2), "{first}");
        for tries in 1..TRIES {
            assert!(lock(first + tries - 1));
            assert_eq!(call(code, 2, 1), 3);
            assert_eq!(view(rings).get(head(first + tries)), 64, "the next one that is free");
        }
        assert_eq!(bench.dropped(), 0);
        assert!(lock(first + TRIES - 1));
        assert_eq!(call(code, 3, 1), 4);
        assert_eq!(bench.dropped(), 1, "none is left");
        assert_eq!(bench.take().len(), TRIES as usize);
        assert_eq!(written().iter().sum::<u64>(), u64::from(TRIES) * (64 + LOCKED), "nothing was unlocked");
    }
}

/// Threads that migrate and are interrupted, with handlers that hit too, and a reader that takes what it can
/// of small rings.
#[test]
fn every_hit_is_a_record_or_counted() {
    for machine in machines(registered) {
        let bench = Bench::new(machine, 64 * 64, 64, ThreadId::Unknown);
        let (code, rings, over) =
            (bench.code(RecordKind::Entry, 2, &[ADD, RET]), bench.rings, AtomicBool::new(false));
        let over = &over;
        let (hits, records) = std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let (mut tails, mut records) = (vec![0; rings.area.rings as usize], 0);
                loop {
                    let ends = over.load(Ordering::Acquire);
                    let batch = take(rings, &mut tails);
                    records += batch.len() as u64;
                    for record in batch {
                        assert_eq!((record.probe, record.kind), (PROBE, RecordKind::Entry));
                        // A call of the storm, or of its handler.
                        assert!([1, 2].contains(&record.values[1]), "{record:?}");
                    }
                    if ends {
                        return records;
                    }
                    std::thread::yield_now();
                }
            });
            let (called, handled) = storm(code);
            over.store(true, Ordering::Release);
            (called + handled, reading.join().expect("the reader"))
        });
        println!("{machine:?}: {records} records, {} dropped", bench.dropped());
        assert_eq!(records + bench.dropped(), hits, "{machine:?}");
        assert!(records >= 64, "one ring's fill is written whatever the reader does");
    }
}
