//! Registering and unregistering: while libraries come and go, in forked children, while handlers run.
#![allow(unsafe_code, reason = "threads, mappings and functions of ours, by libc's own calls")]

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

use trapline::inside::{Consumer, Error, Tactic, Verdict, find, noticed, register, register_all, rescan};

use crate::victim::{Victim, counting, in_child, word};

#[test]
fn a_file_that_no_process_maps_yet_takes_hold_when_it_is_mapped() {
    let path = Victim::file();
    let offset = Victim::load_file(path.clone()).offset("born");
    let count = word();
    let probe = register(&path, offset, counting(count)).expect("registered");
    assert!(probe.sites().is_empty() && noticed().notice);
    for round in 1..=3 {
        let (late, had) = (noticed().impatient, count.load(Relaxed));
        let victim = Victim::load_file(path.clone());
        if noticed().impatient == late {
            assert_eq!(
                (count.load(Relaxed) - had, probe.sites()),
                (1, vec![Tactic::Jump]),
                "the constructor's call, {round}"
            );
        }
        assert_eq!(victim.function("born")(2, 0), 11);
        if noticed().impatient == late {
            assert_eq!(count.load(Relaxed) - had, 2, "{round}");
        }
        drop(victim);
        if noticed().impatient == late {
            assert!(probe.sites().is_empty(), "unmapped, {round}");
        }
    }
}

/// By a call that is not noticed, so the next look finds the mapping.
#[test]
fn another_mapping_of_the_file_is_probed_too() {
    Victim::in_both_forms(|victim| {
        let (count, offset) = (word(), victim.offset("far_a"));
        let probe = victim.register("far_a", counting(count));
        let file = std::fs::File::open(&victim.path).expect("the library");
        let prot = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a new mapping of code that needs nothing around it; it is unmapped when no thread calls it
        // any more.
        unsafe {
            let (fd, len) = (file.as_raw_fd(), offset as usize + 4096);
            let at = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let other: extern "C" fn(u64, u64) -> u64 = std::mem::transmute(at.byte_add(offset as usize));
            rescan().expect("a look");
            assert_eq!((other(1, 2), count.load(Relaxed), probe.sites().len()), (3, 1, 2));
            assert_eq!((victim.function("far_a")(1, 2), count.load(Relaxed)), (3, 2));
            assert_eq!(libc::munmap(at, len), 0);
        }
        rescan().expect("a look");
        assert_eq!(probe.sites().len(), 1);
    });
}

#[test]
fn functions_of_the_c_library_are_probed_as_any_others() {
    let (libc, offset) = find("libc", "getppid").expect("found");
    let count = word();
    let probe = register(libc, offset, counting(count)).expect("registered");
    // SAFETY: a number.
    let parent = || unsafe { libc::getppid() };
    let before = parent();
    assert_eq!((parent(), count.load(Relaxed)), (before, 2));
    drop(probe);
    assert_eq!((parent(), count.load(Relaxed)), (before, 2));
}

#[test]
fn a_batch_is_registered_whole_or_not_at_all() {
    Victim::in_both_forms(|victim| {
        let (before, count) = (victim.text(), word());
        let at = |name: &str, consumer| victim.request(victim.offset(name), consumer);
        let error = register_all([
            at("add", counting(count)),
            at("tail", Consumer::returns(|_| {})),
            at("moves", counting(count)),
        ])
        .expect_err("a tail call");
        assert!(matches!(error, Error::Refused { offset, .. } if offset == victim.offset("tail")), "{error}");
        assert!(victim.text() == before);
        assert_eq!((victim.function("add")(1, 1), count.load(Relaxed)), (4, 0));
    });
}

