//! Random programs.

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unary, Value, Var, Width};

/// Inputs of a program: numbers, then two pointers.
pub(crate) const INPUTS: usize = NUMBERS + 2;
/// Those that are numbers.
pub(crate) const NUMBERS: usize = 6;
/// Upper bound of the values that a part of a sequence hands on.
pub(crate) const HANDED: usize = 2;
/// Bytes that a program may load and store in front of a pointer and behind it.
pub(crate) const REACH: usize = 512;

/// Numbers by xorshift (Marsaglia 2003).
pub(crate) struct Random(u64);

const EDGES: [u64; 16] = [
    0,
    1,
    2,
    63,
    0x7f,
    0x80,
    0xfff,
    0x1000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 0xfff,
    u64::MAX,
];

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        random
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    pub(crate) fn number(&mut self) -> u64 {
        if self.below(3) == 0 { self.next() } else { EDGES[self.below(EDGES.len() as u64) as usize] }
    }
    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

const COMPARISONS: [Compare; 10] = [
    Compare::Equal,
    Compare::NotEqual,
    Compare::Less,
    Compare::LessEqual,
    Compare::Greater,
    Compare::GreaterEqual,
    Compare::Below,
    Compare::BelowEqual,
    Compare::Above,
    Compare::AboveEqual,
];
const COMPUTATIONS: [Compute; 13] = [
    Compute::Add,
    Compute::Subtract,
    Compute::Multiply,
    Compute::And,
    Compute::Or,
    Compute::Xor,
    Compute::ShiftLeft,
    Compute::ShiftRight,
    Compute::ShiftSigned,
    Compute::Divide,
    Compute::DivideSigned,
    Compute::Remainder,
    Compute::RemainderSigned,
];

/// A sound program of up to some 40 operations: values that stay in use for long and shortly, branches ahead over other
/// branches, variables that several paths write, and outcomes. Two of three load and store, and walk over entries; of
/// these, one in three is the body of a restartable sequence, or a part of one.
pub(crate) fn program(random: &mut Random) -> Program {
    let mut builder = Builder::new();
    let kind = random.one_of(&[None, None, Some(Memory::Mine), Some(Memory::Shared), Some(Memory::Own)]);
    let nths = kind.map_or(0..0, |_| NUMBERS..INPUTS);
    let pointers = nths.map(|nth| builder.pointer(nth as u16, kind.unwrap_or(Memory::Own))).collect();
    let shared: Vec<Var> = (0..random.below(3)).map(|_| builder.var()).collect();
    for var in &shared {
        let value = Value::Number(random.number());
        builder.set(*var, value);
    }
    let mut values: Vec<Value> = shared.iter().map(|var| Value::Var(*var)).collect();
    values.push(builder.input(random.below(NUMBERS as u64) as u16));
    let length = 2 + random.below(20);
    let mut made = Made { builder, random, shared: &shared, pointers, kind, walks: false };
    made.block(&mut values, length, 0);
    if kind == Some(Memory::Mine) && made.random.below(3) == 0 {
        let number = made.random.below(1 + HANDED as u64);
        let handed: Vec<Var> = (0..number).map(|_| made.builder.var()).collect();
        for var in &handed {
            let value = made.random.one_of(&values);
            made.builder.set(*var, value);
        }
        return made.builder.hand_on(&handed).expect("a sound program");
    }
    if kind == Some(Memory::Mine) {
        // No other place is at this offset.
        let place = aligned(Place { offset: 496, ..made.place(&values) });
        let value = made.random.one_of(&values);
        let number = Value::Number(made.random.one_of(&[1, 64, 127, 128, 0x1000, u64::MAX, 0x00ff_ffff]));
        let value = if made.random.below(2) == 0 { number } else { value };
        return made.builder.commit(place, value).expect("a sound program");
    }
    let result = (made.random.below(4) != 0).then(|| made.random.one_of(&values));
    made.builder.finish(result).expect("a sound program")
}

/// A program on its way.
struct Made<'a> {
    builder: Builder,
    random: &'a mut Random,
    shared: &'a [Var],
    pointers: Vec<Var>,
    kind: Option<Memory>,
    /// Whether a walk is on its way.
    walks: bool,
}

