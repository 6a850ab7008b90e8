//! LOSS-1 and SAFE-2 for aggregations of texts, and for values and texts by thread. Each hit is in the row of
//! its text, which is whole, or of its value, and of its thread; in the overflow; or unseen if nothing can be
//! read. Also while threads migrate and are interrupted, and if a restartable sequence restarts just before
//! its commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_insn::aarch64::encode;
use trapline_plan::ThreadId;
use trapline_plan::aarch64::stub::{Machine, TableLocation};
use trapline_plan::filter::{GroupBy, Sort, Tally, Tree};
use trapline_record::ring::RecordKind;
use trapline_record::tally::{CELLS, Rest, TAKING, TableShape, first_owned_row, first_row, text_key};
use trapline_record::view::View;

use super::fields::{edge, has_readv};
use super::filters::Random;
use super::gathered::{self, TRUE};
use super::latency::on_cpu;
use super::records::broken_off_at;
use super::tallies::{Set, argument, by};
use super::threads::{ids, tid};
use super::{ADD, CodeMemory, LINES, RET, by_hand, call, changes, machines, registered, run, storm};

/// Words that are texts as well.
static WORDS: [[u8; 64]; 8] = {
    let mut words = [[0; 64]; 8];
    let mut n = 0;
    while n < 8 {
        (words[n][0], words[n][1], words[n][2]) = (b'a', b'b', b'a' + n as u8);
        n += 1;
    }
    words
};

fn word(n: u64) -> u64 {
    WORDS[n as usize % 8].as_ptr() as u64
}

pub(super) type Found = BTreeMap<(Option<u64>, u64), u64>;

/// Rows of all lines by thread, if they belong to one, and key; the key of a text is that of its bytes.
pub(super) fn rows(table: TableLocation, words: &[AtomicU64], texts: bool) -> (Found, Rest) {
    let (mut rows, mut sum) = (Found::new(), Rest::default());
    for line in 0..table.area.lines {
        let rest = table.area.read_rows(View::new(words), 0, line, |row, word| {
            if texts {
                let bytes: Vec<u8> = (0..8).flat_map(|n| word(n).to_le_bytes()).collect();
                assert_eq!(row.key, text_key(&bytes), "{bytes:?}");
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(64);
                assert!(bytes[end..].iter().all(|&byte| byte == 0), "{bytes:?}");
            }
            *rows.entry((row.owner, row.key)).or_default() += row.hits;
        });
        sum.overflow += rest.overflow;
        sum.unseen += rest.unseen;
    }
    (rows, sum)
}

fn text(argument: u8, by_thread: bool) -> Tally {
    Tally { group_by: GroupBy::threads(by_thread), ..by(Tree::Number(0, false), Sort::Text(argument)) }
}

#[test]
fn each_text_has_a_row() {
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        on_cpu(3);
        let mut random = Random(0x7e97_0001_1234_9877);
        let set = Set::new(machine, id, text(1, false), None);
        let code = set.build(true, &[RET]);
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?}");
        }
        assert_eq!(rows(set.table, &set.words, true), (Found::new(), Rest { overflow: 0, unseen: 16 }));
        let mut expected = Found::new();
        let long = [b'l'; 100];
        let many: Vec<Vec<u8>> = (0..30).map(|n| format!("/tmp/file {n}\0behind it").into_bytes()).collect();
        let some: [&[u8]; 6] = [b"\0", b"a\0b", b"a\0c", &long[..64], &long, b"\xff\xfe\0"];
        for text in some.iter().copied().chain(many.iter().map(Vec::as_slice)).cycle().take(60) {
            // The bytes behind a short text can be read, too.
            let mut room = vec![b'~'; 256];
            room[..text.len()].copy_from_slice(text);
            let mut state = random.state();
            state[1] = room.as_ptr() as u64;
            assert_eq!(run(code, state, [0; 8]), state, "{machine:?} {id:?}");
            *expected.entry((None, text_key(&room[..64]))).or_default() += 1;
        }
        // At the end of mapped memory: what can be read counts.
        for len in [3, 1, 0] {
            let at = edge() - len;
            // SAFETY: a page of our own.
            (at..edge()).for_each(|at| unsafe { *(at as *mut u8) = b'e' });
            let mut state = random.state();
            state[1] = at;
            assert_eq!(run(code, state, [0; 8]), state);
            if len > 0 {
                *expected.entry((None, text_key(&b"eee"[..len as usize]))).or_default() += 1;
            }
        }
        let found = rows(set.table, &set.words, true);
        assert_eq!(found, (expected, Rest { overflow: 0, unseen: 17 }), "{machine:?} {id:?}");
        set.room.unmap();
    }
}

