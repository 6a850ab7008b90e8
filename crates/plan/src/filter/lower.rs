//! Conditions and values as programs, from which both processors make their code.
//!
//! In: a tree, and the fields that were read. Out: a [`Lowered`] program; its inputs are what is known at the hit
//! ([`Source`]). FLT-1: the program's outcome is what [`Tree::holds`] and [`Tree::evaluate`] say.
//! Does not: know where inputs are, or make code.
//!
//! A comparison of a signed number s with an unsigned one u. Only signs of numbers are tested that may be below 0:
//!
//! ```text
//!   s < 0     s < u
//!   s >= 0    s < u  =  (s below u, both as unsigned)
//! ```
//!
//! The order key of a float whose bits are b, a float's extended to 64 bits ([`Float::key`]):
//!
//! ```text
//!   b >= 0    key = b
//!   b < 0     key = -(b without its sign)
//! ```

use trapline_code::{Builder, Compare, Compute, Program, Target, Unary as Op, Unsound, Value, Width};

use super::float::Float;
use super::target::{Sort, Tally, TargetFilter};
use super::tree::{Binary, Int, Known, Tree, Unary};
use crate::programs::bucket;
use crate::request::Read;

/// What an input of a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// One of the six argument registers at the entry.
    Argument(u8),
    /// The low 64 bits of one of the eight vector registers of arguments at the entry.
    Float(u8),
    /// The thread's number.
    Thread,
    /// The kernel's result of reading a field.
    FieldResult(u8),
    /// The first word of a field.
    Field(u8),
    /// The register with the returned integer.
    Returned,
    /// The low 64 bits of the vector register with the returned float.
    FloatReturned,
    /// Nanoseconds since the entry.
    Took,
}

/// A program, and what its inputs are, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lowered {
    pub(crate) program: Program,
    pub(crate) inputs: Vec<Source>,
}

impl TargetFilter {
    /// Upper bound of the code bytes of all that it decides and computes; `of` is that of a program.
    pub(crate) fn code_bytes(&self, of: fn(&Program) -> usize) -> usize {
        let bytes = |lowered: Result<Lowered, Unsound>| lowered.map_or(0, |lowered| of(&lowered.program));
        let decides = |tree: &Tree| {
            let forms = [tree.clone(), tree.decided(), tree.at_tail()];
            let bytes = forms.iter().map(|tree| bytes(Lowered::condition(tree, false, &self.reads)));
            bytes.max().unwrap_or(0)
        };
        let late = self.late.as_ref().map(|late| &late.condition);
        let conditions = [&self.condition, &self.fields].into_iter().flatten().chain(late);
        let values = self.tally.iter().flat_map(Tally::sorted);
        let program = self.program.as_ref().map_or(0, |program| of(program.program()));
        program
            + conditions.map(decides).sum::<usize>()
            + values.map(|(tree, sort)| bytes(Lowered::value(tree, sort, &self.reads))).sum::<usize>()
    }
}

/// The outcome by which a program is left early.
const LEAVE: Target = Target::Outcome(1);

impl Lowered {
    /// Leaves by outcome 1 if the tree's truth value is `when`. `fields`: those that were read.
    pub(crate) fn condition(tree: &Tree, when: bool, fields: &[Read]) -> Result<Self, Unsound> {
        let mut lowering = Lowering::new(fields);
        lowering.jump(tree, when, LEAVE);
        lowering.finish(None)
    }
    /// The bucket of the tree's value as the result ([`bucket`]). Leaves by outcome 1 if the value depends on a field that
    /// could not be read.
    pub(crate) fn value(tree: &Tree, sort: Sort, fields: &[Read]) -> Result<Self, Unsound> {
        let (readable, value) = tree.if_readable();
        let mut lowering = Lowering::new(fields);
        lowering.jump(&readable, false, LEAVE);
        let value = lowering.value(&value);
        let result = bucket(&mut lowering.builder, value, tree.is_unsigned(), sort);
        lowering.finish(Some(result))
    }
}

struct Lowering<'a> {
    builder: Builder,
    inputs: Vec<Source>,
    fields: &'a [Read],
}

impl<'a> Lowering<'a> {
    fn new(fields: &'a [Read]) -> Self {
        Self { builder: Builder::new(), inputs: Vec::new(), fields }
    }
    fn finish(self, result: Option<Value>) -> Result<Lowered, Unsound> {
        Ok(Lowered { program: self.builder.finish(result)?, inputs: self.inputs })
    }
    fn input(&mut self, source: Source) -> Value {
        let known = self.inputs.iter().position(|known| *known == source);
        let nth = known.unwrap_or_else(|| {
            self.inputs.push(source);
            self.inputs.len() - 1
        });
        self.builder.input(nth as u16)
    }

