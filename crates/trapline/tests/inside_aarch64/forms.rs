//! Which form a site has, and what becomes of it when that changes.
#![allow(unsafe_code, reason = "handlers that change registers, masks and actions of signals")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Error, Hit, Tactic, Verdict, register_all};

use crate::victim::{Victim, counting, counting_returns, fault, in_child, word};

#[test]
fn a_site_is_a_jump_unless_a_trap_is_asked_for_or_needed() {
    let victim = Victim::load();
    let at = victim.offset("loops") + 8;
    let first = victim.register_at(at, counting(word()));
    assert_eq!(first.sites(), [Tactic::Jump]);
    // Inside a function a moved program counter takes a trap: no register is free.
    let behind = victim.address("loops") + 12;
    let skips = Consumer::entry(move |hit| {
        // SAFETY: the word only adds to x0.
        unsafe { hit.regs_mut() }.pc = behind;
        Verdict::Continue
    });
    let second = victim.register_at(at, skips.moves_ip());
    assert_eq!((first.sites(), second.sites()), (vec![Tactic::Trap], vec![Tactic::Trap]));
    assert_eq!((victim.function("loops")(1, 4), first.counts().hits), (1 + 4 * 5, 4));
    drop(second);
    assert_eq!((victim.function("loops")(1, 4), first.counts().hits), (1 + 4 * 8, 8));
    drop(first);
    assert_eq!(victim.function("loops")(1, 4), 1 + 4 * 8);
}

/// Both ways about, and back, with a thread that calls all the time: each call is right, and behind a change each is seen.
#[test]
fn forms_change_under_threads_that_hit() {
    let victim = Victim::load();
    let (over, at) = (AtomicBool::new(false), victim.offset("loops") + 12);
    let loops = victim.function("loops");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    assert_eq!(loops(1, 3), 25);
                }
            });
        }
        let _over = crate::storm::Over(&over);
        for _ in 0..10 {
            let (jumps, traps) = (word(), word());
            let jump = victim.register_at(at, counting(jumps));
            let declares = counting(traps).moves_ip();
            let trap = victim.register_at(at, declares);
            let (before, seen) = (jumps.load(Relaxed), traps.load(Relaxed));
            assert_eq!(loops(1, 3), 25);
            assert!(jumps.load(Relaxed) >= before + 3 && traps.load(Relaxed) >= seen + 3);
            drop(trap);
            let before = jumps.load(Relaxed);
            assert_eq!(loops(1, 3), 25);
            assert!(jumps.load(Relaxed) >= before + 3);
            drop(jump);
        }
    });
}

/// Stubs serve again: what stands there is the same as the first time, so nothing new was made.
#[test]
fn what_is_registered_again_finds_its_stubs() {
    Victim::in_both_forms(|victim| {
        let (count, pushes) = (word(), victim.function("pushes"));
        let plain = victim.text();
        let patched: Vec<Vec<u32>> = (0..5)
            .map(|_| {
                let first = victim.register("pushes", counting(count));
                let entry = victim.text();
                let both = victim.register("pushes", counting_returns(count));
                assert_eq!(pushes(6, 7), 13);
                let whole = victim.text();
                drop((first, both));
                assert!(victim.text() == plain);
                [entry, whole].concat()
            })
            .collect();
        // Rounds whose words differ from the first one's, each with where.
        let differs = patched.iter().map(|one| one.iter().zip(&patched[0]).position(|(a, b)| a != b));
        assert_eq!(differs.collect::<Vec<_>>(), [None; 5]);
        assert!(patched[0] != [&plain[..], &plain].concat());
        assert_eq!(count.load(Relaxed), 10);
    });
}

/// Nothing traps, so a thread may block what it likes.
#[test]
fn while_a_thread_blocks_traps_there_are_jumps() {
    let victim = Victim::load();
    let status = in_child(|| {
        // SAFETY: the calling thread's mask: all signals.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        let refused = register_all([victim.request(victim.offset("moves"), counting(word())).by_trap()]);
        let error = refused.expect_err("a trap would end the process");
        assert!(matches!(error, Error::Refused { kind: "needs-traps", .. }), "{error}");
        let count = word();
        let probes =
            [victim.register("add", counting(count)), victim.register("twice", counting_returns(count))];
        assert_eq!((victim.function("twice")(200, 0), count.load(Relaxed)), (801, 2));
        drop(probes);
        assert_eq!((victim.function("twice")(200, 0), count.load(Relaxed)), (801, 2));
        0
    });
    assert_eq!(status, 0);
}

/// The program's handler sees the fault of a displaced word where that stood, and comes back to it.
#[test]
fn a_displaced_word_that_faults_does_so_at_its_own_place() {
    Victim::in_both_forms(|victim| {
        let (count, fetches) = (word(), victim.function("fetches"));
        let probe = victim.register("fetches", counting(count));
        assert_eq!(probe.sites(), [victim.form]);
        let value: [u64; 2] = [0, 77];
        let bad = 0xFFF0_u64;
        let _one = fault::expected(victim.address("fetches"), value.as_ptr() as u64);
        assert_eq!((fetches(bad, 0), count.load(Relaxed)), (77, 1));
        assert_eq!(fault::seen(), [victim.address("fetches"), bad + 8]);
    });
}

#[test]
fn a_handler_may_leave_by_longjmp() {
    /// glibc's, with the mask not kept: 312 bytes.
    #[repr(C, align(16))]
    struct Place([u64; 64]);
    unsafe extern "C" {
        fn _setjmp(place: *mut Place) -> i32;
        fn longjmp(place: *mut Place, value: i32) -> !;
    }
    static PLACE: AtomicU64 = AtomicU64::new(0);
    let victim = Victim::load();
    let count = word();
    let leaves = Consumer::entry(move |_: &mut Hit<'_>| {
        count.fetch_add(1, Relaxed);
        // SAFETY: set a moment ago by the frame that called; nothing in between has anything to drop.
        unsafe { longjmp(PLACE.load(Relaxed) as *mut Place, 1) }
    });
    let probe = victim.register("add", leaves);
    let add = victim.function("add");
    #[inline(never)]
    fn leave(add: extern "C" fn(u64, u64) -> u64) {
        let mut place = Place([0; 64]);
        PLACE.store(&raw mut place as u64, Relaxed);
        // SAFETY: this frame is there when it is jumped to, and reads no variable behind that.
        unsafe {
            if _setjmp(&raw mut place) == 0 {
                add(1, 1);
            }
        }
    }
    // The thread ends behind it: that its hit was left can then be proven, here too, where nobody can see where a thread is blocked.
    std::thread::spawn(move || leave(add)).join().expect("no panic");
    assert_eq!((count.load(Relaxed), probe.counts().hits), (1, 1));
    probe.unregister().expect("unregistered");
    assert_eq!(add(1, 1), 4);
}
