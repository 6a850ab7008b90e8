//! Traps and faults that are not ours go to the earlier handlers, as the kernel would have sent them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode::BRK;
use trapline_runtime::native::{install, standing, uninstall};

use crate::site::{BLOCK, arena, call, code, nothing, text, trapped, write};

thread_local! {
    /// What the tests' own handlers saw last.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
    static ANSWER: Cell<Answer> = const { Cell::new(Answer::Nothing) };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) signal: i32,
    pub(crate) code: i32,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) addr: u64,
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
        let machine = &mut (*context).uc_mcontext;
        let addr = (*info).si_addr() as u64;
        SEEN.set(Some(Seen {
            signal,
            code: (*info).si_code,
            pc: machine.pc,
            sp: machine.sp,
            addr,
            fault_address: machine.fault_address,
            mask: own_mask(),
        }));
        match ANSWER.get() {
            Answer::Nothing => {}
            Answer::Skip(by) => machine.pc += by,
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

const SIGNALS: [i32; 5] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Installs the tests' handlers before ours, with SIGUSR2 in their masks. They run on the alternate stack.
pub(crate) fn install_earlier() {
    for signal in SIGNALS {
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

/// A `brk #0` of the program, and a compiler's own.
#[test]
fn a_brk_of_the_programs_goes_to_its_handler() {
    for text in [text!(brk: "brk #0", "mov x0, #5", "ret"), text!(brk_1000: "brk #1000", "mov x0, #5", "ret")]
    {
        let function = code(text.words());
        let seen = expecting(Answer::Skip(4), || assert_eq!(call(function, 1, 2), 5)).expect("a call");
        assert_eq!((seen.signal, seen.code, seen.pc, seen.addr), (libc::SIGTRAP, 1, function, function));
        assert_eq!(seen.mask, bit(libc::SIGTRAP) | bit(libc::SIGUSR2), "as the kernel blocks");
        assert_eq!(own_mask(), 0);
    }
}

#[test]
fn a_signal_that_is_sent_is_no_trap() {
    let site = trapped(text!(sent: "nop", "ret"), nothing);
    let seen = expecting(Answer::Nothing, || {
        site.call(0, 0);
        // SAFETY: sent to this thread; its handler returns.
        unsafe { libc::raise(libc::SIGTRAP) };
    });
    assert_eq!((seen.expect("a call").signal, site.hits()), (libc::SIGTRAP, 1));
}

#[test]
fn a_fault_of_the_programs_goes_to_its_handler() {
    let function = code(text!(load: "ldr x0, [x0]", "mov x0, #0", "ret").words());
    let seen = expecting(Answer::Skip(4), || assert_eq!(call(function, 8, 2), 0)).expect("a call");
    assert_eq!((seen.signal, seen.pc, seen.addr), (libc::SIGSEGV, function, 8));
    assert_eq!(seen.mask, bit(libc::SIGSEGV) | bit(libc::SIGUSR2));
}

/// Sets what the word at `at` becomes at the next trap that is not found, before the code is read.
pub(crate) fn restore_at_next_look(at: u64, word: u32) {
    RESTORE_WORD.store(word.into(), Ordering::Relaxed);
    RESTORE.store(at, Ordering::Relaxed);
}
static RESTORE: AtomicU64 = AtomicU64::new(0);
static RESTORE_WORD: AtomicU64 = AtomicU64::new(0);

/// Called by the table when it does not know an address.
pub(crate) fn looked(addr: u64) {
    if RESTORE.load(Ordering::Relaxed) == addr {
        RESTORE.store(0, Ordering::Relaxed);
        write(addr, &[RESTORE_WORD.load(Ordering::Relaxed) as u32]);
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

extern "C" fn skips(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: this signal's own.
    unsafe { (*context).uc_mcontext.pc += 4 };
}

#[test]
fn dispositions_are_honoured() {
    let function = code(text!(disposed: "brk #0", "mov x0, #0", "ret").words());
    let site = trapped(text!(between: "nop", "ret"), nothing);
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
    let skips = skips as *const () as usize;
    assert_eq!(status(skips, libc::SA_SIGINFO), 0, "a plain handler, twice");
    assert_eq!(status(skips, libc::SA_SIGINFO | libc::SA_NODEFER), 0);
    let once = status(skips, libc::SA_SIGINFO | libc::SA_RESETHAND);
    assert_eq!(once & 0x7F, libc::SIGTRAP, "the second time is the default");
    assert_eq!(status(libc::SIG_DFL, 0) & 0x7F, libc::SIGTRAP);
    assert_eq!(status(libc::SIG_IGN, 0) & 0x7F, libc::SIGTRAP, "a brk cannot be ignored");
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
            (action.sa_sigaction, action.sa_flags)
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
        if SIGNALS.iter().any(|&signal| action(signal) != earlier) {
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
    // Behind our trap there is only the instruction, and no second trap of the program.
    let function = code(&[BRK]);
    let status = in_child(|| {
        uninstall();
        set(libc::SIGTRAP, libc::SIG_DFL, 0);
        call(function, 0, 0);
    });
    assert_eq!(status & 0x7F, libc::SIGTRAP);
}
