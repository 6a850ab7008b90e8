//! Hits are counted and seen by consumers, and the instruction is done as if there were no trap.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode::BRK;
use trapline_runtime::native::{Regs, blocks_traps, standing};

use crate::site::{Site, Text, call, code, nothing, site, text, trapped, trapped_at, write};

/// How the trapped word is done: simulated, or run in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Simulated,
    Copied,
}
use Way::{Copied, Simulated};

/// Name, function, index of the trapped word, how that is done, and what f(6, 7) returns, given the
/// function's address.
type Case = (&'static str, Text, usize, Way, fn(u64) -> u64);

fn cases() -> Vec<Case> {
    vec![
        ("nop", text!(nop: "nop", "add x0, x0, x1", "ret"), 0, Simulated, |_| 13),
        ("bti", text!(bti: "hint #34", "add x0, x0, x1", "ret"), 0, Simulated, |_| 13),
        (
            "stp",
            text!(stp: "stp x29, x30, [sp, #-32]!", "add x0, x0, x1", "ldp x29, x30, [sp], #32", "ret"),
            0,
            Simulated,
            |_| 13,
        ),
        (
            "stp of words",
            text!(stp_w: "stp w0, w1, [sp, #-16]!", "ldr x0, [sp], #16", "ret"),
            0,
            Simulated,
            |_| 7 << 32 | 6,
        ),
        ("str", text!(str: "str x1, [sp, #-16]!", "ldr x0, [sp], #16", "ret"), 0, Simulated, |_| 7),
        (
            "sub sp",
            text!(sub: "sub sp, sp, #64", "str x1, [sp]", "ldr x0, [sp]", "add sp, sp, #64", "ret"),
            0,
            Simulated,
            |_| 7,
        ),
        (
            "add sp",
            text!(add: "sub sp, sp, #64", "add sp, sp, #64", "mov x0, x1", "ret"),
            1,
            Simulated,
            |_| 7,
        ),
        (
            "mov x29, sp",
            text!(mov: "mov x9, x29", "mov x29, sp", "mov x10, sp", "sub x0, x29, x10", "mov x29, x9", "ret"),
            1,
            Simulated,
            |_| 0,
        ),
        ("ret", text!(ret: "add x0, x0, x1", "ret"), 1, Simulated, |_| 13),
        ("b", text!(b: "b 1f", "mov x0, #0", "1: add x0, x0, x1", "ret"), 0, Simulated, |_| 13),
        (
            "bl",
            text!(bl: "mov x9, x30", "bl 1f", "mov x30, x9", "ret", "1: add x0, x0, x1", "ret"),
            1,
            Simulated,
            |_| 13,
        ),
        ("b.cond, taken", text!(bcond: "cmp x0, x1", "b.lo 1f", "mov x0, #0", "1: ret"), 1, Simulated, |_| 6),
        ("b.cond", text!(bcond_not: "cmp x0, x1", "b.hs 1f", "mov x0, #0", "1: ret"), 1, Simulated, |_| 0),
        ("cbz", text!(cbz: "cbz x0, 1f", "mov x0, #9", "1: ret"), 0, Simulated, |_| 9),
        ("cbnz", text!(cbnz: "cbnz w0, 1f", "mov x0, #9", "1: ret"), 0, Simulated, |_| 6),
        ("tbz", text!(tbz: "tbz x0, #0, 1f", "mov x0, #9", "1: ret"), 0, Simulated, |_| 6),
        ("tbnz", text!(tbnz: "tbnz x0, #0, 1f", "mov x0, #9", "1: ret"), 0, Simulated, |_| 9),
        (
            "br",
            text!(br: "adr x9, 1f", "br x9", "mov x0, #0", "1: add x0, x0, x1", "ret"),
            1,
            Simulated,
            |_| 13,
        ),
        (
            "blr x30",
            text!(blr: "mov x9, x30", "adr x30, 1f", "blr x30", "mov x30, x9", "ret", "1: mul x0, x0, x1", "ret"),
            2,
            Simulated,
            |_| 42,
        ),
        ("adr", text!(adr: "adr x0, .+8", "ret"), 0, Simulated, |at| at + 8),
        ("adrp", text!(adrp: ".inst 0x90000000", "ret"), 0, Simulated, |at| at & !0xFFF),
        ("ldr literal", text!(ldr: "ldr x0, 1f", "ret", "1: .quad 0x123456789abcdef0"), 0, Simulated, |_| {
            0x1234_5678_9ABC_DEF0
        }),
        ("ldr w literal", text!(ldr_w: "ldr w0, 1f", "ret", "1: .word 0x89abcdef"), 0, Simulated, |_| {
            0x89AB_CDEF
        }),
        ("ldrsw literal", text!(ldrsw: "ldrsw x0, 1f", "ret", "1: .word 0x89abcdef"), 0, Simulated, |_| {
            0xFFFF_FFFF_89AB_CDEF
        }),
        ("prfm literal", text!(prfm: "prfm pldl1keep, 1f", "1: ret"), 0, Simulated, |_| 6),
        ("mul", text!(mul: "mul x0, x0, x1", "ret"), 0, Copied, |_| 42),
        ("csel", text!(csel: "cmp x0, x1", "csel x0, x0, x1, hi", "ret"), 1, Copied, |_| 7),
        ("paciasp", text!(paciasp: "hint #25", "add x0, x0, x1", "hint #29", "ret"), 0, Copied, |_| 13),
        ("autiasp", text!(autiasp: "hint #25", "add x0, x0, x1", "hint #29", "ret"), 2, Copied, |_| 13),
        (
            "ldr d literal",
            text!(ldr_d: "ldr d0, 1f", "fmov x0, d0", "ret", "1: .quad 0x123456789"),
            0,
            Copied,
            |_| 0x1_2345_6789,
        ),
        (
            "mrs",
            text!(mrs: "mrs x0, tpidr_el0", "mrs x1, tpidr_el0", "sub x0, x0, x1", "ret"),
            0,
            Copied,
            |_| 0,
        ),
        ("ldp", text!(ldp: "stp x0, x1, [sp, #-16]!", "ldp x1, x0, [sp], #16", "ret"), 1, Copied, |_| 7),
    ]
}

#[test]
fn every_call_is_one_hit() {
    for (name, text, index, way, result) in cases() {
        let (at, site) = trapped_at(text, index, nothing);
        assert_eq!(site.is_simulated(), way == Simulated, "{name}");
        for calls in 1..=1000 {
            assert_eq!((call(at, 6, 7), site.hits()), (result(at), calls), "{name}");
        }
    }
    assert!(standing());
}

/// A hit changes only what its consumers change, and the consumers know where they are.
#[test]
fn consumers_see_the_registers_and_may_change_them() {
    let text = text!(change: "nop", "add x0, x0, x1", "ret");
    let site = trapped(text, |site, regs: &mut Regs| {
        assert_eq!((regs.x[0], regs.x[1], regs.pc), (1, 2, site.addr));
        regs.x[0] = 100;
        regs.x[1] = 11;
    });
    assert_eq!(site.call(1, 2), 111);
    let copied = trapped(text!(change_copied: "mul x0, x0, x1", "ret"), |_, regs| regs.x[0] = 100);
    assert_eq!(copied.call(1, 11), 1100);
    let (at, result) = trapped_at(text!(change_result: "mov x0, #1", "ret"), 1, |_, regs| regs.x[0] = 0x5EED);
    assert_eq!((call(at, 0, 0), result.hits()), (0x5EED, 1));
}

static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

#[test]
fn where_a_consumer_goes_the_original_does_not_run() {
    ELSEWHERE.store(code(text!(elsewhere: "mov x0, #0xBEEF", "ret").words()), Ordering::Relaxed);
    let site = trapped(text!(skipped: "str x1, [x0]", "ret"), |_, regs: &mut Regs| {
        regs.pc = ELSEWHERE.load(Ordering::Relaxed);
    });
    let mut word = 0_u64;
    assert_eq!((site.call((&raw mut word) as u64, 1), word, site.hits()), (0xBEEF, 0, 1));
}

/// The writer removed the trap after the thread had executed it. The thread goes back to the instruction,
/// which is whole again.
#[test]
fn a_trap_that_was_taken_out_meanwhile_is_none() {
    let text = text!(taken_out: "nop", "mov x0, #3", "ret");
    let function = code(text.words());
    let before = site(function, text.words()[0], |_, _| unreachable!("it was taken out"));
    crate::site::forget(function);
    crate::foreign::restore_at_next_look(function, text.words()[0]);
    write(function, &[BRK]);
    assert_eq!((call(function, 0, 0), before.hits()), (3, 0));
}

core::arch::global_asm!(
    // x0: function of (x1, x2); x3: where to store the stack pointer.
    ".globl trapline_test_enter",
    "trapline_test_enter:",
    "stp x29, x30, [sp, #-96]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "mov x9, sp",
    "str x9, [x3]",
    "mov x9, x0",
    "mov x0, x1",
    "mov x1, x2",
    "blr x9",
    "trapline_test_out:",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #96",
    "ret",
    // x0: what `enter` stored; x1: the value that it returns.
    ".globl trapline_test_leave",
    "trapline_test_leave:",
    "ldr x9, [x0]",
    "mov sp, x9",
    "mov x0, x1",
    "b trapline_test_out",
);

unsafe extern "C" {
    fn trapline_test_enter(function: u64, a: u64, b: u64, kept: *mut u64) -> u64;
    fn trapline_test_leave(kept: *const u64, result: u64) -> !;
}

thread_local! {
    static KEPT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn leaves(site: &Site, _: &mut Regs) {
    let result = site.hits();
    KEPT.with(|kept| {
        // SAFETY: a test thread is inside `enter`, and no frame between holds anything to drop.
        unsafe { trapline_test_leave(kept.as_ptr(), result) }
    });
}

/// A consumer that leaves by siglongjmp. The frames of the handler and of the kernel are abandoned, with the
/// signal mask.
#[test]
fn a_consumer_may_leave_for_good() {
    let site = trapped(text!(left: "nop", "ret"), leaves);
    for round in 1..=10_000 {
        // SAFETY: a function of that type stands at the address, and the stored pointer lives as long as the
        // thread.
        let result = KEPT.with(|kept| unsafe { trapline_test_enter(site.addr, 0, 0, kept.as_ptr()) });
        assert_eq!((result, site.hits()), (round, round));
    }
    let mut mask = 0_u64;
    // SAFETY: the call writes the 8 bytes of the mask.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, 0, 0, &raw mut mask, 8) };
    assert!(!blocks_traps(mask), "{mask:#x}");
}

static INNER: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_consumer_may_hit_what_is_probed() {
    let inner = trapped(text!(inner: "nop", "add x0, x0, x1", "ret"), nothing);
    INNER.store(inner.addr, Ordering::Relaxed);
    let outer = trapped(text!(outer: "nop", "ret"), |_, regs: &mut Regs| {
        regs.x[0] = call(INNER.load(Ordering::Relaxed), 20, 3);
    });
    assert_eq!((outer.call(0, 0), outer.hits(), inner.hits()), (23, 1, 1));
}
