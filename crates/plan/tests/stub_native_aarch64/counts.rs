//! Stubs that count, and the words that lead to them, executed.

use std::sync::atomic::Ordering;

use super::{
    ADD, AREA, CBNZ, CodeMemory, DATA, LINES, RET, by_hand, call, changes, in_threads_at_once, machines,
    registered, storm,
};
use trapline_insn::aarch64::{Options, encode};
use trapline_plan::aarch64::stub::{Machine, count};
use trapline_plan::aarch64::{PatchedWord, Tactic, entry_index, patch};

#[test]
fn a_hit_goes_to_its_cpus_line() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_some()) {
        let room = CodeMemory::new();
        let code = room.counted(&machine, true, &[ADD, RET]);
        // CPUs with a line, CPUs beyond, and threads without a registered area. The latter two use the last
        // line.
        for (cpu, line) in
            [(0, 0), (7, 7), (8, 8), (9, 8), (4000, 8), (u32::MAX, 8), (u32::MAX - 1, 8), (1 << 31, 8)]
        {
            AREA.with(|area| area.cpu[1].store(cpu, Ordering::Relaxed));
            let before = room.word(line).load(Ordering::Relaxed);
            for round in 1..=100 {
                assert_eq!(call(code, round, 5), round + 5, "{machine:?}");
            }
            assert_eq!(room.word(line).load(Ordering::Relaxed), before + 100, "cpu {cpu}, {machine:?}");
            assert_eq!(AREA.with(|area| area.section.load(Ordering::Relaxed)), 0, "cleared");
        }
        assert_eq!(room.counts().iter().sum::<u64>(), 800);
    }
}

/// A branch reaches ±128 MiB. A stub further away is reached through an island, from which the copy goes on:
/// at an entry, inside a function and at a return. Registers, flags and the stack are as they were.
#[test]
fn a_stub_out_of_reach_is_reached_over_an_island() {
    for machine in machines(by_hand) {
        for (index, ip_free) in [(0, false), (0, true), (1, false), (2, false), (2, true)] {
            let [near, far] = CodeMemory::far_apart();
            let function = near.put(&[CBNZ, ADD, RET]);
            let options = Options { ip_free, ..Options::default() };
            let place = PatchedWord { words: &[CBNZ, ADD, RET], start: function, index, options };
            let (counters, stub, island) = (far.base + DATA, far.next(), near.next());
            assert!(patch(&place, &machine, counters, stub, None).is_err());
            let patched = patch(&place, &machine, counters, stub, Some(island)).expect("by an island");
            let Tactic::Island { words } = patched.tactic else { panic!("{patched:?}") };
            assert_eq!((near.put(&words), far.put(&patched.stub)), (island, stub));
            near.write(patched.at, &[patched.new]);
            AREA.with(|area| area.cpu[1].store(3, Ordering::Relaxed));
            for round in 1..=100 {
                // The addition is skipped unless x0 is 0.
                assert_eq!(call(function, round, 5), round, "{machine:?}");
                assert_eq!(call(function, 0, 5), 5, "{machine:?}");
            }
            let hits = |index| if index == 1 { 100 } else { 200 };
            assert_eq!(far.counts().iter().sum::<u64>(), hits(index), "{machine:?}");
            for flags in 0..16 {
                let (mut before, mut after) = changes(function, flags);
                if before[0] == 0 {
                    before[0] = before[1];
                }
                // The registers that the stub's own code may overwrite are free at the displaced word.
                if ip_free {
                    (after[16], after[17]) = (before[16], before[17]);
                }
                assert_eq!(before, after, "{machine:?} {index} {ip_free}");
            }
        }
    }
}

/// An abort restarts the sequence. Entered at the handler that the descriptor names, the stub counts once.
#[test]
fn an_aborted_hit_is_counted_once() {
    let machine = Machine { rseq: by_hand(), lse: true, lines: LINES };
    let room = CodeMemory::new();
    let pending = count(room.next(), &machine, room.base + DATA, true);
    let words = pending.finish(&[ADD, RET], None).expect("in reach");
    let code = room.put(&words);
    let double = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let signature = words.iter().position(|word| *word == 0xD428_BC00).expect("a signature");
    let abort = code + 4 * (signature as u64 + 1);
    let descriptor =
        (0..words.len() - 7).step_by(2).find(|&at| double(at + 6) == abort).expect("a descriptor");
    let (start, len) = (double(descriptor + 2), double(descriptor + 4));
    assert!(double(descriptor) == 0 && (code + 4 * descriptor as u64).is_multiple_of(32));
    assert!(start > code && start + len < abort && len.is_multiple_of(4));
    // The last word of the section is the store.
    assert_eq!(words[((start + len - code) / 4 - 1) as usize], 0xF900_0230);
    AREA.with(|area| area.cpu[1].store(3, Ordering::Relaxed));
    assert_eq!((call(abort, 1, 2), room.counts().iter().sum()), (3, 1_u64));
}

