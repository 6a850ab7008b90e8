//! Comparisons of floats, as comparisons of integers.
//!
//! In: an operator and two sides, at least one of which is a float of the hit. Out: a tree over *order keys*
//! (`float`), so that neither the evaluator nor generated code needs a float operation. Invariant: FLT-3 a
//! comparison has the result that C's has for the same numbers: for a NaN only `!=` is true; a constant that
//! the type does not have lies between two that it has.

use std::cmp::Ordering;

use super::error::Why;
use super::float::Float;
use super::tree::{Binary, Known, Tree, Unary};
use crate::request::{Floats, Results};

impl Float {
    /// The keys next below and above a constant; the same one twice if the type has it.
    fn around(self, constant: Constant) -> (i64, i64) {
        let (near, bits) = match (self, constant) {
            (Self::Single, Constant::Real(real)) => {
                (f64::from(real as f32), u64::from((real as f32).to_bits()))
            }
            (Self::Single, Constant::Int(int)) => (f64::from(int as f32), u64::from((int as f32).to_bits())),
            (Self::Double, Constant::Real(real)) => (real, real.to_bits()),
            (Self::Double, Constant::Int(int)) => (int as f64, (int as f64).to_bits()),
        };
        let key = self.key(bits);
        let order = match constant {
            Constant::Real(real) => near.total_cmp(&real),
            // A 65-bit integer is rounded to a number that is an integer itself, within 128 bits.
            Constant::Int(int) => (near as i128).cmp(&int),
        };
        match order {
            Ordering::Less => (key, key + 1),
            Ordering::Equal => (key, key),
            Ordering::Greater => (key - 1, key),
        }
    }
}

/// What a float is compared with, if not with another float.
#[derive(Clone, Copy, Debug)]
enum Constant {
    Real(f64),
    Int(i128),
}

/// A value, or a constant with a fraction, which no value can be.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Tree(Tree),
    Real(f64),
}

impl Side {
    /// Its tree where no float is allowed.
    pub(super) fn whole(self) -> Result<Tree, Why> {
        match self {
            Self::Tree(tree) if tree.float().is_some() => Err(Why::Float),
            Self::Tree(tree) => Ok(tree),
            Self::Real(_) => Err(Why::Real),
        }
    }
    /// Its tree where only its truth counts: a float is true unless it is 0.
    pub(super) fn truth(self) -> Result<Tree, Why> {
        match self {
            Self::Tree(tree) => Ok(tree),
            Self::Real(_) => Err(Why::Real),
        }
    }
    fn is_float(&self) -> bool {
        matches!(self, Self::Real(_)) || matches!(self, Self::Tree(tree) if tree.float().is_some())
    }
    fn constant(&self) -> Option<Constant> {
        match *self {
            Self::Real(real) => Some(Constant::Real(real)),
            Self::Tree(Tree::Number(value, true)) => Some(Constant::Int(value.into())),
            Self::Tree(Tree::Number(value, false)) => Some(Constant::Int(value.cast_signed().into())),
            Self::Tree(_) => None,
        }
    }
}

/// A comparison with a float on one side or both; `None` if neither side is one.
pub(super) fn compare(op: Binary, left: &Side, right: &Side) -> Option<Result<Tree, Why>> {
    if !op.compares() || !left.is_float() && !right.is_float() {
        return None;
    }
    let known =
        |side: &Side| if let Side::Tree(tree) = side { Some((tree.clone(), tree.float()?)) } else { None };
    Some(match (known(left), known(right)) {
        (Some((_, one)), Some((_, other))) if one != other => Err(Why::Widths),
        (Some((left, float)), Some((right, _))) => Ok(both(op, &left, &right, float)),
        (Some((left, float)), None) => {
            right.constant().map(|constant| with_constant(op, &left, float, constant)).ok_or(Why::Mixed)
        }
        (None, Some((right, float))) => left
            .constant()
            .map(|constant| with_constant(turned(op), &right, float, constant))
            .ok_or(Why::Mixed),
        (None, None) => Err(Why::Real),
    })
}

/// `2 < x` is `x > 2`.
const fn turned(op: Binary) -> Binary {
    match op {
        Binary::Less => Binary::Greater,
        Binary::LessEqual => Binary::GreaterEqual,
        Binary::Greater => Binary::Less,
        Binary::GreaterEqual => Binary::LessEqual,
        other => other,
    }
}

