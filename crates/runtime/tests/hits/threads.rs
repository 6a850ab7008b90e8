//! Nested hits, signals, threads, fork.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst};

use trapline_runtime::consumer::{Hit, Verdict};
use trapline_runtime::engine::Tally;
use trapline_runtime::epoch::ThreadPointer;
use trapline_runtime::probe::Probe;

use crate::support::{add, calling, engine, hit, probe, remove, writer};

unsafe extern "C" fn hit_again(data: *mut c_void, _: *mut Hit) -> Verdict {
    // SAFETY: `data` is a leaked probe.
    let probe = unsafe { &*data.cast::<Probe>() };
    hit(probe);
    assert!(
        probe.engine().lines().inside(ThreadPointer::own(), |_| true),
        "a call that would unregister here gets an error"
    );
    Verdict::CONTINUE
}

#[test]
fn a_hit_in_a_handler_is_missed_and_counted() {
    let engine = engine(4);
    let probe = probe(engine, 0);
    add(probe, calling(hit_again, std::ptr::from_ref(probe).cast_mut().cast()));
    (0..100).for_each(|_| hit(probe));
    assert_eq!(probe.counts(), Tally { hits: 100, nested: 100, ..Tally::default() });
    assert!(!engine.lines().inside(ThreadPointer::own(), |_| true));
}

static HIT_BY_SIGNAL: AtomicPtr<Probe> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn on_signal(_: i32) {
    // SAFETY: a leaked probe.
    hit(unsafe { &*HIT_BY_SIGNAL.load(SeqCst) });
}

unsafe extern "C" fn raise(_: *mut c_void, _: *mut Hit) -> Verdict {
    // SAFETY: sends a signal to this process.
    unsafe { libc::raise(libc::SIGUSR1) };
    Verdict::CONTINUE
}

/// On an alternate stack above or below the thread's, a signal's hit during a handler is nested.
#[test]
fn a_signal_in_a_handler_is_nested_on_any_stack() {
    let engine = engine(4);
    let probe = probe(engine, 1);
    add(probe, calling(raise, std::ptr::null_mut()));
    HIT_BY_SIGNAL.store(std::ptr::from_ref(probe).cast_mut(), SeqCst);
    // SAFETY: a handler that is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let stacks = [vec![0_u8; 1 << 16], vec![0_u8; 1 << 16]];
    for (n, stack) in stacks.iter().enumerate() {
        let stack =
            libc::stack_t { ss_sp: stack.as_ptr().cast_mut().cast(), ss_flags: 0, ss_size: stack.len() };
        // SAFETY: memory that stays until the stack is disabled below.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        // Once in a thread with its stack above the heap, and (since a thread's stack may be anywhere) once
        // on the frames of this thread.
        hit(probe);
        assert_eq!(probe.counts().nested, n as u64 + 1);
    }
    // Above: the alternate stack is part of this thread's own stack, above its frames.
    let mut own = [0_u8; 1 << 16];
    let stack = libc::stack_t { ss_sp: own.as_mut_ptr().cast(), ss_flags: 0, ss_size: own.len() };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
    hit(probe);
    assert_eq!(probe.counts(), Tally { hits: 3, nested: 3, ..Tally::default() });
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: disables the stack.
    unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
    std::hint::black_box(&mut own);
}

static SLOW: AtomicBool = AtomicBool::new(true);
static IN: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn wait(_: *mut c_void, _: *mut Hit) -> Verdict {
    IN.fetch_add(1, SeqCst);
    while SLOW.load(SeqCst) {
        std::thread::yield_now();
    }
    Verdict::CONTINUE
}

#[test]
fn a_grace_ends_when_the_handler_has() {
    let engine = engine(4);
    let probe = probe(engine, 2);
    let id = add(probe, calling(wait, std::ptr::null_mut()));
    std::thread::scope(|scope| {
        let hitting = scope.spawn(|| hit(probe));
        while IN.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let mut writer = writer(engine);
        assert!(probe.consumers().remove(&mut writer, id));
        let mut grace = writer.grace().expect("a barrier");
        assert!(!grace.poll(engine.lines()), "the handler runs");
        assert_eq!(grace.stragglers(engine.lines()).count(), 1);
        SLOW.store(false, SeqCst);
        hitting.join().expect("it hits");
        assert!(grace.poll(engine.lines()));
        assert!(writer.sweep());
    });
}

#[test]
fn hits_of_many_threads_all_count() {
    const EACH: u64 = 100_000;
    let engine = engine(16);
    let probe = probe(engine, 3);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..EACH).for_each(|_| hit(probe)));
        }
    });
    assert_eq!(probe.counts(), Tally { hits: 8 * EACH, ..Tally::default() });
}

/// Two lines for eight threads at once: hits of threads without a line are missed, and counted.
#[test]
fn threads_without_a_line_are_missed() {
    let engine = engine(2);
    let probe = probe(engine, 4);
    let all = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                all.wait();
                (0..1000).for_each(|_| hit(probe));
                all.wait();
            });
        }
    });
    let tally = probe.counts();
    assert_eq!((tally.hits, tally.unplaced), (2000, 6000));
}

/// Consumers are added and removed under hits; each call is of one before the end of its grace period.
#[test]
fn no_consumer_is_called_after_unregistering() {
    struct Counting {
        alive: AtomicBool,
        calls: AtomicU64,
    }
    unsafe extern "C" fn count(data: *mut c_void, _: *mut Hit) -> Verdict {
        // SAFETY: a leaked `Counting`.
        let one = unsafe { &*data.cast::<Counting>() };
        assert!(one.alive.load(SeqCst));
        one.calls.fetch_add(1, SeqCst);
        Verdict::CONTINUE
    }
    let engine = engine(8);
    let probe = probe(engine, 5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    hit(probe);
                }
            });
        }
        for _ in 0..1000 {
            let one: &Counting =
                Box::leak(Box::new(Counting { alive: AtomicBool::new(true), calls: AtomicU64::new(0) }));
            let id = add(probe, calling(count, std::ptr::from_ref(one).cast_mut().cast()));
            while one.calls.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            remove(probe, id);
            one.alive.store(false, SeqCst);
        }
        stop.store(true, SeqCst);
    });
}
