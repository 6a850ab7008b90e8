//! The protocol of maps, by the interpreter: beside an ordinary map, with two threads in all orders, and with a signal
//! handler at each step.

use std::collections::BTreeMap;

use trapline_code::{Builder, Bytes, End, Memory, Op, Program, Run, Value, interpret_in};
use trapline_record::maps::{BITS, FIRST, GONE, LIVE, MapShape, Owner};
use trapline_record::tally::PROBES;

use super::Map;
use crate::hit::input;

mod beyond;

const LINE: u64 = 0x10000;

const fn shape(keys: u8, values: u8) -> MapShape {
    MapShape { at: 64, keys, values, bits: BITS, owner: Owner::Thread }
}
/// What a program does with the key and the value in its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::programs) enum Do {
    Add,
    Raise,
    Assign,
    Delete,
    Get,
}

/// Inputs: the line, twice; the value; the key's words.
pub(in crate::programs) fn program(what: Do, shape: MapShape) -> Program {
    program_beyond(what, shape, None)
}
/// The same with a map beyond it.
fn program_beyond(what: Do, shape: MapShape, beyond: Option<MapShape>) -> Program {
    let mut builder = Builder::new();
    let map = Map { line: 0, shape, beyond };
    let own = builder.pointer(1, Memory::Own);
    let value = builder.input(2);
    let key: Vec<Value> = (0..shape.keys).map(|nth| builder.input(3 + u16::from(nth))).collect();
    let result = match what {
        Do::Add => {
            map.add(&mut builder, &key, &[Value::Number(1), value][..usize::from(shape.values)], None);
            None
        }
        Do::Raise => {
            map.add(&mut builder, &key, &[Value::Number(1), value], Some(trapline_code::Compare::Above));
            None
        }
        Do::Assign => {
            map.assign(&mut builder, own, &key, &vec![value; shape.values.into()]);
            None
        }
        Do::Delete => {
            map.delete(&mut builder, own, &key);
            None
        }
        Do::Get => {
            let (is_there, value) = map.get(&mut builder, &key, usize::from(shape.values) - 1);
            let both = builder.compute(trapline_code::Compute::ShiftLeft, is_there, Value::Number(32));
            Some(builder.compute(trapline_code::Compute::Or, both, value))
        }
    };
    builder.finish(result).expect("sound")
}
pub(in crate::programs) fn inputs(shape: MapShape, value: u64, key: u64) -> Vec<u64> {
    let words = (0..u64::from(shape.keys)).map(|nth| if nth == 0 { key } else { key ^ nth });
    [LINE, LINE, value].into_iter().chain(words).collect()
}
pub(in crate::programs) fn memory(shape: MapShape) -> Bytes {
    Bytes { at: LINE, bytes: vec![0; shape.end() as usize] }
}
pub(in crate::programs) fn run(program: &Program, inputs: &[u64], memory: &mut Bytes) -> Option<u64> {
    let End { outcome: 0, result } = interpret_in(program, inputs, memory) else { panic!("{program}") };
    result
}
/// Live entries by the first word of their keys, as a reader takes them; and updates without an entry.
pub(in crate::programs) fn read(shape: MapShape, memory: &Bytes) -> (BTreeMap<u64, Vec<Vec<u64>>>, u64) {
    let mut found: BTreeMap<u64, Vec<Vec<u64>>> = BTreeMap::new();
    let map = LINE + u64::from(shape.at);
    for nth in 0..shape.entries() {
        let entry = map + FIRST + nth * shape.stride();
        let state = memory.word(entry);
        if state == LIVE || shape.owner == Owner::Any && state & LIVE != 0 {
            let words = |from: u64, count: u8| {
                (0..u64::from(count)).map(move |nth| memory.word(entry + from + nth * 8))
            };
            let key: Vec<u64> = words(shape.key(0), shape.keys).collect();
            let first = key.first().copied().unwrap_or_default();
            assert!(
                key.iter().zip(0..).all(|(word, nth)| *word == if nth == 0 { first } else { first ^ nth }),
                "{key:?}"
            );
            found.entry(first).or_default().push(words(shape.value(0), shape.values).collect());
        }
    }
    (found, memory.word(map))
}
/// Keys whose search begins at one entry.
pub(in crate::programs) fn neighbours(shape: MapShape, count: usize) -> Vec<u64> {
    let first = |key: u64| shape.first(&inputs(shape, 0, key)[3..]);
    (1..).filter(|key| first(*key) == first(1)).take(count).collect()
}

