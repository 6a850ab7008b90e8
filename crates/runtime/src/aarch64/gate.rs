//! The gate: code that the stubs of all jumps lead through.
//!
//! In: a thread from a stub (`plan`'s `stub::call`), or from the code of the return trampolines
//! (`stub::own_trampolines`). Out: consumers called. The thread is back in the stub, which loads x30, frees
//! the frame and runs the displaced word; or the thread is elsewhere. Invariants: SAFE-2: registers, flags,
//! vectors and their control words are bit-identical afterwards, except for what consumers changed in
//! [`Regs`]; CALL-1, CALL-3 as in `stub::call`.
//! Does not: choose which consumers are called (`jumped` uses `dispatch`), know where stubs lie.
//!
//! | step | what |
//! |---|---|
//! | G1 | store the way back and the jump in the frame's last words; x2 to x29, sp, the address and the flags in `Regs` |
//! | A | if there is only one probe, at its own site: call its consumer, if there is nothing else to do |
//! | | and it uses general registers only (below). Then G5 to G7 |
//! | G2 | store vectors, FPSR and FPCR below. With SVE: all of Z, P and FFR, |
//! | | since a store to a vector register clears what lies above its 128 bits; without: V |
//! | G3 | `jumped`: from entering the thread's line to leaving it, this is a hit like any other (`epoch`) |
//! | G4 | load what G2 stored. FPCR only if it was changed, since writing it waits for all instructions in progress |
//! | G5 | answer 0: load flags and registers, back to the stub |
//! | G6 | the stack pointer was moved: copy the frame to below the new one. With the same program counter, G5 there |
//! | G7 | the program counter was moved: load flags and all registers from the frame there, free the frame, `ret x17` |
//!
//! ```text
//!   sp +   0   x0, x1                  from the stub          <- sp at the entry = F = S - FRAME = S - 288
//!   sp +  16   x2 to x29               G1
//!   sp + 240   x30                     from the stub
//!   sp + 248   sp = S, pc = Jump.at    G1                     with x0 to x30 and pstate this is `Regs`
//!   sp + 264   pstate: the flags       G1
//!   sp + 272   WORDS: the way back, the Jump                  G1
//!   sp + 288   <- S, the program's stack pointer
//!
//!   entry      sp = F          x0 = Jump, x30 = the way back; x2 to x29, flags, vectors are the program's
//!   G1         sp = F          x19 = F; x2 to x4 are free
//!   G2, G3     sp = F - v      x0 = Jump, x1 = F, x19 = F, x20 = FPSR, x21 = FPCR; v = bytes of vectors below F
//!   G4         sp = F - v, F   x0 = the answer (`GoOn`), x19 = F, x20 = FPSR, x21 = FPCR
//!   G5         sp = F          x0 to x29, flags, vectors as consumers left them, x30 = the way back: `ret`
//!   G6         sp = F' - FRAME or F - FRAME, the lower    x2 = F' = S' - FRAME, S' = the new stack pointer
//!   G7         sp = S'         all registers from the frame at F', x17 = pc: `ret x17`
//!
//!   v          without SVE: 512. With SVE, VL bytes in a vector: 35 VL
//!              F - v +  0     P0 to P15, FFR: 17 VL/8, of 3 VL
//!              F - v + 3 VL   Z0 to Z31: 32 VL
//! ```
//!
//! - *a signal at any instruction*: whatever is in use lies at or above sp, at every instruction. In G6 the
//!   frame is first copied to below both places, as the new place may overlap the old. sp is below all of
//!   these until the copy is complete.
//! - *G7 changes x17*. A jump's consumer may choose another program counter at a function's entry only
//!   (elsewhere and at returns the site is a trap, which changes no register). At an entry any code may
//!   change x16 and x17: a linker may put a veneer in front of every call (AAPCS64 6.1.1), and compilers
//!   allow for that. After a call has returned to its trampoline, x17 may be changed as well: no caller
//!   relies on what a callee left there. It is a `ret`, which may go anywhere, also into guarded pages.
//! - *a handler that does not come back* (`longjmp`, the thread's end): nothing but stack was in use.
//! - *a fork in a handler, or in another thread meanwhile*: the child has the stack and the code as well.
//! - *streaming mode* (SME): code that runs in it calls no function that is not made for it, and neither may
//!   we. Such code takes no probe by a jump. This is stated, not checked.
//!
//! # A: general registers only
//!
//! Code that a compiler makes of `dispatch` may use vector registers; this code does not. It does the steps
//! D1 to D5 and D7 of `dispatch`, and those of `epoch`, for one consumer. That has an entry handler and no
//! filter, and is declared in the list (`probe`'s `Alone`). All other cases go on at G2: a thread without a
//! line, a hit inside a hit, a list that is empty, longer, or changed since. Entering and leaving without a
//! call is a hit that looked and found nothing to do. This is decided at each hit, so no stub has to be made
//! again when consumers are added or removed.
//!
//! ```text
//!   line = lines + 128 ((tpidr_el0·SPREAD >> SPREAD_SHIFT) mod count)        128 = the length of a `Line`
//!          raw.mask = 128 (count - 1): the product is shifted by SPREAD_SHIFT - 7, and masked
//!   active = (seal >> FRAME_ALIGN) << TURN_BITS | (turn + 1) mod 2^TURN_BITS
//!   word of the probe = line·raw.row + Probe.words                          D3
//!
//!   sp +  0   the seal                     <- sp from D2 to D7: F - ROOM = F - 48
//!   sp + 16   HIT: regs = F, site = pc, cookie
//!   sp + 40   not used
//!   sp + 48   <- F
//!
//!   D1        x20 = Probe, x9 = Engine, x10 = tpidr_el0, x21 = line
//!   D2        x23 = address of line.active, x22 = the turn, [sp] = [x23] = active
//!   D4, D3    x13 = the list, x14 = the handler, x24 = sp, x25 = pc of `Regs` before the call
//!   call      x0 = the consumer's data, x1 = the Hit
//!   D5, D7    w0 = the verdict; x19 to x25 are as before the call (AAPCS64)
//! ```

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::mem::{offset_of, size_of};
use core::ptr;

