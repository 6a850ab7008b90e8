//! LOSS-1: threads migrate between CPUs, signals arrive in the middle of a hit, children are forked. No hit
//! is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trapline_plan::x86_64::stub::{Liveness, Machine, count};

use crate::arena::{Arena, call, machines, unregister};

const CALLS: u64 = 400_000;
pub(crate) const THREADS: u64 = 8;

/// A function that is counted and returns. For odd counters, what hits do not run lies pages away.
pub(crate) fn counted(arena: &mut Arena, machine: &Machine, n: u64, site: &Liveness) -> u64 {
    let mut out = Vec::new();
    let pending = count(&mut out, arena.next(), machine, arena.word(n), site);
    out.extend([0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    if n.is_multiple_of(2) {
        pending.finish(&mut out, None).expect("code");
        return arena.put(&out);
    }
    let (split, apart) = (out.len(), arena.next() + 0x3008);
    pending.finish_apart(&mut out, split, apart).expect("code");
    let rest = out.split_off(split);
    let code = arena.put(&out);
    arena.skip_to(apart);
    arena.put(&rest);
    code
}

static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// How often the timer came in the present storm.
static CAME: AtomicU64 = AtomicU64::new(0);
/// How often it comes at least.
const ENOUGH: u64 = 20;
/// Number of handlers that run at present, in any thread.
static BUSY: AtomicU64 = AtomicU64::new(0);
static STORMS: std::sync::Mutex<()> = std::sync::Mutex::new(());

extern "C" fn on_alarm(_: i32) {
    CAME.fetch_add(1, Ordering::SeqCst);
    hit_too();
}

/// Calls the present storm's code, if there is a storm.
fn hit_too() {
    BUSY.fetch_add(1, Ordering::SeqCst);
    let code = IN_HANDLER.load(Ordering::SeqCst);
    if code != 0 {
        call(code, 1);
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    BUSY.fetch_sub(1, Ordering::SeqCst);
}

/// Does as the handler does until the present storm's timer has come often, if there is a storm. A fast machine
/// has ended its work before that.
fn outlast_storm() {
    let start = Instant::now();
    while IN_HANDLER.load(Ordering::SeqCst) != 0 && CAME.load(Ordering::SeqCst) < ENOUGH {
        assert!(start.elapsed() < Duration::from_secs(100), "the storm never comes");
        hit_too();
    }
}

/// Runs `body` while a timer interrupts the process every 100 µs. The timer's handler calls `code` too, and so
/// do the threads of [`everywhere`] until the timer has come often. Returns how often they did, with 1.
pub(crate) fn storm(code: u64, body: impl FnOnce()) -> u64 {
    let _one = STORMS.lock();
    HANDLED.store(0, Ordering::Relaxed);
    CAME.store(0, Ordering::Relaxed);
    IN_HANDLER.store(code, Ordering::Relaxed);
    let timer = |micros| {
        let every = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: valid pointers; the handler is async-signal-safe and stays for the process' life.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) }
    };
    // SAFETY: as above; SA_RESTART keeps the harness' own calls from failing.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, core::ptr::null_mut());
    }
    timer(100);
    body();
    timer(0);
    IN_HANDLER.store(0, Ordering::SeqCst);
    assert!(CAME.load(Ordering::SeqCst) >= ENOUGH, "the storm never came");
    // A handler that begins from here on calls nothing. One that began before would otherwise count in the
    // next storm.
    while BUSY.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    HANDLED.load(Ordering::SeqCst)
}

/// Binds a thread (0: the calling one) to one CPU, if there is such a CPU.
pub(crate) fn pin(thread: i32, cpu: usize) {
    // SAFETY: a zeroed set is a valid empty one; the call only changes where a thread of ours runs.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread, size_of_val(&set), &raw const set);
    }
}

/// Moves threads from CPU to CPU until `stop` is set.
pub(crate) fn migrate(threads: &[i32], stop: &AtomicBool) {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        for &thread in threads {
            next += 1;
            pin(thread, next % cpus);
        }
        next += 1;
    }
}

/// Sets a flag when dropped, also when a test fails on the way.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `body` in many threads that migrate all the time.
pub(crate) fn everywhere(body: impl Fn() + Sync) {
    let stop = AtomicBool::new(false);
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                let (send, body) = (send.clone(), &body);
                scope.spawn(move || {
                    // SAFETY: gettid has no precondition.
                    let _ = send.send(unsafe { libc::gettid() });
                    body();
                    outlast_storm();
                })
            })
            .collect();
        let threads: Vec<i32> = receive.iter().take(THREADS as usize).collect();
        let stop = &stop;
        let _ends = Ends(stop);
        scope.spawn(move || migrate(&threads, stop));
        workers.into_iter().for_each(|worker| worker.join().expect("worker"));
    });
}

#[test]
#[should_panic(expected = "worker")]
fn a_worker_that_fails_ends_the_run() {
    everywhere(|| panic!("on purpose"));
}

/// Sites that differ in what is dead, each for two counters: one whose stub lies together, one whose does not.
fn sites() -> impl Iterator<Item = (u64, Liveness)> {
    const R10_AND_R11: u16 = 3 << 10;
    let sites = [(true, 0), (false, 0), (true, R10_AND_R11)];
    let site = move |n: u64| {
        let (flags_dead, dead) = sites[n as usize / 2];
        (n, Liveness { flags_dead, dead, ..Liveness::default() })
    };
    (0..6).map(site)
}

#[test]
fn nothing_is_lost_between_cpus() {
    for machine in machines() {
        let mut arena = Arena::new();
        for (n, site) in sites() {
            let code = counted(&mut arena, &machine, n, &site);
            let handled = storm(code, || {
                everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n)));
            });
            assert_eq!(arena.counted(n), THREADS * CALLS + handled, "{machine:?} {site:?}");
        }
    }
}

#[test]
fn unregistered_threads_count_too() {
    let Some(machine) = machines().pop().filter(|machine| machine.rseq.is_some()) else { return };
    let mut arena = Arena::new();
    for (n, site) in sites() {
        let code = counted(&mut arena, &machine, n, &site);
        let together = &std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for (cpu, registered) in [(0, true), (0, false), (1, false)] {
                scope.spawn(move || {
                    pin(0, cpu);
                    if !registered {
                        unregister();
                    }
                    together.wait();
                    (0..CALLS).for_each(|n| assert_eq!(call(code, n), n));
                });
            }
        });
        assert_eq!(arena.counted(n), 3 * CALLS, "{site:?}");
    }
}

#[test]
fn forked_children_count_into_the_same_words() {
    for machine in machines() {
        let mut arena = Arena::new();
        let code = counted(&mut arena, &machine, 0, &Liveness::default());
        // SAFETY: the child only runs generated code and leaves by _exit.
        let children: Vec<i32> = (0..4)
            .map(|_| unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    (0..CALLS).for_each(|n| {
                        call(code, n);
                    });
                    libc::_exit(0);
                }
                pid
            })
            .collect();
        (0..CALLS).for_each(|n| {
            call(code, n);
        });
        for pid in children {
            // SAFETY: our own child, which is not waited for elsewhere.
            unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
        }
        assert_eq!(arena.counted(0), 5 * CALLS, "{machine:?}");
    }
}
