//! A condition as code: it falls through if the condition holds, and jumps if not.
//!
//! In: a tree with values that are known where the code runs: at an entry, or at a return. Out: the code of its program
//! (`filter::lower`), and the jumps that are taken if the condition does not hold. It reads argument registers, and x0
//! at a return, as the program left them (AAPCS64 6.8.2: six of the eight), and vector registers. FLT-1: it
//! decides as [`Tree::holds`] does. This file says where a program's inputs are.
//!
//! ```text
//!   x0 to x5, d0 to d7   the program's, at an entry
//!   x0, d0               the program's, at a return
//!   x16, x17, x11        as `trapline_code::aarch64::emit` says; no other register changes, but flags
//!   x16 A                the value, if one was asked for
//!
//!   words for variables                           = [sp + depth + waiting(n)]
//!   argument n of the entry, at a return          = [[sp + place] + 8 (FIRST_VALUE + n)]
//!   nanoseconds since the entry                   = [sp + took]
//!   field n, here                                 = [sp + at + 8 (words before it + 1)]; [... + 0]: the result
//!   field n, at a return                          = [[sp + place] + at + 8 (words before it + 1)]
//! ```

use std::cell::RefCell;

use trapline_code::aarch64::{self as code, Frame, Inputs, Piece, REGISTERS, emit};
use trapline_record::ring::FIRST_VALUE;

use super::asm::{Asm, Fix, Reg, SP};
use super::frame::waiting;
use super::threads;
use crate::filter::{Asked, Compiled, MAX_WORDS, Made, Question, Sort, Source, TargetFilter, Tree};
use crate::machine::ThreadId;
use crate::programs::Kept;
use crate::request::Read;

/// Number of arguments that a record can hold, of those in registers: x0 to x5.
pub const ARGUMENTS: usize = 6;
/// Number of vector registers that hold arguments: d0 to d7.
const FLOATS: u32 = 8;
/// Upper bound of the bytes that load an input.
const INPUT_BYTES: usize = 16;

/// Upper bound of the code bytes of all that a filter decides and computes.
#[must_use]
pub fn code_bytes(filter: &TargetFilter) -> usize {
    filter.code_bytes(|program| code::most_bytes(program, INPUT_BYTES))
}

thread_local! {
    static MADE: Made<Conditions<'static>, Piece> = const { RefCell::new(Kept::new()) };
}

/// What a condition's code depends on.
#[derive(Clone, Copy, PartialEq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Debug)]
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
    /// Emits code that jumps (to where the fixes are bound) if the tree's truth value is `when`.
    pub(super) fn branch(self, asm: &mut Asm, tree: &Tree, when: bool) -> Vec<Fix> {
        self.emit(asm, tree, Asked::Truth(when))
    }
    /// Leaves in `A` the bucket of a value that may depend on what was read from memory, or the value itself, as `sort`
    /// says. Jumps if that could not be read.
    pub(super) fn read(self, asm: &mut Asm, tree: &Tree, sort: Sort) -> Vec<Fix> {
        self.emit(asm, tree, Asked::Value(sort))
    }

    fn reads(&self) -> &[Read] {
        self.fields.map_or(&[], |fields| fields.reads)
    }
    /// Appends a tree's program. Returns the branches by which it is left.
    fn emit(self, asm: &mut Asm, tree: &Tree, asked: Asked) -> Vec<Fix> {
        let question = Question { tree, asked, fields: self.reads(), in_record: self.left.is_some() };
        let compiled = Compiled::of(&MADE, &question, |program, inputs| {
            code::allocate(program, REGISTERS, MAX_WORDS, &KnownValues { conditions: self, inputs })
        });
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(why) => {
                asm.lack(why);
                return Vec::new();
            }
        };
        compiled.append(asm, (Piece::place(asm), self.places()), Piece::append, |asm| {
            let known = KnownValues { conditions: self, inputs: &compiled.inputs };
            // Nothing is added to memory.
            let frame = Frame { words: self.depth + waiting(0), lse: false };
            let begin = asm.here();
            let leave = emit(asm, &compiled.allocated, &known, frame);
            let leave: Vec<Fix> = leave.into_iter().map(|(_, fix)| fix).collect();
            (Piece::since(asm, begin, &leave), leave)
        })
    }
    /// Where inputs are: all that code depends on besides what is asked.
    fn places(self) -> Conditions<'static> {
        let Self { id, depth, left, fields } = self;
        let fields = fields.map(|Fields { at, .. }| Fields { reads: &[], at });
        Conditions { id, depth, left, fields }
    }
    /// The register that holds a value, unless it is in memory.
    fn register(&self, source: Source) -> Option<Reg> {
        match source {
            Source::Argument(nth) if self.left.is_none() => Some(argument(nth)),
            Source::Returned => Some(0),
            _ => None,
        }
    }
    fn load(&self, asm: &mut Asm, source: Source, to: Reg) {
        match (source, self.left) {
            (Source::Thread, _) => threads::load_below(self.id, asm, to, self.depth),
            (Source::Argument(nth), Some(left)) => {
                left.word(asm, to, FIRST_VALUE + u64::from(argument(nth)));
            }
            (Source::Argument(nth), None) => asm.mov(to, argument(nth)),
            (Source::Returned, _) => asm.mov(to, 0),
            (Source::Took, Some(left)) => asm.load_at(to, SP, left.took),
            (Source::Took, None) => asm.number(to, 0),
            (Source::Float(nth), Some(left)) => left.float(asm, to, nth),
            (Source::Float(nth), None) => asm.vector_to(to, u32::from(nth) % FLOATS),
            (Source::FloatReturned, _) => asm.vector_to(to, 0),
            (Source::FieldResult(nth), _) => self.field(asm, to, (nth, 0)),
            (Source::Field(nth), _) => self.field(asm, to, (nth, 1)),
        }
    }
    /// A word of a field.
    fn field(&self, asm: &mut Asm, to: Reg, (nth, word): (u8, u32)) {
        let Some(fields) = self.fields else { return asm.number(to, 0) };
        let at = fields.word(nth, word);
        match self.left {
            Some(left) => left.word(asm, to, u64::from(at / 8)),
            None => asm.load_at(to, SP, at),
        }
    }
}

/// Number of an argument, and of its register.
fn argument(nth: u8) -> Reg {
    u32::from(nth) % ARGUMENTS as u32
}

/// The inputs of one program.
struct KnownValues<'a> {
    conditions: Conditions<'a>,
    inputs: &'a [Source],
}

impl Inputs for KnownValues<'_> {
    fn register(&self, nth: u16) -> Option<Reg> {
        self.conditions.register(self.inputs[usize::from(nth)])
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        self.conditions.load(asm, self.inputs[usize::from(nth)], to);
    }
}
