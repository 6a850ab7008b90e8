//! HOLD-1, HOLD-2: which calls are held, that they go on when they are answered, and that they go on by
//! themselves otherwise. Every register and the flags are as before (STUB-1).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use trapline_plan::Hold;
use trapline_plan::Origin::{Constant, Memory, Register, Unknown};
use trapline_plan::aarch64::stub::{Code as _, Machine, hold};
use trapline_plan::aarch64::{Options, PatchedWord, patch_with};
use trapline_record::control::at;
use trapline_record::control::fact::{CLOCK, FAULTS, FILTER, TRAPS};

use super::{CodeMemory, RET, changes};

type Function = extern "C" fn(u64, u64, u64) -> u64;

/// With and without atomic instructions.
fn machines() -> Vec<Machine> {
    let lse = std::arch::is_aarch64_feature_detected!("lse");
    let all = [false, true].into_iter().filter(|wants| lse || !wants);
    all.map(|lse| Machine { rseq: None, lse, lines: 1 }).collect()
}

/// Code at which threads are held, in front of `rest` and behind `before`, and its two words.
struct Held {
    code: u64,
    room: CodeMemory,
}

impl Held {
    fn new(machine: &Machine, what: Hold, below: u32, (before, rest): (&[u32], &[u32])) -> Self {
        let room = CodeMemory::new();
        let word = |line| std::ptr::from_ref(room.word(line)) as u64;
        let (words, at) = ((word(0), word(1)), room.next() + 4 * before.len() as u64);
        let stub = hold(at, machine, what, words, below).finish(rest, None).expect("in reach");
        let code = room.put(&[before, &stub].concat());
        Self { code, room }
    }
    fn asked(&self) -> &AtomicU64 {
        self.room.word(0)
    }
    fn closed(&self) -> &AtomicU64 {
        self.room.word(1)
    }
    fn function(&self) -> Function {
        // SAFETY: tests put functions of this type there, and it stays until `unmap`.
        unsafe { core::mem::transmute::<u64, Function>(self.code) }
    }
}

/// add x0, x0, x1, lsl #1; add x0, x0, x2, lsl #2; ret
const SUM: [u32; 3] = [0x8B01_0400, 0x8B02_0800, RET];

