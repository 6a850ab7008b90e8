//! CAL-1, CAL-3: the instance of a call that is over goes to one of the threads that have proof of it; what
//! its next call leaves in it is that call's.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use super::model;
use crate::consumer::ConsumerId;
use crate::instances::Instance;

const OVER: u64 = 0x7000;

/// What a thread does with an instance that it has: its own call, from A4 to B3.
fn call(instance: &Instance, sp: u64) {
    instance.begin(sp, sp + 1, 9);
    assert!(instance.push(ConsumerId(sp), sp + 2));
    let kept = instance.kept();
    assert_eq!((instance.sp(), kept.site, kept.cookie(ConsumerId(sp))), (sp, sp + 1, Some(sp + 2)));
    assert_eq!(kept.cookie(ConsumerId(OVER)), None);
    instance.end();
}

/// Two threads find the instance of a call that is over, one by its key, one with proof.
fn two_claim(claim: fn(&Instance) -> bool) {
    model(None, move || {
        let (instance, claimed) = (Arc::new(Instance::default()), Arc::new(AtomicU32::new(0)));
        instance.begin(OVER, 1, 2);
        assert!(instance.push(ConsumerId(OVER), 3));
        let threads = [0x8000, 0x9000].map(|sp| {
            let (instance, claimed) = (Arc::clone(&instance), Arc::clone(&claimed));
            thread::spawn(move || {
                if claim(&instance) {
                    claimed.fetch_add(1, Relaxed);
                    call(&instance, sp);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it claims"));
        assert_eq!(claimed.load(Relaxed), 1);
        assert_eq!(instance.sp(), 0);
    });
}

#[test]
fn one_of_two_gets_what_was_left() {
    two_claim(|instance| instance.claim_if(|key| key == OVER));
}

#[test]
#[should_panic]
fn not_if_it_looks_and_then_stores() {
    two_claim(|instance| instance.sp() == OVER && instance.claim_in_two_steps(OVER));
}

/// An exit with a wrong hint, or one that searches all, beside another call that begins and ends: it takes
/// nothing. Claiming with proof about a key that is gone does nothing either.
#[test]
fn another_calls_exit_takes_nothing() {
    model(None, || {
        let instance = Arc::new(Instance::default());
        instance.begin(OVER, 1, 2);
        let other = Arc::clone(&instance);
        let exits = thread::spawn(move || {
            assert_ne!(other.sp(), 0x9000);
            assert!(!other.claim(0x9000));
        });
        instance.end();
        call(&instance, 0x8000);
        exits.join().expect("it looks");
        assert_eq!(instance.sp(), 0);
    });
}
