//! A hit with one consumer that uses general registers only, in code that does the same. Code that a compiler
//! makes of [`dispatch::entry`](crate::dispatch::entry) may use vector registers; this code does not.
//!
//! In: as `dispatch::entry`, from generated code only, which saves everything in `Regs` and loads it again.
//! This code preserves only the registers in the first picture's last line: a CPU stores one word a cycle,
//! and each push costs one. Out: a [`GoOn`], or [`WITH_STATE`]: nothing was done, and `dispatch::entry` must
//! be called with the extended state saved. That is the answer to all but the steps D1 to D4 and D7, for one
//! consumer with an entry handler and no filter. Such cases are a thread without a line, a
//! hit inside a hit, a list that is empty, longer, or changed since. The protocol is that of `dispatch` and
//! `epoch`, step by step. Entering and leaving without a call is a hit that looked and found nothing to do.
//! [`returns`] is for consumers that wait for the return.
//!
//! `.p2align 5,,N` is before each jump, call and return of the fast path. N is its length with the compare
//! that it fuses with, or a little more. So none crosses or ends at a 32-byte boundary; there Intel's cores
//! before Ice Lake do not keep it decoded (Intel, "Mitigations for Jump Conditional Code Erratum", 2019). In
//! a copy measured alone that was 2.5 of 13 ns. In the code that gates inline, order and longer forms
//! (`{disp8}`, `{disp32}`) are chosen so that none of these inserts any padding.
//! Does not: handle any other case.
//!
//! # Pictures
//!
//! ```text
//!   at entry      rdi = r12 = probe, rsi = Regs, rbx = Regs - BELOW, [rsp] = return address to the gate
//!   D1            rax = engine, rcx = thread pointer, r13 = line
//!   D2            r9 = turn, rcx = seal = [rsp] = [r13 + active];  rsp lower by ROOM
//!   D4            rcx = list, r10 = handler
//!   D3            r8 = the row's word for the probe, [r8] += 1
//!   the handler   rdi = data, rsi = rsp + HIT;  r14 = the program's rsp, r15 = its rip, before the call
//!   D7            [r13 + active] = turn;  rsp as at entry
//!   answer        eax;  rbx, rbp, rsp as at entry;  r12 = probe, until a handler was called
//! ```
//!
//! The frame (`parts`); the program's own stack begins further up, behind `Regs` and its red zone:
//!
//! ```text
//!   rsp                 seal
//!   rsp + HIT    16     Hit: regs, + 24 site, + 32 cookie
//!   rsp + SP     40     the program's stack pointer            returns::session
//!   rsp + KEPT   48     what else is kept of a call            returns::session
//!   rsp + ROOM   88     return address to the gate             ROOM + 8 is a multiple of 16
//! ```
//!
//! ```text
//!   line = lines + (((thread pointer · SPREAD) >> (SPREAD_SHIFT - LINE_SHIFT)) & mask)
//!   turn = (active + 1) mod 2^TURN_BITS                        active < 2^TURN_BITS: no hit goes on
//!   seal = rsp << (TURN_BITS - FRAME_ALIGN) | turn
//! ```

use core::arch::naked_asm;
use core::mem::offset_of;

use trapline_insn::x86_64::{Gpr, Regs};

use crate::consumer::{Hit, Verdict};
use crate::dispatch::GoOn;
use crate::engine::{Engine, Raw};
use crate::epoch::{FRAME_ALIGN, Line, SPREAD, SPREAD_SHIFT, TURN_BITS};
use crate::probe::{Alone, Consumers, List, Probe};
use parts::{HIT, LINE_SHIFT, ROOM};

// rustfmt would reflow these lines of instructions.
pub mod inlined;
#[rustfmt::skip]
mod parts;
pub mod returns;

pub use parts::WITH_STATE;