#[test]
fn calls_that_change_a_fact_ask_and_no_others() {
    let (handler, ignored, default) = ([0x1000_u64], [1_u64], [0_u64]);
    let at = |action: &[u64; 1]| action.as_ptr() as u64;
    let cases = [
        (Hold::Sigaction, [11, at(&handler), 0], FAULTS),
        (Hold::Sigaction, [7, at(&handler), 0], FAULTS),
        (Hold::Sigaction, [11, at(&ignored), 0], 0),
        (Hold::Sigaction, [11, at(&default), 0], 0),
        (Hold::Sigaction, [11, 0, at(&default)], 0),
        (Hold::Sigaction, [10, at(&handler), 0], 0),
        (Hold::Sigaction, [5, at(&handler), 0], TRAPS),
        (Hold::Sigaction, [4, at(&handler), 0], TRAPS),
        (Hold::Sigaction, [5, 0, at(&default)], 0),
        (Hold::Prctl, [26, 2, 0], CLOCK),
        (Hold::Prctl, [26, 1, 0], 0),
        (Hold::Prctl, [22, 2, 1], FILTER),
        (Hold::Prctl, [22, 1, 0], FILTER | CLOCK),
        (Hold::Prctl, [38, 1, 0], 0),
        (Hold::Prctl, [59, 1, 0], FILTER),
        (Hold::Prctl, [59, 0, 0], 0),
        // An `int` is the low half of its register.
        (Hold::Prctl, [0xABCD_0000_001A, 0x1234_0000_0002, 0], CLOCK),
        (Hold::Syscall, [277, 1, 0], FILTER),
        (Hold::Syscall, [277, 0, 0], FILTER | CLOCK),
        (Hold::Syscall, [277, 2, 0], 0),
        (Hold::Syscall, [167, 26, 2], CLOCK),
        (Hold::Syscall, [167, 22, 2], FILTER),
        (Hold::Syscall, [167, 15, 2], 0),
        (Hold::Syscall, [134, 11, 0x1000], FAULTS),
        (Hold::Syscall, [134, 11, 0], 0),
        (Hold::Syscall, [134, 5, 0x1000], TRAPS),
        (Hold::Syscall, [172, 11, 2], 0),
        // The number in x2, the arguments in x1 and x0.
        (Hold::Call([Register(2), Register(1), Register(0)]), [2, 26, 167], CLOCK),
        (Hold::Call([Register(2), Register(1), Register(0)]), [167, 26, 2], 0),
        // What is not known counts as what changes the fact.
        (Hold::Call([Constant(167), Register(0), Unknown]), [26, 0, 0], CLOCK),
        (Hold::Call([Constant(167), Register(0), Unknown]), [22, 0, 0], FILTER | CLOCK),
        (Hold::Call([Constant(167), Register(0), Unknown]), [38, 0, 0], 0),
        (Hold::Call([Constant(134), Register(0), Unknown]), [11, 0, 0], FAULTS),
        (Hold::Call([Constant(134), Register(0), Unknown]), [10, 0, 0], 0),
        (Hold::Call([Constant(134), Constant(7), Register(1)]), [0, 0x1000, 0], FAULTS),
        (Hold::Call([Constant(134), Constant(7), Register(1)]), [0, 0, 0], 0),
        (Hold::Call([Constant(277), Constant(1), Unknown]), [0, 0, 0], FILTER),
    ];
    for machine in machines() {
        for (what, [a, b, c], facts) in cases {
            let held = Held::new(&machine, what, 0, (&[], &SUM));
            let (function, asked, closed) = (held.function(), held.asked(), held.closed());
            let sum = a.wrapping_add(2 * b).wrapping_add(4 * c);
            let case = format!("{machine:?} {what:?} {a} {b:#x} {c:#x}");
            // Nothing relies on the facts, so no call asks.
            closed.store(u64::MAX, Ordering::SeqCst);
            assert_eq!((function(a, b, c), asked.load(Ordering::SeqCst)), (sum, 0), "{case}");
            // All facts are relied on, and another thread answers each question.
            closed.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let held = scope.spawn(|| function(a, b, c));
                if facts != 0 {
                    while asked.load(Ordering::SeqCst) != facts {
                        std::thread::yield_now();
                    }
                    assert!(!held.is_finished(), "{case} waits");
                    closed.store(facts, Ordering::SeqCst);
                }
                assert_eq!(held.join().expect("returned"), sum);
            });
            let after = (asked.load(Ordering::SeqCst), closed.load(Ordering::SeqCst));
            assert_eq!(after, (facts, facts), "{case}: only the answering side closed it");
            held.room.unmap();
        }
    }
}

