//! Programs as code of this processor, in a function that says what they left.
//!
//! ```text
//!   rdi        the inputs: 0 to 2 and 7 are loaded into registers before; the others are loaded where they are read
//!   r9         where the result goes: outcome, rax, whether a register was changed, what is handed on
//!   rsp - 32 … words of the program; rsp - 24: rdx, which every other program need not load again at its end
//! ```

use trapline_code::x86_64::asm::{
    Alu, Asm, Cond, Fix, Mem, R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Reg,
};
use trapline_code::x86_64::{Frame, Inputs, Piece, REGISTERS, allocate, emit, most_bytes};
use trapline_code::{NoRoom, Program};

/// Random programs of one test run.
pub(crate) const PROGRAMS: u64 = 60_000;

const IN_REGISTERS: [(u16, Reg); 4] = [(0, RSI), (1, RDX), (2, R8), (7, RCX)];
const SPARE: [Mem; 2] = [Mem::At(RSP, -104), Mem::At(RSP, -112)];

/// The registers for variables.
fn registers(seed: u64) -> &'static [Reg] {
    [REGISTERS, &[R10, RAX, R11], &[R10, R11]][(seed / 2 % 3) as usize]
}
const RDX_AT: Mem = Mem::At(RSP, -24);

struct FromMemory;

impl Inputs for FromMemory {
    fn register(&self, nth: u16) -> Option<Reg> {
        IN_REGISTERS.into_iter().find(|known| known.0 == nth).map(|(_, register)| register)
    }
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg) {
        asm.load(to, Mem::At(RDI, i32::from(nth) * 8));
    }
    fn begin_add(&self, asm: &mut Asm<'_>, nth: u16, scratch: Reg) -> Option<Fix> {
        asm.load(scratch, Mem::At(RDI, i32::from(nth) * 8));
        asm.test(scratch, scratch, true);
        Some(asm.jcc_later(Cond::NotEqual))
    }
}

/// The function for the address `at`, with `words` stack words for the program.
pub(crate) fn function(program: &Program, (seed, words): (u64, usize), at: u64) -> Result<Vec<u8>, NoRoom> {
    let allocated = allocate(program.clone(), registers(seed), words, &FromMemory)?;
    let mut code = Vec::new();
    let mut asm = Asm::new(&mut code, at);
    asm.mov(R9, RSI);
    for (nth, reg) in IN_REGISTERS {
        asm.load(reg, Mem::At(RDI, i32::from(nth) * 8));
    }
    asm.store(RDX_AT, RDX);
    let words: Vec<_> = (0..words as i32).map(|word| Mem::At(RSP, -32 - 8 * word)).collect();
    let begin = asm.here();
    let rdx_is_read = seed / 6 % 2 == 0;
    let frame = Frame { words: &words, rdx: RDX_AT, rdx_is_read, spare: SPARE, unbroken: seed % 2 == 0 };
    let outcomes = emit(&mut asm, &allocated, &FromMemory, frame);
    let length = asm.here() - begin;
    assert!(length <= most_bytes(program, 8) as u64, "{length} bytes\n{program}");
    for (nth, reg) in registers(seed).iter().take(program.handed().len()).enumerate() {
        asm.store(Mem::At(R9, 24 + 8 * nth as i32), *reg);
    }
    leave(&mut asm, 0, rdx_is_read);
    for (outcome, fix) in outcomes {
        asm.bind(fix);
        leave(&mut asm, outcome.into(), rdx_is_read);
    }
    Ok(code)
}

/// A program's code at `at`; and what was made 96 bytes before, appended there. All its jumps lead behind it.
pub(crate) fn kept(program: &Program, (seed, words): (u64, usize), at: u64) -> Option<(Vec<u8>, Vec<u8>)> {
    let allocated = allocate(program.clone(), registers(seed), words, &FromMemory).ok()?;
    let words: Vec<_> = (0..words as i32).map(|word| Mem::At(RSP, -32 - 8 * word)).collect();
    let frame =
        Frame { words: &words, rdx: RDX_AT, rdx_is_read: true, spare: SPARE, unbroken: seed % 2 == 0 };
    let make = |at| {
        let mut code = vec![0; 3];
        let mut asm = Asm::new(&mut code, at);
        let leave = emit(&mut asm, &allocated, &FromMemory, frame);
        let leave: Vec<_> = leave.into_iter().map(|(_, fix)| fix).collect();
        let piece = Piece::since(&asm, at, &leave);
        leave.into_iter().for_each(|fix| asm.bind(fix));
        (code.split_off(3), piece)
    };
    let mut again = Vec::new();
    let mut asm = Asm::new(&mut again, at);
    make(at - 96).1.append(&mut asm).into_iter().for_each(|fix| asm.bind(fix));
    Some((make(at).0, again))
}

/// Stores what there is, and returns.
fn leave(asm: &mut Asm<'_>, outcome: u32, rdx_is_kept: bool) {
    asm.store(Mem::At(R9, 8), RAX);
    asm.mov_imm32(RAX, outcome);
    asm.store(Mem::At(R9, 0), RAX);
    let mut changed = Vec::new();
    for (nth, reg) in IN_REGISTERS.into_iter().filter(|(_, reg)| *reg != RDX || rdx_is_kept) {
        asm.alu_load(Alu::Cmp, reg, Mem::At(RDI, i32::from(nth) * 8));
        changed.push(asm.jcc_later(Cond::NotEqual));
    }
    asm.ret();
    changed.into_iter().for_each(|fix| asm.bind(fix));
    asm.store_imm(Mem::At(R9, 16), 1);
    asm.ret();
}

/// New code is visible to instruction fetches already (Intel SDM 3A, 13.1.2.3: stores are seen before the next jump).
pub(crate) const fn synchronize(_: *mut u8, _: usize) {}
