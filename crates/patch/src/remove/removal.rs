//! One segment that is to be taken out of one process.
//!
//! In: the segment, as the process maps it. Out: its sites; its semaphores lowered (R2), its notes of pages
//! cleared (R3a). Every step looks before it acts, so it may be repeated.
//! Does not: write sites, or set actions.

use trapline_record::control::{State, at, fact};
use trapline_record::journal::{Entry, EntryKind};
use trapline_record::pages;
use trapline_tracee::{FileId, Process, TargetError};

use crate::error::PatchError;
use crate::memory::find::{FoundSegment, find_segments};
use crate::memory::semaphore;
use crate::memory::words::SegmentWords;
use crate::signals::SERVED;

/// Upper bound of the CPUs for which Linux may be built on this processor: a block with more tables is
/// broken.
const MOST_TABLES: u64 = 8192;

/// The segments to be taken out, newest first.
pub(crate) fn removals<'a>(process: &'a Process, files: &[FileId]) -> Result<Vec<Removal<'a>>, PatchError> {
    let found = find_segments(process)?.into_iter().filter(|f| files.contains(&f.memfd) && f.block.is_ours());
    found
        .map(|found| {
            let entries = found.block.journal(process, found.control)?;
            let words = SegmentWords(process, found.control);
            Ok(Removal { words, found, entries })
        })
        .collect()
}

/// One segment that is to be taken out of one process.
pub(crate) struct Removal<'a> {
    /// Its words, as mapped by this process.
    pub(crate) words: SegmentWords<'a>,
    pub(crate) found: FoundSegment,
    pub(crate) entries: Vec<Entry>,
}

impl Removal<'_> {
    /// Whether the program had a handler of its own for SIGTRAP when we came (PATCH-15), or asked to replace
    /// ours.
    pub(crate) fn is_trap_the_programs(&self) -> bool {
        let (served, block) = (&SERVED[0], &self.found.block);
        let had_one = self.handles() & served.bit != 0 && block.action(served.old).handler > 1;
        had_one || block.get(at::ASKED) & fact::TRAPS != 0
    }
    /// Whether the words show this process' state. A child shares them with its parent, and until the parent
    /// is gone they show the parent's.
    pub(crate) fn is_owned_by(&self, process: &Process) -> bool {
        let owner = self.found.owner();
        owner == process.pid() || !trapline_tracee::runs(owner)
    }
    /// Which signals its handler serves.
    pub(crate) fn handles(&self) -> u64 {
        self.found.block.get(at::HANDLES)
    }
    /// Writes what its tracer is doing, if the words are this process'.
    pub(crate) fn set_state(&self, process: &Process, state: State) -> Result<(), TargetError> {
        if self.is_owned_by(process) { self.words.set(at::STATE, state as u64) } else { Ok(()) }
    }
    /// Step R2. It applies only to the process in which they were raised: a child has its own copy of the words.
    pub(crate) fn lower(&self, process: &Process) -> u32 {
        let mut lowered = 0;
        let journal = self.found.block.get(at::JOURNAL_OFF);
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, e)| e.kind == EntryKind::Semaphore)
        {
            if semaphore::lower(process, entry).unwrap_or(false) {
                lowered += 1;
                if self.is_owned_by(process) {
                    // So that a second try does not lower it again. A failure means that the process is gone.
                    drop(semaphore::unmark(&self.words, journal, index, entry));
                }
            }
        }
        lowered
    }
    /// Step R3a: from here on the kernel copies all texts (`plan`'s `stub::text`). The handler's word is cleared
    /// first, so that no thread notes a page that is not removed from the tables; then the notes are cleared. A
    /// child shares these words with its parent, for which both were cleared already.
    pub(crate) fn forget_pages(&self, process: &Process) -> Result<(), TargetError> {
        let block = &self.found.block;
        if !self.is_owned_by(process) || block.get(at::FAULT_HANDLER) == 0 {
            return Ok(());
        }
        self.words.set(at::FAULT_HANDLER, 0)?;
        let tables = block.get(at::PAGES_TABLES).min(MOST_TABLES);
        for table in (0..tables).map(|n| block.get(at::PAGES_OFF) + (n << pages::STRIDE_BITS)) {
            if process.read_u64(self.found.control + table + pages::FILLED)? != 0 {
                let empty = [0; pages::FILLED as usize];
                self.words.set(table + pages::FILLED, 0)?;
                process.write_text(self.found.control + table, &empty)?;
            }
        }
        Ok(())
    }
}
