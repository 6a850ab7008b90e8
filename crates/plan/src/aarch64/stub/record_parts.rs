//! What writes a record, as code: the parts of that program (`programs::records`), with the registers and words of a
//! stub. The same as x86-64's twin.
//!
//! In: a part; where the stub has its inputs. Out: the part's code, appended; the branches by which it is left.
//!
//! ```text
//!             in                                             out                        uses
//!   Find      x17 B = the thread's area                      x14 RING, x15 AT = head    x16 A, x11 C, flags
//!   Slot      x14 RING, x15 AT                               x13 SLOT                   -
//!   Words     x14 RING, x13 SLOT, x12 TIME; x15 AT = used    [RING + HEAD] += length    x16 A, x17 B, x11 C
//!             x0 to x5
//!
//!   of a compact ring (`programs::calls`):
//!   FindCompact   x17 B = the thread's area                  x14 RING                   x15, x16, x11 C, flags
//!   Word, Pair    x14 RING, x12 TIME                         [RING + HEAD] += words     x13, x15 to x17, x11 C, flags
//!                 values: x0 to x5, vectors, [sp + TEXTS] (`text`)
//!   Packed        [sp + TEXTS]                             the texts and their words  x13 to x17, x11 C, [sp], flags
//! ```
//!
//! Memory is ordered no more than necessary. The head is stored with release, so that a reader that sees it sees the
//! slots. A slot's stores come behind the load of the tail, since a branch that depends on it lies between them.

use std::cell::RefCell;

use trapline_code::Allocated;
use trapline_code::aarch64::{Frame, Inputs, Piece, allocate, emit};
use trapline_record::calls::{PROBE_SHIFT, VALUES};
use trapline_record::ring::{RecordKind, TEXT_WORDS};

use super::asm::{Asm, Fix, Reg, SP};
use super::latency::{G, STACK_END};
use super::rseq::CPU_ID;
use super::saves::{A, AT, B, C, RING, SLOT, TIME};
use super::text::FIRST_COPY;
use crate::machine::ThreadId;
use crate::programs::packed;
use crate::programs::records::{Behind, Part, ValuePlace, input};
use crate::programs::{Kept, Pieces};

/// A part with its locations; and its code, if that is the same for all probes.
#[derive(Debug)]
struct Made {
    question: Question,
    allocated: Allocated,
    pieces: Pieces<Piece>,
}

/// The part, where the rings are, what stands behind a record.
type Question = (Part, u64, Behind);

thread_local! {
    static MADE: RefCell<Kept<Made>> = const { RefCell::new(Kept::new()) };
}

/// How records are identified: both records of a call have this key, and no other open call has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordKey {
    /// The stack pointer at the entry, which is this many bytes above the stack pointer.
    Stack(u32),
    /// The same as a goroutine's place ([`place`]).
    Goroutine(u32),
    /// The address to which the record is written.
    Itself,
    /// The address to which the entry's record was written. It is in the frame, at this offset from the stack
    /// pointer.
    Left(u32),
}

impl Made {
    /// Appends the part. Returns the jumps of its outcomes.
    fn append(&self, asm: &mut Asm, inputs: &RecordInputs) -> Vec<(u8, Fix)> {
        let (place, begin) = (Piece::place(asm), asm.here());
        if let Some(appended) = self.pieces.append(place, |piece| piece.append(asm)) {
            return appended;
        }
        // Nothing is added by an atomic access.
        let frame = Frame { words: 0, lse: false };
        let leave = emit(asm, &self.allocated, inputs, frame);
        // The words of a record have the probe's number in them.
        if !matches!(self.question.0, Part::Words { .. } | Part::Word(_) | Part::Pair(_)) {
            self.pieces.keep(place, &leave, |jumps| Piece::since(asm, begin, jumps));
        }
        leave
    }
}

/// Where a part's inputs are.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordInputs {
    /// Address of ring 0.
    pub(super) rings: u64,
    pub(super) kind: RecordKind,
    pub(super) id: ThreadId,
    pub(super) probe: u32,
    pub(super) key: RecordKey,
    /// The record is a word of a compact ring.
    pub(super) is_compact: bool,
    /// What stands behind it there.
    pub(super) behind: Behind,
}

