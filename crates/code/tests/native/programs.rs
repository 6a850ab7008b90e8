//! Random programs.

use trapline_code::{Builder, Compare, Compute, Program, Target, Unary, Value, Var, Width};

/// Inputs of a program.
pub(crate) const INPUTS: usize = 6;

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
/// branches, variables that several paths write, and outcomes.
pub(crate) fn program(random: &mut Random) -> Program {
    let mut builder = Builder::new();
    let shared: Vec<Var> = (0..random.below(3)).map(|_| builder.var()).collect();
    for var in &shared {
        let value = Value::Number(random.number());
        builder.set(*var, value);
    }
    let mut values: Vec<Value> = shared.iter().map(|var| Value::Var(*var)).collect();
    values.push(builder.input(random.below(INPUTS as u64) as u16));
    let length = 2 + random.below(20);
    block(&mut builder, random, &shared, &mut values, length, 0);
    let result = (random.below(4) != 0).then(|| random.one_of(&values));
    builder.finish(result).expect("a sound program")
}

/// Some operations; what they write is known behind them, unless they stand behind a branch.
fn block(
    builder: &mut Builder,
    random: &mut Random,
    shared: &[Var],
    values: &mut Vec<Value>,
    length: u64,
    depth: u32,
) {
    for _ in 0..length {
        match random.below(12) {
            0 | 1 => values.push(builder.input(random.below(INPUTS as u64) as u16)),
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
                block(builder, random, shared, values, within, depth + 1);
                values.truncate(known);
                builder.bind(skip);
            }
            11 => {
                let (when, left, right) = compared(random, values);
                builder.branch(when, left, right, Target::Outcome(1 + random.below(3) as u8));
            }
            _ => {}
        }
    }
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
