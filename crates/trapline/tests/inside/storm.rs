//! Everything at once: threads that hit, register and unregister, map and unmap, load and unload, for a
//! chosen time. Every hit is accounted for, and what handlers use is freed as soon as unregistering returns.
//! Under AddressSanitizer (`cargo xtask storm`), a handler that runs too long, or an engine that reads freed
//! memory, fails the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use trapline::inside::{
    Consumer, Registration, Request, Verdict, register, register_all, rescan, unregister_all,
};
use trapline_tests::setting;

use crate::victim::Victim;

const HITTERS: usize = 8;
const REGISTRARS: usize = 2;
const MAPPERS: usize = 2;

/// What all threads share.
struct Storm {
    /// Library with functions that are hit all the time.
    steady: Victim,
    over: AtomicBool,
    calls: AtomicU64,
    registered: AtomicU64,
    mapped: AtomicU64,
    loaded: AtomicU64,
}

/// Counts into memory of its own, which is freed with it.
fn counting(into: &Arc<AtomicU64>) -> Consumer {
    let into = Arc::clone(into);
    Consumer::entry(move |_| {
        into.fetch_add(1, Relaxed);
        Verdict::Continue
    })
}

/// Counts returns, each of a call with an entry that was seen.
fn session(into: &Arc<AtomicU64>) -> Consumer {
    let into = Arc::clone(into);
    Consumer::session(
        |hit| {
            hit.set_cookie(hit.site());
            Verdict::Continue
        },
        move |hit| {
            assert_eq!(hit.cookie(), hit.site());
            into.fetch_add(1, Relaxed);
        },
    )
}

#[test]
fn a_storm() {
    let seconds = setting("TRAPLINE_STORM_SECONDS", 3);
    let zero = || AtomicU64::new(0);
    let storm = Storm {
        steady: Victim::load(),
        over: AtomicBool::new(false),
        calls: zero(),
        registered: zero(),
        mapped: zero(),
        loaded: zero(),
    };
    let before = storm.steady.text();
    let seen = [(); 2].map(|()| Arc::new(zero()));
    let always: Vec<Registration> = [("add", false), ("twice", true)]
        .iter()
        .zip(&seen)
        .map(|(&(name, by_trap), seen)| {
            let at = storm.steady.offset(name);
            let request = Request { by_trap, ..Request::new(&storm.steady.path, at, counting(seen)) };
            register_all([request]).expect("registered").remove(0)
        })
        .collect();
    std::thread::scope(|scope| {
        let storm = &storm;
        let mut threads = Vec::new();
        threads.extend((0..HITTERS).map(|_| scope.spawn(|| storm.hit())));
        threads.extend((0..REGISTRARS).map(|n| scope.spawn(move || storm.register(n))));
        threads.extend((0..MAPPERS).map(|n| scope.spawn(move || storm.map(n))));
        threads.push(scope.spawn(|| storm.load()));
        let end = Instant::now() + Duration::from_secs(seconds);
        // Until then, or until one of the threads has failed.
        while Instant::now() < end && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        storm.over.store(true, Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("one of the storm's threads"));
    });
    let count = |word: &AtomicU64| word.load(Relaxed);
    println!(
        "{} calls of each function, {} registrations, {} mappings, {} loads in {seconds} s",
        count(&storm.calls),
        count(&storm.registered),
        count(&storm.mapped),
        count(&storm.loaded)
    );
    for (probe, seen) in always.iter().zip(&seen) {
        let counts = probe.counts();
        assert_eq!((counts.hits, counts.missed()), (count(&storm.calls), 0));
        assert_eq!(count(seen), count(&storm.calls));
    }
    assert!(count(&storm.registered) > 0 && count(&storm.mapped) > 0 && count(&storm.loaded) > 0);
    unregister_all(always).expect("unregistered");
    assert_eq!(before, storm.steady.text(), "every byte is back");
}

