//! Counts, changed registers, moved instruction pointers, guards, handlers that leave.

use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::x86_64::{Gpr, Regs};
use trapline_runtime::x86_64::{Step, blocks_traps, standing};

use crate::site::{Site, call, code, guard, nothing, site, trapped, write};

/// Functions by their first instruction, and what they return for (6, 7). `s`: simulated, `c`: run in a copy.
const FUNCTIONS: &[(&[u8], char, u64)] = &[
    (&[0x90, 0x48, 0x8D, 0x04, 0x37, 0xC3], 's', 13), // nop
    (&[0x0F, 0x1F, 0x44, 0, 0, 0x48, 0x8D, 0x04, 0x37, 0xC3], 's', 13), // nop5
    (&[0xF3, 0x0F, 0x1E, 0xFA, 0x48, 0x8D, 0x04, 0x37, 0xC3], 's', 13), // endbr64
    (&[0x55, 0x48, 0x8D, 0x04, 0x37, 0x5D, 0xC3], 's', 13), // push rbp
    (&[0x41, 0x57, 0x48, 0x8D, 0x04, 0x37, 0x41, 0x5F, 0xC3], 's', 13), // push r15
    (&[0x48, 0x83, 0xEC, 0x18, 0x48, 0x8D, 0x04, 0x37, 0x48, 0x83, 0xC4, 0x18, 0xC3], 's', 13), // sub rsp
    (&[0x48, 0x89, 0xF8, 0x48, 0x01, 0xF0, 0xC3], 's', 13), // mov rax, rdi
    (&[0x48, 0x8D, 0x04, 0x37, 0xC3], 's', 13),       // lea
    (&[0x31, 0xC0, 0x48, 0x01, 0xF8, 0xC3], 's', 6),  // xor eax, eax
    (&[0x48, 0x85, 0xFF, 0x75, 0x01, 0xC3, 0x48, 0x89, 0xF0, 0xC3], 's', 7), // test rdi, rdi; jne
    (&[0xEB, 0x01, 0xCC, 0x48, 0x89, 0xF0, 0xC3], 's', 7), // jmp
    (&[0xE8, 0x01, 0, 0, 0, 0xC3, 0x48, 0x89, 0xF0, 0xC3], 's', 7), // call
    (&[0xB8, 0x2A, 0, 0, 0, 0xC3], 's', 42),          // mov eax, 42
    (&[0x48, 0x89, 0x7C, 0x24, 0xF8, 0x48, 0x8B, 0x44, 0x24, 0xF8, 0xC3], 's', 6), // mov [rsp-8], rdi
    (&[0x64, 0x48, 0x8B, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x89, 0xF0, 0xC3], 'c', 7), // mov rax, fs:0
    (&[0x48, 0x0F, 0xAF, 0xFE, 0x48, 0x89, 0xF8, 0xC3], 'c', 42), // imul rdi, rsi
    (&[0x48, 0xC1, 0xE7, 0x02, 0x48, 0x89, 0xF8, 0xC3], 'c', 24), // shl rdi, 2
    (&[0x66, 0x48, 0x0F, 0x6E, 0xC7, 0x66, 0x48, 0x0F, 0x7E, 0xC0, 0xC3], 'c', 6), // movq xmm0, rdi
    (&[0x48, 0x87, 0xFE, 0x48, 0x89, 0xF8, 0xC3], 'c', 7), // xchg rdi, rsi
    (&[0xF3, 0x48, 0x0F, 0xB8, 0xC6, 0xC3], 'c', 3),  // popcnt rax, rsi
];

#[test]
fn every_call_is_one_hit() {
    for &(bytes, how, result) in FUNCTIONS {
        let site = trapped(bytes, nothing);
        assert_eq!(matches!(site.step, Step::Simulate(_)), how == 's', "{bytes:02x?}");
        for calls in 1..=1000 {
            assert_eq!(site.call(6, 7), result, "{bytes:02x?}");
            assert_eq!(site.hits(), calls, "{bytes:02x?}");
        }
    }
    assert!(standing());
}

#[test]
fn a_return_alone() {
    let site = trapped(&[0xC3], |_, regs| regs.set(Gpr::Rax, 0x5EED));
    assert_eq!((site.call(1, 2), site.hits()), (0x5EED, 1));
}