impl RecordInputs {
    /// Appends a part, or notes why there is no code. Returns the branches of its outcomes.
    pub(super) fn append(&self, asm: &mut Asm, part: Part) -> Vec<(u8, Fix)> {
        let registers: &[Reg] = match part {
            Part::Find { .. } => &[RING, AT, A],
            Part::Slot { .. } => &[SLOT],
            Part::Words { .. } => &[A, B],
            Part::FindCompact { .. } => &[RING, AT, A],
            Part::Word(_) | Part::Pair(_) => &[A, B, AT, SLOT],
            Part::Packed(_) => &[A, B, AT, SLOT, RING],
        };
        // At the copies' begin there are words that `text` has used up.
        let words = if let Part::Packed(_) = part { packed::WORDS } else { 0 };
        let question = (part, self.rings, self.behind);
        let appended = MADE.with_borrow_mut(|made| {
            let make = || {
                let allocated = allocate(part.program()?, registers, words, self)?;
                Ok(Made { question, allocated, pieces: Pieces::new() })
            };
            made.answer(|made| made.question == question, make).map(|made| made.append(asm, self))
        });
        appended.unwrap_or_else(|why| {
            asm.lack(why);
            Vec::new()
        })
    }
}

impl Inputs for RecordInputs {
    fn register(&self, nth: u16) -> Option<Reg> {
        match nth {
            input::RING => Some(RING),
            input::HEAD | input::USED if !self.is_compact => Some(AT),
            input::SLOT if !self.is_compact => Some(SLOT),
            input::TIME => Some(TIME),
            input::VALUE.. if self.is_compact => match self.behind.place(nth - input::VALUE) {
                ValuePlace::Argument(nth) => Some(nth.into()),
                ValuePlace::Returned => Some(0),
                ValuePlace::Text(_) | ValuePlace::Field(_) | ValuePlace::Vector(_) => None,
            },
            input::VALUE.. => Some(Reg::from(nth - input::VALUE)),
            _ => None,
        }
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        match nth {
            input::RINGS => asm.constant(to, self.rings),
            input::CPU => asm.load32(to, B, CPU_ID),
            input::IDS if self.is_compact => {
                let values = if self.behind.is_there() { VALUES as u32 } else { 0 };
                asm.number(to, self.probe << PROBE_SHIFT | self.kind as u32 | values);
            }
            input::COPIES => asm.add_imm(to, SP, FIRST_COPY as i32),
            input::USED => asm.load_at(to, SP, FIRST_COPY.wrapping_add_signed(packed::USED_AT)),
            input::VALUE.. => match self.behind.place(nth - input::VALUE) {
                ValuePlace::Text(word) => {
                    // Such words begin where no multiple of 8 is.
                    asm.add_imm(to, SP, FIRST_COPY as i32 + packed::TEXTS_AT + 8 * i32::from(word));
                    asm.load(to, to);
                }
                ValuePlace::Field(word) => {
                    let texts = TEXT_WORDS as u32 * u32::from(self.behind.texts.many);
                    asm.load_at(to, SP, FIRST_COPY + 8 * (texts + u32::from(word)));
                }
                ValuePlace::Vector(vector) => asm.load_of_vector(to, vector.into()),
                ValuePlace::Argument(nth) => asm.mov(to, nth.into()),
                ValuePlace::Returned => asm.mov(to, 0),
            },
            input::THREAD => match self.id {
                ThreadId::At(offset) => {
                    asm.thread_pointer(C);
                    asm.add_imm(C, C, offset);
                    asm.load32(to, C, 0);
                }
                _ => asm.number(to, 0),
            },
            input::IDS => {
                asm.number(to, self.probe);
                if let ThreadId::At(offset) = self.id {
                    asm.thread_pointer(C);
                    asm.add_imm(C, C, offset);
                    asm.load32(C, C, 0);
                    asm.add_shifted(to, to, C, 32);
                }
            }
            // The key; the others are in registers.
            _ => {
                let kind = self.kind as i32;
                match self.key {
                    RecordKey::Stack(above) => return asm.add_imm(to, SP, above as i32 + kind),
                    RecordKey::Goroutine(above) => {
                        asm.add_imm(to, SP, above as i32);
                        place(asm, to);
                    }
                    RecordKey::Itself => asm.mov(to, SLOT),
                    RecordKey::Left(at) => asm.load_at(to, SP, at),
                }
                asm.add_imm(to, to, kind);
            }
        }
    }
}

/// From `to` = S to the number of a place on a goroutine's stack. It is the same wherever that stack is, and
/// different for any other place. The low 40 bits are g's, since Go's heap lies there. Deeper calls have
/// smaller numbers. Uses `C`.
///
/// ```text
///   to = ((S - [g + STACK_END]) << 36) + g     S if g = 0
/// ```
fn place(asm: &mut Asm, to: Reg) {
    let no_goroutine = asm.if_zero_later(G);
    asm.load_at(C, G, STACK_END);
    asm.sub(to, to, C);
    asm.shift_left_by(to, to, 36);
    asm.add(to, to, G);
    asm.bind(no_goroutine);
}