#[test]
fn hit_1_hits_change_a_map_as_they_should() {
    for (keys, values) in [(0, 1), (1, 1), (1, 2), (2, 1), (3, 2)] {
        let shape = shape(keys, values);
        let add = program(Do::Add, shape);
        let pool = neighbours(shape, if keys == 0 { 1 } else { PROBES as usize + 3 });
        let (mut memory, mut sums, mut dropped) = (memory(shape), BTreeMap::<u64, [u64; 2]>::new(), 0);
        for nth in 0..300_u64 {
            let key = pool[nth as usize * 7 % pool.len()];
            run(&add, &inputs(shape, nth, key), &mut memory);
            if sums.len() < PROBES as usize || sums.contains_key(&key) {
                let sum = sums.entry(key).or_default();
                *sum = [sum[0] + 1, sum[1] + nth];
            } else {
                dropped += 1;
            }
        }
        assert_eq!(keys == 0, dropped == 0, "the entries of one beginning were used up");
        let expected = sums
            .into_iter()
            .map(|(key, sum)| (if keys == 0 { 0 } else { key }, vec![sum[..values.into()].to_vec()]));
        assert_eq!(read(shape, &memory), (expected.collect(), dropped), "{shape:?}\n{add}");
        assigned_as_in_a_map(shape);
    }
}

/// Assignments, deletions and reads, one after another.
pub(in crate::programs) fn assigned_as_in_a_map(shape: MapShape) {
    let [assign, delete, get] = [Do::Assign, Do::Delete, Do::Get].map(|what| program(what, shape));
    let pool = neighbours(shape, if shape.keys == 0 { 1 } else { 12 });
    let (mut memory, mut known) = (self::memory(shape), BTreeMap::<u64, u64>::new());
    let mut random = 1_u64;
    for _ in 0..500 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (key, value) = (pool[(random >> 40) as usize % pool.len()], random >> 33 & 0xFFFF);
        let all = inputs(shape, value, key);
        match random >> 60 {
            0..6 => {
                run(&assign, &all, &mut memory);
                known.insert(key, value);
            }
            6..10 => {
                run(&delete, &all, &mut memory);
                known.remove(&key);
            }
            _ => {
                let word = |value: &u64| 1 << 32 | *value;
                let expected = known.get(&key).map_or(0, word);
                assert_eq!(run(&get, &all, &mut memory), Some(expected), "{get}");
            }
        }
    }
    let live: BTreeMap<u64, Vec<u64>> =
        read(shape, &memory).0.into_iter().map(|(key, found)| (key, found[0].clone())).collect();
    let key = |key: u64| if shape.keys == 0 { 0 } else { key };
    let known: BTreeMap<u64, Vec<u64>> =
        known.into_iter().map(|(k, value)| (key(k), vec![value; shape.values.into()])).collect();
    assert_eq!(live, known, "{shape:?}");
}

/// Two threads run a program, in all orders. `check` sees each state: the memory, and how many threads have ended. At
/// each step one may end for good.
fn in_all_orders(shape: MapShape, program: &Program, inputs: &[Vec<u64>; 2], check: &dyn Fn(&Bytes, u64)) {
    let begin = ([0, 1].map(|thread| Some(Run::new(program, &inputs[thread]))), memory(shape));
    let (mut seen, mut next) = (vec![begin.clone()], vec![begin]);
    while let Some((runs, memory)) = next.pop() {
        check(&memory, runs.iter().filter(|run| run.is_none()).count() as u64);
        for thread in 0..2 {
            let (mut runs, mut memory) = (runs.clone(), memory.clone());
            let Some(run) = &mut runs[thread] else { continue };
            let is_seen = |op: &Op| op.place().is_some() && !matches!(op, Op::Address { .. });
            let accesses = run.op().is_some_and(is_seen);
            let mut end = run.step(&mut memory);
            while !accesses && end.is_none() && !run.op().is_some_and(is_seen) {
                end = run.step(&mut memory);
            }
            if end.is_some() {
                runs[thread] = None;
            }
            let state = (runs, memory);
            if !seen.contains(&state) {
                seen.push(state.clone());
                next.push(state);
            }
        }
    }
    assert!(seen.len() > 60, "{}", seen.len());
}

/// M1 to M6 and A1.
#[test]
fn hit_1_two_threads_lose_no_addition() {
    let shape = shape(1, 1);
    let program = program(Do::Add, shape);
    let pool = neighbours(shape, 2);
    for pair in [[pool[0], pool[0]], [pool[0], pool[1]]] {
        in_all_orders(shape, &program, &pair.map(|key| inputs(shape, 0, key)), &|memory, ended| {
            let (found, dropped) = read(shape, memory);
            let added: u64 = found.values().flatten().flatten().sum();
            assert!((ended..=2).contains(&(added + dropped)), "{found:?} {dropped}\n{program}");
            assert!(found.keys().all(|key| pair.contains(key)), "{found:?}");
            if ended == 2 {
                let sum = |key: u64| found[&key].iter().flatten().sum::<u64>();
                let expected = if pair[0] == pair[1] { [2, 2] } else { [1, 1] };
                assert_eq!(pair.map(sum), expected);
            }
        });
    }
}