#[test]
fn registers_that_a_consumer_changes_are_what_the_function_finds() {
    let site = trapped(&[0x48, 0x8D, 0x04, 0x37, 0xC3], |_, regs: &mut Regs| {
        regs.set(Gpr::Rdi, 100);
        regs.set(Gpr::Rsi, 11);
    });
    assert_eq!(site.call(1, 2), 111);
    let copied = trapped(&[0x48, 0x0F, 0xAF, 0xFE, 0x48, 0x89, 0xF8, 0xC3], |_, regs: &mut Regs| {
        regs.set(Gpr::Rdi, 100);
        regs.set(Gpr::Rsi, 11);
    });
    assert_eq!(copied.call(1, 2), 1100);
}

static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

#[test]
fn where_a_consumer_goes_the_original_does_not_run() {
    ELSEWHERE.store(code(&[0xB8, 0xEF, 0xBE, 0xAD, 0xDE, 0xC3]), Ordering::Relaxed);
    let site = trapped(&[0x48, 0xC7, 0x07, 1, 0, 0, 0, 0xC3], |_, regs: &mut Regs| {
        regs.rip = ELSEWHERE.load(Ordering::Relaxed);
    });
    let mut word = 0_u64;
    assert_eq!(site.call((&raw mut word) as u64, 0), 0xDEAD_BEEF);
    assert_eq!((word, site.hits()), (0, 1));
}

#[test]
fn a_guard_sends_on() {
    // mov eax, 1; ret, of which a patch covers the second instruction; and the copy.
    let patched = code(&[0xB8, 1, 0, 0, 0, 0xCC]);
    let copied = code(&[0xB8, 2, 0, 0, 0, 0xC3]);
    guard(patched + 5, copied);
    assert_eq!(call(patched, 0, 0), 2);
}

/// A helper has already moved the thread to a copy when the signal arrives. The signal is dropped.
#[test]
fn a_thread_that_was_moved_already_goes_on() {
    let site = trapped(&[0x48, 0x0F, 0xAF, 0xFE, 0x48, 0x89, 0xF8, 0xC3], nothing);
    let Step::At(copy) = site.step else { panic!("a copy") };
    // The byte before a copy is filler: an int3. A thread that executed it stands in the copy.
    write(copy - 1, &[0xCC]);
    let seen =
        crate::foreign::expecting(crate::foreign::Answer::Nothing, || assert_eq!(call(copy - 1, 6, 7), 42));
    assert_eq!((seen, site.hits()), (None, 0));
}

#[test]
fn a_trap_that_was_taken_out_meanwhile_is_none() {
    static AT: AtomicU64 = AtomicU64::new(0);
    let function = code(&[0xB8, 3, 0, 0, 0, 0xC3]);
    AT.store(function, Ordering::Relaxed);
    let before = site(function, &[0xB8, 3, 0, 0, 0], |_, _| unreachable!("it was taken out"));
    crate::site::forget(function);
    // With a writer on another thread this order would be a matter of luck: the int3 is executed, then the
    // byte is restored, then the handler looks.
    crate::foreign::restore_at_next_look(function, 0xB8);
    write(function, &[0xCC]);
    assert_eq!(call(function, 0, 0), 3);
    assert_eq!(before.hits(), 0);
}

core::arch::global_asm!(
    // rdi: function of (rsi, rdx); rcx: where to store the stack pointer.
    ".globl trapline_test_enter",
    "trapline_test_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rcx], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "call rax",
    "trapline_test_out:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // rdi: what `enter` stored; rsi: the value that it returns.
    ".globl trapline_test_leave",
    "trapline_test_leave:",
    "mov rsp, [rdi]",
    "mov rax, rsi",
    "jmp trapline_test_out",
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
    let site = trapped(&[0x55, 0x5D, 0xC3], leaves);
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
    assert!(blocks_traps(1 << 4));
}

static INNER: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_consumer_may_hit_what_is_probed() {
    let inner = trapped(&[0x48, 0x8D, 0x04, 0x37, 0xC3], nothing);
    INNER.store(inner.addr, Ordering::Relaxed);
    let outer = trapped(&[0x90, 0xC3], |_, regs: &mut Regs| {
        regs.set(Gpr::Rax, call(INNER.load(Ordering::Relaxed), 20, 3));
    });
    assert_eq!((outer.call(0, 0), outer.hits(), inner.hits()), (23, 1, 1));
}

#[test]
fn a_system_call_in_a_copy_leaves_the_originals_address() {
    // mov eax, 39; syscall; mov rax, rcx; ret, with the trap on the syscall.
    let function = code(&[0xB8, 39, 0, 0, 0, 0x0F, 0x05, 0x48, 0x89, 0xC8, 0xC3]);
    let site = site(function + 5, &[0x0F, 0x05], nothing);
    write(function + 5, &[0xCC]);
    assert_eq!((call(function, 0, 0), site.hits()), (function + 7, 1));
}