#[test]
fn registers_and_flags_are_as_they_were() {
    for ip_free in [true, false] {
        for machine in machines(by_hand) {
            for cpu in [2, u32::MAX] {
                AREA.with(|area| area.cpu[1].store(cpu, Ordering::Relaxed));
                let room = CodeMemory::new();
                let code = room.counted(&machine, ip_free, &[RET]);
                for flags in 0..16_u64 {
                    let (before, mut after) = changes(code, flags);
                    if ip_free {
                        (after[16], after[17]) = (before[16], before[17]);
                    }
                    assert_eq!(after, before, "{machine:?} {ip_free} {cpu}");
                }
                assert_eq!(room.counts().iter().sum::<u64>(), 16);
            }
        }
    }
}

/// LOSS-1, as far as this machine goes: threads migrate and are interrupted, with the kernel's own areas if
/// it has them.
#[test]
fn nothing_is_lost() {
    for machine in machines(registered) {
        let room = CodeMemory::new();
        let (called, handled) = storm(room.counted(&machine, true, &[ADD, RET]));
        assert_eq!(room.counts().iter().sum::<u64>(), called + handled, "{machine:?}");
        println!("{machine:?}: {called} and {handled} from signals");
    }
}

/// In a process without rseq, threads that exist at once write mostly to lines of their own.
#[test]
fn threads_without_rseq_are_spread_over_the_lines() {
    for machine in machines(|| None).into_iter().filter(|machine| machine.lines > 1) {
        let room = CodeMemory::new();
        in_threads_at_once(room.counted(&machine, false, &[ADD, RET]));
        let counts = room.counts();
        assert_eq!(counts.iter().sum::<u64>(), 16);
        assert!(counts.iter().filter(|&&count| count > 0).count() > 3, "{counts:?}");
    }
}

/// A function's entry, its `ret`, and a branch in it are patched. The function does what it did, and each hit
/// is counted.
#[test]
fn patched_functions_do_what_they_did() {
    const PUSH: u32 = 0xA9BF_7BFD;
    const POP: u32 = 0xA8C1_7BFD;
    // paciasp stays; cbz x0, +8: skips the addition.
    let functions: [(&[u32], usize, [u64; 2]); 6] = [
        (&[encode::NOP, ADD, RET], 0, [7, 9]),
        (&[0xD503_233F, PUSH, ADD, POP, 0xD503_23BF, RET], 1, [7, 9]),
        (&[PUSH, ADD, POP, RET], 3, [7, 9]),
        (&[0xB400_0040, ADD, RET], 0, [0, 9]),
        (&[0x1400_0002, ADD, RET], 0, [0, 2]),
        // adr x0, .: it must return the address of the original.
        (&[0x1000_0000, RET], 0, [u64::MAX, u64::MAX]),
    ];
    for machine in machines(by_hand) {
        for (words, index, results) in functions {
            let room = CodeMemory::new();
            let start = room.put(words);
            assert!(index != 0 || entry_index(words) == 0);
            let place =
                PatchedWord { words, start, index, options: Options { ip_free: true, ..Options::default() } };
            let made = patch(&place, &machine, room.base + DATA, room.next(), None).expect("a patch");
            room.put(&made.stub);
            let bare: Vec<u64> = [0, 2].map(|x0| call(start, x0, 7)).to_vec();
            room.write(made.at, &[made.new]);
            for (x0, (result, bare)) in [0, 2].into_iter().zip(results.into_iter().zip(bare)) {
                let expected = if result == u64::MAX { start } else { result };
                assert_eq!((call(start, x0, 7), bare), (expected, expected), "{words:08x?}");
            }
            assert_eq!(room.counts().iter().sum::<u64>(), 2, "{words:08x?}");
            room.write(made.at, &[made.old]);
            assert_eq!((call(start, 2, 7), room.counts().iter().sum::<u64>()), (bare_of(results, start), 2));
        }
    }
}

fn bare_of(results: [u64; 2], start: u64) -> u64 {
    if results[1] == u64::MAX { start } else { results[1] }
}
