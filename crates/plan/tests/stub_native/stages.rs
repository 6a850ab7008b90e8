//! LOSS-2 and FLT-1 for calls that are decided at the return. The records are those of the calls that the
//! language lets pass, with entry and exit beside each other. Written, dropped, filtered and not ended add up
//! to the begun calls, exactly.

use trapline_plan::filter::{Facts, Float, Int, Known, Late, Symbol, TargetFilter, Tree, parse, registers};
use trapline_plan::x86_64::stub::{Filtered, Latency, Liveness, Machine, Rings, Traced, trace};
use trapline_plan::{Floats, Results};
use trapline_record::counters::filtered::{BEGUN, REJECTED, REJECTED_LATE};
use trapline_record::ring::{Record, RecordKind, RingArea, TEXT_BYTES, TEXT_WORDS, first_float};

use crate::aborted::at_each_instruction;
use crate::arena::{Arena, LINES, call, get, machines, set};
use crate::filters::{float, leaf, number, tree};
use crate::records::{PROBE, Reader, every_hit, rings_for, view, with_rseq};
use crate::state::{Goroutine, ONE, Random, assert_kept, back, runs, sets_vectors, tl_run};

/// Number of the group of lines that holds the filter's words.
const WORDS: u64 = 1;
/// A goroutine on this thread's stack.
pub(crate) const GOROUTINE: Goroutine = [0, 0x7fff_ffff_f000];
/// Three ticks to a nanosecond.
pub(crate) const TICK: u64 = (1 << 32) / 3;

pub(crate) fn late(condition: Tree) -> TargetFilter {
    TargetFilter { late: Some(Late { condition, tick: TICK }), ..TargetFilter::default() }
}

fn names() -> Vec<(String, Symbol)> {
    let mut names = registers();
    names.push(("ret".to_owned(), Symbol::Known(Known::Returned(Int { bits: 32, signed: true }))));
    names.push(("dur".to_owned(), Symbol::Known(Known::Took)));
    names
}

pub(crate) fn read(text: &str) -> Tree {
    let tree = parse(text, &names()).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(tree.is_known_at_return());
    tree
}

pub(crate) fn counted(arena: &Arena, word: u32) -> u64 {
    (0..u64::from(LINES)).map(|line| get(arena.word(WORDS) + u64::from(word) * 8 + line * 64)).sum()
}

pub(crate) fn traced<'a>(
    arena: &Arena,
    machine: &'a Machine,
    rings: &'a Rings,
    filter: &'a TargetFilter,
) -> Traced<'a> {
    Traced {
        filter: Some(Filtered { filter, words: arena.word(WORDS), names: None }),
        ..every_hit(machine, rings, arena.word(0))
    }
}

