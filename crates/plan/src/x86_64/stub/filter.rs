//! A condition as code: it falls through if the condition holds, and jumps if not.
//!
//! In: a tree with values that are known where the code runs: at an entry, or at a return with what the entry
//! kept (`EntryRecord`). Out: code, and the jumps that are taken if the condition does not hold.
//! FLT-1: it decides as [`Tree::holds`] does.
//!
//! ```text
//!   in    rdi, rsi, rdx, rcx, r8, r9    at an entry: the arguments, as the program left them (`ARGUMENT`)
//!         [rsp + returned]              at a return: the returned value, as saved
//!         rsi = the entry's record      at a return, if the entry kept one (`EntryRecord::AT`)
//!         [rsp + took]                  then also: nanoseconds since the entry
//!         [rsp + rdx]                   rdx, as saved
//!   work  rax = the value, or the left operand;  r11 = the right operand
//!         [rsp + WAITING[n]]            the left operand at depth n, while the right one is computed
//!   uses  rax, r11, flags; rdx where it divides, then rdx = [rsp + rdx]
//! ```
//!
//! A comparison of a signed number s with an unsigned one u. Only signs of numbers are tested that may be
//! below 0:
//!
//! ```text
//!   s < 0     s < u
//!   s >= 0    s < u  =  (s below u, both as unsigned)
//! ```

use trapline_record::ring::FIRST_VALUE;

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::threads;
use crate::filter::{Binary, Float, Known, MAX_TEMPORARIES, Tree, Unary};
use crate::machine::ThreadId;
use crate::request::Read;

/// Registers that hold a function's first integer arguments (System V ABI, 3.2.3).
pub(super) const ARGUMENT: [Reg; 6] = [RDI, RSI, RDX, RCX, R8, R9];
/// Their number.
pub(super) const ARGUMENTS: usize = ARGUMENT.len();

/// Upper bound of the code bytes for a node, with its share of what joins nodes.
pub const NODE_BYTES: usize = 48;

/// Offsets from the stack pointer at which intermediate values are kept; no other code saves there.
const WAITING: [i32; MAX_TEMPORARIES] = [-32, -40, -48, -56, -64, -72, -96, -104];

/// What a condition's code depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions<'a> {
    /// How a thread's number is read; it was asked for before.
    pub(super) id: ThreadId,
    /// How many bytes lower the stack pointer is now than when the number was asked for.
    pub(super) depth: i32,
    /// Offset from the stack pointer at which rdx is saved.
    pub(super) rdx: i32,
    /// At a return: offset from the stack pointer at which rax, the returned value, is saved.
    pub(super) returned: Option<i32>,
    /// At a return: what the entry kept.
    pub(super) left: Option<EntryRecord>,
    /// Where fields are, if they were read.
    pub(super) fields: Option<Fields<'a>>,
}

/// Fields that were read. Each takes a word with the kernel's result, then its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) reads: &'a [Read],
    /// Where the result of the first field is.
    pub(super) at: (Reg, i32),
}

impl Fields<'_> {
    fn word(&self, nth: u8, word: i32) -> Mem {
        let before: usize = self.reads.iter().take(nth.into()).map(Read::words).sum();
        Mem::At(self.at.0, self.at.1 + (before as i32 + word) * 8)
    }
    /// The result of a field, and its value if the whole field was read.
    fn answer(&self, nth: u8) -> (Mem, i32) {
        (self.word(nth, 0), self.reads.get(usize::from(nth)).map_or(-1, |read| read.bytes.into()))
    }
}

/// How to read the record that a call's entry kept. Its address is in [`EntryRecord::AT`].
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRecord {
    /// Word of the record at which its floats begin, and a bit for each of the eight floats that it holds.
    pub(super) floats: (u64, u8),
    /// Offset from the stack pointer of the nanoseconds since the entry.
    pub(super) took: i32,
}

impl EntryRecord {
    /// Holds the record's address while a condition is evaluated.
    pub(super) const AT: Reg = RSI;
    const fn word(n: u64) -> Mem {
        Mem::At(Self::AT, n as i32 * 8)
    }
    /// Word of the record that holds a float.
    const fn float(self, index: u8) -> Mem {
        let before = self.floats.1 & ((1 << (index & 7)) - 1);
        Self::word(self.floats.0 + before.count_ones() as u64)
    }
}

