//! Code with all address space within its reach taken, except a few single pages: stubs and copies are in
//! those.
#![allow(unsafe_code, reason = "a mapping of the library, and functions that are called in it")]

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline::inside::{Error, Tactic, register_all, rescan};

use crate::crowd::crowd;
use crate::victim::{Victim, counting, counting_returns, word};

/// Another mapping of the library, far from everything else. It stays mapped, and so does what is taken
/// around it.
struct Crowded<'a> {
    victim: &'a Victim,
    base: u64,
}

impl<'a> Crowded<'a> {
    /// A mapping with so many single pages free around it.
    fn new(victim: &'a Victim, pages: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0x10_0000_0000);
        let (base, len) = (NEXT.fetch_add(1 << 30, Relaxed), victim.offset("pads") as usize + 4096);
        let file = std::fs::File::open(&victim.path).expect("the library");
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: a new mapping where none was.
        let at = unsafe { libc::mmap(base as *mut _, len, prot, flags, file.as_raw_fd(), 0) };
        assert_eq!(at as u64, base, "{}", std::io::Error::last_os_error());
        crowd(base, pages);
        rescan().expect("a look");
        Self { victim, base }
    }
    fn function(&self, name: &str) -> extern "C" fn(u64, u64) -> u64 {
        // SAFETY: functions that need nothing around them.
        unsafe { std::mem::transmute(self.base + self.victim.offset(name)) }
    }
}

#[test]
fn a_page_is_room_enough() {
    Victim::in_both_forms(|victim| {
        let crowded = Crowded::new(victim, 1);
        let all =
            [("pushes", 13), ("signs", 13), ("moves", 42), ("loads", 113), ("pages", 13), ("far_a", 13)];
        for (name, right) in all {
            let (count, calls) = (word(), [victim.function(name), crowded.function(name)]);
            let probes = [counting(count), counting_returns(count)].map(|one| victim.register(name, one));
            for probe in &probes {
                assert_eq!(probe.sites(), [victim.form; 2], "{name}");
            }
            assert_eq!(
                calls.map(|call| (call(6, 7), count.load(Relaxed))),
                [(right, 2), (right, 4)],
                "{name}"
            );
            drop(probes);
            assert_eq!(calls.map(|call| (call(6, 7), count.load(Relaxed))), [(right, 4); 2], "{name}");
        }
    });
}

/// Each page has 63 stubs of one word.
#[test]
fn a_second_page_is_had_when_the_first_is_full() {
    let victim = Victim::load();
    let _crowded = Crowded::new(&victim, 2);
    let words = (0..70).map(|nth| victim.request(victim.offset("around") + 4 * nth, counting(word())));
    for (nth, probe) in register_all(words).expect("registered").iter().enumerate() {
        assert_eq!(probe.sites(), [Tactic::Jump; 2], "{nth}");
    }
}

#[test]
fn without_a_page_there_are_traps_for_what_is_done_without_a_copy() {
    let victim = Victim::load();
    let crowded = Crowded::new(&victim, 0);
    let error =
        register_all([victim.request(victim.offset("moves"), counting(word()))]).expect_err("no room");
    assert!(matches!(error, Error::Refused { kind: "no-room", .. }), "{error}");
    let (count, pushes) = (word(), crowded.function("pushes"));
    let probe = victim.register("pushes", counting(count));
    let mut sites = probe.sites();
    sites.sort_unstable_by_key(|tactic| *tactic == Tactic::Trap);
    assert_eq!(sites, [Tactic::Jump, Tactic::Trap]);
    assert_eq!((pushes(6, 7), count.load(Relaxed)), (13, 1));
    drop(probe);
    assert_eq!((pushes(6, 7), crowded.function("moves")(6, 7), count.load(Relaxed)), (13, 42, 1));
}
