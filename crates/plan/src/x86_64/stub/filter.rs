//! A condition as code: it falls through if the condition holds, and jumps if not.
//!
//! In: a tree with values that are known where the code runs: at an entry, or at a return with what the entry
//! kept (`EntryRecord`). Out: the code of its program (`filter::lower`), and the jumps that are taken if the
//! condition does not hold. FLT-1: it decides as [`Tree::holds`] does. This file says where a program's inputs are.
//!
//! ```text
//!   in    rdi, rsi, rdx, rcx, r8, r9    at an entry: the arguments, as the program left them (`ARGUMENT`)
//!         [rsp + returned]              at a return: the returned value, as saved
//!         rsi = the entry's record      at a return, if the entry kept one (`EntryRecord::AT`)
//!         [rsp + took]                  then also: nanoseconds since the entry
//!         [rsp + rdx]                   rdx, as saved
//!   work  rax, r11, [rsp + WAITING[n]]  as `trapline_code::x86_64::emit` says
//!   uses  rax, r11, flags; rdx where it divides, then rdx = [rsp + rdx] if something reads it later
//!   out   rax                           the value, if one was asked for
//! ```

use std::cell::RefCell;

use trapline_code::x86_64::{self as code, Frame, Inputs, Piece, REGISTERS, emit};
use trapline_record::ring::FIRST_VALUE;

use super::asm::{Asm, Fix, Mem, R8, R9, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::threads;
use crate::filter::{Asked, Compiled, MAX_WORDS, Made, Question, Sort, Source, TargetFilter, Tree};
use crate::machine::ThreadId;
use crate::programs::Kept;
use crate::request::Read;

/// Registers that hold a function's first integer arguments (System V ABI, 3.2.3).
pub(super) const ARGUMENT: [Reg; 6] = [RDI, RSI, RDX, RCX, R8, R9];
/// Their number.
pub(super) const ARGUMENTS: usize = ARGUMENT.len();

/// Upper bound of the bytes that load an input.
const INPUT_BYTES: usize = 16;

/// Offsets from the stack pointer of the words for variables; no other code saves there.
const WAITING: [i32; MAX_WORDS] = [-32, -40, -48, -56, -64, -72, -96, -104];

/// Upper bound of the code bytes of all that a filter decides and computes.
#[must_use]
pub fn code_bytes(filter: &TargetFilter) -> usize {
    filter.code_bytes(|program| code::most_bytes(program, INPUT_BYTES))
}

thread_local! {
    static MADE: Made<(Conditions<'static>, bool), Piece> = const { RefCell::new(Kept::new()) };
}

/// What a condition's code depends on.
#[derive(Clone, Copy, PartialEq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Debug)]
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
}

/// How to read the record that a call's entry kept. Its address is in [`EntryRecord::AT`].
#[derive(Clone, Copy, PartialEq, Debug)]
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
        self.emit(asm, (tree, Asked::Truth(when)), true)
    }
    /// rax = the bucket of a value that may depend on what was read from memory, or the value itself, as `sort` says.
    /// Jumps if that could not be read. Uses r11, flags, and rdx, which is the program's again if `rdx_is_read`.
    pub(super) fn read(self, asm: &mut Asm<'_>, (tree, sort): (&Tree, Sort), rdx_is_read: bool) -> Vec<Fix> {
        if self.depth > 0 {
            // The copying has overwritten it.
            asm.load(RDX, Mem::At(RSP, self.rdx));
        }
        self.emit(asm, (tree, Asked::Value(sort)), rdx_is_read)
    }
    /// Loads the thread's number; for a call, that of its entry.
    pub(super) fn thread(self, asm: &mut Asm<'_>, to: Reg) {
        self.load_source(asm, Source::Thread, to);
    }

    fn reads(&self) -> &[Read] {
        self.fields.map_or(&[], |fields| fields.reads)
    }
    /// Appends a tree's program. Returns the jumps by which it is left.
    fn emit(self, asm: &mut Asm<'_>, (tree, asked): (&Tree, Asked), rdx_is_read: bool) -> Vec<Fix> {
        let question = Question { tree, asked, fields: self.reads(), in_record: self.left.is_some() };
        let compiled = Compiled::of(&MADE, &question, |program, inputs| {
            code::allocate(program, REGISTERS, WAITING.len(), &KnownValues { conditions: self, inputs })
        });
        let compiled = match compiled {
            Ok(compiled) => compiled,
            Err(why) => {
                asm.lack(why);
                return Vec::new();
            }
        };
        let known = (Piece::place(asm), (self.places(), rdx_is_read));
        compiled.append(asm, known, Piece::append, |asm| {
            let known = KnownValues { conditions: self, inputs: &compiled.inputs };
            let words = WAITING.map(|at| Mem::At(RSP, at));
            let rdx = Mem::At(RSP, self.rdx);
            // Nothing is claimed.
            let frame = Frame { words: &words, rdx, rdx_is_read, spare: [rdx; 2], unbroken: true };
            let begin = asm.here();
            let leave = emit(asm, &compiled.allocated, &known, frame);
            let leave: Vec<Fix> = leave.into_iter().map(|(_, fix)| fix).collect();
            (Piece::since(asm, begin, &leave), leave)
        })
    }
    /// Where inputs are: all that code depends on besides what is asked.
    fn places(self) -> Conditions<'static> {
        let Self { id, depth, rdx, returned, left, fields } = self;
        let fields = fields.map(|Fields { at, .. }| Fields { reads: &[], at });
        Conditions { id, depth, rdx, returned, left, fields }
    }
    /// The register that holds a value, unless it is in memory.
    fn register(&self, source: Source) -> Option<Reg> {
        match source {
            Source::Argument(nth) if self.left.is_none() => Some(ARGUMENT[usize::from(nth) % ARGUMENTS]),
            _ => None,
        }
    }
    fn load_source(&self, asm: &mut Asm<'_>, source: Source, to: Reg) {
        let none = |asm: &mut Asm<'_>| asm.mov_imm32(to, 0);
        match (source, self.left) {
            (Source::Took, Some(left)) => asm.load(to, Mem::At(RSP, left.took)),
            (Source::Took, None) => none(asm),
            (Source::Thread, Some(_)) => {
                asm.load(to, EntryRecord::word(0));
                asm.shift(Shift::Right, to, 32, true);
            }
            (Source::Thread, None) => threads::load(self.id, asm, to, self.depth),
            (Source::Argument(nth), Some(_)) => {
                asm.load(to, EntryRecord::word(FIRST_VALUE + u64::from(nth) % ARGUMENTS as u64));
            }
            (Source::Argument(nth), None) => asm.mov(to, ARGUMENT[usize::from(nth) % ARGUMENTS]),
            (Source::Float(nth), Some(left)) => asm.load(to, left.float(nth)),
            (Source::Float(nth), None) => asm.vector_to(to, nth % 8),
            (Source::FloatReturned, _) => asm.vector_to(to, 0),
            (Source::Returned, _) => match self.returned {
                Some(saved) => asm.load(to, Mem::At(RSP, saved)),
                None => none(asm),
            },
            (Source::FieldResult(nth), _) => match self.fields {
                Some(fields) => asm.load(to, fields.word(nth, 0)),
                None => none(asm),
            },
            (Source::Field(nth), _) => match self.fields {
                Some(fields) => asm.load(to, fields.word(nth, 1)),
                None => none(asm),
            },
        }
    }
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
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        self.conditions.load_source(asm, self.inputs[usize::from(nth)], to);
    }
}
