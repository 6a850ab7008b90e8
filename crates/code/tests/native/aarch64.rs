//! Programs as code of this processor, in a function that says what they left.
//!
//! ```text
//!   x0         the inputs: 0 to 2 and 7 are loaded into registers before; the others are loaded where they are read
//!   x1         where the result goes: outcome, x16, whether a register was changed, what is handed on
//!   sp + 0 …   words of the program
//! ```

use trapline_code::aarch64::asm::{Asm, Cond, Fix, Reg, SP};
use trapline_code::aarch64::{Frame, Inputs, Piece, REGISTERS, allocate, emit, most_bytes};
use trapline_code::{NoRoom, Program};

/// Random programs of one test run; an emulator runs them.
pub(crate) const PROGRAMS: u64 = 1_500;

const IN_REGISTERS: [(u16, Reg); 4] = [(0, 2), (1, 3), (2, 4), (7, 5)];

/// The registers for variables.
fn registers(seed: u64) -> &'static [Reg] {
    [REGISTERS, &[16, 17, 13, 14], &[17, 13, 14, 15]][(seed / 2 % 3) as usize]
}
const FRAME: i32 = 64;
const A: Reg = 16;

struct FromMemory;

impl Inputs for FromMemory {
    fn register(&self, nth: u16) -> Option<Reg> {
        IN_REGISTERS.into_iter().find(|known| known.0 == nth).map(|(_, register)| register)
    }
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg) {
        asm.load_at(to, 0, u32::from(nth) * 8);
    }
    fn begin_add(&self, asm: &mut Asm, nth: u16, [scratch, _]: [Reg; 2]) -> Option<Fix> {
        asm.load_at(scratch, 0, u32::from(nth) * 8);
        asm.compare_number(scratch, 0);
        Some(asm.if_later(Cond::NotEqual))
    }
}

/// The function for the address `at`, with `words` stack words for the program.
pub(crate) fn function(program: &Program, (seed, words): (u64, usize), at: u64) -> Result<Vec<u8>, NoRoom> {
    let allocated = allocate(program.clone(), registers(seed), words, &FromMemory)?;
    let mut asm = Asm::new(at);
    asm.add_imm(SP, SP, -FRAME);
    for (nth, reg) in IN_REGISTERS {
        asm.load_at(reg, 0, u32::from(nth) * 8);
    }
    let begin = asm.here();
    let outcomes = emit(&mut asm, &allocated, &FromMemory, Frame { words: 0, lse: seed % 2 == 0 });
    let length = asm.here() - begin;
    assert!(length <= most_bytes(program, 8) as u64, "{length} bytes\n{program}");
    for (nth, reg) in (0..).zip(&registers(seed)[..program.handed().len()]) {
        asm.store(*reg, 1, 24 + 8 * nth);
    }
    leave(&mut asm, 0);
    for (outcome, fix) in outcomes {
        asm.bind(fix);
        leave(&mut asm, outcome.into());
    }
    asm.pool();
    let words = asm.words().expect("distances fit");
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

/// A program's code at `at`; and what was made 96 bytes before, appended there. All its branches lead behind it.
pub(crate) fn kept(program: &Program, (seed, words): (u64, usize), at: u64) -> Option<(Vec<u32>, Vec<u32>)> {
    let allocated = allocate(program.clone(), registers(seed), words, &FromMemory).ok()?;
    let make = |at| {
        let mut asm = Asm::new(at);
        let leave = emit(&mut asm, &allocated, &FromMemory, Frame { words: 0, lse: seed % 2 == 0 });
        let leave: Vec<_> = leave.into_iter().map(|(_, fix)| fix).collect();
        let piece = Piece::since(&asm, at, &leave);
        leave.into_iter().for_each(|fix| asm.bind(fix));
        asm.pool();
        (asm.words().ok(), piece)
    };
    let mut asm = Asm::new(at);
    make(at - 96).1.append(&mut asm).into_iter().for_each(|fix| asm.bind(fix));
    asm.pool();
    make(at).0.zip(asm.words().ok())
}

/// Stores what there is, and returns.
fn leave(asm: &mut Asm, outcome: u32) {
    asm.store(A, 1, 8);
    asm.number(A, outcome);
    asm.store(A, 1, 0);
    let mut changed = Vec::new();
    for (nth, reg) in IN_REGISTERS {
        asm.load_at(A, 0, u32::from(nth) * 8);
        asm.compare(A, reg);
        changed.push(asm.if_later(Cond::NotEqual));
    }
    asm.number(A, 0);
    let same = asm.b_later();
    changed.into_iter().for_each(|fix| asm.bind(fix));
    asm.one(A);
    asm.bind(same);
    asm.store(A, 1, 16);
    asm.add_imm(SP, SP, FRAME);
    // ret
    asm.word(0xD65F_03C0);
}

/// Makes new code visible to instruction fetches (Arm ARM B2.7.4.2).
pub(crate) fn synchronize(at: *mut u8, len: usize) {
    for line in (0..len).step_by(16) {
        // SAFETY: addresses of the mapping; these instructions change no data.
        unsafe { core::arch::asm!("dc cvau, {at}", "ic ivau, {at}", at = in(reg) at.add(line)) };
    }
    // SAFETY: barriers alone.
    unsafe { core::arch::asm!("dsb ish", "isb") };
}
