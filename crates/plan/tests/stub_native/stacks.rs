//! STK-1 and SAFE-2 for stacks in records: what is written is what was there, whatever rbp is, and no state
//! is disturbed.

use std::cell::Cell;

use trapline_plan::x86_64::stub::{Liveness, Machine, Rings, Traced};
use trapline_plan::{Stacks, Unwind};
use trapline_record::ring::{HEAD, LEAST_SLOT, Record, RecordKind, TAIL};
use trapline_record::stack::{FIRST, Stack, room_for_copy, room_for_frames};
use trapline_record::trampolines::{Trampolines, at};

use crate::aborted::at_each_instruction;
use crate::arena::{Arena, machines, thread_pointer};
use crate::records::{PROBE, built, every_hit, rings_for, view, with_rseq};
use crate::state::{ONE, Random, assert_kept, back, tl_run};

const FRAMES: u8 = 10;
/// Number of rbp in `State::regs`.
const RBP: usize = 5;
/// Most bytes of a ring, so that the rings of all CPUs fit into an arena.
const RING: u32 = 128 << 10;
/// Words of the frames that the test makes up, on its own stack above the stub's.
const WORDS: usize = 64;

/// The records in all rings, with their words behind the head.
fn taken(rings: &Rings, tails: &mut [u64]) -> Vec<(Record, Vec<u64>)> {
    let mut all = Vec::new();
    for (ring, tail) in (0..).zip(tails) {
        let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
            let words = Stack::new(record, u64::from(rings.area.most) / 8).words;
            all.push((*record, (0..words).map(|n| word(FIRST + n)).collect()));
        };
        rings.area.take_words(view(rings), ring, tail, each).expect("a head that can be");
    }
    all
}

struct Bench {
    machine: Machine,
    arena: Arena,
    rings: Rings,
    tails: Vec<u64>,
    random: Random,
    trampolines: Option<Trampolines>,
}

impl Bench {
    fn new(stacks: Stacks, unwind: Unwind) -> Self {
        Self::of(with_rseq().expect("looked for before"), stacks, unwind)
    }
    fn of(machine: Machine, stacks: Stacks, unwind: Unwind) -> Self {
        let arena = Arena::new();
        let most =
            if let Unwind::Copy(bytes) = unwind { room_for_copy(bytes) } else { room_for_frames(FRAMES) };
        let mut rings = Rings { stacks, ..rings_for(&arena, &machine, (256 * most).min(RING), LEAST_SLOT) };
        rings.area.most = most;
        let tails = vec![0; rings.area.rings as usize];
        Self { machine, arena, rings, tails, random: Random(0x57ac_0001_4321_9876), trampolines: None }
    }
    fn code(&mut self, unwind: Unwind, site: Liveness, at_entry: bool) -> u64 {
        let traced = Traced {
            site,
            unwind,
            at_entry,
            trampolines: self.trampolines,
            ..every_hit(&self.machine, &self.rings, self.arena.word(0))
        };
        built(&mut self.arena, &traced, RecordKind::Entry, 6, &back())
    }
    /// One hit with this frame pointer. Returns its record, and the words behind it.
    // Never inlined, so that each hit of one function is at the same depth of the stack.
    #[inline(never)]
    fn hit(&mut self, code: u64, rbp: u64) -> (Record, Vec<u64>) {
        let mut state = self.random.state();
        state.regs[RBP] = rbp;
        // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
        // time.
        unsafe { tl_run(code, &mut state) };
        assert_eq!(state.regs[RBP], rbp);
        let mut seen = taken(&self.rings, &mut self.tails);
        assert_eq!(seen.len(), 1);
        seen.remove(0)
    }
}

fn sites() -> impl Iterator<Item = Liveness> {
    (0..4).map(|n| Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 })
}