fn with_constant(op: Binary, value: &Tree, float: Float, constant: Constant) -> Tree {
    let (below, above) = float.around(constant);
    let is = |op, key| node(op, value.clone(), number(key));
    match op {
        Binary::Less => and(is(Binary::GreaterEqual, -float.infinity()), is(Binary::Less, above)),
        Binary::LessEqual => and(is(Binary::GreaterEqual, -float.infinity()), is(Binary::LessEqual, below)),
        Binary::Greater => and(is(Binary::LessEqual, float.infinity()), is(Binary::Greater, below)),
        Binary::GreaterEqual => and(is(Binary::LessEqual, float.infinity()), is(Binary::GreaterEqual, above)),
        // No number of the type lies between two neighbours.
        Binary::Equal if below != above => number(0),
        _ if below != above => number(1),
        op => is(op, below),
    }
}

fn both(op: Binary, left: &Tree, right: &Tree, float: Float) -> Tree {
    let not_above = |of: &Tree| node(Binary::LessEqual, of.clone(), number(float.infinity()));
    let not_below = |of: &Tree| node(Binary::GreaterEqual, of.clone(), number(-float.infinity()));
    let ordered = |op| node(op, left.clone(), right.clone());
    match op {
        // One bound of each side suffices: the order of the two gives the other bounds.
        Binary::Less | Binary::LessEqual => and(and(ordered(op), not_below(left)), not_above(right)),
        Binary::Greater | Binary::GreaterEqual => and(and(ordered(op), not_above(left)), not_below(right)),
        _ => {
            let equal = and(and(ordered(Binary::Equal), not_below(left)), not_above(left));
            if op == Binary::Equal { equal } else { Tree::Unary(Unary::Not, Box::new(equal)) }
        }
    }
}

const fn number(key: i64) -> Tree {
    Tree::Number(key.cast_unsigned(), false)
}

fn node(op: Binary, left: Tree, right: Tree) -> Tree {
    Tree::Binary(op, Box::new(left), Box::new(right))
}

fn and(left: Tree, right: Tree) -> Tree {
    node(Binary::And, left, right)
}