impl Storm {
    fn goes_on(&self) -> bool {
        !self.over.load(Relaxed)
    }
    fn hit(&self) {
        let [add, twice, fib] = ["add", "twice", "fib"].map(|name| self.steady.function(name));
        let scale = self.steady.floats("scale");
        let mut calls = 0;
        while self.goes_on() {
            for n in 0..50 {
                assert_eq!(add(n, 2), n * 3 + 2);
                assert_eq!(twice(n, 0), n * 2);
                assert_eq!(fib(3, 0), 2);
                assert_eq!(scale(2.0, n as f64), 2.0 * n as f64 + 0.5);
                calls += 1;
            }
        }
        self.calls.fetch_add(calls, Relaxed);
    }
    /// Registers two more consumers where there is one all the time, and one of entries and returns where
    /// there is none.
    fn register(&self, number: usize) {
        let alone = ["fib", "scale"][number];
        let path = &self.steady.path;
        let mut rounds = 0;
        while self.goes_on() {
            let seen: [Arc<AtomicU64>; 4] = Default::default();
            let at = |name: &str| self.steady.offset(name);
            let last = if rounds % 2 == 0 { session(&seen[3]) } else { counting(&seen[2]) };
            let probes = register_all([
                Request::new(path, at("add"), counting(&seen[0])),
                Request::new(path, at("twice"), counting(&seen[1])),
                Request::new(path, at(alone), last),
            ])
            .expect("registered");
            // Other threads hit all of them all the time.
            let all = || seen.iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
            while self.goes_on() && all().iter().filter(|word| **word >= 3).count() < 3 {
                std::thread::yield_now();
            }
            unregister_all(probes).expect("unregistered");
            let then = all();
            std::thread::yield_now();
            assert_eq!(all(), then, "a handler ran after unregistering");
            assert!(seen.iter().all(|word| Arc::strong_count(word) == 1), "what it used is gone");
            self.registered.fetch_add(3, Relaxed);
            rounds += 1;
        }
    }
    /// Maps and unmaps what has nothing to do with probes, and files that a probe might be in.
    fn map(&self, number: usize) {
        use std::os::fd::AsRawFd as _;
        let file = std::fs::File::open(Victim::file()).expect("a library");
        let fd = file.as_raw_fd();
        let read_exec = libc::PROT_READ | libc::PROT_EXEC;
        let mut rounds = 0usize;
        while self.goes_on() {
            let len = 4096 * (1 + (rounds * 7 + number) % 16);
            let (prot, flags, fd) = match rounds % 3 {
                0 => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS, -1),
                1 => (read_exec, libc::MAP_ANONYMOUS, -1),
                _ => (read_exec, 0, fd),
            };
            // SAFETY: a mapping at an address of the kernel's choice. Its protection is changed, and it is
            // unmapped again; no other thread uses it.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | flags, fd, 0);
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(at, 4096, libc::PROT_READ), 0);
                assert_eq!(libc::munmap(at, len), 0);
            }
            self.mapped.fetch_add(1, Relaxed);
            rounds += 1;
            std::thread::yield_now();
        }
    }
    /// Loads a library that is probed whenever it is there.
    fn load(&self) {
        let path = Victim::file();
        let offset = Victim::load_file(path.clone()).offset("add");
        let seen = Arc::new(AtomicU64::new(0));
        let probe = register(&path, offset, counting(&seen)).expect("registered");
        let mut calls = 0;
        while self.goes_on() {
            let victim = Victim::load_file(path.clone());
            rescan().expect("a look");
            assert_eq!(probe.sites().len(), 1);
            let add = victim.function("add");
            for n in 0..20 {
                assert_eq!(add(n, 1), n * 3 + 1);
                calls += 1;
            }
            assert_eq!((seen.load(Relaxed), probe.counts().hits), (calls, calls));
            drop(victim);
            self.loaded.fetch_add(1, Relaxed);
        }
        probe.unregister().expect("unregistered");
        assert_eq!(Arc::strong_count(&seen), 1);
    }
}