/// Frames on the test's own stack; the stack "ends" behind them.
#[test]
fn a_walk_follows_frames_and_nothing_else() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    let mut frames = [0_u64; WORDS];
    let at = frames.as_mut_ptr() as u64;
    let end = at + WORDS as u64 * 8;
    // Three frames: a chain that ends with 0, one that goes round, and one that ends with the stack's last
    // words.
    for (n, next, back) in
        [(0, at + 80, 1), (10, at + 160, 2), (20, 0, 3), (30, at + 240, 4), (WORDS - 2, 7, 5)]
    {
        frames[n] = next;
        frames[n + 1] = back;
    }
    std::hint::black_box(&mut frames);
    let stacks = Stacks { main: (at - (64 << 10), end), ..Stacks::default() };
    let mut bench = Bench::new(stacks, Unwind::Frames(FRAMES));
    for site in sites() {
        for at_entry in [false, true] {
            let code = bench.code(Unwind::Frames(FRAMES), site, at_entry);
            assert_kept(&format!("{site:?}"), code, &site, &mut bench.random);
            taken(&bench.rings, &mut bench.tails);
            let room = usize::from(FRAMES) - usize::from(at_entry);
            let cases: [(u64, Vec<u64>, u64); 12] = [
                (at, vec![1, 2, 3], 0),
                (at + 80, vec![2, 3], 0),
                (at + 240, vec![4; room], at + 240),
                (end - 16, vec![5], 7),
                (end - 15, vec![], end - 15),
                (end - 8, vec![], end - 8),
                (end, vec![], end),
                (end + 4096, vec![], end + 4096),
                (0, vec![], 0),
                (1, vec![], 1),
                (u64::MAX, vec![], u64::MAX),
                (u64::MAX - 15, vec![], u64::MAX - 15),
            ];
            for (rbp, expected, last) in cases {
                let (record, words) = bench.hit(code, rbp);
                let stack = Stack::new(&record, 1024);
                assert_eq!(words[usize::from(at_entry)..], expected, "{rbp:#x} {at_entry}");
                assert_eq!((stack.frame, stack.bounded), (last, true), "{rbp:#x}");
                assert!(stack.end.abs_diff(end) < 2 && record.sp < at, "{stack:?}");
                assert_eq!(stack.is_cut(FRAMES), expected.len() == room, "{rbp:#x}");
                // The program keeps nothing below the stack pointer.
                let (_, words) = bench.hit(code, record.sp - 8);
                assert_eq!(words.len(), usize::from(at_entry));
            }
        }
    }
}

/// STK-2: a return trampoline's address is reported as the address that it stands for, through trampolines
/// under it. An address beside them is reported as it is.
#[test]
fn a_return_trampoline_is_reported_as_what_it_stands_for() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    const COUNT: u32 = 64;
    let mut table = vec![0_u64; 2 * 4096];
    let trampolines = Trampolines { code: 0x7123_4560_0000, table: table.as_ptr() as u64, count: COUNT };
    let mut stands_for = |slot: u32, real: u64| {
        table[((trampolines.entry(slot) - trampolines.table + at::REAL) / 8) as usize] = real;
    };
    stands_for(3, 77);
    stands_for(5, trampolines.address(3));
    stands_for(COUNT - 1, 78);
    let words = [
        (trampolines.address(3), 77),
        (trampolines.address(5), 77),
        (trampolines.address(COUNT - 1), 78),
        (trampolines.code - 1, trampolines.code - 1),
        (trampolines.code + trampolines.code_len(), trampolines.code + trampolines.code_len()),
        (4, 4),
    ];
    let mut frames = [0_u64; WORDS];
    let at = frames.as_mut_ptr() as u64;
    for (n, (word, _)) in words.iter().enumerate() {
        frames[2 * n] = if n + 1 < words.len() { at + 16 * (n as u64 + 1) } else { 0 };
        frames[2 * n + 1] = *word;
    }
    std::hint::black_box((&mut frames, &mut table));
    let wanted: Vec<u64> = words.iter().map(|&(_, real)| real).collect();
    let stacks = Stacks { main: (at - (64 << 10), at + WORDS as u64 * 8), ..Stacks::default() };
    for unwind in [Unwind::Frames(FRAMES), Unwind::Copy(65536)] {
        let mut bench = Bench { trampolines: Some(trampolines), ..Bench::new(stacks, unwind) };
        for site in sites() {
            let code = bench.code(unwind, site, false);
            assert_kept(&format!("{site:?}"), code, &site, &mut bench.random);
            taken(&bench.rings, &mut bench.tails);
            let (record, recorded) = bench.hit(code, at);
            match unwind {
                Unwind::Copy(_) => {
                    let first = ((at - record.sp) / 8) as usize;
                    let recorded: Vec<u64> =
                        recorded[first..].iter().skip(1).step_by(2).take(words.len()).copied().collect();
                    assert_eq!(recorded, wanted);
                }
                _ => assert_eq!(recorded, wanted),
            }
        }
    }
}