impl Tree {
    /// The floats that it depends on.
    #[must_use]
    pub fn floats(&self) -> Floats {
        let mut floats = Floats::default();
        self.each_known(&mut |known| match known {
            Known::Float(index, _) => floats.arguments |= 1 << (index % 8),
            Known::FloatReturned(_) => floats.results = Results::FLOAT,
            _ => {}
        });
        floats
    }
    /// Its type, if it is just one float of the hit.
    #[must_use]
    pub const fn float(&self) -> Option<Float> {
        match self {
            Self::Known(
                Known::Float(_, float)
                | Known::FloatArgument(_, float)
                | Known::FloatField(_, float)
                | Known::FloatReturned(float),
            ) => Some(*float),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, Float, Int, Known, Symbol, parse};

    const DOUBLES: [f64; 17] = [
        f64::NEG_INFINITY,
        f64::MIN,
        -1e300,
        -2.0,
        -1.5,
        -f64::MIN_POSITIVE,
        -5e-324,
        -0.0,
        0.0,
        5e-324,
        0.1,
        0.5,
        1.0,
        9_007_199_254_740_992.0,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ];

    fn names() -> Vec<(String, Symbol)> {
        let float = |n, float| Symbol::Known(Known::Float(n, float));
        let int = Symbol::Known(Known::Argument(0, Int { bits: 32, signed: true }));
        let all = [
            ("x", float(0, Float::Double)),
            ("y", float(7, Float::Double)),
            ("s", float(1, Float::Single)),
            ("t", float(2, Float::Single)),
            ("n", int),
            ("ret", Symbol::Known(Known::FloatReturned(Float::Double))),
        ];
        all.into_iter().map(|(name, symbol)| (name.to_owned(), symbol)).collect()
    }

    fn holds(text: &str, facts: &Facts) -> Option<bool> {
        parse(text, &names()).unwrap_or_else(|error| panic!("{text}: {error}")).holds(facts)
    }

    /// The result of the host's own comparison.
    fn holds_in_numbers(op: &str, x: f64, y: f64) -> bool {
        match op {
            "<" => x < y,
            "<=" => x <= y,
            ">" => x > y,
            ">=" => x >= y,
            "==" => x == y,
            _ => x != y,
        }
    }

    #[test]
    fn comparisons_are_the_hosts() {
        let nans = [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001), f64::from_bits(u64::MAX)];
        let all: Vec<f64> = DOUBLES.into_iter().chain(nans).collect();
        for op in ["<", "<=", ">", ">=", "==", "!="] {
            for &x in &all {
                for &y in &all {
                    let mut facts = Facts { returned: Some(y.to_bits()), ..Facts::default() };
                    facts.floats[0] = x.to_bits();
                    facts.floats[7] = y.to_bits();
                    let garbage = 0xdead_beef_0000_0000;
                    facts.floats[1] = u64::from((x as f32).to_bits()) | garbage;
                    facts.floats[2] = u64::from((y as f32).to_bits());
                    assert_eq!(
                        holds(&format!("x {op} y"), &facts),
                        Some(holds_in_numbers(op, x, y)),
                        "{x:?} {op} {y:?}"
                    );
                    assert_eq!(holds(&format!("x {op} ret"), &facts), Some(holds_in_numbers(op, x, y)));
                    let single = holds_in_numbers(op, f64::from(x as f32), f64::from(y as f32));
                    assert_eq!(holds(&format!("s {op} t"), &facts), Some(single), "{x:?} {op} {y:?}");
                    if y.is_finite() {
                        for (text, value) in [("x", x), ("s", f64::from(x as f32))] {
                            // If a comparison always has the same result, there is nothing to decide.
                            let here = format!("n == 0 && ({text} {op} {y:?})");
                            let there = format!("n == 0 && ({y:?} {op} {text})");
                            assert_eq!(
                                holds(&here, &facts),
                                Some(holds_in_numbers(op, value, y)),
                                "{here}, {x:?}"
                            );
                            assert_eq!(
                                holds(&there, &facts),
                                Some(holds_in_numbers(op, y, value)),
                                "{there}, {x:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn constants_need_not_be_numbers_of_the_type() {
        let at = |x: f32| {
            let mut facts = Facts::default();
            facts.floats[1] = x.to_bits().into();
            facts.floats[0] = f64::from(x).to_bits();
            facts
        };
        let tenth = at(0.1);
        for (text, expected) in [
            ("s == 0.1", false),
            ("s != 0.1", true),
            ("s == 0.1f", true),
            ("s > 0.1", true),
            ("s >= 0.1 && s < 0.11", true),
            ("0.1 < s", true),
            ("s < 1e39", true),
            ("s < -1e39", false),
            ("s > -1e39 && s < INFINITY", true),
            ("s && x", true),
            ("!s", false),
        ] {
            let text = format!("n == 0 && ({text})");
            assert_eq!(holds(&text, &tenth), Some(expected), "{text}");
        }
        let big = at(16_777_216.0);
        for (text, expected) in [
            ("s < 16777217", true),
            ("s <= 16777217", true),
            ("s == 16777216", true),
            ("s >= 16777217", false),
            ("x < 0xffffffffffffffff", true),
            ("x == 16777216 && x > -1", true),
        ] {
            assert_eq!(holds(text, &big), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_a_float_cannot_be_part_of_is_an_error() {
        for (text, at, why) in [
            ("x + 1 > 2", 0, "may be compared, and no more"),
            ("n + x > 2", 4, "may be compared, and no more"),
            ("-x > 2", 1, "may be compared, and no more"),
            ("x & 1", 0, "may be compared, and no more"),
            ("n > 0.5", 4, "only a float or double"),
            ("n + 0.5 > 1", 4, "only a float or double"),
            ("x > s", 4, "of different widths"),
            ("x > n", 4, "compared with a constant or another of its type"),
            ("x > 0.5.5", 7, "`.` is nothing"),
            ("x > 1e", 4, "no number"),
            ("0.5", 0, "only a float or double"),
        ] {
            let error = parse(text, &names()).expect_err(text);
            assert_eq!(error.at(), at, "{text}: {error}");
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
