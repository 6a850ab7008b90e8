//! Handlers that do not come back.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use trapline_runtime::consumer::{Hit, Verdict};
use trapline_runtime::engine::Tally;
use trapline_runtime::epoch::ThreadPointer;

use crate::support::{add, calling, cannot_read, engine, hit, probe, writer};

unsafe extern "C" {
    fn trapline_test_catch(jump: *mut u64, f: extern "C" fn(*const c_void), data: *const c_void);
    fn trapline_test_throw(jump: *mut u64) -> !;
}

thread_local!(static JUMP: AtomicU64 = const { AtomicU64::new(0) });

unsafe extern "C" fn throw(_: *mut c_void, _: *mut Hit) -> Verdict {
    // SAFETY: this thread is inside `catch` below, and no frame between needs dropping.
    JUMP.with(|jump| unsafe { trapline_test_throw(jump.as_ptr()) })
}

extern "C" fn hit_it(probe: *const c_void) {
    // SAFETY: a leaked probe.
    hit(unsafe { &*probe.cast() });
}

fn caught(probe: &trapline_runtime::probe::Probe) {
    // SAFETY: `hit_it` and what it calls need no dropping when `throw` leaves them.
    JUMP.with(|jump| unsafe { trapline_test_catch(jump.as_ptr(), hit_it, std::ptr::from_ref(probe).cast()) });
}

/// At the same depth, the next hit finds the frame left.
#[test]
fn a_handler_that_jumps_away_is_over() {
    if cannot_read() {
        return;
    }
    let engine = engine(4);
    let probe = probe(engine, 0);
    add(probe, calling(throw, std::ptr::null_mut()));
    (0..1000).for_each(|_| caught(probe));
    assert_eq!(probe.counts(), Tally { hits: 1000, ..Tally::default() });
    assert!(!engine.lines().inside(ThreadPointer::own(), |_| true));
}

#[inline(never)]
fn deeper(f: &dyn Fn()) {
    let mut room = [1_u8; 1 << 14];
    std::hint::black_box(&mut room);
    f();
    std::hint::black_box(&mut room);
}

/// Deeper than the frame that was left: overwriting the frame shows that it was left.
#[test]
fn a_hit_below_the_frame_that_was_left() {
    if cannot_read() {
        return;
    }
    let engine = engine(4);
    let probe = probe(engine, 1);
    let id = add(probe, calling(throw, std::ptr::null_mut()));
    caught(probe);
    remove_left(probe, id);
    deeper(&|| (0..10).for_each(|_| hit(probe)));
    assert_eq!(probe.counts(), Tally { hits: 11, ..Tally::default() });
}

/// Unregisters although this thread's own frame was left and never entered again.
fn remove_left(probe: &trapline_runtime::probe::Probe, id: trapline_runtime::consumer::ConsumerId) {
    let mut writer = writer(probe.engine());
    assert!(probe.consumers().remove(&mut writer, id));
    let lines = probe.engine().lines();
    let mut grace = writer.grace().expect("a barrier");
    let stragglers: Vec<_> = grace.stragglers(lines).collect();
    assert_eq!(stragglers.len(), 1);
    assert_eq!(stragglers[0].thread, ThreadPointer::own());
    assert!(!grace.poll(lines));
    // SAFETY: its frame was left.
    unsafe { grace.excuse(lines, stragglers[0]) };
    assert!(grace.poll(lines));
}

/// A frame on memory that is gone.
#[test]
fn a_hit_after_the_stack_of_the_last_is_gone() {
    if cannot_read() {
        return;
    }
    static MAIN: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn away(_: *mut c_void, _: *mut Hit) -> Verdict {
        let to = MAIN.load(SeqCst) as *const libc::ucontext_t;
        // SAFETY: the context that `swapcontext` saved below.
        unsafe { libc::setcontext(to) };
        Verdict::CONTINUE
    }
    static PROBE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_the_other() {
        hit_it(PROBE.load(SeqCst) as *const c_void);
    }
    let engine = engine(4);
    let probe = probe(engine, 2);
    let id = add(probe, calling(away, std::ptr::null_mut()));
    PROBE.store(probe.address(), SeqCst);
    const LEN: usize = 1 << 16;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // Above this thread's stack, so that the next hit is below the frame that was left.
    let above = (1..64).map(|gib| (std::ptr::from_ref(&engine) as usize + (gib << 30)) & !0xffff);
    // SAFETY: new mappings, where nothing is.
    let mut stacks = above.map(|at| unsafe { libc::mmap(at as *mut c_void, LEN, 3, flags, -1, 0) });
    let stack = stacks.find(|stack| *stack != libc::MAP_FAILED).expect("room above");
    // SAFETY: a stack of our own, left and unmapped; the saved context is this function's, which is still
    // running.
    unsafe {
        let (mut main, mut other): (libc::ucontext_t, libc::ucontext_t) = std::mem::zeroed();
        assert_eq!(libc::getcontext(&raw mut other), 0);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = LEN;
        MAIN.store(&raw const main as u64, SeqCst);
        libc::makecontext(&raw mut other, on_the_other, 0);
        libc::swapcontext(&raw mut main, &raw const other);
        libc::munmap(stack, LEN);
    }
    let mut writer = writer(probe.engine());
    assert!(probe.consumers().remove(&mut writer, id));
    hit(probe);
    assert_eq!(probe.counts(), Tally { hits: 2, ..Tally::default() });
}

/// A thread that ends in a handler: its line belongs to the next thread with its thread pointer, or is a
/// straggler.
#[test]
fn a_thread_that_ends_in_a_handler() {
    unsafe extern "C" fn end(_: *mut c_void, _: *mut Hit) -> Verdict {
        // SAFETY: ends this thread, without the library's knowledge; its stack would be freed by a join,
        // which does not happen.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        Verdict::CONTINUE
    }
    let engine = engine(4);
    let probe = probe(engine, 3);
    let id = add(probe, calling(end, std::ptr::null_mut()));
    let address = probe.address();
    let started = std::sync::Arc::new(AtomicU64::new(0));
    let tid = started.clone();
    let ending = std::thread::spawn(move || {
        // SAFETY: no arguments.
        tid.store(unsafe { libc::syscall(libc::SYS_gettid) } as u64, SeqCst);
        hit_it(address as *const c_void);
    });
    let gone = |tid: u64| tid != 0 && !std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
    while !gone(started.load(SeqCst)) {
        std::thread::yield_now();
    }
    let mut writer = writer(probe.engine());
    assert!(probe.consumers().remove(&mut writer, id));
    let mut grace = writer.grace().expect("a barrier");
    assert!(!grace.poll(engine.lines()));
    let stragglers: Vec<_> = grace.stragglers(engine.lines()).collect();
    assert_eq!(stragglers.len(), 1);
    // SAFETY: its frame was left.
    unsafe { grace.excuse(engine.lines(), stragglers[0]) };
    assert!(grace.poll(engine.lines()));
    drop(ending);
}
