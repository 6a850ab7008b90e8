//! PATCH-1: one writer per process (`patch::protocol`, I1 and I4; `patch::attach`).
//!
//! Two tracers look for segments at the same time and find none. Seizing is exclusive, but ends with each
//! batch. So a tracer that has seized the process looks once more before it writes.

use loom::sync::Arc;
use loom::thread;
use trapline_record::control::at;
use trapline_record::sync::{AtomicU64, Ordering};

use crate::memory::Memory;

struct Target {
    /// Number of the tracer that has seized it, 0 = none; only the kernel has this word.
    tracer: AtomicU64,
    control: Arc<Memory>,
}

impl Target {
    fn is_free(&self) -> bool {
        self.control.view().get(at::TRACER_PID) == 0
    }
    /// One attach; returns whether it wrote.
    fn attach(&self, me: u64, look_again: bool) -> bool {
        if !self.is_free() {
            return false;
        }
        if self.tracer.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        let wrote = !look_again || self.is_free();
        if wrote {
            self.control.view().set(at::TRACER_PID, me);
        }
        self.tracer.store(0, Ordering::Release);
        wrote
    }
}

fn model(look_again: bool) {
    loom::model(move || {
        let target = Arc::new(Target { tracer: AtomicU64::new(0), control: Memory::new(at::TRACER_PID + 8) });
        let also = Arc::clone(&target);
        let other = thread::spawn(move || also.attach(2, look_again));
        let first = target.attach(1, look_again);
        let second = other.join().unwrap();
        assert!(first != second, "exactly one wrote");
        assert_eq!(target.control.view().get(at::TRACER_PID), if first { 1 } else { 2 });
    });
}

#[test]
fn one_of_two_tracers_writes() {
    model(true);
}

#[test]
#[should_panic]
fn not_if_no_look_is_taken_while_holding() {
    model(false);
}
