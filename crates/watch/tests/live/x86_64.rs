//! What is certain only where a trap comes behind the access: the kernel's own accesses (on arm64 the kernel
//! skips them), and the old value among several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trapline_record::RemoteAddr;
use trapline_watch::{Access, AccessKind, Event, NoMap, Options, Tally, Watching};

use super::{alone, at, target, watch};

#[test]
fn what_the_kernel_writes_for_us_is_seen() {
    use std::io::Read as _;
    let _one = alone();
    #[repr(align(8))]
    struct Buffer([u8; 32]);
    static BUFFER: Mutex<Buffer> = Mutex::new(Buffer([9; 32]));
    let mut buffer = BUFFER.lock().expect("no panic");
    let addr = RemoteAddr(buffer.0.as_ptr().expose_provenance() as u64);
    let mut zero = std::fs::File::open("/dev/zero").expect("it exists");
    let (events, _) = watch(&[(addr, 8, Access::Write)], Options::default(), || {
        zero.read_exact(&mut buffer.0).expect("zeros");
    });
    assert!(!events.is_empty());
    assert!(events.iter().all(|event| event.kind == AccessKind::Kernel), "{events:?}");
    assert_eq!(events.last().map(|event| event.change.after), Some(Some(0)));
}

/// A thread that creates threads until `over` is set. Each adds to the cell a few times. So the cell holds
/// the number of writes, and the old value in each sample identifies the write.
fn churn<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    cell: &'static AtomicU64,
    over: &'scope std::sync::atomic::AtomicBool,
) {
    scope.spawn(move || {
        while !over.load(Ordering::Relaxed) {
            // Several at a time, so that a listing finds some of them alive.
            let born: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        // Long enough for some to be alive when their process is armed.
                        for _ in 0..20 {
                            // The old value is used, so this is an xadd, and registers show both values.
                            std::hint::black_box(cell.fetch_add(1, Ordering::Relaxed));
                            // Slow enough for a debug build to read the rings in time.
                            std::thread::sleep(Duration::from_micros(100));
                        }
                    })
                })
                .collect();
            born.into_iter().for_each(|one| one.join().expect("it writes"));
        }
    });
}

/// Ends the churn, however the test ends.
struct EndsChurn<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for EndsChurn<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How often each write was reported, by the value that it found.
fn times_reported(events: &[Event], point: usize) -> std::collections::HashMap<u64, u32> {
    let mut reported = std::collections::HashMap::new();
    for event in events.iter().filter(|event| event.point == point) {
        assert!(event.change.before_exact, "{event:?}");
        *reported.entry(event.change.before.expect("exact")).or_insert(0) += 1;
    }
    reported
}

/// Arms while threads are born all the time. The number of points determines whether partly inherited
/// breakpoints leave space for a second arming.
fn arm_under_churn(cells: &'static [AtomicU64], rounds: usize, options: Options) -> Tally {
    let over = std::sync::atomic::AtomicBool::new(false);
    let points: Vec<_> = cells.iter().map(|cell| (at(cell), 8, Access::Write)).collect();
    std::thread::scope(|scope| {
        let _end = EndsChurn(&over);
        churn(scope, &cells[0], &over);
        churn(scope, &cells[cells.len() - 1], &over);
        let mut born = Tally::default();
        for round in 0..rounds {
            let started = Watching::start(target(&points), options, Box::new(NoMap), &mut |_| {});
            let mut watching = started.unwrap_or_else(|error| panic!("round {round}: {error}"));
            let from: Vec<u64> = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
            let mut events = Vec::new();
            for _ in 0..4 {
                events.extend(watching.poll(Duration::from_millis(2)));
            }
            let to: Vec<u64> = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
            let (rest, tally) = watching.finish();
            events.extend(rest);
            assert_eq!((tally.lost, tally.malformed), (0, 0));
            for (point, (from, to)) in from.into_iter().zip(to).enumerate() {
                let reported = times_reported(&events, point);
                let wrong: Vec<_> = (from..to).filter(|value| reported.get(value) != Some(&1)).collect();
                let twice: Vec<_> = reported.iter().filter(|(_, times)| **times != 1).collect();
                assert!(
                    wrong.is_empty() && twice.is_empty(),
                    "round {round}, point {point}, writes {from} to {to}: {wrong:?}, {twice:?}"
                );
            }
            born.born += tally.born;
            born.threads += tally.threads;
        }
        born
    })
}

#[test]
fn arming_among_births_counts_every_write_once() {
    let _one = alone();
    static CELLS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    for points in [2, 4] {
        let tally = arm_under_churn(&CELLS[..points], 40, Options::default());
        println!("{points} points: {} threads armed, {} born while watched", tally.threads, tally.born);
        assert!(tally.born > 20, "threads were born meanwhile: {tally:?}");
    }
}
