//! The pool on real memory: order, shapes, regions, closing.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "areas and regions made by hand")]

#[path = "pool/order.rs"]
mod order;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use trapline_runtime::pool::{
    At, BadPoolSize, BadRegion, Held, NotClosed, OwnedPool, Pool, PoolSize, Registered, Returned,
    register_restarts, restart_sequences, size,
};

/// An rseq area of our own: no kernel aborts a sequence, and no other thread runs.
#[repr(C, align(32))]
struct Area {
    start: AtomicU32,
    cpu: AtomicU32,
    section: AtomicU64,
}

impl Area {
    fn on(cpu: u32) -> Self {
        Self { start: AtomicU32::new(cpu), cpu: AtomicU32::new(cpu), section: AtomicU64::new(0) }
    }
    fn at(&self) -> At {
        // SAFETY: the area is ours and alive; the pools that it is used with have one user, this thread.
        At::Rseq(unsafe { Registered::new(NonNull::from(self).cast()) })
    }
}

fn pool(cpus: u32, maxactive: u32, depth: u32) -> OwnedPool {
    let shape = PoolSize::new(cpus, Some(maxactive), 64).and_then(|shape| shape.with_depth(depth));
    OwnedPool::new(shape.expect("a shape")).expect("memory")
}

fn take_all(pool: &Pool, at: At) -> Vec<Held> {
    std::iter::from_fn(|| pool.get(at)).collect()
}

