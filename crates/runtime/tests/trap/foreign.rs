//! Traps and faults that are not ours go to the earlier handlers, as the kernel would have sent them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_runtime::x86_64::{install, standing, uninstall};

use crate::site::{BLOCK, arena, call, code, nothing, trapped, write};

thread_local! {
    /// What the tests' own handlers saw last: signal, instruction pointer, si_addr, exception, mask while
    /// running.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
    static ANSWER: Cell<Answer> = const { Cell::new(Answer::Nothing) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) signal: i32,
    pub(crate) rip: u64,
    pub(crate) addr: u64,
    pub(crate) exception: u64,
    pub(crate) fault_address: u64,
    pub(crate) mask: u64,
}

/// How the handler reacts.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Nothing,
    /// Goes on this many bytes further.
    Skip(u64),
    /// Maps the page at the faulting address.
    Map,
    /// Does nothing the first time, then maps the page.
    MapLater,
}

/// What the handlers saw during `run`, if anything; they react with `answer`.
pub(crate) fn expecting(answer: Answer, run: impl FnOnce()) -> Option<Seen> {
    arena();
    ANSWER.set(answer);
    SEEN.set(None);
    run();
    SEEN.take()
}

fn own_mask() -> u64 {
    let mut mask = 0_u64;
    // SAFETY: reads the mask into 8 bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, 0, 0, &raw mut mask, 8) };
    mask
}

