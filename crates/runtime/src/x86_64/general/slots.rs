//! A call whose return address is replaced, and whose return one consumer waits for that uses general registers alone: `arm` where nobody is called at the
//! entry, `landed` at the slot.
//!
//! In and out: as [`returns`](super::returns). The protocol is that of `slots`, where each step takes its short way: A2, of a slot that is bound to this stack
//! word and return address, and idle. Such a call needs no instance, of which it would want the site alone: its slot's entry holds that (`SITE`), and it counts as the
//! thread's hit. It enters its function from within the slot ([`GO`](at::GO), `plan`'s `stub::landing`), which spares the CPU a return that it did not foresee.
//! Everything else is asked for: a slot's first call, a tail call's, a call that was left here, a session.

use core::mem::offset_of;

use trapline_insn::x86_64::Regs;
use trapline_record::slots::{BEHIND, CODE, ENTER, ENTRY, at};

use super::parts::{enter, general_asm, go_on, leave, own_line};
use crate::instances::OTHER_SPREAD;
use crate::slots::{self, Table};

/// A1, A2 and A4 to A6, at an entry where nobody is called.
///
/// # Safety
/// As [`returns::begin`](super::returns::begin), and 8 above its own return address lies the one of the site, as `plan`'s gate has it.
#[unsafe(naked)]
pub unsafe extern "C" fn arm() {
    general_asm!(
        // D1, D2: a line of its own, and no hit that goes on. Nothing is read that a writer frees, so there is nothing to enter.
        "mov r8, [rdi + {engine}]",
        "mov rcx, fs:0",
        "imul r9, rcx, {spread}",
        "shr r9, {shift}",
        "and r9, [r8 + {mask}]",
        "mov r10, r9",
        "add r9, [r8 + {lines}]",
        ".p2align 5,,13",
        "cmp [r9 + {owner}], rcx",
        "jne 9f",
        "cmp qword ptr [r9 + {active}], {turns}",
        ".p2align 5,,6",
        "jae 9f",
        "cmp dword ptr [rdi + {only_returns}], 0",
        ".p2align 5,,6",
        "je 9f",
        "cmp byte ptr [rdi + {arms}], 0",
        ".p2align 5,,6",
        "je 9f",
        "mov r9, [r8 + {slots}]",
        ".p2align 5,,9",
        "test r9, r9",
        "jz 9f",
        "cmp dword ptr [r9 + {closed}], 0",
        ".p2align 5,,6",
        "jne 9f",
        // D3: the row's word of this probe.
        "imul r10, [r8 + {row}]",
        "add r10, [rdi + {words}]",
        // A2: the line of hints, and the first that is this stack word's.
        "mov r11, [rdx]",
        "imul rcx, rdx, {hint_spread}",
        "imul r11, r11, {other_spread}",
        "add rcx, r11",
        "shr rcx, {hint_shift}",
        "and rcx, [r9 + {line_mask}]",
        "add rcx, [r9 + {line_hints}]",
        "mov r11, rdx",
        "shl r11, {hint_bits}",
        "1: mov r8, [rcx]",
        "xor r8, r11",
        ".p2align 5,,13",
        "cmp r8, {nobody}",
        "ja 4f",
        "dec r8",
        ".p2align 5,,13",
        "cmp r8, [r9 + {slot_count}]",
        "jae 9f",
        // Its entry.
        "mov rcx, r8",
        "shl rcx, {entry_shift}",
        "add rcx, [r9 + {entries}]",
        ".p2align 5,,13",
        "cmp [rcx + {WORD}], rdx",
        "jne 9f",
        "mov r11, [rdx]",
        ".p2align 5,,13",
        "cmp [rcx + {REAL}], r11",
        "jne 9f",
        // Bound, with no slot under it, and idle.
        "mov r11, [rcx + {BOUND}]",
        "dec r11",
        "or r11, [rcx + {UNDER}]",
        "or r11, [rcx + {WHAT}]",
        ".p2align 5,,6",
        "jne 9f",
        // A4
        "shl r8, {code_shift}",
        "add r8, [r9 + {code}]",
        "add r8, {into}",
        "mov [rcx + {SITE}], rsi",
        "mov [rcx + {WHAT}], rdi",
        "mov r11, [rsp + 8]",
        "add r11, {behind}",
        ".p2align 5,,13",
        "cmp [rcx + {GO}], r11",
        "jne 6f",
        // A6
        "7: mov [rdx], r8",
        "add qword ptr [r10], 1",
        "xor ecx, ecx",
        ".p2align 5,,1",
        "ret",
        "6: mov [rcx + {GO}], r11",
        "jmp 7b",
        "4: add rcx, 8",
        "test cl, 63",
        "jnz 1b",
        "9: mov ecx, 1",
        "ret",
        closed = const offset_of!(Table, closed),
        code = const offset_of!(Table, raw) + offset_of!(slots::Raw, code),
        entries = const offset_of!(Table, raw) + offset_of!(slots::Raw, entries),
        slot_count = const offset_of!(Table, raw) + offset_of!(slots::Raw, count),
        line_hints = const offset_of!(Table, raw) + offset_of!(slots::Raw, hints),
        line_mask = const offset_of!(Table, raw) + offset_of!(slots::Raw, line_mask),
        other_spread = const OTHER_SPREAD,
        entry_shift = const ENTRY.trailing_zeros(),
        code_shift = const CODE.trailing_zeros(),
        into = const ENTER,
        behind = const BEHIND,
        REAL = const at::REAL,
        WORD = const at::WORD,
        SITE = const at::SITE,
        WHAT = const at::WHAT,
        UNDER = const at::UNDER,
        BOUND = const at::BOUND,
        GO = const at::GO,
    )
}

