//! FLT-1 and LOSS-2 for filters: generated conditions decide as the language defines, on random trees and
//! numbers at the edges. Every hit is recorded, dropped or filtered. Where exits are recorded too, they are
//! those of recorded entries.

use trapline_plan::filter::{Binary, Facts, Float, Int, Known, TargetFilter, Tree, Unary, parse, registers};
use trapline_plan::x86_64::stub::filter::code_bytes;
use trapline_plan::x86_64::stub::{Filtered, Liveness, Machine, Rings, Traced, trace};
use trapline_record::ring::{Record, RecordKind};

use crate::arena::{Arena, LINES, call, get, machines, unregister};
use crate::records::{Reader, built, every_hit, rings_for};
use crate::state::{ONE, Random, assert_kept, back, sets_vectors, tl_run};

/// The counter of filtered hits; the next word is the sample's.
const FILTERED: u64 = 1;
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    63,
    0x7f,
    0x80,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

pub(crate) fn number(random: &mut Random) -> u64 {
    let word = random.next();
    if word.is_multiple_of(3) { random.next() } else { EDGES[(word >> 8) as usize % EDGES.len()] }
}

/// Bits of a float of either width, zeros, infinities and NaNs among them.
pub(crate) fn float(random: &mut Random) -> u64 {
    const BITS: [u64; 9] = [
        0x0000_0000_8000_0000,
        0x8000_0000_0000_0000,
        0x7ff0_0000_7f80_0000,
        0xfff0_0000_ff80_0000,
        0x7ff8_0000_7fc0_0000,
        0xfff8_0000_ffc0_0001,
        0x3fe0_0000_3f00_0000,
        0xbfe0_0000_bf00_0000,
        0,
    ];
    let word = random.next();
    if word.is_multiple_of(3) { random.next() } else { BITS[(word >> 8) as usize % BITS.len()] }
}

pub(crate) type Leaf = fn(&mut Random) -> Tree;

pub(crate) fn leaf(random: &mut Random) -> Tree {
    let word = random.next();
    let int = Int { bits: 8 << (word >> 8 & 3), signed: word >> 10 & 1 == 1 };
    match word % 8 {
        0 | 1 => {
            let value = number(random);
            Tree::Number(value, value >> 63 == 1 && word >> 11 & 1 == 1)
        }
        2 => Tree::Known(Known::Thread),
        3 if sets_vectors() => {
            let float = if word >> 8 & 1 == 0 { Float::Single } else { Float::Double };
            Tree::Known(Known::Float((word >> 16) as u8 % 8, float))
        }
        _ => Tree::Known(Known::Argument((word >> 16) as u8 % 6, int)),
    }
}

pub(crate) fn tree(random: &mut Random, depth: u32, leaf: Leaf) -> Tree {
    use Binary::{
        Add, And, BitAnd, BitOr, BitXor, Divide, Equal, Greater, GreaterEqual, Less, LessEqual, Multiply,
        NotEqual, Or, Remainder, ShiftLeft, ShiftRight, Subtract,
    };
    const ALL: [Binary; 18] = [
        Or,
        And,
        BitOr,
        BitXor,
        BitAnd,
        Equal,
        NotEqual,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        ShiftLeft,
        ShiftRight,
        Add,
        Subtract,
        Multiply,
        Divide,
        Remainder,
    ];
    if depth == 0 {
        return leaf(random);
    }
    let word = random.next();
    if word.is_multiple_of(5) {
        let op = [Unary::Negate, Unary::Complement, Unary::Not][(word >> 8) as usize % 3];
        return Tree::Unary(op, Box::new(tree(random, depth - 1, leaf)));
    }
    let op = ALL[(word >> 8) as usize % ALL.len()];
    let left = tree(random, depth - 1, leaf);
    let right = match op {
        ShiftLeft | ShiftRight => Tree::Number(number(random) & 63, false),
        Divide | Remainder => Tree::Number((number(random) & (u64::MAX >> 1)).max(1), false),
        _ => tree(random, (depth - 1) * u32::from(word >> 16 & 3 != 0), leaf),
    };
    Tree::Binary(op, Box::new(left), Box::new(right))
}

