//! Calls that are kept in place: only one consumer waits for their return, no consumer is called at the
//! entry, and only general registers are used.

use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use trapline::inside::{Consumer, Gpr, Registration, Tally};
use trapline_tests::alone;

use crate::stacks::{COROUTINES, Coroutine, WITH};
use crate::victim::Victim;
use crate::{Called, How, Seen, deeper, probe, same, thrown, throws, word};

/// Number of returns so far.
#[derive(Clone, Copy)]
struct ReturnCount(&'static AtomicU64);

impl ReturnCount {
    fn new() -> Self {
        Self(word())
    }
    fn waits(self) -> Consumer {
        Consumer::returns(move |hit| {
            assert_ne!(hit.regs().get(Gpr::Rsp), 0);
            self.0.fetch_add(1, SeqCst);
        })
    }
    /// Returns since the last call of this.
    fn return_count(self) -> u64 {
        self.0.swap(0, SeqCst)
    }
}

fn waits(victim: &Victim, name: &str, return_count: ReturnCount) -> Registration {
    // As many instances as the deepest call here needs before its places are bound.
    probe(victim, name, return_count.waits().maxactive(64), How::General)
}

fn hits(hits: u64) -> Tally {
    Tally { hits, ..Tally::default() }
}

#[test]
fn recursion_and_calls_that_are_left() {
    let (victim, return_count) = (Victim::load(), ReturnCount::new());
    let twice = waits(&victim, "twice", return_count);
    (0..1000).for_each(|n| assert_eq!(victim.function("twice")(n % 100, 0), n % 100 * 2));
    assert_eq!((return_count.return_count(), twice.counts()), (1000, hits(1000)));

    let deep = waits(&victim, "deep", return_count);
    (0..10).for_each(|_| assert_eq!(victim.function("deep")(60, 0), (6 << 60) - 1));
    assert_eq!((return_count.return_count(), deep.counts()), (610, hits(610)));

    let (with, left) = (waits(&victim, "with", return_count), crate::with(&victim));
    for depth in (0..500).rev() {
        deeper(depth, &|| thrown(left));
        assert_eq!(left(same, 4), 5);
    }
    assert_eq!((return_count.return_count(), with.counts()), (500, hits(1000)));
    for n in 1..=1000 {
        thrown(left);
        assert_eq!(with.counts(), hits(1000 + n));
    }
    assert_eq!(return_count.return_count(), 0);
}

/// Deeper than there are instances in the pool: places keep the calls that were there before.
#[test]
fn calls_that_are_kept_in_place_take_no_instance() {
    let (victim, return_count) = (Victim::load(), ReturnCount::new());
    let deep = probe(&victim, "deep", return_count.waits().maxactive(1), How::General);
    let call = || assert_eq!(victim.function("deep")(60, 0), (6 << 60) - 1);
    let mut before = 0;
    // Each time, at least the outermost call that is in no place yet takes an instance, and is in its place
    // from then on.
    while before < 61 {
        call();
        let now = return_count.return_count();
        assert!(now > before.min(60), "{now} after {before}");
        before = now;
    }
    let tally = deep.counts();
    call();
    assert_eq!((return_count.return_count(), deep.counts()), (61, Tally { hits: tally.hits + 61, ..tally }));
}

#[test]
fn stacks_return_in_any_order_and_in_other_threads() {
    let _alone = COROUTINES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (victim, return_count) = (Victim::load(), ReturnCount::new());
    let with = waits(&victim, "with", return_count);
    WITH.store(victim.address("with"), SeqCst);
    for _ in 0..3 {
        let mut all: Vec<_> = (0..9).map(|_| Coroutine::new()).collect();
        all.iter_mut().for_each(|one| one.resume());
        assert_eq!(return_count.return_count(), 0);
        [4, 0, 8, 1, 7, 2, 6, 3, 5].into_iter().for_each(|n: usize| all[n].resume());
        assert_eq!(return_count.return_count(), 9);
    }
    for _ in 0..20 {
        let mut one = Coroutine::new();
        one.resume();
        let at = std::ptr::from_mut(&mut *one) as u64;
        // SAFETY: this thread waits meanwhile.
        std::thread::scope(|scope| scope.spawn(|| unsafe { (*(at as *mut Coroutine)).resume() }).join())
            .expect("it returns");
        assert_eq!(return_count.return_count(), 1);
    }
    assert_eq!(with.counts(), hits(47));
}

/// Parent and child both return correctly, with places of the child's own, and with those of a parent that
/// waits (`vfork`).
#[test]
fn children() {
    static CHILD: AtomicU64 = AtomicU64::new(0);
    extern "C" fn forks(x: u64) -> u64 {
        // SAFETY: the child returns through the probed call and ends; it allocates nothing.
        CHILD.store(unsafe { libc::fork() } as u64, SeqCst);
        x
    }
    let (victim, return_count) = (Victim::load(), ReturnCount::new());
    let (_probes, with) =
        ([waits(&victim, "with", return_count), waits(&victim, "twice", return_count)], crate::with(&victim));
    for n in 0..5 {
        assert_eq!(with(forks, 4), 5);
        let (child, right) = (CHILD.load(SeqCst) as i32, return_count.return_count() == 1);
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(right && status == 0, "{n}: {status}");
    }
    // SAFETY: `vforks` is one.
    let vforks: extern "C" fn(Called, u64) -> u64 = unsafe { std::mem::transmute(victim.address("vforks")) };
    // SAFETY: it takes and returns numbers.
    let twice: Called = unsafe { std::mem::transmute(victim.address("twice")) };
    for _ in 0..20 {
        assert_eq!(vforks(twice, 1), 7);
        assert_eq!(twice(1), 2);
    }
    assert_eq!(return_count.return_count(), 40);
}

/// Consumers come and go while calls are in flight: those that waited are gone, and those that came see no
/// return of such a call.
#[test]
fn consumers_come_and_go_while_calls_are_kept() {
    static GATE: Barrier = Barrier::new(2);
    extern "C" fn blocks(x: u64) -> u64 {
        GATE.wait();
        GATE.wait();
        x
    }
    let (victim, return_count, other) = (Victim::load(), ReturnCount::new(), Seen::new());
    let (first, with) = (waits(&victim, "with", return_count), crate::with(&victim));
    std::thread::scope(|scope| {
        let calls = scope.spawn(move || {
            // A single call site, which no compiler unrolls.
            let functions: Vec<Called> = vec![same, same, same, blocks, same];
            std::hint::black_box(functions).into_iter().map(|function| with(function, 4)).collect::<Vec<_>>()
        });
        GATE.wait();
        first.unregister().expect("at once");
        let _second = probe(&victim, "with", other.session(), How::General);
        GATE.wait();
        assert_eq!(calls.join().expect("it returns"), [5; 5]);
    });
    assert_eq!(return_count.return_count(), 3);
    other.expect(1, 1);
}

// (at, f, a, b): calls f(a, b) with its stack pointer at `at` + 8.
std::arch::global_asm!(
    ".globl trapline_places_at",
    "trapline_places_at: push rbp; mov rbp, rsp; mov rsp, rdi; mov rax, rsi; mov rdi, rdx; mov rsi, rcx; call rax; mov rsp, rbp; pop rbp; ret",
);
unsafe extern "C" {
    fn trapline_places_at(at: u64, f: u64, a: u64, b: u64) -> u64;
    fn trapline_inside_catch(jump: *mut u64, f: extern "C" fn(*const c_void), data: *const c_void);
}

/// A stack of the test's own, on which functions are called with a chosen stack pointer.
struct Stack(Vec<u8>);

impl Stack {
    fn new() -> Self {
        Self(vec![0; 1 << 16])
    }
    fn call(&self, f: u64, a: u64, b: u64) -> u64 {
        let end = self.0.as_ptr() as u64 + self.0.len() as u64 - 64;
        // SAFETY: room on a stack that nothing else uses; functions of two numbers.
        unsafe { trapline_places_at(end & !15, f, a, b) }
    }
    /// A call of `with` that is left by `longjmp`.
    fn left(&self, with: u64) {
        extern "C" fn call(data: *const c_void) {
            // SAFETY: what is passed below.
            let (stack, with) = unsafe { *data.cast::<(&Stack, u64)>() };
            stack.call(with, throws as *const () as u64, 1);
        }
        let data = (self, with);
        // SAFETY: the frames that are left hold nothing.
        crate::JUMP.with(|jump| unsafe {
            trapline_inside_catch(jump.as_ptr(), call, (&raw const data).cast());
        });
    }
}

/// One stack word for calls of two functions, of which one was left: each call is counted for its own
/// function.
#[test]
fn a_place_that_keeps_a_call_that_was_left() {
    let (victim, stack) = (Victim::load(), Stack::new());
    let [first, second] = [ReturnCount::new(), ReturnCount::new()];
    let probes = [waits(&victim, "with", first), waits(&victim, "twice", second)];
    let (with, twice, same) = (victim.address("with"), victim.address("twice"), same as *const () as u64);
    let calls = |times| {
        for _ in 0..times {
            assert_eq!(stack.call(twice, 4, 0), 8);
        }
    };
    for _ in 0..3 {
        // A first call binds the place; one is kept there, and left; the other function's calls come and go;
        // then the place is reused.
        (0..2).for_each(|_| assert_eq!(stack.call(with, same, 4), 5));
        stack.left(with);
        calls(10);
        assert_eq!((first.return_count(), second.return_count()), (2, 10));
        assert_eq!(stack.call(with, same, 4), 5);
        calls(10);
        assert_eq!((first.return_count(), second.return_count()), (1, 10));
    }
    assert_eq!(probes.each_ref().map(Registration::counts), [hits(12), hits(60)]);
    // A call is left, and then a second consumer waits there, which needs an instance. The next exit ends
    // that call, and is reported once.
    stack.left(with);
    let session = Seen::new();
    let third = probe(&victim, "with", session.session(), How::General);
    (0..10).for_each(|_| assert_eq!(stack.call(with, same, 4), 5));
    session.expect(10, 10);
    assert_eq!(first.return_count(), 10);
    third.unregister().expect("at once");
    (0..10).for_each(|_| assert_eq!(stack.call(with, same, 4), 5));
    assert_eq!((first.return_count(), probes[0].counts()), (10, hits(33)));
    // A call is left, and then only the session waits.
    stack.left(with);
    let [with_probe, _twice] = probes;
    with_probe.unregister().expect("at once");
    let session = Seen::new();
    let _fourth = probe(&victim, "with", session.session().maxactive(1), How::General);
    (0..10).for_each(|_| assert_eq!(stack.call(with, same, 4), 5));
    session.expect(10, 10);
    assert_eq!(first.return_count(), 0);
}

/// More stack words than places: later ones use instances. In a process of its own: its places are used up.
#[test]
fn more_stack_words_than_places() {
    alone("places::more_stack_words_than_places", every_word);
}

fn every_word() {
    let (victim, return_count) = (Victim::load(), ReturnCount::new());
    let twice = waits(&victim, "twice", return_count);
    let function = victim.address("twice");
    const WORDS: u64 = 400_000;
    let stack = vec![0_u8; WORDS as usize * 32 + (1 << 16)];
    let end = stack.as_ptr() as u64 + stack.len() as u64 - 64;
    for n in 0..WORDS {
        for _ in 0..3 {
            // SAFETY: as in `Stack`.
            assert_eq!(unsafe { trapline_places_at((end & !15) - n * 32, function, 4, 0) }, 8);
        }
    }
    assert_eq!((return_count.return_count(), twice.counts()), (3 * WORDS, hits(3 * WORDS)));
}