/// Words in registers that the stub uses itself, on the stack and in a frame; also where the stub begins lower, as in
/// Go.
#[test]
fn words_are_found_in_scratch_registers_and_on_the_stack() {
    let (on_stack, in_frame) = (|offset| Memory { base: 31, offset }, |offset| Memory { base: 29, offset });
    let cases = [
        // x16 = x0, x17 = x1.
        ([Register(16), Register(17), Constant(2)], [167, 26], CLOCK),
        ([Register(16), Register(17), Constant(2)], [167, 38], 0),
        ([Register(17), Register(16), Unknown], [11, 134], FAULTS),
        // x13 = x0, x14 = x1, x15 = x0.
        ([Register(14), Register(13), Constant(2)], [26, 167], CLOCK),
        ([Register(14), Register(15), Constant(2)], [26, 167], CLOCK),
        ([on_stack(8), on_stack(0), Constant(2)], [26, 167], CLOCK),
        ([on_stack(8), on_stack(0), Constant(2)], [167, 26], 0),
        ([on_stack(0), on_stack(8), Constant(1)], [277, 1], FILTER),
        ([in_frame(8), in_frame(0), Constant(2)], [26, 167], CLOCK),
        ([in_frame(-8), in_frame(-16), Constant(2)], [26, 167], CLOCK),
    ];
    for machine in machines() {
        for below in [0_u32, 16] {
            for (words, [a, b], facts) in cases {
                // mov x9, x29; mov x16, x0; mov x17, x1; mov x13, x0; mov x14, x1; mov x15, x0;
                // stp x0, x1, [sp, #-16]!
                let mut before = vec![
                    0xAA1D_03E9,
                    0xAA00_03F0,
                    0xAA01_03F1,
                    0xAA00_03ED,
                    0xAA01_03EE,
                    0xAA00_03EF,
                    0xA9BF_07E0,
                ];
                // mov x29, sp; or add x29, sp, #16
                let is_above = words[0] == in_frame(-8);
                before.push(if is_above { 0x9100_43FD } else { 0x9100_03FD });
                // sub sp, sp, #16; add sp, sp, #16
                before.extend((below != 0).then_some(0xD100_43FF));
                let up = (below != 0).then_some(0x9100_43FF);
                // mov x29, x9; add x0, x16, x17; add x0, x0, x13; add x0, x0, x14; ldp x1, x2, [sp], #16;
                // add x0, x0, x1; add x0, x0, x2; ret
                let rest = [
                    0xAA09_03FD,
                    0x8B11_0200,
                    0x8B0D_0000,
                    0x8B0E_0000,
                    0xA8C1_0BE1,
                    0x8B01_0000,
                    0x8B02_0000,
                    RET,
                ];
                let rest: Vec<u32> = up.into_iter().chain(rest).collect();
                let held = Held::new(&machine, Hold::Call(words), below, (&before, &rest));
                let (function, asked, closed) = (held.function(), held.asked(), held.closed());
                let (case, sum) = (format!("{machine:?} {below} {words:?} {a} {b}"), 3 * (a + b));
                // A fact that is closed keeps no thread.
                closed.store(facts, Ordering::SeqCst);
                assert_eq!((function(a, b, 0), asked.load(Ordering::SeqCst)), (sum, 0), "{case}");
                closed.store(0, Ordering::SeqCst);
                std::thread::scope(|scope| {
                    let held = scope.spawn(|| function(a, b, 0));
                    while facts != 0 && asked.load(Ordering::SeqCst) != facts {
                        std::thread::yield_now();
                    }
                    closed.store(facts, Ordering::SeqCst);
                    assert_eq!(held.join().expect("returned"), sum, "{case}");
                });
                assert_eq!(asked.load(Ordering::SeqCst), facts, "{case}");
                held.room.unmap();
            }
        }
    }
}

/// In the common case, where another call passes, and where a thread waits.
#[test]
fn registers_and_flags_are_as_before() {
    let waits = Hold::Call([Constant(167), Constant(26), Constant(2)]);
    for machine in machines() {
        for what in [Hold::Sigaction, Hold::Prctl, Hold::Syscall, waits] {
            for flags in 0..16 {
                let held = Held::new(&machine, what, 0, (&[], &[RET]));
                let (code, asked, closed) = (held.code, held.asked(), held.closed());
                std::thread::scope(|scope| {
                    let changed = scope.spawn(move || changes(code, flags));
                    while what == waits && asked.load(Ordering::SeqCst) != CLOCK {
                        std::thread::yield_now();
                    }
                    closed.store(CLOCK, Ordering::SeqCst);
                    let (before, after) = changed.join().expect("returned");
                    assert_eq!(after, before, "{machine:?} {what:?}");
                });
                let facts = if what == waits { CLOCK } else { 0 };
                assert_eq!(asked.load(Ordering::SeqCst), facts, "{machine:?} {what:?}");
                held.room.unmap();
            }
        }
    }
}

