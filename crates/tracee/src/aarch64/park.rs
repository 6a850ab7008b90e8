//! Instructions that hold a program at its entry point.

/// `brk #0`
pub(crate) const TRAP: [u8; 4] = [0x00, 0x00, 0x20, 0xd4];
/// Distance from the trap to the pc of a thread that has taken it, in bytes.
pub(crate) const BEHIND: u64 = 0;
/// Whether a breakpoint of the processor can hold a thread before an instruction. On arm64 the kernel steps
/// the thread over it. Whether the thread then still stands before the instruction was not tried.
pub(crate) const IS_HELD: bool = false;
/// Length of [`waiting`] in bytes.
pub(crate) const LEN: usize = 64;
/// Offset in it of the word that shows that the tracer lives.
pub(crate) const ALIVE: u64 = 48;
/// Upper half of the number of turns between two looks at that word. That is half a second at least, at a
/// nanosecond a turn.
const TURNS: u32 = 0x2000;

/// Length of the code that stands in place of a loader's function. It is not made for this processor: whether a
/// word of the loader may be changed at an exec was not tried.
pub(crate) const AMBUSH: usize = 0;
/// Offset in it of the word that shows that the tracer lives.
pub(crate) const AMBUSH_ALIVE: u64 = 0;
/// Bytes of the jump to it.
pub(crate) const LEAP: usize = 4;

/// None.
pub(crate) const fn ambush(_list: u64, _may_call: bool) -> [u8; AMBUSH] {
    []
}

/// None.
pub(crate) const fn leap(_at: u64, _bytes: [u8; LEAP], _to: u64) -> Option<[u8; LEAP]> {
    None
}

/// Code that waits as long as the word at [`ALIVE`] changes, then goes to `entry`. A program expects nothing
/// in x15 to x17 and the flags at its entry.
///
/// ```text
///   code +  0   x15 = code + ALIVE, x16 = [x15], x17 = TURNS << 16
///   code + 12   x17 = x17 - 1, until it is 0
///   code + 24   x17 = [x15]; to code + 0 if it is not x16
///   code + 36   x16 = [code + 56]; to x16
///   code + 48   ALIVE: the word that the tracer changes
///   code + 56   entry
///
///   uses        x15, x16, x17, flags; sp is the program's, and the stack is not used
/// ```
pub(crate) fn waiting(entry: u64) -> [u8; LEN] {
    let words: [u32; 12] = [
        0x1000_018F,              // 0: adr x15, 48
        0xF940_01F0,              // 4: ldr x16, [x15]
        0xD2A0_0011 | TURNS << 5, // 8: movz x17, turns, lsl 16
        0xD503_203F,              // 12: yield
        0xF100_0631,              // 16: subs x17, x17, 1
        0x54FF_FFC1,              // 20: b.ne 12
        0xF940_01F1,              // 24: ldr x17, [x15]
        0xEB11_021F,              // 28: cmp x16, x17
        0x54FF_FF01,              // 32: b.ne 0
        0x5800_00B0,              // 36: ldr x16, 56
        0xD61F_0200,              // 40: br x16
        0xD503_201F,              // 44: nop
    ];
    let mut code = [0; LEN];
    for (bytes, word) in code.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    code[56..].copy_from_slice(&entry.to_le_bytes());
    code
}
