//! Calls with a return that is waited for, in all circumstances: recursion, `longjmp`, other stacks, other
//! threads, ends of threads and processes, children. By jump and by trap, with all registers saved and
//! without vectors, and beside the kernel's uretprobe where that works too.
//!
//! A program of its own: what is patched stays mapped, and the libraries of all tests must find room near
//! each other.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "stacks, jumps, children")]

mod children;
mod places;
mod return_trampolines;
mod stacks;
mod unwinding;
#[path = "../inside/victim.rs"]
#[allow(dead_code, reason = "shared with `inside`, which asks for more")]
mod victim;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use trapline::inside::{
    Consumer, Error, Gpr, Registration, Request, Returns, Tally, Verdict, register, register_all,
};
use trapline_tests::alone;
use trapline_tracee::kernel::{Uprobe, UprobeMulti};

use crate::victim::Victim;

/// A word for a handler to use.
fn word() -> &'static AtomicU64 {
    Box::leak(Box::default())
}

type Called = extern "C" fn(u64) -> u64;

/// What a session of one function saw.
#[derive(Clone, Copy)]
struct Seen {
    entries: &'static AtomicU64,
    returns: &'static AtomicU64,
    /// Returns with a cookie that did not belong to their call.
    wrong: &'static AtomicU64,
}

impl Seen {
    fn new() -> Self {
        Self { entries: word(), returns: word(), wrong: word() }
    }
    /// Cookies are stack pointers, which a function has at its return as at its entry.
    fn session(self) -> Consumer {
        Consumer::session(
            move |hit| {
                self.entries.fetch_add(1, SeqCst);
                let sp = hit.regs().get(Gpr::Rsp);
                hit.set_cookie(sp);
                Verdict::Continue
            },
            move |hit| {
                self.returns.fetch_add(1, SeqCst);
                let is_its = hit.cookie() == hit.regs().get(Gpr::Rsp);
                self.wrong.fetch_add(u64::from(!is_its), SeqCst);
            },
        )
    }
    #[track_caller]
    fn expect(self, entries: u64, returns: u64) {
        let seen = [self.entries, self.returns, self.wrong].map(|word| word.load(SeqCst));
        assert_eq!(seen, [entries, returns, 0]);
    }
}

/// How a site is reached, and what is saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Jump,
    Trap,
    /// By jump, with only general registers saved.
    General,
    /// The return address replaced, by jump and by trap.
    Trampoline,
    TrampolineByTrap,
    /// The return address replaced, by jump, with only general registers saved at the entry.
    TrampolineGeneral,
}

impl How {
    fn form(self) -> Returns {
        let stack = matches!(self, Self::Trampoline | Self::TrampolineByTrap | Self::TrampolineGeneral);
        if stack { Returns::Stack } else { Returns::Exits }
    }
}

fn probe(victim: &Victim, name: &str, consumer: Consumer, how: How) -> Registration {
    let consumer = match how {
        // SAFETY: the functions under test keep nothing in vector registers.
        How::General | How::TrampolineGeneral => unsafe { consumer.general_regs_only() },
        How::Jump | How::Trap | How::Trampoline | How::TrampolineByTrap => consumer,
    };
    let by_trap = matches!(how, How::Trap | How::TrampolineByTrap);
    let consumer = consumer.returns_by(how.form());
    let request = Request { by_trap, ..Request::new(&victim.path, victim.offset(name), consumer) };
    let probe = register_all([request]).expect("registered").pop().expect("one");
    assert_eq!(probe.returns_by(), Some(how.form()));
    probe
}

/// Runs a test in each form, with a library of its own each time.
fn every_way(test: impl Fn(&Victim, How)) {
    {
        use How::{General, Jump, Trampoline, TrampolineByTrap, TrampolineGeneral, Trap};
        [Jump, Trap, General, Trampoline, TrampolineByTrap, TrampolineGeneral]
    }
    .into_iter()
    .for_each(|how| test(&Victim::load(), how));
}

/// How many returns of a function the kernel's uretprobe sees, in a library of its own.
fn of_the_kernel(name: &str, run: impl FnOnce(&Victim)) -> Option<u64> {
    if let Err(why) = UprobeMulti::available() {
        eprintln!("SKIPPED: the kernel's uretprobe beside ours: {why}");
        return None;
    }
    let victim = Victim::load();
    let site = Uprobe::from(victim.offset(name));
    let link = UprobeMulti::attach(&victim.path, &[site], Some(std::process::id()), true).expect("attached");
    run(&victim);
    Some(link.counts().expect("counted").iter().sum())
}