struct Set<'a> {
    machine: &'a Machine,
    rings: &'a Rings,
    filter: &'a TargetFilter,
}

impl<'a> Set<'a> {
    fn traced(&self, arena: &Arena, site: Liveness) -> Traced<'a> {
        let filtered = Filtered { filter: self.filter, words: arena.word(FILTERED), names: None };
        Traced { site, filter: Some(filtered), ..every_hit(self.machine, self.rings, arena.word(0)) }
    }
}

#[test]
fn conditions_decide_as_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(conditions_decide);
}

fn conditions_decide(machine: &Machine) {
    let mut random = Random(0x0f17_7e25_1234_9876);
    let (mut passed, mut rejected) = (0, 0);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..1500 {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, machine, 1 << 12, 64);
        let condition = tree(&mut random, 1 + round % 4, leaf);
        if condition.temporaries() > trapline_plan::filter::MAX_TEMPORARIES {
            continue;
        }
        let filter = TargetFilter {
            condition: Some(condition),
            sample: 1,
            tally: None,
            reads: Vec::new(),
            ..TargetFilter::default()
        };
        let condition = filter.condition.as_ref().expect("as set");
        let site = Liveness { flags_dead: round & 1 == 1, dead: 0, red_zone_live: round & 2 == 2 };
        let traced = Set { machine, rings: &rings, filter: &filter }.traced(&arena, site);
        let code = built(&mut arena, &traced, RecordKind::Entry, 5, &back());
        let (mut plain, mut with) = (Vec::new(), Vec::new());
        let all = Traced { filter: None, ..traced };
        trace(&mut plain, arena.next(), &all, RecordKind::Entry, 5).finish(&mut plain, None).expect("code");
        trace(&mut with, arena.next(), &traced, RecordKind::Entry, 5).finish(&mut with, None).expect("code");
        assert!(with.len() <= plain.len() + 256 + code_bytes(&filter), "{condition:?}");
        let mut reader = Reader::new(&rings);
        for _ in 0..20 {
            let mut state = random.state();
            for reg in [7, 6, 2, 1, 8, 9] {
                state.regs[reg] = number(&mut random);
            }
            // zmm8 to zmm31 are not read.
            for vector in &mut state.zmm[..8] {
                vector[0] = float(&mut random);
            }
            let facts = Facts {
                arguments: [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]),
                floats: core::array::from_fn(|n| state.zmm[n][0]),
                tid,
                ..Facts::default()
            };
            let before = (state.regs, arena.counted(FILTERED), state.zmm);
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            let mut seen = 0;
            reader.take(|_| seen += 1);
            let holds = condition.holds(&facts).expect("all is known");
            assert_eq!(seen == 1, holds, "{condition:?} {facts:x?}");
            assert_eq!(arena.counted(FILTERED) - before.1, u64::from(!holds));
            assert_eq!((state.regs, state.zmm), (before.0, before.2), "{condition:?}");
            if holds { passed += 1 } else { rejected += 1 }
        }
        assert_kept(&format!("{condition:?} {site:?}"), code, &site, &mut random);
        arena.unmap();
    }
    assert!(passed > 2000 && rejected > 2000, "{passed} {rejected}");
}

#[test]
fn one_in_so_many_is_a_sample() {
    let _one = ONE.lock();
    machines().iter().for_each(one_in_so_many);
}

