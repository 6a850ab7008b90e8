//! SLOT-1, SLOT-2, SLOT-4: calls take return trampolines, return, are left, and go on in another thread,
//! while other threads take trampolines, unwind, close the table and fork.
//!
//! `take`, `arm`, `returned` and `put_back` are the crate's own; `quick_arms` and `quick_lands` do the steps
//! of the code in `x86_64::general::inlined`, which no model can run. Memory orders are weaker here than
//! those of a processor that keeps stores in order. A stack word is an atomic; its address is the word's.

mod elsewhere;

use std::boxed::Box;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use trapline_record::trampolines::{ENTRY, LENT, Trampolines, at};
use trapline_record::{FileId, FileOffset};

use super::{leaked, model, quick_hint, returned, take, trampoline_table};
use crate::engine::{Counts, Engine, Memory};
use crate::probe::Probe;
use crate::trampolines::table::{QUICK_SHIFT, QUICK_SPREAD, QUICK_UP, TrampolineTable};

/// Three trampolines: number 0 is never used.
const COUNT: u32 = 4;
const CODE: u64 = 0x10_0000;

fn table() -> &'static TrampolineTable {
    let trampolines = Trampolines { code: CODE, table: 0x20_0000, count: COUNT };
    trampoline_table(trampolines)
}

fn probe() -> &'static Probe {
    let memory = Memory { lines: leaked(1), words: leaked(Counts::words(1, 1)), places: leaked(1) };
    let engine: &Engine = Box::leak(Box::new(Engine::new(memory, 1).expect("lengths fit")));
    Box::leak(Box::new(Probe::new(engine, 0, FileId { dev: 1, inode: 2 }, FileOffset(16))))
}

/// A stack word, and the address that calls there return to.
#[derive(Clone, Copy)]
struct Call {
    word: &'static AtomicU64,
    real: u64,
}

impl Call {
    fn from(real: u64) -> Self {
        Self { word: Box::leak(Box::new(AtomicU64::new(real))), real }
    }
    fn at(self) -> u64 {
        std::ptr::from_ref(self.word) as u64
    }
    /// The call instruction: pushes the return address.
    fn pushes(self) {
        self.word.store(self.real, Relaxed);
    }
    /// A1 to A6, as in `dispatch`. False: the call is missed.
    fn enters(self, table: &'static TrampolineTable, probe: &Probe) -> bool {
        let taken = take(table, (self.at(), self.word.load(Relaxed)), probe);
        let trampoline = taken.and_then(|taken| taken.arm(self.word.load(Relaxed)));
        trampoline.into_iter().for_each(|trampoline| self.word.store(trampoline, Release));
        trampoline.is_some()
    }
    /// The number of the trampoline in the word.
    fn trampoline(self, table: &TrampolineTable) -> u32 {
        table.trampolines().number_of(self.word.load(Relaxed)).expect("it is armed")
    }
    /// B1 to B6: the address that the call returns to, and whether a consumer waited for it.
    fn lands(self, table: &TrampolineTable) -> (u64, bool) {
        let returned = returned(table, self.trampoline(table));
        table.put_back(&returned);
        self.word.store(returned.real, Relaxed);
        (returned.real, returned.probe.is_some())
    }
    fn returns(self, table: &TrampolineTable) {
        assert_eq!(self.lands(table), (self.real, true), "to where it was called from, and reported");
    }
    /// The steps of `arm`'s code. False: nothing was done.
    fn quick_arms(self, table: &TrampolineTable, probe: &Probe) -> bool {
        let (word, real) = (self.at(), self.word.load(Relaxed));
        let sum = (word << QUICK_UP).wrapping_add(real).wrapping_mul(QUICK_SPREAD);
        let number = quick_hint(table, sum >> QUICK_SHIFT) / ENTRY as u32;
        let of = |off| table.words.word(number, off);
        if of(at::WORD).load(Acquire) != word
            || of(at::REAL).load(Acquire) != real
            || of(at::WHAT).load(Acquire) != 0
        {
            return false;
        }
        // An equal `GO` implies the same site.
        if of(at::GO).load(Acquire) != 32 {
            of(at::SITE).store(16, Release);
            of(at::GO).store(32, Release);
        }
        of(at::WHAT).store(probe.address(), Release);
        self.word.store(of(at::INTO).load(Acquire), Release);
        true
    }
    /// The steps of `on_return`'s code, for a call that `quick_arms` began.
    fn quick_lands(self, table: &TrampolineTable) {
        let number = self.trampoline(table);
        let of = |off| table.words.word(number, off);
        assert!(of(at::WHAT).load(Acquire) != 0 && of(at::SITE).load(Acquire) != 0, "it is its own");
        let real = of(at::REAL).load(Acquire);
        of(at::WHAT).store(0, Release);
        self.word.store(real, Release);
        assert_eq!(real, self.real);
    }
    /// A call that returns, so that its trampoline is bound to it.
    fn binds(self, table: &'static TrampolineTable, probe: &Probe) {
        assert!(self.enters(table, probe));
        self.returns(table);
    }
}

/// A table in which all trampolines but one are bound to other stack words.
fn with_one_left(probe: &Probe) -> &'static TrampolineTable {
    let table = table();
    [0x1000, 0x2000].into_iter().for_each(|real| Call::from(real).binds(table, probe));
    table
}