/// Aggregation at an entry, and at a return. Returns the content of its table.
fn both(
    machine: Machine,
    id: ThreadId,
    tally: &Tally,
    mut hits: impl FnMut(&CodeMemory, u64),
) -> [(Found, Rest); 2] {
    let texts = tally.texts() != 0;
    let set = Set::new(machine, id, tally.clone(), None);
    hits(&set.room, set.build(true, &[ADD, RET]));
    let calls = gathered::Set::reading(machine, id, tally.clone(), (None, TRUE), Vec::new());
    hits(&calls.calls.bench.room, calls.whole(&[ADD], RecordKind::Return));
    let [_, early, late, dropped] = calls.calls.sums();
    assert_eq!([early, late, dropped], [0; 3]);
    [rows(set.table, &set.words, texts), rows(calls.table, &calls.words, texts)]
}

#[test]
fn each_thread_has_rows_of_its_own() {
    for (machine, id) in
        machines(by_hand).into_iter().flat_map(|machine| ids().into_iter().map(move |id| (machine, id)))
    {
        let each = Tally { group_by: GroupBy::Thread, ..by(argument(1, 64, false), Sort::Each) };
        for tally in [each, text(1, true)] {
            let texts = tally.texts() != 0;
            let key = |n: u64| if texts { text_key(&WORDS[n as usize % 8]) } else { word(n) };
            let mut expected = [Found::new(), Found::new()];
            let mut nth = 0;
            let found = both(machine, id, &tally, |_, code| {
                let hit = |times: u64| {
                    on_cpu(2);
                    (0..times).for_each(|n| assert_eq!(call(code, 5, word(n)), word(n) + 5));
                    (u64::from(tid()), times)
                };
                let others = [1, 12, 70].map(|times| {
                    std::thread::scope(|scope| scope.spawn(|| hit(times)).join().expect("ends"))
                });
                for (thread, times) in [hit(30)].into_iter().chain(others) {
                    (0..times).for_each(|n| *expected[nth].entry((Some(thread), key(n))).or_default() += 1);
                }
                nth += 1;
            });
            for (found, expected) in found.into_iter().zip(expected) {
                assert_eq!(found, (expected, Rest::default()), "{machine:?} {id:?} {tally:?}");
            }
        }
    }
}

/// One table serves a probe that groups by thread, and one that does not and has no texts.
#[test]
fn a_table_for_two_is_used_by_either() {
    for machine in machines(by_hand) {
        on_cpu(5);
        for shape in [TableShape::OwnedRows(12), TableShape::Texts(12), TableShape::OwnedTexts(12)] {
            let each = by(argument(0, 64, false), Sort::Each);
            let set = Set::shaped(machine, ThreadId::Call, shape, each, None);
            let code = set.build(true, &[ADD, RET]);
            (0..40).for_each(|n| assert_eq!(call(code, n % 10, 2), n % 10 + 2));
            let owner = shape.rows().is_some_and(|rows| rows.owned).then_some(0);
            let expected: Found = (0..10).map(|n| ((owner, n), 4)).collect();
            assert_eq!(
                rows(set.table, &set.words, false),
                (expected, Rest::default()),
                "{machine:?} {shape:?}"
            );
        }
    }
}

