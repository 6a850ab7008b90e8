//! A condition as code: it falls through if the condition holds, and jumps if not.
//!
//! In: a tree with values that are known where the code runs: at an entry, or at a return. Out: code, and the
//! jumps that are taken if the condition does not hold. It reads argument registers, and x0 at a return, as
//! the program left them (AAPCS64 6.8.2: six of the eight), and vector registers. FLT-1: it decides as
//! [`Tree::holds`] does.
//!
//! ```text
//!   x16 A   the value, or the left operand           x0 to x5, d0 to d7: the program's, at an entry
//!   x17 B   the right operand                        x0, d0: the program's, at a return
//!   x11 C   the quotient of a remainder              flags are used; no other register changes
//!
//!   left operand, while the right one is computed = [sp + depth + waiting(n)]       n = its depth in the tree
//!   argument n of the entry, at a return          = [[sp + place] + 8 (FIRST_VALUE + n)]
//!   nanoseconds since the entry                   = [sp + took]
//!   field n, here                                 = [sp + at + 8 (words before it + 1)]; [... + 0]: the result
//!   field n, at a return                          = [[sp + place] + at + 8 (words before it + 1)]
//!   order key of a float                          = bits if the sign is 0, else -(bits without the sign)
//! ```

use trapline_record::ring::FIRST_VALUE;

use super::asm::{Asm, Cond, Fix, Reg, SP};
use super::frame::{A, B, C, waiting};
use super::threads;
use crate::filter::{Binary, Float, Int, Known, Tree, Unary};
use crate::machine::ThreadId;
use crate::request::Read;

/// Number of arguments that a record can hold, of those in registers: x0 to x5.
pub const ARGUMENTS: usize = 6;
/// Number of vector registers that hold arguments: d0 to d7.
const FLOATS: u32 = 8;

/// Upper bound of the code bytes for a node, with its share of what joins nodes and of constants.
pub const NODE_BYTES: u64 = 56;

/// What a condition's code depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions<'a> {
    /// How a thread's number is read; it was asked for before.
    pub(super) id: ThreadId,
    /// By how many bytes the stack pointer is below the frame of `frame`.
    pub(super) depth: u32,
    /// At a return: what the entry kept.
    pub(super) left: Option<EntryRecord>,
    /// Where fields are, if they were read.
    pub(super) fields: Option<Fields<'a>>,
}

/// Fields that were read. Each takes a word with the kernel's result, then its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) reads: &'a [Read],
    /// Offset of the first field's result: from the stack pointer; at a return, in the record that the entry
    /// kept.
    pub(super) at: u32,
}

impl Fields<'_> {
    fn word(&self, nth: u8, word: u32) -> u32 {
        let before: usize = self.reads.iter().take(nth.into()).map(Read::words).sum();
        self.at + 8 * (before as u32 + word)
    }
}

/// How to read the record that a call's entry kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRecord {
    /// Offset from the stack pointer of the record's address.
    pub(super) place: u32,
    /// Offset from the stack pointer of the nanoseconds since the entry.
    pub(super) took: u32,
    /// Word of the record at which its floats begin, and a bit for each of the eight floats that it holds.
    pub(super) floats: (u64, u8),
}

impl EntryRecord {
    fn word(self, asm: &mut Asm, to: Reg, n: u64) {
        asm.load_at(to, SP, self.place);
        asm.load_at(to, to, 8 * n as u32);
    }
    fn float(self, asm: &mut Asm, to: Reg, index: u8) {
        let before = self.floats.1 & ((1 << (index & 7)) - 1);
        self.word(asm, to, self.floats.0 + u64::from(before.count_ones()));
    }
}