/// Steps of a thread that takes a trampoline and gives it back.
#[derive(Clone, Copy)]
struct Steps {
    enters: fn(Call, &'static TrampolineTable, &Probe) -> bool,
    lands: fn(Call, &'static TrampolineTable),
}
const OURS: Steps = Steps { enters: Call::enters, lands: |call, table| call.returns(table) };

/// Two threads, one trampoline: each call that gets it returns to its own caller.
fn one_trampoline(steps: Steps) {
    model(Some(3), move || {
        let probe = probe();
        let table = with_one_left(probe);
        let calls = move |real, times| {
            let call = Call::from(real);
            (0..times).for_each(|_| {
                call.pushes();
                if (steps.enters)(call, table, probe) {
                    (steps.lands)(call, table);
                }
            });
        };
        let other = thread::spawn(move || calls(0x3000, 1));
        calls(0x4000, 2);
        other.join().expect("it calls");
        assert_eq!(table.lent(), 0);
        let last = Call::from(0x5000);
        assert!(last.enters(table, probe), "it was given back");
    });
}

#[test]
fn a_trampoline_is_one_calls() {
    one_trampoline(OURS);
}

/// A3 with a look and a store.
fn takes_in_two_steps(call: Call, table: &'static TrampolineTable, probe: &Probe) -> bool {
    let byte = |number| table.words.byte(number);
    let Some(number) = (1..COUNT).find(|&number| byte(number).load(Acquire) == 0) else { return false };
    byte(number).store(LENT, Release);
    let of = |off| table.words.word(number, off);
    of(at::REAL).store(call.real, Relaxed);
    of(at::WORD).store(call.at(), Release);
    of(at::WHAT).store(probe.address(), Relaxed);
    call.word.store(table.trampolines().address(number), Release);
    true
}

#[test]
#[should_panic]
fn not_if_it_looks_and_then_stores() {
    one_trampoline(Steps { enters: takes_in_two_steps, ..OURS });
}

/// B3 with its last store first.
fn gives_back_first(call: Call, table: &'static TrampolineTable) {
    let number = call.trampoline(table);
    let of = |off| table.words.word(number, off);
    assert_eq!(of(at::REAL).load(Relaxed), call.real);
    assert_ne!(of(at::WHAT).load(Relaxed), 0, "it is reported");
    table.words.frees(number);
    of(at::WORD).store(0, Relaxed);
    of(at::WHAT).store(0, Relaxed);
    call.word.store(call.real, Relaxed);
}

#[test]
#[should_panic]
fn not_if_the_byte_is_given_back_first() {
    one_trampoline(Steps { lands: gives_back_first, ..OURS });
}

/// Another thread takes trampolines, and unwinds through a call that is just being armed: the word's content
/// leads to the call's return address.
fn unwinds(
    before: fn(Call, &'static TrampolineTable, &Probe),
    enters: fn(Call, &'static TrampolineTable, &Probe) -> bool,
) {
    model(Some(3), move || {
        let (table, probe, call) = (table(), probe(), Call::from(0x1000));
        // The previous call of these trampolines.
        let other = Call::from(0x7000);
        assert!(other.enters(table, probe));
        other.returns(table);
        before(call, table, probe);
        let looking = thread::spawn(move || {
            let own = Call::from(0x2000);
            let is_armed = own.enters(table, probe);
            let held = call.word.load(Acquire);
            assert!(held == 0x1000 || table.real(held) == Some(0x1000), "{held:#x}");
            if is_armed {
                own.returns(table);
            }
        });
        assert!(enters(call, table, probe));
        looking.join().expect("it looks");
        assert_eq!(call.lands(table), (0x1000, true));
    });
}

#[test]
fn an_unwinder_finds_the_way_of_a_first_call() {
    unwinds(|_, _, _| (), Call::enters);
}

#[test]
fn an_unwinder_finds_the_way_of_a_bound_call() {
    unwinds(Call::binds, Call::enters);
}

#[test]
fn an_unwinder_finds_the_way_of_a_quick_call() {
    unwinds(Call::binds, |call, table, probe| call.quick_arms(table, probe));
}

#[test]
#[should_panic]
fn not_if_the_word_is_armed_before_its_entry_says_where_to() {
    unwinds(
        |_, _, _| (),
        |call, table, probe| {
            let number = COUNT - 1;
            table.words.byte(number).store(LENT, Release);
            call.word.store(table.trampolines().address(number), Release);
            table.words.word(number, at::REAL).store(call.real, Release);
            table.words.word(number, at::WHAT).store(probe.address(), Release);
            true
        },
    );
}

/// The table is closed beside calls by the general and the fast path: a thread that knows it arms no call,
/// and armed calls return.
fn closing(close: fn(&TrampolineTable, &AtomicU64)) {
    model(Some(3), move || {
        let (table, probe) = (table(), probe());
        let call = Call::from(0x1000);
        call.binds(table, probe);
        let registered = Arc::new(AtomicU64::new(0));
        let knows = Arc::clone(&registered);
        let calls = thread::spawn(move || {
            for _ in 0..2 {
                let is_closed = knows.load(Acquire) == 1;
                let quick = call.quick_arms(table, probe);
                let armed = quick || call.enters(table, probe);
                assert!(!(armed && is_closed), "armed, {quick}");
                match (armed, quick) {
                    (true, true) => call.quick_lands(table),
                    (true, false) => call.returns(table),
                    _ => {}
                }
            }
        });
        close(table, &registered);
        calls.join().expect("it calls");
        table.close(false);
        assert!(call.quick_arms(table, probe), "open again");
        call.quick_lands(table);
    });
}

#[test]
fn closed_trampolines_arm_no_call() {
    closing(|table, registered| {
        table.close(true);
        registered.store(1, Release);
    });
}

#[test]
#[should_panic]
fn not_if_quick_hints_stay() {
    closing(|table, registered| {
        table.closed.store(1, Release);
        registered.store(1, Release);
    });
}

#[test]
#[should_panic]
fn not_if_it_is_announced_before_it_is_done() {
    closing(|table, registered| {
        registered.store(1, Release);
        table.close(true);
    });
}