/// So small a table that keys get in each other's way: a hit without a row is overflow.
#[test]
fn a_full_table_counts_on() {
    for machine in machines(by_hand) {
        on_cpu(4);
        for (shape, tally) in [
            (
                TableShape::OwnedRows(4),
                Tally { group_by: GroupBy::Thread, ..by(argument(1, 64, false), Sort::Each) },
            ),
            (TableShape::OwnedTexts(4), text(1, true)),
            (TableShape::Texts(4), text(1, false)),
        ] {
            let texts: Vec<[u8; 64]> =
                (0..90_u8).map(|n| core::array::from_fn(|at| [b'x', n + 1, 0][at.min(2)])).collect();
            let set = Set::shaped(machine, ThreadId::Call, shape, tally, None);
            let code = set.build(true, &[ADD, RET]);
            for text in texts.iter().cycle().take(300) {
                let at = text.as_ptr() as u64;
                assert_eq!(call(code, 1, at), at + 1);
            }
            let (found, rest) =
                rows(set.table, &set.words, set.filter.tally.as_ref().is_some_and(|one| one.texts() != 0));
            assert_eq!(found.values().sum::<u64>() + rest.overflow, 300, "{machine:?} {shape:?}");
            assert!(rest.overflow > 0 && found.len() >= 16 && rest.unseen == 0, "{found:?} {rest:?}");
            // A key with a row has it from its first hit on: three times, or four.
            assert!(found.values().all(|hits| [3, 4].contains(hits)), "{found:?}");
        }
    }
}

/// What a restartable sequence leaves behind that restarted between the key and its further words: a free row
/// with the same key.
#[test]
fn a_free_row_of_the_same_key_gets_all_of_it() {
    for machine in machines(by_hand) {
        on_cpu(2);
        for by_thread in [false, true] {
            let set = Set::new(machine, ThreadId::Call, text(1, by_thread), None);
            let code = set.build(true, &[ADD, RET]);
            let key = text_key(&WORDS[3]);
            let layout = set.table.area.shape.rows().expect("rows");
            let first = if by_thread {
                first_owned_row(key, tid().into(), layout.bits)
            } else {
                first_row(key, layout.bits)
            };
            for line in 0..u64::from(machine.lines) {
                let row = line * set.table.area.stride() + CELLS + first * layout.size();
                set.words[row as usize / 8].store(key, Ordering::Relaxed);
            }
            (0..2).for_each(|n| assert_eq!(call(code, n, word(3)), word(3) + n));
            let owner = by_thread.then(|| tid().into());
            let expected = (Found::from([((owner, key), 2)]), Rest::default());
            assert_eq!(rows(set.table, &set.words, true), expected, "{machine:?} {by_thread}");
        }
    }
}

/// Another thread's row of the same key lies where this one's would: the next row is taken.
#[test]
fn another_threads_row_is_passed_over() {
    for machine in machines(by_hand) {
        on_cpu(2);
        for tally in
            [Tally { group_by: GroupBy::Thread, ..by(argument(1, 64, false), Sort::Each) }, text(1, true)]
        {
            let set = Set::new(machine, ThreadId::Call, tally, None);
            let code = set.build(true, &[ADD, RET]);
            let texts = set.filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0);
            let key = if texts { text_key(&WORDS[3]) } else { word(3) };
            let layout = set.table.area.shape.rows().expect("rows");
            let row = CELLS + first_owned_row(key, tid().into(), layout.bits) * layout.size();
            for line in 0..u64::from(machine.lines) {
                let row = (line * set.table.area.stride() + row) as usize / 8;
                for (word, value) in [key, 5, u64::from(tid()) + 1].into_iter().enumerate() {
                    set.words[row + word].store(value, Ordering::Relaxed);
                }
            }
            (0..2).for_each(|n| assert_eq!(call(code, n, word(3)), word(3) + n));
            let (found, _) = rows(set.table, &set.words, false);
            let others = 5 * u64::from(machine.lines);
            let expected =
                Found::from([((Some(tid().into()), key), 2), ((Some(u64::from(tid()) + 1), key), others)]);
            assert_eq!(found, expected, "{machine:?}");
        }
    }
}