/// The word before a system call is patched; the call itself is made behind stub and copy, when it is answered.
#[test]
fn a_patched_call_is_held_and_then_made() {
    // mov x8, x0; mov x0, x1; mov x1, x2; mov x2, x3; mov x3, x4; svc #0; ret
    const WRAPPED: [u32; 7] =
        [0xAA00_03E8, 0xAA01_03E0, 0xAA02_03E1, 0xAA03_03E2, 0xAA04_03E3, 0xD400_0001, RET];
    const BEFORE: usize = 4;
    type Wrapped = extern "C" fn(u64, u64, u64, u64, u64) -> i64;
    for machine in machines() {
        let room = CodeMemory::new();
        let word = |line| std::ptr::from_ref(room.word(line)) as u64;
        let start = room.put(&WRAPPED);
        let what = Hold::Call([Register(8), Register(0), Register(1)]);
        let stub = hold(room.next(), &machine, what, (word(0), word(1)), 0);
        let place = PatchedWord { words: &WRAPPED, start, index: BEFORE, options: Options::default() };
        let patched = patch_with(&place, stub, room.next(), None).expect("a plain word");
        room.put(&patched.stub);
        room.write(patched.at, &[patched.new]);
        // SAFETY: the words are a function of this type.
        let call: Wrapped = unsafe { core::mem::transmute(start) };
        let (asked, closed) = (room.word(0), room.word(1));
        let own = i64::from(std::process::id());
        assert_eq!((call(172, 11, 1, 0, 0), asked.load(Ordering::SeqCst)), (own, 0), "getpid");
        std::thread::scope(|scope| {
            // rt_sigaction with a size that the kernel refuses.
            let action = [1_u64; 4];
            let held = scope.spawn(move || call(134, 11, action.as_ptr() as u64, 0, 7));
            while asked.load(Ordering::SeqCst) != FAULTS {
                std::thread::yield_now();
            }
            assert!(!held.is_finished(), "{machine:?}");
            closed.store(FAULTS, Ordering::SeqCst);
            assert_eq!(held.join().expect("returned"), -i64::from(libc::EINVAL), "{machine:?}");
        });
        room.unmap();
    }
}

/// In a thread of its own, so that an endless wait fails.
#[test]
fn a_thread_that_waits_in_vain_goes_on_and_closes_the_fact() {
    for machine in machines() {
        let held = Held::new(&machine, Hold::Prctl, 0, (&[], &SUM));
        let (function, (done, waits)) = (held.function(), channel());
        std::thread::spawn(move || {
            // The second call finds the fact closed.
            done.send((function(26, 2, 0), function(26, 2, 0))).expect("a thread waits");
        });
        let returned = waits.recv_timeout(Duration::from_secs(600)).expect("an end");
        assert_eq!(returned, (30, 30));
        let after = (held.asked().load(Ordering::SeqCst), held.closed().load(Ordering::SeqCst));
        assert_eq!(after, (CLOCK, CLOCK), "{machine:?}");
    }
}

/// HOLD-1: the tracer's sign of life lets a thread wait anew. Beside it, a thread that began later waits without such a
/// sign.
#[test]
fn a_thread_waits_on_while_the_tracer_lives() {
    let machine = machines().remove(0);
    let [held, other] = [0, 1].map(|_| Held::new(&machine, Hold::Prctl, 0, (&[], &SUM)));
    let (function, alone) = (held.function(), other.function());
    // SAFETY: the word lies beside the other two, in the same memory.
    let alive = unsafe { &*std::ptr::from_ref(held.asked()).byte_add((at::ALIVE - at::ASKED) as usize) };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| function(26, 2, 0));
        while held.asked().load(Ordering::SeqCst) == 0 {
            std::hint::spin_loop();
        }
        let silent = scope.spawn(|| alone(26, 2, 0));
        while !silent.is_finished() {
            alive.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!waits.is_finished() && held.closed().load(Ordering::SeqCst) == 0, "it waits on");
        held.closed().store(CLOCK, Ordering::SeqCst);
        assert_eq!(waits.join().expect("returned"), 30);
    });
}
