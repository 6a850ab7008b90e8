//! STK-1 and SAFE-2 for stacks in records, executed: what is written is what was there, whatever x29 is, and
//! no state is disturbed.

use std::cell::Cell;

use trapline_plan::aarch64::stub::{Code as _, Machine, trace};
use trapline_plan::{Stacks, ThreadId, Unwind};
use trapline_record::ring::{Record, RecordKind};
use trapline_record::stack::{FIRST, Stack, room_for_copy, room_for_frames};

use super::records::{Bench, machines, on_cpu};
use super::{RET, around, by_hand, changes, changes_on, thread_pointer};

const FRAMES: u8 = 10;
/// Words of the frames that a test makes up, on its own stack above the stub's.
const WORDS: usize = 64;

thread_local! {
    /// Where a thread's stack lies, stored as glibc stores it.
    static BLOCK: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

fn block() -> Option<i32> {
    let at = BLOCK.with(|block| block.as_ptr() as u64);
    Some(at.wrapping_sub(thread_pointer()).cast_signed() as i32)
}

fn bench(machine: Machine, stacks: Stacks, unwind: Unwind) -> Bench {
    let most = if let Unwind::Copy(bytes) = unwind { room_for_copy(bytes) } else { room_for_frames(FRAMES) };
    let mut bench = Bench::new(machine, 8 << 10, 64, ThreadId::Call);
    bench.rings.area.most = most;
    bench.rings.stacks = stacks;
    on_cpu(0);
    bench
}

fn code(bench: &Bench, unwind: Unwind, at_entry: bool) -> u64 {
    code_of(bench, unwind, at_entry, false)
}

fn code_of(bench: &Bench, unwind: Unwind, at_entry: bool, goroutine: bool) -> u64 {
    let traced = trapline_plan::aarch64::stub::Traced { at_entry, goroutine, ..bench.traced(unwind) };
    bench
        .room
        .put(&trace(bench.room.next(), traced, RecordKind::Entry, 6).finish(&[RET], None).expect("in reach"))
}

/// One hit with this x29. Returns its record, and the words behind it.
// Never inlined, so that each hit is at the same depth of the stack.
#[inline(never)]
fn hit(bench: &mut Bench, code: u64, x29: u64) -> (Record, Vec<u64>) {
    hit_on(bench, code, x29, 0)
}

/// The same with this g.
#[inline(never)]
fn hit_on(bench: &mut Bench, code: u64, x29: u64, g: u64) -> (Record, Vec<u64>) {
    let mut state = [0_u64; 32];
    (state[28], state[29]) = (g, x29);
    // SAFETY: 32 words; the code preserves what a function preserves.
    unsafe { around(state.as_mut_ptr(), code) };
    assert_eq!((state[28], state[29]), (g, x29));
    let mut all = taken(bench);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn taken(bench: &Bench) -> Vec<(Record, Vec<u64>)> {
    let (area, mut all) = (bench.rings.area, Vec::new());
    for ring in 0..area.rings {
        // The ring itself has the position up to which records were taken.
        let mut tail = bench.view().get(area.ring(ring) + trapline_record::ring::TAIL);
        let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
            let words = Stack::new(record, u64::from(area.most) / 8).words;
            all.push((*record, (0..words).map(|n| word(FIRST + n)).collect()));
        };
        area.take_words(bench.view(), ring, &mut tail, each).expect("a head that can be");
    }
    all
}

/// `pacia1716`: does nothing on a processor without signed addresses.
fn signed(address: u64, by: u64) -> u64 {
    let mut address = address;
    // SAFETY: the instruction changes only these two registers.
    unsafe { std::arch::asm!("hint #8", inout("x17") address, in("x16") by) };
    address
}

#[test]
fn a_walk_follows_frames_and_nothing_else() {
    let mut frames = [0_u64; WORDS];
    let at = frames.as_mut_ptr() as u64;
    let end = at + WORDS as u64 * 8;
    // Three frames: a chain that ends with 0, one that goes round, and one that ends with the stack's last
    // words. The first two addresses are signed.
    for (n, next, back) in [
        (0, at + 80, signed(1, at)),
        (10, at + 160, signed(0x1234_5678, at + 80)),
        (20, 0, 3),
        (30, at + 240, 4),
        (WORDS - 2, 7, 5),
    ] {
        frames[n] = next;
        frames[n + 1] = back;
    }
    println!("an address signed: {:#x}", frames[1]);
    std::hint::black_box(&mut frames);
    let stacks = Stacks { main: (at - (64 << 10), end), ..Stacks::default() };
    for machine in machines(by_hand) {
        let mut bench = bench(machine, stacks, Unwind::Frames(FRAMES));
        for at_entry in [false, true] {
            let code = code(&bench, Unwind::Frames(FRAMES), at_entry);
            for flags in 0..16 {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?}");
            }
            taken(&bench);
            let room = usize::from(FRAMES) - usize::from(at_entry);
            let cases: [(u64, Vec<u64>, u64); 12] = [
                (at, vec![1, 0x1234_5678, 3], 0),
                (at + 80, vec![0x1234_5678, 3], 0),
                (at + 240, vec![4; room], at + 240),
                (end - 16, vec![5], 7),
                (end - 15, vec![], end - 15),
                (end - 8, vec![], end - 8),
                (end, vec![], end),
                (end + 4096, vec![], end + 4096),
                (0, vec![], 0),
                (1, vec![], 1),
                (u64::MAX, vec![], u64::MAX),
                (u64::MAX - 15, vec![], u64::MAX - 15),
            ];
            for (x29, expected, last) in cases {
                let (record, words) = hit(&mut bench, code, x29);
                let stack = Stack::new(&record, 1024);
                assert_eq!(words[usize::from(at_entry)..], expected, "{x29:#x} {at_entry} {machine:?}");
                assert_eq!((stack.frame, stack.bounded), (last, true), "{x29:#x}");
                assert!(stack.end.abs_diff(end) < 2 && record.sp < at, "{stack:?}");
                assert_eq!(stack.is_cut(FRAMES), expected.len() == room, "{x29:#x}");
                if at_entry {
                    let caller = around as *const () as u64;
                    assert!((caller..caller + 512).contains(&words[0]), "x30: {:#x}", words[0]);
                }
                // The program keeps nothing below the stack pointer.
                let (_, words) = hit(&mut bench, code, record.sp - 16);
                assert_eq!(words.len(), usize::from(at_entry));
            }
        }
        assert_eq!(bench.dropped(), 0);
    }
}

