//! What writes a record, as code: the parts of that program (`programs::records`), with the registers and words of a
//! stub.
//!
//! In: a part; where the stub has its inputs. Out: the part's code, appended; the jumps by which it is left.
//!
//! ```text
//!             in                                   out                             uses
//!   Find      fs:[area + CPU_ID]                   r11 = ring, rax = head          r10, flags
//!   Slot      r11, rax                             r10 = slot                      flags
//!   Words     r11, r10, rdx = time; rcx = used     [r11 + HEAD] += length          rax, rdx, flags
//!             arguments or results, [rsp + saved] (`saves`)
//!
//!   of a compact ring (`programs::calls`):
//!   FindCompact   fs:[area + CPU_ID]             r11 = ring                      rax, r10, flags
//!   Word, Pair    r11, rdx = time                [r11 + HEAD] += words           rax, rdx, r10, flags
//!                 values: arguments, [rsp + saved], vectors, [rsp + ANSWER] (`text`)
//!   Packed        [rsp + ANSWER]                 the texts and their words       rax, rdx, r10, r11, [rsp], flags
//! ```
//!
//! Each thread keeps some programs that it made, with locations. What differs from probe to probe is in no program.

use std::cell::{Cell, RefCell};

use trapline_code::Allocated;
use trapline_code::x86_64::{Frame, Inputs, Piece, allocate, emit};
use trapline_record::calls::{PROBE_SHIFT, VALUES};
use trapline_record::ring::{RecordKind, TEXT_WORDS};

use super::asm::{Alu, Asm, Fix, Mem, R8, R9, R10, R11, RAX, RBX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::filter::ARGUMENT;
use super::passed::passed;
use super::rseq::CPU_ID;
use super::saves::{SAVED_R10, SAVED_R11, SAVED_RAX, SAVED_RDX, SAVED_RSI};
use super::text::ANSWER;
use super::threads;
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
    numbered: Numbered,
}

/// Code that is the same for all probes but for the probe's number, with the offset of that, and the inputs that it was
/// made for.
#[derive(Debug)]
struct Numbered {
    inputs: Cell<Option<RecordInputs>>,
    pieces: Pieces<(Piece, usize)>,
}

/// The part, where its values are, where the rings and the areas are, what stands behind a record.
type Question = (Part, ValuesAt, u64, i32, Behind);

/// Where the values of a record are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ValuesAt {
    /// In the registers of arguments.
    Arguments,
    /// In these registers, but for what is saved.
    Results([Reg; 9], Saved),
}

/// Which of them are saved, and where.
type Saved = &'static [(Reg, i32)];

/// The registers in which functions return integers, in their order. C's have two.
const RESULTS: [Reg; 9] = [RAX, RDX, RAX, RAX, RAX, RAX, RAX, RAX, RAX];
const GO_RESULTS: [Reg; 9] = [RAX, RBX, RCX, RDI, RSI, R8, R9, R10, R11];
/// What a record's code overwrites of them.
const SAVED: Saved = &[(RAX, SAVED_RAX), (RDX, SAVED_RDX), (R10, SAVED_R10), (R11, SAVED_R11)];
/// The same where rsi holds the call's cell.
const SAVED_AND_RSI: Saved =
    &[(RAX, SAVED_RAX), (RDX, SAVED_RDX), (R10, SAVED_R10), (R11, SAVED_R11), (RSI, SAVED_RSI)];

/// Words for variables while the copies are there, for programs that run before the record: `text` has used them up.
const WORDS: [Mem; packed::WORDS] = [
    Mem::At(RSP, 0),
    Mem::At(RSP, 8),
    Mem::At(RSP, 16),
    Mem::At(RSP, 24),
    Mem::At(RSP, 32),
    Mem::At(RSP, 40),
    Mem::At(RSP, 48),
    Mem::At(RSP, 56),
];

thread_local! {
    static MADE: RefCell<Kept<Made>> = const { RefCell::new(Kept::new()) };
}

/// How a record gets its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ids {
    /// The thread's number, and the probe.
    Of(ThreadId, u32),
    /// The thread's number, and the probe that the stub has passed.
    Passed(ThreadId),
    /// The word that the entry kept in the cell at this address.
    Kept(Reg),
    /// The same numbers, for a word of a compact ring.
    Compact(ThreadId, u32),
}