fn with(victim: &Victim) -> extern "C" fn(Called, u64) -> u64 {
    // SAFETY: `with` is one.
    unsafe { std::mem::transmute(victim.address("with")) }
}

extern "C" fn same(x: u64) -> u64 {
    x
}

#[test]
fn recursion_as_deep_as_the_pool_allows() {
    let run = |victim: &Victim, depth| assert_eq!(victim.function("deep")(depth, 0), (6 << depth) - 1);
    every_way(|victim, how| {
        let seen = Seen::new();
        let probe = probe(victim, "deep", seen.session().maxactive(61), how);
        (0..10).for_each(|_| run(victim, 60));
        seen.expect(610, 610);
        assert_eq!(probe.counts(), Tally { hits: 610, ..Tally::default() });
    });
    if let Some(returns) = of_the_kernel("deep", |victim| (0..10).for_each(|_| run(victim, 60))) {
        assert_eq!(returns, 610);
    }
    // Deeper than the kernel supports, across many stack pages.
    every_way(|victim, how| {
        let seen = Seen::new();
        let _probe = probe(victim, "deep", seen.session().maxactive(3001), how);
        victim.function("deep")(3000, 0);
        seen.expect(3001, 3001);
    });
}

#[test]
fn an_empty_pool_is_counted_and_the_function_runs() {
    every_way(|victim, how| {
        let seen = Seen::new();
        let probe = probe(victim, "deep", seen.session().maxactive(2), how);
        for n in 1..=10 {
            assert_eq!(victim.function("deep")(40, 0), (6 << 40) - 1);
            let tally = probe.counts();
            // Objects in CPUs' magazines may be available besides.
            assert_eq!(tally.hits + tally.empty, n * 41, "{tally:?}");
            assert!(tally.hits >= n * 2 && tally.empty > 0 && tally.missed() == tally.empty, "{tally:?}");
            seen.expect(tally.hits, tally.hits);
        }
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let victim = Victim::load();
    for (maxactive, says) in [(0, "maxactive 0: possible are 1 to 32768"), (1 << 20, "maxactive 1048576")] {
        let consumer = Consumer::returns(|_| {}).maxactive(maxactive);
        let error = register(&victim.path, victim.offset("add"), consumer).expect_err("refused");
        assert!(matches!(error, Error::Instances { .. }) && error.to_string().contains(says), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
}

/// If there is no memory for so many, an error reports that, and consumers that already wait go on. In a
/// process of its own, which gets no more memory.
#[test]
fn no_memory_for_instances() {
    alone("no_memory_for_instances", || {
        let (victim, first, second) = (Victim::load(), Seen::new(), Seen::new());
        let probe = probe(&victim, "add", first.session(), How::Jump);
        let call = |times: u64| (0..times).for_each(|n| assert_eq!(victim.function("add")(n, 1), n * 3 + 1));
        call(10);
        let pages = std::fs::read_to_string("/proc/self/statm").expect("readable");
        let pages: u64 = pages.split(' ').next().and_then(|size| size.parse().ok()).expect("a number");
        let (now, most) = (pages * 4096 + (2 << 20), libc::RLIM_INFINITY);
        let limit = |now| {
            let limit = libc::rlimit { rlim_cur: now, rlim_max: most };
            // SAFETY: a limit of this process, which ends with the test.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        };
        // Uses up the allocator's reserves, except a megabyte for small needs.
        const PIECE: usize = 1 << 16;
        let mut taken = Vec::with_capacity(1 << 16);
        limit(now);
        // SAFETY: memory that is never used; the last pieces are freed.
        unsafe {
            taken.extend(std::iter::repeat_with(|| libc::malloc(PIECE)).take_while(|piece| !piece.is_null()));
            taken.drain(taken.len().saturating_sub(16)..).for_each(|piece| libc::free(piece));
        }
        let wanted = || second.session().maxactive(32_768);
        let error = register(&victim.path, victim.offset("add"), wanted()).expect_err("refused");
        assert!(error.to_string().contains("no memory for a pool of "), "{error}");
        assert_eq!((matches!(error, Error::Instances { .. }), error.errno()), (true, libc::ENOMEM));
        call(10);
        limit(most);
        let again = register(&victim.path, victim.offset("add"), wanted()).expect("registered");
        call(10);
        first.expect(30, 30);
        second.expect(10, 10);
        assert_eq!((probe.counts().missed(), again.counts().missed()), (0, 0));
    });
}

// setjmp and longjmp, as small as possible.
std::arch::global_asm!(
    ".globl trapline_inside_catch",
    "trapline_inside_catch:", // (jump: *mut u64, f: fn(data), data)
    "push rbp; push rbx; push r12; push r13; push r14; push r15",
    "sub rsp, 8",
    "mov [rdi], rsp",
    "mov rax, rsi",
    "mov rdi, rdx",
    "call rax",
    "0: add rsp, 8",
    "pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp",
    "ret",
    ".globl trapline_inside_throw",
    "trapline_inside_throw:", // (jump: *mut u64) -> !
    "mov rsp, [rdi]",
    "jmp 0b",
);
unsafe extern "C" {
    fn trapline_inside_catch(jump: *mut u64, f: extern "C" fn(*const c_void), data: *const c_void);
    fn trapline_inside_throw(jump: *mut u64) -> !;
}
thread_local!(static JUMP: Cell<u64> = const { Cell::new(0) });

extern "C" fn throws(_: u64) -> u64 {
    // SAFETY: `thrown` is below, and no frame between holds anything.
    JUMP.with(|jump| unsafe { trapline_inside_throw(jump.as_ptr()) })
}

/// A call that is left by `longjmp`.
fn thrown(with: extern "C" fn(Called, u64) -> u64) {
    extern "C" fn call(with: *const c_void) {
        // SAFETY: the pointer that `thrown` passes.
        let with: extern "C" fn(Called, u64) -> u64 = unsafe { std::mem::transmute(with) };
        with(throws, 1);
    }
    // SAFETY: the frames that are left hold nothing.
    JUMP.with(|jump| unsafe { trapline_inside_catch(jump.as_ptr(), call, with as *const c_void) });
}

#[inline(never)]
fn deeper(times: u32, f: &dyn Fn()) {
    let room = std::hint::black_box([0_u8; 400]);
    if times > 0 {
        deeper(times - 1, f)
    } else {
        f()
    }
    std::hint::black_box(room);
}

#[test]
fn longjmp_leaves_nothing_behind() {
    let run = |victim: &Victim| {
        for depth in (0..500).rev() {
            deeper(depth, &|| thrown(with(victim)));
            assert_eq!(with(victim)(same, 4), 5);
        }
    };
    every_way(|victim, how| {
        let seen = Seen::new();
        let probe = probe(victim, "with", seen.session().maxactive(8), how);
        run(victim);
        seen.expect(1000, 500);
        assert_eq!(probe.counts(), Tally { hits: 1000, ..Tally::default() });
    });
    if let Some(returns) = of_the_kernel("with", run) {
        assert_eq!(returns, 500);
    }
}

#[test]
fn threads_that_end_in_a_call() {
    extern "C" fn ends(_: u64) -> u64 {
        // SAFETY: ends this thread as the kernel sees it; its stack stays.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        0
    }
    let run = |victim: &Victim, seen: &dyn Fn() -> u64| {
        let with = with(victim);
        for n in 1..=30 {
            std::thread::spawn(move || with(ends, 0));
            while seen() < n {
                std::thread::yield_now();
            }
        }
    };
    every_way(|victim, how| {
        let seen = Seen::new();
        let probe = probe(victim, "with", seen.session().maxactive(4), how);
        // The session does not see threads that found no instance, but they are counted.
        run(victim, &|| probe.counts().hits + probe.counts().missed());
        // All threads have ended, or are about to. Then this thread gets the instances that they left.
        while seen.returns.load(SeqCst) == 0 {
            assert_eq!(with(victim)(same, 4), 5);
            std::thread::yield_now();
        }
        assert_eq!(seen.wrong.load(SeqCst), 0);
    });
}

/// A call that blocks does not delay unregistering; its instance is free again when the thread returns.
#[test]
fn unregistered_while_a_call_is_in_flight() {
    static GATE: Barrier = Barrier::new(2);
    extern "C" fn blocks(x: u64) -> u64 {
        GATE.wait();
        GATE.wait();
        x
    }
    every_way(|victim, how| {
        let (seen, other, with) = (Seen::new(), Seen::new(), with(victim));
        let first = probe(victim, "with", seen.session().maxactive(1), how);
        std::thread::scope(|scope| {
            let blocked = scope.spawn(move || (with(blocks, 4), (0..50).map(|n| with(same, n)).sum::<u64>()));
            GATE.wait();
            first.unregister().expect("at once");
            let second = probe(victim, "with", other.session(), how);
            GATE.wait();
            assert_eq!(blocked.join().expect("it returns"), (5, (1..=50).sum()));
            assert_eq!(second.counts().missed(), 0);
        });
        seen.expect(1, 0);
        other.expect(50, 50);
    });
}
