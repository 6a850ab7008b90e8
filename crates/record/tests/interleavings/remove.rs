//! SAFE-4: the handler is removed only when no thread can be in a guard's trap any more (`patch::protocol`,
//! R3 to R5).
//!
//! Meanwhile: a thread that fetched the patched bytes and is on its way from the trap to the handler. The
//! tracer takes as proof what the thread does next: it blocks, or its run time advances. Both go through the
//! kernel, hence the read-modify-write.

use loom::sync::Arc;
use loom::thread;
use trapline_record::sync::{AtomicU64, Ordering};

const OLD: u64 = 0x55;
const NEW: u64 = 0xe9;
const OURS: u64 = 1;
const THEIRS: u64 = 0;
const ROUNDS: u64 = 2;

struct Target {
    site: AtomicU64,
    action: AtomicU64,
    /// Number of rounds that the thread has finished.
    ran: AtomicU64,
}

impl Target {
    fn run(&self) {
        for _ in 0..ROUNDS {
            if self.site.load(Ordering::Acquire) == NEW {
                assert_eq!(self.action.load(Ordering::Acquire), OURS, "a guard's trap meets no handler");
            }
            self.ran.fetch_add(1, Ordering::AcqRel);
        }
    }
    /// R4: returns when the thread has finished the round that it was in, or has ended.
    fn quiesce(&self) {
        let before = self.ran.fetch_add(0, Ordering::AcqRel);
        while before < ROUNDS && self.ran.load(Ordering::Acquire) == before {
            thread::yield_now();
        }
    }
}

type Step = fn(&Target);
const RESTORE: Step = |target| target.site.store(OLD, Ordering::Release);
const QUIESCE: Step = Target::quiesce;
const PUT_BACK: Step = |target| target.action.store(THEIRS, Ordering::Release);

fn model(steps: &'static [Step]) {
    loom::model(move || {
        let [site, action, ran] = [NEW, OURS, 0].map(AtomicU64::new);
        let target = Arc::new(Target { site, action, ran });
        let also = Arc::clone(&target);
        let running = thread::spawn(move || also.run());
        steps.iter().for_each(|step| step(&target));
        running.join().unwrap();
    });
}

#[test]
fn a_trap_on_its_way_is_served() {
    model(&[RESTORE, QUIESCE, PUT_BACK]);
}

#[test]
#[should_panic]
fn not_without_waiting_for_it() {
    model(&[RESTORE, PUT_BACK]);
}

#[test]
#[should_panic]
fn not_if_the_wait_comes_before_the_last_site() {
    model(&[QUIESCE, RESTORE, PUT_BACK]);
}
