//! Threads, signals, and a writer that removes traps and places them: every hit is counted, and no thread is
//! lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::site::{Site, arena, call, code, forget, nothing, site, trapped, write};

static FROM_SIGNALS: AtomicU64 = AtomicU64::new(0);
static IN_HANDLER: AtomicU64 = AtomicU64::new(0);

extern "C" fn hits_too(_: i32) {
    FROM_SIGNALS.fetch_add(1, Ordering::Relaxed);
    call(IN_HANDLER.load(Ordering::Relaxed), 3, 4);
}

const THREADS: usize = 8;
const CALLS: u64 = 20_000;

/// Signals with a handler that hits a probe arrive at threads that hit probes.
#[test]
fn a_storm_of_signals() {
    arena();
    let sites: Vec<&'static Site> = [
        &[0x55, 0x48, 0x8D, 0x04, 0x37, 0x5D, 0xC3][..],
        &[0x48, 0x0F, 0xAF, 0xFE, 0x48, 0x89, 0xF8, 0xC3],
        &[0xE8, 0x01, 0, 0, 0, 0xC3, 0x48, 0x89, 0xF0, 0xC3],
    ]
    .iter()
    .map(|bytes| trapped(bytes, nothing))
    .collect();
    IN_HANDLER.store(sites[1].addr, Ordering::Relaxed);
    // SAFETY: a handler of this type; it makes direct calls and hits only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = hits_too as extern "C" fn(i32) as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let done = AtomicBool::new(false);
    let threads: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let sent = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|id| {
                let sites = &sites;
                scope.spawn(move || {
                    arena();
                    // SAFETY: no arguments.
                    id.store(unsafe { libc::gettid() } as u64, Ordering::Release);
                    for round in 0..CALLS {
                        assert_eq!(sites[0].call(round, 7), round + 7);
                        assert_eq!(sites[1].call(round, 7), round * 7);
                        assert_eq!(sites[2].call(round, 7), 7);
                    }
                    id.store(0, Ordering::Release);
                })
            })
            .collect();
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                for id in &threads {
                    let id = id.load(Ordering::Acquire);
                    // SAFETY: sent to a thread of this process; if that has ended, the call fails.
                    let send = |id: u64| unsafe {
                        libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1)
                    };
                    if id != 0 && send(id) == 0 {
                        sent += 1;
                    }
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            sent
        });
        workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
        done.store(true, Ordering::Relaxed);
        sender.join().expect("the sender")
    });
    let (all, from_signals) = (THREADS as u64 * CALLS, FROM_SIGNALS.load(Ordering::Relaxed));
    println!("{sent} signals sent, {from_signals} handled");
    assert!(from_signals > 0);
    assert_eq!(sites.iter().map(|site| site.hits()).collect::<Vec<_>>(), [all, all + from_signals, all]);
}

/// Traps are placed and removed under threads that run there: each call is right, whether it was a hit or
/// not.
#[test]
fn traps_that_come_and_go() {
    let bytes = [0x90, 0x48, 0x8D, 0x04, 0x37, 0xC3];
    let function = code(&bytes);
    arena();
    let done = AtomicBool::new(false);
    let (mut hits, mut rounds) = (0, 0_u64);
    let calls = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    arena();
                    let mut calls = 0_u64;
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(call(function, calls, 5), calls + 5);
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            // Table, then byte; byte, then table.
            let site = site(function, &bytes, nothing);
            write(function, &[0xCC]);
            let seen = site.hits();
            while rounds.is_multiple_of(4) && site.hits() == seen && Instant::now() < end {
                std::thread::yield_now();
            }
            write(function, &[0x90]);
            forget(function);
            hits += site.hits();
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum::<u64>()
    });
    println!("{calls} calls, {hits} hits, {rounds} rounds");
    assert!(hits > 0 && hits <= calls && rounds > 10);
}
