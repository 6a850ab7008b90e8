//! Comparison with a map that has one entry for each page.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use proptest::prelude::*;
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, MapError, PictureError};
use trapline_runtime::registry::{BadSite, FileNumber, FileSite, Files};

use crate::support::{CODE, PAGE, Shared, file, inside, mapping, new, range};

/// For each page: file, page of the file, whether breakpoints may be there.
type Pages = BTreeMap<u64, (FileId, u64, bool)>;

#[derive(Clone, Debug)]
enum Step {
    Map { start: u64, pages: u64, file: u64, offset: u64, access: Access },
    Unmap { start: u64, pages: u64 },
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        6 => Just(CODE),
        1 => Just(Access { exec: false, ..CODE }),
        1 => Just(Access { shared: true, ..CODE }),
        1 => Just(Access { write: true, ..CODE }),
        1 => Just(Access { huge: true, ..CODE }),
    ]
}

/// Steps around the boundary of two granules.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (500..530_u64, 1..12_u64);
    let step = prop_oneof![
        3 => (place(), 0..3_u64, 0..5_u64, access()).prop_map(|((start, pages), file, offset, access)| {
            Step::Map { start, pages, file, offset, access }
        }),
        2 => place().prop_map(|(start, pages)| Step::Unmap { start, pages }),
    ];
    prop::collection::vec(step, 1..40)
}

fn expect(pages: &mut Pages, step: &Step) {
    match *step {
        Step::Unmap { start, pages: n } => pages.retain(|page, _| !(start..start + n).contains(page)),
        Step::Map { start, pages: n, file: number, offset, access } => {
            pages.retain(|page, _| !(start..start + n).contains(page));
            if access.exec {
                let takes = access.takes_breakpoints();
                pages.extend((0..n).map(|at| (start + at, (file(number), offset + at, takes))));
            }
        }
    }
}

fn pages(shared: &Shared) -> Pages {
    let look = |page: u64| {
        let addr = RemoteAddr(page * PAGE + 0x123);
        inside(shared.engine.lines(), |inside| {
            let module = shared.regions.module(inside, addr).expect("it does not change");
            let found = shared.regions.find(inside, addr).expect("it does not change");
            assert_eq!(module.map(|one| one.1), found.map(|one| one.offset));
            assert_eq!(
                found.is_some_and(|found| found.site().is_some()),
                found.is_some_and(|f| f.takes_breakpoints)
            );
            let ((file, offset), found) = module.zip(found)?;
            assert!(shared.regions.is_still(&found));
            Some((page, (file, (offset.0 - 0x123) / PAGE, found.takes_breakpoints)))
        })
    };
    (490..550).filter_map(look).collect()
}

fn pictured(shared: &Shared) -> Pages {
    let mut room = [None; 64];
    let n = shared.regions.picture(&mut room).expect("it does not change");
    let mut pages = Pages::new();
    let mut last = RemoteAddr(0);
    for one in room.into_iter().take(n).flatten() {
        assert!(last <= one.start, "in order, apart");
        last = one.end;
        let first = one.start.0 / PAGE;
        let page = |page: u64| (page, (one.file, one.offset.0 / PAGE + page - first, one.takes_breakpoints));
        pages.extend((first..one.end.0 / PAGE).map(page));
    }
    pages
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mappings_come_and_go_as_in_a_plain_map(steps in steps()) {
        let (shared, mut writing) = new(40);
        let mut expected = Pages::new();
        for step in &steps {
            expect(&mut expected, step);
            match *step {
                Step::Map { start, pages, file, offset, access } => {
                    let mut one = mapping(start, pages, file, offset);
                    one.access = access;
                    prop_assert_eq!(writing.map(one), Ok(()));
                }
                Step::Unmap { start, pages } => prop_assert_eq!(writing.unmap(range(start, pages)), Ok(())),
            }
            prop_assert_eq!(&pages(&shared), &expected);
            prop_assert_eq!(&pictured(&shared), &expected);
            let by_map: u64 = writing.map.iter().map(|one| (one.end - one.start) / PAGE).sum();
            prop_assert_eq!(by_map, expected.len() as u64);
        }
    }
}

#[test]
fn the_same_mapping_again_changes_nothing() {
    let (shared, mut writing) = new(8);
    let one = mapping(10, 4, 1, 0);
    assert_eq!(writing.map(one), Ok(()));
    let look = || inside(shared.engine.lines(), |inside| shared.regions.find(inside, RemoteAddr(10 * PAGE)));
    let before = look().expect("it does not change").expect("mapped");
    assert_eq!(writing.map(one), Ok(()));
    assert!(shared.regions.is_still(&before));
    assert_eq!(writing.map(mapping(10, 4, 2, 0)), Ok(()));
    assert!(!shared.regions.is_still(&before), "another file");
    assert_eq!(writing.map.find(RemoteAddr(10 * PAGE)), look().expect("it does not change"));
    assert_eq!(writing.map.find(RemoteAddr(14 * PAGE)), None);
}

