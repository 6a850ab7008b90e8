//! Calls in flight: how many there may be, and what happens to those that never return.

use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use trapline_runtime::consumer::Verdict;
use trapline_runtime::engine::Tally;
use trapline_runtime::pool::{BadPoolSize, BadRegion};
use trapline_runtime::probe::Probe;

use crate::support::{
    ACTIVE, CPUS, Kind, Log, add, calling, cannot_read, engine, enter, leave, log, logging, probe, regs,
    remove, taken, writer,
};

fn session(log: &'static Log, probe: &Probe) {
    add(probe, logging(log, 's', Kind::Session, Verdict::CONTINUE));
}

/// Number of instances that are free now, found by calls that then return.
fn free(probe: &Probe, log: &Log) -> u64 {
    let before = probe.counts().hits;
    let sps: Vec<u64> = (0..200).map(|n| 0x10_0000 - n * 16).collect();
    sps.iter().for_each(|&sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
    let free = probe.counts().hits - before;
    sps.iter().for_each(|&sp| assert_eq!(leave(probe, &mut regs(sp)), 0));
    taken(log);
    free
}

/// There are no per-CPU magazines here, so there is exactly this number.
#[test]
fn an_empty_pool_is_missed_and_counted() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 0);
    session(log, probe);
    assert_eq!(free(probe, log), ACTIVE.into());
    assert_eq!(
        probe.counts(),
        Tally { hits: ACTIVE.into(), empty: 200 - u64::from(ACTIVE), ..Tally::default() }
    );
    assert_eq!(probe.counts().missed(), 184);
    assert_eq!(free(probe, log), ACTIVE.into(), "all came back");
}

/// As in the kernel, which calls entry handlers for calls that it does not follow.
#[test]
fn an_empty_pool_leaves_entry_handlers_alone() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 1);
    session(log, probe);
    add(probe, logging(log, 'e', Kind::Entry, Verdict::REMOVE));
    (0..u64::from(ACTIVE)).for_each(|n| assert_eq!(enter(probe, &mut regs(0x9000 - n * 16)), 0));
    taken(log);
    enter(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [('e', "entry", 0)]);
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [], "the session was not called at the entry, nor is it at the return");
    assert!(!probe.take_removal(), "one that was not asked has not agreed");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let probe = probe(engine(4), 2);
    let writer = writer(probe.engine());
    let provide = |maxactive| probe.instances().provide(&writer, Some(maxactive), CPUS, false);
    assert_eq!(provide(0), Err(BadRegion::PoolSize(BadPoolSize::MaxActive(0))));
    assert_eq!(provide(1 << 20), Err(BadRegion::PoolSize(BadPoolSize::MaxActive(1 << 20))));
    assert_eq!(probe.instances().bytes(), 0);
    provide(10).expect("memory");
    let bytes = probe.instances().bytes();
    provide(7).expect("there already");
    assert_eq!(probe.instances().bytes(), bytes);
}

/// Calls that are in flight when a larger pool is added return to their own pool.
#[test]
fn a_larger_pool_forgets_no_call() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 3);
    session(log, probe);
    (0..8_u64).for_each(|n| assert_eq!(enter(probe, &mut regs(0x9000 - n * 16)), 0));
    probe.instances().provide(&writer(engine), Some(100), CPUS, false).expect("memory");
    taken(log);
    (0..8_u64).for_each(|n| assert_eq!(leave(probe, &mut regs(0x9000 - n * 16)), 0));
    assert_eq!(taken(log).len(), 8);
    assert_eq!(free(probe, log), 100);
}

/// Calls with stack pointers that share a hint find their own instances.
#[test]
fn hints_that_are_wrong_mislead_no_call() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 4);
    session(log, probe);
    // More calls than there are hints (64), ended in the order in which they began.
    let sps: Vec<u64> = (0..u64::from(ACTIVE)).map(|n| 0x90_0000 - n * 0x1000).collect();
    for _ in 0..3 {
        sps.iter().for_each(|&sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
        sps.iter().for_each(|&sp| assert_eq!(leave(probe, &mut regs(sp)), 0));
        let events = taken(log);
        let reported = events.iter().filter(|event| **event == ('s', "return", u64::from(b's'))).count();
        assert_eq!(reported, sps.len());
    }
}