extern "C" fn earlier(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: installed with SA_SIGINFO, so both belong to this signal.
    unsafe {
        let greg = |register: i32| (*context).uc_mcontext.gregs[register as usize].cast_unsigned();
        let addr = (*info).si_addr() as u64;
        SEEN.set(Some(Seen {
            signal,
            rip: greg(libc::REG_RIP),
            addr,
            exception: greg(libc::REG_TRAPNO),
            fault_address: greg(libc::REG_CR2),
            mask: own_mask(),
        }));
        match ANSWER.get() {
            Answer::Nothing => {}
            Answer::Skip(by) => (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += by.cast_signed(),
            Answer::MapLater => ANSWER.set(Answer::Map),
            Answer::Map => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let page = (addr & !0xFFF) as *mut libc::c_void;
                let at = libc::mmap(page, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                assert_eq!(at, page);
            }
        }
    }
}

/// Installs the tests' handlers before ours: SIGTRAP with SIGUSR2 in its mask, the faults with SIGUSR1. They
/// run on the alternate stack.
pub(crate) fn install_earlier() {
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        set(signal, earlier as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
    }
}

fn set(signal: i32, handler: usize, flags: i32) {
    // SAFETY: a handler of the kind that the flags say, or a constant.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR2);
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn an_int3_of_the_programs_goes_to_its_handler() {
    let function = code(&[0xCC, 0x31, 0xC0, 0xC3]);
    let seen = expecting(Answer::Nothing, || assert_eq!(call(function, 1, 2), 0)).expect("a call");
    assert_eq!((seen.signal, seen.rip, seen.exception), (libc::SIGTRAP, function + 1, 3));
    assert_eq!(seen.mask, bit(libc::SIGTRAP) | bit(libc::SIGUSR2), "as the kernel blocks");
    assert_eq!(own_mask(), 0);
    let long = code(&[0xCD, 0x03, 0x31, 0xC0, 0xC3]);
    let seen = expecting(Answer::Nothing, || assert_eq!(call(long, 1, 2), 0)).expect("a call");
    assert_eq!((seen.signal, seen.rip), (libc::SIGTRAP, long + 2));
}

#[test]
fn a_signal_that_is_sent_is_no_trap() {
    let site = trapped(&[0x90, 0xC3], nothing);
    let seen = expecting(Answer::Nothing, || {
        site.call(0, 0);
        // SAFETY: sent to this thread; its handler returns.
        unsafe { libc::raise(libc::SIGTRAP) };
    });
    assert_eq!((seen.expect("a call").signal, site.hits()), (libc::SIGTRAP, 1));
}

#[test]
fn a_fault_of_the_programs_goes_to_its_handler() {
    let function = code(&[0x48, 0x8B, 0x07, 0x31, 0xC0, 0xC3]); // mov rax, [rdi]
    let seen = expecting(Answer::Skip(3), || assert_eq!(call(function, 8, 2), 0)).expect("a call");
    assert_eq!((seen.signal, seen.rip, seen.addr, seen.exception), (libc::SIGSEGV, function, 8, 14));
    assert_eq!(seen.mask, bit(libc::SIGSEGV) | bit(libc::SIGUSR2));
}

/// Sets what the byte at `at` becomes at the next trap that is not found, before the code is read.
pub(crate) fn restore_at_next_look(at: u64, byte: u8) {
    RESTORE.store(at | u64::from(byte) << 56, Ordering::Relaxed);
}
static RESTORE: AtomicU64 = AtomicU64::new(0);

/// Called by the table when it does not know an address.
pub(crate) fn looked(addr: u64) {
    let restore = RESTORE.load(Ordering::Relaxed);
    if restore << 8 >> 8 == addr && restore != 0 {
        RESTORE.store(0, Ordering::Relaxed);
        write(addr, &[(restore >> 56) as u8]);
    }
}

/// Runs in a child; returns its wait status.
pub(crate) fn in_child(run: impl FnOnce()) -> i32 {
    arena();
    // SAFETY: the child makes direct calls only, and ends by _exit.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            run();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn counts(_: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 1000 {
        // SAFETY: ends a test that would not end.
        unsafe { libc::_exit(99) };
    }
}

#[test]
fn dispositions_are_honoured() {
    let function = code(&[0xCC, 0x31, 0xC0, 0xC3]);
    let site = trapped(&[0x90, 0xC3], nothing);
    let status = |handler: usize, flags: i32| {
        in_child(|| {
            uninstall();
            set(libc::SIGTRAP, handler, flags);
            let _ = install(&BLOCK);
            site.call(0, 0);
            call(function, 0, 0);
            site.call(0, 0);
            call(function, 0, 0);
        })
    };
    let counts = counts as extern "C" fn(i32) as *const () as usize;
    assert_eq!(status(counts, 0), 0, "a plain handler, twice");
    assert_eq!(status(counts, libc::SA_NODEFER), 0);
    assert_eq!(status(counts, libc::SA_RESETHAND) & 0x7F, libc::SIGTRAP, "the second time is the default");
    assert_eq!(status(libc::SIG_DFL, 0) & 0x7F, libc::SIGTRAP);
    assert_eq!(status(libc::SIG_IGN, 0) & 0x7F, libc::SIGTRAP, "an int3 cannot be ignored");
    let sent = in_child(|| {
        uninstall();
        set(libc::SIGTRAP, libc::SIG_IGN, 0);
        let _ = install(&BLOCK);
        // SAFETY: to this process.
        unsafe { libc::raise(libc::SIGTRAP) };
        site.call(0, 0);
    });
    assert_eq!(sent, 0, "a signal that is sent can");
}

#[test]
fn what_was_there_is_put_back() {
    let action = |signal: i32| {
        // SAFETY: only reads.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            (action.sa_sigaction, action.sa_flags & !0x0400_0000)
        }
    };
    let status = in_child(|| {
        let exit = |code: i32| {
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        };
        let ours = action(libc::SIGTRAP);
        if !standing() || uninstall() != 0 || standing() {
            exit(1);
        }
        let earlier = (earlier as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
        if [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL]
            .iter()
            .any(|&signal| action(signal) != earlier)
        {
            exit(2);
        }
        if install(&BLOCK).is_err() || action(libc::SIGTRAP) != ours {
            exit(3);
        }
        set(libc::SIGTRAP, libc::SIG_DFL, 0);
        if standing() || uninstall() != 1 || action(libc::SIGTRAP).0 != libc::SIG_DFL {
            exit(4);
        }
    });
    assert_eq!(libc::WEXITSTATUS(status), 0, "{status:#x}");
}