use trapline_insn::aarch64::{FRAME, Regs};

use crate::consumer::{Hit, Verdict};
use crate::dispatch::{GoOn, returned_to_trampoline};
use crate::engine::{Engine, Raw};
use crate::epoch::{FRAME_ALIGN, Line, SPREAD, SPREAD_SHIFT, Seal, TURN_BITS, ThreadPointer};
use crate::probe::{Alone, Consumers, List, Probe};
use crate::trampolines::TrampolineTable;
use crate::trap::sites::{call_inside, unplaced};
use crate::trap::{Called, Role};

/// What a stub passes to the gate: its site and probes. It outlives the stub.
#[derive(Debug)]
#[repr(C)]
pub struct Jump {
    /// The address of the displaced word.
    pub at: u64,
    /// The only probe, if there is one and it is at its own site; else null.
    alone: *const Probe,
    /// The probes, in the order in which their consumers are called, until one moves the program counter.
    pub called: Box<[Called]>,
    /// For the code of return trampolines: their table. Calls return here, each with its trampoline's number
    /// in x30.
    trampolines: Option<&'static TrampolineTable>,
}

impl Jump {
    /// For the word at `at`, with these probes.
    #[must_use]
    pub fn new(at: u64, called: &[Called]) -> Self {
        let alone = match called {
            [Called { probe, role: Role::Entry }] => ptr::from_ref::<Probe>(probe),
            _ => ptr::null(),
        };
        Self { at, alone, called: called.into(), trampolines: None }
    }
    /// For the code at `at` that all return trampolines lead to.
    #[must_use]
    pub fn for_trampolines(at: u64, trampolines: &'static TrampolineTable) -> Self {
        Self { at, alone: ptr::null(), called: Box::default(), trampolines: Some(trampolines) }
    }
}
// SAFETY: `alone` points to one of `called`, which are shared.
unsafe impl Send for Jump {}
// SAFETY: as above.
unsafe impl Sync for Jump {}

/// The gate's address, for a processor with or without SVE.
#[must_use]
pub fn address(has_sve: bool) -> u64 {
    if has_sve { with_sve as *const () as u64 } else { without_sve as *const () as u64 }
}