/// A locked ring holds the same.
#[test]
fn a_walk_is_the_same_without_rseq() {
    let _one = ONE.lock();
    let mut frames = [0_u64; WORDS];
    let at = frames.as_mut_ptr() as u64;
    (frames[0], frames[1], frames[10], frames[11]) = (at + 80, 1, 0, 2);
    std::hint::black_box(&mut frames);
    let stacks = Stacks { main: (at - (64 << 10), at + WORDS as u64 * 8), ..Stacks::default() };
    for unwind in [Unwind::Frames(FRAMES), Unwind::Copy(256)] {
        let mut bench = Bench::of(machines()[0], stacks, unwind);
        for site in sites() {
            let code = bench.code(unwind, site, false);
            assert_kept(&format!("{unwind:?} {site:?}"), code, &site, &mut bench.random);
            taken(&bench.rings, &mut bench.tails);
            let (record, words) = bench.hit(code, at);
            match unwind {
                Unwind::Copy(bytes) => {
                    let there = (stacks.main.1 - record.sp) / 8;
                    assert_eq!(words.len() as u64, there.min(u64::from(bytes) / 8 - FIRST));
                }
                _ => assert_eq!(words, [1, 2]),
            }
        }
    }
}

/// Records of different lengths in small rings. Each is whole, also across the ring's end, and those without
/// room are counted as dropped.
#[test]
fn records_take_what_they_need() {
    let _one = ONE.lock();
    machines().iter().for_each(records_take_what_one_needs);
}

fn records_take_what_one_needs(machine: &Machine) {
    const DEEP: usize = FRAMES as usize;
    let mut frames = [0_u64; 2 * DEEP + 2];
    let at = frames.as_mut_ptr() as u64;
    for n in 0..DEEP {
        (frames[2 * n], frames[2 * n + 1]) = (at + 16 * (n as u64 + 1), 100 + n as u64);
    }
    frames[2 * DEEP - 2] = 0;
    std::hint::black_box(&mut frames);
    let stacks = Stacks { main: (at - (64 << 10), at + 16 * DEEP as u64), ..Stacks::default() };
    let mut bench = Bench::of(*machine, stacks, Unwind::Frames(FRAMES));
    bench.rings.area.bytes = 512;
    let code = bench.code(Unwind::Frames(FRAMES), Liveness::default(), false);
    let (mut recorded, mut wanted, mut ends) = (Vec::new(), Vec::new(), 0);
    for n in 0..4000_usize {
        let from = n * 7 % (DEEP + 1);
        let mut state = bench.random.state();
        state.regs[RBP] = if from == DEEP { 0 } else { at + 16 * from as u64 };
        let dropped = bench.arena.counted(0);
        // SAFETY: as in `hit`: the code runs from tl_run's loaded state to tl_back.
        unsafe { tl_run(code, &mut state) };
        if bench.arena.counted(0) == dropped {
            wanted.push((from..DEEP).map(|n| 100 + n as u64).collect::<Vec<_>>());
        }
        if n % 5 == 0 {
            recorded.append(&mut taken(&bench.rings, &mut bench.tails));
        }
        for ring in 0..bench.rings.area.rings {
            let (view, at) = (view(&bench.rings), bench.rings.area.ring(ring));
            let (head, tail) = (view.get(at + HEAD), view.get(at + TAIL));
            assert!(head - tail <= 512, "{head} {tail}");
            ends += u64::from(tail / 512 != head / 512);
        }
    }
    recorded.append(&mut taken(&bench.rings, &mut bench.tails));
    recorded.sort_by_key(|(record, _)| record.ticks);
    let recorded: Vec<_> = recorded.into_iter().map(|(_, words)| words).collect();
    assert!(recorded == wanted, "{} of {}", recorded.len(), wanted.len());
    let dropped = bench.arena.counted(0);
    assert!(dropped > 0 && ends > 100, "{dropped} {ends}");
    assert_eq!(recorded.len() as u64 + dropped, 4000);
}

/// The stack's end is not known, or the stack pointer lies on no known stack.
#[test]
fn without_an_end_only_the_page_is_read() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    for stacks in [Stacks::default(), Stacks { main: (1 << 20, 2 << 20), ..Stacks::default() }] {
        let mut bench = Bench::new(stacks, Unwind::Frames(FRAMES));
        let code = bench.code(Unwind::Frames(FRAMES), Liveness::default(), true);
        let sp = bench.hit(code, 0).0.sp;
        let page = sp | 4095;
        for (rbp, cut) in
            [(page + 1, true), (page + 4097, true), (page - 7, true), (0, false), (sp - 16, false)]
        {
            let (record, words) = bench.hit(code, rbp);
            let stack = Stack::new(&record, 1024);
            assert_eq!(
                (words.len(), stack.bounded, stack.is_cut(FRAMES)),
                (1, false, cut),
                "{rbp:#x} {stack:?}"
            );
        }
    }
}

