//! WCH-1…5: watchpoints on threads of our own: every access is reported once, with the right thread and values, by
//! each source of values.

#[cfg(not(target_arch = "aarch64"))]
#[path = "live/x86_64.rs"]
mod x86_64;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::Duration;

use trapline_record::RemoteAddr;
use trapline_tracee::Process;
use trapline_tracee::perf::{Family, SampleOptions, SampleRings, this_thread};
use trapline_watch::value::ValueSource;
use trapline_watch::{
    Access, AccessKind, Breakpoint, Event, NoMap, Options, Point, Tally, Target, WatchError, Watching,
    Watchpoint,
};

/// The threads' debug registers are few, so one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn at<T>(cell: &'static T) -> RemoteAddr {
    RemoteAddr(std::ptr::from_ref(cell).expose_provenance() as u64)
}

fn target(points: &[(RemoteAddr, u8, Access)]) -> Vec<Target> {
    let process = Process::open(std::process::id()).expect("ourselves");
    let point = |&(addr, len, access)| Point { at: Breakpoint { addr, len, access }, label: String::new() };
    vec![Target { process, points: points.iter().map(point).collect() }]
}

/// The events that `work` causes.
fn watch(points: &[(RemoteAddr, u8, Access)], options: Options, work: impl FnOnce()) -> (Vec<Event>, Tally) {
    let mut watching = Watching::start(target(points), options, Box::new(NoMap), &mut |_| {})
        .expect("breakpoints can be had");
    let mut events = watching.poll(Duration::ZERO);
    work();
    events.extend(watching.poll(Duration::ZERO));
    let (rest, tally) = watching.finish();
    events.extend(rest);
    (events, tally)
}

static CELL: AtomicU64 = AtomicU64::new(0);
static SMALL: AtomicU32 = AtomicU32::new(0);

/// A pseudo-random sequence of accesses. Returns the values that the writes leave.
fn accesses(seed: u64, times: u64, cell: &AtomicU64) -> Vec<u64> {
    let mut state = seed | 1;
    let mut left = Vec::new();
    for _ in 0..times {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let by = state >> 8;
        left.push(match state % 7 {
            0 => {
                cell.store(by, Ordering::Relaxed);
                by
            }
            1 => cell.fetch_add(by, Ordering::Relaxed).wrapping_add(by),
            2 => {
                cell.swap(by, Ordering::Relaxed);
                by
            }
            3 => cell.fetch_or(1, Ordering::Relaxed) | 1,
            4 => {
                let old = cell.load(Ordering::Relaxed);
                // This always succeeds, because no other thread writes.
                assert!(cell.compare_exchange(old, by, Ordering::Relaxed, Ordering::Relaxed).is_ok());
                by
            }
            5 => {
                // A constant, which the compiler stores as an immediate.
                cell.store(12_345, Ordering::Relaxed);
                12_345
            }
            _ => cell.fetch_sub(3, Ordering::Relaxed).wrapping_sub(3),
        });
    }
    left
}

#[test]
fn every_value_that_a_thread_leaves_is_reported_exactly() {
    let _one = alone();
    for bpf in [true, false] {
        let options = Options { bpf, ..Options::default() };
        let mut left = Vec::new();
        let (events, tally) =
            watch(&[(at(&CELL), 8, Access::Write)], options, || left = accesses(42, 2000, &CELL));
        assert_eq!((tally.lost, tally.malformed, events.len()), (0, 0, left.len()), "{tally:?}");
        let mut last = None;
        let mut exact = 0;
        for (event, value) in events.iter().zip(&left) {
            assert_eq!((event.kind, event.tid), (AccessKind::Write, this_thread()));
            if event.change.how.is_exact() {
                exact += 1;
                assert_eq!(event.change.after, Some(*value), "bpf {bpf}: {event:?}");
            }
            if event.change.before_exact && last.is_some() {
                assert_eq!(event.change.before, last, "bpf {bpf}: {event:?}");
            }
            last = Some(*value);
        }
        let has_bpf = events.iter().any(|event| event.change.how == ValueSource::Read);
        println!("bpf {bpf} (worked: {has_bpf}): {exact} of {} exact", left.len());
        if bpf && has_bpf {
            assert_eq!(exact, left.len(), "with a program at the trap all values are exact");
        } else {
            assert!(exact * 10 > left.len() * 4, "registers alone gave {exact} of {}", left.len());
        }
    }
}

