//! A hit that calls consumers, reached by a jump.
//!
//! In: the displaced word, its address, the stub's address, the gate's address
//! (`trapline_runtime::aarch64::gate`), the argument for the gate. Out: the stub. Invariants: SAFE-2, which
//! the gate keeps together with it: every register, the flags and sp are as the consumers left them when the
//! displaced code begins. CALL-1: nothing is stored below the stack pointer of the moment, as a signal may
//! come at any instruction. CALL-3: nothing is kept anywhere but on the stack, so a consumer that never comes
//! back leaves nothing behind.
//! Does not: know what is called.
//!
//! | step | what | where a signal handler finds the thread |
//! |---|---|---|
//! | C1 | room on the stack ([`FRAME`]), x0, x1 and x30 into it | at the probed word, before the first instruction; |
//! | | | then in the stub, sp lower |
//! | C2 | the gate is called with the argument that identifies the stub in x0 | in the stub, |
//! | | (the way back is in x30): it stores the rest, calls, and loads all but x30 | the gate, or the consumer |
//! | C3 | x30 is loaded, and the room is given back. | in the stub |
//! | | The gate has dealt with sp and pc as the consumers left them: | |
//! | | it comes back on another stack, or not at all | |
//! | C4 | the displaced word (`relocate`), and a `b` to behind it | at the probed word; at the `b`, behind it |
//!
//! ```text
//!   sp +   0   x0, x1                        <- sp from C1 to C3: S - FRAME = S - 288
//!   sp +  16   x2 to x29                     the gate stores and loads them
//!   sp + 240   X30: x30
//!   sp + 248   sp = S, pc, pstate            the gate stores them; with x0 to x30 this is a `Regs`
//!   sp + 272   the way back, the argument    the gate stores them
//!   sp + 288   <- S, the program's stack pointer; what it uses lies at and above S
//!
//!   begin      sp = S          all registers are the program's
//!   C2         sp = S - 288    x0 = argument, x1 = gate, x30 = C3; the others are the program's
//!   C3         sp = S - 288    all but x30 are as the consumers left them, [sp + 240] = the site's x30
//!   C4         sp = S          all are as the consumers left them; S too, if they moved it
//! ```
//!
//! A fault of C4 is the program's, and is shown where the word stood. C1 to C3 read and write only the stack.
//! As everywhere in code that follows AAPCS64, sp is a multiple of 16 where memory is accessed through it. If
//! it is not for a moment (between two changes of it), a probe there uses a trap, on request.
//!
//! The stub reaches the gate by an address behind the code, so the gate may lie anywhere. The `blr` is paired
//! with the gate's `ret`.

use trapline_insn::aarch64::{FRAME, Immovable, Options, relocate};

use super::asm::{Asm, SP};

/// A stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    /// The words of the stub.
    pub words: Vec<u32>,
    /// Address at which the displaced code begins, and address at which the way back from it begins.
    pub displaced: (u64, u64),
}

/// Why there is no stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCall {
    /// The word's copy would not work there.
    Immovable(Immovable),
    /// No branch leads back from there.
    OutOfReach,
}

impl From<Immovable> for NoCall {
    fn from(why: Immovable) -> Self {
        Self::Immovable(why)
    }
}

/// Offset of x30 in the frame; x0 and x1 lie at its beginning.
const X30: u32 = 30 * 8;

/// The stub at `at` for the word at `from`. It goes through `gate`, which finds `argument` in x0.
///
/// # Errors
/// Why there is none.
pub fn call(
    at: u64,
    (word, from): (u32, u64),
    options: Options,
    (gate, argument): (u64, u64),
) -> Result<Called, NoCall> {
    let mut asm = Asm::new(at);
    asm.add_imm(SP, SP, -(FRAME as i32));
    asm.store_pair(0, 1, 0);
    asm.store(30, SP, X30);
    let what = asm.literal_later(0);
    let way = asm.literal_later(1);
    asm.call(1);
    asm.load_from_stack(30, X30);
    asm.add_imm(SP, SP, FRAME as i32);
    let begins = asm.here();
    let moved = relocate(word, from, begins, options)?;
    moved.words().iter().for_each(|word| asm.word(*word));
    let ends = asm.here();
    if moved.falls_through {
        asm.b(moved.next);
    }
    asm.align(8);
    for (fix, value) in [(what, argument), (way, gate)] {
        asm.bind(fix);
        asm.double(value);
    }
    let words = asm.words().map_err(|_| NoCall::OutOfReach)?;
    Ok(Called { words, displaced: (begins, ends) })
}

#[cfg(test)]
mod tests {
    use super::{NoCall, call};
    use trapline_insn::aarch64::{Immovable, Options, encode};

    const FROM: u64 = 0x40_0000;
    const AT: u64 = 0x50_0000;

    #[test]
    fn a_stub_is_short_and_leads_back() {
        let made = call(AT, (0x9B01_7C00, FROM), Options::default(), (0x1234, 0x5678)).expect("in reach");
        assert_eq!(made.displaced, (AT + 32, AT + 36));
        assert_eq!(made.words[8..10], [0x9B01_7C00, encode::b(AT + 36, FROM + 4).expect("in reach")]);
        assert_eq!(made.words[10..], [0x5678, 0, 0x1234, 0]);
        // sub sp, sp, #288; stp x0, x1, [sp]; str x30, [sp, #240]; ldr x0, +28; ldr x1, +32; blr x1; ldr x30,
        // [sp, #240]; add sp, sp, #288.
        let head = [
            0xD104_83FF,
            0xA900_07E0,
            0xF900_7BFE,
            0x5800_00E0,
            0x5800_0101,
            0xD63F_0020,
            0xF940_7BFE,
            0x9104_83FF,
        ];
        assert_eq!(made.words[..8], head);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let far = call(FROM + (1 << 28), (encode::NOP, FROM), Options::default(), (0, 0));
        assert_eq!(far, Err(NoCall::OutOfReach));
        // `cbz x0, .`
        let branch = call(FROM + (1 << 28), (0xB400_0000, FROM), Options::default(), (0, 0));
        assert_eq!(branch, Err(NoCall::Immovable(Immovable::OutOfReach { target: FROM })));
        // A return does not come back.
        let made = call(FROM + (1 << 28), (0xD65F_03C0, FROM), Options::default(), (0, 0)).expect("a return");
        assert_eq!(made.words[8], 0xD65F_03C0);
    }
}
