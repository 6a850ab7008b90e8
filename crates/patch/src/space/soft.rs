//! Code that holds traps of ours while patches there change: windows look as if there were no traps.
//!
//! In: a [`CodeSpace`], the traps. Out: the same space, in which a window is compared as if each trap were
//! the byte that it stands for. Reads and writes concern what is really there: traps around a window stay,
//! those inside go with its bytes.
//! Does not: know which handler serves the traps.

use std::collections::BTreeMap;

use trapline_record::RemoteAddr;

use crate::space::staged::INT3;
use crate::space::{CodeSpace, SpaceError};

/// Traps by address, with the bytes that they stand for.
pub(crate) type Soft = BTreeMap<u64, u8>;

/// Makes a window that was read look as if there were no traps.
pub(crate) fn unmask(soft: &Soft, at: RemoteAddr, bytes: &mut [u8]) {
    for (addr, byte) in soft.range(at.0..at.0 + bytes.len() as u64) {
        let present = &mut bytes[(addr - at.0) as usize];
        if *present == INT3 {
            *present = *byte;
        }
    }
}

/// A space, and the traps in it.
pub(crate) struct Masked<'a, S> {
    pub(crate) space: S,
    pub(crate) soft: &'a Soft,
}

impl<S: CodeSpace> CodeSpace for Masked<'_, S> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        self.space.read(at, into)
    }
    fn look_past_traps(&self, at: RemoteAddr, bytes: &mut [u8]) {
        unmask(self.soft, at, bytes);
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.space.write(at, bytes)
    }
    fn write_parts(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.space.write_parts(at, bytes)
    }
    fn takes_words(&self) -> bool {
        self.space.takes_words()
    }
    fn takes_runs(&self) -> bool {
        self.space.takes_runs()
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        self.space.sync()
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.space.serve()
    }
}

#[cfg(test)]
mod tests {
    use trapline_record::RemoteAddr;
    use trapline_record::journal::{Entry, Kind};

    use super::{INT3, Masked, Soft};
    use crate::space::fake::Fake;
    use crate::space::write::{Direction, Outcome, change};

    const BASE: u64 = 0x1000;

    /// Text of 1, 2, 3, …, with a trap at byte 9; a window there, or right before it, in the same word.
    fn changed(words: bool, at: u64, len: u8) -> (Vec<Outcome>, Vec<u8>) {
        let text: Vec<u8> = (1..=64).collect();
        let (mut old, new) = ([0; 8], [0xe9, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0, 0]);
        old[..usize::from(len)].copy_from_slice(&text[at as usize..][..usize::from(len)]);
        let entry = Entry { addr: RemoteAddr(BASE + at), len, kind: Kind::Entry, starts: 0b10, old, new };
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
}
