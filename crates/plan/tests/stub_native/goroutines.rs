//! LOSS-2 in Go programs, where the return of a call decides. What its entry left is found by goroutine and
//! by distance from the stack's end. So only the right return finds it, wherever the stack is by then and
//! whichever thread runs it.

use trapline_plan::filter::TargetFilter;
use trapline_plan::x86_64::stub::{Latency, Machine, Rings, Traced, trace};
use trapline_record::counters::filtered::{BEGUN, REJECTED, REJECTED_LATE};
use trapline_record::ring::{Record, RecordKind};

use crate::arena::{Arena, call, machines, map, set};
use crate::records::{PROBE, Reader, rings_for};
use crate::stages::{counted, exit, late, read, seen, traced};
use crate::state::{Goroutine, ONE, runs};

const STACK: u64 = 1 << 16;

struct Setting {
    arena: Arena,
    rings: Rings,
    /// A function that is entered and not left, and one that leaves calls which are not entered.
    entry: u64,
    exit: u64,
    /// The ends of two stacks.
    stacks: [u64; 2],
}

impl Setting {
    fn new(machine: Machine, condition: &str) -> Self {
        let mut arena = Arena::new();
        let rings = rings_for(&arena, &machine, 1 << 16, 64);
        let filter = TargetFilter { condition: Some(read("arg0 != 5")), ..late(read(condition)) };
        let marks = Some(Latency { go: Some(runs(None)), ..arena.deferred(64) });
        let traced = Traced { marks, ..traced(&arena, &machine, &rings, &filter) };
        let exit = exit(&mut arena, &traced, (RecordKind::Return, 1), &[0xC3]);
        let mut out = Vec::new();
        let pending = trace(&mut out, arena.next(), &traced, RecordKind::Entry, 1);
        out.push(0xC3);
        pending.finish(&mut out, None).expect("code");
        let entry = arena.put(&out);
        let stack = || map(STACK, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE) + STACK;
        Self { stacks: [stack(), stack()], arena, rings, entry, exit }
    }
    /// Calls one of the two functions with the stack pointer `below` bytes under that stack's end. It returns
    /// its argument.
    fn call(&mut self, half: u64, (stack, below): (usize, u64), argument: u64) {
        // push rbp; mov rbp, rsp; mov rsp, imm64; mov rax, rdi; call half; leave; ret
        let mut code = vec![0x55, 0x48, 0x89, 0xE5, 0x48, 0xBC];
        code.extend((self.stacks[stack] - below).to_le_bytes());
        code.extend([0x48, 0x89, 0xF8, 0xE8]);
        let here = self.arena.next() + code.len() as u64 + 4;
        code.extend((half.wrapping_sub(here) as u32).to_le_bytes());
        code.extend([0xC9, 0xC3]);
        let code = self.arena.put(&code);
        assert_eq!(call(code, argument), argument);
    }
    fn counts(&self) -> [u64; 4] {
        let [rejected, begun, late] = [REJECTED, BEGUN, REJECTED_LATE].map(|word| counted(&self.arena, word));
        [rejected, begun, late, self.arena.counted(0)]
    }
    /// Unmaps all of it. Nothing runs on the stacks any more.
    fn unmap(self) {
        for stack in self.stacks {
            // SAFETY: the mapping belongs to this setting, and is not used again.
            unsafe { libc::munmap((stack - STACK) as *mut libc::c_void, STACK as usize) };
        }
        self.arena.unmap();
    }
}

/// Sets the end of the goroutine's stack.
fn ends(goroutine: &Goroutine, at: u64) {
    set(core::ptr::from_ref(&goroutine[1]) as u64, at);
}

fn ended(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.values[0]).collect()
}

#[test]
fn a_call_ends_where_its_stack_has_gone() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut set_up = Setting::new(machine, "arg0 & 1 && ret < 100");
        let (rings, stacks) = (set_up.rings, set_up.stacks);
        let mut reader = Reader::new(&rings);
        let goroutine = &Goroutine::default();
        runs(Some(goroutine));
        for below in [64, 4096, 4096 + 8, 20_000] {
            // The stack moves, and what was left belongs to the call that was entered; or another call ends
            // there.
            for (end, ending, moved) in [
                (stacks[1], (1, below), true),
                (stacks[0], (0, below), true),
                (stacks[0], (0, below + 8), false),
                (stacks[0], (0, below + 4096), false),
                (stacks[1] + 16, (1, below), false),
            ] {
                for n in [3, 4, 5, 99, 101] {
                    let before = set_up.counts();
                    ends(goroutine, stacks[0]);
                    set_up.call(set_up.entry, (0, below), n);
                    ends(goroutine, end);
                    set_up.call(set_up.exit, ending, n);
                    let records = seen(&mut reader);
                    let passes = moved && n & 1 == 1 && n != 5 && n < 100;
                    let expected: &[u64] = if passes { &[n, n] } else { &[] };
                    assert_eq!(ended(&records), expected, "{below}, {ending:?}");
                    let after = set_up.counts();
                    let more = [0, 1, 2, 3].map(|word| after[word] - before[word]);
                    let late = u64::from(moved && n != 5 && !passes);
                    assert_eq!(more, [u64::from(n == 5), u64::from(n != 5), late, 0], "{below}, {ending:?}");
                    if let [entry, exit] = records[..] {
                        assert_eq!((entry.kind, exit.kind), (RecordKind::Entry, RecordKind::Return));
                        assert_eq!((entry.probe, exit.probe), (PROBE, PROBE));
                        assert_eq!((entry.sp, entry.tid), (exit.sp, exit.tid), "they are a pair");
                    }
                }
            }
        }
        set_up.unmap();
    }
}

/// Two goroutines and a thread of another language, which runs none, use one place of the stack in turn. None
/// ends another's call.
#[test]
fn calls_of_other_goroutines_are_others() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut set_up = Setting::new(machine, "ret");
        let (rings, [end, _]) = (set_up.rings, set_up.stacks);
        let mut reader = Reader::new(&rings);
        let all = [Some([0, end]), Some([0, end]), None];
        for (n, one) in (1..).zip(&all) {
            runs(one.as_ref());
            set_up.call(set_up.entry, (0, 640), n);
        }
        for n in [2, 3, 1] {
            runs(all[n - 1].as_ref());
            for wanted in [&[n as u64, 70][..], &[]] {
                set_up.call(set_up.exit, (0, 640), 70);
                assert_eq!(ended(&seen(&mut reader)), wanted, "each ends once");
            }
        }
        assert_eq!(set_up.counts(), [0, 3, 0, 0]);
        set_up.unmap();
    }
}

/// The exit's record names the thread of the entry, because readers pair by that.
#[test]
fn a_goroutine_ends_its_calls_in_any_thread() {
    let _one = ONE.lock();
    for machine in machines() {
        let mut set_up = Setting::new(machine, "tid");
        let rings = set_up.rings;
        let goroutine = &[0, set_up.stacks[0]];
        runs(Some(goroutine));
        set_up.call(set_up.entry, (0, 640), 9);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                runs(Some(goroutine));
                set_up.call(set_up.exit, (0, 640), 9);
            });
        });
        let records = seen(&mut Reader::new(&rings));
        let [entry, exit] = records[..] else { panic!("{records:?}") };
        // SAFETY: gettid has no precondition.
        let tid = unsafe { libc::gettid() } as u32;
        assert_eq!((entry.tid, exit.tid, entry.sp), (tid, tid, exit.sp));
        set_up.unmap();
    }
}
