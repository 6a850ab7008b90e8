//! SAFE-4: the signal action that is restored is the one that the program set last (`patch::map`, step I5 of
//! `patch::protocol`).
//!
//! Meanwhile, another thread of the target sets its own action for the same signal. The tracer may die after
//! any step, so the old action is journaled before it is replaced.

use loom::sync::Arc;
use loom::thread;
use trapline_record::control::at;
use trapline_record::sync::{AtomicU64, Ordering};

use crate::memory::Memory;

const OURS: u64 = 0x8000;
const FIRST: u64 = 0x1000;
const SECOND: u64 = 0x2000;

/// `rt_sigaction`: sets the new action and returns the old one, in one step.
fn sigaction(action: &AtomicU64, new: u64) -> u64 {
    action.swap(new, Ordering::AcqRel)
}

fn model(again: bool) {
    loom::model(move || {
        let action = Arc::new(AtomicU64::new(FIRST));
        let control = Memory::new(at::HANDLER + 8);
        let program = {
            let action = Arc::clone(&action);
            thread::spawn(move || sigaction(&action, SECOND))
        };
        let later = {
            let (action, control) = (Arc::clone(&action), Arc::clone(&control));
            thread::spawn(move || {
                let is_ours = action.load(Ordering::Acquire) == OURS;
                assert!(
                    !is_ours || control.view().get(at::OLD_SIGTRAP) != 0,
                    "a later tracer knows what was there"
                );
            })
        };
        let journal = |old| control.view().set(at::OLD_SIGTRAP, old);
        let old = action.load(Ordering::Acquire);
        journal(old);
        let replaced = sigaction(&action, OURS);
        if again && replaced != old {
            journal(replaced);
        }
        let seen = program.join().unwrap();
        later.join().unwrap();
        if action.load(Ordering::Acquire) == OURS {
            assert_eq!((seen, control.view().get(at::OLD_SIGTRAP)), (FIRST, SECOND), "what is put back");
        } else {
            assert_eq!(seen, OURS, "the program replaced ours, which detach leaves alone");
        }
    });
}

#[test]
fn the_last_action_of_the_program_is_put_back() {
    model(true);
}

#[test]
#[should_panic]
fn not_if_the_journal_is_written_only_before() {
    model(false);
}
