//! A file's blocks, one after another.
//!
//! In: untrusted bytes. Out: whole blocks with the right checksum, or where the file ends, or what is wrong (SAV-1, SAV-2).
//! Does not: know what blocks hold, but for the first one.

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::time::Duration;

use super::frame::{BLOCK, Get, HEAD, Kind, LONGEST, MAGIC, VERSION, sum};
use super::read::SavedError;
use crate::decode::Clock;

/// A file that is being read.
#[derive(Debug)]
pub(crate) struct Blocks<R> {
    from: R,
    /// Offsets at which the last block that was read begins and ends.
    pub(crate) at: (u64, u64),
    /// Its contents.
    pub(crate) block: Vec<u8>,
}

/// The head of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    number: u32,
    /// The checksum that it says.
    stated: u32,
    /// Bytes of the contents.
    pub(crate) len: u64,
}

/// What the first block says.
#[derive(Debug)]
pub(crate) struct Begin {
    /// Time at which the recording began, since 1970.
    pub(crate) began: Duration,
    pub(crate) clock: Clock,
    pub(crate) note: Vec<u8>,
}

impl<R: Read + Seek> Blocks<R> {
    /// Passes over the rest of a block, unread but for its last byte. Returns whether it is whole.
    pub(crate) fn pass(&mut self, head: &Head) -> Result<bool, SavedError> {
        let rest = head.len.saturating_sub(self.block.len() as u64);
        let unread = rest.saturating_sub(1);
        self.from.seek_relative(i64::try_from(unread).unwrap_or(i64::MAX))?;
        self.at.1 += unread;
        let whole = self.fill(rest - unread, &mut Vec::new())?;
        if !whole {
            self.at.1 = self.from.seek(SeekFrom::End(0))?;
        }
        Ok(whole)
    }
}

impl<R: Read> Blocks<R> {
    /// Reads the file's head and first block.
    ///
    /// # Errors
    /// If it is not a recording, or has another version.
    pub(crate) fn open(from: R) -> Result<(Self, Begin), SavedError> {
        let mut blocks = Self { from, at: (0, 0), block: Vec::new() };
        let mut head = Vec::new();
        blocks.fill(HEAD as u64, &mut head)?;
        match (head.get(..8), Get(head.get(8..).unwrap_or_default()).u32()) {
            (Some(magic), _) if magic != MAGIC => return Err(SavedError::Foreign),
            // Nothing says that it is not one that was about to begin.
            (None, _) if MAGIC.starts_with(&head) => return Err(SavedError::Cut(blocks.at.1)),
            (None, _) => return Err(SavedError::Foreign),
            (_, None) => return Err(SavedError::Cut(blocks.at.1)),
            (_, Some(version)) if version != VERSION => return Err(SavedError::Version(version)),
            _ => {}
        }
        match blocks.next()? {
            None => return Err(SavedError::Cut(blocks.at.1)),
            Some(Kind::Begin) => {}
            Some(_) => return Err(blocks.damaged("stands where the begin should")),
        }
        let mut get = Get(&blocks.block);
        let mut begin = || {
            let (began, clock) = (get.u64()?, (get.u64()?, f64::from_bits(get.u64()?)));
            let note = get.bytes()?.to_vec();
            get.end()?;
            let began = Duration::from_nanos(began);
            (clock.1.is_finite() && clock.1 >= 0.0).then_some(Begin { began, clock, note })
        };
        let begin = begin();
        let begin = begin.ok_or_else(|| blocks.damaged("is no begin"))?;
        Ok((blocks, begin))
    }
    /// The note of the last block. Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<Vec<u8>, SavedError> {
        let mut get = Get(&self.block);
        let note = get.bytes().map(<[u8]>::to_vec).filter(|_| get.end().is_some());
        let note = note.ok_or_else(|| self.damaged("is no end"))?;
        let mut more = Vec::new();
        self.fill(1, &mut more)?;
        if more.is_empty() { Ok(note) } else { Err(self.damaged("is the end, and not the last")) }
    }
    /// Reads a whole block, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Kind>, SavedError> {
        match self.head()? {
            Some(head) => Ok(self.contents(&head)?.then_some(head.kind)),
            None => Ok(None),
        }
    }
    /// Reads the head of a block, if there is one.
    pub(crate) fn head(&mut self) -> Result<Option<Head>, SavedError> {
        self.block.clear();
        self.at.0 = self.at.1;
        let mut head = Vec::new();
        if !self.fill(BLOCK as u64, &mut head)? {
            return Ok(None);
        }
        let mut get = Get(&head);
        let (number, stated, len) = (get.u32(), get.u32(), get.u64().unwrap_or(u64::MAX));
        let Some((kind, number)) = number.and_then(|number| Some((Kind::from_word(number)?, number))) else {
            return Err(self.damaged("is of no kind that there is"));
        };
        if len > LONGEST {
            return Err(self.damaged("is longer than any"));
        }
        Ok(Some(Head { kind, number, stated: stated.unwrap_or(0), len }))
    }
    /// Reads on to so many bytes of the contents, or to their end. Returns whether there were as many.
    pub(crate) fn peek(&mut self, head: &Head, bytes: u64) -> Result<bool, SavedError> {
        let mut block = std::mem::take(&mut self.block);
        let more = bytes.min(head.len).saturating_sub(block.len() as u64);
        let whole = self.fill(more, &mut block);
        self.block = block;
        whole
    }
    /// Reads the rest of a block. Returns whether there was as much.
    pub(crate) fn contents(&mut self, head: &Head) -> Result<bool, SavedError> {
        if !self.peek(head, head.len)? {
            return Ok(false);
        }
        match sum(head.number, &self.block) == head.stated {
            true => Ok(true),
            false => Err(self.damaged("has another checksum than it says")),
        }
    }
    /// Appends so many bytes to `into`; returns whether there were as many.
    pub(crate) fn fill(&mut self, len: u64, into: &mut Vec<u8>) -> Result<bool, SavedError> {
        let before = into.len();
        let read = loop {
            match self.from.by_ref().take(len - (into.len() - before) as u64).read_to_end(into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let got = (into.len() - before) as u64;
        self.at.1 += got;
        read?;
        Ok(got == len)
    }
    pub(crate) const fn damaged(&self, what: &'static str) -> SavedError {
        SavedError::Damaged { at: self.at.0, what }
    }
}
