//! HIT-3 by the interpreter: beside an ordinary map, and with several threads in all orders.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use trapline_code::{Bytes, Op, Program, Run};
use trapline_record::maps::{BITS, FIRST, LIVE, MET, MapShape, Owner, TAKING};
use trapline_record::tally::PROBES;

use crate::programs::maps::tests::{
    Do, assigned_as_in_a_map, inputs, memory, neighbours, program, read, run,
};

const fn shape(keys: u8, values: u8, bits: u8) -> MapShape {
    MapShape { at: 64, keys, values, bits, owner: Owner::Any }
}

/// What a thread does with a key: one of these, and a value.
type Act = (Do, u64, u64);
/// What reads have returned, thread by thread, and what is in the map at the end: the words of each key.
type Outcome = (Vec<Vec<u64>>, BTreeMap<u64, Vec<u64>>);

/// What threads leave if each act is done at once, in any order that keeps each thread's own. So many changes are not done.
fn allowed(shape: MapShape, map: &BTreeMap<u64, Vec<u64>>, threads: &[&[Act]], met: u64) -> HashSet<Outcome> {
    let mut all = HashSet::new();
    for (nth, thread) in threads.iter().enumerate() {
        let Some(((what, key, value), rest)) = thread.split_first() else { continue };
        let (mut map, mut rests) = (map.clone(), threads.to_vec());
        rests[nth] = rest;
        if *what != Do::Get && met > 0 {
            all.extend(allowed(shape, &map, &rests, met - 1));
        }
        let mut result = None;
        match what {
            Do::Assign => drop(map.insert(*key, vec![*value; shape.values.into()])),
            Do::Delete => drop(map.remove(key)),
            _ => {
                let word = |words: &Vec<u64>| 1 << 32 | words[0];
                result = Some(map.get(key).map_or(0, word));
            }
        }
        for (mut results, map) in allowed(shape, &map, &rests, met) {
            result.into_iter().for_each(|result| results[nth].insert(0, result));
            all.insert((results, map));
        }
    }
    if met == 0 && threads.iter().all(|thread| thread.is_empty()) {
        all.insert((vec![Vec::new(); threads.len()], map.clone()));
    }
    all
}

/// A thread on its way.
#[derive(Clone)]
struct Thread<'a> {
    run: Option<Run<'a>>,
    /// The act that it does.
    act: usize,
    results: Vec<u64>,
}

/// Acts of several threads in all orders of their accesses, in a map in which `first` was done. Returns what they left.
fn in_all_orders(shape: MapShape, first: &[Act], threads: &[&[Act]]) -> HashSet<(Outcome, u64)> {
    let programs: HashMap<u8, Program> = [Do::Assign, Do::Delete, Do::Get]
        .map(|what| (what as u8, program(what, shape)))
        .into_iter()
        .collect();
    let given: Vec<Vec<Vec<u64>>> = threads
        .iter()
        .map(|acts| acts.iter().map(|(_, key, value)| inputs(shape, *value, *key)).collect())
        .collect();
    let begin = |thread: usize, act: usize| {
        let (what, ..) = threads[thread].get(act)?;
        Some(Run::new(&programs[&(*what as u8)], &given[thread][act]))
    };
    let mut start = memory(shape);
    for (what, key, value) in first {
        run(&programs[&(*what as u8)], &inputs(shape, *value, *key), &mut start);
    }
    let all = (0..threads.len()).map(|nth| Thread { run: begin(nth, 0), act: 0, results: Vec::new() });
    let (mut next, mut seen, mut outcomes) =
        (vec![(all.collect::<Vec<_>>(), start)], HashSet::new(), HashSet::new());
    while let Some((all, memory)) = next.pop() {
        if all.iter().all(|thread| thread.run.is_none()) {
            let results = all.into_iter().map(|thread| thread.results).collect();
            let met = memory.word(memory.at + u64::from(shape.at) + MET);
            outcomes.insert(((results, found(shape, &memory)), met));
            continue;
        }
        for nth in 0..all.len() {
            let (mut all, mut memory) = (all.clone(), memory.clone());
            if all[nth].run.is_none() {
                continue;
            }
            step(&mut all[nth], &mut memory, |act| begin(nth, act));
            let runs = all.iter().map(|thread| {
                let run = thread.run.as_ref().map(|run| (run.state().0, run.state().1.to_vec()));
                (run, thread.act, thread.results.clone())
            });
            if seen.insert((runs.collect::<Vec<_>>(), memory.bytes.clone())) {
                next.push((all, memory));
            }
        }
    }
    outcomes
}

/// One access to memory, and all operations behind it that are none.
fn step<'a>(thread: &mut Thread<'a>, memory: &mut Bytes, begin: impl Fn(usize) -> Option<Run<'a>>) {
    let is_seen = |op: &Op| op.place().is_some() && !matches!(op, Op::Address { .. });
    let Some(run) = &mut thread.run else { return };
    let mut accesses = run.op().is_some_and(is_seen);
    loop {
        if let Some(end) = run.step(memory) {
            thread.results.extend(end.result);
            thread.act += 1;
            thread.run = begin(thread.act);
            return;
        }
        if accesses && run.op().is_some_and(is_seen) {
            return;
        }
        accesses |= run.op().is_some_and(is_seen);
    }
}

/// What a reader finds: the first entry of each key. Nothing is claimed, and nothing was without room.
fn found(shape: MapShape, memory: &Bytes) -> BTreeMap<u64, Vec<u64>> {
    let (found, dropped) = read(shape, memory);
    assert_eq!(dropped, 0);
    let map = memory.at + u64::from(shape.at) + FIRST;
    assert!((0..shape.entries()).all(|nth| memory.word(map + nth * shape.stride()) & TAKING == 0));
    found.into_iter().map(|(key, all)| (key, all[0].clone())).collect()
}