/// S2, S5 and S6 for a hit by a jump. The mapping at the site is the one that was patched, or the thread
/// could not have come here.
///
/// # Safety
/// As for [`call_inside`]. All probes are of one engine, and never freed.
unsafe fn call(all: &[Called], regs: &mut Regs) -> GoOn {
    let Some(first) = all.first() else { return GoOn::Original };
    let Some((row, line)) = first.probe.engine().lines().of(ThreadPointer::own()) else {
        unplaced(all);
        return GoOn::Original;
    };
    let seal = Seal::new();
    // SAFETY: the caller promises it.
    unsafe { call_inside(&line.enter_from(&seal, regs.sp()), row, all, regs) }
}

/// G3.
///
/// # Safety
/// `jump` was made for a stub that leads here; `regs` is the state of the calling thread at its site.
unsafe extern "C" fn jumped(jump: *const Jump, regs: *mut Regs) -> u64 {
    // SAFETY: the caller promises it.
    unsafe {
        match (*jump).trampolines {
            Some(trampolines) => returned_to_trampoline(trampolines, regs),
            None => call(&(*jump).called, &mut *regs) as u64,
        }
    }
}

/// Offset of the frame's last words.
const WORDS: usize = size_of::<Regs>();
const _: () = assert!(offset_of!(Jump, at) == 0 && WORDS + 16 == FRAME as usize && FRAME.is_multiple_of(16));

/// The frame of A: the seal's address names the hit's frame.
const HIT: usize = 16;
const ROOM: usize = (HIT + size_of::<Hit>()).next_multiple_of(16);
/// Logarithm of a line's length.
const LINE_SHIFT: u32 = size_of::<Line>().trailing_zeros();
const _: () = assert!(
    offset_of!(Hit, site) == offset_of!(Hit, regs) + 8 && offset_of!(Regs, pc) == offset_of!(Regs, sp) + 8
);
const _: () = assert!(1 << LINE_SHIFT == size_of::<Line>() && SPREAD >> 32 == 0);

/// `stp` or `ldp` of x2 to x29.
macro_rules! general {
    ($op:literal) => {
        concat!(
            $op,
            " x2, x3, [sp, #16]\n",
            $op,
            " x4, x5, [sp, #32]\n",
            $op,
            " x6, x7, [sp, #48]\n",
            $op,
            " x8, x9, [sp, #64]\n",
            $op,
            " x10, x11, [sp, #80]\n",
            $op,
            " x12, x13, [sp, #96]\n",
            $op,
            " x14, x15, [sp, #112]\n",
            $op,
            " x16, x17, [sp, #128]\n",
            $op,
            " x18, x19, [sp, #144]\n",
            $op,
            " x20, x21, [sp, #160]\n",
            $op,
            " x22, x23, [sp, #176]\n",
            $op,
            " x24, x25, [sp, #192]\n",
            $op,
            " x26, x27, [sp, #208]\n",
            $op,
            " x28, x29, [sp, #224]\n",
        )
    };
}

/// `stp` or `ldp` of V0 to V31.
macro_rules! vectors {
    ($op:literal) => {
        concat!(
            $op,
            " q0, q1, [sp]\n",
            $op,
            " q2, q3, [sp, #32]\n",
            $op,
            " q4, q5, [sp, #64]\n",
            $op,
            " q6, q7, [sp, #96]\n",
            $op,
            " q8, q9, [sp, #128]\n",
            $op,
            " q10, q11, [sp, #160]\n",
            $op,
            " q12, q13, [sp, #192]\n",
            $op,
            " q14, q15, [sp, #224]\n",
            $op,
            " q16, q17, [sp, #256]\n",
            $op,
            " q18, q19, [sp, #288]\n",
            $op,
            " q20, q21, [sp, #320]\n",
            $op,
            " q22, q23, [sp, #352]\n",
            $op,
            " q24, q25, [sp, #384]\n",
            $op,
            " q26, q27, [sp, #416]\n",
            $op,
            " q28, q29, [sp, #448]\n",
            $op,
            " q30, q31, [sp, #480]\n",
        )
    };
}

