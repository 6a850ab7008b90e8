//! A hit whose only consumer uses general registers alone, in code that does the same: what a compiler makes of
//! [`dispatch::entry`](crate::dispatch::entry) may pass through vector registers, this does not.
//!
//! In: as `dispatch::entry`. Out: a [`GoOn`](crate::dispatch::GoOn), or [`WITH_STATE`]: nothing was done, and `dispatch::entry` is to be called
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

/// On its stack: the seal, which the frame is named after; the hit; ip and sp as they were.
const HIT: usize = 16;
const IP: usize = HIT + size_of::<Hit>();
const SP: usize = IP + 8;
/// With five registers pushed and the return address, a multiple of 16.
const ROOM: usize = 64;
const _: () = assert!(SP + 8 <= ROOM && size_of::<Line>() == 128 && GROUP_LEN.is_power_of_two());

/// See the module.
///
/// # Safety
/// As [`dispatch::entry`](crate::dispatch::entry).
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
        "push rbx; push r12; push r13; push r14; push r15",
        "sub rsp, {room}",
        "mov rbx, rdi; mov r12, rsi; mov r13, rdx",
        "inc r9d",
        "and r9d, {turns} - 1",
        "mov r14, r9",
        "mov rcx, rsp",
        "shl rcx, {frame}",
        "or rcx, r9",
        "mov [rsp], rcx",
        "mov [r13 + {active}], rcx",
        // D4: the list (H2), before D3, which the other way would count again.
        "mov rcx, [rbx + {consumers}]",
        "test rcx, rcx",
        "jz 8f",
        "mov r15, [rcx + {handler}]",
        "test r15, r15",
        "jz 8f",
        // D3: the row's words of this probe.
        "imul r8, [rax + {stride}]",
        "add r8, [rax + {words}]",
        "mov edx, [rbx + {number}]",
        "imul rdx, rdx, {group}",
        "add qword ptr [r8 + rdx], 1",
        "mov rax, [r12 + {rip}]",
        "mov rdx, [r12 + {rsp}]",
        "mov [rsp + {hit_regs}], r12",
        "mov [rsp + {hit_site}], rax",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov [rsp + {ip}], rax",
        "mov [rsp + {sp}], rdx",
        "mov rdi, [rcx + {data}]",
        "lea rsi, [rsp + {hit}]",
        "call r15",
        // D5
        "cmp eax, {remove}",
        "je 5f",
        "2: mov rcx, [r12 + {rip}]",
        "mov rdx, [r12 + {rsp}]",
        // D7: R5.
        "mov [r13 + {active}], r14",
        "xor eax, eax",
        "cmp rcx, [rsp + {ip}]",
        "jne 6f",
        "cmp rdx, [rsp + {sp}]",
        "jne 7f",
        "3: add rsp, {room}",
        "pop r15; pop r14; pop r13; pop r12; pop rbx",
        "ret",
        "5: mov dword ptr [rbx + {removal}], 1",
        "jmp 2b",
        "6: mov eax, {elsewhere}",
        "jmp 3b",
        "7: mov eax, {other_stack}",
        "jmp 3b",
        "8: mov [r13 + {active}], r14",
        "mov eax, {with_state}",
        "jmp 3b",
        "9: mov eax, {with_state}",
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
        ip = const IP,
        sp = const SP,
        room = const ROOM,
        remove = const Verdict::REMOVE.0,
        elsewhere = const GoOn::Elsewhere as u64,
        other_stack = const GoOn::OtherStack as u64,
        with_state = const WITH_STATE,
    )
}
