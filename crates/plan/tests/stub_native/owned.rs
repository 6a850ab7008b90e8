//! LOSS-1 for values and texts by thread: a row belongs to one thread. Also with threads that migrate, are
//! interrupted, or have no rseq area, and with a restartable sequence that restarts just before its commit.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use trapline_plan::filter::{GroupBy, Sort, Tally, Tree};
use trapline_plan::x86_64::stub::{Liveness, Machine};
use trapline_record::ring::RecordKind;
use trapline_record::tally::{Rest, TableShape, text_key};
use trapline_tests::alone;

use crate::arena::{Arena, LINES, call, machines, unregister};
use crate::counts::{THREADS, everywhere, storm};
use crate::state::ONE;
use crate::tallies::{Set, argument};
use crate::text_tallies::texts;

/// mov rax, rdi; ret
const BODY: [u8; 4] = [0x48, 0x89, 0xF8, 0xC3];

/// Rows of all lines by thread and key; the key of a text is that of its bytes.
fn rows(set: &Set) -> (BTreeMap<(u32, u64), u64>, Rest) {
    let (mut rows, mut sum) = (BTreeMap::new(), Rest::default());
    for line in 0..LINES {
        let rest = set.table.area.read_rows(set.view(), 0, line, |row, word| {
            if set.filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0) {
                let bytes: Vec<u8> = (0..8).flat_map(|n| word(n).to_le_bytes()).collect();
                assert_eq!(row.key, text_key(&bytes), "{bytes:?}");
            }
            *rows.entry((row.owner.expect("a thread") as u32, row.key)).or_default() += row.hits;
        });
        sum.overflow += rest.overflow;
        sum.unseen += rest.unseen;
    }
    (rows, sum)
}

fn tid() -> u32 {
    // SAFETY: gettid has no precondition.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Seven words that are texts as well: each of three letters and zeros.
static WORDS: [[u8; 64]; 7] = {
    let mut words = [[0; 64]; 7];
    let mut n = 0;
    while n < 7 {
        (words[n][0], words[n][1], words[n][2]) = (b'a', b'b', b'a' + n as u8);
        n += 1;
    }
    words
};

fn word(n: u64) -> u64 {
    WORDS[(n % 7) as usize].as_ptr() as u64
}

fn tally(sort: Sort) -> Tally {
    Tally { value: argument(0, 64, false), sort, group_by: GroupBy::Thread }
}

fn key(sort: Sort, at: u64) -> u64 {
    if sort == Sort::Each { at } else { text_key(&WORDS[((at - word(0)) / 64) as usize]) }
}

/// Aggregation at entries, and aggregation at returns.
fn sets(machine: &Machine, sort: Sort) -> [(Set, Arena, u64); 2] {
    let mut arena = Arena::new();
    let set = Set::new(&arena, machine, tally(sort), None);
    let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
    let mut other = Arena::new();
    let late = Tree::Number(1, false);
    let of_calls = Set::new(&other, machine, tally(sort), None).of_calls(&mut other, late, None);
    let whole = of_calls.whole(&mut other, Liveness::default(), RecordKind::Return, [&BODY[..3], &BODY[3..]]);
    [(set, arena, code), (of_calls, other, whole)]
}

#[test]
fn each_thread_has_rows_of_its_own() {
    let _one = ONE.lock();
    for (machine, sort) in machines().into_iter().flat_map(|one| [(one, Sort::Each), (one, Sort::Text(0))]) {
        for (set, arena, code) in sets(&machine, sort) {
            let hit = |times: u64| {
                (0..times).for_each(|n| assert_eq!(call(code, word(n)), word(n)));
                tid()
            };
            let mut expected = BTreeMap::new();
            let mut add = |thread: u32, times: u64| {
                (0..times).for_each(|n| *expected.entry((thread, key(sort, word(n)))).or_default() += 1);
            };
            add(hit(30), 30);
            for times in [1, 12, 700] {
                add(std::thread::scope(|scope| scope.spawn(|| hit(times)).join().expect("ends")), times);
            }
            assert_eq!(rows(&set), (expected, Rest::default()), "{sort:?} {machine:?}");
            arena.unmap();
        }
    }
}

#[test]
fn nothing_is_lost_under_a_storm() {
    const CALLS: u64 = 50_000;
    for (machine, sort) in machines().into_iter().flat_map(|one| [(one, Sort::Each), (one, Sort::Text(0))]) {
        for (n, (mut set, arena, code)) in sets(&machine, sort).into_iter().enumerate() {
            let threads = Mutex::new(Vec::new());
            let handled = storm(code, || {
                everywhere(|| {
                    (0..CALLS).for_each(|n| assert_eq!(call(code, word(n)), word(n)));
                    threads.lock().expect("whole").push(tid());
                });
            });
            let (rows_now, rest) = rows(&set);
            let threads = threads.into_inner().expect("whole");
            for &thread in &threads {
                for n in 0..7 {
                    let expected = CALLS / 7 + u64::from(n < CALLS % 7);
                    assert_eq!(rows_now.get(&(thread, key(sort, word(n)))), Some(&expected), "{sort:?}");
                }
            }
            // The handler passes a number, which is no text.
            let all: u64 = rows_now.values().sum();
            assert_eq!(all + rest.overflow + rest.unseen, THREADS * CALLS + handled, "{sort:?} {n}");
            assert_eq!((rest.overflow, rest.unseen), (0, if sort == Sort::Each { 0 } else { handled }));
            if machine.rseq.is_some() {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        unregister();
                        (0..10).for_each(|n| assert_eq!(call(code, word(n)), word(n)));
                    });
                });
                // With aggregation at returns, the memory for the deferred state is the same, but there is no
                // row.
                assert_eq!(rows(&set).1.overflow, 10, "{sort:?} {n}");
            }
            set.table.area.shape = TableShape::Nothing;
            arena.unmap();
        }
    }
}

