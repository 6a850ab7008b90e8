//! Faults of displaced instructions, simulated or in a copy: the program sees them at the original, once, and
//! can go on.

use trapline_insn::aarch64::encode::BRK;
use trapline_runtime::native::Step;

use crate::foreign::{Answer, Seen, expecting, in_child};
use crate::site::{BLOCK, Text, alternate_stack, call, map, nothing, site, text, trapped, trapped_at, write};

const PAGE: u64 = 4096;

/// An address where nothing is mapped, below a page that is mapped; a different one for each test.
pub(crate) fn nowhere() -> u64 {
    // SAFETY: a page of our own, unmapped at once. Other threads map elsewhere, since this one is requested
    // at a low address.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0x10_0000_0000);
        let at = NEXT.fetch_add(0x10_0000, std::sync::atomic::Ordering::Relaxed);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(at as *mut libc::c_void, 2 * PAGE as usize, access, flags, -1, 0);
        assert_eq!(page as u64, at);
        libc::munmap(page, PAGE as usize);
        at
    }
}

/// Functions that push with x0 as the stack pointer, and return the word 16 bytes above the new one; the trap
/// is on the push.
fn pushes() -> [(&'static str, Text, u64); 4] {
    [
        (
            "stp",
            text!(fault_stp: "mov x9, sp", "mov sp, x0", "stp x0, x1, [sp, #-48]!", "ldr x0, [sp, #8]", "mov sp, x9", "ret"),
            48,
        ),
        (
            "stp of words",
            text!(fault_stp_w: "mov x9, sp", "mov sp, x0", "stp w0, w1, [sp, #-48]!", "ldr w0, [sp, #4]", "mov sp, x9", "ret"),
            48,
        ),
        (
            "str",
            text!(fault_str: "mov x9, sp", "mov sp, x0", "str x1, [sp, #-16]!", "ldr x0, [sp]", "mov sp, x9", "ret"),
            16,
        ),
        (
            "str of a word",
            text!(fault_str_w: "mov x9, sp", "mov sp, x0", "str w1, [sp, #-16]!", "ldr w0, [sp]", "mov sp, x9", "ret"),
            16,
        ),
    ]
}

/// SIM-1: the signal is the program's own, with pc and sp as before, and the address of the store.
#[test]
fn a_push_that_faults_is_the_programs_own_fault() {
    alternate_stack();
    for (name, text, below) in pushes() {
        let (at, site) = trapped_at(text, 2, nothing);
        assert!(site.is_simulated(), "{name}");
        for (answer, offset) in [(Answer::Map, 0x100), (Answer::MapLater, 0x200)] {
            let sp = nowhere() + offset;
            let seen = expecting(answer, || assert_eq!(call(at, sp, 5), 5, "{name}")).expect("a fault");
            let wanted = Seen {
                signal: libc::SIGSEGV,
                code: 1,
                pc: site.addr,
                sp,
                addr: sp - below,
                mask: 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGUSR2 - 1),
                ..seen
            };
            assert_eq!(seen, wanted, "{name}");
        }
        assert_eq!(site.hits(), 2, "one hit, one execution: {name}");
    }
}

/// The fault address that the kernel reports beside the registers is that of this fault, where the emulator
/// reports one.
#[test]
fn the_fault_address_is_as_for_the_programs_own() {
    alternate_stack();
    let (_, text, below) = pushes()[0];
    let plain = crate::site::code(text.words());
    let own = expecting(Answer::Map, || assert_eq!(call(plain, nowhere() + 0x100, 5), 5)).expect("a fault");
    let (at, _) = trapped_at(text, 2, nothing);
    let seen = expecting(Answer::Map, || assert_eq!(call(at, nowhere() + 0x100, 5), 5)).expect("a fault");
    assert_eq!(own.fault_address.wrapping_sub(own.addr), seen.fault_address.wrapping_sub(seen.addr));
    assert_eq!((own.sp - below, seen.sp - below), (own.addr, seen.addr));
}

/// The second half of the pair has no page: nothing is stored, nothing moves.
#[test]
fn half_a_push_is_none() {
    alternate_stack();
    // The pair is at low - 8, and the page below it is mapped.
    let low = map(3 * PAGE as usize) + PAGE;
    // SAFETY: the tests' own page.
    unsafe { libc::munmap(low as *mut libc::c_void, PAGE as usize) };
    let text =
        text!(half: "mov x9, sp", "mov sp, x0", "stp x0, x1, [sp, #-40]!", "mov x0, sp", "mov sp, x9", "ret");
    let (at, site) = trapped_at(text, 2, nothing);
    let sp = low + 32;
    let seen = expecting(Answer::Map, || assert_eq!(call(at, sp, 5), sp - 40)).expect("a fault");
    assert_eq!((seen.signal, seen.pc, seen.sp, seen.addr), (libc::SIGSEGV, site.addr, sp, low));
}

