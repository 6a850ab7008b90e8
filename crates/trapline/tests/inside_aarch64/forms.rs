//! How a site is reached, and what happens when that changes.
#![allow(unsafe_code, reason = "handlers that change registers, masks and actions of signals")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use trapline::inside::{Consumer, Error, Hit, Returns, Tactic, Verdict, register_all};

use crate::victim::{Victim, counting, counting_returns, fault, in_child, word};

#[test]
fn a_site_is_a_jump_unless_a_trap_is_asked_for_or_needed() {
    let victim = Victim::load();
    let at = victim.offset("loops") + 8;
    let first = victim.register_at(at, counting(word()));
    assert_eq!(first.sites(), [Tactic::Jump]);
    // Inside a function, a moved program counter takes a trap, since no register is free.
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

/// In both orders, and back, with a thread that calls all the time: each call is right, and after a change
/// each is seen.
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

/// Stubs are used again: the patch is the same as the first time, so nothing new was made.
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
        // Rounds with other words than the first one, and where they differ.
        let differs = patched.iter().map(|one| one.iter().zip(&patched[0]).position(|(a, b)| a != b));
        assert_eq!(differs.collect::<Vec<_>>(), [None; 5]);
        assert!(patched[0] != [&plain[..], &plain].concat());
        assert_eq!(count.load(Relaxed), 10);
    });
}

/// Nothing traps, so a thread may block any signal.
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

/// The program's handler sees the fault of a displaced word at the word's own address, and returns to it.
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
    /// glibc's jmp_buf, without the signal mask: 312 bytes.
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
    // The thread ends after it. Then it can be proven that its hit was left, even here, where it cannot be
    // seen where a thread is blocked.
    std::thread::spawn(move || leave(add)).join().expect("no panic");
    assert_eq!((count.load(Relaxed), probe.counts().hits), (1, 1));
    probe.unregister().expect("unregistered");
    assert_eq!(add(1, 1), 4);
}

/// Whether the system reports the page as guarded: an indirect branch to it must land on a landing pad.
fn is_guarded(page: u64) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let heads = smaps.lines().scan(false, |here, line| {
        let range = line.split_once(' ').and_then(|(head, _)| head.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
            *here = (start..end).contains(&page);
        }
        Some((*here, line))
    });
    let mut flags = heads.filter(|(here, line)| *here && line.starts_with("VmFlags:"));
    flags.any(|(_, line)| line.split_whitespace().any(|flag| flag == "bt"))
}

/// A landing pad takes a trap, on which an indirect branch may land, as it may not on a branch; the word
/// after it takes a jump. What was signed is authenticated. The page stays guarded.
#[test]
fn guarded_pages_stay_what_they_are() {
    let victim = Victim::load();
    let page = victim.address("pads");
    let protection = libc::PROT_READ | libc::PROT_EXEC | 0x10;
    // SAFETY: a page of functions that begin with pads, whole.
    unsafe { libc::mprotect(page as *mut libc::c_void, 4096, protection) };
    if !is_guarded(page) {
        println!("SKIP: no guarded pages here");
        return;
    }
    for name in ["pads", "pads_signed"] {
        let (function, at) = (victim.function(name), victim.offset(name));
        assert_eq!(function(6, 7), 13);
        let pad = victim.register_at(at, counting(word()));
        let behind = victim.register_at(at + 4, counting(word()));
        let returns = victim.register_at(at, counting_returns(word()));
        assert_eq!((pad.sites(), behind.sites()), (vec![Tactic::Trap], vec![Tactic::Jump]), "{name}");
        for round in 0..100 {
            assert_eq!(function(round, 7), round + 7, "{name}");
        }
        assert_eq!(
            (pad.counts().hits, behind.counts().hits, returns.counts().hits),
            (100, 100, 100),
            "{name}"
        );
        assert!(is_guarded(page), "{name}");
        // A return to a trampoline, and from there, needs no landing pad.
        let trampoline = victim.register_at(at, counting_returns(word()).returns_by(Returns::Stack));
        assert_eq!(returns.returns_by(), Some(Returns::Stack));
        assert_eq!((0..100).map(|round| function(round, 7)).sum::<u64>(), 5650, "{name}");
        assert_eq!((trampoline.counts().hits, returns.counts().missed()), (200, 0), "{name}");
        drop((pad, behind, returns, trampoline));
        assert_eq!(function(6, 7), 13);
        assert!(is_guarded(page), "{name}");
    }
}
