//! The hit's stack as a word of a key: its number, and the entry that says what it stands for (`programs::stacks`);
//! the same as x86-64's twin.
//!
//! In: how stacks are walked, where the table lies, the probe. Out: code that leaves the number in a word of the
//! frame, and the jump of hits for whose stack there is no room. It runs before the hit's program, in the frame of
//! `frame`.
//!
//! ```text
//!   K1   [sp + NUMBER] = D, of `stack`'s `fold`
//!   K2   A, B, KEY, D, INDEX, VALUE    variables of the program; x9 keeps what `bound` left there
//!   K4   SLOT = entry - BEFORE, as if a record began there: `stack`'s `fill`;  USED = probe << 32 | bytes;  LIVE
//!   end  x9, x10, x30                  as the program left them
//!
//!   sp +  80, 88                       `stack`'s SAVED_LINK and END
//!   sp +  96, 104                      x9, x10, as saved
//!   sp + 112, 120, 128                 words for variables
//!   sp + 136                           NUMBER: it stays there for the hit's program
//! ```

use std::cell::RefCell;

use trapline_code::aarch64::{Frame, Inputs, allocate, emit};
use trapline_code::{Allocated, NoCode};
use trapline_record::maps::{LIVE, StackTable};
use trapline_record::stack::{FIRST, USED};

use super::asm::{Asm, Fix, Reg, SP};
use super::frame::{self, A, B, D, INDEX, KEY, VALUE, waiting};
use super::machine::Machine;
use super::run::Ran;
use super::saves::{AT, END, FRAME, LIMIT, LINK, SAVED_LINK, SLOT};
use super::stack::Walk;
use crate::hit::input;
use crate::programs::{Kept, stacks};
use crate::request::Unwind;

/// Offset from the stack pointer at which the stack's number is, for the hit's program.
pub(super) const NUMBER: u32 = waiting(7);
/// Upper bound of the code bytes for this.
pub const BYTES: u64 = 1536;
const REGISTERS: [Reg; 6] = [A, B, KEY, D, INDEX, VALUE];
const SAVED: u32 = waiting(2);
const WORDS: u32 = waiting(4);
const HOW_MANY: usize = 3;
const _: () = assert!(SAVED_LINK == waiting(0) && END == waiting(1));

thread_local! {
    static MADE: RefCell<Kept<(StackTable, Allocated)>> = const { RefCell::new(Kept::new()) };
}

fn allocated(table: StackTable) -> Result<Allocated, NoCode> {
    MADE.with_borrow_mut(|made| {
        let make = || {
            let known = KnownValues { at: 0 };
            Ok((table, allocate(stacks::entry(table)?, &REGISTERS, HOW_MANY, &known)?))
        };
        made.answer(|(asked, _)| *asked == table, make).map(|(_, allocated)| allocated.clone())
    })
}

/// Appends it. Returns the jump of hits that run no program.
pub(super) fn keep(asm: &mut Asm, machine: &Machine, what: &Ran<'_>) -> Fix {
    let table = what.hit.stacks;
    let at = what.maps.maps + what.hit.bytes.before_stacks(machine.lines);
    let walk = Walk {
        stacks: what.stacks,
        unwind: Unwind::Frames(table.frames),
        step: frame::FRAME.unsigned_abs(),
        most: (FIRST as u32 + u32::from(table.frames)) * 8,
        at_entry: !what.inside,
        goroutine: what.goroutine,
    };
    asm.store_two(LIMIT, FRAME, SP, SAVED);
    asm.store(LINK, SP, SAVED_LINK);
    walk.bound(asm);
    walk.fold(asm, what.probe + 1);
    asm.store(D, SP, NUMBER);
    let (mut found, mut without) = (Vec::new(), Vec::new());
    match allocated(table) {
        Ok(allocated) => {
            let frame = Frame { words: WORDS, lse: machine.lse };
            for (outcome, fix) in emit(asm, &allocated, &KnownValues { at }, frame) {
                if outcome == stacks::FOUND { found.push(fix) } else { without.push(fix) }
            }
        }
        Err(why) => asm.lack(why),
    }
    fill(asm, &walk, what.probe);
    found.into_iter().for_each(|fix| asm.bind(fix));
    load_saved(asm);
    let runs = asm.b_later();
    without.into_iter().for_each(|fix| asm.bind(fix));
    load_saved(asm);
    let left = asm.b_later();
    asm.bind(runs);
    left
}

/// K4: the entry is in `A`.
fn fill(asm: &mut Asm, walk: &Walk, probe: u32) {
    asm.add_imm(SLOT, A, -(StackTable::BEFORE as i32));
    walk.fill(asm);
    asm.number(A, probe);
    asm.or_shifted(AT, AT, A, 32);
    asm.store(AT, SLOT, USED as u32 * 8);
    asm.add_imm(SLOT, SLOT, StackTable::BEFORE as i32);
    asm.number(A, LIVE as u32);
    asm.store_release(A, SLOT);
}

fn load_saved(asm: &mut Asm) {
    asm.load_two(LIMIT, FRAME, SP, SAVED);
    asm.load_at(LINK, SP, SAVED_LINK);
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
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        match nth {
            input::STACK => asm.load_at(to, SP, NUMBER),
            _ => asm.constant(to, self.at),
        }
    }
}