fn one_in_so_many(machine: &Machine) {
    let mut arena = Arena::new();
    let rings = rings_for(&arena, machine, 1 << 16, 64);
    let filter = TargetFilter {
        condition: None,
        sample: 3,
        tally: None,
        reads: Vec::new(),
        ..TargetFilter::default()
    };
    let traced = Set { machine, rings: &rings, filter: &filter }.traced(&arena, Liveness::default());
    let code = built(&mut arena, &traced, RecordKind::Entry, 1, &[0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    (0..300).for_each(|n| assert_eq!(call(code, n), n));
    let mut seen = 0;
    Reader::new(&rings).take(|_| seen += 1);
    assert_eq!(seen + arena.counted(FILTERED), 300);
    // One in three on each CPU that it ran on, beginning with the first hit there.
    let cpus = (0..u64::from(LINES)).filter(|line| get(arena.word(FILTERED) + line * 64) > 0).count() as u64;
    assert!((100..100 + cpus).contains(&seen), "{seen} on {cpus} CPUs");
    if machine.rseq.is_none() {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unregister();
            (0..10).for_each(|n| assert_eq!(call(code, n), n));
        });
    });
    assert_eq!(get(arena.word(0) + u64::from(LINES - 1) * 64), 10, "without an area they count as dropped");
}

/// A function that calls itself with its argument less one, until that is 0: entry stub, body, exit stub.
fn recursive(arena: &mut Arena, traced: &Traced<'_>) -> u64 {
    let exit = {
        let mut out = Vec::new();
        let pending = trace(&mut out, arena.next(), traced, RecordKind::Return, 1);
        out.push(0xC3);
        pending.finish(&mut out, None).expect("code");
        arena.put(&out)
    };
    let at = arena.next();
    let mut out = Vec::new();
    let pending = trace(&mut out, at, traced, RecordKind::Entry, 1);
    // test rdi, rdi; je +13; push rdi; sub rdi, 1; call at; pop rdi
    out.extend([0x48, 0x85, 0xFF, 0x74, 11, 0x57, 0x48, 0x83, 0xEF, 1, 0xE8]);
    let here = at + out.len() as u64 + 4;
    out.extend((at.wrapping_sub(here) as u32).to_le_bytes());
    out.push(0x5F);
    out.extend([0x48, 0x89, 0xF8]); // mov rax, rdi
    let here = at + out.len() as u64 + 5;
    out.push(0xE9);
    out.extend((exit.wrapping_sub(here) as u32).to_le_bytes());
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

fn seen(reader: &mut Reader<'_>) -> Vec<Record> {
    let mut seen = Vec::new();
    reader.take(|record| seen.push(*record));
    seen.sort_by_key(|record| record.ticks);
    seen
}

#[test]
fn exits_are_those_of_recorded_entries() {
    let _one = ONE.lock();
    // A condition that divides is decided where a record would be written, the other one in code before it.
    for machine in machines() {
        exits_are_those(&machine, "arg0 % 3 == 1", |n| n % 3 == 1);
        exits_are_those(&machine, "(arg0 & 3) == 1", |n| n & 3 == 1);
    }
}

fn exits_are_those(machine: &Machine, condition: &str, passes: fn(u64) -> bool) {
    let mut arena = Arena::new();
    let rings = rings_for(&arena, machine, 1 << 16, 64);
    let names = registers();
    let filter = TargetFilter {
        condition: Some(parse(condition, &names).expect("reads")),
        sample: 1,
        tally: None,
        reads: Vec::new(),
        ..TargetFilter::default()
    };
    let traced = Set { machine, rings: &rings, filter: &filter }.traced(&arena, Liveness::default());
    let traced = Traced { marks: Some(arena.latency()), ..traced };
    let code = recursive(&mut arena, &traced);
    let mut reader = Reader::new(&rings);
    for depth in [0_u64, 1, 7, 20] {
        let before = arena.counted(FILTERED);
        assert_eq!(call(code, depth), depth);
        let records = seen(&mut reader);
        let expected: Vec<u64> = (0..=depth).filter(|n| passes(*n)).collect();
        let of = |kind| records.iter().filter(move |r| r.kind == kind).map(|r| r.values[0]);
        assert_eq!(of(RecordKind::Return).collect::<Vec<_>>(), expected, "from the deepest on");
        assert_eq!(
            of(RecordKind::Entry).collect::<Vec<_>>(),
            expected.iter().copied().rev().collect::<Vec<_>>()
        );
        assert_eq!(arena.counted(FILTERED) - before + expected.len() as u64, depth + 1);
    }
    // An entry that is left by a jump, then a filtered call at the same place on the stack. The exit does not
    // belong to the first entry.
    let abandoned = {
        let mut out = Vec::new();
        let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 1);
        out.extend([0x48, 0x89, 0xF8, 0xC3]);
        pending.finish(&mut out, None).expect("code");
        arena.put(&out)
    };
    let both = |first: u64, second: u64| [call(abandoned, first), call(code, second)];
    assert_eq!(both(1, 0), [1, 0]);
    let kinds: Vec<RecordKind> = seen(&mut reader).iter().map(|r| r.kind).collect();
    assert_eq!(kinds, [RecordKind::Entry], "the filtered call took the mark away");
    // A call that passes, and then an exit at the same place without an entry. The mark is gone with the
    // first exit.
    let alone = built(&mut arena, &traced, RecordKind::Return, 1, &[0x48, 0x89, 0xF8, 0xC3]);
    let both = |first: u64, second: u64| [call(code, first), call(alone, second)];
    assert_eq!(both(1, 5), [1, 5]);
    let kinds: Vec<RecordKind> = seen(&mut reader).iter().map(|r| r.kind).collect();
    assert_eq!(kinds, [RecordKind::Entry, RecordKind::Return]);
    assert_eq!(arena.counted(0), 0, "nothing was dropped");
    assert_eq!(get(arena.missed()), 0);
    if machine.rseq.is_none() {
        return;
    }
    // A thread without an area: calls that pass are dropped, so their exits leave no record. Other calls are
    // filtered as usual.
    let filtered = arena.counted(FILTERED);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unregister();
            assert_eq!(call(code, 7), 7);
        });
    });
    let (last, pass) = (u64::from(LINES - 1) * 64, (0..=7).filter(|n| passes(*n)).count() as u64);
    assert_eq!(arena.counted(FILTERED) - filtered, 8 - pass);
    assert!(get(arena.word(FILTERED) + last) >= 8 - pass, "on the last line");
    assert_eq!(get(arena.word(0) + last), arena.counted(0));
}

