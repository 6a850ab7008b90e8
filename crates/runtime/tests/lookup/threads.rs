//! Lookups beside changes.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use trapline_record::{FileOffset, RemoteAddr};
use trapline_runtime::regions::PictureError;

use crate::support::{PAGE, Shared, file, inside, mapping, new, range};

/// Reads in two threads while `change` is repeated.
fn beside(shared: Shared, read: impl Fn(&Shared) + Sync, mut change: impl FnMut(u64)) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut looks = 0_u64;
                    while !stop.load(SeqCst) || looks < 1000 {
                        read(&shared);
                        looks += 1;
                    }
                    looks
                })
            })
            .collect();
        (0..20_000).for_each(&mut change);
        stop.store(true, SeqCst);
        reading.into_iter().for_each(|reader| assert!(reader.join().expect("it reads") >= 1000));
    });
}

/// RGN-2: neighbours change in the same granule, and a table grows. Each lookup still finds its region, at
/// the first attempt.
#[test]
fn a_look_is_not_disturbed_by_changes_elsewhere() {
    let (shared, mut writing) = new(4000);
    assert_eq!(writing.map(mapping(505, 3, 1, 5)), Ok(()));
    let read = |shared: &Shared| {
        let addr = RemoteAddr(506 * PAGE + 4);
        let found = inside(shared.engine.lines(), |inside| shared.regions.module(inside, addr));
        assert_eq!(found, Ok(Some((file(1), FileOffset(6 * PAGE + 4)))));
    };
    beside(shared, read, |n| {
        assert_eq!(writing.map(mapping(500 + n % 5, 5 - n % 5, n % 7, n % 11)), Ok(()));
        assert_eq!(writing.unmap(range(508, 4)), Ok(()));
        assert_eq!(writing.map(mapping(508, 3, 2, 0)), Ok(()));
        assert_eq!(writing.map(mapping(600 + n % 512 * 512, 1, 2, 0)), Ok(()));
        writing.writer.sweep();
    });
}

/// RGN-1: the region itself changes. Each answer is one that was right at some moment.
#[test]
fn a_look_at_a_changing_region_is_true_or_retried() {
    let (shared, mut writing) = new(8);
    let read = |shared: &Shared| {
        let addr = RemoteAddr(506 * PAGE);
        let found = inside(shared.engine.lines(), |inside| shared.regions.module(inside, addr));
        // File n is mapped at page 500, from its own page n on.
        if let Ok(Some((found, offset))) = found {
            assert_eq!(offset.0 / PAGE, found.inode - file(0).inode + 6);
        }
    };
    beside(shared, read, |n| {
        assert_eq!(writing.map(mapping(500, 10, n % 13, n % 13)), Ok(()));
        if n % 4 == 0 {
            assert_eq!(writing.unmap(range(503, 4)), Ok(()));
        }
        if n % 8 == 0 {
            assert_eq!(writing.unmap(range(500, 10)), Ok(()));
        }
        writing.writer.sweep();
    });
}

/// RGN-5: of three pages of one file, the middle one is unmapped, or filled by the next file. A picture of
/// all regions must show one of these states, never a mixture.
#[test]
fn a_picture_is_of_one_moment() {
    let (shared, mut writing) = new(64);
    let read = |shared: &Shared| {
        let mut room = [None; 8];
        let n = match shared.regions.picture(&mut room) {
            Ok(n) => n,
            Err(error) => return assert_eq!(error, PictureError::Changing),
        };
        let pages: Vec<(u64, u64)> =
            room.iter().take(n).flatten().map(|one| (one.start.0 / PAGE, one.file.inode)).collect();
        match pages[..] {
            [] | [(500, _)] => {}
            [(500, left), (502, right)] => assert_eq!(left, right, "the same mapping, cut"),
            [(500, left), (501, middle), (502, right)] => {
                assert!(left == right && middle == left + 1, "{pages:?}")
            }
            _ => panic!("{pages:?} was never mapped"),
        }
    };
    beside(shared, read, |n| {
        assert_eq!(writing.map(mapping(500, 3, n, 0)), Ok(()));
        assert_eq!(writing.unmap(range(501, 1)), Ok(()));
        assert_eq!(writing.map(mapping(501, 1, n + 1, 0)), Ok(()));
        writing.writer.sweep();
    });
}