/// An exit's stub before `end`.
pub(crate) fn exit(
    arena: &mut Arena,
    traced: &Traced<'_>,
    (kind, values): (RecordKind, usize),
    end: &[u8],
) -> u64 {
    let mut out = Vec::new();
    let pending = trace(&mut out, arena.next(), traced, kind, values);
    out.extend(end);
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

/// A function: entry stub, body, and a jump to an exit's stub.
pub(crate) fn entry(arena: &mut Arena, traced: &Traced<'_>, values: usize, body: &[u8], exit: u64) -> u64 {
    let at = arena.next();
    let mut out = Vec::new();
    let pending = trace(&mut out, at, traced, RecordKind::Entry, values);
    out.extend(body);
    out.push(0xE9);
    let here = at + out.len() as u64 + 4;
    out.extend((exit.wrapping_sub(here) as u32).to_le_bytes());
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

/// Leaves of a tree with what a return knows in addition.
pub(crate) fn leaf_at_return(random: &mut Random) -> Tree {
    let word = random.next();
    let int = Int { bits: 8 << (word >> 8 & 3), signed: word >> 10 & 1 == 1 };
    match word >> 32 & 3 {
        0 => Tree::Known(Known::Returned(int)),
        1 if sets_vectors() => {
            let float = if word >> 8 & 1 == 0 { Float::Single } else { Float::Double };
            Tree::Known(Known::FloatReturned(float))
        }
        _ => leaf(random),
    }
}

#[test]
fn returns_decide_as_the_language_says() {
    let _one = ONE.lock();
    machines().iter().for_each(returns_decide);
}

fn returns_decide(machine: &Machine) {
    let mut random = Random(0x57a6_ed00_1234_9876);
    let (mut passed, mut rejected) = (0, 0);
    // SAFETY: gettid has no precondition.
    let tid = unsafe { libc::gettid() } as u32;
    for round in 0..800 {
        let condition = tree(&mut random, 1 + round % 4, leaf_at_return);
        if condition.temporaries() > trapline_plan::filter::MAX_TEMPORARIES || !condition.is_known_at_return()
        {
            continue;
        }
        let mut arena = Arena::new();
        // Two kinds: entries that store many floats, and few.
        let arguments = if sets_vectors() { [0b1111_1111, 0b0100_1010][(round & 1) as usize] } else { 0 };
        let vectors = if sets_vectors() { 1 } else { 0 };
        let by_go = round % 3 > 0;
        let results = [Results::default(), Results { general: if by_go { 9 } else { 2 }, vectors }];
        let floats = Floats { arguments, results: results[(round >> 1 & 1) as usize] };
        let mut known = true;
        condition.each_known(&mut |one| {
            known &= !matches!(one, Known::Float(n, _) if arguments >> n & 1 == 0);
        });
        if !known {
            arena.unmap();
            continue;
        }
        let slot = RingArea::slot_with_floats(6, 0, 8);
        let rings = rings_for(&arena, machine, 1 << 12, slot);
        let filter = late(condition.clone());
        let site = Liveness { flags_dead: round & 1 == 1, dead: 0, red_zone_live: round & 2 == 2 };
        let go = [None, Some(None), Some(Some(&GOROUTINE))][(round % 3) as usize].map(runs);
        let marks = Some(Latency { go, ..arena.deferred(slot) });
        let traced = Traced { site, floats, by_go, marks, ..traced(&arena, machine, &rings, &filter) };
        let kind = if round % 5 == 4 { RecordKind::Tail } else { RecordKind::Return };
        let end = exit(&mut arena, &traced, (kind, 6), &back());
        let code = entry(&mut arena, &traced, 6, &[], end);
        let mut reader = Reader::new(&rings);
        for _ in 0..20 {
            let mut state = random.state();
            for reg in [7, 6, 2, 1, 8, 9, 0] {
                state.regs[reg] = number(&mut random);
            }
            for vector in &mut state.zmm[..8] {
                vector[0] = float(&mut random);
            }
            let integer = state.regs[0];
            let registers = if by_go { &[0, 3, 1, 7, 6, 8, 9, 10, 11][..] } else { &[0, 2] };
            let Results { general, vectors } = floats.results;
            let integers = registers.iter().take(general.into()).map(|&reg| state.regs[reg]);
            let returned: Vec<u64> =
                integers.chain((0..vectors.into()).map(|n: usize| state.zmm[n][0])).collect();
            let mut facts = Facts {
                arguments: [7, 6, 2, 1, 8, 9].map(|reg: usize| state.regs[reg]),
                floats: core::array::from_fn(|n| state.zmm[n][0]),
                tid,
                ..Facts::default()
            };
            let before = (state.regs, state.zmm, counted(&arena, REJECTED_LATE));
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            assert_eq!((state.regs, state.zmm), (before.0, before.1), "{condition:?}");
            let mut seen = Vec::new();
            reader.take(|record| seen.push(*record));
            let holds = holds(&condition, &mut facts, kind, integer);
            assert_eq!(
                counted(&arena, REJECTED_LATE) - before.2,
                u64::from(!holds),
                "{condition:?} {facts:x?}"
            );
            if !holds {
                assert_eq!(seen, [], "{condition:?} {facts:x?}");
                rejected += 1;
                continue;
            }
            passed += 1;
            // They may lie in the order of the ring's slots: in a small ring the first one may come behind
            // the last.
            let [first, last] = seen[..] else { panic!("{seen:?} {condition:?} {facts:x?}") };
            assert_eq!((first.kind, last.kind, first.sp), (RecordKind::Entry, kind, last.sp));
            assert_eq!((first.probe, last.probe, first.tid), (PROBE, PROBE, tid));
            assert!(first.ticks < last.ticks);
            assert_eq!(first.values[..6], facts.arguments);
            let all = (0..8).filter(|n| arguments >> n & 1 == 1).map(|n| facts.floats[n]);
            let behind = first.values[6..].iter().copied();
            all.zip(behind).for_each(|(expected, is)| assert_eq!(is, expected));
            if kind == RecordKind::Return {
                assert_eq!(last.values[..returned.len()], returned);
            }
        }
        assert_eq!(arena.counted(0), 0, "nothing was dropped");
        // Until the ring is full, and after that.
        assert_kept(&format!("{condition:?} {site:?}"), code, &site, &mut random);
        arena.unmap();
    }
    assert!(passed > 1000 && rejected > 1000, "{passed} {rejected}");
}

/// The result that the language defines if both an integer and a float are returned, which no function does:
/// each name has its own value.
pub(crate) fn holds(condition: &Tree, facts: &mut Facts, kind: RecordKind, integer: u64) -> bool {
    if kind == RecordKind::Tail {
        return condition.holds(facts) == Some(true);
    }
    let float = facts.floats[0];
    let by_own = with_returned(condition, integer, float);
    by_own.holds(facts) == Some(true)
}

pub(crate) fn with_returned(tree: &Tree, integer: u64, float: u64) -> Tree {
    match tree {
        Tree::Known(Known::Returned(int)) => Tree::Number(int.value(integer), int.bits == 64 && !int.signed),
        Tree::Known(Known::FloatReturned(of)) => Tree::Number(of.key(float).cast_unsigned(), false),
        Tree::Unary(op, of) => Tree::Unary(*op, Box::new(with_returned(of, integer, float))),
        Tree::Binary(op, left, right) => {
            let side = |side| Box::new(with_returned(side, integer, float));
            Tree::Binary(*op, side(left), side(right))
        }
        other => other.clone(),
    }
}

pub(crate) fn seen(reader: &mut Reader<'_>) -> Vec<Record> {
    let mut seen = Vec::new();
    reader.take(|record| seen.push(*record));
    seen.sort_by_key(|record| record.ticks);
    seen
}

/// test rdi, rdi; je to the end; push rdi; sub rdi, 1; call `at`; pop rdi; mov rax, rdi
fn recursing(call_from: impl FnOnce(usize) -> u32) -> Vec<u8> {
    let mut body = vec![0x48, 0x85, 0xFF, 0x74, 11, 0x57, 0x48, 0x83, 0xEF, 1, 0xE8];
    let rel = call_from(body.len() + 4);
    body.extend(rel.to_le_bytes());
    body.extend([0x5F, 0x48, 0x89, 0xF8]);
    body
}

/// A function that calls itself with its argument less one, until that is 0, and returns its argument.
fn recursive(arena: &mut Arena, traced: &Traced<'_>) -> u64 {
    let end = exit(arena, traced, (RecordKind::Return, 1), &[0xC3]);
    let at = arena.next();
    let mut stub = Vec::new();
    let pending = trace(&mut stub, at, traced, RecordKind::Entry, 1);
    let body = recursing(|here| (stub.len() + here).wrapping_neg() as u32);
    drop(pending);
    entry(arena, traced, 1, &body, end)
}

#[test]
fn each_depth_and_each_abandoned_call_is_its_own() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, &machine, 1 << 16, 64);
        let filter =
            TargetFilter { condition: Some(read("arg0 != 5")), ..late(read("arg0 % 3 == 1 && ret < 10")) };
        let marks = Some(arena.deferred(64));
        let traced = Traced { marks, ..traced(&arena, &machine, &rings, &filter) };
        let code = recursive(&mut arena, &traced);
        let mut reader = Reader::new(&rings);
        let mut all = 0;
        for depth in [0_u64, 1, 7, 20, 600] {
            assert_eq!(call(code, depth), depth);
            let records = seen(&mut reader);
            let expected: Vec<u64> = (0..=depth).filter(|n| n % 3 == 1 && *n < 10).collect();
            let of = |kind| records.iter().filter(move |r| r.kind == kind).map(|r| r.values[0]);
            assert_eq!(of(RecordKind::Return).collect::<Vec<_>>(), expected, "from the deepest on");
            assert_eq!(
                of(RecordKind::Entry).collect::<Vec<_>>(),
                expected.iter().copied().rev().collect::<Vec<_>>()
            );
            all += depth + 1;
            let five = counted(&arena, REJECTED);
            let written = records.len() as u64 / 2;
            let late = counted(&arena, REJECTED_LATE);
            assert_eq!(counted(&arena, BEGUN) + five, all);
            set(arena.data(), get(arena.data()) + written);
            assert_eq!(get(arena.data()) + late, counted(&arena, BEGUN), "{depth}");
        }
        // A call that is left by a jump, and then calls at its place on the stack: one that the entry
        // rejects, and one that passes.
        let abandoned = {
            let mut out = Vec::new();
            let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 1);
            out.extend([0x48, 0x89, 0xF8, 0xC3]);
            pending.finish(&mut out, None).expect("code");
            arena.put(&out)
        };
        let end = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
        let late = counted(&arena, REJECTED_LATE);
        let both = |first: u64, second: u64| [call(abandoned, first), call(code, second)];
        assert_eq!(both(1, 5), [1, 5]);
        let records = seen(&mut reader);
        assert_eq!(
            records.iter().map(|r| r.values[0]).collect::<Vec<_>>(),
            [4, 1, 1, 4],
            "not the abandoned one"
        );
        assert_eq!(both(1, 0), [1, 0]);
        assert_eq!((seen(&mut reader), counted(&arena, REJECTED_LATE)), (vec![], late + 4));
        // An exit without an entry.
        assert_eq!((call(end, 3), seen(&mut reader)), (call(end, 3), vec![]));
        assert_eq!(arena.counted(0), 0, "nothing was dropped");
        arena.unmap();
    }
}