/// The committing word leads back to the abort handler three times. One hit is added, in a whole row.
#[test]
fn what_is_broken_off_is_added_once() {
    let machine = Machine { rseq: by_hand(), lse: false, lines: LINES };
    on_cpu(3);
    let tally = Tally { group_by: GroupBy::Thread, ..by(argument(1, 64, false), Sort::Each) };
    let set = Set::new(machine, ThreadId::Call, tally, None);
    let words = set.words(set.room.next(), true, &[ADD, RET]);
    // stlr x13, [x17]
    let (code, counter) = broken_off_at(&set.room, words, 0xC89F_FE2D, 3);
    assert_eq!(call(code, 40, 2), 42);
    assert_eq!(counter.load(Ordering::Relaxed), 0, "it was broken off");
    let expected = (Found::from([((Some(tid().into()), 2), 1)]), Rest::default());
    assert_eq!(rows(set.table, &set.words, false), expected);
}

/// A row that another thread is claiming is passed over: the next row is used.
#[test]
fn a_row_under_taking_is_passed_over() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_none()) {
        let machine = Machine { lines: 1, ..machine };
        for tally in [text(1, true), text(1, false)] {
            let set = Set::new(machine, ThreadId::Call, tally, None);
            let code = set.build(true, &[ADD, RET]);
            let (key, size) = (text_key(&WORDS[6]), set.table.area.shape.rows().expect("rows").size() / 8);
            assert_eq!(call(code, 0, word(6)), word(6));
            let taken =
                set.words.iter().position(|word| word.load(Ordering::Relaxed) == key).expect("its row");
            set.words[taken + 1].store(TAKING, Ordering::Relaxed);
            assert_eq!(call(code, 0, word(6)), word(6));
            assert_eq!(set.words[taken + size as usize].load(Ordering::Relaxed), key, "the next one");
            assert_eq!(rows(set.table, &set.words, true).0.values().sum::<u64>(), 1);
        }
    }
}

/// Put before the code: x2 = one of four texts, by the number in x0.
fn with_text(room: &CodeMemory, code: u64) -> u64 {
    // and x3, x0, #3; ldr x2, =WORDS; add x2, x2, x3, lsl #6; b.
    let at = room.next();
    let back = encode::b(at + 12, code).expect("near");
    let first = word(0);
    room.put(&[0x9240_0403, 0x5800_0062, 0x8B03_1842, back, first as u32, (first >> 32) as u32])
}

/// Threads that migrate and are interrupted lose no hit, at entries and at returns.
#[test]
fn nothing_is_lost_under_a_storm() {
    let four = || Box::new(Tree::Number(4, false));
    let remainder =
        Tree::Binary(trapline_plan::filter::Binary::Remainder, Box::new(argument(0, 64, false)), four());
    let mut tallies = vec![Tally { group_by: GroupBy::Thread, ..by(remainder, Sort::Each) }];
    if has_readv() {
        tallies.extend([text(2, false), text(2, true)]);
    } else {
        println!(
            "SKIP: texts: no process_vm_readv here, and what stands for it is not for handlers of signals"
        );
    }
    for (machine, tally) in
        machines(registered).into_iter().flat_map(|one| tallies.iter().map(move |tally| (one, tally)))
    {
        let mut sums = Vec::new();
        let id = ids().pop().expect("a way");
        let found = both(machine, id, tally, |room, code| {
            sums.push(storm(with_text(room, code)));
        });
        for ((rows, rest), (called, handled)) in found.into_iter().zip(sums) {
            assert_eq!(rows.values().sum::<u64>(), called + handled, "{machine:?} {tally:?}");
            assert_eq!(rest, Rest::default(), "{machine:?} {tally:?}");
            let wanted = |n: u64| if tally.texts() != 0 { text_key(&WORDS[n as usize]) } else { n };
            let keys: std::collections::BTreeSet<u64> = rows.keys().map(|row| row.1).collect();
            assert_eq!(keys, (0..4).map(wanted).collect(), "{rows:?}");
            let threads: std::collections::BTreeSet<_> = rows.keys().map(|row| row.0).collect();
            assert_eq!(threads.len(), if tally.group_by == GroupBy::Thread { 4 } else { 1 }, "{rows:?}");
        }
    }
}
