//! Faults of displaced instructions, simulated or in a copy. The program sees each fault at the original
//! address, once, and can go on.

use trapline_runtime::x86_64::Step;

use crate::foreign::{Answer, Seen, expecting};
use crate::site::{BLOCK, Site, call, code, nothing, site, trapped, write};

/// An address where nothing is mapped; each test gets another page.
fn nowhere() -> u64 {
    // SAFETY: a page of our own, unmapped at once. Other threads of this process map elsewhere: the kernel
    // goes downwards from the top, and this page is requested far below.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0x10_0000_0000);
        let at = NEXT.fetch_add(0x10_0000, std::sync::atomic::Ordering::Relaxed);
        let page = libc::mmap(at as *mut libc::c_void, 4096, libc::PROT_NONE, flags, -1, 0);
        assert_eq!(page as u64, at);
        libc::munmap(page, 4096);
        at
    }
}

/// Every kind of access: the function, whether it is simulated, and what it returns.
const ACCESSES: &[(&[u8], bool, u64)] = &[
    (&[0x48, 0x8B, 0x07, 0xC3], true, 0),                    // mov rax, [rdi]
    (&[0x48, 0x89, 0x37, 0x48, 0x89, 0xF0, 0xC3], true, 5),  // mov [rdi], rsi
    (&[0x66, 0x89, 0x37, 0x48, 0x89, 0xF0, 0xC3], true, 5),  // mov [rdi], si
    (&[0x40, 0x88, 0x37, 0x48, 0x89, 0xF0, 0xC3], true, 5),  // mov [rdi], sil
    (&[0x0F, 0xB6, 0x07, 0xC3], true, 0),                    // movzx eax, byte [rdi]
    (&[0x83, 0x3F, 0, 0x48, 0x89, 0xF0, 0xC3], true, 5),     // cmp dword [rdi], 0
    (&[0xFF, 0x37, 0x58, 0xC3], true, 0),                    // push [rdi]; pop rax
    (&[0x48, 0x01, 0x37, 0x48, 0x8B, 0x07, 0xC3], false, 5), // add [rdi], rsi; mov rax, [rdi]
    (&[0x48, 0x87, 0x37, 0x48, 0x89, 0xF0, 0xC3], false, 0), // xchg [rdi], rsi
];

#[test]
fn a_missing_page_is_reported_at_the_original_and_can_be_mapped() {
    for &(bytes, simulated, result) in ACCESSES {
        let site = trapped(bytes, nothing);
        assert_eq!(matches!(site.step, Step::Simulate(_)), simulated, "{bytes:02x?}");
        let addr = nowhere() + 0x18;
        let seen = expecting(Answer::Map, || assert_eq!(site.call(addr, 5), result, "{bytes:02x?}"));
        let seen = seen.expect("a fault");
        let wanted =
            Seen { signal: libc::SIGSEGV, rip: site.addr, addr, exception: 14, fault_address: addr, ..seen };
        assert_eq!(seen, wanted, "{bytes:02x?}");
        assert_eq!(seen.mask, 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGUSR2 - 1), "{bytes:02x?}");
        assert_eq!(site.hits(), 1, "one hit, one execution: {bytes:02x?}");
    }
}

#[test]
fn a_handler_that_does_nothing_is_called_again() {
    for &(bytes, _, result) in ACCESSES {
        let site = trapped(bytes, nothing);
        let addr = nowhere();
        let seen = expecting(Answer::MapLater, || assert_eq!(site.call(addr, 5), result, "{bytes:02x?}"));
        assert_eq!(seen.map(|seen| (seen.rip, seen.addr)), Some((site.addr, addr)), "{bytes:02x?}");
        assert_eq!(site.hits(), 1, "{bytes:02x?}");
    }
}

