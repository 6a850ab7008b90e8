//! Conditions on a hit: `flags & O_CREAT && ret < 0`.
//!
//! In: text, and what its names mean. Out: a typed [`Tree`]; its value for given [`Facts`]; the part of it
//! that is known at an entry, which becomes code in the target (`x86_64::stub::filter`); and the rest, which
//! the reader evaluates. The grammar is in docs/guide/filters.md. Invariants: FLT-1 code and [`Tree::holds`] agree
//! on all facts; FLT-2 a tree has at most [`MAX_NODES`] nodes and needs at most [`MAX_TEMPORARIES`]
//! temporaries, so that its code is bounded. Does not: assign, call, read memory.
//!
//! Floats are only compared ([`Float`]). All other values are integers of 64 bits, signed except for those
//! that need the 64th bit (`size_t`, pointers). Operators and their precedence are C's. Arithmetic wraps;
//! comparisons are those of the numbers, so a negative number is below every unsigned one.

mod compiled;
mod decided;
mod error;
mod eval;
mod float;
mod lower;
mod parse;
mod real;
mod target;
mod token;
mod tree;

pub(crate) use compiled::{Asked, Compiled, Made, Question};
pub use error::{FilterError, Misread};
pub use eval::{Facts, FloatArguments};
pub use float::Float;
pub(crate) use lower::Source;
pub use parse::{parse, parse_with, registers};
pub use target::{
    GroupBy, KEY_BITS, Late, OPERANDS, ROW_BITS, Sort, THREAD_UNIT, Taken, Tally, TargetFilter,
};
pub use tree::{Binary, Int, Known, MAX_FIELDS, MAX_NODES, MAX_TEMPORARIES, MAX_WORDS, Symbol, Tree, Unary};

#[cfg(test)]
mod tests {
    use super::{Binary, Int, Known, Symbol, Tree, parse};

    const INT: Int = Int { bits: 32, signed: true };

    fn names() -> Vec<(String, Symbol)> {
        [
            ("flags", Symbol::Known(Known::Argument(1, INT))),
            ("ret", Symbol::Known(Known::Returned(INT))),
            ("O_CREAT", Symbol::Constant(0o100)),
        ]
        .map(|(name, symbol)| (name.to_owned(), symbol))
        .to_vec()
    }

    #[test]
    fn what_is_known_at_entry_is_split_off() {
        let split = |text: &str| parse(text, &names()).expect(text).split();
        let (early, late) = split("flags & O_CREAT && ret < 0 && flags != 3");
        assert_eq!(early.map(|tree| tree.nodes()), Some(7));
        assert!(matches!(late, Some(Tree::Binary(Binary::Less, ..))));
        let (early, late) = split("flags & O_CREAT || ret < 0");
        assert!(early.is_none() && late.is_some(), "an `or` is decided as a whole");
        assert_eq!(split("flags > 1").1, None);
    }

    #[test]
    fn a_call_that_returned_nothing_passes_where_that_does_not_matter() {
        let names = names();
        let facts = |flags: u64| super::Facts { arguments: [0, flags, 0, 0, 0, 0], ..Default::default() };
        for text in [
            "ret < 0",
            "!(ret < 0)",
            "ret < 0 || flags == 1",
            "ret < 0 && flags == 1",
            "!(ret < 0 && flags == 1)",
            "!(ret < 0 || flags == 1) || flags == 2",
            "!!(flags == 1 || !(ret == 3))",
            "ret + flags || flags == 1",
        ] {
            let tree = parse(text, &names).expect(text);
            assert!(tree.is_known_at_return(), "{text}");
            for flags in 0..3 {
                let of_reader = tree.holds(&facts(flags)) == Some(true);
                assert_eq!(tree.at_tail().holds(&facts(flags)), Some(of_reader), "{text} {flags}");
            }
        }
    }

    #[test]
    fn values_are_as_wide_as_their_types() {
        for (bits, signed, expected) in [
            (8, true, -1_i64 as u64),
            (8, false, 0xff),
            (16, true, -1_i64 as u64),
            (16, false, 0x80ff + 0x7f00),
            (32, true, 0x1234_ffff),
            (64, false, 0xabcd_0000_1234_ffff),
        ] {
            assert_eq!(Int { bits, signed }.value(0xabcd_0000_1234_ffff), expected, "{bits} {signed}");
        }
    }
}
