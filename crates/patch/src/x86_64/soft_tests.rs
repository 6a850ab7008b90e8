//! Windows that change while traps of ours stand in them.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind};

use super::traps::INT3;
use crate::space::change::{Direction, Outcome};
use crate::space::fake::Fake;
use crate::space::soft::{Masked, Soft};
use crate::space::write::change;

const BASE: u64 = 0x1000;

/// Text of 1, 2, 3, …, with a trap at byte 9; a window there, or right before it, in the same word.
fn changed(words: bool, at: u64, len: u8) -> (Vec<Outcome>, Vec<u8>) {
    let text: Vec<u8> = (1..=64).collect();
    let (mut old, new) = ([0; 8], [0xe9, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0, 0]);
    old[..usize::from(len)].copy_from_slice(&text[at as usize..][..usize::from(len)]);
    let entry = Entry { addr: RemoteAddr(BASE + at), len, kind: EntryKind::Entry, starts: 0b10, old, new };
    let mut space = Fake { words, runs: words, ..Fake::new(BASE, text) };
    space.bytes[9] = INT3;
    let soft = Soft::from([(BASE + 9, 10)]);
    let mut outcomes = Vec::new();
    let mut masked = Masked { space, soft: &soft };
    change(&mut masked, &[entry], Direction::Publish, &mut outcomes).expect("alive");
    (outcomes, masked.space.bytes)
}

#[test]
fn a_trap_goes_with_its_own_window_and_no_sooner() {
    for words in [false, true] {
        let (outcomes, bytes) = changed(words, 8, 5);
        assert_eq!((outcomes[0], &bytes[8..13]), (Outcome::Done, &[0xe9, 0xcc, 0xcc, 0xcc, 0xcc][..]));
        for at in [4, 10] {
            let (outcomes, bytes) = changed(words, at, 5);
            assert_eq!((outcomes[0], bytes[9]), (Outcome::Done, INT3), "a window at {at}");
        }
    }
}
