//! The words of one mapping entry. [`regions`](super) describes the protocol.

use trapline_record::{FileId, FileOffset, RemoteAddr};

use super::leaf::Hint;
use super::mapping::{FoundRegion, Mapped, Mapping, Retry};
use crate::file_site::FileNumber;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, fence};

/// The low bits of `seq`: the state. A zeroed entry was never used.
const STATE: u64 = 3;
const DEAD: u64 = 0;
const WRITTEN: u64 = 1;
const ALIVE: u64 = 2;
pub(super) const GENERATION: u64 = 4;
/// Flag beside the file's number.
const TAKES_BREAKPOINTS: u64 = 1 << 32;
/// Death of a region that is alive.
const NEVER: u64 = u64::MAX;

/// A mapping entry: one region. The fields that a lookup loads lie in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct MappingEntry {
    seq: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    offset: AtomicU64,
    /// The file's number, and flags.
    file: AtomicU64,
    birth: AtomicU64,
    death: AtomicU64,
    /// Death of the region that was here before.
    before: AtomicU64,
    dev: AtomicU64,
    inode: AtomicU64,
}

/// An entry's fields as of one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) mapped: Mapped,
    pub(super) birth: u64,
    pub(super) death: u64,
    pub(super) before: u64,
}

impl MappingEntry {
    /// L3 to L5. `None`: the region has pages of the same granule, but not this page.
    #[inline]
    pub(crate) fn look(&self, addr: RemoteAddr, hint: Hint) -> Result<Option<FoundRegion>, Retry> {
        let (start, end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        let (offset, file) = (self.offset.load(Relaxed), self.file.load(Relaxed));
        // Acquire: if the loads above saw any store of a writer that fills the entry, the load below sees
        // what it stored to `seq` before.
        fence(Acquire);
        let seq = self.seq.load(Relaxed);
        if seq & STATE != ALIVE || !hint.is_of(seq / GENERATION) {
            return Err(Retry);
        }
        if !(start..end).contains(&addr.0) {
            return Ok(None);
        }
        Ok(Some(FoundRegion {
            file: FileNumber::new(file as u32).ok_or(Retry)?,
            offset: FileOffset(offset) + (addr.0 - start),
            takes_breakpoints: file & TAKES_BREAKPOINTS != 0,
            entry: hint.entry(),
            seq,
        }))
    }
    /// Whether the entry still has the sequence `seq`: the same region, and alive.
    pub(super) fn is_still(&self, seq: u64) -> bool {
        self.seq.load(Acquire) == seq
    }
    /// Whether it is alive, and of the hint's generation. Then it is as it was when the hint was made, and so
    /// is all that was read of it since.
    #[inline]
    pub(super) fn has(&self, hint: Hint) -> bool {
        let seq = self.seq.load(Acquire);
        seq & STATE == ALIVE && hint.is_of(seq / GENERATION)
    }
    /// Device and inode of the file.
    pub(super) fn file(&self, seq: u64) -> Result<FileId, Retry> {
        let file = FileId { dev: self.dev.load(Relaxed), inode: self.inode.load(Relaxed) };
        fence(Acquire);
        if self.seq.load(Relaxed) == seq { Ok(file) } else { Err(Retry) }
    }
    /// P2: all fields, alive or dead. `None`: never used.
    pub(super) fn fields(&self) -> Result<Option<Fields>, Retry> {
        let seq = self.seq.load(Acquire);
        if seq == 0 {
            return Ok(None);
        }
        let word = |word: &AtomicU64| word.load(Relaxed);
        let mapped = Mapped {
            start: RemoteAddr(word(&self.start)),
            end: RemoteAddr(word(&self.end)),
            offset: FileOffset(word(&self.offset)),
            file: FileId { dev: word(&self.dev), inode: word(&self.inode) },
            takes_breakpoints: word(&self.file) & TAKES_BREAKPOINTS != 0,
        };
        let (birth, death, before) = (word(&self.birth), word(&self.death), word(&self.before));
        fence(Acquire);
        // The region may die meanwhile. Then `death` is later than any version that was read before, or the
        // state has changed.
        if seq & STATE == WRITTEN || self.seq.load(Relaxed) != seq {
            return Err(Retry);
        }
        Ok(Some(Fields { mapped, birth, death, before }))
    }
    /// F1 to F3; returns the new generation. The entry is dead, or was never used.
    pub(crate) fn fill(&self, mapping: &Mapping, file: FileNumber, birth: u64) -> u64 {
        let seq = (self.seq.load(Relaxed) & !STATE) + GENERATION;
        self.seq.store(seq | WRITTEN, Relaxed);
        // Release: a reader that sees a store below sees the one above (with the acquire fence of a lookup).
        fence(Release);
        let flags = if mapping.access.takes_breakpoints() { TAKES_BREAKPOINTS } else { 0 };
        self.before.store(self.death.load(Relaxed), Relaxed);
        self.start.store(mapping.start.0, Relaxed);
        self.end.store(mapping.end.0, Relaxed);
        self.offset.store(mapping.offset.0, Relaxed);
        self.file.store(u64::from(file.get()) | flags, Relaxed);
        self.birth.store(birth, Relaxed);
        self.death.store(NEVER, Relaxed);
        self.dev.store(mapping.file.dev, Relaxed);
        self.inode.store(mapping.file.inode, Relaxed);
        self.seq.store(seq | ALIVE, Release);
        seq / GENERATION
    }
    /// C3.
    pub(crate) fn kill(&self, death: u64) {
        self.death.store(death, Relaxed);
        self.seq.store(self.seq.load(Relaxed) & !STATE | DEAD, Release);
    }
}

/// Twins that must fail, for the models.
#[cfg(all(test, loom))]
impl MappingEntry {
    /// `look` without the fence of L4.
    pub(crate) fn look_without_fence(
        &self,
        addr: RemoteAddr,
        hint: Hint,
    ) -> Result<Option<FoundRegion>, Retry> {
        let (start, end) = (self.start.load(Relaxed), self.end.load(Relaxed));
        let (offset, file) = (self.offset.load(Relaxed), self.file.load(Relaxed));
        let seq = self.seq.load(Relaxed);
        if seq & STATE != ALIVE || !hint.is_of(seq / GENERATION) || !(start..end).contains(&addr.0) {
            return Err(Retry);
        }
        let file = FileNumber::new(file as u32).ok_or(Retry)?;
        let offset = FileOffset(offset) + (addr.0 - start);
        Ok(Some(FoundRegion { file, offset, takes_breakpoints: true, entry: 0, seq }))
    }
    /// `fill` without the fence after F1.
    pub(crate) fn fill_without_fence(&self, mapping: &Mapping, file: FileNumber, _: u64) -> u64 {
        let seq = (self.seq.load(Relaxed) & !STATE) + GENERATION;
        self.seq.store(seq | WRITTEN, Relaxed);
        self.offset.store(mapping.offset.0, Relaxed);
        self.file.store(u64::from(file.get()), Relaxed);
        self.seq.store(seq | ALIVE, Release);
        seq / GENERATION
    }
    /// `fill` with F2 before F1: the entry's previous region still counts as alive meanwhile.
    pub(crate) fn fill_unmarked(&self, mapping: &Mapping, file: FileNumber, _: u64) -> u64 {
        self.offset.store(mapping.offset.0, Relaxed);
        self.file.store(u64::from(file.get()), Relaxed);
        let seq = (self.seq.load(Relaxed) & !STATE) + GENERATION;
        self.seq.store(seq | ALIVE, Release);
        seq / GENERATION
    }
}
