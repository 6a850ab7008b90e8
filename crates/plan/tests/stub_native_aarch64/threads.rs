//! LOSS-1 by thread, and SAFE-2: each thread's hits are its own, a full table loses none, forked children
//! have rows of their own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::{Code as _, Machine, Threads, count_by_thread};
use trapline_record::threads::ThreadArea;

use super::{ADD, CodeMemory, DATA, LINES, RET, call, changes, registered, storm, thread_pointer};

const CALLS: u64 = 5_000;
/// Bytes that the planner allows for such a stub.
const STUB: usize = 512;

pub(super) fn tid() -> u32 {
    // SAFETY: gettid has no precondition.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Distance to where glibc keeps this thread's number: behind two links of a list, of which the first one
/// leads back.
fn kept() -> Option<i32> {
    let word = |at: u64| {
        // SAFETY: the C library's own block lies below the thread pointer, and is longer than what is read;
        // its links lead to other such blocks.
        unsafe { *(at as *const u64) }
    };
    (8..1700_u64).step_by(8).find_map(|far| {
        let at = thread_pointer() - far;
        let (found, next) = (word(at) as u32 == tid(), word(at - 16));
        let near = next != 0 && next.is_multiple_of(8) && next.abs_diff(at) < 1 << 46;
        (found && near && word(next + 8) == at - 16).then_some(-(far as i32))
    })
}

/// All ways to find a thread's number that exist here.
pub(super) fn ids() -> Vec<ThreadId> {
    let known = kept().map(ThreadId::At);
    println!("{known:?}");
    [ThreadId::Call].into_iter().chain(known).collect()
}

fn machines() -> Vec<Machine> {
    let lse = std::arch::is_aarch64_feature_detected!("lse");
    let of = |lse| Machine { rseq: registered(), lse, lines: LINES };
    [false, true].into_iter().take(1 + usize::from(lse)).map(of).collect()
}

/// A table in a room, and functions that count there.
struct TableLocation {
    room: CodeMemory,
    threads: Threads,
    machine: Machine,
}

impl TableLocation {
    fn new(machine: Machine, id: ThreadId, rows: u32) -> Self {
        let room = CodeMemory::new();
        let area = ThreadArea { off: 0, rows, counters: 20 };
        assert!(DATA + area.len() <= 1 << 20);
        let threads = Threads { area, tags: room.base + DATA, id };
        Self { room, threads, machine }
    }
    fn counted(&self, counter: u32, rest: &[u32]) -> u64 {
        let pending = count_by_thread(self.room.next(), &self.machine, &self.threads, counter);
        let words = pending.finish(rest, Some(self.room.base + DATA)).expect("in reach");
        assert!(4 * words.len() <= STUB, "{} words", words.len());
        self.room.put(&words)
    }
    fn word(&self, at: u64) -> u64 {
        // SAFETY: aligned memory of our own, accessed as atomics only.
        unsafe { &*((self.threads.tags + at) as *const AtomicU64) }.load(Ordering::Relaxed)
    }
    /// (thread, its hits) of rows with hits; the row of all others is thread 0.
    fn rows(&self, counter: u32) -> Vec<(u32, u64)> {
        let area = self.threads.area;
        let tags = (0..area.rows).map(|row| (row, self.word(u64::from(row) * 8)));
        let used = tags.filter(|(_, tag)| *tag != 0).map(|(row, tag)| (tag as u32 - 1, row));
        let all = used.chain([(0, area.rows)]).map(|(tid, row)| (tid, self.word(area.word(row, counter))));
        let mut all: Vec<_> = all.filter(|(_, hits)| *hits > 0).collect();
        all.sort_unstable();
        all
    }
}

#[test]
fn each_thread_has_its_hits() {
    for (machine, id) in
        machines().into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        let table = TableLocation::new(machine, id, 1024);
        let (code, other) = (table.counted(9, &[ADD, RET]), table.counted(19, &[ADD, RET]));
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (seen, code) = (&seen, code);
                scope.spawn(move || {
                    (0..CALLS + n).for_each(|n| assert_eq!(call(code, n, 3), n + 3));
                    seen.lock().expect("no thread panics").push((tid(), CALLS + n));
                });
            }
        });
        let mut seen = seen.into_inner().expect("no thread panics");
        seen.sort_unstable();
        assert_eq!(table.rows(9), seen, "{machine:?} {id:?}");
        let (called, handled) = storm(other);
        let hits: u64 = table.rows(19).iter().map(|row| row.1).sum();
        assert_eq!(hits, called + handled, "{machine:?} {id:?}");
        assert!(table.rows(19).len() >= 4 && table.rows(10).is_empty(), "a neighbour's word");
    }
}

#[test]
fn a_full_table_loses_nothing() {
    for (machine, rows) in machines().into_iter().flat_map(|machine| [(machine, 1), (machine, 4)]) {
        let table = TableLocation::new(machine, ThreadId::Call, rows);
        let code = table.counted(0, &[ADD, RET]);
        let barrier = std::sync::Barrier::new(6);
        std::thread::scope(|scope| {
            (0..6).for_each(|_| {
                scope.spawn(|| {
                    (0..CALLS).for_each(|n| assert_eq!(call(code, n, 1), n + 1));
                    // Threads wait for each other, so no number is reused.
                    barrier.wait();
                });
            });
        });
        let found = table.rows(0);
        assert_eq!(found.len(), rows as usize + 1, "all rows are taken: {found:?}");
        assert_eq!(found[0], (0, CALLS * u64::from(6 - rows)), "{found:?}");
        assert!(found[1..].iter().all(|row| row.1 == CALLS), "{found:?}");
    }
}

#[test]
fn a_forked_child_has_a_row_of_its_own() {
    for id in ids() {
        let table = TableLocation::new(machines()[0], id, 64);
        let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces our own mapping, which nothing uses yet.
        let at = unsafe { libc::mmap(table.threads.tags as *mut _, 1 << 16, protection, shared, -1, 0) };
        assert_eq!(at as u64, table.threads.tags);
        let code = table.counted(0, &[ADD, RET]);
        // SAFETY: the child only runs generated code and ends by _exit.
        let child = unsafe { libc::fork() };
        (0..CALLS).for_each(|n| {
            call(code, n, 0);
        });
        if child == 0 {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our own child, which is not waited for elsewhere.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        let mut wanted = vec![(tid(), CALLS), (child as u32, CALLS)];
        wanted.sort_unstable();
        assert_eq!(table.rows(0), wanted, "{id:?}");
    }
}

#[test]
fn registers_and_flags_stay() {
    for (machine, id) in
        machines().into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        // The row is claimed, then found; or it belongs to another thread, or to none.
        for rows in [64, 1] {
            let table = TableLocation::new(machine, id, rows);
            let code = table.counted(3, &[RET]);
            for flags in 0..16 {
                if rows == 1 && flags == 8 {
                    // SAFETY: aligned memory of our own.
                    unsafe { &*(table.threads.tags as *const AtomicU64) }.store(1, Ordering::Relaxed);
                }
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?} {id:?} {rows}");
            }
            assert_eq!(table.rows(3).iter().map(|row| row.1).sum::<u64>(), 16);
        }
    }
}
