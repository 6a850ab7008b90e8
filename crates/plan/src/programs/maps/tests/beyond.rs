//! R1: maps of threads that are full, and the map beyond; with a twin that must fail.

use std::collections::HashSet;

use trapline_code::{Bytes, End, Op, Run};
use trapline_record::maps::{FIRST, MapShape, Owner};
use trapline_record::tally::PROBES;

use super::{Do, LINE, inputs, neighbours, program, program_beyond, read, run, shape};

/// Where the map beyond lies.
fn beyond(shape: MapShape) -> MapShape {
    MapShape { at: shape.end(), owner: Owner::Any, ..shape }
}
/// Memory of both, in which so many entries of the first walk have other keys.
fn filled(shape: MapShape, keys: &[u64]) -> Bytes {
    let mut memory = Bytes { at: LINE, bytes: vec![0; beyond(shape).end() as usize] };
    let assign = program(Do::Assign, shape);
    keys.iter().for_each(|key| run(&assign, &inputs(shape, 7, *key), &mut memory).map_or((), |_| ()));
    memory
}

/// R1: keys come and go for ever, though the walk has no entry left.
#[test]
fn hit_1_a_full_map_of_a_thread_goes_on_beyond() {
    let shape = shape(1, 1);
    let pool = neighbours(shape, PROBES as usize + 200);
    let mut memory = filled(shape, &pool[..PROBES as usize - 1]);
    let of = |what| program_beyond(what, shape, Some(beyond(shape)));
    let [assign, delete, get] = [Do::Assign, Do::Delete, Do::Get].map(of);
    let read_one = |memory: &mut Bytes, key: u64| run(&get, &inputs(shape, 0, key), memory);
    for (key, value) in pool[PROBES as usize - 1..].iter().zip(100..) {
        assert_eq!(read_one(&mut memory, *key), Some(0));
        for value in [value, value + 1] {
            run(&assign, &inputs(shape, value, *key), &mut memory);
            assert_eq!(read_one(&mut memory, *key), Some(1 << 32 | value));
        }
        run(&delete, &inputs(shape, 0, *key), &mut memory);
        assert_eq!(read_one(&mut memory, *key), Some(0));
    }
    // The others have what they had, and nothing was without room.
    assert!(pool[..PROBES as usize - 1].iter().all(|key| read_one(&mut memory, *key) == Some(1 << 32 | 7)));
    assert_eq!((read(shape, &memory).1, read(beyond(shape), &memory).1), (0, 0));
    // Without it there is no room.
    run(&program(Do::Assign, shape), &inputs(shape, 1, pool[PROBES as usize]), &mut memory);
    assert_eq!(read(shape, &memory).1, 1);
}

/// R1 with two threads that assign, read and delete their keys, in all orders, where one entry is left. `frees`: a twin that
/// must fail makes an entry of the walk free again, once both have assigned. Returns whether each thread read what it assigned.
fn last_entry_in_all_orders(frees: bool) -> bool {
    let shape = MapShape { bits: 1, ..shape(1, 1) };
    let pool = neighbours(shape, PROBES as usize + 1);
    let (others, ours) = pool.split_at(PROBES as usize - 1);
    let of = |what| program_beyond(what, shape, Some(beyond(shape)));
    let acts = [of(Do::Assign), of(Do::Get), of(Do::Delete), of(Do::Get)];
    let given = [0, 1].map(|thread: usize| inputs(shape, 100 + thread as u64, ours[thread]));
    let start =
        ([0, 1].map(|thread: usize| (0, Some(Run::new(&acts[0], &given[thread])))), filled(shape, others));
    let (mut seen, mut next, mut sound) = (HashSet::new(), vec![start], true);
    while let Some((threads, memory)) = next.pop() {
        for thread in 0..2 {
            let (mut threads, mut memory) = (threads.clone(), memory.clone());
            let (act, Some(run)) = &mut threads[thread] else { continue };
            let is_seen = |op: &Op| op.place().is_some() && !matches!(op, Op::Address { .. });
            let mut end = run.step(&mut memory);
            while end.is_none() && !run.op().is_some_and(is_seen) {
                end = run.step(&mut memory);
            }
            if let Some(End { result, .. }) = end {
                let expected = [None, Some((1 << 32) | (100 + thread as u64)), None, Some(0)][*act];
                sound &= result == expected;
                *act += 1;
                threads[thread].1 = acts.get(threads[thread].0).map(|act| Run::new(act, &given[thread]));
                if frees && threads.iter().all(|(act, _)| *act >= 1) {
                    memory.set_word(LINE + u64::from(shape.at) + FIRST + 3 * shape.stride(), 0);
                }
            }
            let runs = threads
                .each_ref()
                .map(|(act, run)| (*act, run.as_ref().map(|run| (run.state().0, run.state().1.to_vec()))));
            if seen.insert((runs, memory.bytes.clone())) {
                next.push((threads, memory));
            }
        }
    }
    assert!(seen.len() > 500, "{}", seen.len());
    sound
}

#[test]
fn hit_1_two_threads_that_meet_the_last_entry_keep_what_they_assign() {
    assert!(last_entry_in_all_orders(false));
}

#[test]
fn hit_1_an_entry_that_was_made_free_again_would_hide_keys_beyond() {
    assert!(!last_entry_in_all_orders(true));
}
