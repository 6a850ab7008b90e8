//! FLT-1, LOSS-2 and SAFE-2 for filters: generated conditions decide as the language defines, on random trees
//! and numbers at the edges. Every hit is counted or filtered.

use std::sync::atomic::Ordering;

use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::filter::code_bytes;
use trapline_plan::aarch64::stub::{Code as _, Filtered, Machine, count_filtered};
use trapline_plan::filter::{
    Binary, Facts, Float, Int, Known, MAX_TEMPORARIES, TargetFilter, Tree, Unary, parse, registers,
};
use trapline_record::counters::filtered;

use super::latency::on_cpu;
use super::threads::{ids, tid};
use super::{
    ADD, AREA, CodeMemory, DATA, LINES, RET, by_hand, call, changes, machines, registered, run, storm,
};

/// Offset of the filter's words; and bytes of a stub without its nodes.
const WORDS: u64 = 4096;
const STUB: usize = 1024;
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

/// Random numbers by xorshift64*.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 3 | self.0 << 61
    }
    /// Random registers and flags.
    pub(super) fn state(&mut self) -> [u64; 32] {
        let mut state = core::array::from_fn(|_| self.next());
        state[31] &= 0xF000_0000;
        state
    }
}

pub(super) fn number(random: &mut Random) -> u64 {
    let word = random.next();
    if word.is_multiple_of(3) { random.next() } else { EDGES[(word >> 8) as usize % EDGES.len()] }
}