/// B2 and B3: bounds that a runtime stores are used.
#[test]
fn bounds_that_a_thread_keeps_are_used() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    let frames = [0_u64, 0xabc, 0, 0];
    let at = frames.as_ptr() as u64;
    let (low, end) = (at - (256 << 10), at + 32);
    let bounds = [low, end];
    let offset = |place: u64| place.wrapping_sub(thread_pointer()) as i64 as i32;
    let go = G.with(|g| {
        g.set(bounds.as_ptr() as u64);
        offset(g.as_ptr() as u64)
    });
    let block = BLOCK.with(|block| {
        block.set([low, end - low]);
        offset(block.as_ptr() as u64)
    });
    for (stacks, break_it) in [
        (Stacks { go: Some(go), ..Stacks::default() }, (|| G.set(0)) as fn()),
        (Stacks { block: Some(block), ..Stacks::default() }, || BLOCK.set([0, u64::MAX])),
    ] {
        let mut bench = Bench::new(stacks, Unwind::Frames(FRAMES));
        let code = bench.code(Unwind::Frames(FRAMES), Liveness::default(), true);
        let (record, words) = bench.hit(code, at);
        let stack = Stack::new(&record, 1024);
        assert_eq!((words.get(1), stack.end, stack.bounded), (Some(&0xabc), end, true));
        break_it();
        assert!(!Stack::new(&bench.hit(code, 0).0, 1024).bounded);
    }
}

thread_local! {
    static G: Cell<u64> = const { Cell::new(0) };
    static BLOCK: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

/// The top of the stack, up to its end, and no more than there is room for.
#[test]
fn a_copy_is_the_top_of_the_stack() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    let mut words = [0_u64; WORDS];
    (0..).zip(&mut words).for_each(|(n, word)| *word = 0xc0de_0000 + n);
    std::hint::black_box(&mut words);
    let end = words.as_ptr() as u64 + WORDS as u64 * 8;
    for (bytes, whole) in [(64 << 10, true), (256, false)] {
        let unwind = Unwind::Copy(bytes);
        let mut bench = Bench::new(Stacks { main: (end - (64 << 10), end), ..Stacks::default() }, unwind);
        for site in sites() {
            let code = bench.code(unwind, site, true);
            assert_kept(&format!("{site:?}"), code, &site, &mut bench.random);
            taken(&bench.rings, &mut bench.tails);
            let (record, copied) = bench.hit(code, 0x1234);
            assert_eq!(Stack::new(&record, 1 << 13).frame, 0x1234);
            let there = ((end - record.sp) / 8) as usize;
            let most = (bytes as usize / 8) - FIRST as usize;
            assert_eq!(copied.len(), there.min(most), "{bytes}");
            if whole {
                assert_eq!(copied[there - WORDS..], words);
            }
        }
    }
}

/// Whatever instruction of its sequence is the last one before an abort, a record holds what it holds without one.
#[test]
fn an_aborted_sequence_reads_the_stack_again_and_no_further() {
    let _one = ONE.lock();
    if with_rseq().is_none() {
        return;
    }
    let mut words = [0_u64; WORDS];
    (0..).zip(&mut words).for_each(|(n, word)| *word = 0xc0de_0000 + n);
    let at = words.as_mut_ptr() as u64;
    (words[0], words[10], words[20]) = (at + 80, at + 160, 0);
    std::hint::black_box(&mut words);
    let end = at + WORDS as u64 * 8;
    let stacks = Stacks { main: (end - (64 << 10), end), ..Stacks::default() };
    for unwind in [Unwind::Copy(64 << 10), Unwind::Copy(256), Unwind::Frames(FRAMES)] {
        let mut bench = Bench::new(stacks, unwind);
        for site in sites() {
            let code = bench.code(unwind, site, true);
            let code_end = bench.arena.next();
            let (_, usual) = bench.hit(code, at);
            let aborted = at_each_instruction(code, code_end, || {
                let (record, recorded) = bench.hit(code, at);
                let there = ((end - record.sp) / 8) as usize;
                match unwind {
                    Unwind::Copy(bytes) => {
                        assert_eq!(recorded.len(), there.min((u64::from(bytes) / 8 - FIRST) as usize));
                        if there == recorded.len() {
                            assert_eq!(recorded[there - WORDS..], words);
                        }
                    }
                    // The first one is the harness' own return address.
                    _ => assert_eq!(recorded[1..], usual[1..], "{site:?}"),
                }
                assert_eq!(record.probe, PROBE);
            });
            assert!(aborted > 20, "{aborted}");
        }
    }
}
