//! Orders, interleavings and deaths of the writer, on bytes.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind};

use crate::space::change::{Direction, Outcome};
use crate::space::fake::{Did, Fake};
use crate::space::write::change;
use crate::space::{LINE, SpaceError};

pub(crate) const BASE: u64 = 0x1000;
pub(crate) const JUMP: [u8; 8] = [0xe9, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0, 0];

/// Text with every byte its own position, so that a misplaced byte shows.
pub(crate) fn text() -> Vec<u8> {
    (0..512u32).map(|i| (i % 199 + 1) as u8).collect()
}

pub(crate) fn entry(at: u64, kind: EntryKind) -> Entry {
    let mut old = [0; 8];
    let from = (at - BASE) as usize;
    old[..5].copy_from_slice(&text()[from..from + 5]);
    Entry { addr: RemoteAddr(at), len: 5, kind, starts: 0, old, new: JUMP }
}

/// Entries inside lines, at both ends of lines, next to each other.
pub(crate) fn in_lines() -> Vec<Entry> {
    vec![
        entry(BASE, EntryKind::Entry),
        entry(BASE + 5, EntryKind::Exit),
        entry(BASE + 10, EntryKind::Island),
        entry(BASE + LINE - 5, EntryKind::Entry),
        entry(BASE + 70, EntryKind::Exit),
    ]
}

pub(crate) fn publish(fake: &mut Fake, entries: &[Entry]) -> Result<Vec<Outcome>, SpaceError> {
    let mut outcomes = Vec::new();
    change(fake, entries, Direction::Publish, &mut outcomes).map(|()| outcomes)
}

pub(crate) fn remove(fake: &mut Fake, entries: &[Entry]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    change(fake, entries, Direction::Remove, &mut outcomes).expect("alive");
    outcomes
}

/// Acts as a later tracer, on a CPU about which nothing was proven.
fn recover(fake: &mut Fake, entries: &[Entry]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    change(fake, entries, Direction::Recover, &mut outcomes).expect("alive");
    outcomes
}

/// Publishes and removes: every window holds the patch, then the text again.
pub(crate) fn there_and_back(all: &[Entry]) {
    let mut fake = Fake::new(BASE, text());
    assert!(publish(&mut fake, all).expect("alive").iter().all(|o| *o == Outcome::Done));
    let mut request = text();
    for e in all {
        let at = (e.addr.0 - BASE) as usize;
        request[at..at + 5].copy_from_slice(&JUMP[..5]);
    }
    assert_eq!(fake.bytes, request);
    assert!(remove(&mut fake, all).iter().all(|o| *o == Outcome::Done));
    assert_eq!(fake.bytes, text());
}

#[test]
fn windows_in_lines_go_there_and_back() {
    there_and_back(&in_lines());
}

#[test]
fn windows_of_a_page_are_one_write_and_each_is_seen_whole() {
    // In words of their own, far apart, one that leaves its word, and one of another page.
    let at = [BASE, BASE + 2 * LINE, BASE + 2 * LINE + 12, BASE + 5 * LINE + 3, BASE + 4096 - 8, BASE + 4096];
    let big: Vec<u8> = text().into_iter().cycle().take(8192).collect();
    let all = at.map(|at| {
        let from = (at - BASE) as usize;
        let mut old = [0; 8];
        old[..5].copy_from_slice(&big[from..from + 5]);
        Entry { addr: RemoteAddr(at), len: 5, kind: EntryKind::Entry, starts: 0, old, new: JUMP }
    });
    let mut fake = Fake { runs: true, ..Fake::new(BASE, big.clone()) };
    fake.bytes[3 * 64] ^= 1; // Between windows: stored as it is.
    let before = fake.bytes.clone();
    assert!(publish(&mut fake, &all).expect("alive").iter().all(|o| *o == Outcome::Done));
    assert_eq!(fake.writes(), [BASE, BASE + 4096, BASE + 2 * LINE + 12]);
    for (n, site) in all.iter().enumerate() {
        let from = (site.addr.0 - BASE) as usize;
        let whole =
            |state: &Vec<u8>| state[from..from + 5] == site.old[..5] || state[from..from + 5] == JUMP[..5];
        assert!(fake.states.iter().all(whole), "site {n}");
    }
    assert!(remove(&mut fake, &all).iter().all(|o| *o == Outcome::Done));
    assert_eq!(fake.bytes, before);
}

#[test]
fn what_cannot_be_written_as_a_run_is_written_alone() {
    let all = [
        entry(BASE, EntryKind::Entry),
        entry(BASE + LINE, EntryKind::Entry),
        entry(BASE + 2 * LINE, EntryKind::Entry),
    ];
    let mut fake = Fake { runs: true, hole: Some((BASE + LINE, BASE + 2 * LINE)), ..Fake::new(BASE, text()) };
    let outcomes = publish(&mut fake, &all).expect("alive");
    assert_eq!(outcomes, [Outcome::Done, Outcome::Unreachable, Outcome::Done]);
    fake.hole = None;
    fake.bytes[2] = 0x90;
    fake.log.clear();
    let outcomes = remove(&mut fake, &all);
    assert!(matches!(outcomes[0], Outcome::Differs { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1..], [Outcome::Already, Outcome::Done]);
    assert_eq!(fake.writes(), [BASE + 2 * LINE], "not from the foreign window on");
}

#[test]
fn islands_then_exits_then_entries_and_back() {
    let all = &in_lines();
    let mut fake = Fake::new(BASE, text());
    publish(&mut fake, all).expect("alive");
    let at = |n: usize| all[n].addr.0;
    assert_eq!(fake.writes(), [at(2), at(1), at(4), at(0), at(3) - 3]);
    fake.log.clear();
    remove(&mut fake, all);
    assert_eq!(fake.writes(), [at(0), at(3) - 3, at(1), at(4), at(2)]);
}

/// The tracer dies before each write and each sync of a publication, and of a removal. A later tracer
/// restores everything.
pub(crate) fn deaths(all: &[Entry], words: bool, runs: bool, expected: usize) {
    let new = |text| Fake { words, runs, ..Fake::new(BASE, text) };
    let mut whole = new(text());
    publish(&mut whole, all).expect("alive");
    let armed = whole.bytes.clone();
    let steps = whole.log.iter().filter(|d| **d != Did::Serve).count();
    assert_eq!(steps, expected);
    for dies_at in 0..=steps {
        let mut fake = new(text());
        fake.dies_at = Some(dies_at);
        drop(publish(&mut fake, all));
        fake.dies_at = None;
        let left = recover(&mut fake, all);
        assert!(!left.iter().any(|o| matches!(o, Outcome::Differs { .. })), "death {dies_at}: {left:?}");
        assert_eq!(fake.bytes, text(), "death {dies_at} of a publication");

        let mut fake = new(armed.clone());
        fake.dies_at = Some(dies_at);
        let mut outcomes = Vec::new();
        drop(change(&mut fake, all, Direction::Remove, &mut outcomes));
        fake.dies_at = None;
        recover(&mut fake, all);
        assert_eq!(fake.bytes, text(), "death {dies_at} of a removal");
    }
}

#[test]
fn a_death_between_writes_is_undone() {
    deaths(&in_lines(), true, false, 5);
    deaths(&in_lines(), true, true, 4);
}