/// 128-byte aligned memory.
#[repr(align(128))]
struct Region(#[expect(dead_code, reason = "a pool lies in it")] [AtomicU64; 1024]);

impl Region {
    fn new() -> Box<Self> {
        Box::new(Self([const { AtomicU64::new(0) }; 1024]))
    }
    fn start(&self) -> NonNull<u8> {
        NonNull::from(self).cast()
    }
}

#[test]
fn shapes_are_checked() {
    assert_eq!(PoolSize::new(0, Some(1), 64), Err(BadPoolSize::Cpus(0)));
    assert_eq!(PoolSize::new(size::MOST_CPUS + 1, Some(1), 64), Err(BadPoolSize::Cpus(8192)));
    assert_eq!(PoolSize::new(2, Some(0), 64), Err(BadPoolSize::MaxActive(0)));
    assert_eq!(PoolSize::new(2, Some(u32::MAX), 64), Err(BadPoolSize::MaxActive(u32::MAX)));
    assert_eq!(PoolSize::new(2, None, 0), Err(BadPoolSize::ObjectBytes(0)));
    assert_eq!(PoolSize::new(2, None, (1 << 16) + 1), Err(BadPoolSize::ObjectBytes(65537)));
    let shape = PoolSize::new(2, None, 64).expect("a shape");
    assert_eq!(shape.maxactive(), 8, "four for each CPU");
    assert_eq!(shape.with_depth(5), Err(BadPoolSize::Depth(5)));
    let text = BadPoolSize::MaxActive(0).to_string();
    assert_eq!(text, "maxactive 0: possible are 1 to 32768");
}

#[test]
fn bytes_are_as_documented() {
    let bytes = |cpus, maxactive| PoolSize::new(cpus, maxactive, 64).expect("a shape").bytes();
    assert_eq!(bytes(2, Some(10)), 256 + 2 * (128 + 128) + (10 + 8) * 64);
    // A header, 96 CPUs with a magazine and a bitmap of 13 words, and twice 384 objects.
    assert_eq!(bytes(96, None), 256 + 96 * (128 + 128) + 768 * 64);
    assert!(bytes(96, None) < 75 << 10);
    // The size that `trapline::inside` states for its own.
    assert_eq!(PoolSize::new(2, None, 128).expect("a shape").bytes(), 2816);
    // Exactly the bytes that a pool on a passed-in region needs.
    let region = Region::new();
    let shape = PoolSize::new(2, Some(10), 64).expect("a shape");
    // SAFETY: no more bytes are claimed than there are, and only this test uses them.
    let (whole, short) = unsafe {
        (
            Pool::format(region.start(), shape.bytes(), shape).map(|_| ()),
            Pool::format(region.start(), shape.bytes() - 1, shape).map(|_| ()),
        )
    };
    assert_eq!(whole, Ok(()));
    assert_eq!(short, Err(BadRegion::Small { bytes: shape.bytes() - 1, wanted: shape.bytes() }));
}

#[test]
fn a_region_holds_one_pool_for_all_that_open_it() {
    let region = Region::new();
    let bytes = size_of::<Region>();
    let shape = PoolSize::new(2, Some(3), 40).and_then(|shape| shape.with_depth(0)).expect("a shape");
    // SAFETY: the region is ours, and lives to the end of the test.
    let (none, odd, first, second) = unsafe {
        let none = Pool::open(region.start(), bytes).map(|_| ());
        let odd = Pool::format(region.start().add(8), bytes - 8, shape).map(|_| ());
        let first = Pool::format(region.start(), bytes, shape).expect("it fits");
        (none, odd, first, Pool::open(region.start(), bytes).expect("it is there"))
    };
    assert_eq!(none, Err(BadRegion::NoPool(0)));
    assert!(matches!(odd, Err(BadRegion::Misaligned(_))));
    assert_eq!(second.shape(), shape);
    let held: Vec<Held> = [first, second, first].iter().filter_map(|pool| pool.get(At::Cpu(0))).collect();
    assert_eq!(held.len(), 3);
    let places: std::collections::BTreeSet<_> = held.iter().map(|held| first.object(held)).collect();
    assert_eq!(places.len(), 3, "each its own");
    assert!(places.iter().all(|at| at.addr().get().is_multiple_of(64)));
    assert!(second.get(At::Cpu(1)).is_none());
    assert_eq!(second.close(|| true), Ok(Returned::Dropped));
    assert_eq!(first.close(|| true), Err(NotClosed::Already));
    let mut answers: Vec<_> = held.into_iter().map(|held| first.put(At::Cpu(1), held)).collect();
    assert_eq!(answers.pop(), Some(Returned::Last));
    assert_eq!(answers, [Returned::Dropped; 2]);
}

#[test]
fn any_cpu_number_serves() {
    let pool = pool(3, 5, 2);
    let area = Area::on(u32::MAX);
    for at in [At::Cpu(7), At::Cpu(u32::MAX), area.at()] {
        let held = take_all(&pool, at);
        assert_eq!(held.len() as u32, pool.shape().objects());
        held.into_iter().for_each(|held| assert_eq!(pool.put(at, held), Returned::Free));
        assert_eq!(pool.free(), pool.shape().objects());
    }
}

#[test]
fn what_rests_on_other_shelves_is_paid_for() {
    let pool = pool(2, 6, 4);
    let (here, there) = (Area::on(0), Area::on(1));
    let held = take_all(&pool, here.at());
    held.into_iter().for_each(|held| assert_eq!(pool.put(there.at(), held), Returned::Free));
    // Four are out of reach, in the other CPU's magazine; maxactive objects, and those that the own magazine
    // could have held, are not.
    let held = take_all(&pool, here.at());
    assert_eq!(held.len(), 6 + 4);
    assert_eq!(pool.free(), 4);
}

#[test]
fn closed_while_held_the_last_one_releases() {
    assert!(register_restarts(), "Linux 5.10");
    let pool = pool(2, 6, 4);
    let area = Area::on(1);
    let (first, second) = (pool.get(area.at()).expect("free"), pool.get(area.at()).expect("free"));
    let kept = *pool;
    assert_eq!(kept.put(area.at(), pool.get(area.at()).expect("free")), Returned::Free);
    // SAFETY: only this thread uses the pool.
    let refused = unsafe { pool.close(|| false) };
    let (pool, error) = refused.expect_err("sequences could not be restarted");
    assert_eq!(error, NotClosed::NoRestart);
    assert_eq!(kept.put(area.at(), kept.get(area.at()).expect("as before")), Returned::Free);
    assert_eq!(kept.free(), 14 - 2, "still open");
    // SAFETY: as above.
    let leaving = unsafe { pool.close(restart_sequences) }.expect("restarted");
    assert_eq!(leaving.held(), 2);
    assert!(kept.get(area.at()).is_none() && kept.get(At::Cpu(0)).is_none(), "closed");
    let leaving = leaving.try_free().expect_err("two are held");
    assert_eq!(kept.put(area.at(), first), Returned::Dropped);
    assert_eq!(kept.put(At::Cpu(0), second), Returned::Last);
    leaving.try_free().expect("nothing is held");
}

#[test]
fn closed_while_all_objects_are_in_the_pool() {
    let pool = pool(2, 6, 4);
    let area = Area::on(1);
    let held = take_all(&pool, area.at());
    held.into_iter().for_each(|held| assert_eq!(pool.put(area.at(), held), Returned::Free));
    let kept = *pool;
    assert_eq!(kept.close(restart_sequences), Ok(Returned::Last));
    // SAFETY: only this thread uses the pool.
    let twice = unsafe { pool.close(restart_sequences) };
    assert_eq!(twice.expect_err("closed above").1, NotClosed::Already);
}
