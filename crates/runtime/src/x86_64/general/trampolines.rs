//! The fast path of a call whose return address is replaced, if the one consumer that waits for its return
//! uses general registers only. It is code that gates inline: [`InlinedPath::arm`] at an entry where no
//! consumer is called, [`InlinedPath::on_return`] at the return trampoline.
//!
//! In and out: as each says. The protocol is that of `trampolines`, where each step takes its shortest way:
//! A2, for an idle trampoline that is bound to this stack word and return address, as the *quick* hints say.
//! Such a call needs no instance, which would hold only the site. The trampoline's entry holds that (`SITE`),
//! and the call counts as the thread's hit. It enters its function from within the trampoline
//! ([`GO`](at::GO), `plan`'s `stub::own_trampolines`), which spares the CPU a mispredicted return. In all
//! other cases the code answers that nothing was done: a trampoline's first call, a tail call's, a call that
//! was left here, a session.

use core::mem::offset_of;

use trapline_record::trampolines::{ENTRY, at};

use super::inlined::{InlinedPath, piece, room};
use super::parts::{general_asm, own_line, sealed};
use crate::trampolines::{self, QUICK_SHIFT, QUICK_SPREAD, QUICK_UP, TrampolineTable};

impl InlinedPath {
    /// A1, A2 and A4 to A6, at an entry. Registers as for [`begin`](Self::begin), and `[rsp]` is the address
    /// of the displaced instructions. After the fast path the stack word holds a trampoline's address, at
    /// [`ENTER`](trapline_record::trampolines::ENTER).
    #[must_use]
    pub fn arm() -> Self {
        Self::of(arm)
    }
    /// B1 to B6 without the last instruction, for a call that [`arm`](Self::arm) began. Registers as for
    /// [`end`](Self::end), with the trampolines' [`TrampolineTable`] in place of the probe. After it the
    /// stack word and `Regs` hold the address that the call returns to.
    #[must_use]
    pub fn on_return() -> Self {
        Self::of(on_return)
    }
}

#[unsafe(naked)]
unsafe extern "C" fn arm() {
    general_asm!(
        piece!(),
        // D1, D2: the thread has a line, and no hit goes on. Nothing is read that a writer frees, so there is
        // no need to enter.
        "{{disp8}} mov r8, [rdi + {engine}]",
        own_line!("r8", "r9", "rcx"),
        "cmp qword ptr [r9 + {active}], {turns}",
        ".p2align 5,,6",
        "jae 9f",
        "mov rcx, {both}",
        ".p2align 5,,9",
        "cmp [rdi + {only_returns}], rcx",
        "jne 9f",
        // D3: the row's word for this probe.
        "imul r9, [r8 + {row}]",
        "add r9, [rdi + {words}]",
        // A2: the quick hint. Whatever its value, it leads to an entry. A probe that arms has trampolines
        // (`Probe::set_arms`); when the table is closed, all hints are 0.
        "mov r8, [r8 + {trampolines}]",
        "mov rcx, rdx",
        "shl rcx, {quick_up}",
        "{{disp8}} add rcx, [rdx]",
        "imul rcx, rcx, {quick_spread}",
        "shr rcx, {quick_shift}",
        "and rcx, [r8 + {quick_mask}]",
        "add rcx, [r8 + {quick}]",
        "{{disp8}} mov ecx, [rcx]",
        "add rcx, [r8 + {entries}]",
        ".p2align 5,,13",
        "cmp [rcx + {WORD}], rdx",
        "jne 9f",
        "{{disp32}} mov r8, [rdx]",
        ".p2align 5,,9",
        "{{disp8}} cmp [rcx + {REAL}], r8",
        "jne 9f",
        // `WHAT` is 0: the trampoline is idle. Since it still has this word and address, it is bound;
        // otherwise it would be in use.
        "cmp qword ptr [rcx + {WHAT}], 0",
        ".p2align 5,,6",
        "jne 9f",
        // A4. Stores only if the last call's values differ. An equal `GO` implies the same site.
        "mov r8, [rsp]",
        ".p2align 5,,9",
        "cmp [rcx + {GO}], r8",
        "jne 5f",
        "1: mov [rcx + {WHAT}], rdi",
        // A6
        "mov r8, [rcx + {INTO}]",
        "mov [rdx], r8",
        "add qword ptr [r9], 1",
        room!("96"),
        "5: mov [rcx + {SITE}], rsi",
        "mov [rcx + {GO}], r8",
        "jmp 1b",
        "9:",
        "64:",
        both = const 1_u64 << 32 | 1,
        entries = const offset_of!(TrampolineTable, raw) + offset_of!(trampolines::Raw, entries),
        quick = const offset_of!(TrampolineTable, raw) + offset_of!(trampolines::Raw, quick),
        quick_mask = const offset_of!(TrampolineTable, raw) + offset_of!(trampolines::Raw, quick_mask),
        quick_up = const QUICK_UP,
        quick_spread = const QUICK_SPREAD,
        quick_shift = const QUICK_SHIFT,
        REAL = const at::REAL,
        WORD = const at::WORD,
        SITE = const at::SITE,
        WHAT = const at::WHAT,
        INTO = const at::INTO,
        GO = const at::GO,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn on_return() {
    general_asm!(
        piece!(),
        "mov r15, rcx",
        // B2
        "mov r8d, [r15]",
        "shl r8, {entry_shift}",
        "add r8, [r12 + {entries}]",
        "mov r9, [r8 + {WHAT}]",
        ".p2align 5,,9",
        "test r9, r9",
        "jz 9f",
        "mov r11, [r8 + {SITE}]",
        ".p2align 5,,9",
        "test r11, r11",
        "jz 9f",
        // D1. The engine is read from the table, since the probe is known only later.
        "mov rax, [r12 + {engine_of_all}]",
        own_line!("rax", "r13", "rcx"),
        "mov r10, [r13 + {active}]",
        "sub rsp, {room} + 8",
        "mov [rsp + {hit_regs}], rsi",
        ".p2align 5,,13",
        "cmp r10, {turns}",
        "jae 9f",
        // D2
        "mov qword ptr [rsp + {hit_cookie}], 0",
        sealed!("r13", "r10", "r10d", "rax"),
        // H2
        "mov rdx, [r9 + {consumers}]",
        ".p2align 5,,6",
        "test rdx, rdx",
        "jz 8f",
        "mov rax, [rdx + {returns}]",
        ".p2align 5,,6",
        "test rax, rax",
        "jz 8f",
        "mov [rsp + {hit_site}], r11",
        // B3, B4. The table is not needed again, so r12 is reused.
        "mov r12, [r8 + {REAL}]",
        "mov qword ptr [r8 + {WHAT}], 0",
        "mov [r15], r12",
        "mov [rbx + 8 + {rip}], r12",
        // B5
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
        engine_of_all = const offset_of!(TrampolineTable, raw) + offset_of!(trampolines::Raw, engine),
        entries = const offset_of!(TrampolineTable, raw) + offset_of!(trampolines::Raw, entries),
        entry_shift = const ENTRY.trailing_zeros(),
        REAL = const at::REAL,
        SITE = const at::SITE,
        WHAT = const at::WHAT,
    )
}