impl Conditions<'_> {
    /// Emits code that jumps (to where the fixes are bound) if the tree's truth value is `when`.
    pub(super) fn branch(self, asm: &mut Asm<'_>, tree: &Tree, when: bool) -> Vec<Fix> {
        self.jump(asm, tree, when, 0)
    }

    fn jump(self, asm: &mut Asm<'_>, tree: &Tree, when: bool, waiting: usize) -> Vec<Fix> {
        match tree {
            Tree::Number(value, _) if (*value != 0) == when => vec![asm.jmp_later()],
            Tree::Number(..) => Vec::new(),
            Tree::Known(Known::Readable(nth)) => self.readable(asm, *nth, when),
            Tree::Unary(Unary::Not, of) => self.jump(asm, of, !when, waiting),
            Tree::Binary(op @ (Binary::And | Binary::Or), left, right) => {
                // The value that decides alone: false for `and`, true for `or`.
                let decides = *op == Binary::Or;
                let mut first = self.jump(asm, left, decides, waiting);
                let second = self.jump(asm, right, when, waiting);
                if when == decides {
                    first.extend(second);
                    return first;
                }
                first.into_iter().for_each(|fix| asm.bind(fix));
                second
            }
            Tree::Binary(op, left, right) if op.compares() => {
                self.compare(asm, *op, (left, right), when, waiting)
            }
            tree => {
                self.value(asm, tree, waiting);
                vec![asm.unbroken(|asm| {
                    asm.test(RAX, RAX, true);
                    asm.jcc_later(if when { Cond::NotEqual } else { Cond::Equal })
                })]
            }
        }
    }

    fn readable(self, asm: &mut Asm<'_>, nth: u8, when: bool) -> Vec<Fix> {
        match self.fields {
            Some(fields) => vec![asm.unbroken(|asm| {
                let (answer, whole) = fields.answer(nth);
                asm.cmp_mem_imm(answer, whole);
                asm.jcc_later(if when { Cond::Equal } else { Cond::NotEqual })
            })],
            None if when => Vec::new(),
            None => vec![asm.jmp_later()],
        }
    }

    fn compare(
        self,
        asm: &mut Asm<'_>,
        op: Binary,
        (left, right): (&Tree, &Tree),
        when: bool,
        waiting: usize,
    ) -> Vec<Fix> {
        let (a, b) = (left.is_unsigned(), right.is_unsigned());
        let small = immediate(right);
        match small {
            Some(_) => self.value(asm, left, waiting),
            None => self.pair(asm, left, right, waiting),
        }
        let mut fixes = Vec::new();
        let mut past = None;
        // A negative number is below every unsigned one; any other number is compared as unsigned.
        let signed = match (a, b) {
            (false, true) if !left.is_natural() => Some((RAX, op.holds_below())),
            (true, false) if !right.is_natural() => Some((R11, op.holds_above())),
            _ => None,
        };
        if let Some((reg, outcome)) = signed {
            if let (Some(value), R11) = (small, reg) {
                asm.mov_imm64(R11, i64::from(value).cast_unsigned());
            }
            asm.test(reg, reg, true);
            let negative = asm.jcc_later(Cond::Sign);
            if outcome == when { fixes.push(negative) } else { past = Some(negative) }
        }
        let condition = condition(op, a || b, when);
        fixes.push(asm.unbroken(|asm| {
            match small {
                Some(value) => asm.alu_imm(Alu::Cmp, RAX, value, true),
                None => asm.alu(Alu::Cmp, RAX, R11),
            }
            asm.jcc_later(condition)
        }));
        if let Some(past) = past {
            asm.bind(past);
        }
        fixes
    }

    /// rax = left operand, r11 = right operand.
    fn pair(self, asm: &mut Asm<'_>, left: &Tree, right: &Tree, waiting: usize) {
        if right.is_leaf() {
            self.value(asm, left, waiting);
            return self.leaf(asm, right, R11);
        }
        let left_at = Mem::At(RSP, WAITING[waiting % WAITING.len()]);
        self.value(asm, left, waiting);
        asm.store(left_at, RAX);
        self.value(asm, right, waiting + 1);
        asm.mov(R11, RAX);
        asm.load(RAX, left_at);
    }

    pub(super) fn leaf(self, asm: &mut Asm<'_>, tree: &Tree, to: Reg) {
        match tree {
            Tree::Number(value, _) => asm.mov_imm64(to, *value),
            Tree::Known(Known::Took) => match self.left {
                Some(left) => asm.load(to, Mem::At(RSP, left.took)),
                None => asm.mov_imm32(to, 0),
            },
            Tree::Known(Known::Thread) if self.left.is_some() => {
                asm.load(to, EntryRecord::word(0));
                asm.shift(Shift::Right, to, 32, true);
            }
            Tree::Known(Known::Argument(index, int)) if self.left.is_some() => {
                asm.load(to, EntryRecord::word(FIRST_VALUE + u64::from(*index) % ARGUMENT.len() as u64));
                asm.extend(to, to, int.bits, int.signed);
            }
            Tree::Known(Known::Argument(index, int)) => {
                asm.extend(to, ARGUMENT[usize::from(*index) % ARGUMENT.len()], int.bits, int.signed);
            }
            Tree::Known(Known::Float(index, float)) => {
                match self.left {
                    Some(left) => asm.load(to, left.float(*index)),
                    None => asm.vector_to(to, *index % 8),
                }
                order_key(asm, to, *float);
            }
            Tree::Known(Known::FloatReturned(float)) => {
                asm.vector_to(to, 0);
                order_key(asm, to, *float);
            }
            Tree::Known(Known::Returned(int)) => match self.returned {
                Some(saved) => {
                    asm.load(to, Mem::At(RSP, saved));
                    asm.extend(to, to, int.bits, int.signed);
                }
                None => asm.mov_imm32(to, 0),
            },
            Tree::Known(Known::Thread) => threads::load(self.id, asm, to, self.depth),
            Tree::Known(Known::Field(nth, int)) if self.fields.is_some() => {
                self.fields.iter().for_each(|fields| asm.load(to, fields.word(*nth, 1)));
                asm.extend(to, to, int.bits, int.signed);
            }
            Tree::Known(Known::FloatField(nth, float)) if self.fields.is_some() => {
                self.fields.iter().for_each(|fields| asm.load(to, fields.word(*nth, 1)));
                order_key(asm, to, *float);
            }
            // Such nodes were split off before.
            _ => asm.mov_imm32(to, 0),
        }
    }

    /// rax = the tree's value. Uses r11 and flags.
    pub(super) fn value(self, asm: &mut Asm<'_>, tree: &Tree, waiting: usize) {
        match tree {
            Tree::Number(..) | Tree::Known(_) => self.leaf(asm, tree, RAX),
            Tree::Unary(Unary::Negate, of) => {
                self.value(asm, of, waiting);
                asm.negate(RAX);
            }
            Tree::Unary(Unary::Complement, of) => {
                self.value(asm, of, waiting);
                asm.not(RAX);
            }
            Tree::Unary(Unary::Not, _) => self.truth(asm, tree, waiting),
            Tree::Binary(op, ..) if op.is_truth() => self.truth(asm, tree, waiting),
            Tree::Binary(op, left, right) => {
                let unsigned = left.is_unsigned();
                match (immediate(right), alu(*op)) {
                    (Some(value), Some(alu)) => {
                        self.value(asm, left, waiting);
                        asm.alu_imm(alu, RAX, value, true);
                    }
                    (None, Some(alu)) => {
                        self.pair(asm, left, right, waiting);
                        asm.alu(alu, RAX, R11);
                    }
                    (_, None) => self.other(asm, *op, unsigned, (left, right), waiting),
                }
            }
        }
    }

    fn other(
        self,
        asm: &mut Asm<'_>,
        op: Binary,
        unsigned: bool,
        (left, right): (&Tree, &Tree),
        waiting: usize,
    ) {
        if let (Binary::ShiftLeft | Binary::ShiftRight, Tree::Number(by, _)) = (op, right) {
            self.value(asm, left, waiting);
            let shift = match (op, unsigned) {
                (Binary::ShiftLeft, _) => Shift::Left,
                (_, true) => Shift::Right,
                (_, false) => Shift::SignedRight,
            };
            return asm.shift(shift, RAX, *by as u8 & 63, true);
        }
        self.pair(asm, left, right, waiting);
        if op == Binary::Multiply {
            return asm.multiply(RAX, R11);
        }
        match unsigned {
            true => {
                asm.mov_imm32(RDX, 0);
                asm.div(R11);
            }
            false => asm.divide_signed(R11),
        }
        if op == Binary::Remainder {
            asm.mov(RAX, RDX);
        }
        asm.load(RDX, Mem::At(RSP, self.rdx));
    }

    /// rax = 1 if the tree holds, else 0.
    fn truth(self, asm: &mut Asm<'_>, tree: &Tree, waiting: usize) {
        let holds = self.jump(asm, tree, true, waiting);
        asm.mov_imm32(RAX, 0);
        let end = asm.jmp_later();
        holds.into_iter().for_each(|fix| asm.bind(fix));
        asm.mov_imm32(RAX, 1);
        asm.bind(end);
    }
}