#[test]
fn threads_born_before_and_after_are_distinguished() {
    let _one = alone();
    const EACH: u64 = 300;
    let armed = Barrier::new(3);
    let tids: Mutex<Vec<u32>> = Mutex::default();
    let write = || {
        tids.lock().expect("no panic").push(this_thread());
        for _ in 0..EACH {
            SMALL.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                armed.wait();
                write();
            });
        }
        SMALL.store(0, Ordering::Relaxed);
        let (events, tally) = watch(&[(at(&SMALL), 4, Access::Write)], Options::default(), || {
            armed.wait();
            // These threads are born while their parent is watched.
            for _ in 0..3 {
                scope.spawn(write).join().expect("it writes");
            }
            while SMALL.load(Ordering::Relaxed) < 5 * EACH as u32 {
                std::thread::yield_now();
            }
        });
        assert_eq!((tally.lost, events.len() as u64), (0, 5 * EACH));
        for tid in tids.lock().expect("no panic").iter() {
            assert_eq!(events.iter().filter(|event| event.tid == *tid).count() as u64, EACH);
        }
        assert!(events.is_sorted_by_key(|event| event.time_ns));
        assert!(tally.born >= 3, "{tally:?}");
    });
}

#[test]
fn loads_stores_and_executions() {
    let _one = alone();
    #[inline(never)]
    fn called() -> u64 {
        std::hint::black_box(7)
    }
    let code = RemoteAddr((called as fn() -> u64 as *const ()).expose_provenance() as u64);
    let points = [(at(&CELL), 8, Access::ReadWrite), (code, 1, Access::Execute)];
    let (events, _) = watch(&points, Options::default(), || {
        for value in 0..100 {
            CELL.store(value, Ordering::Relaxed);
            std::hint::black_box(CELL.load(Ordering::Relaxed));
            called();
        }
    });
    let of = |kind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((of(AccessKind::Write), of(AccessKind::Read), of(AccessKind::Execute)), (100, 100, 100));
    for event in events.iter().filter(|event| event.kind == AccessKind::Read) {
        assert_eq!(event.change.before, event.change.after);
    }
}

#[test]
fn counting_and_iterating() {
    let _one = alone();
    let mut counter = Watchpoint::on(std::process::id()).write(at(&CELL).0, 8).count().expect("breakpoints");
    (0..50).for_each(|value| CELL.store(value, Ordering::Relaxed));
    assert_eq!(counter.value(), 50);
    CELL.store(0, Ordering::Relaxed);
    assert_eq!(counter.stop(), 51);
    CELL.store(1, Ordering::Relaxed);
    let mut events = Watchpoint::on(std::process::id()).write(at(&CELL).0, 8).events().expect("breakpoints");
    (0..50).for_each(|value| CELL.store(value, Ordering::Relaxed));
    let first = events.next().expect("it was written");
    assert_eq!(first.change.after, Some(0));
    events.stop();
    assert_eq!(events.count(), 49);
}