#[test]
fn a_forked_child_is_probed_and_registers_and_unregisters_by_itself() {
    Victim::in_both_forms(|victim| {
        let (before, count, add, moves) =
            (victim.text(), word(), victim.function("add"), victim.function("moves"));
        let mut probe = Some(victim.register("add", counting(count)));
        let status = in_child(|| {
            assert_eq!((add(1, 1), count.load(Relaxed)), (4, 1));
            let own = word();
            let second = victim.register("moves", counting(own));
            assert_eq!((moves(6, 7), own.load(Relaxed)), (42, 1));
            drop(second);
            drop(probe.take());
            assert_eq!((add(1, 1), moves(6, 7), count.load(Relaxed)), (4, 42, 1));
            assert!(victim.text() == before);
            0
        });
        assert_eq!(status, 0);
        assert_eq!((add(1, 1), count.load(Relaxed), moves(6, 7)), (4, 1, 42));
    });
}

#[test]
fn unregistering_waits_for_handlers_that_run() {
    Victim::in_both_forms(|victim| {
        let add = victim.function("add");
        static INSIDE: AtomicBool = AtomicBool::new(false);
        static GO_ON: AtomicBool = AtomicBool::new(false);
        static OVER: AtomicBool = AtomicBool::new(false);
        [&INSIDE, &GO_ON, &OVER].into_iter().for_each(|one| one.store(false, SeqCst));
        let consumer = Consumer::entry(|_| {
            INSIDE.store(true, SeqCst);
            while !GO_ON.load(SeqCst) {
                std::hint::spin_loop();
            }
            OVER.store(true, SeqCst);
            Verdict::Continue
        });
        let probe = victim.register("add", consumer);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(add(1, 1), 4));
            while !INSIDE.load(SeqCst) {
                std::thread::yield_now();
            }
            let waiter = scope.spawn(|| {
                probe.unregister().expect("unregistered");
                assert!(OVER.load(SeqCst), "returned while the handler ran");
            });
            // This does not prove waiting, the assertion above does; it gives a wrong implementation the time
            // to show.
            std::thread::sleep(std::time::Duration::from_millis(20));
            GO_ON.store(true, SeqCst);
            waiter.join().expect("no panic");
        });
    });
}

#[test]
fn a_handler_may_not_register() {
    let victim = Victim::load();
    let (path, offset, seen) = (victim.path.clone(), victim.offset("add"), word());
    let consumer = Consumer::entry(move |_| {
        let error = register(&path, offset, counting(seen)).expect_err("inside");
        seen.store(u64::from(matches!(error, Error::InsideHandler)), Relaxed);
        Verdict::Continue
    });
    let _probe = victim.register("add", consumer);
    assert_eq!((victim.function("add")(1, 1), seen.load(Relaxed)), (4, 1));
}

#[test]
fn a_thread_that_ends_in_a_handler_delays_no_other() {
    extern "C" fn run(add: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the function's address.
        let add: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(add) };
        add(1, 1);
        unreachable!("the handler ends the thread")
    }
    let victim = Victim::load();
    let consumer = Consumer::entry(|_| {
        // SAFETY: the thread is made below for this, and holds nothing.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        Verdict::Continue
    });
    let probe = victim.register("add", consumer);
    let (mut thread, add) = (0, victim.function("add") as *mut libc::c_void);
    // SAFETY: plain pthread calls; the thread is joined.
    unsafe {
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), run, add), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
    probe.unregister().expect("unregistered");
    // The C library gives its stack and its thread pointer to the next thread; the hits there are its own.
    let (count, probe) = (word(), victim.register("moves", counting(word())));
    let moves = victim.function("moves");
    std::thread::spawn(move || count.store(moves(6, 7), Relaxed)).join().expect("no panic");
    assert_eq!((count.load(Relaxed), probe.counts().hits, probe.counts().missed()), (42, 1, 0));
}

#[test]
fn a_semaphore_is_raised_while_its_site_is_active() {
    Victim::in_both_forms(|victim| {
        let at = victim.address("semaphore") as *const u16;
        // SAFETY: a word of the library's data.
        let value = || unsafe { at.read_volatile() };
        let request = victim.request(victim.offset("add"), counting(word()));
        let probes =
            register_all([request.semaphore(victim.offset_of_data("semaphore"))]).expect("registered");
        assert_eq!(value(), 1);
        drop(probes);
        assert_eq!(value(), 0);
    });
}
