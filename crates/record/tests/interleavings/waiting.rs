//! WAIT-1, WAIT-3: a thread that found its compact ring full sleeps until the reader has made room, or no thread is to wait
//! (`plan`'s `stub/wait.rs`, F2 to F5; `record::calls`, R2 to R5). The reader's side is the real code.
//!
//! The kernel's futex is a lock and a flag: under the lock it compares the word, and the thread is asleep. A thread that is still
//! asleep when all is done would sleep on; the time limit of the real one is not modelled.

use loom::sync::atomic::fence;
use loom::sync::{Arc, Mutex};
use loom::thread;
use trapline_record::calls::{SEQUENCE, WAITERS, WORD, WORDS_SHIFT};
use trapline_record::ring::{HEAD, RingArea, TAIL};
use trapline_record::sync::Ordering;

use crate::memory::Memory;

const AREA: RingArea = RingArea { off: 0, rings: 1, slot: WORD, most: WORD, bytes: 16 };
const MAY_WAIT: u64 = AREA.len();

/// Whether the thread is asleep.
struct Kernel(Mutex<bool>);

impl Kernel {
    /// `FUTEX_WAIT`. Its lock is a full barrier between what the thread stored and the look at the word. Returns whether the
    /// thread is asleep.
    fn wait(&self, memory: &Memory, seen: u64) -> bool {
        fence(Ordering::SeqCst);
        let mut is_asleep = self.0.lock().unwrap();
        *is_asleep = memory.view().get(SEQUENCE) == seen;
        *is_asleep
    }
    /// `FUTEX_WAKE`.
    fn wake(&self) {
        *self.0.lock().unwrap() = false;
    }
}

/// What is left out or moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// F2 behind F4: the sequence is loaded when the other words were looked at already.
    LateSequence,
    /// R4 before R3: whether threads wait is looked at before the sequence changes.
    EarlyLook,
    /// The reader wakes no thread.
    NoWake,
}

/// F2 to F5 and F7, until the thread sleeps, there is room, or no thread is to wait.
fn wait(memory: &Memory, kernel: &Kernel, fault: Fault) {
    let view = memory.view();
    loop {
        let early = view.get(SEQUENCE);
        if view.get(MAY_WAIT) == 0 {
            return;
        }
        let used = view.get(HEAD).wrapping_sub(view.get(TAIL)) >> WORDS_SHIFT;
        if used < AREA.full_words().into() {
            return;
        }
        let seen = if fault == Fault::LateSequence { view.get(SEQUENCE) } else { early };
        view.set(WAITERS, 1);
        if kernel.wait(memory, seen) {
            return;
        }
    }
}

fn model(fault: Fault, detaches: bool) {
    loom::model(move || {
        let (memory, kernel) = (Memory::new(AREA.len() + 8), Arc::new(Kernel(Mutex::new(false))));
        memory.view().set(MAY_WAIT, 1);
        memory.view().set(HEAD, 2 << WORDS_SHIFT);
        let (theirs, sleeps) = (Arc::clone(&memory), Arc::clone(&kernel));
        let waiter = thread::spawn(move || wait(&theirs, &sleeps, fault));
        let view = memory.view();
        let waits = match (detaches, fault) {
            (true, _) => {
                view.set(MAY_WAIT, 0);
                AREA.release(view, 0)
            }
            (false, Fault::EarlyLook) => {
                view.set(TAIL, 2 << WORDS_SHIFT);
                let waits = view.take_in_order(WAITERS) != 0;
                view.add(SEQUENCE, 1);
                waits
            }
            (false, _) => {
                let mut tail = 0;
                assert_eq!(AREA.words_ahead(view, 0, &mut tail), Ok(2));
                AREA.take_words_of(view, 0, &mut tail, &mut [0; 16])
            }
        };
        // A release wakes in any case (`patch`'s `memory/waiting.rs`).
        if (waits || detaches) && fault != Fault::NoWake {
            kernel.wake();
        }
        waiter.join().unwrap();
        assert!(!*kernel.0.lock().unwrap(), "it sleeps on");
    });
}

#[test]
fn no_thread_sleeps_on_when_there_is_room() {
    model(Fault::None, false);
}

#[test]
fn no_thread_sleeps_on_when_none_is_to_wait() {
    model(Fault::None, true);
}

#[test]
#[should_panic]
fn not_if_the_sequence_is_loaded_late() {
    model(Fault::LateSequence, false);
}

#[test]
#[should_panic]
fn nor_where_no_thread_is_to_wait() {
    model(Fault::LateSequence, true);
}

#[test]
#[should_panic]
fn not_if_the_reader_looks_for_waiters_too_early() {
    model(Fault::EarlyLook, false);
}

#[test]
#[should_panic]
fn not_if_no_thread_is_woken() {
    model(Fault::NoWake, false);
}