/// `str` or `ldr` of Z0 to Z31, at sp.
macro_rules! scalable {
    ($op:literal) => {
        concat!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n",
            $op,
            " z\\n, [sp, #\\n, mul vl]\n",
            ".endr\n",
        )
    };
}
macro_rules! predicates {
    ($op:literal) => {
        concat!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n",
            $op,
            " p\\n, [sp, #\\n, mul vl]\n",
            ".endr\n",
        )
    };
}

/// G1 to G7, with the two parts of G2 and G4 that differ. Both parts preserve x0 and x19 to x28, and the
/// first leaves sp at a multiple of 16.
macro_rules! gate {
    ($keep:expr, $give_back:expr) => {
        naked_asm!(
            // bti c
            "hint #34",
            // G1
            "stp x30, x0, [sp, #{words}]",
            general!("stp"),
            "add x2, sp, #{frame}",
            "ldr x3, [x0]",
            "mrs x4, nzcv",
            "stp x2, x3, [sp, #{sp}]",
            "str x4, [sp, #{pstate}]",
            "mov x19, sp",
            // A, D1: the thread's line, if it is at its first place.
            "ldr x20, [x0, #{alone}]",
            "cbz x20, 9f",
            "ldr x9, [x20, #{engine}]",
            "mrs x10, tpidr_el0",
            "movz x11, #{spread_low}",
            "movk x11, #{spread_high}, lsl #16",
            "mul x11, x10, x11",
            "lsr x11, x11, #{spread_shift}",
            "ldr x12, [x9, #{mask}]",
            "and x11, x11, x12",
            "ldr x12, [x9, #{lines}]",
            "add x21, x12, x11",
            "ldr x12, [x21, #{owner}]",
            "cmp x12, x10",
            "b.ne 9f",
            // D2: R1, and R2 with the seal.
            "add x23, x21, #{active}",
            "ldr x22, [x23]",
            "lsr x12, x22, #{turn_bits}",
            "cbnz x12, 9f",
            "add x22, x22, #1",
            "and x22, x22, #{turn}",
            "sub sp, sp, #{room}",
            "mov x12, sp",
            "orr x12, x22, x12, lsl #{frame_shift}",
            "str x12, [sp]",
            "stlr x12, [x23]",
            // D4: the list (H2). It comes before D3, because otherwise G3 would count the hit again.
            "add x13, x20, #{consumers}",
            "ldar x13, [x13]",
            "cbz x13, 8f",
            "ldr x14, [x13, #{handler}]",
            "cbz x14, 8f",
            // D3: the row's word for this probe.
            "ldr x12, [x9, #{row}]",
            "ldr x10, [x20, #{words_of}]",
            "madd x11, x21, x12, x10",
            "2: ldxr x12, [x11]",
            "add x12, x12, #1",
            "stxr w10, x12, [x11]",
            "cbnz w10, 2b",
            "ldp x24, x25, [x19, #{sp}]",
            "stp x19, x25, [sp, #{hit}]",
            "str xzr, [sp, #{cookie}]",
            "ldr x0, [x13, #{data}]",
            "add x1, sp, #{hit}",
            "blr x14",
            // D5
            "cmp w0, #{remove}",
            "b.ne 3f",
            "mov w10, #1",
            "str w10, [x20, #{removal}]",
            // D7
            "3: stlr x22, [x23]",
            "mov sp, x19",
            "ldp x9, x10, [sp, #{sp}]",
            "mov x0, #{elsewhere}",
            "cmp x10, x25",
            "b.ne 5f",
            "mov x0, #{other_stack}",
            "cmp x9, x24",
            "b.ne 5f",
            "b 3f",
            // Leave; G2 and G3 do the hit, with everything saved.
            "8: stlr x22, [x23]",
            "mov sp, x19",
            "ldr x0, [sp, #{site}]",
            // G2
            "9: mov x1, sp",
            "mrs x20, fpsr",
            "mrs x21, fpcr",
            $keep,
            // G3
            "bl {jumped}",
            // G4
            $give_back,
            "msr fpsr, x20",
            "mrs x2, fpcr",
            "cmp x2, x21",
            "b.eq 2f",
            "msr fpcr, x21",
            "2: mov sp, x19",
            "cbnz x0, 5f",
            // G5
            "3: ldr x2, [sp, #{pstate}]",
            "msr nzcv, x2",
            general!("ldp"),
            "ldr x30, [sp, #{words}]",
            "ldp x0, x1, [sp]",
            "ret",
            // G6: x2 = F', x3 = below both.
            "5: ldr x2, [x19, #{sp}]",
            "sub x2, x2, #{frame}",
            "cmp x2, x19",
            "csel x3, x2, x19, lo",
            "sub x3, x3, #{frame}",
            "mov sp, x3",
            "mov x4, x19",
            "mov x5, x3",
            "mov x6, #{frame}",
            "6: ldp x7, x8, [x4], #16",
            "stp x7, x8, [x5], #16",
            "subs x6, x6, #16",
            "b.ne 6b",
            "mov x5, x2",
            "mov x6, #{frame}",
            "7: ldp x7, x8, [x3], #16",
            "stp x7, x8, [x5], #16",
            "subs x6, x6, #16",
            "b.ne 7b",
            "mov sp, x2",
            "cmp x0, #{other_stack}",
            "b.eq 3b",
            // G7
            "ldr x2, [sp, #{pstate}]",
            "msr nzcv, x2",
            general!("ldp"),
            "ldp x0, x1, [sp]",
            "ldr x30, [sp, #{x30}]",
            "ldr x17, [sp, #{pc}]",
            "add sp, sp, #{frame}",
            "ret x17",
            words = const WORDS,
            frame = const FRAME,
            sp = const offset_of!(Regs, sp),
            pc = const offset_of!(Regs, pc),
            pstate = const offset_of!(Regs, pstate),
            x30 = const 30 * 8,
            other_stack = const GoOn::OtherStack as u64,
            jumped = sym jumped,
            site = const WORDS + 8,
            alone = const offset_of!(Jump, alone),
            engine = const offset_of!(Probe, engine),
            consumers = const offset_of!(Probe, consumers) + offset_of!(Consumers, list),
            removal = const offset_of!(Probe, removal),
            words_of = const offset_of!(Probe, words),
            lines = const offset_of!(Engine, raw) + offset_of!(Raw, lines),
            mask = const offset_of!(Engine, raw) + offset_of!(Raw, mask),
            row = const offset_of!(Engine, raw) + offset_of!(Raw, row),
            owner = const offset_of!(Line, owner),
            active = const offset_of!(Line, active),
            handler = const offset_of!(List, alone) + offset_of!(Alone, handler),
            data = const offset_of!(List, alone) + offset_of!(Alone, data),
            spread_low = const SPREAD & 0xFFFF,
            spread_high = const SPREAD >> 16,
            spread_shift = const SPREAD_SHIFT - LINE_SHIFT,
            turn_bits = const TURN_BITS,
            turn = const (1_u64 << TURN_BITS) - 1,
            frame_shift = const TURN_BITS - FRAME_ALIGN,
            room = const ROOM,
            hit = const HIT + offset_of!(Hit, regs),
            cookie = const HIT + offset_of!(Hit, cookie),
            remove = const Verdict::REMOVE.0,
            elsewhere = const GoOn::Elsewhere as u64,
        )
    };
}

/// The gate on a processor without SVE.
///
/// # Safety
/// Only stubs jump here; it is not a C function.
#[unsafe(naked)]
unsafe extern "C" fn without_sve() {
    gate!(concat!("sub sp, sp, #512\n", vectors!("stp")), vectors!("ldp"))
}

/// The gate on a processor with SVE. P and FFR take 17 eighths of a vector.
///
/// # Safety
/// Only stubs jump here, on a processor with SVE; it is not a C function.
#[unsafe(naked)]
unsafe extern "C" fn with_sve() {
    gate!(
        concat!(
            ".arch_extension sve\n",
            "addvl sp, sp, #-32\n",
            scalable!("str"),
            "addvl sp, sp, #-3\n",
            predicates!("str"),
            "rdffr p0.b\n",
            "str p0, [sp, #16, mul vl]\n",
        ),
        concat!(
            "ldr p0, [sp, #16, mul vl]\n",
            "wrffr p0.b\n",
            predicates!("ldr"),
            "addvl sp, sp, #3\n",
            scalable!("ldr"),
            ".arch_extension nosve\n",
        )
    )
}
