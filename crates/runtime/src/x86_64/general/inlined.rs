//! The fast path of a call with one consumer that waits for its return, as code that gates inline. It is not
//! called at the entry. An inlined copy needs no call, no return, and no word for a return address.
//!
//! There are two kinds. [`begin`](InlinedPath::begin) and [`end`](InlinedPath::end) are for calls with
//! patched exits: the stack word's place keeps the call (K2, L1 of `instances`). [`arm`](InlinedPath::arm)
//! and [`on_return`](InlinedPath::on_return) are for calls with a replaced return address (A2 of
//! `trampolines`): they take an idle trampoline that is bound to this stack word and return address, as the
//! *quick* hints say. Such a call needs no instance, which would hold only the site. The trampoline's entry
//! holds that (`SITE`), and the call counts as the thread's hit. It enters its function from within the
//! trampoline ([`GO`](at::GO), `plan`'s `stub::own_trampolines`), which spares the CPU a mispredicted return.
//!
//! In and out: as [`InlinedPath`] says for each. The protocol is that of `dispatch`, `instances` and
//! `trampolines`, where each step takes its shortest way. In all other cases the code answers that nothing was
//! done. They are a thread without a line, a hit inside a hit, another list, a session. Also a place that
//! belongs to another stack word or keeps another probe's call. And a trampoline's first call, a tail call's,
//! a call that was left here.
//! Does not: contain an address of its own, since it runs elsewhere.
//!
//! In memory, a function here is:
//!
//! ```text
//!   + 0                 offset of the code from the function's address
//!   + 8                 length of the code
//!   + 16                offset of the room in the code
//!   + 24                length of the room
//!   a multiple of 64    the code: fast path (label 61), room (62 to 63), other path, end (64)
//! ```
//!
//! The registers at the start, with S the stack pointer of the site:
//!
//! ```text
//!                rdi     rsi     rdx   r12              rbx        rcx   rsp              may change
//!   begin        probe   site    S     as it was        -          -     -                rcx, rdx, r8, r9
//!   arm          probe   site    S     as it was        -          -     [rsp] = GO       rcx, rdx, r8, r9
//!   end          -       Regs    -     probe            Regs - 8   S     multiple of 16   all but rbx, rbp
//!   on_return    -       Regs    -     TrampolineTable  Regs - 8   S     multiple of 16   all but rbx, rbp
//! ```
//!
//! Inside:
//!
//! ```text
//!   begin        r8 = engine, r9 = line, then the row's word;  rcx = place;  rdx = the probe that it keeps
//!                [place + keeps] = rdi, [place + site] = rsi, [r9] += 1
//!   arm          r9 = line, then the row's word;  r8 = trampolines;  rcx = entry
//!                [entry + GO] = [rsp] and + SITE = rsi, if GO differs;  + WHAT = rdi
//!                [S] = [entry + INTO];  [r9] += 1
//!   end          rax = engine, r13 = line, r9 = turn, r10 = place, r15 = S
//!                rdx = list, rax = handler, [rsp + HIT …] = the hit, [place + keeps] = 0, r12 = rip
//!   on_return    r15 = S, [S] = number n, r8 = entry n, r9 = probe, r11 = site, r13 = line, r10 = turn
//!                rdx = list, rax = handler, r12 = REAL;  [entry + WHAT] = 0;  [S] = Regs.rip = r12
//!   both         a frame as in `parts`, of ROOM + 8 bytes, since there is no return address
//! ```
//!
//! ```text
//!   place        places + (((S · HINT_SPREAD) >> PLACE_SHIFT) & place_mask);  it keeps this call if bound = S
//!   entry        entries + [quick + (h & quick_mask)], 4 bytes
//!                h = (((S << QUICK_UP) + [S]) · QUICK_SPREAD) >> QUICK_SHIFT
//!                it is this call's if WORD = S, REAL = [S] and WHAT = 0
//!   entry n      entries + ENTRY · n
//! ```

use core::mem::offset_of;

use trapline_record::trampolines::{ENTRY, at};