/// Bits of a float of either width, zeros, infinities and NaNs among them.
pub(super) fn float(random: &mut Random) -> u64 {
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

pub(super) fn leaf(random: &mut Random) -> Tree {
    let word = random.next();
    let int = Int { bits: 8 << (word >> 8 & 3), signed: word >> 10 & 1 == 1 };
    let width = if word >> 8 & 1 == 0 { Float::Single } else { Float::Double };
    match word % 8 {
        0 | 1 => {
            let value = number(random);
            Tree::Number(value, value >> 63 == 1 && word >> 11 & 1 == 1)
        }
        2 => Tree::Known(Known::Thread),
        3 => Tree::Known(Known::Float((word >> 16) as u8 % 8, width)),
        _ => Tree::Known(Known::Argument((word >> 16) as u8 % 6, int)),
    }
}

pub(super) fn tree(random: &mut Random, depth: u32, leaf: fn(&mut Random) -> Tree) -> Tree {
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

pub(super) fn of(condition: Option<Tree>, sample: u32) -> TargetFilter {
    TargetFilter { condition, sample, ..TargetFilter::default() }
}

/// Hits that passed, and hits that did not together with words of a sample.
fn counted(room: &CodeMemory) -> (u64, u64) {
    let words = (0..u64::from(LINES)).map(|line| room.word(WORDS / 64 + line).load(Ordering::Relaxed));
    (room.counts().iter().sum(), words.sum())
}

fn words_of(room: &CodeMemory, at: u64, machine: &Machine, id: ThreadId, filter: &TargetFilter) -> Vec<u32> {
    let words = room.base + DATA + WORDS + 8 * u64::from(filtered::REJECTED);
    let pending = count_filtered(at, machine, id, Filtered { filter, words, names: None }, room.base + DATA);
    let words = pending.finish(&[ADD, RET], Some(room.base)).expect("in reach");
    let most = STUB + code_bytes(filter);
    assert!(4 * words.len() <= most, "{} words of {most} bytes", words.len());
    words
}

fn build(room: &CodeMemory, machine: &Machine, id: ThreadId, filter: &TargetFilter) -> u64 {
    room.put(&words_of(room, room.next(), machine, id, filter))
}

#[test]
fn conditions_decide_as_the_language_says() {
    let mut random = Random(0x0f17_7e25_1234_9876);
    let (machines, ids) = (machines(by_hand), ids());
    let (mut passed, mut rejected) = (0, 0);
    for round in 0..600 {
        let condition = tree(&mut random, 1 + round % 4, leaf);
        if condition.temporaries() > MAX_TEMPORARIES {
            continue;
        }
        let room = CodeMemory::new();
        let (machine, id) = (&machines[round as usize % machines.len()], ids[round as usize / 2 % ids.len()]);
        let filter = of(Some(condition), 1);
        let condition = filter.condition.as_ref().expect("as set");
        let code = build(&room, machine, id, &filter);
        for turn in 0..20 {
            on_cpu(if turn % 5 == 4 { u32::MAX } else { turn });
            let (mut state, floats) = (random.state(), core::array::from_fn(|_| float(&mut random)));
            state[..6].fill_with(|| number(&mut random));
            let arguments = core::array::from_fn(|n| state[n]);
            let facts = Facts { arguments, floats, tid: tid(), ..Facts::default() };
            let (before, holds) = (counted(&room), condition.holds(&facts).expect("all is known"));
            let mut after = run(code, state, floats);
            // The displaced word is an addition.
            after[0] = after[0].wrapping_sub(state[1]);
            let what = format!("{machine:?} {id:?} {condition:?} {facts:x?}");
            assert_eq!(after, state, "{what}");
            let now = counted(&room);
            let grown = (now.0 - before.0, now.1 - before.1);
            assert_eq!(grown, (u64::from(holds), u64::from(!holds)), "{what}");
            if holds { passed += 1 } else { rejected += 1 }
        }
        assert_eq!(AREA.with(|area| area.section.load(Ordering::Relaxed)), 0, "cleared");
        room.unmap();
    }
    assert!(passed > 1000 && rejected > 1000, "{passed} {rejected}");
}

/// Conditions on what a function returns: x0 at its `ret`.
#[test]
fn returns_decide_too() {
    for machine in machines(by_hand) {
        on_cpu(2);
        let ret = Tree::Known(Known::Returned(Int { bits: 32, signed: true }));
        let negative = Tree::Binary(Binary::Less, Box::new(ret), Box::new(Tree::Number(0, false)));
        let room = CodeMemory::new();
        let code = build(&room, &machine, ThreadId::Call, &of(Some(negative), 1));
        for value in [0, 1 << 31, 0x1_0000_0000, u64::MAX, 7] {
            assert_eq!(call(code, value, 0), value);
        }
        assert_eq!(counted(&room), (2, 3), "{machine:?}");
    }
}

#[test]
fn one_in_so_many_is_a_sample() {
    for (machine, every) in machines(by_hand).into_iter().flat_map(|machine| [(machine, 3), (machine, 4)]) {
        let room = CodeMemory::new();
        let code = build(&room, &machine, ThreadId::Call, &of(None, every));
        for flags in 0..16 {
            on_cpu(1);
            let (before, mut after) = changes(code, flags);
            after[0] = after[0].wrapping_sub(before[1]);
            assert_eq!(after, before, "{machine:?}");
        }
        (0..284).for_each(|n| assert_eq!(call(code, n, 1), n + 1));
        // Beginning with the first hit.
        let passed = 300_u64.div_ceil(every.into());
        assert_eq!(counted(&room), (passed, 300 - passed), "{machine:?} {every}");
        // A thread that has no share of its own.
        on_cpu(u32::MAX);
        (0..12).for_each(|n| assert_eq!(call(code, n, 1), n + 1));
        let more = if machine.rseq.is_some() { 0 } else { 12 / u64::from(every) };
        let (now, rejected) = counted(&room);
        assert!(now - passed <= more + 1 && now + rejected == 312, "{machine:?} {now} {rejected}");
    }
}

/// Conditions with samples, while threads migrate and are interrupted: no hit is lost.
#[test]
fn nothing_is_lost() {
    let names = registers();
    for machine in machines(registered) {
        let room = CodeMemory::new();
        let filter = of(Some(parse("arg0 % 3 != 1 && arg1 > 0", &names).expect("reads")), 2);
        let (called, handled) = storm(build(&room, &machine, ThreadId::Call, &filter));
        let (passed, rejected) = counted(&room);
        assert_eq!(passed + rejected, called + handled, "{machine:?}");
        assert!(passed > called / 4 && rejected > called / 2, "{passed} {rejected}");
    }
}

/// Each restartable section ends with its only store, and its abort handler leads back to where the section
/// is announced.
#[test]
fn sections_end_with_their_store() {
    let machine = Machine { rseq: by_hand(), lse: true, lines: LINES };
    let room = CodeMemory::new();
    let words = words_of(&room, room.next(), &machine, ThreadId::Call, &of(None, 5));
    assert_eq!(super::tallies::sections(&words, room.next(), 0xF900_0000), 3);
}
