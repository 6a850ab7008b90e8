//! A code space made of bytes, for tests. It keeps a log of writes, checks PATCH-5 on each, and can die or
//! lose pages at any of them.
#![allow(dead_code, reason = "some of it is for windows that change in steps, which not every processor has")]

use trapline_record::RemoteAddr;
use trapline_tracee::TargetError;

use crate::space::{CodeSpace, LINE, SpaceError};

/// What the space was asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Did {
    /// Write one word or a run of words from this address on.
    Write(u64),
    /// A core sync.
    Sync,
    /// A look for stops.
    Serve,
}

/// Bytes at an address.
#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) log: Vec<Did>,
    /// The text behind each word that was stored.
    pub(crate) states: Vec<Vec<u8>>,
    /// The tracer dies instead of doing this write or sync, counted from 0.
    pub(crate) dies_at: Option<usize>,
    /// Addresses that cannot be reached.
    pub(crate) hole: Option<(u64, u64)>,
    /// Words are seen whole.
    pub(crate) words: bool,
    /// Writes may be longer than a word.
    pub(crate) runs: bool,
    /// The text at the last sync.
    pub(crate) synced: Vec<u8>,
    /// For each write in parts: the text at the last sync, and behind the write.
    pub(crate) parts: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Fake {
    pub(crate) fn new(base: u64, bytes: Vec<u8>) -> Self {
        let synced = bytes.clone();
        let (log, states, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { base, bytes, log, states, dies_at: None, hole: None, words: true, runs: false, synced, parts }
    }
    pub(crate) fn writes(&self) -> Vec<u64> {
        self.log.iter().filter_map(|d| if let Did::Write(at) = d { Some(*at) } else { None }).collect()
    }
    fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>, SpaceError> {
        let end = at + len as u64;
        let lost = self.hole.is_some_and(|(from, to)| at < to && end > from);
        if lost || at < self.base || end > self.base + self.bytes.len() as u64 {
            let source = std::io::Error::from_raw_os_error(5);
            return Err(SpaceError::Place(TargetError::Memory {
                pid: 1,
                what: "reach",
                addr: RemoteAddr(at),
                len,
                source,
            }));
        }
        let from = (at - self.base) as usize;
        Ok(from..from + len)
    }
    fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), SpaceError> {
        let range = self.range(at, bytes.len())?;
        for (to, word) in range.step_by(8).zip(bytes.chunks(8)) {
            self.bytes[to..to + 8].copy_from_slice(word);
            self.states.push(self.bytes.clone());
        }
        self.log.push(Did::Write(at));
        Ok(())
    }
    fn live(&self) -> Result<(), SpaceError> {
        let done = self.log.iter().filter(|d| **d != Did::Serve).count();
        if self.dies_at.is_some_and(|n| done >= n) {
            return Err(SpaceError::Gone(TargetError::Gone { pid: 1, how: "test".into() }));
        }
        Ok(())
    }
}

impl CodeSpace for Fake {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        into.copy_from_slice(&self.bytes[self.range(at.0, into.len())?]);
        Ok(())
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.live()?;
        let last = at.0 + bytes.len() as u64 - 1;
        assert!(self.words, "PATCH-5: nothing is seen whole here");
        if bytes.len() == 8 {
            assert_eq!(at.0 / LINE, last / LINE, "PATCH-5: {at} crosses a line");
        } else {
            assert!(self.runs && at.0.is_multiple_of(8) && bytes.len().is_multiple_of(8), "PATCH-5: words");
            assert_eq!(at.0 / 4096, last / 4096, "PATCH-5: {at} crosses a page");
        }
        self.store(at.0, bytes)
    }
    fn write_parts(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.live()?;
        assert!(at.0.is_multiple_of(8) && bytes.len().is_multiple_of(8), "aligned words");
        self.store(at.0, bytes)?;
        self.parts.push((self.synced.clone(), self.bytes.clone()));
        Ok(())
    }
    fn takes_words(&self) -> bool {
        self.words
    }
    fn proves_words(&self) -> bool {
        self.words
    }
    fn takes_runs(&self) -> bool {
        self.runs
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        self.live()?;
        self.log.push(Did::Sync);
        self.synced.clone_from(&self.bytes);
        Ok(())
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.log.push(Did::Serve);
        Ok(())
    }
}