impl Made {
    /// Appends the part. Returns the jumps of its outcomes.
    fn append(&self, asm: &mut Asm<'_>, inputs: &RecordInputs) -> Vec<(u8, Fix)> {
        // The words of a record have the probe's number in them.
        match self.question.0 {
            Part::Words { .. } | Part::Word(_) | Part::Pair(_) => match inputs.number() {
                Some(number) if self.numbered.is_for(inputs) => self.append_numbered(asm, inputs, number),
                _ => self.emit(asm, inputs),
            },
            _ => {
                let (place, begin) = (Piece::place(asm), asm.here());
                if let Some(appended) = self.pieces.append(place, |piece| piece.append(asm)) {
                    return appended;
                }
                let leave = self.emit(asm, inputs);
                self.pieces.keep(place, &leave, |jumps| Piece::since(asm, begin, jumps));
                leave
            }
        }
    }
    fn append_numbered(&self, asm: &mut Asm<'_>, inputs: &RecordInputs, number: u32) -> Vec<(u8, Fix)> {
        let (place, begin, kept) = (Piece::place(asm), asm.here(), &self.numbered.pieces);
        if let Some(appended) = kept.append(place, |(piece, at)| piece.append_with(asm, *at, number)) {
            return appended;
        }
        let leave = self.emit(asm, inputs);
        let jumps: Vec<Fix> = leave.iter().map(|one| one.1).collect();
        let piece = Piece::since(asm, begin, &jumps);
        let (mut other, next) = (Vec::new(), inputs.of_next_probe());
        self.emit(&mut Asm::new(&mut other, begin), &next);
        let at = next.number().and_then(|next| piece.place_of(&other, (number, next)));
        if let Some(at) = at {
            kept.keep(place, &leave, |_| (piece, at));
        }
        leave
    }
    fn emit(&self, asm: &mut Asm<'_>, inputs: &RecordInputs) -> Vec<(u8, Fix)> {
        // No program divides or claims.
        let none = Mem::At(RSP, SAVED_RDX);
        let frame = Frame { words: &WORDS, rdx: none, rdx_is_read: false, spare: [none; 2], unbroken: true };
        emit(asm, &self.allocated, inputs, frame)
    }
}

impl Numbered {
    const fn new() -> Self {
        Self { inputs: Cell::new(None), pieces: Pieces::new() }
    }
    /// Whether it is for these inputs, whatever the probe. It is for the first that it is asked about.
    fn is_for(&self, inputs: &RecordInputs) -> bool {
        let asked = inputs.of_any_probe();
        let known = self.inputs.get().unwrap_or(asked);
        self.inputs.set(Some(known));
        known == asked
    }
}

/// Where a part's inputs are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordInputs {
    /// Address of ring 0.
    pub(super) rings: u64,
    /// Offset of the threads' areas.
    pub(super) area: i32,
    pub(super) kind: RecordKind,
    pub(super) ids: Ids,
    /// The key, as the address of this operand.
    pub(super) key: (Reg, i32),
    /// By how many bytes the stack pointer is lower than where it was saved.
    pub(super) depth: i32,
    /// What is returned is in Go's registers.
    pub(super) by_go: bool,
    /// What stands behind a record in a compact ring.
    pub(super) behind: Behind,
}

