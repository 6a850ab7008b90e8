//! A hit whose only consumer uses general registers alone, in code that does the same: what a compiler makes of
//! [`dispatch::entry`](crate::dispatch::entry) may pass through vector registers, this does not.
//!
//! In: as `dispatch::entry`, from generated code alone, which keeps everything in `Regs` and loads it again: rbx, rbp, rsp and r12 are kept
//! here, all other registers are not, since a CPU stores one word a cycle and each that is pushed costs that. Out: a [`GoOn`], or [`WITH_STATE`]: nothing was done, and `dispatch::entry` is to be called
//! with the extended state saved. That is asked for whenever there is more to do than the steps D1 to D4, D7 for one consumer with an entry
//! handler and no filter: a thread without a line, a hit inside a hit, a list that is empty, longer, or changed since. The protocol is
//! that of `dispatch` and `epoch`, step by step; entering and leaving without a call is a hit that looked and found nothing to do.
//! Does not: know any other case.

use core::arch::naked_asm;
use core::mem::{offset_of, size_of};

use trapline_insn::x86_64::{Gpr, Regs};

use crate::consumer::{Hit, Verdict};
use crate::dispatch::GoOn;
use crate::engine::{Engine, GROUP_LEN, Raw};
use crate::epoch::{FRAME_ALIGN, Line, SPREAD, SPREAD_SHIFT, TURN_BITS};
use crate::probe::{Alone, List, Probe};

/// To be called again, through `dispatch::entry`, with the extended state saved.
pub const WITH_STATE: u64 = 3;

/// On its stack: the seal, which the frame is named after; the hit; sp as it was.
const HIT: usize = 16;
const SP: usize = HIT + size_of::<Hit>();
/// With the return address, a multiple of 16.
const ROOM: usize = 56;
const _: () = assert!(SP + 8 <= ROOM && size_of::<Line>() == 128 && GROUP_LEN.is_power_of_two());

/// See the module.
///
/// # Safety
/// As [`dispatch::entry`](crate::dispatch::entry); not to be called as a C function: see the module.
#[unsafe(naked)]
pub unsafe extern "C" fn entry(probe: *const Probe, regs: *mut Regs) -> u64 {
    naked_asm!(
        // D1: the thread's line, if it is where the search begins.
        "mov rax, [rdi + {engine}]",
        "mov rcx, fs:0",
        "mov rdx, {spread}",
        "imul rdx, rcx",
        "shr rdx, {shift}",
        "and rdx, [rax + {mask}]",
        "mov r8, rdx",
        "shl rdx, 7",
        "add rdx, [rax + {lines}]",
        "cmp [rdx + {owner}], rcx",
        "jne 9f",
        // D2: R1, and R2 with the seal.
        "mov r9, [rdx + {active}]",
        "cmp r9, {turns}",
        "jae 9f",
        "sub rsp, {room}",
        "mov r12, rdi; mov r13, rdx; mov r14, rsi",
        "inc r9d",
        "and r9d, {turns} - 1",
        "mov rcx, rsp",
        "shl rcx, {frame}",
        "or rcx, r9",
        "mov [rsp], rcx",
        "mov [r13 + {active}], rcx",
        // D4: the list (H2), before D3, which the other way would count again.
        "mov rcx, [r12 + {consumers}]",
        "test rcx, rcx",
        "jz 8f",
        "mov r10, [rcx + {handler}]",
        "test r10, r10",
        "jz 8f",
        // D3: the row's words of this probe.
        "imul r8, [rax + {stride}]",
        "add r8, [rax + {words}]",
        "mov edx, [r12 + {number}]",
        "imul rdx, rdx, {group}",
        "add qword ptr [r8 + rdx], 1",
        "mov r15, [r14 + {rip}]",
        "mov rdx, [r14 + {rsp}]",
        "mov [rsp + {hit_regs}], r14",
        "mov [rsp + {hit_site}], r15",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov [rsp + {sp}], rdx",
        "mov rdi, [rcx + {data}]",
        "lea rsi, [rsp + {hit}]",
        "call r10",
        // D5
        "cmp eax, {remove}",
        "je 5f",
        "2: mov rcx, [r14 + {rip}]",
        "mov rdx, [r14 + {rsp}]",
        // D7: R5, with the turn that the seal holds.
        "mov rsi, [rsp]",
        "and esi, {turns} - 1",
        "mov [r13 + {active}], rsi",
        "xor eax, eax",
        "cmp rcx, r15",
        "jne 6f",
        "cmp rdx, [rsp + {sp}]",
        "jne 7f",
        "3: add rsp, {room}",
        "ret",
        "5: mov dword ptr [r12 + {removal}], 1",
        "jmp 2b",
        "6: mov eax, {elsewhere}",
        "jmp 3b",
        "7: mov eax, {other_stack}",
        "jmp 3b",
        "8: mov [r13 + {active}], r9",
        "mov eax, {with_state}",
        "jmp 3b",
        "9: mov r12, rdi",
        "mov eax, {with_state}",
        "ret",
        engine = const offset_of!(Probe, engine),
        consumers = const offset_of!(Probe, consumers),
        number = const offset_of!(Probe, number),
        removal = const offset_of!(Probe, removal),
        lines = const offset_of!(Engine, raw) + offset_of!(Raw, lines),
        mask = const offset_of!(Engine, raw) + offset_of!(Raw, mask),
        words = const offset_of!(Engine, raw) + offset_of!(Raw, words),
        stride = const offset_of!(Engine, raw) + offset_of!(Raw, stride),
        group = const GROUP_LEN,
        owner = const offset_of!(Line, owner),
        active = const offset_of!(Line, active),
        handler = const offset_of!(List, alone) + offset_of!(Alone, handler),
        data = const offset_of!(List, alone) + offset_of!(Alone, data),
        spread = const SPREAD.cast_signed(),
        shift = const SPREAD_SHIFT,
        turns = const 1_u64 << TURN_BITS,
        frame = const TURN_BITS - FRAME_ALIGN,
        rip = const offset_of!(Regs, rip),
        rsp = const offset_of!(Regs, gpr) + Gpr::Rsp as usize * 8,
        hit = const HIT,
        hit_regs = const HIT + offset_of!(Hit, regs),
        hit_site = const HIT + offset_of!(Hit, site),
        hit_cookie = const HIT + offset_of!(Hit, cookie),
        sp = const SP,
        room = const ROOM,
        remove = const Verdict::REMOVE.0,
        elsewhere = const GoOn::Elsewhere as u64,
        other_stack = const GoOn::OtherStack as u64,
        with_state = const WITH_STATE,
    )
}
