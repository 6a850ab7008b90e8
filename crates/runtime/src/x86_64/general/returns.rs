//! A call with one consumer that waits for its return and uses general registers only: its entry and its
//! return, in code that does the same. `begin` is the entry where no consumer is called, `session` the entry
//! with a handler, `exit` the return of either. [`inlined`](super::inlined) is for calls that are kept in
//! place, and for calls that get return trampolines.
//!
//! In: as `dispatch`, from generated code only. Out: the answer that all is done, or that nothing was and
//! `dispatch` must be called. The protocol is that of `dispatch`, `epoch`, `instances` and `pool`, step by
//! step, where each step takes its shortest way. The instance comes from the CPU's own magazine and goes back
//! to it, and its hint finds it. In all other cases nothing is done. Examples are a thread without a line, a
//! hit inside a hit, another list, an empty or a full magazine. Others are a hint that belongs to another
//! call, a call that was left on this very frame, and no rseq.
//!
//! If the hint names the instance on top of the magazine (the usual case: the last call with this stack
//! pointer gave it back), A1 is not needed. No call has an instance that is in a magazine.
//!
//! A session that declines gives its instance back to the magazine (A6). If that has no room by now, the call
//! keeps the instance. Its exit finds that no session is to be called, and gives it back.
//!
//! Three things differ, each to save stores, of which a CPU does one a cycle:
//! - hits are counted in the instance (`Instance::calls`), which is written anyway;
//! - hints stay when a call is over (`instances` says why they may);
//! - the pointer to the sequence stays in the rseq area. The kernel resets it when it next looks. Neither the
//!   sequence nor its descriptor is ever unmapped, since generated code names this code, and stays.
//!
//! Does not: handle more than one consumer.
//!
//! # Pictures
//!
//! S is the stack pointer at the function's entry or exit, where the return address lies:
//!
//! ```text
//!   begin, in     rdi = probe, rsi = site, rdx = S, [rsp] = return address; no frame
//!                 r8 = engine, r9 = line and then pool, r10 = place, r11 = S << NUMBER_BITS
//!   A2            rcx = rseq area, r8 = magazine; then rcx = the hint, r8 = number
//!   A4            r8 = end of the instance; r11 = thread pointer
//!   out           rcx = 0, or 1: nothing was done;  rcx, rdx, r8 to r11 may have changed
//! ```
//!
//! ```text
//!   session, in   rax = engine, rcx = list, rsi = Regs, r12 = probe, r13 = line, entered; the frame of `parts`
//!                 r14 = Regs, r15 = rip, rdx = [rsp + SP] = S, r9 = pool, r10 = place, r8 = number
//!                 rsp + KEPT: number;  + 8: session's number;  + 16: place
//!   A5            rdi = data, rsi = rsp + HIT;  eax = verdict
//!   A6            r11 = end of the instance, r9 = pool, r8 = number, rdx = rseq area, rsi = magazine
//!   out           eax: GoOn or WITH_STATE;  rsp += ROOM, then `ret` to the gate
//! ```
//!
//! ```text
//!   exit, in      rsi = Regs, r12 = probe, rbx = Regs - 8, [rsp] = return address
//!                 rax = engine, r13 = line, r14 = Regs, r15 = S, r10 = place, rdi = pool, r11 = instance
//!   D2            rsp lower by ROOM; r9 = turn;  rcx = rseq area
//!   H2            rdx = list, rax = handler
//!   B3, B4        [instance + sp] = 0;  r8 = number, rsi = magazine
//!   B5            r12 = rip, rdi = data, rsi = rsp + HIT
//!   out           eax: GoOn or WITH_STATE;  rsp as at entry
//! ```
//!
//! A hint, and the instance that it names:
//!
//! ```text
//!   hint          [place] = S << NUMBER_BITS | number           number: the instance's, + 1
//!   instance      objects + OBJECT · (number - 1), if number - 1 < count and [instance + sp] = S
//!   no consumer   number = NO_CONSUMER: a session declined this call; `exit` has nothing to do
//! ```

use trapline_insn::x86_64::Regs;

