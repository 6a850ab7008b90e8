//! What every pool must guarantee, ours and the baselines: no object held twice, none lost, none unreachable.
//!
//! Does not: interrupt the circular queue by signals. A handler that interrupts its own thread between two
//! steps would wait for itself, as in the reference design. Nor does it pass objects between threads where
//! each thread has a pool of its own.

use std::collections::BTreeSet;

use anyhow::Result;
use trapline_runtime::pool::register_restarts;

use super::cpu_area::CpuArea;
use super::drive::cpus;
use super::instances::Instances;
use super::kind::{Job, PoolKind};
use super::storm::{Storm, Tally};

fn pools() -> impl Iterator<Item = PoolKind> {
    PoolKind::ALL.into_iter().filter(|how| how.is_pool())
}

struct TakenAndPut;

impl Job for TakenAndPut {
    type Out = ();
    fn with<P: Instances>(&self, pool: &P) -> Result<()> {
        trapline_bench::functions::pin_to(0);
        let cpu_area = CpuArea::new(0).expect("an rseq area");
        let mut counts = Vec::new();
        for _ in 0..3 {
            let held: Vec<u32> = std::iter::from_fn(|| pool.get(&cpu_area)).collect();
            assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len(), "each once");
            assert!(held.iter().all(|&object| object < pool.objects()));
            counts.push(held.len());
            held.into_iter().for_each(|object| pool.put(&cpu_area, object));
        }
        assert_eq!(counts, [pool.objects() as usize; 3], "all of them, every time");
        Ok(())
    }
}

#[test]
fn all_objects_are_there_each_once() {
    for how in pools() {
        for maxactive in [1, 10, 20, 40, 300] {
            println!("{} {maxactive}", how.name());
            std::thread::scope(|scope| {
                scope
                    .spawn(|| how.make(cpus(), 1, maxactive, &TakenAndPut))
                    .join()
                    .expect("it ends")
                    .expect("it runs");
            });
        }
    }
}

/// Free objects rest at most in their CPU's magazine. So while fewer than `maxactive` are held, no get fails.
#[test]
fn a_storm_of_threads_signals_moves_and_ends() {
    assert!(register_restarts());
    for how in pools() {
        let storm = Storm {
            threads: 6,
            operations: 600_000,
            lives: 20,
            signals: how != PoolKind::Circular,
            handed: !how.is_apart(),
        };
        let tally = how.make(cpus(), storm.threads, 20, &storm).expect("it ends");
        println!("{}: {tally:?}", how.name());
        let Tally { operations, misses, signals, doubled, lost } = tally;
        assert_eq!((doubled, lost), (0, 0), "{}", how.name());
        assert_eq!(operations, storm.operations);
        assert!(signals > 0 || !storm.signals, "{}: signals came", how.name());
        assert!(misses < operations / 2, "{}", how.name());
    }
}

/// The test of these laws notices a pool that breaks them.
#[test]
fn a_pool_that_gives_an_object_twice_is_caught() {
    struct Twice;
    impl Instances for Twice {
        fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
            Some(cpu_area.random() % 8)
        }
        fn put(&self, _: &CpuArea, _: u32) {}
        fn objects(&self) -> u32 {
            8
        }
        fn memory(&self) -> Vec<super::instances::Memory> {
            Vec::new()
        }
    }
    let storm = Storm { threads: 2, operations: 1000, lives: 1, signals: false, handed: false };
    // The count at the end does not come to an end with such a pool, and `drain` reports that.
    let tally = storm.over(&Twice);
    assert!(tally.is_err() || tally.is_ok_and(|tally| tally.doubled > 0));
}