/// `to` = [`Float::key`] of the bits in `to`. Uses flags.
///
/// ```text
///   b >= 0    key = b                     b: the bits as a signed number, a float's extended to 64 bits
///   b < 0     key = (lowest number) - b   of 64 bits for a double, of 32 bits for a float
/// ```
fn order_key(asm: &mut Asm<'_>, to: Reg, float: Float) {
    let wide = float == Float::Double;
    if !wide {
        asm.extend(to, to, 32, true);
    }
    asm.test(to, to, true);
    let is_key = asm.jcc_later(Cond::NotSign);
    asm.negate(to);
    match wide {
        true => asm.flip_sign(to),
        false => asm.alu_imm(Alu::Add, to, i32::MIN, true),
    }
    asm.bind(is_key);
}

/// A constant that an instruction can hold.
fn immediate(tree: &Tree) -> Option<i32> {
    match tree {
        Tree::Number(value, _) => i32::try_from(value.cast_signed()).ok(),
        _ => None,
    }
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

const fn alu(op: Binary) -> Option<Alu> {
    Some(match op {
        Binary::BitOr => Alu::Or,
        Binary::BitXor => Alu::Xor,
        Binary::BitAnd => Alu::And,
        Binary::Add => Alu::Add,
        Binary::Subtract => Alu::Sub,
        _ => return None,
    })
}