/// A stack goes on wherever it is resumed: the exit depends neither on the thread of the entry nor on the
/// hint left there.
#[test]
fn a_call_may_end_in_another_thread() {
    let (engine, log) = (engine(32), log());
    let [other, probe] = [5, 7].map(|number| probe(engine, number));
    [other, probe].into_iter().for_each(|probe| session(log, probe));
    for others in [0, 500] {
        let sps: Vec<u64> = (0..u64::from(ACTIVE)).map(|n| 0x9000 - n * 16).collect();
        // The entering thread exists all the time; otherwise this thread might have its thread pointer.
        let gate = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sps.iter().for_each(|&sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
                gate.wait();
                gate.wait();
            });
            gate.wait();
            // Another probe's calls displace their hints.
            for sp in (0..others).map(|n| 0x20_0000 + n * 16) {
                assert_eq!((enter(other, &mut regs(sp)), leave(other, &mut regs(sp))), (0, 0));
            }
            taken(log);
            sps.iter().rev().for_each(|&sp| assert_eq!(leave(probe, &mut regs(sp)), 0));
            gate.wait();
        });
        assert_eq!(taken(log), [('s', "return", u64::from(b's')); ACTIVE as usize], "{others}");
        assert_eq!(free(probe, log), ACTIVE.into(), "all came back");
    }
}

/// Two sessions in one call: each finds its own cookie, whichever is older; one that was added since finds
/// none.
#[test]
fn a_cookie_is_for_the_session_that_left_it() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 6);
    let named = |name| add(probe, logging(log, name, Kind::Session, Verdict::CONTINUE));
    let first = named('a');
    named('b');
    enter(probe, &mut regs(0x7000));
    taken(log);
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log), ['b', 'a'].map(|name| (name, "return", u64::from(name as u8))));
    enter(probe, &mut regs(0x7000));
    remove(probe, first);
    named('c');
    taken(log);
    leave(probe, &mut regs(0x7000));
    assert_eq!(taken(log), [('b', "return", u64::from(b'b'))]);
}

/// A call that was left comes again while no instance is free and other calls have its hint.
#[test]
fn what_has_the_same_key_is_had_again_without_a_hint() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 6);
    session(log, probe);
    (0..u64::from(ACTIVE)).for_each(|n| assert_eq!(enter(probe, &mut regs(0x9000 - n * 16)), 0));
    // Each leaves a hint that no consumer waits for it.
    (0..500).for_each(|n| assert_eq!(enter(probe, &mut regs(0x20_0000 + n * 16)), 0));
    let all = Tally { hits: ACTIVE.into(), empty: 500, ..Tally::default() };
    assert_eq!(probe.counts(), all);
    assert_eq!(enter(probe, &mut regs(0x9000)), 0);
    assert_eq!(probe.counts(), Tally { hits: all.hits + 1, ..all });
}

/// The call of a session that declines holds nothing while the function runs.
#[test]
fn a_call_that_no_consumer_waits_for_holds_nothing() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 5);
    add(probe, logging(log, 'd', Kind::Session, Verdict::IGNORE_RETURN));
    assert_eq!(free(probe, log), 200);
    assert_eq!(probe.counts().missed(), 0);
}

/// Calls `f` deeper on this thread's stack, so that stack pointers are real.
#[inline(never)]
fn deeper(times: u32, f: &mut dyn FnMut(u64)) {
    let mark = std::hint::black_box(0_u64);
    f((&raw const mark) as u64 & !15);
    if times > 0 {
        deeper(times - 1, f);
    }
    std::hint::black_box(mark);
}

/// `longjmp` over probed frames: they lie below the stack pointer of the next call on that stack.
#[test]
fn what_longjmp_left_is_had_again() {
    if cannot_read() {
        return;
    }
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 6);
    session(log, probe);
    // These look like frames that are gone: they are deeper than this one.
    deeper(ACTIVE - 1, &mut |sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
    assert_eq!(probe.counts().hits, ACTIVE.into());
    let here = std::hint::black_box(0_u64);
    let sp = ((&raw const here) as u64 & !15) + 4096;
    // Going downwards, so that none of these is over.
    (0..100).rev().for_each(|n| assert_eq!(enter(probe, &mut regs(sp + n * 16)), 0));
    let tally = probe.counts();
    assert_eq!((tally.hits, tally.empty), (2 * u64::from(ACTIVE), 100 - u64::from(ACTIVE)), "each once");
}

/// Frames of other stacks may lie below, and go on.
#[test]
fn frames_of_another_stack_are_left_alone() {
    let (engine, log) = (engine(4), log());
    let probe = probe(engine, 7);
    session(log, probe);
    const LEN: usize = 1 << 16;
    // SAFETY: a new mapping, with a page in its middle that cannot be read, like the guard between two
    // stacks.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(std::ptr::null_mut(), LEN, 3, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(base.byte_add(LEN / 2), 4096, libc::PROT_NONE), 0);
        base as u64
    };
    let (low, high) = (base + LEN as u64 / 2 - 0x400, base + LEN as u64 - 0x400);
    (0..u64::from(ACTIVE)).for_each(|n| assert_eq!(enter(probe, &mut regs(low - n * 16)), 0));
    assert_eq!(enter(probe, &mut regs(high)), 0);
    assert_eq!(probe.counts().empty, 1);
    taken(log);
    (0..u64::from(ACTIVE)).for_each(|n| assert_eq!(leave(probe, &mut regs(low - n * 16)), 0));
    assert_eq!(taken(log).len(), ACTIVE as usize);
}

