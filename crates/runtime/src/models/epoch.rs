//! EPO-1: what is reachable when a hit enters stays until it leaves; and the claiming of lines.

use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use loom::thread;

use super::{FREED, OTHER, READER, Thing, barrier, inside, lines, model, wait, writer};
use crate::epoch::{Lines, ThreadPointer};

fn no_barrier() -> bool {
    true
}

/// Steps of the writer, and of the reader, that must be in order.
#[derive(Clone, Copy)]
struct How {
    barrier: fn() -> bool,
    /// W1 before W2.
    unlink_first: bool,
    /// W4 before W5.
    wait: bool,
    /// R5 after R4.
    read_inside: bool,
}
const RIGHT: How = How { barrier, unlink_first: true, wait: true, read_inside: true };

/// Two threads hit, one of them twice, and read what a pointer leads to; the writer replaces the pointer, and
/// frees the old object.
fn reclaim(how: How) {
    model(Some(3), move || {
        let lines = lines();
        let (old, new) = (Thing::leak(1), Thing::leak(2));
        let pointer = Arc::new(AtomicU64::new(old.address()));
        let hit = move |pointer: &AtomicU64, name: ThreadPointer| {
            let thing = inside(&lines, name, |_| {
                let thing = Thing::at(pointer.load(Acquire));
                if how.read_inside {
                    assert_ne!(thing.read(), FREED);
                }
                thing
            });
            if !how.read_inside {
                assert_ne!(thing.read(), FREED);
            }
        };
        let also = Arc::clone(&pointer);
        let hitting = thread::spawn(move || (0..2).for_each(|_| hit(&also, READER)));
        let also = Arc::clone(&pointer);
        let other = thread::spawn(move || hit(&also, OTHER));
        let writer = writer(lines, how.barrier);
        let early = (!how.unlink_first).then(|| writer.grace().expect("a barrier"));
        pointer.store(new.address(), Release);
        let grace = early.unwrap_or_else(|| writer.grace().expect("a barrier"));
        if how.wait {
            wait(grace, &lines);
        }
        old.free();
        hitting.join().expect("it hits");
        other.join().expect("it hits");
    });
}

#[test]
fn what_a_hit_reads_is_freed_behind_it() {
    reclaim(RIGHT);
}

#[test]
#[should_panic]
fn not_without_the_barrier() {
    reclaim(How { barrier: no_barrier, ..RIGHT });
}

#[test]
#[should_panic]
fn not_if_lines_are_noted_before_it_is_unlinked() {
    reclaim(How { unlink_first: false, ..RIGHT });
}

#[test]
#[should_panic]
fn not_without_waiting() {
    reclaim(How { wait: false, ..RIGHT });
}

#[test]
#[should_panic]
fn not_if_it_is_read_after_leaving() {
    reclaim(How { read_inside: false, ..RIGHT });
}

/// R5 and W4 by hand: the store must be a release, and the load an acquire.
fn leave_with(order: loom::sync::atomic::Ordering) {
    model(None, move || {
        let (active, thing) = (Arc::new(AtomicU64::new(1)), Thing::leak(1));
        let line = Arc::clone(&active);
        let hitting = thread::spawn(move || {
            thing.read();
            line.store(0, order);
        });
        while active.load(Acquire) != 0 {
            thread::yield_now();
        }
        thing.free();
        hitting.join().expect("it hits");
    });
}

#[test]
fn leaving_is_a_release() {
    leave_with(Release);
}

#[test]
#[should_panic]
fn not_if_it_is_relaxed() {
    leave_with(Relaxed);
}

/// R2 by hand: a writer that sees the next hit, and not the end of the last, knows that the last one is over.
fn enter_with(order: loom::sync::atomic::Ordering) {
    model(None, move || {
        let (active, thing) = (Arc::new(AtomicU64::new(1)), Thing::leak(1));
        let line = Arc::clone(&active);
        let hitting = thread::spawn(move || {
            thing.read();
            line.store(0, Release);
            line.store(2, order);
        });
        while active.load(Acquire) == 1 {
            thread::yield_now();
        }
        thing.free();
        hitting.join().expect("it hits");
    });
}

#[test]
fn entering_is_a_release() {
    enter_with(Release);
}

#[test]
#[should_panic]
fn not_if_entering_is_relaxed() {
    enter_with(Relaxed);
}

/// Two threads with the same first place, and a signal's claim for a thread that is claiming.
fn claim(of: fn(&Lines, ThreadPointer) -> Option<usize>) {
    model(None, move || {
        let lines = lines();
        let claiming = [READER, OTHER].map(|name| thread::spawn(move || of(&lines, name)));
        let places = claiming.map(|claiming| claiming.join().expect("it claims"));
        assert!(places[0].is_some() && places[1].is_some() && places[0] != places[1], "{places:?}");
        assert_eq!(of(&lines, READER), places[0], "for good");
    });
}

#[test]
fn each_thread_has_a_line_of_its_own() {
    claim(|lines, name| lines.of(name).map(|found| found.0));
}

#[test]
#[should_panic]
fn not_if_it_is_claimed_in_two_steps() {
    claim(|lines, name| lines.claim_in_two_steps(name));
}