#[test]
fn state_is_kept_around_marks() {
    let _one = ONE.lock();
    machines().iter().for_each(state_is_kept);
}

fn state_is_kept(machine: &Machine) {
    let mut random = Random(0x7a7a_0001_1234_9876);
    let names = registers();
    for (text, sample, kind) in [
        ("arg0 & 1", 1, RecordKind::Entry),
        ("arg0 & 1", 2, RecordKind::Entry),
        ("arg1 % 7 < 3 || tid == 1", 2, RecordKind::Entry),
        ("arg0", 2, RecordKind::Return),
    ] {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, machine, 1 << 14, 64);
        let filter = TargetFilter {
            condition: Some(parse(text, &names).expect("reads")),
            sample,
            tally: None,
            reads: Vec::new(),
            ..TargetFilter::default()
        };
        for n in 0..8 {
            let dead = if n & 4 == 4 { 1 << 10 | 1 << 11 } else { 0 };
            let site = Liveness { flags_dead: n & 1 == 1, dead, red_zone_live: n & 2 == 2 };
            let traced = Set { machine, rings: &rings, filter: &filter }.traced(&arena, site);
            let traced = Traced { marks: Some(arena.latency()), ..traced };
            let code = built(&mut arena, &traced, kind, 1, &back());
            assert_kept(&format!("{text} {kind:?} {site:?}"), code, &site, &mut random);
        }
    }
}