    /// Goes to `to` if the tree's truth value is `when`.
    fn jump(&mut self, tree: &Tree, when: bool, to: Target) {
        match tree {
            Tree::Number(value, _) if (*value != 0) == when => self.builder.jump(to),
            Tree::Number(..) => {}
            Tree::Known(Known::Readable(nth)) => {
                let result = self.input(Source::FieldResult(*nth));
                // A field that is not read never compares equal.
                let bytes = self.fields.get(usize::from(*nth)).map_or(u64::MAX, |read| read.bytes.into());
                let is = if when { Compare::Equal } else { Compare::NotEqual };
                self.builder.branch(is, result, Value::Number(bytes), to);
            }
            Tree::Unary(Unary::Not, of) => self.jump(of, !when, to),
            Tree::Binary(op @ (Binary::And | Binary::Or), left, right) => {
                // The value that decides alone: false for `and`, true for `or`.
                let decides = *op == Binary::Or;
                if when == decides {
                    self.jump(left, when, to);
                    return self.jump(right, when, to);
                }
                let past = self.builder.label();
                self.jump(left, decides, Target::Label(past));
                self.jump(right, when, to);
                self.builder.bind(past);
            }
            Tree::Binary(op, left, right) if op.compares() => self.compare(*op, (left, right), when, to),
            tree => {
                let value = self.value(tree);
                let is = if when { Compare::NotEqual } else { Compare::Equal };
                self.builder.branch(is, value, Value::Number(0), to);
            }
        }
    }
    fn compare(&mut self, op: Binary, (left, right): (&Tree, &Tree), when: bool, to: Target) {
        let (a, b) = (left.is_unsigned(), right.is_unsigned());
        let (left, right) = (self.value(left), self.value(right));
        let past = self.builder.label();
        // A negative number is below every unsigned one; any other number is compared as unsigned.
        let signed = match (a, b) {
            (false, true) => Some((left, op.holds_below())),
            (true, false) => Some((right, op.holds_above())),
            _ => None,
        };
        if let Some((number, outcome)) = signed {
            let to = if outcome == when { to } else { Target::Label(past) };
            self.builder.branch(Compare::Less, number, Value::Number(0), to);
        }
        let compare = compare(op, a || b);
        self.builder.branch(if when { compare } else { compare.opposite() }, left, right, to);
        self.builder.bind(past);
    }

    fn value(&mut self, tree: &Tree) -> Value {
        match tree {
            Tree::Number(value, _) => Value::Number(*value),
            Tree::Known(known) => self.known(*known),
            Tree::Unary(Unary::Negate, of) => {
                let of = self.value(of);
                self.builder.unary(Op::Negate, of)
            }
            Tree::Unary(Unary::Complement, of) => {
                let of = self.value(of);
                self.builder.unary(Op::Complement, of)
            }
            Tree::Unary(Unary::Not, _) => self.truth(tree),
            Tree::Binary(op, ..) if op.is_truth() => self.truth(tree),
            Tree::Binary(op, left, right) => {
                let op = compute(*op, left.is_unsigned());
                let (left, right) = (self.value(left), self.value(right));
                self.builder.compute(op, left, right)
            }
        }
    }
    /// 1 if the tree holds, else 0.
    fn truth(&mut self, tree: &Tree) -> Value {
        let (holds, end) = (self.builder.label(), self.builder.label());
        self.jump(tree, true, Target::Label(holds));
        let truth = self.builder.var();
        self.builder.set(truth, Value::Number(0));
        self.builder.jump(Target::Label(end));
        self.builder.bind(holds);
        self.builder.set(truth, Value::Number(1));
        self.builder.bind(end);
        Value::Var(truth)
    }
    fn known(&mut self, known: Known) -> Value {
        match known {
            Known::Argument(nth, int) => self.integer(Source::Argument(nth), int),
            Known::Field(nth, int) => self.integer(Source::Field(nth), int),
            Known::Returned(int) => self.integer(Source::Returned, int),
            Known::FloatArgument(nth, float) => self.key(Source::Argument(nth), float),
            Known::Float(nth, float) => self.key(Source::Float(nth), float),
            Known::FloatField(nth, float) => self.key(Source::Field(nth), float),
            Known::FloatReturned(float) => self.key(Source::FloatReturned, float),
            Known::Thread => self.input(Source::Thread),
            Known::Took => self.input(Source::Took),
            Known::Readable(_) => self.truth(&Tree::Known(known)),
        }
    }
    fn integer(&mut self, source: Source, int: Int) -> Value {
        let value = self.input(source);
        match int.bits {
            64.. => value,
            bits => self.builder.unary(Op::Extend(Width { bits, signed: int.signed }), value),
        }
    }
    fn key(&mut self, source: Source, float: Float) -> Value {
        let bits = self.input(source);
        let key = match float {
            Float::Double => bits,
            Float::Single => self.builder.unary(Op::Extend(Width { bits: 32, signed: true }), bits),
        };
        // The variable of an argument is its register, which is the program's.
        let key = if matches!((source, float), (Source::Argument(_), Float::Double)) {
            let copy = self.builder.var();
            self.builder.set(copy, key);
            Value::Var(copy)
        } else {
            key
        };
        let Value::Var(var) = key else { return key };
        let is_key = self.builder.label();
        self.builder.branch(Compare::GreaterEqual, key, Value::Number(0), Target::Label(is_key));
        match float {
            Float::Double => {
                self.builder.set_computed(var, Compute::ShiftLeft, key, Value::Number(1));
                self.builder.set_computed(var, Compute::ShiftRight, key, Value::Number(1));
            }
            Float::Single => {
                self.builder.set_computed(var, Compute::And, key, Value::Number(i32::MAX as u64));
            }
        }
        self.builder.set_unary(var, Op::Negate, key);
        self.builder.bind(is_key);
        key
    }
}