/// If only the page is known, a walk ends with it, and the record shows it. A thread's own block gives more.
#[test]
fn a_walk_ends_where_the_stack_is_known_to() {
    let frame = [0_u64, 9];
    let at = std::hint::black_box(&frame).as_ptr() as u64;
    for machine in machines(by_hand) {
        let mut nothing = bench(machine, Stacks::default(), Unwind::Frames(FRAMES));
        let there = code(&nothing, Unwind::Frames(FRAMES), false);
        let (record, words) = hit(&mut nothing, there, at);
        let stack = Stack::new(&record, 1024);
        assert_eq!((stack.bounded, stack.end), (false, (record.sp | 0xfff) - 1), "{stack:?}");
        assert_eq!(words.len(), usize::from(at + 16 <= record.sp | 0xfff), "{stack:?}");
        let mut known =
            bench(machine, Stacks { block: block(), ..Stacks::default() }, Unwind::Frames(FRAMES));
        let there = code(&known, Unwind::Frames(FRAMES), false);
        for (block, ends) in [
            ([(record.sp - 4096) & !0xfff, 64 << 10], true),
            // The main thread's stack begins at 0. A stack that does not contain the stack pointer belongs to
            // another thread.
            ([0, record.sp + 8192], false),
            ([at + 4096, 8192], false),
            ([record.sp & !0xfff, record.sp & 0xff0], false),
        ] {
            BLOCK.set(block);
            let (record, words) = hit(&mut known, there, at);
            let stack = Stack::new(&record, 1024);
            assert_eq!(stack.bounded, ends, "{block:x?} {stack:x?}");
            if ends {
                assert_eq!((stack.end, &words[..]), (block[0] + block[1], &[9][..]));
            }
        }
    }
}

