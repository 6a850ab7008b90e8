//! CAL-1, CAL-4: a place keeps the calls of one stack word, whichever binds it first, and calls at other
//! words go without.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;

use super::model;
use crate::instances::KeptPlace;

const PROBE: u64 = 0x1000;

/// Two threads with stack words that share a place.
fn two_bind(bind: fn(&KeptPlace, u64)) {
    model(None, move || {
        let place = Arc::new(KeptPlace::default());
        let threads = [0x8000, 0x9000].map(|sp| {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                bind(&place, sp);
                let begun = (0..2).filter(|_| place.begin(sp, PROBE, sp + 1)).count();
                let ended = place.end(sp, PROBE);
                assert_eq!(ended, (begun > 0).then_some(sp + 1), "what was begun is found, and once");
                assert_eq!(place.end(sp, PROBE), None);
                begun
            })
        });
        let begun = threads.map(|thread| thread.join().expect("it ends"));
        assert!(begun == [2, 0] || begun == [0, 2], "it was the first's, all the time: {begun:?}");
    });
}

#[test]
fn a_place_is_one_stack_words() {
    two_bind(KeptPlace::bind);
}

#[test]
#[should_panic]
fn not_if_it_looks_and_then_stores() {
    two_bind(KeptPlace::bind_in_two_steps);
}

/// A stack that goes on in another thread takes its call with it. An exit elsewhere takes nothing. Another
/// probe's call finds the place taken.
#[test]
fn a_call_ends_where_its_stack_is() {
    model(None, || {
        let (place, handed) = (Arc::new(KeptPlace::default()), Arc::new(AtomicU64::new(0)));
        place.bind(0x8000);
        let other = Arc::clone(&place);
        let looks = thread::spawn(move || {
            other.bind(0x9000);
            assert!(!other.begin(0x9000, PROBE, 3));
            assert_eq!(other.end(0x9000, PROBE), None);
        });
        let (next, given) = (Arc::clone(&place), Arc::clone(&handed));
        let ends = thread::spawn(move || {
            if given.load(Acquire) == 1 {
                assert!(!next.begin(0x8000, PROBE + 1, 4));
                assert_eq!(next.end(0x8000, PROBE + 1), None);
                assert_eq!(next.end(0x8000, PROBE), Some(2));
            }
        });
        assert!(place.begin(0x8000, PROBE, 2));
        handed.store(1, Release);
        looks.join().expect("it looks");
        ends.join().expect("it ends");
    });
}