impl Made<'_> {
    /// Some operations; what they write is known behind them, unless they stand behind a branch.
    fn block(&mut self, values: &mut Vec<Value>, length: u64, depth: u32) {
        for _ in 0..length {
            if self.kind.is_some() && self.random.below(3) == 0 {
                self.memory(values, depth);
                continue;
            }
            let Self { builder, random, shared, .. } = self;
            match random.below(12) {
                0 | 1 => values.push(builder.input(random.below(NUMBERS as u64) as u16)),
                2 => values.push(Value::Number(random.number())),
                3 => {
                    let bits = random.one_of(&[8, 16, 32, 64]);
                    let width = Width { bits, signed: random.below(2) == 0 };
                    let op =
                        random.one_of(&[Unary::Negate, Unary::Complement, Unary::Bits, Unary::Extend(width)]);
                    let of = random.one_of(values);
                    values.push(builder.unary(op, of));
                }
                4..=8 => values.push(computed(builder, random, values)),
                9 if !shared.is_empty() => {
                    let (to, from) = (random.one_of(shared), random.one_of(values));
                    builder.set(to, from);
                }
                10 if depth < 3 => {
                    let skip = builder.label();
                    let (when, left, right) = compared(random, values);
                    builder.branch(when, left, right, Target::Label(skip));
                    let within = 1 + random.below(5);
                    let known = values.len();
                    self.block(values, within, depth + 1);
                    values.truncate(known);
                    self.builder.bind(skip);
                }
                11 => {
                    let (when, left, right) = compared(random, values);
                    builder.branch(when, left, right, Target::Outcome(1 + random.below(3) as u8));
                }
                _ => {}
            }
        }
    }
    /// A word in reach of a pointer. Offsets are all that instructions may have to be chosen for; words may overlap.
    fn place(&mut self, values: &[Value]) -> Place {
        let base = self.random.one_of(&self.pointers);
        let offset = self.random.one_of(&[-256, -16, -8, -3, 0, 0, 8, 8, 13, 64, 248, 256]);
        if self.random.below(2) == 0 {
            return Place::at(base, offset);
        }
        let value = self.random.one_of(values);
        let index = self.builder.compute(Compute::And, value, Value::Number(15));
        let index = self.builder.in_var(index);
        Place { base, index: Some((index, self.random.one_of(&[0, 3, 3, 4]))), offset }
    }
    fn memory(&mut self, values: &mut Vec<Value>, depth: u32) {
        let place = self.place(values);
        let value = match self.random.below(3) {
            0 => Value::Number(self.random.number()),
            _ => self.random.one_of(values),
        };
        let skip = self.builder.label();
        let is_shared = self.kind == Some(Memory::Shared);
        match self.random.below(9) {
            0 if self.random.below(2) == 0 => {
                let word = self.builder.load(place);
                let op = self.random.one_of(&COMPUTATIONS[..6]);
                let left = self.random.one_of(values);
                values.push(self.builder.compute(op, left, word));
            }
            0 => values.push(self.builder.load(place)),
            2 if !is_shared => {
                // One word behind the other, in any order.
                let (other, next) = (self.random.one_of(values), self.random.one_of(&[8, 8, -8, 16]));
                let next = if place.offset < -8 { 8 } else { next };
                self.builder.store(place, value);
                self.builder.store(Place { offset: place.offset + next, ..place }, other);
            }
            1 => values.push(self.builder.load_byte(place)),
            2 | 3 if !is_shared => self.builder.store(place, value),
            4 if !is_shared => self.builder.store_byte(place, value_byte(value)),
            2 if self.random.below(3) == 0 => {
                let when = self.random.one_of(&COMPARISONS);
                self.builder.raise(when, Place { index: None, ..aligned(place) }, value);
            }
            2 if self.random.below(2) == 0 => {
                // Some inputs are 0.
                let nth = self.random.below(NUMBERS as u64) as u16;
                self.builder.add_here(aligned(place), value, nth, Target::Label(skip));
                let known = values.len();
                self.block(values, 1, depth + 1);
                values.truncate(known);
                self.builder.bind(skip);
            }
            2 => self.builder.add(aligned(place), value),
            3 | 4 => self.claimed(place, value),
            7 if is_shared && self.random.below(2) == 0 => {
                let last = self.random.below(2) == 0;
                values.push(Value::Var(self.builder.watch(aligned(place), last)));
            }
            5 | 6 => {
                let when = self.random.one_of(&COMPARISONS);
                match self.random.below(3) {
                    0 if is_shared || self.kind == Some(Memory::Mine) => {
                        self.builder.look(aligned(place), Target::Label(skip), Target::Outcome(3));
                    }
                    0 => self.builder.branch_word(when, place, value, Target::Outcome(2)),
                    _ => self.builder.branch_word(when, place, value, Target::Label(skip)),
                }
                let known = values.len();
                self.block(values, 1, depth + 1);
                values.truncate(known);
                self.builder.bind(skip);
            }
            7 => {
                let to = self.builder.var();
                self.builder.set_address(to, Place { offset: place.offset % 32, ..place });
                let word = Place::at(to, 8 * self.random.below(3) as i32);
                values.push(self.builder.load(word));
            }
            _ if !self.walks && depth < 2 => self.walk(values, depth),
            _ => {}
        }
    }
    /// A word is claimed, and published with what was stored in between.
    fn claimed(&mut self, place: Place, value: Value) {
        let word = aligned(Place::at(place.base, place.offset));
        let (taken, end) = (self.builder.label(), self.builder.label());
        let from = match self.random.below(4) {
            0 | 1 => Value::Number(0),
            2 => Value::Var(self.builder.watch(word, false)),
            _ => value,
        };
        self.builder.claim(word, from, Target::Label(taken));
        self.builder.jump(Target::Label(end));
        self.builder.bind(taken);
        if self.random.below(2) == 0 {
            self.builder.store(Place::at(place.base, word.offset + 8), value);
        }
        if self.random.below(2) == 0 {
            self.builder.publish(Place::at(place.base, word.offset + 16), value);
        }
        let end_with = if self.random.below(2) == 0 { Value::Number(1) } else { value };
        self.builder.publish(word, end_with);
        self.builder.bind(end);
    }
    /// Looks at entries, and leaves in between.
    fn walk(&mut self, values: &mut Vec<Value>, depth: u32) {
        let (entry, found) = (self.builder.var(), self.builder.label());
        let base = self.random.one_of(&self.pointers);
        self.builder.set_address(entry, Place::at(base, self.random.one_of(&[-64, 0, 8])));
        let (stride, count) = (self.random.one_of(&[1, 8, 16, 24]), 1 + self.random.below(6) as u16);
        let walk = match self.random.below(3) {
            0 => {
                let reach = self.random.one_of(values);
                let reach = Value::Var(self.builder.in_var(reach));
                self.builder.walk_within(entry, self.random.one_of(&[8, 16, 32]), 4, reach)
            }
            _ => self.builder.walk(entry, stride, count),
        };
        let known = values.len();
        self.walks = true;
        for _ in 0..=self.random.below(2) {
            self.builder.begin(walk);
            let (when, right) = (self.random.one_of(&COMPARISONS), self.random.one_of(values));
            let again = self.builder.label();
            self.builder.branch_word(when, Place::at(entry, 8), right, Target::Label(again));
            let within = 1 + self.random.below(3);
            self.block(values, within, depth + 1);
            self.builder.next(walk);
            // No entry is left.
            self.builder.jump(Target::Label(found));
            self.builder.bind(again);
            values.truncate(known);
        }
        self.walks = false;
        self.builder.bind(found);
        values.push(self.builder.load(Place::at(entry, 0)));
    }
}

/// A word that one access may change or order.
fn aligned(Place { base, index, offset }: Place) -> Place {
    Place { base, index: index.map(|(index, shift)| (index, shift.max(3))), offset: offset & !7 }
}

fn value_byte(value: Value) -> u8 {
    if let Value::Number(number) = value { number as u8 } else { 0 }
}

fn compared(random: &mut Random, values: &[Value]) -> (Compare, Value, Value) {
    let right = if random.below(2) == 0 { Value::Number(random.number()) } else { random.one_of(values) };
    (random.one_of(&COMPARISONS), random.one_of(values), right)
}

fn computed(builder: &mut Builder, random: &mut Random, values: &[Value]) -> Value {
    let op = random.one_of(&COMPUTATIONS);
    let right = match op {
        _ if op.shifts() => Value::Number(random.below(64)),
        _ if op.divides() => Value::Number((random.number() >> 1).max(1)),
        _ if random.below(3) == 0 => Value::Number(random.number()),
        _ => random.one_of(values),
    };
    let left = random.one_of(values);
    builder.compute(op, left, right)
}
