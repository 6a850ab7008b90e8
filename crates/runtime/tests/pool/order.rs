//! Order on each CPU, compared with a model that keeps lists: magazine last in first out, then the own
//! bitmap, then the others', lowest number first.

use std::collections::BTreeSet;

use proptest::prelude::*;
use trapline_runtime::pool::{At, Returned};

use super::{Area, pool};

/// The same pool, as lists.
struct Lists {
    depth: usize,
    magazines: Vec<Vec<u32>>,
    sets: Vec<BTreeSet<u32>>,
}

/// Where an operation runs: with a magazine, or with a CPU number only.
#[derive(Clone, Copy, Debug)]
struct Place {
    cpu: usize,
    sequence: bool,
}

impl Lists {
    fn new(cpus: u32, objects: u32, depth: u32) -> Self {
        let mut sets = vec![BTreeSet::new(); cpus as usize];
        (0..objects).for_each(|object| {
            sets[(object * cpus / objects) as usize].insert(object);
        });
        Self { depth: depth as usize, magazines: vec![Vec::new(); cpus as usize], sets }
    }
    fn get(&mut self, place: Place) -> Option<u32> {
        let own = place.sequence.then(|| self.magazines[place.cpu].pop()).flatten();
        own.or_else(|| {
            let cpus = self.sets.len();
            (0..cpus).find_map(|next| self.sets[(place.cpu + next) % cpus].pop_first())
        })
    }
    fn put(&mut self, place: Place, object: u32) {
        let magazine = &mut self.magazines[place.cpu];
        if place.sequence && magazine.len() < self.depth {
            magazine.push(object);
        } else {
            assert!(self.sets[place.cpu].insert(object));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(Place),
    Put(Place, usize),
}

fn steps() -> impl Strategy<Value = (u32, u32, u32, Vec<Step>)> {
    let place = (0_usize..4, any::<bool>()).prop_map(|(cpu, sequence)| Place { cpu, sequence });
    let step = prop_oneof![
        place.clone().prop_map(Step::Get),
        (place, any::<usize>()).prop_map(|(place, which)| Step::Put(place, which)),
    ];
    (1_u32..5, prop_oneof![1_u32..12, 60_u32..200], 0_u32..5, prop::collection::vec(step, 1..400))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_the_one_of_the_lists((cpus, maxactive, depth, steps) in steps()) {
        let pool = pool(cpus, maxactive, depth);
        let objects = pool.shape().objects();
        let mut lists = Lists::new(cpus, objects, depth);
        let areas: Vec<Area> = (0..cpus).map(Area::on).collect();
        let here = |place: Place| Place { cpu: place.cpu % cpus as usize, ..place };
        let at = |place: Place| {
            if place.sequence { areas[place.cpu].at() } else { At::Cpu(place.cpu as u32) }
        };
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Get(place) => {
                    let place = here(place);
                    let got = pool.get(at(place));
                    prop_assert_eq!(got.as_ref().map(|held| pool.object(held)), lists.get(place).map(|n| {
                        pool.object(&held_again(n))
                    }));
                    held.extend(got);
                }
                Step::Put(_, _) if held.is_empty() => {}
                Step::Put(place, which) => {
                    let (place, one) = (here(place), held.swap_remove(which % held.len()));
                    let number = one.into_number();
                    lists.put(place, number);
                    prop_assert_eq!(pool.put(at(place), held_again(number)), Returned::Free);
                }
            }
            prop_assert_eq!(pool.free() as usize + held.len(), objects as usize);
        }
    }
}

fn held_again(number: u32) -> trapline_runtime::pool::Held {
    // SAFETY: the number of an object that the caller has just taken out of its `Held`, or one that is only
    // read.
    unsafe { trapline_runtime::pool::Held::from_number(number) }
}
