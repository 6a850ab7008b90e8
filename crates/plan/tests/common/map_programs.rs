//! Programs of hits that read and write maps, for the tests that run them on both processors.

use std::collections::BTreeMap;

use trapline_code::{Builder, Compare, Compute, Program, Target, Value};
use trapline_plan::filter::Taken;
use trapline_plan::hit::{Map, input, line};
use trapline_plan::hit::{TextLength, TextOfKey, Width};
use trapline_plan::{Operand, Read};
use trapline_record::maps::{BITS, MapArea, MapBytes, MapShape, Missed, Owner, StackTable, TextTable};
use trapline_record::view::View;

/// `@sums[arg0 % 37, arg2 % 2] = sum(arg1)` and others: number of hits, sum.
pub(crate) const SUMS: MapShape = shape(0, (2, 2), Owner::Cpu);
/// `@began[tid] = nsecs`
pub(crate) const BEGAN: MapShape = shape(0, (1, 1), Owner::Thread);
/// `@by_stack[ustack] = sum(arg1)`
pub(crate) const BY_STACK: MapShape = shape(SUMS.end(), (1, 2), Owner::Cpu);
/// `@live[arg0] = (arg0, arg0, arg0)`
pub(crate) const LIVE_THREE: MapShape = shape(BEGAN.end(), (1, 3), Owner::Any);
/// `@live[arg0] = arg0`
pub(crate) const LIVE_ONE: MapShape = shape(LIVE_THREE.end(), (1, 1), Owner::Any);
/// Bytes of all these maps.
pub(crate) const BYTES: MapBytes = MapBytes { once: LIVE_ONE.end(), line: BY_STACK.end() };

const fn shape(at: u32, (keys, values): (u8, u8), owner: Owner) -> MapShape {
    MapShape { at, keys, values, bits: BITS, owner }
}

/// The table of stacks.
pub(crate) const STACKS: StackTable = StackTable { frames: 10 };

/// The table of texts.
pub(crate) const TEXTS: TextTable = TextTable { is_there: true };

/// A hit at a USDT probe: operands of every kind, with what is read of them and what becomes of them.
pub(crate) struct Marked {
    pub(crate) operands: Vec<Operand>,
    pub(crate) reads: Vec<Read>,
    pub(crate) taken: Vec<Taken>,
    pub(crate) texts: Vec<TextOfKey>,
}

/// The bytes of its text.
pub(crate) static TEXT: [u8; 64] = [b't'; 64];

