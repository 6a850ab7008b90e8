//! Expressions → numbers that the target computes.
//!
//! In: typed expressions. Out: a [`Word`], or why there is none. A word is asked for with or without a sign: its number is
//! that of the expression's 64 bits, read so. `+ - * & | ^ << ~` give the same bits either way. Invariant: LOW-1.
//! Does not: fold constants.

use crate::calls::Meaning;
use crate::program::{Op, Typed};
use crate::tree::{Binary, Unary};
use crate::types::{Int, Type};
use crate::word::{Width, Word};

/// Most parts of a word, and most values that wait at once. The target's language has room for more.
const MOST: (usize, usize) = (32, 5);

/// Why an expression is no word.
pub(super) type Why = String;

/// A word without regard to its sign: only its bits matter.
pub(super) fn bits(expr: &Typed) -> Result<Word, Why> {
    any(expr).and_then(fits)
}

/// A word whose number is that of the 64 bits, read with or without a sign.
pub(super) fn number(expr: &Typed, unsigned: bool) -> Result<Word, Why> {
    word(expr, unsigned).and_then(fits)
}

/// A word that is 0 if the expression does not hold.
pub(super) fn condition(expr: &Typed) -> Result<Word, Why> {
    bits(expr)
}

fn fits(word: Word) -> Result<Word, Why> {
    match word.parts() <= MOST.0 && word.waiting() <= MOST.1 {
        true => Ok(word),
        false => Err("an expression is too long".to_owned()),
    }
}

fn any(expr: &Typed) -> Result<Word, Why> {
    word(expr, false).or_else(|_| word(expr, true))
}

fn word(expr: &Typed, unsigned: bool) -> Result<Word, Why> {
    if !expr.ty.is_number() {
        return Err(format!("the target computes numbers only, not {}", expr.ty));
    }
    match &*expr.op {
        Op::Zero => Ok(Word::Number(0, unsigned)),
        Op::Int(value) => Ok(Word::Number(*value as u64, unsigned)),
        Op::Call { meaning, args } if args.is_empty() => leaf(*meaning, 64, unsigned),
        Op::Cast(of) => cast(of, &expr.ty, unsigned),
        Op::Compute(op, left, right) => compute(*op, left, right, unsigned),
        Op::And(left, right) => Ok(Word::binary(Binary::And, any(left)?, any(right)?)),
        Op::Or(left, right) => Ok(Word::binary(Binary::Or, any(left)?, any(right)?)),
        Op::Not(of) => Ok(Word::Unary(Unary::Not, Box::new(any(of)?))),
        Op::Invert(of) => signed_as(Word::Unary(Unary::Invert, Box::new(either(of, unsigned)?)), unsigned),
        Op::Negate(of) => signed_as(Word::Unary(Unary::Negate, Box::new(either(of, unsigned)?)), unsigned),
        Op::Block { steps, value } if steps.is_empty() => word(value, unsigned),
        op => Err(format!("{} is not known to the target", name(op))),
    }
}

/// What an expression is, for people.
fn name(op: &Op) -> &'static str {
    match op {
        Op::Local(_) | Op::AddressOfLocal(_) => "a variable",
        Op::Map { .. } | Op::OnMap { .. } | Op::Find { .. } => "what a map holds",
        Op::Load { .. } | Op::Offset { .. } | Op::Slice { .. } => "memory of the program",
        Op::If { .. } => "a choice",
        Op::Call { .. } => "the result of a function",
        _ => "an expression",
    }
}

/// A word of the same bits; preferably one that is read as asked for.
fn either(expr: &Typed, unsigned: bool) -> Result<Word, Why> {
    word(expr, unsigned).or_else(|_| word(expr, !unsigned))
}

/// The same bits, read as asked for.
fn signed_as(word: Word, unsigned: bool) -> Result<Word, Why> {
    match (word.is_unsigned(), unsigned) {
        (is, asked) if is == asked || word.suits_both() => Ok(word),
        (false, true) => Ok(Word::binary(Binary::BitOr, word, Word::Number(0, true))),
        _ => {
            Err("numbers with and without signs are mixed in a way that the target does not know".to_owned())
        }
    }
}