/// A goroutine's stack ends where g places its end. There is no known end if the stack pointer is not on it, or if
/// there is no goroutine.
#[test]
fn a_walk_ends_where_the_goroutines_stack_does() {
    let mut frames = [0_u64; WORDS];
    let at = frames.as_mut_ptr() as u64;
    let end = at + WORDS as u64 * 8;
    (frames[0], frames[1], frames[WORDS - 2], frames[WORDS - 1]) = (end - 16, 1, 7, 5);
    std::hint::black_box(&mut frames);
    for machine in machines(by_hand) {
        // By another thread's block, the stack would end elsewhere.
        BLOCK.set([at - (64 << 10), (64 << 10) + 16]);
        let stacks = Stacks { block: block(), ..Stacks::default() };
        let mut bench = bench(machine, stacks, Unwind::Frames(FRAMES));
        let there = code_of(&bench, Unwind::Frames(FRAMES), false, true);
        let low = at - (32 << 10);
        for (g, ends) in [
            (Some([low, end]), Some(end)),
            (Some([low, end - 8]), Some(end - 8)),
            // On another stack: a signal's.
            (Some([end + 4096, end + 8192]), None),
            (Some([low - 4096, low]), None),
            (None, None),
        ] {
            let place = g.as_ref().map_or(0, |g| g.as_ptr() as u64);
            let (record, words) = hit_on(&mut bench, there, at, place);
            let stack = Stack::new(&record, 1024);
            let (expected, words_then, last) = match ends {
                Some(ends) if ends == end => (end, vec![1, 5], 7),
                Some(ends) => (ends, vec![1], end - 16),
                None => (at + 16, vec![1], end - 16),
            };
            assert_eq!((stack.end & !1, stack.bounded), (expected, true), "{g:x?} {stack:x?}");
            assert_eq!((words, stack.frame), (words_then, last), "{g:x?}");
        }
        let g = [low, end];
        for flags in 0..16 {
            let (before, after) = changes_on(there, flags, Some(&g));
            assert_eq!(after, before, "{machine:?}");
        }
        taken(&bench);
        // Code that runs no goroutine does not read g, whatever is in x28.
        let plain = code(&bench, Unwind::Frames(FRAMES), false);
        let (_, words) = hit_on(&mut bench, plain, at, u64::MAX - 7);
        assert_eq!((words, bench.dropped()), (vec![1], 0));
    }
}

/// x30 first, then the words from the stack pointer on: as many as there are, or as there is room for.
#[test]
fn a_copy_is_what_was_there() {
    const COPY: u32 = 1024;
    let mut above = [0_u64; 256];
    above.iter_mut().zip(100..).for_each(|(word, n)| *word = n);
    let at = std::hint::black_box(&mut above).as_ptr() as u64;
    let stacks = Stacks { main: (at - (64 << 10), at + 2048), ..Stacks::default() };
    for machine in machines(by_hand) {
        let unwind = Unwind::Copy(COPY);
        let mut bench = bench(machine, stacks, unwind);
        let there = code(&bench, unwind, true);
        for flags in 0..16 {
            let (before, after) = changes(there, flags);
            assert_eq!(after, before, "{machine:?}");
            assert_eq!(taken(&bench).len(), 1);
        }
        let (record, words) = hit(&mut bench, there, 0x1234);
        let stack = Stack::new(&record, u64::from(bench.rings.area.most) / 8);
        assert_eq!((stack.frame, stack.end, stack.bounded), (0x1234, at + 2048, true));
        assert_eq!(words.len() as u64, u64::from(COPY) / 8 - FIRST, "as many as have room");
        // Words of this test itself, which lie above.
        let past = ((at - record.sp) / 8) as usize + 1;
        assert!(past < words.len(), "{past}: it lies too far up");
        assert!(words[past..].iter().zip(100..).all(|(word, n)| *word == n), "{:?}", &words[past..]);
        // The stack ends a few words behind S, or right there.
        for few in [0, 1, 5] {
            bench.rings.stacks.main.1 = record.sp + few * 8;
            let there = code(&bench, unwind, true);
            let (again, words) = hit(&mut bench, there, 0x1234);
            assert_eq!(again.sp, record.sp, "each hit is at one depth");
            if few > 0 {
                assert_eq!(words.len() as u64, 1 + few);
            }
            let caller = around as *const () as u64;
            assert!((caller..caller + 512).contains(&words[0]), "x30: {:#x}", words[0]);
        }
        assert_eq!(bench.dropped(), 0);
    }
}