#[test]
fn when_entries_are_full_nothing_wrong_is_known() {
    let (shared, mut writing) = new(2);
    assert_eq!(writing.map(mapping(500, 10, 1, 0)), Ok(()));
    assert_eq!(writing.map(mapping(520, 2, 1, 0)), Ok(()));
    // The parts left and right of the cut would need two more entries.
    assert_eq!(writing.unmap(range(503, 1)), Err(MapError::Full { entries: 2 }));
    let known: Vec<u64> = pages(&shared).into_keys().collect();
    assert_eq!(known, [520, 521]);
    assert_eq!(writing.map(mapping(500, 3, 1, 0)), Ok(()), "what died gave its slot back");
    assert_eq!(pictured(&shared), pages(&shared));
    assert_eq!(shared.regions.picture(&mut [None; 1]), Err(PictureError::TooMany));
}

#[test]
fn what_is_no_region_or_site_is_refused() {
    let (_, mut writing) = new(2);
    let mut odd = mapping(1, 1, 1, 0);
    odd.end.0 += 1;
    assert_eq!(writing.map(odd), Err(MapError::NotPages { start: odd.start, end: odd.end }));
    let number = Files::default().number(file(1)).expect("the first");
    let offset = FileOffset(1 << 40);
    assert_eq!(FileSite::new(number, offset), Err(BadSite::OffsetTooLarge { offset }));
    assert!(FileSite::new(number, FileOffset((1 << 40) - 1)).is_ok());
    assert_eq!(FileNumber::new(FileNumber::MAX + 1), None);
}

/// Many sites, many of them removed, through several sizes of the table.
#[test]
fn probes_are_found_at_their_sites_only() {
    let (shared, mut writing) = new(8);
    let number = writing.files.number(file(1)).expect("a number");
    let site = |n: u64| FileSite::new(number, FileOffset(n * 16)).expect("a site");
    let probe = |n: u64| -> &'static Probe {
        Box::leak(Box::new(Probe::new(shared.engine, 0, file(1), FileOffset(n * 16))))
    };
    let mut probes = BTreeMap::new();
    for n in 0..5000_u64 {
        let one = probe(n);
        // SAFETY: leaked.
        unsafe { shared.registry.put(&mut writing.writer, site(n), NonNull::from(one)) };
        probes.insert(n, one.address());
        if n % 3 == 0 {
            shared.registry.take_out(&mut writing.writer, site(n / 2));
            probes.remove(&(n / 2));
        }
    }
    while !writing.writer.sweep() {}
    inside(shared.engine.lines(), |inside| {
        for n in 0..6000 {
            let found = shared.registry.find(inside, site(n)).map(Probe::address);
            assert_eq!(found, probes.get(&n).copied(), "{n}");
        }
    });
}

#[test]
fn an_address_leads_to_its_probe() {
    let (shared, mut writing) = new(8);
    assert_eq!(writing.map(mapping(500, 10, 1, 3)), Ok(()));
    let mut shown = mapping(700, 10, 1, 3);
    shown.access.shared = true;
    assert_eq!(writing.map(shown), Ok(()));
    let number = writing.files.number(file(1)).expect("a number");
    let offset = FileOffset(5 * PAGE + 8);
    let probe = Box::leak(Box::new(Probe::new(shared.engine, 0, file(1), offset)));
    let address = probe.address();
    let site = FileSite::new(number, offset).expect("a site");
    // SAFETY: leaked.
    unsafe { shared.registry.put(&mut writing.writer, site, NonNull::from(probe)) };
    let at = |page: u64, by: u64| {
        inside(shared.engine.lines(), |inside| {
            let found = shared.registry.at(shared.regions, inside, RemoteAddr(page * PAGE + by));
            found.expect("it does not change").map(Probe::address)
        })
    };
    assert_eq!(at(502, 8), Some(address));
    assert_eq!((at(502, 9), at(503, 8), at(702, 8), at(900, 8)), (None, None, None, None));
}

/// RGN-4, case by case: only executable, private, not writable, no huge pages.
#[test]
fn what_takes_breakpoints() {
    let all = (0..16_u8).map(|bits| {
        let bit = |n: u8| bits >> n & 1 == 1;
        Access { exec: bit(0), write: bit(1), shared: bit(2), huge: bit(3) }
    });
    let taking: Vec<Access> = all.filter(|access| access.takes_breakpoints()).collect();
    assert_eq!(taking, [CODE]);
}