impl Conditions<'_> {
    /// Conditions at the hit itself, where nothing was read or kept.
    pub(super) const fn of(id: ThreadId) -> Self {
        Self { id, depth: 0, left: None, fields: None }
    }
    const fn waiting(self, nth: usize) -> u32 {
        self.depth + waiting(nth)
    }
    /// A word of a field.
    fn field(self, asm: &mut Asm, to: Reg, (nth, word): (u8, u32)) {
        let Some(fields) = self.fields else { return asm.number(to, 0) };
        let at = fields.word(nth, word);
        match self.left {
            Some(left) => left.word(asm, to, u64::from(at / 8)),
            None => asm.load_at(to, SP, at),
        }
    }
    /// Jumps if all of a field was read, or was not (`when`).
    fn readable(self, asm: &mut Asm, nth: u8, when: bool) -> Vec<Fix> {
        let bytes = self.fields.and_then(|fields| fields.reads.get(usize::from(nth))).map(|read| read.bytes);
        self.field(asm, A, (nth, 0));
        // A field that is not read never compares equal.
        asm.number(B, bytes.map_or(u32::MAX, u32::from));
        asm.compare(A, B);
        vec![asm.if_later(if when { Cond::Equal } else { Cond::NotEqual })]
    }
    /// Emits code that jumps (to where the fixes are bound) if the tree's truth value is `when`.
    pub(super) fn branch(self, asm: &mut Asm, tree: &Tree, when: bool) -> Vec<Fix> {
        self.jump(asm, tree, when, 0)
    }

    /// Leaves in `A` a value that may depend on what was read from memory. Jumps if that could not be read.
    pub(super) fn read(self, asm: &mut Asm, tree: &Tree) -> Vec<Fix> {
        let (readable, value) = tree.if_readable();
        let unread = self.branch(asm, &readable, false);
        self.value(asm, &value, 0);
        unread
    }

    fn jump(self, asm: &mut Asm, tree: &Tree, when: bool, depth: usize) -> Vec<Fix> {
        match tree {
            Tree::Number(value, _) if (*value != 0) == when => vec![asm.b_later()],
            Tree::Number(..) => Vec::new(),
            Tree::Known(Known::Readable(nth)) => self.readable(asm, *nth, when),
            Tree::Unary(Unary::Not, of) => self.jump(asm, of, !when, depth),
            Tree::Binary(op @ (Binary::And | Binary::Or), left, right) => {
                // The value that decides alone: false for `and`, true for `or`.
                let decides = *op == Binary::Or;
                let mut first = self.jump(asm, left, decides, depth);
                let second = self.jump(asm, right, when, depth);
                if when == decides {
                    first.extend(second);
                    return first;
                }
                first.into_iter().for_each(|fix| asm.bind(fix));
                second
            }
            Tree::Binary(op, left, right) if op.compares() => {
                self.compare(asm, *op, (left, right), when, depth)
            }
            tree => {
                self.value(asm, tree, depth);
                vec![if when { asm.unless_zero_later(A) } else { asm.if_zero_later(A) }]
            }
        }
    }

    fn compare(
        self,
        asm: &mut Asm,
        op: Binary,
        (left, right): (&Tree, &Tree),
        when: bool,
        depth: usize,
    ) -> Vec<Fix> {
        let (a, b) = (left.is_unsigned(), right.is_unsigned());
        self.pair(asm, left, right, depth);
        let (mut fixes, mut past) = (Vec::new(), None);
        // A negative number is below every unsigned one; any other number is compared as unsigned.
        let signed = match (a, b) {
            (false, true) if !left.is_natural() => Some((A, op.holds_below())),
            (true, false) if !right.is_natural() => Some((B, op.holds_above())),
            _ => None,
        };
        if let Some((reg, outcome)) = signed {
            let negative = asm.if_sign_later(reg);
            if outcome == when { fixes.push(negative) } else { past = Some(negative) }
        }
        asm.compare(A, B);
        fixes.push(asm.if_later(condition(op, a || b, when)));
        if let Some(past) = past {
            asm.bind(past);
        }
        fixes
    }

    /// Leaves the left operand in `A`, and the right one in `B`.
    fn pair(self, asm: &mut Asm, left: &Tree, right: &Tree, depth: usize) {
        self.value(asm, left, depth);
        if right.is_leaf() {
            return self.leaf(asm, right, B);
        }
        asm.store(A, SP, self.waiting(depth));
        self.value(asm, right, depth + 1);
        asm.mov(B, A);
        asm.load_at(A, SP, self.waiting(depth));
    }

    fn leaf(self, asm: &mut Asm, tree: &Tree, to: Reg) {
        match tree {
            Tree::Number(value, _) => asm.constant(to, *value),
            Tree::Known(Known::Thread) => threads::load_below(self.id, asm, to, self.depth),
            Tree::Known(Known::Argument(index, int)) => {
                let nth = u32::from(*index) % ARGUMENTS as u32;
                let from = self.left.map_or(nth, |left| {
                    left.word(asm, to, FIRST_VALUE + u64::from(nth));
                    to
                });
                extend(asm, to, from, *int);
            }
            Tree::Known(Known::Took) => match self.left {
                Some(left) => asm.load_at(to, SP, left.took),
                None => asm.number(to, 0),
            },
            Tree::Known(Known::Returned(int)) => extend(asm, to, 0, *int),
            Tree::Known(Known::Float(index, float)) => {
                match self.left {
                    Some(left) => left.float(asm, to, *index),
                    None => asm.vector_to(to, u32::from(*index) % FLOATS),
                }
                order_key(asm, to, *float);
            }
            Tree::Known(Known::FloatReturned(float)) => {
                asm.vector_to(to, 0);
                order_key(asm, to, *float);
            }
            Tree::Known(Known::Field(nth, int)) => {
                self.field(asm, to, (*nth, 1));
                extend(asm, to, to, *int);
            }
            Tree::Known(Known::FloatField(nth, float)) => {
                self.field(asm, to, (*nth, 1));
                order_key(asm, to, *float);
            }
            // Such nodes were split off before.
            _ => asm.number(to, 0),
        }
    }

    /// Leaves a value in `A`.
    pub(super) fn value(self, asm: &mut Asm, tree: &Tree, depth: usize) {
        match tree {
            Tree::Number(..) | Tree::Known(_) => self.leaf(asm, tree, A),
            Tree::Unary(Unary::Negate, of) => {
                self.value(asm, of, depth);
                asm.negate(A, A);
            }
            Tree::Unary(Unary::Complement, of) => {
                self.value(asm, of, depth);
                asm.not(A, A);
            }
            Tree::Unary(Unary::Not, _) => self.truth(asm, tree, depth),
            Tree::Binary(op, ..) if op.is_truth() => self.truth(asm, tree, depth),
            Tree::Binary(op, left, right) => self.computed(asm, *op, (left, right), depth),
        }
    }

    fn computed(self, asm: &mut Asm, op: Binary, (left, right): (&Tree, &Tree), depth: usize) {
        let unsigned = left.is_unsigned();
        if let (Binary::ShiftLeft | Binary::ShiftRight, Tree::Number(by, _)) = (op, right) {
            self.value(asm, left, depth);
            let by = *by as u32 & 63;
            return match (op, unsigned) {
                (Binary::ShiftLeft, _) => asm.shift_left_by(A, A, by),
                (_, true) => asm.shift_right_by(A, A, by),
                (_, false) => asm.shift_signed_by(A, A, by),
            };
        }
        self.pair(asm, left, right, depth);
        match op {
            Binary::BitOr => asm.or(A, A, B),
            Binary::BitXor => asm.xor(A, A, B),
            Binary::BitAnd => asm.and(A, A, B),
            Binary::Add => asm.add(A, A, B),
            Binary::Subtract => asm.sub(A, A, B),
            Binary::Multiply => asm.multiply(A, A, B),
            _ => {
                let quotient = if op == Binary::Remainder { C } else { A };
                match unsigned {
                    true => asm.div(quotient, A, B),
                    false => asm.divide_signed(quotient, A, B),
                }
                if op == Binary::Remainder {
                    asm.mul_sub(A, C, B, A);
                }
            }
        }
    }

    /// Leaves 0 or 1 in `A`.
    fn truth(self, asm: &mut Asm, tree: &Tree, depth: usize) {
        let holds = self.jump(asm, tree, true, depth);
        asm.number(A, 0);
        let end = asm.b_later();
        holds.into_iter().for_each(|fix| asm.bind(fix));
        asm.one(A);
        asm.bind(end);
    }
}

