//! The usual way of a call whose return one consumer waits for, as text that gates take in: nobody is called at the entry, and the stack word's place keeps the
//! call (K2, L1 of `instances`). What is a copy costs no call, no return, and no word for where to come back to.
//!
//! In and out: as [`Piece`] says of each. The protocol is that of `dispatch` and `instances`, where each step takes its short way. Everything
//! else is asked for, and then nothing was done: a thread without a line, a hit inside a hit, another list, slots, a place that is another stack word's or keeps another
//! probe's call. Does not: name an address of its own, as it is executed elsewhere.
//!
//! In memory: where the text begins from the function's own address, then its length, where its room begins and how long that is, and the text.

use super::parts::{general_asm, hint_place, own_line, sealed};

/// A text to be taken in, at a multiple of 64: its usual way ends where its room begins, where whoever takes it in goes on; its other one at its end.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// All of it.
    pub text: &'static [u8],
    /// Where the room is.
    pub room: (usize, usize),
}

impl Piece {
    pub(super) fn of(function: unsafe extern "C" fn()) -> Self {
        let at = function as *const () as *const u64;
        // SAFETY: the functions below, which are such words and a text.
        unsafe {
            let [text, len, room, room_len] = [0, 1, 2, 3].map(|n| at.add(n).read_unaligned() as usize);
            Self { text: core::slice::from_raw_parts(at.cast::<u8>().add(text), len), room: (room, room_len) }
        }
    }
    /// K2, at an entry: rdi = probe, rsi = site, rdx = its stack pointer. Changes rcx, rdx, r8 and r9. Its other way: nothing was done.
    #[must_use]
    pub fn begin() -> Self {
        Self::of(begin)
    }
    /// L1 and B5, at an exit: r12 = probe, rsi = `Regs`, rbx the address 8 below, rcx = the exit's stack pointer, rsp a multiple of 16. Keeps rbx and rbp alone. Its usual way: `Regs` holds, but
    /// for the instruction pointer and the stack pointer, which were not changed. Its other way: eax = a `GoOn`, or [`WITH_STATE`](super::WITH_STATE): nothing was done, and r12
    /// is what it was.
    #[must_use]
    pub fn end() -> Self {
        Self::of(end)
    }
}

/// The words before a text of which 1 to 2 is the usual way, 2 to 3 room, and 4 the end.
macro_rules! piece {
    () => {
        "60: .quad 61f - 60b, 64f - 61f, 62f - 61f, 63f - 62f; .p2align 6; 61:"
    };
}

/// Room for what a gate does behind it.
macro_rules! room {
    ($bytes:literal) => {
        concat!("62: .skip ", $bytes, ", 0xcc; 63:")
    };
}

pub(super) use {piece, room};

#[unsafe(naked)]
unsafe extern "C" fn begin() {
    general_asm!(
        piece!(),
        // D1, D2: a line of its own, and no hit that goes on. Nothing is read that a writer frees, so there is nothing to enter.
        "{{disp32}} mov r8, [rdi + {engine}]",
        own_line!("r8", "r9", "rcx", "{{disp32}} "),
        "cmp qword ptr [r9 + {active}], {turns}",
        ".p2align 5,,6",
        "jae 9f",
        // And no slots.
        "cmp qword ptr [rdi + {only_returns}], 1",
        ".p2align 5,,6",
        "jne 9f",
        // K2, and D3 in between.
        hint_place!("r8", "rdx", "rcx"),
        "imul r9, [r8 + {row}]",
        ".p2align 5,,9",
        "cmp [rcx + {bound}], rdx",
        "jne 9f",
        "mov rdx, [rcx + {keeps}]",
        ".p2align 5,,6",
        "test rdx, rdx",
        "jnz 5f",
        // D3: the row's word of this probe.
        "1: add r9, [rdi + {words}]",
        ".p2align 5,,6",
        "cmp [rcx + {kept_site}], rsi",
        "jne 6f",
        "2: mov [rcx + {keeps}], rdi",
        "add qword ptr [r9], 1",
        room!("96"),
        // A call of the same probe was left; another probe's may go on.
        "5: cmp rdx, rdi",
        "je 1b",
        "jmp 9f",
        "6: mov [rcx + {kept_site}], rsi",
        "jmp 2b",
        "9:",
        "64:",
    )
}

#[unsafe(naked)]
unsafe extern "C" fn end() {
    general_asm!(
        piece!(),
        // D1
        "mov rax, [r12 + {engine}]",
        own_line!("rax", "r13", "rdx"),
        "mov r9, [r13 + {active}]",
        ".p2align 5,,13",
        "cmp r9, {turns}",
        "jae 9f",
        // L1
        hint_place!("rax", "rcx", "r10"),
        ".p2align 5,,9",
        "cmp [r10 + {bound}], rcx",
        "jne 9f",
        "sub rsp, {room} + 8",
        "mov [rsp + {hit_regs}], rsi",
        ".p2align 5,,9",
        "cmp [r10 + {keeps}], r12",
        "jne 9f",
        // H2, in the hit: D2.
        sealed!("r13", "r9", "r9d", "rdx"),
        "mov r15, rcx",
        "mov rdx, [r12 + {consumers}]",
        ".p2align 5,,6",
        "test rdx, rdx",
        "jz 8f",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov rax, [rdx + {returns}]",
        ".p2align 5,,6",
        "test rax, rax",
        "jz 8f",
        "mov r9, [r10 + {kept_site}]",
        "mov qword ptr [r10 + {keeps}], 0",
        "mov [rsp + {hit_site}], r9",
        // B5; the probe is not asked for again.
        "mov r12, [rbx + 8 + {rip}]",
        "mov rdi, [rdx + {data}]",
        "lea rsi, [rsp + {hit}]",
        ".p2align 5,,3",
        "call rax",
        // D7: R5, the turn alone. One instruction of the line's only writer.
        ".p2align 5,,9",
        "cmp r12, [rbx + 8 + {rip}]",
        "jne 5f",
        "and qword ptr [r13 + {active}], {turns} - 1",
        ".p2align 5,,9",
        "cmp r15, [rbx + 8 + {rsp}]",
        "jne 6f",
        room!("192"),
        "5: and qword ptr [r13 + {active}], {turns} - 1",
        "mov eax, {elsewhere}",
        "jmp 4f",
        "6: mov eax, {other_stack}",
        "jmp 4f",
        "8: and qword ptr [r13 + {active}], {turns} - 1",
        "9: mov eax, {with_state}",
        "4:",
        "64:",
    )
}
