//! What every lookup must do, ours and the baselines: tested in one thread, and with several.
#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use proptest::prelude::*;

use super::How;
use super::operations::{Lookup, Mapped, PAGE};

const LOOKUPS: [How; 4] = [How::Ours, How::MmWide, How::Rwlock, How::Mutex];

fn mapped(page: u64, pages: u64, file: u64, offset: u64) -> Mapped {
    Mapped { start: page * PAGE, end: (page + pages) * PAGE, file, offset: offset * PAGE }
}

#[derive(Clone, Debug)]
enum Step {
    Map(Mapped),
    Unmap(usize),
    Register(u64, u64),
    Unregister(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (500..530_u64, 1..6_u64, 1..4_u64, 0..4_u64).prop_map(|(p, n, f, o)| Step::Map(mapped(p, n, f, o))),
        1 => any::<usize>().prop_map(Step::Unmap),
        3 => (1..4_u64, 0..10_u64).prop_map(|(file, page)| Step::Register(file, page * PAGE + 8)),
        1 => any::<usize>().prop_map(Step::Unregister),
    ];
    prop::collection::vec(step, 1..60)
}

fn play(lookup: &dyn Lookup, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut regions, mut probes) = (Vec::<Mapped>::new(), BTreeMap::<(u64, u64), u64>::new());
    for step in steps {
        match *step {
            Step::Map(one) if !regions.iter().any(|r| r.start < one.end && one.start < r.end) => {
                lookup.map(one);
                regions.push(one);
            }
            Step::Unmap(which) if !regions.is_empty() => {
                lookup.unmap(regions.swap_remove(which % regions.len()));
            }
            Step::Register(file, offset) => {
                probes.insert((file, offset), lookup.register(file, offset));
            }
            Step::Unregister(which) if !probes.is_empty() => {
                let site = *probes.keys().nth(which % probes.len()).expect("one of them");
                probes.remove(&site);
                lookup.unregister(site.0, site.1);
            }
            _ => {}
        }
        for addr in (495..540_u64).flat_map(|page| [page * PAGE + 8, page * PAGE + 9]) {
            let region = regions.iter().find(|r| (r.start..r.end).contains(&addr));
            let expected = region.and_then(|r| probes.get(&(r.file, r.offset + addr - r.start)));
            prop_assert_eq!(lookup.find(addr), expected.copied());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_answer_as_a_plain_map(steps in steps()) {
        for how in LOOKUPS {
            play(&*how.lookup(64, 256).expect("it looks up"), &steps)?;
        }
    }
}

/// A mapping comes back to the same address after its probe was removed. The probe must not be found there.
#[test]
fn what_was_unregistered_while_it_was_not_mapped_is_not_found() {
    let steps = [
        Step::Map(mapped(519, 2, 1, 1)),
        Step::Register(1, PAGE + 8),
        Step::Unmap(0),
        Step::Unregister(0),
        Step::Map(mapped(518, 2, 1, 0)),
    ];
    for how in LOOKUPS {
        play(&*how.lookup(64, 256).expect("it looks up"), &steps).expect("as a plain map");
    }
}

/// One region stays, one address belongs to different files in turn, and the address space changes elsewhere.
#[test]
fn all_answer_truly_beside_changes() {
    for how in LOOKUPS {
        let lookup = how.lookup(64, 256).expect("it looks up");
        let lookup = &*lookup;
        lookup.map(mapped(500, 4, 1, 0));
        let stays = lookup.register(1, 2 * PAGE + 8);
        // Each file has a probe at each of these pages. So a mixture of two regions would find a probe too, a
        // wrong one.
        let sites = (0..8_u64).flat_map(|file| (0..8_u64).map(move |page| (file, page)));
        let probes: Vec<_> = sites
            .map(|(file, page)| (file == page, lookup.register(file + 10, (page + 1) * PAGE + 8)))
            .collect();
        let comes: Vec<u64> = probes.iter().filter(|probe| probe.0).map(|probe| probe.1).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut looks = 0;
                        while !stop.load(SeqCst) || looks < 10_000 {
                            looks += 1;
                            assert_eq!(lookup.find(502 * PAGE + 8), Some(stays), "{}", how.name());
                            let found = lookup.find(601 * PAGE + 8);
                            assert!(found.is_none_or(|found| comes.contains(&found)), "{}", how.name());
                            assert_eq!(lookup.find(700 * PAGE), None);
                        }
                    })
                })
                .collect();
            for n in 0..20_000_u64 {
                // File n + 10 is mapped at page 600, from its own page n on.
                let one = mapped(600, 3, n % 8 + 10, n % 8);
                lookup.map(one);
                lookup.elsewhere(&mut || drop(std::hint::black_box(vec![0_u8; 64])));
                lookup.unmap(one);
            }
            stop.store(true, SeqCst);
            reading.into_iter().for_each(|reader| reader.join().expect("it reads the truth"));
        });
    }
}