#[test]
fn what_a_call_took_decides() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, &machine, 1 << 16, 64);
        let filter = late(read("dur >= 2000"));
        let marks = Some(arena.deferred(64));
        let traced = Traced { marks, ..traced(&arena, &machine, &rings, &filter) };
        let end = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
        // mov rax, rdi; inc rdi: sub rdi, 1; jne back
        let body = [0x48, 0x89, 0xF8, 0x48, 0xFF, 0xC7, 0x48, 0x83, 0xEF, 1, 0x75, 0xFA];
        let code = entry(&mut arena, &traced, 1, &body, end);
        let calls: Vec<u64> = (0..200).chain((0..20).map(|n| 100_000 + n)).collect();
        calls.iter().for_each(|&n| assert_eq!(call(code, n), n));
        let records = seen(&mut Reader::new(&rings));
        let late = filter.late.as_ref().expect("as set");
        let took = |pair: &[Record]| late.nanos(pair[1].ticks - pair[0].ticks);
        assert!(records.chunks(2).all(|pair| took(pair) >= 2000), "as long as the record says");
        let long =
            records.iter().filter(|record| record.kind == RecordKind::Entry && record.values[0] >= 100_000);
        assert_eq!(long.count(), 20, "a hundred thousand turns take longer than that");
        assert_eq!(counted(&arena, REJECTED_LATE) + records.len() as u64 / 2, calls.len() as u64);
        assert!(counted(&arena, REJECTED_LATE) > 0, "and one turn does not");
        arena.unmap();
    }
}

