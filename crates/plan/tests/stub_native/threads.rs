//! LOSS-1 by thread: each thread's hits are its own, a full table loses none, and forked children have rows
//! of their own.

use trapline_plan::x86_64::stub::{Liveness, ThreadId, Threads, count_by_thread};
use trapline_record::threads::ThreadArea;

use crate::arena::{Arena, call, get};
use crate::counts::{everywhere, storm};

const CALLS: u64 = 50_000;

/// Ways to find a thread's number; where glibc keeps it, only if that place has it in this process.
fn ids() -> Vec<ThreadId> {
    let kept: u32;
    // SAFETY: glibc's thread control block is far longer; other libraries' blocks are followed by mapped
    // memory.
    unsafe { core::arch::asm!("mov {:e}, fs:[0x2d0]", out(reg) kept) };
    if kept == tid() { vec![ThreadId::Call, ThreadId::At(0x2d0)] } else { vec![ThreadId::Call] }
}

fn tid() -> u32 {
    // SAFETY: gettid has no precondition.
    unsafe { libc::gettid() as u32 }
}

pub(crate) fn threads(arena: &Arena, id: ThreadId, rows: u32) -> Threads {
    Threads { area: ThreadArea { off: 0, rows, counters: 20 }, tags: arena.rows(), id }
}

/// A function that is counted and returns.
pub(crate) fn counted(arena: &mut Arena, threads: &Threads, counter: u32) -> u64 {
    let mut out = Vec::new();
    let pending = count_by_thread(&mut out, arena.next(), threads, counter, &Liveness::default());
    out.extend([0x48, 0x89, 0xF8, 0xC3]); // mov rax, rdi; ret
    pending.finish(&mut out, None).expect("code");
    arena.put(&out)
}

/// (thread, its hits) in the order of rows; the row of all others is thread 0.
fn rows(threads: &Threads, counter: u32) -> Vec<(u32, u64)> {
    let word = |row| get(threads.tags + threads.area.word(row, counter));
    let tags = (0..threads.area.rows).map(|row| (row, get(threads.tags + u64::from(row) * 8)));
    let used = tags.filter(|(_, tag)| *tag != 0).map(|(row, tag)| (tag as u32 - 1, word(row)));
    used.chain([(0, word(threads.area.rows))]).collect()
}

pub(crate) fn total(threads: &Threads, counter: u32) -> u64 {
    rows(threads, counter).iter().map(|(_, hits)| hits).sum()
}

#[test]
fn each_thread_has_its_hits() {
    for id in ids() {
        let mut arena = Arena::new();
        let threads = threads(&arena, id, 4096);
        let code = counted(&mut arena, &threads, 9);
        let other = counted(&mut arena, &threads, 19);
        let seen = std::sync::Mutex::new(Vec::new());
        // The handler runs in any thread, and counts elsewhere.
        let handled = storm(other, || {
            everywhere(|| {
                let own = CALLS + u64::from(tid() % 97);
                (0..own).for_each(|n| assert_eq!(call(code, n), n));
                seen.lock().expect("no thread panics").push((tid(), own));
            });
        });
        let mut seen = seen.into_inner().expect("no thread panics");
        let mut rows: Vec<_> = rows(&threads, 9).into_iter().filter(|row| row.1 > 0).collect();
        seen.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows, seen, "{id:?}");
        assert_eq!(total(&threads, 19), handled, "{id:?}");
        assert_eq!(total(&threads, 10), 0, "a neighbour's word");
    }
}

#[test]
fn a_full_table_loses_nothing() {
    for id in ids() {
        let mut arena = Arena::new();
        let threads = threads(&arena, id, 4);
        let code = counted(&mut arena, &threads, 0);
        everywhere(|| (0..CALLS).for_each(|n| assert_eq!(call(code, n), n)));
        let rows = rows(&threads, 0);
        assert_eq!(rows.len(), 5, "all rows are taken: {rows:?}");
        assert!(rows[..4].iter().all(|row| row.1 == CALLS), "{id:?}: {rows:?}");
        assert_eq!(rows[4].1, 4 * CALLS, "{id:?}: {rows:?}");
    }
}

#[test]
fn a_forked_child_has_a_row_of_its_own() {
    for id in ids() {
        let mut arena = Arena::new();
        let threads = threads(&arena, id, 64);
        let code = counted(&mut arena, &threads, 0);
        // SAFETY: the child only runs generated code and ends by _exit.
        let child = unsafe { libc::fork() };
        (0..CALLS).for_each(|n| {
            call(code, n);
        });
        if child == 0 {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our own child, which is not waited for elsewhere.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        let mut rows: Vec<_> = rows(&threads, 0).into_iter().filter(|row| row.1 > 0).collect();
        let mut wanted = vec![(tid(), CALLS), (child as u32, CALLS)];
        rows.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(rows, wanted, "{id:?}");
    }
}