/// `registers`: those of the first, the fourth and the seventh argument; `word`: an address, as a base and an offset.
pub(crate) fn marked(registers: [u8; 3], (base, offset): (Operand, i32)) -> Marked {
    let mut operands = vec![Operand::Unknown; 18];
    operands[0] = Operand::Register(registers[0]);
    operands[1] = base;
    operands[2] = Operand::Constant(-2);
    operands[3] = Operand::Register(registers[1]);
    operands[4] = Operand::Constant(TEXT.as_ptr() as i64);
    operands[5] = Operand::Constant(3);
    operands[6] = Operand::Register(registers[2]);
    operands[7] = base;
    let read = |register, offsets: &[i32], bytes| Read { register, offsets: offsets.to_vec(), bytes };
    let reads = vec![
        read(1, &[offset], 2),
        read(Read::STACK, &[0], 4),
        read(Read::STACK, &[8, offset], 8),
        read(4, &[0], 64),
    ];
    let number = |nth, field, bits, signed| Taken::Number { nth, field, width: Width { bits, signed } };
    let taken = vec![
        number(0, None, 32, true),
        number(1, Some(0), 16, false),
        number(2, None, 64, true),
        number(3, None, 8, false),
        number(5, None, 64, false),
        number(6, Some(1), 32, true),
        number(7, Some(2), 64, false),
        Taken::Text { nth: 0, field: 3 },
    ];
    let texts = vec![TextOfKey { argument: 4, ends: false, length: TextLength::Argument(5) }];
    Marked { operands, reads, taken, texts }
}
/// `@began[n] = …` of its numbers, in the order of `taken`, and of its text's number.
pub(crate) fn noted() -> Program {
    let mut made = Made::new();
    let more = [input::MORE, input::MORE + 1, input::TEXT];
    for (nth, from) in (0..).zip([0, 1, 2, 3, 5].into_iter().chain(more)) {
        let (value, own) = (made.value(from), line(&mut made.builder, input::OWN));
        let map = Map { line: input::ASSIGNED, shape: BEGAN, beyond: None };
        map.assign(&mut made.builder, own, &[Value::Number(nth)], &[value]);
    }
    made.finish()
}
/// What that leaves, but the text's number. `registers` and `word` hold so much.
pub(crate) fn left(registers: [u64; 3], word: u64) -> Vec<u64> {
    let signed = |value: u64| i64::from(value as i32).cast_unsigned();
    let [first, fourth, seventh] = registers;
    vec![signed(first), word & 0xffff, u64::MAX - 1, fourth & 0xff, 3, signed(seventh), word]
}

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
    fn added(&self, shape: MapShape) -> Map {
        Map { line: input::LINE, shape, beyond: None }
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
/// Adds 1 for the thread among those of all processes (`record::sharers`).
pub(crate) fn by_member() -> Program {
    let mut made = Made::new();
    let member = made.value(input::MEMBER);
    made.added_to(SUMS, &[member, Value::Number(1)], Value::Number(1));
    made.finish()
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
    let (at, own) = (input::ASSIGNED, line(&mut made.builder, input::OWN));
    Map { line: at, shape: BEGAN, beyond: None }.assign(&mut made.builder, own, &[thread], &[noted]);
    made.finish()
}
/// `/@began[tid]/ { @sums[1, 1] = sum(what - @began[tid]); delete(@began, tid) }`
pub(crate) fn end(time: bool) -> Program {
    let mut made = Made::new();
    let (thread, now) =
        (made.value(input::THREAD), made.value(if time { input::NANOS } else { input::RETURNED }));
    let (at, own) = (input::ASSIGNED, line(&mut made.builder, input::OWN));
    let began = Map { line: at, shape: BEGAN, beyond: None };
    let (is_there, then) = began.get(&mut made.builder, &[thread], 0);
    let none = made.builder.label();
    made.builder.branch(Compare::Equal, is_there, Value::Number(0), Target::Label(none));
    let took = made.builder.compute(Compute::Subtract, now, then);
    sum(&mut made, [Value::Number(1); 2], took);
    began.delete(&mut made.builder, own, &[thread]);
    made.builder.bind(none);
    made.finish()
}
/// Assigns the first argument to its own key, in a map that all threads change; or deletes that key.
pub(crate) fn live(shape: MapShape, assigns: bool) -> Program {
    let mut made = Made::new();
    let key = made.value(input::ARGUMENT);
    let (at, own) = (input::ASSIGNED, line(&mut made.builder, input::OWN));
    let map = Map { line: at, shape, beyond: None };
    if assigns {
        map.assign(&mut made.builder, own, &[key], &vec![key; shape.values.into()]);
    } else {
        map.delete(&mut made.builder, own, &[key]);
    }
    made.finish()
}
/// `/has_key(@live, arg0)/ { @sums[0, 0] = sum(@live[arg0] - arg0) }`, and what is not there as 1 in `@sums[1, 0]`
pub(crate) fn read_live(shape: MapShape) -> Program {
    let mut made = Made::new();
    let key = made.value(input::ARGUMENT);
    let (is_there, value) = Map { line: input::ASSIGNED, shape, beyond: None }.get(
        &mut made.builder,
        &[key],
        shape.values as usize - 1,
    );
    let [none, end] = [(); 2].map(|()| made.builder.label());
    made.builder.branch(Compare::Equal, is_there, Value::Number(0), Target::Label(none));
    let differs = made.builder.compute(Compute::Subtract, value, key);
    sum(&mut made, [Value::Number(0); 2], differs);
    made.builder.jump(Target::Label(end));
    made.builder.bind(none);
    sum(&mut made, [Value::Number(1), Value::Number(0)], Value::Number(1));
    made.builder.bind(end);
    made.finish()
}
/// What is in such a map: each key with its value, whose words are equal. Nothing had no room or is unfinished.
pub(crate) fn alive(area: &MapArea, view: View<'_>, shape: MapShape) -> BTreeMap<u64, u64> {
    let (all, mut found) = (0..u64::MAX, BTreeMap::new());
    let missed = area.read(view, (shape, 0), std::slice::from_ref(&all), |key, value| {
        let value = value.expect("no entry of a deleted key");
        assert!(value.iter().all(|word| *word == value[0]), "{key:x?} {value:x?}");
        // Of one key the first counts.
        found.entry(key[0]).or_insert(value[0]);
    });
    assert_eq!(missed, Missed { met: missed.met, ..Missed::default() });
    found
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
    let full = area.read_stacks(view, all, |stack| {
        assert_eq!(stack.probe, probe);
        let before = stacks.insert(stack.number, (stack.addresses.to_vec(), stack.is_cut));
        assert_eq!(before, None, "{stack:x?}");
    });
    assert_eq!(full, 0);
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