#[test]
fn what_pointers_lead_to_is_that_of_the_entry() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let slot = RingArea::slot_for_texts(2);
        let rings = rings_for(&arena, &machine, 64 * slot, slot);
        let filter = late(read("ret != 7"));
        let marks = Some(arena.deferred(slot));
        let traced = Traced { marks, texts: 0b11, ..traced(&arena, &machine, &rings, &filter) };
        let end = exit(&mut arena, &traced, (RecordKind::Return, 2), &[0xC3]);
        // mov byte [rdi], 'x'; mov eax, esi
        let code = entry(&mut arena, &traced, 2, &[0xC6, 0x07, b'x', 0x89, 0xF0], end);
        let mut reader = Reader::new(&rings);
        for second in [1_u64, 7, 3] {
            let mut text = *b"what was there when it was called, for sixty-four bytes and more";
            let was = text;
            // SAFETY: the code is a function of two arguments that writes one byte at the first, and returns.
            let function: extern "C" fn(*mut u8, u64) -> u32 = unsafe { core::mem::transmute(code) };
            assert_eq!(function(text.as_mut_ptr(), second), second as u32);
            assert_eq!(text[0], b'x');
            let mut texts = Vec::new();
            for ring in 0..rings.area.rings {
                let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
                    if record.kind == RecordKind::Entry {
                        let words: Vec<u64> = (0..2 * TEXT_WORDS as u64).map(word).collect();
                        texts.push((record.values[1], words));
                    }
                };
                let tail = &mut reader.tails[ring as usize];
                rings.area.take_with_texts(view(&rings), ring, tail, each).expect("a head that can be");
            }
            if second == 7 {
                assert_eq!(texts, []);
                continue;
            }
            let [(argument, words)] = &texts[..] else { panic!("{} records", texts.len()) };
            let bytes: Vec<u8> = words[1..TEXT_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!((*argument, words[0], &bytes[..]), (second, TEXT_BYTES as u64, &was[..]));
            assert_eq!(words[TEXT_WORDS].cast_signed(), -14, "{second} is no address");
        }
        assert_eq!((counted(&arena, BEGUN), counted(&arena, REJECTED_LATE)), (3, 1));
        assert_eq!(first_float(2, 2), 9 + 18);
        arena.unmap();
    }
}

