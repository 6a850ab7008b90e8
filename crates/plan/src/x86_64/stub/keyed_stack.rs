//! The hit's stack as a word of a key: its number, and the entry that says what it stands for (`programs::stacks`).
//!
//! In: how stacks are walked, where the table lies, the probe. Out: code that leaves the number in a word below the
//! stack pointer, and the jump of hits for whose stack there is no room. It runs before the hit's program.
//!
//! ```text
//!   K1   [NUMBER] = rdx, of `stack`'s `fold`
//!   K2   rax, r11, r10, rdx    variables of the program; rcx keeps what `bound` left there
//!   K4   r10 = entry - BEFORE, as if a record began there: `stack`'s `fill`;  USED = probe << 32 | bytes;  LIVE
//!   end  rcx, rsi, rdi         as the program left them
//!
//!   rsp - 32, - 40             SPARE: rax and another register, during the claim
//!   rsp - 48, - 56, - 64       words for variables
//!   rsp - 72                   NUMBER: it stays there for the hit's program
//!   rsp - 96 to - 128          `stack`'s
//! ```

use std::cell::RefCell;

use trapline_code::x86_64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode};
use trapline_record::maps::{LIVE, StackTable};
use trapline_record::stack::{FIRST, USED};

use super::asm::{Alu, Asm, Fix, Mem, R10, R11, RAX, RCX, RDI, RDX, RSP, Reg};
use super::saves::SAVED_RDX;
use super::stack::{self, SAVED, Walk};
use super::traced::Traced;
use crate::hit::input;
use crate::programs::{Kept, stacks};
use crate::request::Unwind;

/// Where the stack's number is, for the hit's program.
pub(super) const NUMBER: Mem = Mem::At(RSP, -72);
/// Upper bound of the code bytes for this.
pub(crate) const BYTES: u64 = 2 * stack::BYTES + 512;
const REGISTERS: [Reg; 4] = [RAX, R11, R10, RDX];
const WORDS: [Mem; 3] = [Mem::At(RSP, -48), Mem::At(RSP, -56), Mem::At(RSP, -64)];
const SPARE: [Mem; 2] = [Mem::At(RSP, -32), Mem::At(RSP, -40)];

thread_local! {
    static MADE: RefCell<Kept<(StackTable, Allocated)>> = const { RefCell::new(Kept::new()) };
}

fn allocated(table: StackTable) -> Result<Allocated, NoCode> {
    MADE.with_borrow_mut(|made| {
        let make = || {
            let known = KnownValues { at: 0 };
            Ok((table, allocate(stacks::entry(table)?, &REGISTERS, WORDS.len(), &known)?))
        };
        made.answer(|(asked, _)| *asked == table, make).map(|(_, allocated)| allocated.clone())
    })
}

/// Appends it. `at`: address of the table. `step`: by how many bytes the stack pointer is below the program's. The
/// registers of [`SAVED`] are saved. Returns the jump of hits that run no program.
pub(super) fn keep(asm: &mut Asm<'_>, traced: &Traced<'_>, (table, at): (StackTable, u64), step: i32) -> Fix {
    let most = (FIRST as u32 + u32::from(table.frames)) * 8;
    let unwind = Unwind::Frames(table.frames);
    let Traced { trampolines, probe, at_entry, .. } = *traced;
    let walk = Walk { stacks: traced.rings.stacks, unwind, step, most, at_entry, trampolines };
    walk.bound(asm);
    walk.fold(asm, probe + 1);
    asm.store(NUMBER, RDX);
    let (mut found, mut without) = (Vec::new(), Vec::new());
    match allocated(table) {
        Ok(allocated) => {
            let rdx = Mem::At(RSP, SAVED_RDX);
            let frame = Frame { words: &WORDS, rdx, rdx_is_read: false, spare: SPARE, unbroken: false };
            for (outcome, fix) in emit(asm, &allocated, &KnownValues { at }, frame) {
                if outcome == stacks::FOUND { found.push(fix) } else { without.push(fix) }
            }
        }
        Err(why) => asm.lack(why),
    }
    fill(asm, &walk, probe);
    found.into_iter().for_each(|fix| asm.bind(fix));
    load_saved(asm);
    let runs = asm.jmp_later();
    without.into_iter().for_each(|fix| asm.bind(fix));
    load_saved(asm);
    let left = asm.jmp_later();
    asm.bind(runs);
    left
}

/// K4: the entry is in rax.
fn fill(asm: &mut Asm<'_>, walk: &Walk, probe: u32) {
    asm.lea(R10, Mem::At(RAX, -(StackTable::BEFORE as i32)));
    walk.fill(asm);
    asm.mov_imm64(RDI, u64::from(probe) << 32);
    asm.alu(Alu::Or, RCX, RDI);
    asm.store(Mem::At(R10, USED as i32 * 8), RCX);
    asm.store_imm(Mem::At(R10, StackTable::BEFORE as i32), LIVE as i32);
}

fn load_saved(asm: &mut Asm<'_>) {
    SAVED.iter().for_each(|(reg, at)| asm.load(*reg, Mem::At(RSP, *at)));
}

/// Where the inputs are.
struct KnownValues {
    /// Address of the table.
    at: u64,
}

impl Inputs for KnownValues {
    fn register(&self, _: u16) -> Option<Reg> {
        None
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        match nth {
            input::STACK => asm.load(to, NUMBER),
            _ => asm.mov_imm64(to, self.at),
        }
    }
}