use super::parts::{
    begun, begun_anew, enter, general_asm, go_on, hint_place, leave, left, own_line, own_magazine, put,
    sealed, sequence,
};
use crate::consumer::Verdict;
use crate::probe::Probe;

/// A1 to A4, at an entry where no consumer is called.
///
/// # Safety
/// As for [`dispatch::entry`](crate::dispatch::entry). It is not a C function: the module's pictures show its
/// registers.
#[unsafe(naked)]
pub unsafe extern "C" fn begin() {
    general_asm!(
        sequence!("77", "72", "73", "74"),
        sequence!("87", "82", "83", "84"),
        // D1, D2: the thread has a line, and no hit goes on. Nothing is read that a writer frees, so there is
        // no need to enter.
        "mov r8, [rdi + {engine}]",
        own_line!("r8", "r9", "rcx"),
        "cmp qword ptr [r9 + {active}], {turns}",
        ".p2align 5,,6",
        "jae 9f",
        "cmp dword ptr [rdi + {only_returns}], 0",
        ".p2align 5,,6",
        "je 9f",
        "cmp byte ptr [rdi + {arms}], 0",
        ".p2align 5,,6",
        "jne 9f",
        "mov r9, [rdi + {instances}]",
        ".p2align 5,,9",
        "test r9, r9",
        "jz 9f",
        "mov r11, [r8 + {rseq}]",
        ".p2align 5,,9",
        "test r11, r11",
        "jz 9f",
        "add rcx, r11",
        hint_place!("r8", "rdx", "r10"),
        // Leave to `dispatch` a place that is still to be bound. The same for one that is bound to this stack
        // pointer and keeps a call of this probe that was left.
        "mov r11, [r10 + {bound}]",
        "test r11, r11",
        "jz 9f",
        "cmp r11, rdx",
        "je 6f",
        "7: mov r11, rdx",
        "shl r11, {hint_bits}",
        // A2: the pool's G1 and G2, for the instance that the hint names.
        own_magazine!("r9", "rcx", "r8", "r8d", "77", "72", "9f"),
        "movzx ecx, word ptr [r8 + {word}]",
        "or rcx, r11",
        ".p2align 5,,13",
        "cmp [r10], rcx",
        "jne 5f",
        "shr qword ptr [r8 + {word}], {bits}",
        "73: movzx r8d, cx",
        // A4; the hint was stored before it, which is harmless since it is a guess either way.
        "3: shl r8, {object_shift}",
        "add r8, [r9 + {objects}]",
        begun!("r8", "rsi", "r11"),
        "mov [r8 + {sp} - {object}], rdx",
        "xor ecx, ecx",
        ".p2align 5,,1",
        "ret",
        // A1: if an instance has this key, its call was left here.
        "5: mov rcx, [r10]",
        "xor rcx, r11",
        "dec rcx",
        "cmp rcx, [r9 + {count}]",
        "jae 2f",
        "shl rcx, {object_shift}",
        "add rcx, [r9 + {objects}]",
        "cmp [rcx + {sp}], rdx",
        "je 9f",
        // A2, for any instance.
        "2: mov rcx, [rdi + {engine}]",
        "mov rcx, [rcx + {rseq}]",
        "add rcx, fs:0",
        own_magazine!("r9", "rcx", "r8", "r8d", "87", "82", "9f"),
        "movzx ecx, word ptr [r8 + {word}]",
        "test ecx, ecx",
        "jz 9f",
        "shr qword ptr [r8 + {word}], {bits}",
        "83: or r11, rcx",
        "mov [r10], r11",
        "mov r8d, ecx",
        "jmp 3b",
        "6: cmp [r10 + {keeps}], rdi",
        "jne 7b",
        "9: mov ecx, 1",
        "ret",
        begun_anew!("r8", "rsi", "r11"),
        left!("74", "9b"),
        left!("84", "9b"),
    )
}