/// An argument or the returned value.
fn leaf(meaning: Meaning, bits: u8, unsigned: bool) -> Result<Word, Why> {
    /// Number of arguments that the target knows.
    const REGISTERS: u8 = 6;
    let width = Width { bits, signed: !unsigned };
    match meaning {
        Meaning::Argument(index) if index < REGISTERS => Ok(Word::Argument(index, width)),
        Meaning::Retval => Ok(Word::Returned(width)),
        Meaning::Tid => Err("tid is known to the target as a key, and compared with a number".to_owned()),
        _ => Err("the result of a function is not known to the target".to_owned()),
    }
}

fn cast(of: &Typed, ty: &Type, unsigned: bool) -> Result<Word, Why> {
    let int = match ty {
        Type::Bool => return Ok(Word::binary(Binary::Unequal, any(of)?, Word::Number(0, false))),
        Type::Int(int) => int,
        _ => return Err(format!("the target does not cast to {ty}")),
    };
    if !of.ty.is_number() {
        return Err(format!("the target does not cast {}", of.ty));
    }
    let bits = int.size.clamp(1, 8) * 8;
    if bits == 64 {
        return either(of, unsigned).and_then(|word| signed_as(word, unsigned));
    }
    if let Op::Call { meaning, args } = &*of.op
        && args.is_empty()
    {
        return signed_as(leaf(*meaning, bits, !int.signed)?, unsigned);
    }
    let over = Word::Number(u64::from(64 - bits), false);
    if !int.signed {
        return Ok(Word::binary(Binary::BitAnd, any(of)?, Word::Number(u64::MAX >> (64 - bits), false)));
    }
    let inner = word(of, false)?;
    if inner.is_unsigned() {
        return Err(
            "numbers with and without signs are mixed in a way that the target does not know".to_owned()
        );
    }
    let raised = Word::binary(Binary::Left, inner, over.clone());
    signed_as(Word::binary(Binary::Right, raised, over), unsigned)
}

/// Whether the interpreter compares and divides two operands with their signs.
fn is_signed(left: &Type, right: &Type) -> bool {
    let flexible = |ty: &Type| matches!(ty, Type::Int(Int { flexible: true, .. }));
    let unsigned = |ty: &Type| ty.is_number() && !ty.is_signed();
    (left.is_signed() || right.is_signed())
        && !(flexible(left) && unsigned(right))
        && !(flexible(right) && unsigned(left))
}

fn compute(op: Binary, left: &Typed, right: &Typed, unsigned: bool) -> Result<Word, Why> {
    if let Some(word) = of_thread(op, left, right).or_else(|| of_thread(op, right, left)) {
        return Ok(word);
    }
    let signed = is_signed(&left.ty, &right.ty);
    match op {
        Binary::Equal | Binary::Unequal => {
            let both = |unsigned| Ok(Word::binary(op, word(left, unsigned)?, word(right, unsigned)?));
            both(false).or_else(|_: Why| both(true))
        }
        op if op.compares() => Ok(Word::binary(op, word(left, !signed)?, word(right, !signed)?)),
        Binary::Left | Binary::Right => {
            let by = right.constant().ok_or("the target shifts by constants only")? & 63;
            let by_word = Word::Number(by as u64, false);
            match op {
                _ if by == 0 => word(left, unsigned),
                Binary::Left => signed_as(Word::binary(op, either(left, unsigned)?, by_word), unsigned),
                _ => Ok(Word::binary(op, word(left, true)?, by_word)),
            }
        }
        Binary::Divide | Binary::Remainder => match right.constant() {
            Some(1) if op == Binary::Divide => word(left, unsigned),
            Some(by @ 1..) => {
                let divided = Word::binary(op, word(left, !signed)?, Word::Number(by as u64, false));
                signed_as(divided, unsigned)
            }
            _ => Err("the target divides by constants above 0 only".to_owned()),
        },
        _ => signed_as(Word::binary(op, either(left, unsigned)?, either(right, unsigned)?), unsigned),
    }
}

/// `tid == 5`
fn of_thread(op: Binary, left: &Typed, right: &Typed) -> Option<Word> {
    let is_thread = matches!(&*left.op, Op::Call { meaning: Meaning::Tid, args } if args.is_empty());
    let number = right.constant().filter(|_| is_thread && matches!(op, Binary::Equal | Binary::Unequal))?;
    Some(Word::binary(op, Word::Thread, Word::Number(number as u64, false)))
}
