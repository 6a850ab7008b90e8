//! HIT-2 by the interpreter: the stub's K4 is done by hand between the steps of two threads, and of a signal handler.

use trapline_code::{Bytes, End, Program, Run, interpret_in};
use trapline_record::maps::{FIRST, GONE, LIVE, StackTable};
use trapline_record::tally::PROBES;

use super::{FOUND, NO_ROOM, entry};
use crate::hit::input;

const TABLE: u64 = 0x10000;
const STACKS: StackTable = StackTable { frames: 1 };

fn inputs(number: u64) -> Vec<u64> {
    let mut inputs = vec![0; 15];
    (inputs[usize::from(input::STACK)], inputs[usize::from(input::STACKS)]) = (number, TABLE);
    inputs
}
fn memory() -> Bytes {
    Bytes { at: TABLE, bytes: vec![0; STACKS.len() as usize] }
}
/// K4: the address is the number.
fn fill(memory: &mut Bytes, entry: u64) {
    assert_eq!(memory.word(entry), GONE);
    let number = memory.word(entry + 8);
    memory.set_word(entry + 40, number);
    memory.set_word(entry, LIVE);
}
/// A whole hit.
fn hit(program: &Program, memory: &mut Bytes, number: u64) -> u8 {
    let End { outcome, result } = interpret_in(program, &inputs(number), memory);
    if outcome == 0 {
        fill(memory, result.expect("an entry"));
    }
    outcome
}
/// The numbers of live entries; each shows its own stack. And updates without an entry.
fn read(memory: &Bytes) -> (Vec<u64>, u64) {
    let shape = STACKS.shape();
    let entries = (0..shape.entries()).map(|nth| TABLE + FIRST + nth * shape.stride());
    let live = entries.filter(|entry| memory.word(*entry) == LIVE);
    let numbers = live.map(|entry| {
        assert_eq!(memory.word(entry + 8), memory.word(entry + 40), "an entry shows another stack");
        memory.word(entry + 8)
    });
    (numbers.collect(), memory.word(TABLE))
}
/// Numbers whose search begins at one entry.
fn neighbours(count: usize) -> Vec<u64> {
    let first = |number: u64| STACKS.shape().first(&[number]);
    (1..).filter(|number| first(*number) == first(1)).take(count).collect()
}

#[test]
fn hit_2_each_stack_has_an_entry_until_there_is_no_room() {
    let (program, mut memory) = (entry(STACKS).expect("sound"), memory());
    let numbers = neighbours(PROBES as usize + 2);
    let (with, without) = numbers.split_at(PROBES as usize);
    for _ in 0..2 {
        let outcomes: Vec<u8> = with.iter().map(|number| hit(&program, &mut memory, *number)).collect();
        assert!(outcomes.iter().all(|outcome| [0, FOUND].contains(outcome)));
        assert!(without.iter().all(|number| hit(&program, &mut memory, *number) == NO_ROOM));
    }
    assert_eq!(read(&memory), (with.to_vec(), 2 * without.len() as u64));
    let all = with.iter().map(|number| hit(&program, &mut memory, *number));
    assert!(all.into_iter().all(|outcome| outcome == FOUND));
}

/// One hit stops before each of its steps, and for ever in half of the cases; a whole one with the same stack or
/// another comes between.
#[test]
fn hit_2_a_hit_in_between_finds_the_number_or_another_entry() {
    let program = entry(STACKS).expect("sound");
    let numbers = neighbours(2);
    for (other, goes_on) in [(numbers[0], true), (numbers[1], true), (numbers[0], false), (numbers[1], false)]
    {
        for steps in 0.. {
            let mut memory = memory();
            let inputs = inputs(numbers[0]);
            let mut first = Run::new(&program, &inputs);
            let mut end = None;
            for _ in 0..steps {
                end = end.or_else(|| first.step(&mut memory));
            }
            assert_ne!(hit(&program, &mut memory, other), NO_ROOM);
            while goes_on && end.is_none() {
                end = first.step(&mut memory);
            }
            if let (true, Some(End { outcome: 0, result })) = (goes_on, &end) {
                fill(&mut memory, result.expect("an entry"));
            }
            let (mut live, dropped) = read(&memory);
            live.dedup();
            let is_known = |number: &u64| live.contains(number);
            // One that stopped for ever has no stack, or the one that the other hit found and did not fill.
            assert!(!goes_on || is_known(&numbers[0]), "{steps}: {live:?}");
            assert!(is_known(&other) || (!goes_on && other == numbers[0]), "{steps}: {live:?}");
            assert_eq!(dropped, 0);
            if end.is_some() && goes_on || steps > 200 {
                break;
            }
        }
    }
}