/// A1 to A6 with the entry handler of a session. [`entry`](super::entry) jumps here, inside its frame, if the
/// list has no consumer for it.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn session() {
    general_asm!(
        sequence!("77", "72", "73", "74"),
        sequence!("87", "82", "83", "84"),
        "mov r14, rsi",
        "mov rdx, [rcx + {session}]",
        "cmp qword ptr [rcx + {entry}], 0",
        "je 8f",
        "cmp byte ptr [r12 + {arms}], 0",
        "jne 8f",
        "mov [rsp + {kept} + 8], rdx",
        "mov r15, [r14 + {rip}]",
        "mov rdx, [r14 + {rsp}]",
        "mov [rsp + {own}], rdx",
        "mov r9, [r12 + {instances}]",
        "test r9, r9",
        "jz 8f",
        "mov rsi, [rax + {rseq}]",
        "test rsi, rsi",
        "jz 8f",
        "add rsi, fs:0",
        hint_place!("rax", "rdx", "r10"),
        "cmp [r10 + {keeps}], r12",
        "je 8f",
        "mov [rsp + {kept} + 16], r10",
        // A1
        "mov r8, rdx",
        "shl r8, {hint_bits}",
        "xor r8, [r10]",
        "dec r8",
        "cmp r8, [r9 + {count}]",
        "jae 2f",
        "shl r8, {object_shift}",
        "add r8, [r9 + {objects}]",
        "cmp [r8 + {sp}], rdx",
        "je 8f",
        // A2
        "2:",
        own_magazine!("r9", "rsi", "r11", "r11d", "77", "72", "8f"),
        "mov r8, [r11 + {word}]",
        "test r8, r8",
        "jz 8f",
        "shr qword ptr [r11 + {word}], {bits}",
        "73: movzx r8d, r8w",
        "mov [rsp + {kept}], r8",
        // A4
        "mov r11, rdx",
        "shl r11, {hint_bits}",
        "or r11, r8",
        "cmp [r10], r11",
        "je 3f",
        "mov [r10], r11",
        "3: shl r8, {object_shift}",
        "add r8, [r9 + {objects}]",
        begun!("r8", "r15", "r11"),
        "mov [r8 + {sp} - {object}], rdx",
        // A5
        "mov [rsp + {hit_regs}], r14",
        "mov [rsp + {hit_site}], r15",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "mov rdi, [rcx + {data}]",
        "lea rsi, [rsp + {hit}]",
        "call qword ptr [rcx + {entry}]",
        "mov r9, [r12 + {instances}]",
        "mov r8, [rsp + {kept}]",
        "mov r11, r8",
        "shl r11, {object_shift}",
        "add r11, [r9 + {objects}]",
        "mov rcx, [r14 + {rip}]",
        "dec eax",
        "cmp eax, {ignore} - {remove}",
        "jbe 6f",
        "cmp rcx, r15",
        "jne 7f",
        "mov rdx, [rsp + {kept} + 8]",
        "mov [r11 + {session_id} - {object}], rdx",
        "mov rdx, [rsp + {hit_cookie}]",
        "mov [r11 + {session_id} + 8 - {object}], rdx",
        "mov qword ptr [r11 + {len} - {object}], 1",
        // D7
        "1:",
        leave!(),
        "xor eax, eax",
        "mov rdx, [r14 + {rsp}]",
        "cmp rcx, r15",
        "jne 4f",
        "cmp rdx, [rsp + {own}]",
        "jne 5f",
        "3: add rsp, {room}",
        "ret",
        "4: mov eax, {elsewhere}",
        "jmp 3b",
        "5: mov eax, {other_stack}",
        "jmp 3b",
        // D5
        "6: test eax, eax",
        "jnz 7f",
        "mov dword ptr [r12 + {removal}], 1",
        // A6: B3, B4.
        "7: mov qword ptr [r11 + {sp} - {object}], 0",
        "mov rax, [r12 + {engine}]",
        "mov rdx, [rax + {rseq}]",
        "add rdx, fs:0",
        put!("r9", "rdx", "r8", "rsi", "esi", "87", "82", "83", "9f"),
        "mov rdx, [rsp + {own}]",
        "shl rdx, {hint_bits}",
        "or rdx, {no_consumer}",
        "mov r10, [rsp + {kept} + 16]",
        "mov [r10], rdx",
        "jmp 1b",
        "9: mov rdx, [rsp + {own}]",
        "mov [r11 + {sp} - {object}], rdx",
        "jmp 1b",
        // Nothing was done.
        "8:",
        leave!(),
        "mov eax, {with_state}",
        "add rsp, {room}",
        "ret",
        begun_anew!("r8", "r15", "r11"),
        left!("74", "8b"),
        left!("84", "9b"),
        remove = const Verdict::REMOVE.0,
        ignore = const Verdict::IGNORE_RETURN.0,
    )
}

