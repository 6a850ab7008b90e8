//! Memory that a hit's record holds: what is asked for before, and what is there afterwards.
//!
//! In: loads that a block needs; bytes that were read at the hit. Out: bytes at an address, as far as the record has
//! them. Invariant: an answer is made of recorded bytes alone; what is unreadable and what is not recorded
//! are told apart. Does not: read memory.

use std::rc::Rc;

/// Bytes of one load.
pub(crate) const READ_BYTES: u32 = 64;
/// Bytes of what a returned value points to.
pub(crate) const RETURNED_BYTES: u32 = 4096;
/// Loads of one block.
pub(crate) const MOST_READS: usize = 24;
/// Pointers from a value to what is loaded.
pub(crate) const MOST_POINTERS: usize = 6;

/// What a chain of loads begins with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// An argument of the function.
    Argument(u8),
    /// A register, by the name that the language has for it.
    Register(Rc<str>),
    /// The address of a variable in the probed file. A record holds where the file is mapped.
    Variable(FileVariable),
}

/// A variable of a file, by its symbol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileVariable {
    /// The symbol's name.
    pub name: Rc<str>,
    /// Its address in the file.
    pub at: u64,
    /// Its size in bytes; 0 if that is not known.
    pub size: u64,
}

/// A load through as many pointers as there are offsets. Without any, the root's own value is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Read {
    /// What it begins with.
    pub root: Root,
    /// Each is added to the address so far: the root's value, then each word that was loaded.
    pub offsets: Vec<i32>,
    /// Bytes of the last load, 64 at most.
    pub bytes: u8,
}

/// Why there are no more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// There are as many as were wanted.
    Whole,
    /// The next one could not be read at the hit.
    Fault,
    /// The next one was not asked for at the hit.
    Unrecorded,
}

/// Bytes that were read at a hit.
#[derive(Debug, Clone)]
struct Part {
    at: u64,
    bytes: Vec<u8>,
    /// The byte behind them could not be read.
    faults: bool,
}

/// All memory that a hit's record holds.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    parts: Vec<Part>,
}

/// Whether two addresses are certainly on one page, whatever size pages have.
const fn on_one_page(a: u64, b: u64) -> bool {
    const LEAST: u64 = 4096;
    a / LEAST == b / LEAST
}

impl Memory {
    /// Adds what was read at an address. With `faults`, reading ended behind these bytes because the next could not be
    /// read.
    pub fn add(&mut self, at: u64, bytes: Vec<u8>, faults: bool) {
        self.parts.push(Part { at, bytes, faults });
    }
    /// The bytes at an address, as far as they are known.
    pub fn read(&self, at: u64, length: usize) -> (Vec<u8>, End) {
        let mut out = Vec::new();
        while out.len() < length {
            let next = at.wrapping_add(out.len() as u64);
            let here = self.parts.iter().filter_map(|part| {
                let from = usize::try_from(next.checked_sub(part.at)?).ok()?;
                part.bytes.get(from..).filter(|bytes| !bytes.is_empty())
            });
            match here.max_by_key(|bytes| bytes.len()) {
                Some(bytes) => out.extend(&bytes[..bytes.len().min(length - out.len())]),
                None => return (out, self.end(next)),
            }
        }
        (out, End::Whole)
    }
    /// Why a byte is not there. No program has its first page.
    fn end(&self, at: u64) -> End {
        let unreadable =
            |part: &Part| part.faults && on_one_page(at, part.at.wrapping_add(part.bytes.len() as u64));
        if on_one_page(at, 0) || self.parts.iter().any(unreadable) { End::Fault } else { End::Unrecorded }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Memory};

    #[test]
    fn bytes_are_put_together_from_what_was_read() {
        let mut memory = Memory::default();
        memory.add(0x5000, vec![1, 2, 3, 4], false);
        memory.add(0x5004, vec![5, 6, 7, 8], false);
        memory.add(0x5002, vec![3, 4, 5], false);
        assert_eq!(memory.read(0x5001, 6), (vec![2, 3, 4, 5, 6, 7], End::Whole));
        assert_eq!(memory.read(0x5006, 4), (vec![7, 8], End::Unrecorded));
        assert_eq!(memory.read(0x4fff, 2), (vec![], End::Unrecorded));
    }

    #[test]
    fn what_is_unreadable_is_known_for_its_page_alone() {
        let mut memory = Memory::default();
        memory.add(0x5ff0, vec![9; 16], true);
        memory.add(0x8000, Vec::new(), true);
        assert_eq!(memory.read(0x5ffe, 4), (vec![9, 9], End::Fault));
        assert_eq!(memory.read(0x8fff, 1), (vec![], End::Fault));
        assert_eq!(memory.read(0x9000, 1), (vec![], End::Unrecorded));
        assert_eq!(memory.read(0x10, 8), (vec![], End::Fault), "the first page");
    }
}