#[test]
fn hit_3_hits_change_a_map_as_they_should() {
    for (keys, values) in [(0, 1), (1, 1), (1, 2), (2, 1), (3, 2)] {
        [1, BITS].into_iter().for_each(|bits| assigned_as_in_a_map(shape(keys, values, bits)));
    }
}

/// P3: entries are given to other keys, and what finds none is counted.
#[test]
fn hit_3_entries_of_deleted_keys_are_used_again() {
    let shape = shape(1, 2, 1);
    let [assign, delete] = [Do::Assign, Do::Delete].map(|what| program(what, shape));
    let mut memory = memory(shape);
    for key in 1..1000 {
        run(&assign, &inputs(shape, key, key), &mut memory);
        if key > 8 {
            run(&delete, &inputs(shape, 0, key - 8), &mut memory);
        }
    }
    let expected = (992..1000).map(|key| (key, vec![key; 2])).collect();
    assert_eq!(found(shape, &memory), expected);
    for key in 2000..2100 {
        run(&assign, &inputs(shape, key, key), &mut memory);
    }
    let (all, dropped) = read(shape, &memory);
    assert_eq!((all.len() as u64 + dropped, all.len() >= PROBES as usize), (108, true));
}

/// All pairs of acts, and some threes: each leaves what some order of them leaves.
#[test]
fn hit_3_threads_leave_what_some_order_of_their_acts_leaves() {
    let mut races = 0;
    for values in [1, 2] {
        let shape = shape(1, values, 1);
        let keys = neighbours(shape, 3);
        let [one, other, third] = [keys[0], keys[1], keys[2]];
        let acts = |value: u64| {
            [(Do::Assign, one, value), (Do::Assign, other, value), (Do::Delete, one, 0), (Do::Get, one, 0)]
        };
        let before: [&[Act]; 4] = [
            &[],
            &[(Do::Assign, one, 1)],
            &[(Do::Assign, third, 1), (Do::Assign, one, 1), (Do::Delete, third, 0)],
            &[(Do::Assign, one, 1), (Do::Delete, one, 0)],
        ];
        for first in before {
            let map = allowed(shape, &BTreeMap::new(), &[first], 0).into_iter().next().expect("one").1;
            let mut checked = |threads: &[&[Act]]| {
                let left = in_all_orders(shape, first, threads);
                for (outcome, met) in &left {
                    let expected = allowed(shape, &map, threads, *met);
                    let what = format!("{first:?} {threads:?}, {met} met");
                    assert!(expected.contains(outcome), "{what}: {outcome:?}, not among {expected:?}");
                }
                races += usize::from(left.len() > 1);
            };
            for (a, b) in acts(2).into_iter().flat_map(|a| acts(3).map(|b| (a, b))) {
                checked(&[&[a], &[b]]);
                checked(&[&[a, (Do::Get, one, 0)], &[b, (Do::Get, one, 0)]]);
                checked(&[&[a], &[b], &[(Do::Get, one, 0)]]);
            }
            checked(&[
                &[(Do::Delete, one, 0), (Do::Assign, other, 4)],
                &[(Do::Assign, one, 5), (Do::Get, other, 0)],
            ]);
            checked(&[
                &[(Do::Delete, one, 0), (Do::Assign, other, 4)],
                &[(Do::Get, one, 0)],
                &[(Do::Assign, one, 6)],
            ]);
        }
    }
    assert!(races > 150, "{races}");
}

/// A thread that ends at any step: other keys are as they were, later acts on its key are not lost but where its claim is.
#[test]
fn hit_3_a_thread_that_ends_in_between_leaves_other_keys_alone() {
    let shape = shape(1, 2, 1);
    let keys = neighbours(shape, 2);
    let (one, other) = (keys[0], keys[1]);
    let [assign, delete, get] = [Do::Assign, Do::Delete, Do::Get].map(|what| program(what, shape));
    for (ends, had) in [(&assign, false), (&assign, true), (&delete, true)] {
        let mut seen = BTreeSet::new();
        for steps in 0.. {
            let mut memory = memory(shape);
            run(&assign, &inputs(shape, 7, other), &mut memory);
            if had {
                run(&assign, &inputs(shape, 1, one), &mut memory);
            }
            let given = inputs(shape, 2, one);
            let mut left = Run::new(ends, &given);
            let is_whole = (0..steps).any(|_| left.step(&mut memory).is_some());
            run(&assign, &inputs(shape, 3, one), &mut memory);
            let map = memory.at + u64::from(shape.at) + FIRST;
            let states = (0..shape.entries()).map(|nth| memory.word(map + nth * shape.stride()));
            let claimed: Vec<u64> = states.filter(|state| state & TAKING != 0).collect();
            let value = read(shape, &memory).0.get(&one).map(|all| all[0].clone());
            match claimed[..] {
                [] => assert_eq!(value, Some(vec![3; 2]), "{steps}"),
                // The key is known, and its value is not.
                [state] if state & LIVE != 0 => {
                    assert!(had && value.is_some(), "{steps}: {value:?}");
                    assert_eq!(memory.word(memory.at + u64::from(shape.at) + MET), 1);
                }
                [_] => assert_eq!(value, Some(vec![3; 2]), "{steps}"),
                _ => panic!("{claimed:?}"),
            }
            seen.insert(claimed.len());
            assert_eq!(run(&get, &inputs(shape, 0, other), &mut memory), Some(1 << 32 | 7));
            if is_whole {
                break;
            }
        }
        assert_eq!(seen, BTreeSet::from([0, 1]));
    }
}
