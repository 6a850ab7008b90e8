//! Calls on stacks of their own: coroutines that return in any order and in other threads, and a signal handler's
//! stack.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{Called, Seen, every_way, probe, same, with};
use crate::victim::Victim;

/// A coroutine: its context, and that of the code that resumed it.
pub(crate) struct Coroutine {
    own: libc::ucontext_t,
    back: libc::ucontext_t,
    _stack: Box<[u8]>,
}

thread_local!(static CURRENT: Cell<*mut Coroutine> = const { Cell::new(std::ptr::null_mut()) });
pub(crate) static WITH: AtomicU64 = AtomicU64::new(0);

extern "C" fn pauses(x: u64) -> u64 {
    // SAFETY: this runs on the coroutine that `resume` made current.
    unsafe {
        let at = CURRENT.get();
        libc::swapcontext(&raw mut (*at).own, &raw const (*at).back);
    }
    x
}

extern "C" fn body() {
    // SAFETY: the address of `with`.
    let with: extern "C" fn(Called, u64) -> u64 = unsafe { std::mem::transmute(WITH.load(SeqCst)) };
    assert_eq!(with(pauses, 10), 11);
    pauses(0);
}

impl Coroutine {
    pub(crate) fn new() -> Box<Self> {
        let mut stack = vec![0_u8; 1 << 17].into_boxed_slice();
        // SAFETY: zero is what `getcontext` fills; the stack lives as long as the coroutine.
        unsafe {
            let mut own: libc::ucontext_t = std::mem::zeroed();
            libc::getcontext(&raw mut own);
            own.uc_stack.ss_sp = stack.as_mut_ptr().cast();
            own.uc_stack.ss_size = stack.len();
            let mut one = Box::new(Self { own, back: std::mem::zeroed(), _stack: stack });
            libc::makecontext(&raw mut one.own, body, 0);
            one
        }
    }
    /// Runs it until it pauses.
    pub(crate) fn resume(&mut self) {
        CURRENT.set(self);
        // SAFETY: the context was made, or paused; nothing else resumes it.
        unsafe { libc::swapcontext(&raw mut self.back, &raw const self.own) };
    }
}

/// Held by tests that set `WITH`.
pub(crate) static COROUTINES: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn stacks_return_in_any_order() {
    let _alone = COROUTINES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "with", seen.session().maxactive(9), how);
        WITH.store(victim.address("with"), SeqCst);
        let mut all: Vec<_> = (0..9).map(|_| Coroutine::new()).collect();
        all.iter_mut().for_each(|one| one.resume());
        seen.expect(9, 0);
        [4, 0, 8, 1, 7, 2, 6, 3, 5].into_iter().for_each(|n: usize| all[n].resume());
        seen.expect(9, 9);
    });
}

#[test]
fn a_stack_goes_on_in_another_thread() {
    let _alone = COROUTINES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "with", seen.session(), how);
        WITH.store(victim.address("with"), SeqCst);
        for n in 1..20 {
            let mut one = Coroutine::new();
            one.resume();
            let at = std::ptr::from_mut(&mut *one) as u64;
            // SAFETY: this thread waits meanwhile.
            std::thread::scope(|scope| scope.spawn(|| unsafe { (*(at as *mut Coroutine)).resume() }).join())
                .expect("it returns");
            seen.expect(n, n);
        }
    });
}

#[test]
fn a_signal_on_a_stack_of_its_own() {
    static INNER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32) {
        // SAFETY: the address of `with`.
        let with: extern "C" fn(Called, u64) -> u64 = unsafe { std::mem::transmute(INNER.load(SeqCst)) };
        with(same, 1);
    }
    extern "C" fn raises(x: u64) -> u64 {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGUSR2) };
        x
    }
    let run = |victim: &Victim| {
        INNER.store(victim.address("with"), SeqCst);
        (0..100).for_each(|n| assert_eq!(with(victim)(raises, n), n + 1));
    };
    let mut stack = vec![0_u8; 1 << 17];
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: a handler that is async-signal-safe, on memory that stays until the old stack is back.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
        assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
    }
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "with", seen.session().maxactive(2), how);
        run(victim);
        seen.expect(200, 200);
    });
    // SAFETY: the previous stack.
    unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) };
}
