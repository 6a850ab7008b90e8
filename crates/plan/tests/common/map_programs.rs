//! Programs of hits that read and write maps, for the tests that run them on both processors.

use std::collections::BTreeMap;

use trapline_code::{Builder, Compare, Compute, Program, Target, Value};
use trapline_plan::hit::{Map, input, line};
use trapline_record::maps::{MapArea, MapShape, StackTable};
use trapline_record::view::View;

/// `@sums[arg0 % 37, arg2 % 2] = sum(arg1)` and others: number of hits, sum.
pub(crate) const SUMS: MapShape = MapShape { at: 0, keys: 2, values: 2 };
/// `@began[tid] = nsecs`
pub(crate) const BEGAN: MapShape = MapShape { at: SUMS.end(), keys: 1, values: 1 };

/// `@by_stack[ustack] = sum(arg1)`
pub(crate) const BY_STACK: MapShape = MapShape { at: BEGAN.end(), keys: 1, values: 2 };
/// Bytes of a line of all these maps.
pub(crate) const BYTES: u32 = BY_STACK.end();
/// The table of stacks.
pub(crate) const STACKS: StackTable = StackTable { frames: 10 };

/// Appends to a program.
pub(crate) struct Made {
    pub(crate) builder: Builder,
}

impl Made {
    pub(crate) fn new() -> Self {
        Self { builder: Builder::new() }
    }
    pub(crate) fn value(&mut self, nth: u16) -> Value {
        self.builder.input(nth)
    }
    fn added(&mut self, shape: MapShape) -> Map {
        Map { line: line(&mut self.builder, input::LINE), shape }
    }
    fn added_to(&mut self, shape: MapShape, key: &[Value], value: Value) {
        self.added(shape).add(&mut self.builder, key, &[Value::Number(1), value], None);
    }
    pub(crate) fn finish(self) -> Program {
        self.builder.finish(None).expect("sound")
    }
}

/// Adds `value` to the row of two small keys.
pub(crate) fn sum(made: &mut Made, [one, other]: [Value; 2], value: Value) {
    let map = made.added(SUMS);
    let builder = &mut made.builder;
    let key = [(one, 37), (other, 2)]
        .map(|(word, by)| builder.compute(Compute::Remainder, word, Value::Number(by)));
    map.add(builder, &key, &[Value::Number(1), value], None);
}
pub(crate) fn sums_of_arguments() -> Program {
    let mut made = Made::new();
    let [one, value, other] = [0, 1, 2].map(|nth| made.value(nth));
    sum(&mut made, [one, other], value);
    made.finish()
}
/// Notes a value under the thread's number; or the time.
pub(crate) fn begin(time: bool) -> Program {
    let mut made = Made::new();
    let (thread, noted) =
        (made.value(input::THREAD), made.value(if time { input::NANOS } else { input::ARGUMENT }));
    let [at, own] = [input::ASSIGNED, input::OWN].map(|nth| line(&mut made.builder, nth));
    Map { line: at, shape: BEGAN }.assign(&mut made.builder, own, &[thread], noted);
    made.finish()
}
/// `/@began[tid]/ { @sums[1, 1] = sum(what - @began[tid]); delete(@began, tid) }`
pub(crate) fn end(time: bool) -> Program {
    let mut made = Made::new();
    let (thread, now) =
        (made.value(input::THREAD), made.value(if time { input::NANOS } else { input::RETURNED }));
    let [at, own] = [input::ASSIGNED, input::OWN].map(|nth| line(&mut made.builder, nth));
    let began = Map { line: at, shape: BEGAN };
    let (is_there, then) = began.get(&mut made.builder, &[thread]);
    let none = made.builder.label();
    made.builder.branch(Compare::Equal, is_there, Value::Number(0), Target::Label(none));
    let took = made.builder.compute(Compute::Subtract, now, then);
    sum(&mut made, [Value::Number(1); 2], took);
    began.delete(&mut made.builder, own, &[thread]);
    made.builder.bind(none);
    made.finish()
}
/// Adds an argument to the row of the stack.
pub(crate) fn sum_by_stack() -> Program {
    let mut made = Made::new();
    let (stack, value) = (made.value(input::STACK), made.value(input::ARGUMENT + 1));
    made.added_to(BY_STACK, &[stack], value);
    made.finish()
}
/// Words of the frames that a test makes up, on its own stack above the stub's.
pub(crate) const WORDS: usize = 64;

/// Lays out frames. Returns frame pointers, and the return addresses that a walk finds from each.
pub(crate) fn lay_frames(frames: &mut [u64; WORDS]) -> [(u64, Vec<u64>); 7] {
    let at = frames.as_mut_ptr() as u64;
    let end = at + WORDS as u64 * 8;
    // A chain of three that ends with 0, one that goes round, one that joins the first, and one that ends with the
    // last words.
    for (n, next, back) in [
        (0, at + 80, 1),
        (10, at + 160, 2),
        (20, 0, 3),
        (30, at + 240, 4),
        (40, at + 160, 6),
        (WORDS - 2, 7, 5),
    ] {
        frames[n] = next;
        frames[n + 1] = back;
    }
    std::hint::black_box(frames);
    [
        (at, vec![1, 2, 3]),
        (at + 80, vec![2, 3]),
        (at + 320, vec![6, 3]),
        (at + 240, vec![4; usize::from(STACKS.frames) - 1]),
        (end - 16, vec![5]),
        (0, vec![]),
        (u64::MAX, vec![]),
    ]
}
/// What hits left there: a stack's addresses and whether it is cut, with number of hits and sum. Each is of this
/// probe, and has one number.
pub(crate) fn by_stack(area: &MapArea, view: View<'_>, probe: u32) -> BTreeMap<(Vec<u64>, bool), (u64, u64)> {
    let all = 0..u64::MAX;
    let all = std::slice::from_ref(&all);
    let mut stacks = BTreeMap::new();
    let dropped = area.read_stacks(view, all, |stack| {
        assert_eq!(stack.probe, probe);
        let before = stacks.insert(stack.number, (stack.addresses.to_vec(), stack.is_cut));
        assert_eq!(before, None, "{stack:x?}");
    });
    assert_eq!(dropped, 0);
    let mut sums: BTreeMap<(Vec<u64>, bool), (u64, u64)> = BTreeMap::new();
    for line in 0..area.lines {
        area.read(view, (BY_STACK, line), all, |key, value| {
            let Some(value) = value else { return };
            let sum = sums.entry(stacks[&key[0]].clone()).or_default();
            *sum = (sum.0 + value[0], sum.1.wrapping_add(value[1]));
        });
    }
    assert_eq!(sums.len(), stacks.len());
    sums
}