/// Extends a register's low bits to a value.
fn extend(asm: &mut Asm, to: Reg, from: Reg, int: Int) {
    match (int.bits, int.signed) {
        (64.., _) => asm.mov(to, from),
        (bits, true) => asm.signed_bits(to, from, bits.into()),
        (bits, false) => asm.bits(to, from, 0, bits.into()),
    }
}

/// [`Float::key`] of the bits in a register.
fn order_key(asm: &mut Asm, to: Reg, float: Float) {
    let magnitude = if float == Float::Double { 63 } else { 31 };
    if float == Float::Single {
        asm.signed_bits(to, to, 32);
    }
    let is_key = asm.unless_sign_later(to);
    asm.bits(to, to, 0, magnitude);
    asm.negate(to, to);
    asm.bind(is_key);
}

fn condition(op: Binary, unsigned: bool, when: bool) -> Cond {
    let op = if when { op } else { op.opposite() };
    match (op, unsigned) {
        (Binary::Equal, _) => Cond::Equal,
        (Binary::Less, true) => Cond::Below,
        (Binary::Less, false) => Cond::Less,
        (Binary::LessEqual, true) => Cond::BelowEq,
        (Binary::LessEqual, false) => Cond::LessEq,
        (Binary::Greater, true) => Cond::Above,
        (Binary::Greater, false) => Cond::Greater,
        (Binary::GreaterEqual, true) => Cond::AboveEq,
        (Binary::GreaterEqual, false) => Cond::GreaterEq,
        _ => Cond::NotEqual,
    }
}
