//! LOSS-1 and SAFE-2 for aggregations of texts: each hit is in the row of its text, which is whole; in the
//! overflow; or unseen if nothing can be read.

use std::collections::BTreeMap;

use trapline_plan::filter::{Sort, Tree};
use trapline_plan::x86_64::stub::Liveness;
use trapline_record::ring::RecordKind;
use trapline_record::tally::{CELLS, Rest, TableShape};

use crate::arena::{Arena, LINES, call, machines};
use crate::counts::{THREADS, everywhere, storm};
use crate::state::{ONE, Random, assert_kept, back, tl_run};
use crate::tallies::{Set, of};

/// Texts by their bytes, as rows hold them, and their hits.
pub(crate) fn texts(set: &Set) -> (BTreeMap<Vec<u8>, u64>, Rest) {
    let (mut rows, mut sum) = (BTreeMap::new(), Rest::default());
    for line in 0..LINES {
        let rest = set.table.area.read_rows(set.view(), 0, line, |row, word| {
            let bytes: Vec<u8> = (0..8).flat_map(|n| word(n).to_le_bytes()).collect();
            assert_eq!(row.key, trapline_record::tally::text_key(&bytes), "{bytes:?}");
            *rows.entry(bytes).or_default() += row.hits;
        });
        sum.overflow += rest.overflow;
        sum.unseen += rest.unseen;
    }
    (rows, sum)
}

fn padded(text: &[u8]) -> Vec<u8> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len()).min(64);
    let mut bytes = text[..end].to_vec();
    bytes.resize(64, 0);
    bytes
}

#[test]
fn each_text_has_a_row() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut random = Random(0x7e97_0001_1234_9876);
        let mut arena = Arena::new();
        let set = Set::new(&arena, &machine, of(Tree::Number(0, false), Sort::Text(1)), None);
        for n in 0..4 {
            let site = Liveness { flags_dead: n & 1 == 1, dead: 0, red_zone_live: n & 2 == 2 };
            let code = set.build(&mut arena, site, RecordKind::Entry, &back());
            assert_kept(&format!("{site:?}"), code, &site, &mut random);
        }
        let (rows, before) = texts(&set);
        assert_eq!((rows.len(), before.overflow), (0, 0), "random numbers are no addresses");
        assert_eq!(before.unseen, 200);
        // At the end of mapped memory: what can be read counts.
        let page = crate::arena::map(8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: the second page is our own, and nothing uses it.
        unsafe { libc::munmap((page + 4096) as *mut libc::c_void, 4096) };
        // SAFETY: the first page is our own, too.
        (0..4096).for_each(|n| unsafe { *((page + n) as *mut u8) = b'e' });
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &back());
        let long = [b'l'; 100];
        let mut expected: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut all = 0;
        let many: Vec<Vec<u8>> = (0..300).map(|n| format!("/tmp/file {n}\0behind it").into_bytes()).collect();
        let some: [&[u8]; 6] = [b"\0", b"a\0b", b"a\0c", &long[..64], &long, b"\xff\xfe\0"];
        let texts_of = some.iter().copied().chain(many.iter().map(Vec::as_slice));
        for (round, text) in texts_of.clone().chain(texts_of.take(100)).enumerate() {
            // The bytes behind a short text can be read, too.
            let mut room = vec![b'~'; 256];
            room[..text.len()].copy_from_slice(text);
            let mut state = random.state();
            state.regs[6] = room.as_ptr() as u64;
            let before = state.regs;
            // SAFETY: the code runs from tl_run's loaded state to tl_back, and the harness has one user at a
            // time.
            unsafe { tl_run(code, &mut state) };
            assert_eq!(state.regs, before, "{round}");
            *expected.entry(padded(&room)).or_default() += 1;
            all += 1;
        }
        for (at, text) in [(page + 4093, &b"eee"[..]), (page + 4095, b"e"), (page + 4096, b"")] {
            let mut state = random.state();
            state.regs[6] = at;
            // SAFETY: as above.
            unsafe { tl_run(code, &mut state) };
            if !text.is_empty() {
                *expected.entry(padded(text)).or_default() += 1;
                all += 1;
            }
        }
        let (rows, rest) = texts(&set);
        assert_eq!(rows, expected);
        assert_eq!((rows.values().sum::<u64>(), rest.overflow, rest.unseen), (all, 0, before.unseen + 1));
        arena.unmap();
    }
}

/// What a restartable sequence leaves behind that restarted between key and text.
#[test]
fn a_free_row_of_the_same_key_gets_its_text() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut arena = Arena::new();
        let set = Set::new(&arena, &machine, of(Tree::Number(0, false), Sort::Text(0)), None);
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
        let mut text = [0; 64];
        text[..9].copy_from_slice(b"half done");
        let key = trapline_record::tally::text_key(&text);
        let TableShape::Texts(bits) = set.table.area.shape else { panic!("texts") };
        let row = CELLS + trapline_record::tally::first_row(key, bits) * 16;
        for line in 0..u64::from(LINES) {
            crate::arena::set(set.table.base + line * set.table.area.stride() + row, key);
        }
        let at = text.as_ptr() as u64;
        assert_eq!((call(code, at), call(code, at)), (at, at));
        let (rows, rest) = texts(&set);
        assert_eq!((rows, rest), (BTreeMap::from([(text.to_vec(), 2)]), Rest::default()));
        arena.unmap();
    }
}

/// Calls of one thread.
const TURNS: usize = 20_000;

/// Eight threads that migrate and a timer's handler, with a table of few rows.
#[test]
fn texts_are_counted_to_the_hit_in_a_storm() {
    for machine in machines() {
        let mut arena = Arena::new();
        let mut set = Set::new(&arena, &machine, of(Tree::Number(0, false), Sort::Text(0)), None);
        set.table.area.shape = TableShape::Texts(4);
        // mov rax, rdi; ret
        let code = set.build(&mut arena, Liveness::default(), RecordKind::Entry, &[0x48, 0x89, 0xF8, 0xC3]);
        let all: Vec<[u8; 64]> = (0..100_u8)
            .map(|n| {
                let mut text = [0; 64];
                text[..10].copy_from_slice(format!("text {n:05}").as_bytes());
                text
            })
            .collect();
        let handled = storm(code, || {
            everywhere(|| {
                (0..TURNS).for_each(|n| {
                    let at = all[n % 100].as_ptr() as u64;
                    assert_eq!(call(code, at), at);
                });
            });
        });
        let (rows, rest) = texts(&set);
        let counted: u64 = rows.values().sum();
        assert!(rows.keys().all(|row| all.iter().any(|text| text[..] == row[..])), "whole texts");
        assert!(rows.len() >= 16 && rest.overflow > 0, "{} {rest:?}", rows.len());
        // The handler passes a value that is no address.
        assert_eq!(counted + rest.overflow + rest.unseen, THREADS * TURNS as u64 + handled);
        assert_eq!(rest.unseen, handled);
        arena.unmap();
    }
}