/// Threads that end inside the function.
#[test]
fn what_ended_threads_left_is_had_again() {
    if cannot_read() {
        return;
    }
    let (engine, log) = (engine(32), log());
    let probe = probe(engine, 0);
    session(log, probe);
    let all = Barrier::new(ACTIVE as usize);
    std::thread::scope(|scope| {
        for _ in 0..ACTIVE {
            scope.spawn(|| {
                deeper(0, &mut |sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
                all.wait();
            });
        }
    });
    assert_eq!(probe.counts().hits, ACTIVE.into());
    let mut reported = 0;
    deeper(0, &mut |sp| {
        for _ in 0..40 {
            enter(probe, &mut regs(sp));
            leave(probe, &mut regs(sp));
            reported += 1;
        }
    });
    assert_eq!((reported, probe.counts().empty), (40, 0));
}

/// Running threads keep their instances, however often they are searched.
#[test]
fn running_threads_keep_theirs() {
    let (engine, log) = (engine(32), log());
    let probe = probe(engine, 1);
    session(log, probe);
    let all = Barrier::new(ACTIVE as usize + 1);
    std::thread::scope(|scope| {
        for _ in 0..ACTIVE {
            scope.spawn(|| {
                deeper(0, &mut |sp| {
                    assert_eq!(enter(probe, &mut regs(sp)), 0);
                    all.wait();
                    all.wait();
                    assert_eq!(leave(probe, &mut regs(sp)), 0);
                });
            });
        }
        all.wait();
        (0..33).for_each(|n| assert_eq!(enter(probe, &mut regs(0x7000 + n * 16)), 0));
        all.wait();
    });
    assert_eq!(probe.counts().empty, 33);
    let reported = taken(log).iter().filter(|event| event.1 == "return").count();
    assert_eq!(reported, ACTIVE as usize);
}

/// The child has one thread; instances that the other threads held there would never come back by themselves.
#[test]
fn a_forked_child_has_what_its_threads_held() {
    if cannot_read() {
        return;
    }
    let (engine, log) = (engine(32), log());
    let probe = probe(engine, 2);
    session(log, probe);
    let all = Barrier::new(ACTIVE as usize);
    let mut status = -1;
    std::thread::scope(|scope| {
        for _ in 1..ACTIVE {
            scope.spawn(|| {
                deeper(0, &mut |sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
                all.wait();
                all.wait();
            });
        }
        deeper(0, &mut |own| {
            assert_eq!(enter(probe, &mut regs(own)), 0);
            all.wait();
            // SAFETY: the child calls only `enter` and `leave`, which allocate and lock nothing except the
            // log, which is free.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let hits = probe.counts().hits;
                (1..9).for_each(|n| assert_eq!(enter(probe, &mut regs(0x7000 + n * 16)), 0));
                let had = probe.counts().hits - hits == 8;
                log.lock().expect("free").clear();
                leave(probe, &mut regs(own));
                let reported = log.lock().expect("free").len() == 1;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!had) | i32::from(!reported) << 1) };
            }
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            all.wait();
        });
    });
    assert_eq!(status, 0);
}

static JUMPED: AtomicU64 = AtomicU64::new(0);

/// A handler that leaves its hit for good, as `longjmp` does; here its thread ends.
#[test]
fn a_handler_that_leaves_holds_no_instance() {
    unsafe extern "C" fn end(_: *mut c_void, _: *mut trapline_runtime::consumer::Hit) -> Verdict {
        JUMPED.fetch_add(1, SeqCst);
        // SAFETY: ends this thread, without the library's knowledge.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        Verdict::CONTINUE
    }
    if cannot_read() {
        return;
    }
    let (engine, log) = (engine(64), log());
    let probe = probe(engine, 3);
    session(log, probe);
    let id = add(probe, calling(end, std::ptr::null_mut()));
    let address = probe.address();
    for n in 1..=u64::from(ACTIVE) {
        // Not joined: it ends without the library's knowledge, so its stack stays, and its control block
        // contains 0.
        std::thread::spawn(move || {
            // SAFETY: a leaked probe.
            let probe = unsafe { &*(address as *const Probe) };
            deeper(0, &mut |sp| assert_eq!(enter(probe, &mut regs(sp)), 0));
        });
        while JUMPED.load(SeqCst) < n {
            std::thread::yield_now();
        }
    }
    let mut writer = writer(engine);
    assert!(probe.consumers().remove(&mut writer, id));
    let gone =
        || (0..40_u64).any(|n| enter(probe, &mut regs(0x7000 + n * 16)) == 0 && probe.counts().hits > 16);
    while !gone() {
        std::thread::yield_now();
    }
}