#[test]
fn a_handler_may_go_on_behind_the_original() {
    let divides = [0x31, 0xD2, 0x48, 0x89, 0xF8, 0x48, 0xF7, 0xF6, 0xC3]; // xor edx, edx; mov rax, rdi; div rsi; ret
    let function = code(&divides);
    let site = site(function + 5, &divides[5..], nothing);
    write(function + 5, &[0xCC]);
    assert!(matches!(site.step, Step::At(_)));
    assert_eq!(call(function, 40, 8), 5);
    let seen = expecting(Answer::Skip(3), || assert_eq!(call(function, 40, 0), 40)).expect("a fault");
    assert_eq!(
        (seen.signal, seen.rip, seen.addr),
        (libc::SIGFPE, site.addr, site.addr),
        "si_addr is the original's"
    );
    let load = trapped(&[0x48, 0x8B, 0x07, 0xB8, 9, 0, 0, 0, 0xC3], nothing);
    let seen = expecting(Answer::Skip(3), || assert_eq!(load.call(nowhere(), 0), 9)).expect("a fault");
    assert_eq!((seen.signal, seen.rip, load.hits(), site.hits()), (libc::SIGSEGV, load.addr, 1, 2));
}

#[test]
fn an_address_that_is_none() {
    for bytes in [&[0x48, 0x8B, 0x07, 0xC3][..], &[0x48, 0x01, 0x37, 0xC3]] {
        let site = trapped(bytes, nothing);
        let seen = expecting(Answer::Skip(3), || {
            site.call(1 << 63 | 5, 0);
        });
        let seen = seen.expect("a fault");
        assert_eq!((seen.signal, seen.rip, seen.addr, seen.exception), (libc::SIGSEGV, site.addr, 0, 13));
    }
}

#[test]
fn what_copies_stand_for() {
    let site = trapped(&[0x48, 0x0F, 0xAF, 0xFE, 0x48, 0x89, 0xF8, 0xC3], nothing);
    let Step::At(copy) = site.step else { panic!("a copy") };
    assert_eq!(BLOCK.copies.original(copy), Some(site.addr));
    assert_eq!(BLOCK.copies.original(copy + 4), Some(site.addr + 4), "the way back");
    assert_eq!(BLOCK.copies.original(site.addr), None);
}

/// A child that dies of a fault under its tracer. Returns what the last signal says, and where the child
/// stands.
fn dies(site: &Site, handler: usize) -> (i32, u64, u64) {
    // SAFETY: the child makes direct system calls and the call to the site; the parent waits for its own
    // child.
    unsafe {
        let addr = nowhere();
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            trapline_runtime::x86_64::uninstall();
            libc::signal(libc::SIGSEGV, handler);
            let _ = trapline_runtime::x86_64::install(&BLOCK);
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            site.call(addr, 5);
            libc::_exit(0);
        }
        let (mut status, mut last) = (0, (0, 0, 0));
        loop {
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            if !libc::WIFSTOPPED(status) {
                break;
            }
            let mut regs: libc::user_regs_struct = std::mem::zeroed();
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &raw mut regs);
            libc::ptrace(libc::PTRACE_GETSIGINFO, child, 0, &raw mut info);
            last = (libc::WSTOPSIG(status), regs.rip, (info.si_addr() as u64).wrapping_sub(addr));
            libc::ptrace(libc::PTRACE_CONT, child, 0, libc::WSTOPSIG(status));
        }
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), last.0);
        last
    }
}

#[test]
fn without_a_handler_the_process_dies_at_the_original() {
    for bytes in [&[0x48, 0x8B, 0x07, 0xC3][..], &[0x48, 0x01, 0x37, 0xC3]] {
        let site = trapped(bytes, nothing);
        assert_eq!(dies(site, libc::SIG_DFL), (libc::SIGSEGV, site.addr, 0), "{bytes:02x?}");
        assert_eq!(dies(site, libc::SIG_IGN), (libc::SIGSEGV, site.addr, 0), "{bytes:02x?}");
    }
}

extern "C" fn gives_up(signal: i32) {
    // SAFETY: installs a constant disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Does what Rust's own handler does with faults that are not stack overflows: sets the default action, and
/// runs the instruction again.
#[test]
fn a_handler_that_gives_up_ends_the_process_at_the_original() {
    let handler = gives_up as extern "C" fn(i32) as *const () as usize;
    for bytes in [&[0x48, 0x8B, 0x07, 0xC3][..], &[0x48, 0x01, 0x37, 0xC3]] {
        let site = trapped(bytes, nothing);
        assert_eq!(dies(site, handler), (libc::SIGSEGV, site.addr, 0), "{bytes:02x?}");
    }
}
