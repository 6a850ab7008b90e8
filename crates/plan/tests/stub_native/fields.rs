//! FLT-1 for conditions on fields. Generated code decides at an entry, and at a return, as the language
//! defines, whether fields can be read, in part, or not at all. Every hit is recorded or counted as filtered,
//! and machine state is preserved.

use trapline_plan::Read;
use trapline_plan::filter::{Facts, Float, Int, Known, MAX_TEMPORARIES, TargetFilter, Tree};
use trapline_plan::x86_64::stub::{Filtered, Liveness, Machine, Traced};
use trapline_record::counters::filtered::REJECTED_LATE;
use trapline_record::ring::{RecordKind, RingArea};

use crate::arena::{Arena, LINES, get, machines};
use crate::filters::{leaf, number, tree};
use crate::records::{Reader, built, every_hit, rings_for};
use crate::stages::{entry, exit, holds, late, leaf_at_return};
use crate::state::{ONE, Random, assert_kept, back, tl_run};
use crate::texts::edge;

const FILTERED: u64 = 1;
/// Offsets and lengths of the fields, by argument. The second one is read through a pointer; the third one
/// may lie at the end of mapped memory.
pub(crate) fn reads() -> [Read; 4] {
    let read = |register, offsets: &[i32], bytes| Read { register, offsets: offsets.to_vec(), bytes };
    [read(0, &[16], 8), read(0, &[8, 4], 4), read(1, &[0], 2), read(0, &[24], 4)]
}

fn field(random: &mut Random) -> Tree {
    let word = random.next();
    let signed = word >> 10 & 1 == 1;
    Tree::Known(match word % 4 {
        0 => Known::Field(0, Int { bits: 64, signed }),
        1 => Known::Field(1, Int { bits: 32, signed }),
        2 => Known::Field(2, Int { bits: 16, signed }),
        _ => Known::FloatField(3, Float::Single),
    })
}

pub(crate) fn leaf_with_fields(random: &mut Random) -> Tree {
    if random.next().is_multiple_of(2) { field(random) } else { leaf(random) }
}

fn leaf_of_all(random: &mut Random) -> Tree {
    if random.next().is_multiple_of(3) { field(random) } else { leaf_at_return(random) }
}

#[test]
fn fields_decide_at_entries_as_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(|machine| decide(machine, None));
}

#[test]
fn fields_decide_at_returns_as_the_language_says() {
    let _one = ONE.lock();
    for machine in machines() {
        [RecordKind::Return, RecordKind::Tail].into_iter().for_each(|kind| decide(&machine, Some(kind)));
    }
}

/// Memory of a hit: a structure, what it points to, and numbers that perhaps cannot all be read.
pub(crate) struct Memory {
    own: [u64; 4],
    other: [u64; 2],
    edge: u64,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { own: [0; 4], other: [0; 2], edge: edge() }
    }
    pub(crate) fn fill(&mut self, random: &mut Random) {
        self.own = core::array::from_fn(|_| number(random));
        self.other = core::array::from_fn(|_| number(random));
        self.own[1] = if random.next().is_multiple_of(4) { 8 } else { self.other.as_ptr() as u64 };
    }
    /// Chooses two arguments. Returns them, and the fields that they lead to.
    pub(crate) fn choose(&self, random: &mut Random) -> ([u64; 2], [Option<u64>; 4]) {
        let word = random.next();
        let is_there = !word.is_multiple_of(5);
        let first = if is_there { self.own.as_ptr() as u64 } else { word & 0xfff };
        let (second, third) = match word >> 8 & 3 {
            0 => (self.edge - 1, None),
            1 => (0, None),
            _ => (self.own.as_ptr() as u64, Some(self.own[0] & 0xffff)),
        };
        let behind = (self.own[1] == self.other.as_ptr() as u64).then_some(self.other[0] >> 32);
        let of = |value| if is_there { value } else { None };
        ([first, second], [of(Some(self.own[2])), of(behind), third, of(Some(self.own[3] & 0xffff_ffff))])
    }
}