use super::parts::{general_asm, hint_place, own_line, sealed};
use crate::trampolines::table::{QUICK_SHIFT, QUICK_SPREAD, QUICK_UP, Raw, TrampolineTable};

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
    fn of(function: unsafe extern "C" fn()) -> Self {
        let at = function as *const () as *const u64;
        // SAFETY: `function` is one of those below, which consist of such words and code.
        unsafe {
            let [text, len, room, room_len] = [0, 1, 2, 3].map(|n| at.add(n).read_unaligned() as usize);
            Self { text: core::slice::from_raw_parts(at.cast::<u8>().add(text), len), room: (room, room_len) }
        }
    }
    /// K2, at an entry. On its other path nothing was done.
    #[must_use]
    pub fn begin() -> Self {
        Self::of(begin)
    }
    /// L1 and B5, at an exit. After the fast path `Regs` may have changed, except for rip and rsp. After its
    /// other path eax = a `GoOn`, or [`WITH_STATE`](super::WITH_STATE): nothing was done, and r12 is
    /// unchanged.
    #[must_use]
    pub fn end() -> Self {
        Self::of(end)
    }
    /// A1, A2 and A4 to A6, at an entry; `[rsp]` is the address of the displaced instructions. After the fast
    /// path the stack word holds a trampoline's address, at
    /// [`ENTER`](trapline_record::trampolines::ENTER).
    #[must_use]
    pub fn arm() -> Self {
        Self::of(arm)
    }
    /// B1 to B6 without the last instruction, for a call that [`arm`](Self::arm) began. After it the stack
    /// word and `Regs` hold the address that the call returns to.
    #[must_use]
    pub fn on_return() -> Self {
        Self::of(on_return)
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

/// The end of both returns: calls the consumer, leaves, and has the room; then the other path's answers.
/// Label 8 leaves, and 9 answers, that nothing was done.
///
/// ```text
///   in    rax = handler, rdx = list, rbx = Regs - 8, r12 = rip, r13 = line, entered, r15 = S
///   eax   {elsewhere} if Regs.rip differs from r12, else {other_stack} if Regs.rsp differs from r15
/// ```
macro_rules! call_and_leave {
    () => {
        concat!(
            "mov rdi, [rdx + {data}]\n",
            "lea rsi, [rsp + {hit}]\n",
            ".p2align 5,,3\n",
            "call rax\n",
            // D7: R5, which keeps the turn. One instruction, by the line's only writer.
            ".p2align 5,,9\n",
            "cmp r12, [rbx + 8 + {rip}]\n",
            "jne 5f\n",
            "and qword ptr [r13 + {active}], {turns} - 1\n",
            ".p2align 5,,9\n",
            "cmp r15, [rbx + 8 + {rsp}]\n",
            "jne 6f\n",
            room!("192"),
            "\n",
            "5: and qword ptr [r13 + {active}], {turns} - 1\n",
            "mov eax, {elsewhere}\n",
            "jmp 4f\n",
            "6: mov eax, {other_stack}\n",
            "jmp 4f\n",
            "8: and qword ptr [r13 + {active}], {turns} - 1\n",
            "9: mov eax, {with_state}\n",
            "4:\n",
        )
    };
}

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
        call_and_leave!(),
        "64:",
    )
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
        entries = const offset_of!(TrampolineTable, raw) + offset_of!(Raw, entries),
        quick = const offset_of!(TrampolineTable, raw) + offset_of!(Raw, quick),
        quick_mask = const offset_of!(TrampolineTable, raw) + offset_of!(Raw, quick_mask),
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
        call_and_leave!(),
        "64:",
        engine_of_all = const offset_of!(TrampolineTable, raw) + offset_of!(Raw, engine),
        entries = const offset_of!(TrampolineTable, raw) + offset_of!(Raw, entries),
        entry_shift = const ENTRY.trailing_zeros(),
        REAL = const at::REAL,
        SITE = const at::SITE,
        WHAT = const at::WHAT,
    )
}
