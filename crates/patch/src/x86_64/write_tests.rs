//! The writer's tests with windows that cross lines, and with int3 of other tools.

use trapline_record::journal::{Entry, EntryKind};

use crate::space::LINE;
use crate::space::change::Outcome;
use crate::space::fake::Fake;
use crate::space::write_tests::{BASE, deaths, entry, in_lines, publish, remove, text, there_and_back};

/// Entries inside lines, and across lines at every split.
fn many() -> Vec<Entry> {
    let crossing = (1..5).map(|low| entry(BASE + (low + 1) * LINE - low, EntryKind::Entry));
    in_lines().into_iter().chain(crossing).collect()
}

#[test]
fn all_windows_go_there_and_back() {
    there_and_back(&many());
}

#[test]
fn death_anywhere_is_undone() {
    deaths(&many(), true, false, 10);
    deaths(&many(), true, true, 9);
    // Three phases: five rounds, a sync behind each but the last.
    deaths(&many(), false, false, 9);
}

#[test]
fn foreign_bytes_are_left_alone() {
    let all = many();
    let mut fake = Fake::new(BASE, text());
    fake.bytes[2] = 0x90;
    let outcomes = publish(&mut fake, &all).expect("alive");
    assert!(matches!(outcomes[0], Outcome::Differs { found } if found[2] == 0x90), "{:?}", outcomes[0]);
    assert_eq!(fake.bytes[..5], [1, 2, 0x90, 4, 5]);
    fake.bytes[LINE as usize - 3] = 0x90;
    let outcomes = remove(&mut fake, &all);
    assert!(matches!(outcomes[3], Outcome::Differs { .. }), "{:?}", outcomes[3]);
    assert_eq!(outcomes[1], Outcome::Done);
}

#[test]
fn a_kernel_uprobe_put_on_a_patch_survives_its_removal() {
    let site = [entry(BASE + 8, EntryKind::Entry)];
    let mut fake = Fake::new(BASE, text());
    publish(&mut fake, &site).expect("alive");
    fake.bytes[8] = 0xcc;
    assert_eq!(remove(&mut fake, &site), [Outcome::KeptBreakpoint]);
    let mut request = text();
    request[8] = 0xcc;
    assert_eq!(fake.bytes, request);
    // The kernel removes its breakpoint and puts the file's byte back, over a patch that is still there.
    let mut fake = Fake::new(BASE, text());
    publish(&mut fake, &site).expect("alive");
    fake.bytes[8] = text()[8];
    assert_eq!(remove(&mut fake, &site), [Outcome::Done]);
    assert_eq!(fake.bytes, text());
}

#[test]
fn an_unmapped_page_costs_only_its_own_sites() {
    let all = many();
    let mut fake = Fake::new(BASE, text());
    fake.hole = Some((BASE + LINE, BASE + 2 * LINE));
    let outcomes = publish(&mut fake, &all).expect("alive");
    assert_eq!(outcomes[0], Outcome::Done);
    assert_eq!(outcomes[4], Outcome::Unreachable);
    assert_eq!(outcomes[5], Outcome::Unreachable);
    assert_eq!(outcomes[7], Outcome::Done);
}