/// A2: the reader never sees a value that no thread has given, and both at the end.
#[test]
fn hit_1_two_threads_leave_the_greatest_of_their_values() {
    let shape = shape(1, 2);
    let program = program(Do::Raise, shape);
    in_all_orders(shape, &program, &[5, 9].map(|value| inputs(shape, value, 1)), &|memory, ended| {
        let entries = read(shape, memory).0.remove(&1).unwrap_or_default();
        assert!(entries.iter().all(|entry| [5, 9].contains(&entry[1])), "{entries:?}\n{program}");
        if ended == 2 {
            let greatest = entries.iter().map(|entry| entry[1]).max();
            assert_eq!((entries.iter().map(|entry| entry[0]).sum::<u64>(), greatest), (2, Some(9)));
        }
    });
}

/// T1 to T3: a signal handler of the same thread runs a whole hit before each step. The key had a value before, or not.
#[test]
fn hit_1_a_handler_in_between_comes_before_or_after() {
    let shape = shape(1, 1);
    let key = |value| inputs(shape, value, 7);
    for (outer, inner) in [Do::Assign, Do::Delete, Do::Get]
        .into_iter()
        .flat_map(|outer| [Do::Assign, Do::Delete].map(|inner| (outer, inner)))
    {
        let [outer_is, inner_is] = [outer, inner].map(|what| program(what, shape));
        for had in [None, Some(LIVE), Some(GONE)] {
            for steps in 0.. {
                let mut memory = memory(shape);
                if had.is_some() {
                    run(&program(Do::Assign, shape), &key(1), &mut memory);
                }
                if had == Some(GONE) {
                    run(&program(Do::Delete, shape), &key(1), &mut memory);
                }
                let outer_inputs = key(2);
                let mut outer_run = Run::new(&outer_is, &outer_inputs);
                let is_whole = (0..steps).any(|_| outer_run.step(&mut memory).is_some());
                run(&inner_is, &key(3), &mut memory);
                let mut end = None;
                while !is_whole && end.is_none() {
                    end = outer_run.step(&mut memory);
                }
                // What later hits read: as if one had come behind the other.
                let now = run(&program(Do::Get, shape), &key(0), &mut memory).expect("a result") & 0xFFFF;
                let after = |what: Do, value: u64, before: u64| match what {
                    Do::Assign => value,
                    Do::Delete => 0,
                    _ => before,
                };
                let before = u64::from(had == Some(LIVE));
                let one = after(inner, 3, after(outer, 2, before));
                let other = after(outer, 2, after(inner, 3, before));
                // A handler's first assignment of all may be lost (see the module's head).
                let is_lost = had.is_none() && inner == Do::Assign && now == after(outer, 2, before);
                assert!(
                    [one, other].contains(&now) || is_lost,
                    "{outer:?} {inner:?} {had:?} {steps}: {now}\n{outer_is}"
                );
                if is_whole {
                    break;
                }
            }
        }
    }
}

/// A1': a thread that is moved before any of its additions adds what is left on the last line.
#[test]
fn hit_1_a_thread_that_is_moved_adds_the_rest_elsewhere() {
    const OTHERS: u64 = LINE + (1 << 20);
    for (what, values) in [(Do::Add, 1), (Do::Add, 2), (Do::Raise, 2)] {
        let shape = shape(1, values);
        let program = program(what, shape);
        let mut here = inputs(shape, 9, 7);
        here.resize(17, 0);
        here[usize::from(input::OTHERS)] = OTHERS;
        let mut moved = here.clone();
        moved[usize::from(input::MOVED)] = 1;
        let additions = program.ops().iter().filter(|op| matches!(op, Op::AddHere { .. })).count();
        for before in 0..=additions {
            let mut memory = Bytes { at: LINE, bytes: vec![0; (2 << 20) as usize] };
            let mut run = Run::new(&program, if before == 0 { &moved } else { &here });
            let mut done = 0;
            loop {
                done += usize::from(matches!(run.op(), Some(Op::AddHere { .. })));
                if run.step(&mut memory).is_some() {
                    break;
                }
                if done == before {
                    run.set_inputs(&moved);
                }
            }
            let lines = [LINE, OTHERS].map(|line| {
                let range = (line - LINE) as usize..(line - LINE) as usize + shape.end() as usize;
                read(shape, &Bytes { at: LINE, bytes: memory.bytes[range].to_vec() }).0
            });
            let words: Vec<&Vec<u64>> = lines.iter().flat_map(|line| line.values().flatten()).collect();
            let sum = |nth: usize| words.iter().map(|words| words[nth]).sum::<u64>();
            assert_eq!(sum(0), 1, "{what:?} {before}\n{program}");
            match what {
                Do::Raise => assert!(words.iter().all(|words| words[1] == 9), "{before}: {words:?}"),
                _ => assert!(values == 1 || sum(1) == 9, "{before}: {words:?}"),
            }
            assert_eq!(lines[1].is_empty(), before == additions, "{before}");
        }
    }
}