/// Whatever instruction of its sequence is the last one before an abort, both records hold what they hold without one.
#[test]
fn an_aborted_sequence_writes_both_records() {
    let _one = ONE.lock();
    let Some(machine) = with_rseq() else { return };
    let mut arena = Arena::new();
    let rings = rings_for(&arena, &machine, 1 << 12, 64);
    let filter = late(read("dur >= 0 && ret == 7"));
    let traced = Traced { marks: Some(arena.deferred(64)), ..traced(&arena, &machine, &rings, &filter) };
    let exit = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
    let entry = entry(&mut arena, &traced, 2, &[0x48, 0x89, 0xF8], exit); // mov rax, rdi
    let mut reader = Reader::new(&rings);
    let mut is_whole = || {
        assert_eq!(call(entry, 7), 7);
        let mut seen = Vec::new();
        reader.take(|record| seen.push((record.kind, record.values[0], record.probe, record.sp)));
        let [(RecordKind::Entry, 7, PROBE, sp), end] = seen[..] else { panic!("{seen:?}") };
        assert_eq!(end, (RecordKind::Return, 7, PROBE, sp));
    };
    is_whole();
    let aborted = at_each_instruction(exit, entry, &mut is_whole);
    assert!(aborted > 20, "{aborted}");
    at_each_instruction(entry, arena.next(), &mut is_whole);
    assert_eq!(arena.counted(0), 0, "none is dropped");
}