/// B1 to B5, at an exit.
///
/// # Safety
/// As [`dispatch::exit`](crate::dispatch::exit); not a C function, as [`entry`](super::entry) is none.
#[unsafe(naked)]
pub unsafe extern "C" fn exit(probe: *const Probe, regs: *mut Regs) -> u64 {
    general_asm!(
        sequence!("77", "72", "73", "74"),
        // D1
        "mov rax, [r12 + {engine}]",
        own_line!("rax", "rdx", "rcx"),
        "mov r9, [rdx + {active}]",
        ".p2align 5,,13",
        "cmp r9, {turns}",
        "jae 9f",
        "mov r13, rdx",
        "mov r14, rsi",
        "mov r15, [rsi + {rsp}]",
        // L1, if the list has changed since the entry; B1.
        hint_place!("rax", "r15", "r10"),
        "cmp [r10 + {keeps}], r12",
        "je 9f",
        "mov rdi, [r12 + {instances}]",
        ".p2align 5,,9",
        "test rdi, rdi",
        "jz 9f",
        "mov r8, r15",
        "shl r8, {hint_bits}",
        "xor r8, [r10]",
        "lea r11, [r8 - 1]",
        ".p2align 5,,13",
        "cmp r11, [rdi + {count}]",
        "jae 2f",
        "shl r11, {object_shift}",
        "add r11, [rdi + {objects}]",
        ".p2align 5,,13",
        "cmp [r11 + {sp}], r15",
        "jne 9f",
        "mov rsi, [rax + {rseq}]",
        ".p2align 5,,9",
        "test rsi, rsi",
        "jz 9f",
        "add rcx, rsi",
        // D2: R1 was above.
        enter!("r13", "r9", "r9d", "rdx", "{room}"),
        // H2
        "mov rdx, [r12 + {consumers}]",
        ".p2align 5,,9",
        "test rdx, rdx",
        "jz 8f",
        "mov rax, [rdx + {ret}]",
        ".p2align 5,,9",
        "test rax, rax",
        "jz 8f",
        "mov qword ptr [rsp + {hit_cookie}], 0",
        "cmp qword ptr [rdx + {session}], 0",
        ".p2align 5,,6",
        "jne 5f",
        // B2
        "1: mov r9, [r11 + {site}]",
        "mov [rsp + {hit_site}], r9",
        "mov [rsp + {hit_regs}], r14",
        // B3; B4 is the pool's.
        "mov qword ptr [r11 + {sp}], 0",
        put!("rdi", "rcx", "r8", "rsi", "esi", "77", "72", "73", "7f"),
        // B5; the probe is not needed again, so r12 is reused.
        "mov r12, [r14 + {rip}]",
        "mov rdi, [rdx + {data}]",
        "lea rsi, [rsp + {hit}]",
        ".p2align 5,,3",
        "call rax",
        leave!(),
        go_on!(),
        // A session is called only if it alone has left a cookie.
        "5: mov rsi, [rdx + {session}]",
        "cmp qword ptr [r11 + {len}], 1",
        "jne 8f",
        "cmp [r11 + {session_id}], rsi",
        "jne 8f",
        "mov r10, [r11 + {session_id} + 8]",
        "mov [rsp + {hit_cookie}], r10",
        "jmp 1b",
        // Undo B3: the call held the instance all the time.
        "7: mov [r11 + {sp}], r15",
        "8:",
        leave!(),
        "add rsp, {room}",
        "9: mov eax, {with_state}",
        "ret",
        "2: cmp r8, {no_consumer}",
        "jne 9b",
        "xor eax, eax",
        "ret",
        left!("74", "7b"),
    )
}