/// Distance from rbx up to `Regs`, in bytes.
const BELOW: usize = 8;
/// The hit described above.
///
/// # Safety
/// As for [`dispatch::entry`](crate::dispatch::entry). It must not be called as a C function: the module's
/// documentation says why.
#[unsafe(naked)]
pub unsafe extern "C" fn entry(probe: *const Probe, regs: *mut Regs) -> u64 {
    naked_asm!(
        // D1: the thread's line, if it is at its first place.
        "mov rax, [rdi + {engine}]",
        "mov rcx, fs:0",
        "imul r13, rcx, {spread}",
        "shr r13, {shift}",
        "and r13, [rax + {mask}]",
        "add r13, [rax + {lines}]",
        ".p2align 5,,13",
        "cmp [r13 + {owner}], rcx",
        "jne 9f",
        // D2: R1, and R2 with the seal.
        "mov r9, [r13 + {active}]",
        ".p2align 5,,13",
        "cmp r9, {turns}",
        "jae 9f",
        "sub rsp, {room}",
        "inc r9d",
        "and r9d, {turns} - 1",
        "mov rcx, rsp",
        "shl rcx, {frame}",
        "or rcx, r9",
        "mov [rsp], rcx",
        "mov [r13 + {active}], rcx",
        // D4: the list (H2). It comes before D3, because otherwise `dispatch::entry` would count the hit
        // again.
        "mov rcx, [r12 + {consumers}]",
        ".p2align 5,,9",
        "test rcx, rcx",
        "jz 8f",
        "mov r10, [rcx + {handler}]",
        ".p2align 5,,9",
        "test r10, r10",
        "jz {session}",
        // D3: the row's word for this probe.
        "mov r8, [rax + {row}]",
        "imul r8, r13",
        "add r8, [r12 + {words}]",
        "add qword ptr [r8], 1",
        "mov r15, [rbx + {rip}]",
        "mov r14, [rbx + {rsp}]",
        "mov [rsp + {hit_regs}], rsi",
        "mov [rsp + {hit_site}], r15",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov rdi, [rcx + {data}]",
        "lea rsi, [rsp + {hit}]",
        ".p2align 5,,3",
        "call r10",
        // D5
        ".p2align 5,,9",
        "cmp eax, {remove}",
        "je 5f",
        // D7: R5, which keeps the turn. One instruction, by the line's only writer.
        "2: and qword ptr [r13 + {active}], {turns} - 1",
        "xor eax, eax",
        ".p2align 5,,13",
        "cmp r15, [rbx + {rip}]",
        "jne 6f",
        ".p2align 5,,10",
        "cmp r14, [rbx + {rsp}]",
        "jne 7f",
        "3: add rsp, {room}",
        ".p2align 5,,1",
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
        "9: mov eax, {with_state}",
        "ret",
        session = sym returns::session,
        engine = const offset_of!(Probe, engine),
        consumers = const offset_of!(Probe, consumers) + offset_of!(Consumers, list),
        words = const offset_of!(Probe, words),
        removal = const offset_of!(Probe, removal),
        lines = const offset_of!(Engine, raw) + offset_of!(Raw, lines),
        mask = const offset_of!(Engine, raw) + offset_of!(Raw, mask),
        row = const offset_of!(Engine, raw) + offset_of!(Raw, row),
        owner = const offset_of!(Line, owner),
        active = const offset_of!(Line, active),
        handler = const offset_of!(List, alone) + offset_of!(Alone, handler),
        data = const offset_of!(List, alone) + offset_of!(Alone, data),
        spread = const SPREAD,
        shift = const SPREAD_SHIFT - LINE_SHIFT,
        turns = const 1_u64 << TURN_BITS,
        frame = const TURN_BITS - FRAME_ALIGN,
        rip = const BELOW + offset_of!(Regs, rip),
        rsp = const BELOW + offset_of!(Regs, gpr) + Gpr::Rsp as usize * 8,
        hit = const HIT,
        hit_regs = const HIT + offset_of!(Hit, regs),
        hit_site = const HIT + offset_of!(Hit, site),
        hit_cookie = const HIT + offset_of!(Hit, cookie),
        room = const ROOM,
        remove = const Verdict::REMOVE.0,
        elsewhere = const GoOn::Elsewhere as u64,
        other_stack = const GoOn::OtherStack as u64,
        with_state = const WITH_STATE,
    )
}
