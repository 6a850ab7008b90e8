//! Adds one to a table, and computes a text's key: the code of those programs (`programs`), with the registers and
//! words of a stub.
//!
//! In: where one is added (`Into`), and whether other threads change the table. Out: the code, which was made once and is
//! copied. In a restartable sequence its last instruction is the commit.
//!
//! ```text
//!   r11          the table; it stays
//!   rax          the cell's number or the row's key; it stays, unless it waits
//!   rsp - 32     KEY         then it waits here: if rows have texts or owners ([`Into::keep`])
//!   rsp - 48     KEY_AT      the owner, the group-by key, if rows have one; of rows with sums, the value
//!   rsp - 40     END         a walk's end, if registers are short
//!   rsp - 96     SPARE[0]    rax, while a row is claimed
//!   rsp - 104    SPARE[1]    rdx, while a row is claimed
//!   at + answer  the copy of a text: its result, then its bytes ([`Copied`])
//!   uses         r10, rdx, flags; rax if it waits
//! ```
//!
//! What waits is not written, so a sequence that begins again finds it as it was.

use std::cell::RefCell;

use trapline_code::x86_64::{Frame, Inputs, Piece, allocate, emit};
use trapline_code::{Memory, NoCode, Program, Unsound};
use trapline_record::tally::TableShape;

use super::asm::{Asm, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::text;
use crate::filter::Tally;
use crate::programs::{self, Adding, Kept, Rows};

// Where they wait; the value's own intermediate values are no longer needed then.
const KEY: Mem = Mem::At(RSP, -32);
const END: Mem = Mem::At(RSP, -40);
const KEY_AT: Mem = Mem::At(RSP, -48);
const SPARE: [Mem; 2] = [Mem::At(RSP, -96), Mem::At(RSP, -104)];

/// A text that was copied: where its result is, and behind it the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) at: Reg,
    pub(super) answer: i32,
}

impl Copied {
    /// Where `text` leaves it.
    pub(super) const ON_STACK: Self = Self { at: RSP, answer: text::ANSWER };
}

/// Where one is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Into {
    adding: Adding,
    /// Register behind which a text is.
    text: Reg,
}

/// All that code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Add(Into, Memory),
    Key(Copied),
}

thread_local! {
    static MADE: RefCell<Kept<(Question, Piece)>> = const { RefCell::new(Kept::new()) };
}

impl Into {
    pub(super) const UNSEEN: Self = Self { adding: Adding::UNSEEN, text: RSP };
    pub(super) const OVERFLOW: Self = Self { adding: Adding::OVERFLOW, text: RSP };

    /// `seen`: whether the hit has a value.
    pub(super) fn of(shape: TableShape, tally: &Tally, copied: Copied, seen: bool) -> Self {
        Self { adding: Adding::of(shape, tally, seen, (copied.answer, true)), text: copied.at }
    }
    /// The same for a thread without an area.
    pub(super) const fn without_area(self) -> Self {
        Self { adding: self.adding.without_area(), ..self }
    }
    pub(super) const fn is_owned(self) -> bool {
        self.adding.is_owned()
    }
    /// Whether key and owner wait below the stack pointer.
    const fn waits(self) -> bool {
        self.is_owned() || matches!(self.adding, Adding::Row(Rows { text: Some(_), .. }))
    }
    /// Before the section: `[KEY]` = rax, and `[KEY_AT]` = rdx, the owner, as far as they wait.
    pub(super) fn keep(self, asm: &mut Asm<'_>) {
        if self.waits() {
            asm.store(KEY, RAX);
        }
        if self.is_owned() {
            asm.store(KEY_AT, RDX);
        }
    }
    /// Adds one to the table at r11: by the commit that ends a sequence, or else where other threads add, too.
    pub(super) fn add(self, asm: &mut Asm<'_>, memory: Memory) {
        let registers: &[Reg] = if self.waits() { &[RAX, R10, RDX] } else { &[R10, RDX] };
        let known = KnownValues { key: (!self.waits()).then_some(RAX), text: self.text };
        append(asm, Question::Add(self, memory), registers, &known, || self.adding.program(memory));
    }
}

/// rax = the key of a text that `text` has copied. Jumps if no byte of it could be read.
///
/// ```text
///   uses  rdx, r10, r11, flags, [rsp - 40] (END)
/// ```
pub(super) fn text_key(asm: &mut Asm<'_>, copied: Copied) -> Vec<Fix> {
    let known = KnownValues { key: None, text: copied.at };
    let program = || programs::text_key(copied.answer);
    append(asm, Question::Key(copied), &[RAX, R10, R11, RDX], &known, program)
}

/// Appends a program's code, or notes why there is none. Returns the jumps by which it is left.
fn append(
    asm: &mut Asm<'_>,
    question: Question,
    registers: &[Reg],
    known: &KnownValues,
    program: impl FnOnce() -> Result<Program, Unsound>,
) -> Vec<Fix> {
    let make = || -> Result<_, NoCode> {
        let allocated = allocate(program()?, registers, 1, known)?;
        let frame = Frame { words: &[END], rdx: END, rdx_is_read: false, spare: SPARE, unbroken: false };
        let mut code = Vec::new();
        let mut asm = Asm::new(&mut code, 0);
        let leave: Vec<Fix> =
            emit(&mut asm, &allocated, known, frame).into_iter().map(|(_, fix)| fix).collect();
        Ok((question, Piece::since(&asm, 0, &leave)))
    };
    let appended = MADE.with_borrow_mut(|made| {
        made.answer(|(known, _)| *known == question, make).map(|(_, piece)| piece.append(asm))
    });
    appended.unwrap_or_else(|why| {
        asm.lack(why);
        Vec::new()
    })
}

/// Where a program's inputs are.
struct KnownValues {
    /// The register of the key, unless it waits.
    key: Option<Reg>,
    text: Reg,
}

impl Inputs for KnownValues {
    fn register(&self, nth: u16) -> Option<Reg> {
        match nth {
            programs::TABLE => Some(R11),
            programs::KEY => self.key,
            programs::TEXT => Some(self.text),
            _ => None,
        }
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        asm.load(to, if nth == programs::OWNER { KEY_AT } else { KEY });
    }
}

#[cfg(test)]
mod tests {
    use super::{Copied, KnownValues, Question, append, programs};
    use crate::x86_64::stub::asm::{Asm, RAX, RSP};
    use trapline_code::NoCode;

    #[test]
    fn a_stub_without_room_for_its_program_lacks_code() {
        let (mut out, copied) = (Vec::new(), Copied::ON_STACK);
        let mut asm = Asm::new(&mut out, 0x1000);
        let known = KnownValues { key: None, text: RSP };
        let program = || programs::text_key(copied.answer);
        assert!(append(&mut asm, Question::Key(copied), &[RAX], &known, program).is_empty());
        assert!(matches!(asm.lacks(), Some(NoCode::NoRoom(_))), "{:?}", asm.lacks());
        assert!(out.is_empty());
    }
}
