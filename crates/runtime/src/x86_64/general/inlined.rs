//! The fast path of a call whose return one consumer waits for, as code that gates inline. No consumer is
//! called at the entry, and the stack word's place keeps the call (K2, L1 of `instances`). An inlined copy
//! needs no call, no return, and no word for a return address.
//!
//! In and out: as [`InlinedPath`] says for each. The protocol is that of `dispatch` and `instances`, where
//! each step takes its shortest way. In all other cases the code answers that nothing was done. They are a
//! thread without a line, a hit inside a hit, another list, return trampolines, a place that belongs to
//! another stack word or keeps another probe's call.
//! Does not: contain an address of its own, since it runs elsewhere.
//!
//! In memory a function here is: offset of the code from the function's address, length of the code, offset
//! of its room in the code, length of the room, and the code.

use super::parts::{general_asm, hint_place, own_line, sealed};

/// Code to be inlined, at a multiple of 64. Its fast path ends where its room begins, and the gate's own code
/// goes on there; its other path ends at the end of the code.
#[derive(Clone, Copy, Debug)]
pub struct InlinedPath {
    /// All of the code.
    pub text: &'static [u8],
    /// The room: offset in the code, and length, in bytes.
    pub room: (usize, usize),
}

impl InlinedPath {
    pub(super) fn of(function: unsafe extern "C" fn()) -> Self {
        let at = function as *const () as *const u64;
        // SAFETY: `function` is one of those below, which consist of such words and code.
        unsafe {
            let [text, len, room, room_len] = [0, 1, 2, 3].map(|n| at.add(n).read_unaligned() as usize);
            Self { text: core::slice::from_raw_parts(at.cast::<u8>().add(text), len), room: (room, room_len) }
        }
    }
    /// K2, at an entry: rdi = probe, rsi = site, rdx = its stack pointer. Changes rcx, rdx, r8 and r9. On its
    /// other path nothing was done.
    #[must_use]
    pub fn begin() -> Self {
        Self::of(begin)
    }
    /// L1 and B5, at an exit: r12 = probe, rsi = `Regs`, rbx the address 8 below, rcx = the exit's stack
    /// pointer, rsp a multiple of 16. Preserves only rbx and rbp. After the fast path `Regs` may have
    /// changed, except for the instruction pointer and the stack pointer. After its other path eax = a
    /// `GoOn`, or [`WITH_STATE`](super::WITH_STATE): nothing was done, and r12 is unchanged.
    #[must_use]
    pub fn end() -> Self {
        Self::of(end)
    }
}

/// The words before the code. Label 61 to 62 is the fast path, 62 to 63 the room, and 64 the end.
macro_rules! piece {
    () => {
        "60: .quad 61f - 60b, 64f - 61f, 62f - 61f, 63f - 62f; .p2align 6; 61:"
    };
}

/// Room for what the gate does after the fast path.
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
        // D1, D2: the thread has a line, and no hit goes on. Nothing is read that a writer frees, so there is
        // no need to enter.
        "{{disp32}} mov r8, [rdi + {engine}]",
        own_line!("r8", "r9", "rcx", "{{disp32}} "),
        "cmp qword ptr [r9 + {active}], {turns}",
        ".p2align 5,,6",
        "jae 9f",
        // And the probe does not arm: both flags are compared at once.
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
        // D3: the row's word for this probe.
        "1: add r9, [rdi + {words}]",
        ".p2align 5,,6",
        "cmp [rcx + {kept_site}], rsi",
        "jne 6f",
        "2: mov [rcx + {keeps}], rdi",
        "add qword ptr [r9], 1",
        room!("96"),
        // If a call of the same probe was left here, go on. Another probe's call may still go on.
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
        // H2, inside the hit: D2.
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
        // B5; the probe is not needed again, so r12 is reused.
        "mov r12, [rbx + 8 + {rip}]",
        "mov rdi, [rdx + {data}]",
        "lea rsi, [rsp + {hit}]",
        ".p2align 5,,3",
        "call rax",
        // D7: R5, which keeps the turn. One instruction, by the line's only writer.
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