/// So small a table that threads get in each other's way: a hit without a row is overflow.
#[test]
fn a_full_table_counts_on() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let mut set = Set::new(&arena, &machine, tally(Sort::Each), None);
        set.table.area.shape = TableShape::OwnedRows(4);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
        let hit = || (0..300).for_each(|n| assert_eq!(call(code, n % 9), n % 9));
        (0..20).for_each(|_| std::thread::scope(|scope| drop(scope.spawn(hit).join())));
        let (rows, rest) = rows(&set);
        assert_eq!(rows.values().sum::<u64>() + rest.overflow, 6000);
        assert!(rest.overflow > 0 && rows.len() >= 16, "{rows:?} {rest:?}");
        assert!(rows.iter().all(|((_, key), hits)| *key < 9 && *hits <= 34), "{rows:?}");
        arena.unmap();
    }
}

/// Address of an int3, and the byte that it replaced.
static TRAP: AtomicU64 = AtomicU64::new(0);
static BYTE: AtomicU8 = AtomicU8::new(0);

extern "C" fn on_trap(_: i32) {
    put(TRAP.load(Ordering::SeqCst), BYTE.load(Ordering::SeqCst));
}

fn put(at: u64, byte: u8) {
    // SAFETY: callers pass a byte of an arena, which is mapped writable.
    unsafe { (*(at as *const AtomicU8)).store(byte, Ordering::SeqCst) };
}

/// Makes a call with a signal at the commit of the stub that was put last.
pub(crate) fn trapped(arena: &Arena, code: u64, call: impl FnOnce()) {
    // add qword [r10], 1
    const COMMIT: [u8; 4] = [0x49, 0x83, 0x02, 0x01];
    // SAFETY: the handler only stores to a byte of ours.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, core::ptr::null_mut()), 0);
    }
    // SAFETY: the stub's bytes, which nothing changes meanwhile.
    let bytes = unsafe { core::slice::from_raw_parts(code as *const u8, (arena.next() - code) as usize) };
    let commits: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(&COMMIT)).collect();
    let [commit] = commits[..] else { panic!("one commit: {commits:?}") };
    BYTE.store(COMMIT[0], Ordering::SeqCst);
    TRAP.store(code + commit as u64, Ordering::SeqCst);
    put(code + commit as u64, 0xCC);
    call();
    // SAFETY: as above.
    assert_eq!(unsafe { *((code + commit as u64) as *const u8) }, COMMIT[0], "it was met");
}

/// A signal just before the commit: the whole row was written, and the sequence restarts.
#[test]
fn a_sequence_that_begins_again_finds_its_key() {
    alone("owned::a_sequence_that_begins_again_finds_its_key", || {
        let Some(machine) = machines().pop().filter(|machine| machine.rseq.is_some()) else { return };
        for sort in [Sort::Each, Sort::Text(0)] {
            for by_thread in [true, false] {
                let mut arena = Arena::new();
                let set = Set::new(
                    &arena,
                    &machine,
                    Tally { group_by: GroupBy::threads(by_thread), ..tally(sort) },
                    None,
                );
                let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &BODY);
                for n in [3, 4, 4] {
                    trapped(&arena, code, || assert_eq!(call(code, word(n)), word(n)));
                }
                let expected = [(key(sort, word(3)), 1), (key(sort, word(4)), 2)];
                match by_thread {
                    true => {
                        let expected = expected.map(|(key, hits)| ((tid(), key), hits)).into();
                        assert_eq!(rows(&set), (expected, Rest::default()), "{sort:?}");
                    }
                    false => assert_eq!(set.read(), (expected.into(), Rest::default()), "{sort:?}"),
                }
                if sort != Sort::Each && !by_thread {
                    assert_eq!(texts(&set).0.len(), 2);
                }
                arena.unmap();
            }
        }
    });
}