impl RecordInputs {
    /// Appends a part, or notes why there is no code. Returns the jumps of its outcomes.
    pub(super) fn append(&self, asm: &mut Asm<'_>, part: Part) -> Vec<(u8, Fix)> {
        let registers: &[Reg] = match part {
            Part::Find { .. } => &[R11, RAX, R10],
            Part::Slot { .. } => &[R10],
            Part::Words { .. } => &[RDX, RAX],
            Part::FindCompact { .. } => &[R11, RAX, R10],
            Part::Word(_) | Part::Pair(_) => &[RDX, RAX, R10],
            Part::Packed(_) => &[RDX, RAX, R10, R11],
        };
        let words = if let Part::Packed(_) = part { WORDS.len() } else { 0 };
        let question = (part, self.values_at(), self.rings, self.area, self.behind);
        let appended = MADE.with_borrow_mut(|made| {
            let make = || {
                let allocated = allocate(part.program()?, registers, words, self)?;
                Ok(Made { question, allocated, pieces: Pieces::new(), numbered: Numbered::new() })
            };
            made.answer(|made| made.question == question, make).map(|made| made.append(asm, self))
        });
        appended.unwrap_or_else(|why| {
            asm.lack(why);
            Vec::new()
        })
    }
    /// The number in the code of a record's words that depends on the probe, if it takes four bytes whatever it is.
    fn number(&self) -> Option<u32> {
        match self.ids {
            Ids::Of(ThreadId::Unknown, probe) => Some(probe),
            // A smaller one takes one byte.
            Ids::Of(_, probe) => (probe > i8::MAX as u32).then_some(probe),
            Ids::Compact(_, probe) => Some(self.compact(probe)),
            Ids::Passed(_) | Ids::Kept(_) => None,
        }
    }
    /// The same for all probes.
    fn of_any_probe(self) -> Self {
        self.of_probe(|_| 0)
    }
    fn of_next_probe(self) -> Self {
        self.of_probe(|probe| probe.wrapping_add(1))
    }
    fn of_probe(self, other: impl Fn(u32) -> u32) -> Self {
        let ids = match self.ids {
            Ids::Of(id, probe) => Ids::Of(id, other(probe)),
            Ids::Compact(id, probe) => Ids::Compact(id, other(probe)),
            ids => ids,
        };
        Self { ids, ..self }
    }
    /// The numbers in a word of a compact ring.
    const fn compact(&self, probe: u32) -> u32 {
        let values = if self.behind.is_there() { VALUES as u32 } else { 0 };
        probe << PROBE_SHIFT | self.kind as u32 | values
    }
    const fn is_compact(&self) -> bool {
        matches!(self.ids, Ids::Compact(..))
    }
    fn load_saved(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        match self.saved(nth) {
            Ok(register) => asm.mov(to, register),
            Err(at) => asm.load(to, Mem::At(RSP, self.depth + at)),
        }
    }
    fn values_at(&self) -> ValuesAt {
        let saved = if self.key.0 == RSI { SAVED_AND_RSI } else { SAVED };
        match (self.kind, self.by_go) {
            (RecordKind::Entry, _) => ValuesAt::Arguments,
            (_, true) => ValuesAt::Results(GO_RESULTS, saved),
            (_, false) => ValuesAt::Results(RESULTS, saved),
        }
    }
    /// The register of a value, or where that was saved.
    fn saved(&self, nth: u16) -> Result<Reg, i32> {
        let nth = usize::from(nth);
        let (register, saved) = match self.values_at() {
            ValuesAt::Arguments => (ARGUMENT[nth % ARGUMENT.len()], &[(RDX, SAVED_RDX)][..]),
            ValuesAt::Results(registers, saved) => (registers[nth % registers.len()], saved),
        };
        match saved.iter().find(|(of, _)| *of == register) {
            Some((_, at)) => Err(*at),
            None => Ok(register),
        }
    }
}

