//! RGN-1, RGN-2, RGN-5: lookups and pictures beside changes.

use loom::thread;
use trapline_record::{FileId, FileOffset, RemoteAddr};

use super::{READER, barrier, inside, leaked, lines, model, writer};
use crate::epoch::{Lines, Writer};
use crate::regions::leaf::Hint;
use crate::regions::{Access, FoundRegion, Map, Mapping, MappingEntry, PictureError, Range, Regions, Retry};
use crate::registry::{FileNumber, Files};

const PAGE: u64 = 4096;

fn mapping(page: u64, pages: u64, file: u64) -> Mapping {
    Mapping {
        start: RemoteAddr(page * PAGE),
        end: RemoteAddr((page + pages) * PAGE),
        offset: FileOffset(file * 0x10_0000),
        file: FileId { dev: 1, inode: file },
        access: Access { exec: true, ..Access::default() },
    }
}

fn range(page: u64, pages: u64) -> Range {
    Range::new(RemoteAddr(page * PAGE), RemoteAddr((page + pages) * PAGE)).expect("pages")
}

/// What a writer holds.
struct Writing {
    writer: Writer,
    map: Map,
    files: Files,
}

impl Writing {
    fn map(&mut self, mapping: Mapping) {
        self.map.map(&mut self.writer, &mut self.files, mapping).expect("a slot is free");
    }
    fn unmap(&mut self, range: Range) {
        self.map.unmap(&mut self.writer, range).expect("a slot is free");
    }
}

fn new(entries: usize) -> (Lines, &'static Regions, Writing) {
    let (lines, entries) = (lines(), leaked::<MappingEntry>(entries));
    let regions: &Regions = std::boxed::Box::leak(std::boxed::Box::new(Regions::new(entries)));
    let (map, files) = (Map::new(regions), Files::default());
    (lines, regions, Writing { writer: writer(lines, barrier), map, files })
}

/// (inode, offset) at a page.
fn look(lines: &Lines, regions: &Regions, page: u64) -> Result<Option<(u64, u64)>, Retry> {
    let addr = RemoteAddr(page * PAGE);
    let found = inside(lines, READER, |inside| regions.module(inside, addr));
    found.map(|found| found.map(|(file, offset)| (file.inode, offset.0)))
}

fn true_of(file: u64, by: u64) -> Result<Option<(u64, u64)>, Retry> {
    Ok(Some((file, file * 0x10_0000 + by * PAGE)))
}

/// One page becomes another file's, and then a third's. With two mapping entries, the third reuses the first
/// one's entry.
#[test]
fn a_look_at_a_region_that_is_replaced() {
    model(Some(3), || {
        let (lines, regions, mut writing) = new(2);
        writing.map(mapping(1, 1, 1));
        let reading = thread::spawn(move || {
            let found = look(&lines, regions, 1);
            let allowed = [Err(Retry), true_of(1, 0), true_of(2, 0), true_of(3, 0)];
            assert!(allowed.contains(&found), "{found:?}");
        });
        writing.map(mapping(1, 1, 2));
        writing.map(mapping(1, 1, 3));
        reading.join().expect("it reads");
        assert_eq!(look(&lines, regions, 1), true_of(3, 0));
    });
}

/// Changes of its neighbour in the same granule, and one that makes the table grow.
#[test]
fn a_look_elsewhere_is_not_disturbed() {
    model(Some(3), || {
        let (lines, regions, mut writing) = new(4);
        writing.map(mapping(2, 1, 1));
        let reading = thread::spawn(move || assert_eq!(look(&lines, regions, 2), true_of(1, 0)));
        writing.map(mapping(3, 1, 2));
        writing.unmap(range(3, 1));
        writing.map(mapping(8, 1, 3));
        writing.map(mapping(6, 1, 4));
        reading.join().expect("it reads");
    });
}

/// What is left of a region that is cut is found at any time, or the reader must retry; the part that was cut
/// off is not found afterwards.
#[test]
fn a_look_at_what_is_left() {
    model(Some(3), || {
        let (lines, regions, mut writing) = new(3);
        writing.map(mapping(2, 2, 1));
        let reading = thread::spawn(move || {
            let found = look(&lines, regions, 3);
            assert!(found == Err(Retry) || found == true_of(1, 1), "{found:?}");
        });
        writing.unmap(range(2, 1));
        reading.join().expect("it reads");
        assert_eq!((look(&lines, regions, 2), look(&lines, regions, 3)), (Ok(None), true_of(1, 1)));
    });
}

type Fill = fn(&MappingEntry, &Mapping, FileNumber, u64) -> u64;
type Look = fn(&MappingEntry, RemoteAddr, Hint) -> Result<Option<FoundRegion>, Retry>;

/// One mapping entry is filled by these steps while a reader looks at it by its old hint.
fn refill(fill: Fill, look: Look) {
    model(None, move || {
        let entry: &MappingEntry = &leaked(1)[0];
        let number = |n| FileNumber::new(n).expect("a number");
        let hint = Hint::new(0, entry.fill(&mapping(1, 1, 1), number(1), 1));
        let reading = thread::spawn(move || look(entry, RemoteAddr(PAGE + 8), hint));
        entry.kill(2);
        fill(entry, &mapping(1, 1, 2), number(2), 3);
        let found = reading.join().expect("it reads");
        let found = found.map(|found| found.map(|found| (found.file.get(), found.offset.0)));
        assert!([Err(Retry), Ok(Some((1, 0x10_0008)))].contains(&found), "{found:x?}");
    });
}

#[test]
fn an_entry_is_read_whole() {
    refill(MappingEntry::fill, MappingEntry::look);
}

#[test]
#[should_panic]
fn not_if_it_is_filled_without_a_fence() {
    refill(MappingEntry::fill_without_fence, MappingEntry::look);
}

#[test]
#[should_panic]
fn not_if_it_is_filled_before_it_is_marked() {
    refill(MappingEntry::fill_unmarked, MappingEntry::look);
}

#[test]
#[should_panic]
fn not_if_it_is_looked_at_without_a_fence() {
    refill(MappingEntry::fill, MappingEntry::look_without_fence);
}

/// One region is cut in two: a picture shows it whole, or both parts.
fn picture(regions_of: fn(&Regions, &mut [Option<crate::regions::Mapped>]) -> Result<usize, PictureError>) {
    model(Some(2), move || {
        let (_, regions, mut writing) = new(3);
        writing.map(mapping(1, 3, 1));
        let reading = thread::spawn(move || {
            let mut room = [None; 4];
            match regions_of(regions, &mut room) {
                Ok(n) => {
                    let pages: std::vec::Vec<(u64, u64)> = room
                        .iter()
                        .take(n)
                        .flatten()
                        .map(|one| (one.start.0 / PAGE, one.file.inode))
                        .collect();
                    let states: [&[(u64, u64)]; 3] =
                        [&[(1, 1)], &[(1, 1), (3, 1)], &[(1, 1), (2, 2), (3, 1)]];
                    assert!(states.contains(&&pages[..]), "{pages:?}");
                }
                Err(error) => assert_eq!(error, PictureError::Changing),
            }
        });
        writing.unmap(range(2, 1));
        reading.join().expect("it reads");
    });
}

#[test]
fn a_picture_is_of_one_moment() {
    picture(Regions::picture);
}

#[test]
#[should_panic]
fn not_if_it_takes_what_is_alive() {
    picture(Regions::picture_of_the_living);
}