/// Linux checks the alignment of a stack pointer that is a base; user-mode emulators do not, simulation does.
#[test]
fn a_push_below_a_crooked_stack_pointer_is_a_bus_error() {
    alternate_stack();
    let text = text!(crooked: "mov x9, sp", "mov sp, x0", "stp x0, x1, [sp, #-48]!", "mov sp, x9", "ret");
    let (at, site) = trapped_at(text, 2, nothing);
    let sp = map(PAGE as usize) + 0x108;
    let seen = expecting(Answer::Skip(4), || {
        call(at, sp, 5);
    });
    let seen = seen.expect("a fault");
    assert_eq!((seen.signal, seen.code, seen.pc, seen.sp, seen.addr), (libc::SIGBUS, 1, site.addr, sp, sp));
}

/// A literal on a page that is gone, and a load that runs in a copy.
#[test]
fn loads_that_fault_go_on_once_there_is_a_page() {
    let text = text!(literal: "ldr x0, .+8", "ret");
    let literal = map(2 * PAGE as usize) + PAGE;
    let at = literal - 8;
    write(at, text.words());
    let simulated = site(at, text.words()[0], nothing);
    write(at, &[BRK]);
    // SAFETY: the tests' own page.
    unsafe { libc::munmap(literal as *mut libc::c_void, PAGE as usize) };
    let copied = trapped(text!(fault_load: "ldr x0, [x0]", "ret"), nothing);
    assert!(matches!((simulated.step, copied.step), (Step::Simulate(_), Step::At(_))));
    for (site, addr) in [(simulated, literal), (copied, nowhere() + 0x18)] {
        let seen = expecting(Answer::Map, || assert_eq!(site.call(addr, 0), 0)).expect("a fault");
        assert_eq!((seen.signal, seen.pc, seen.addr), (libc::SIGSEGV, site.addr, addr));
        assert_eq!(site.hits(), 1, "one hit, one execution");
    }
}

#[test]
fn a_handler_may_go_on_behind_the_original() {
    let copied = trapped(text!(skip: "ldr x0, [x0]", "mov x0, #9", "ret"), nothing);
    let seen = expecting(Answer::Skip(4), || assert_eq!(copied.call(nowhere(), 0), 9)).expect("a fault");
    assert_eq!((seen.signal, seen.pc, copied.hits()), (libc::SIGSEGV, copied.addr, 1));
}

#[test]
fn what_copies_stand_for() {
    let site = trapped(text!(stand: "mul x0, x0, x1", "ret"), nothing);
    let Step::At(copy) = site.step else { panic!("a copy") };
    assert_eq!(BLOCK.copies.original(copy), Some(site.addr));
    assert_eq!(BLOCK.copies.original(copy + 4), Some(site.addr + 4), "the way back");
    assert_eq!(BLOCK.copies.original(site.addr), None);
}

/// Whether this system lets a process send itself a signal as a kernel would (rt_tgsigqueueinfo(2)).
/// Emulators of user mode may mistake it for a fault of their own.
fn can_raise_faults() -> bool {
    let status = in_child(|| {
        // SAFETY: a constant disposition, then a signal to this thread: siginfo with signal, errno, code.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let mut info = [0_i32; 32];
            (info[0], info[2]) = (libc::SIGSEGV, 1);
            let (pid, tid) = (libc::getpid(), libc::gettid());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGSEGV, info.as_ptr());
        }
    });
    status & 0x7F == libc::SIGSEGV
}

/// Without a handler the process dies, both of a push and of a copy.
#[test]
fn without_a_handler_the_process_dies() {
    if !can_raise_faults() {
        println!("SKIP: this system (an emulator?) does not let a fault be raised again");
        return;
    }
    let (_, text, _) = pushes()[0];
    let (push, _) = trapped_at(text, 2, nothing);
    let load = trapped(text!(dies: "ldr x0, [x0]", "ret"), nothing).addr;
    for (at, ignored) in [(push, false), (push, true), (load, false), (load, true)] {
        let addr = nowhere() + 0x100;
        let status = in_child(|| {
            trapline_runtime::native::uninstall();
            // SAFETY: constant dispositions.
            unsafe { libc::signal(libc::SIGSEGV, if ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
            alternate_stack();
            // SAFETY: reads and writes dispositions; on the alternate stack, since the push has none.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut action);
                action.sa_flags |= libc::SA_ONSTACK;
                libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut());
            }
            let _ = trapline_runtime::native::install(&BLOCK);
            call(at, addr, 5);
        });
        assert_eq!(status & 0x7F, libc::SIGSEGV, "{at:#x} {ignored} {status:#x}");
    }
}