impl Inputs for RecordInputs {
    fn register(&self, nth: u16) -> Option<Reg> {
        match nth {
            input::RING => Some(R11),
            input::HEAD => Some(RAX),
            input::SLOT => Some(R10),
            input::USED if !self.is_compact() => Some(RCX),
            input::VALUE.. if self.is_compact() => match self.behind.place(nth - input::VALUE) {
                ValuePlace::Argument(nth) => self.saved(nth.into()).ok(),
                _ => None,
            },
            input::VALUE.. => self.saved(nth - input::VALUE).ok(),
            _ => None,
        }
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        match (nth, self.ids) {
            (input::RINGS, _) => asm.mov_imm64(to, self.rings),
            (input::CPU, _) => asm.load32(to, Mem::Fs(self.area + CPU_ID)),
            (input::TIME, _) if to == RDX => {}
            (input::TIME, _) => asm.mov(to, RDX),
            (input::IDS, Ids::Kept(at)) => asm.load(to, Mem::At(at, 0)),
            (input::IDS, Ids::Compact(_, probe)) => asm.mov_imm32(to, self.compact(probe)),
            (input::VALUE.., Ids::Compact(..)) => match self.behind.place(nth - input::VALUE) {
                ValuePlace::Argument(nth) => self.load_saved(asm, nth.into(), to),
                ValuePlace::Text(word) => {
                    asm.load(to, Mem::At(RSP, ANSWER + packed::TEXTS_AT + 8 * i32::from(word)));
                }
                ValuePlace::Field(word) => {
                    let texts = TEXT_WORDS as i32 * i32::from(self.behind.texts.many);
                    asm.load(to, Mem::At(RSP, ANSWER + 8 * (texts + i32::from(word))));
                }
                ValuePlace::Vector(vector) => asm.load_of_vector(to, vector),
                ValuePlace::Returned => self.load_saved(asm, 0, to),
            },
            (input::THREAD, Ids::Compact(id, _) | Ids::Of(id, _) | Ids::Passed(id)) => {
                threads::load(id, asm, to, self.depth);
            }
            (input::IDS, Ids::Passed(ThreadId::Unknown)) => asm.load(to, passed(self.depth)),
            (input::IDS, Ids::Passed(id)) => {
                threads::load(id, asm, to, self.depth);
                asm.shift(Shift::Left, to, 32, true);
                asm.alu_load(Alu::Or, to, passed(self.depth));
            }
            (input::IDS, Ids::Of(ThreadId::Unknown, probe)) => asm.mov_imm32(to, probe),
            (input::IDS, Ids::Of(id, probe)) => {
                threads::load(id, asm, to, self.depth);
                asm.shift(Shift::Left, to, 32, true);
                asm.alu_imm(Alu::Or, to, probe as i32, true);
            }
            (input::COPIES, _) => asm.lea(to, Mem::At(RSP, ANSWER)),
            (input::USED, _) => asm.load(to, Mem::At(RSP, ANSWER + packed::USED_AT)),
            (input::KEY, _) => asm.lea(to, Mem::At(self.key.0, self.key.1 + self.kind as i32)),
            (_, _) => self.load_saved(asm, nth.wrapping_sub(input::VALUE), to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ids, RecordInputs};
    use crate::machine::ThreadId;
    use crate::programs::records::{Behind, Part};
    use crate::x86_64::stub::asm::{Asm, RSI};
    use trapline_record::ring::RecordKind;

    /// The code of a record's words for one probe after the other, each at an address of the same kind.
    fn words(of: impl Fn(u32) -> Ids + Send + 'static, probes: &'static [u32]) -> Vec<Vec<u8>> {
        // What was made before is kept by thread.
        let all = std::thread::spawn(move || {
            let one = |&probe: &u32| {
                let (rings, area, kind, ids) = (0x7000_0000_0000, -160, RecordKind::Entry, of(probe));
                let (key, depth, by_go, behind) = ((RSI, 0), 0, false, Behind::default());
                let inputs = RecordInputs { rings, area, kind, ids, key, depth, by_go, behind };
                let mut code = Vec::new();
                let mut asm = Asm::new(&mut code, 0x1000);
                let leave = inputs.append(&mut asm, Part::Words { values: 2, publish: None });
                assert!(asm.lacks().is_none() && leave.is_empty(), "{:?}", asm.lacks());
                code
            };
            probes.iter().map(one).collect()
        });
        all.join().expect("no panic")
    }

    #[test]
    fn words_that_are_appended_again_are_those_of_their_own_probe() {
        const PROBES: [u32; 7] = [700, 0xFF, 0x100, 5, 0x7FFF_FFFE, 700, 0];
        for id in [ThreadId::Unknown, ThreadId::At(720), ThreadId::Call] {
            let each: Vec<Vec<u8>> =
                PROBES.iter().map(|probe| words(move |_| Ids::Of(id, *probe), &[0]).remove(0)).collect();
            assert_eq!(words(move |probe| Ids::Of(id, probe), &PROBES), each, "{id:?}");
            assert!(each[0] != each[1], "{id:?}");
        }
    }
}
