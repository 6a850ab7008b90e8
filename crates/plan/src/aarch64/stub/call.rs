//! A hit that calls consumers, by a jump.
//!
//! In: the displaced word, where it stood, where the stub lies, the gate's address (`trapline_runtime::aarch64::gate`), what that is handed. Out: the stub. Invariants:
//! SAFE-2, which the gate keeps with it: every register, the flags and sp are as the consumers left them when the displaced code begins; CALL-1 nothing is stored below the stack
//! pointer of the moment, as a signal may come at any instruction; CALL-3 nothing is kept anywhere but on the stack, so a consumer that never comes back holds nothing.
//! Does not: know what is called.
//!
//! | step | what | where a signal's handler finds the thread |
//! |---|---|---|
//! | C1 | room on the stack ([`FRAME`]), x0, x1 and x30 into it | at the probed word, before the first instruction; then in the stub, sp lower |
//! | C2 | the gate is called with whose stub this is in x0 (the way back in x30): it stores the rest, calls, and loads all but x30 | in the stub, the gate, or the consumer |
//! | C3 | x30, and the room is given back. What the consumers left of sp and pc the gate has seen to: it comes back on another stack, or not at all | in the stub |
//! | C4 | the displaced word (`relocate`), and a `b` to behind it | at the probed word; at the `b`, behind it |
//!
//! A fault of C4 is the program's, and is shown where the word stood. C1 to C3 read and write the stack alone. As everywhere in code that follows AAPCS64, sp is a multiple of 16
//! where memory is reached through it; a probe where it is not for a moment (between two changes of it) takes a trap, on request.
//!
//! The stub's way into the gate is an address behind the code, so it may lie anywhere. The `blr` is paired with the gate's `ret`.

use trapline_insn::aarch64::{FRAME, Immovable, Options, relocate};

use super::asm::{Asm, SP};

/// A stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    /// Its words.
    pub words: Vec<u32>,
    /// Where the displaced code begins, and where the way back from it does.
    pub displaced: (u64, u64),
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCall {
    /// The word's copy would not work there.
    Immovable(Immovable),
    /// No branch leads back.
    OutOfReach,
}

impl From<Immovable> for NoCall {
    fn from(why: Immovable) -> Self {
        Self::Immovable(why)
    }
}

/// x0's, x1's and x30's places in the frame.
const X30: u32 = 30 * 8;

/// The stub at `at` of the word at `from`, through `gate`, which finds `argument` in x0.
///
/// # Errors
/// Why not.
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
    let words = asm.words().ok_or(NoCall::OutOfReach)?;
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
        // sub sp, sp, #288; stp x0, x1, [sp]; str x30, [sp, #240]; ldr x0, +28; ldr x1, +32; blr x1; ldr x30, [sp, #240]; add sp, sp, #288.
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