#[test]
fn full_registers_arm_nothing_and_turns_cover_all() {
    let _one = alone();
    static CELLS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
    let points: Vec<_> = CELLS.iter().map(|cell| (at(cell), 8, Access::Write)).collect();
    let error = Watching::start(target(&points), Options::default(), Box::new(NoMap), &mut |_| {});
    let Err(WatchError::NoRegisters(full)) = error else { panic!("six fit: {error:?}") };
    assert_eq!((full.wanted, full.registers, full.free), (6, 4, 4));
    // Nothing has stayed armed: as many as debug registers fit now.
    let (events, _) = watch(&points[..4], Options::default(), || CELLS[3].store(1, Ordering::Relaxed));
    assert_eq!(events.len(), 1);
    let options = Options { rotate: Some(Duration::from_millis(5)), ..Options::default() };
    let mut watching =
        Watching::start(target(&points), options, Box::new(NoMap), &mut |_| {}).expect("in turns");
    let mut seen = [0; 6];
    // Loop until each has been seen. This ends if turns are taken, and never if they are not.
    while seen.contains(&0) {
        CELLS.iter().for_each(|cell| cell.store(2, Ordering::Relaxed));
        for event in watching.poll(Duration::from_millis(1)) {
            seen[event.point] += 1;
        }
    }
    let (_, tally) = watching.finish();
    let covered = &tally.covered_ns[0];
    assert!(covered.iter().all(|&ns| ns > 0), "{covered:?}");
    // Every lane covers some point all the time.
    assert_eq!(covered.iter().sum::<u64>(), 4 * tally.watched.as_nanos() as u64, "{covered:?}");
}

#[test]
fn if_the_last_thread_cannot_be_armed_nothing_stays_armed() {
    let _one = alone();
    static CELLS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let sampled = SampleOptions {
        family: Family::Alone,
        registers: false,
        stack: false,
        values: false,
        kernel: false,
        pages: 8,
    };
    let rings = SampleRings::open(sampled).expect("rings");
    let breakpoint = |cell: &'static AtomicU64| Breakpoint { addr: at(cell), len: 8, access: Access::Write };
    let (sender, tids) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // It is moved in, so that a panic ends the thread too.
        let done = done;
        scope.spawn(move || {
            sender.send(this_thread()).expect("it is read");
            // An error means that the other end is gone, so this thread is done.
            wait.recv().unwrap_or_default();
        });
        // The youngest thread, which is listed last, has one register less than the others.
        let last = tids.recv().expect("it begins");
        let held = rings.arm(last, breakpoint(&CELLS[0])).expect("a free register");
        let points: Vec<_> = CELLS.iter().map(|cell| (at(cell), 8, Access::Write)).collect();
        let error = Watching::start(target(&points), Options::default(), Box::new(NoMap), &mut |_| {});
        let Err(WatchError::NoRegisters(full)) = error else { panic!("four fit: {error:?}") };
        assert_eq!((full.tid, full.free), (last, 3));
        assert_eq!(rings.free_registers(this_thread(), breakpoint(&CELLS[0])).expect("registers"), 4);
        drop((held, done));
    });
}

/// One process ends when the other is armed already. That one is watched; if none is left, the error reports
/// the end.
#[test]
fn of_several_processes_one_may_end_while_they_are_armed() {
    let _one = alone();
    CELL.store(0, Ordering::Relaxed);
    let points = [(at(&CELL), 8, Access::Write)];
    let child = || std::process::Command::new("sleep").arg("100").spawn().expect("sleep");
    let of = |child: &std::process::Child| Target {
        process: Process::open(child.id()).expect("a child"),
        ..target(&points).remove(0)
    };
    // Not reaped: it stays as a zombie, which has no thread that can be armed.
    let end = |child: &mut std::process::Child| {
        child.kill().expect("ours");
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).expect("a zombie").contains(") Z ") {
            std::thread::yield_now();
        }
    };
    let (mut one, mut other) = (child(), child());
    let both = vec![target(&points).remove(0), of(&one)];
    let mut watching =
        Watching::start(both, Options::default(), Box::new(NoMap), &mut |_| end(&mut one)).expect("we live");
    assert_eq!(watching.ended_unarmed().collect::<Vec<_>>(), [one.id()]);
    CELL.store(7, Ordering::Relaxed);
    let mut events = watching.poll(Duration::ZERO);
    events.extend(watching.finish().0);
    assert_eq!(events.len(), 1);
    let alone = vec![of(&other)];
    end(&mut other);
    let error = Watching::start(alone, Options::default(), Box::new(NoMap), &mut |_| {});
    let error = error.expect_err("it is dead").to_string();
    assert!(error.contains(&other.id().to_string()), "{error}");
    for mut child in [one, other] {
        child.wait().expect("ours");
    }
}