fn decide(machine: &Machine, at: Option<RecordKind>) {
    let mut random = Random(0x0f1e_1d50_1234_9877);
    let (mut passed, mut rejected) = (0, 0);
    let mut memory = Memory::new();
    let reads = reads();
    let words: usize = reads.iter().map(Read::words).sum();
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..400 {
        let leaf = if at.is_some() { leaf_of_all } else { leaf_with_fields };
        let condition = tree(&mut random, 1 + round % 4, leaf);
        let mut known = condition.temporaries() <= MAX_TEMPORARIES;
        // The record has no floats of arguments here.
        condition.each_known(&mut |one| known &= !(at.is_some() && matches!(one, Known::Float(..))));
        let fits =
            if at.is_some() { condition.is_known_at_return() } else { condition.is_known_with_fields() };
        if !known || !fits {
            continue;
        }
        let mut arena = Arena::new();
        let slot = RingArea::slot_with_floats(6, 0, words);
        let rings = rings_for(&arena, machine, 64 * slot, slot);
        let filter = match at {
            Some(_) => late(condition.clone()),
            None => TargetFilter { fields: Some(condition.clone()), ..TargetFilter::default() },
        };
        let marked = round.is_multiple_of(3).then(|| arena.latency());
        let traced = Traced {
            site: Liveness { flags_dead: round & 1 == 1, dead: 0, red_zone_live: round & 2 == 2 },
            filter: Some(Filtered { filter: &filter, words: arena.word(FILTERED), names: None }),
            fields: &reads,
            marks: if at.is_some() { Some(arena.deferred(slot)) } else { marked },
            ..every_hit(machine, &rings, arena.word(0))
        };
        let code = match at {
            Some(kind) => {
                let end = exit(&mut arena, &traced, (kind, 6), &back());
                entry(&mut arena, &traced, 6, &[], end)
            }
            None => built(&mut arena, &traced, RecordKind::Entry, 6, &back()),
        };
        let mut reader = Reader::new(&rings);
        for _ in 0..20 {
            memory.fill(&mut random);
            let mut state = random.state();
            for reg in [2, 1, 8, 9, 0] {
                state.regs[reg] = number(&mut random);
            }
            let (arguments, fields) = memory.choose(&mut random);
            (state.regs[7], state.regs[6]) = (arguments[0], arguments[1]);
            let integer = state.regs[0];
            let mut facts = Facts {
                arguments: [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]),
                floats: core::array::from_fn(|n| state.zmm[n][0]),
                tid,
                ..Facts::default()
            };
            facts.fields[..4].copy_from_slice(&fields);
            let counted = |arena: &Arena| match at {
                None => arena.counted(FILTERED),
                Some(_) => {
                    let at = arena.word(FILTERED) + u64::from(REJECTED_LATE) * 8;
                    (0..u64::from(LINES)).map(|line| get(at + line * 64)).sum()
                }
            };
            let before = (state.regs, counted(&arena), state.zmm);
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            let mut seen = 0;
            reader.take(|_| seen += 1);
            let holds = match at {
                Some(kind) => holds(&condition, &mut facts, kind, integer),
                None => condition.holds(&facts) == Some(true),
            };
            let records = if at.is_some() { 2 } else { 1 };
            assert_eq!(seen, if holds { records } else { 0 }, "{condition:?} {facts:x?}");
            assert_eq!(counted(&arena) - before.1, u64::from(!holds));
            assert_eq!((state.regs, state.zmm), (before.0, before.2), "{condition:?}");
            if holds { passed += 1 } else { rejected += 1 }
        }
        assert_eq!(arena.counted(0), 0, "nothing was dropped");
        if round < 40 {
            assert_kept(&format!("{condition:?}"), code, &traced.site, &mut random);
        }
        arena.unmap();
    }
    assert!(passed > 300 && rejected > 1000, "{passed} {rejected}");
}