const fn compare(op: Binary, unsigned: bool) -> Compare {
    match (op, unsigned) {
        (Binary::Equal, _) => Compare::Equal,
        (Binary::Less, true) => Compare::Below,
        (Binary::Less, false) => Compare::Less,
        (Binary::LessEqual, true) => Compare::BelowEqual,
        (Binary::LessEqual, false) => Compare::LessEqual,
        (Binary::Greater, true) => Compare::Above,
        (Binary::Greater, false) => Compare::Greater,
        (Binary::GreaterEqual, true) => Compare::AboveEqual,
        (Binary::GreaterEqual, false) => Compare::GreaterEqual,
        _ => Compare::NotEqual,
    }
}

/// The computation of an operator that is neither a comparison nor `&&` or `||`.
const fn compute(op: Binary, unsigned: bool) -> Compute {
    match (op, unsigned) {
        (Binary::BitOr, _) => Compute::Or,
        (Binary::BitXor, _) => Compute::Xor,
        (Binary::BitAnd, _) => Compute::And,
        (Binary::ShiftLeft, _) => Compute::ShiftLeft,
        (Binary::ShiftRight, true) => Compute::ShiftRight,
        (Binary::ShiftRight, false) => Compute::ShiftSigned,
        (Binary::Subtract, _) => Compute::Subtract,
        (Binary::Multiply, _) => Compute::Multiply,
        (Binary::Divide, true) => Compute::Divide,
        (Binary::Divide, false) => Compute::DivideSigned,
        (Binary::Remainder, true) => Compute::Remainder,
        (Binary::Remainder, false) => Compute::RemainderSigned,
        _ => Compute::Add,
    }
}

#[cfg(test)]
mod tests {
    use trapline_code::interpret;

    use super::super::{Facts, Int, Known, Symbol, parse};
    use super::{Lowered, Source};

    #[test]
    fn flt_1_programs_decide_as_the_language_defines() {
        let int = |bits, signed| Int { bits, signed };
        let names = [
            ("a", Known::Argument(0, int(32, true))),
            ("b", Known::Argument(1, int(64, false))),
            ("c", Known::Argument(2, int(8, true))),
            ("ret", Known::Returned(int(16, false))),
        ];
        let names: Vec<_> = names.map(|(name, known)| (name.to_owned(), Symbol::Known(known))).into();
        let numbers = [0, 1, 5, 0x7f, 0x80, 0xffff_ffff, 1 << 63, u64::MAX];
        for text in [
            "a",
            "!a || b > 4",
            "a < b",
            "b <= a && c",
            "(a < 3) + (c == -1) == 1",
            "-(a - b) >> 3 != ~c % 7",
            "a * 10 / 3 > ret",
            "5 - a < c << 2",
        ] {
            let tree = parse(text, &names).expect(text);
            let lowered = Lowered::condition(&tree, true, &[]).expect(text);
            for nth in 0..numbers.len().pow(3) {
                let [a, b, c] = [nth % 8, nth / 8 % 8, nth / 64].map(|n| numbers[n]);
                let facts =
                    Facts { arguments: [a, b, c, 0, 0, 0], returned: Some(c ^ b), ..Facts::default() };
                let inputs: Vec<_> = lowered
                    .inputs
                    .iter()
                    .map(|source| match source {
                        Source::Argument(n) => facts.arguments[usize::from(*n)],
                        _ => c ^ b,
                    })
                    .collect();
                let holds = interpret(&lowered.program, &inputs).outcome == 1;
                assert_eq!(Some(holds), tree.holds(&facts), "{text}: {facts:?}\n{}", lowered.program);
            }
        }
    }
}