/// B1 to B6, but for the last instruction, of a call that `arm` began. Others have an instance.
///
/// # Safety
/// As [`dispatch::landed`](crate::dispatch::landed); not a C function, as [`entry`](super::entry) is none.
#[unsafe(naked)]
pub unsafe extern "C" fn landed(slots: *const Table, regs: *mut Regs) -> u64 {
    general_asm!(
        "mov r14, rsi",
        "mov r15, [rsi + {rsp}]",
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
        // D1
        "mov rax, [r9 + {engine}]",
        own_line!("rax", "r13", "rcx"),
        "mov rsi, [r13 + {active}]",
        ".p2align 5,,13",
        "cmp rsi, {turns}",
        "jae 9f",
        // D2
        enter!("r13", "rsi", "esi", "rax", "{room}"),
        // H2
        "mov rsi, [r9 + {consumers}]",
        ".p2align 5,,9",
        "test rsi, rsi",
        "jz 8f",
        "mov rax, [rsi + {ret}]",
        ".p2align 5,,9",
        "test rax, rax",
        "jz 8f",
        "cmp qword ptr [rsi + {session}], 0",
        ".p2align 5,,6",
        "jne 8f",
        "mov [rsp + {hit_site}], r11",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov [rsp + {hit_regs}], r14",
        // B3, B4. The slots are not asked for again.
        "mov r12, [r8 + {REAL}]",
        "mov qword ptr [r8 + {WHAT}], 0",
        "mov [r15], r12",
        "mov [r14 + {rip}], r12",
        // B5
        "mov rdi, [rsi + {data}]",
        "lea rsi, [rsp + {hit}]",
        ".p2align 5,,3",
        "call rax",
        leave!(),
        go_on!(),
        "8:",
        leave!(),
        "add rsp, {room}",
        "9: mov eax, {with_state}",
        "ret",
        entries = const offset_of!(Table, raw) + offset_of!(slots::Raw, entries),
        entry_shift = const ENTRY.trailing_zeros(),
        REAL = const at::REAL,
        SITE = const at::SITE,
        WHAT = const at::WHAT,
    )
}