#[test]
fn wrong_ranges_are_refused() {
    let _one = alone();
    let refused = |addr: u64, len: u8| {
        let points = [(RemoteAddr(addr), len, Access::Write)];
        let started = Watching::start(target(&points), Options::default(), Box::new(NoMap), &mut |_| {});
        started.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(refused(0x1001, 4).contains("multiple of 4"));
    assert!(refused(0x1000, 3).contains("1, 2, 4 or 8"));
    let cost = trapline_watch::cost(Options::default()).expect("breakpoints");
    assert!(cost.ns_per_trap > 100.0 && cost.registers == 4, "{cost:?}");
    println!("{cost:?}");
}

#[test]
fn threads_that_cannot_inherit_are_armed_one_by_one() {
    let _one = alone();
    const EACH: u64 = 200;
    static ARMED: AtomicU64 = AtomicU64::new(0);
    static CELL: AtomicU64 = AtomicU64::new(0);
    let write = || {
        for _ in 0..EACH {
            CELL.fetch_add(1, Ordering::Relaxed);
        }
    };
    let begin = Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                begin.wait();
                write();
            });
        }
        let options = Options { inherit: false, ..Options::default() };
        let places = [(at(&CELL), 8, Access::Write)];
        let mut watching =
            Watching::start(target(&places), options, Box::new(NoMap), &mut |_| {}).expect("breakpoints");
        assert!(!watching.inherits());
        begin.wait();
        let mut events = Vec::new();
        for born in 1..=3 {
            // It writes once it is reported as armed. Its parent is a thread that is watched.
            let (sender, receiver) = std::sync::mpsc::channel();
            let late = scope.spawn(move || {
                sender.send(this_thread()).expect("its maker waits");
                while ARMED.load(Ordering::Relaxed) < born {
                    std::thread::yield_now();
                }
                write();
            });
            let tid = receiver.recv().expect("it begins");
            while !watching.watches(tid) {
                events.extend(watching.poll(Duration::from_millis(1)));
            }
            ARMED.store(born, Ordering::Relaxed);
            late.join().expect("it writes");
        }
        while CELL.load(Ordering::Relaxed) < 5 * EACH {
            std::thread::yield_now();
        }
        let (rest, tally) = watching.finish();
        events.extend(rest);
        assert_eq!((events.len() as u64, tally.lost), (CELL.load(Ordering::Relaxed), 0), "{tally:?}");
        // The test harness creates threads as well.
        assert!(tally.late >= 3 && tally.born == tally.late + tally.unwatched, "{tally:?}");
        println!("armed at most {:?} after birth", tally.latest);
    });
}

#[test]
fn our_own_accounting_lists_what_each_session_holds() {
    let _one = alone();
    static CELLS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
    let points: Vec<_> = CELLS.iter().map(|cell| (at(cell), 8, Access::Write)).collect();
    let start =
        |points: &[_]| Watching::start(target(points), Options::default(), Box::new(NoMap), &mut |_| {});
    let process = Process::open(std::process::id()).expect("ourselves");
    let there = process.threads().expect("its threads");
    let first = start(&points[..3]).expect("three fit");
    let Err(WatchError::NoRegisters(full)) = start(&points[3..]) else { panic!("five do not fit") };
    assert_eq!((full.wanted, full.registers, full.free, full.cpus), (2, 4, 1, 0));
    // All threads of this process have three of our registers according to our account, and none of others by
    // trying. A thread that the test harness started meanwhile has inherited them. It is in no account before
    // its birth is read.
    let mut tasks = full.tasks.iter().filter(|task| there.contains(&task.tid)).peekable();
    assert!(tasks.peek().is_some(), "{full}");
    assert!(tasks.all(|task| (task.ours, task.others) == (3, 0)), "{full}");
    assert!(full.to_string().contains("3 by this process"), "{full}");
    let last = start(&points[3..4]).expect("the fourth fits");
    // Once disarmed, registers are free again in the account too, also for threads that had inherited.
    std::thread::scope(|scope| drop(scope.spawn(|| CELLS[0].store(1, Ordering::Relaxed)).join()));
    drop((first, last));
    drop(start(&points[..4]).expect("all are free"));
}
