//! A segment's words, reached through a mapping in the target, by a tracer that did not make them.
//!
//! In: byte offsets of `record::control::at`. Out: words, all of them input from a process that may be
//! broken.
//! Does not: interpret them beyond [`Block`].

use trapline_record::RemoteAddr;
use trapline_record::control::{CONTROL_LEN, MAGIC, State, VERSION, at};
use trapline_record::journal::{ENTRY_LEN, Entry, Journal};
use trapline_record::trampolines::Trampolines;
use trapline_record::view::View;
use trapline_tracee::{Handler, Process, TargetError};

/// Upper bound of the journal entries that a reader accepts: a block with more is broken.
const MAX_ENTRIES: u64 = 4 << 20;

/// The words of a segment as a process maps them: the process, and the address of the control block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWords<'a>(pub(crate) &'a Process, pub(crate) RemoteAddr);

impl SegmentWords<'_> {
    pub(crate) fn set(&self, at: u64, value: u64) -> Result<(), TargetError> {
        self.0.write_text(self.1 + at, &value.to_le_bytes())
    }
}

/// A copy of a control block.
#[derive(Clone, Debug)]
pub(crate) struct Block(Vec<u8>);

impl Block {
    /// The block at an address, if there is one.
    pub(crate) fn read(process: &Process, control: RemoteAddr) -> Result<Option<Self>, TargetError> {
        let mut bytes = vec![0; CONTROL_LEN as usize];
        process.read(control, &mut bytes)?;
        let block = Self(bytes);
        Ok((block.get(at::MAGIC) == MAGIC).then_some(block))
    }
    pub(crate) fn get(&self, at: u64) -> u64 {
        let at = at as usize;
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }
    pub(crate) fn version(&self) -> u64 {
        self.get(at::VERSION)
    }
    pub(crate) fn is_ours(&self) -> bool {
        self.version() == VERSION
    }
    pub(crate) fn state(&self) -> Option<State> {
        State::from_word(self.get(at::STATE))
    }
    /// The return trampolines that it names, if what it names makes sense.
    pub(crate) fn trampolines(&self) -> Option<Trampolines> {
        let count = u32::try_from(self.get(at::TRAMPOLINES_COUNT)).ok()?;
        let (least, most) = Trampolines::LIMITS;
        let fits = count.is_power_of_two() && (least..=most).contains(&count);
        fits.then(|| Trampolines {
            code: self.get(at::TRAMPOLINES_CODE),
            table: self.get(at::TRAMPOLINES_TABLE),
            count,
        })
    }
    /// The action that was replaced, stored at this offset.
    pub(crate) fn action(&self, at: u64) -> Handler {
        let word = |n: u64| self.get(at + n * 8);
        Handler { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) }
    }
    /// The journal, read from the target in one go. Entries that make no sense are left out.
    pub(crate) fn journal(&self, process: &Process, control: RemoteAddr) -> Result<Vec<Entry>, TargetError> {
        let count = self.get(at::JOURNAL_COUNT).min(MAX_ENTRIES);
        let mut bytes = vec![0; (count * ENTRY_LEN) as usize];
        process.read(control + self.get(at::JOURNAL_OFF), &mut bytes)?;
        let words: Vec<_> = bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]).into())
            .collect();
        let journal = Journal::new(View::new(&words), 0);
        Ok((0..count).filter_map(|n| journal.get(n)).collect())
    }
    /// The guard table: pairs of an address and where its thread goes on; sorted.
    pub(crate) fn guards(
        &self,
        process: &Process,
        control: RemoteAddr,
    ) -> Result<Vec<(u64, u64)>, TargetError> {
        let count = self.get(at::GUARD_COUNT).min(MAX_ENTRIES);
        let mut bytes = vec![0; (count * 16) as usize];
        process.read(control + self.get(at::GUARD_OFF), &mut bytes)?;
        let word = |b: &[u8]| b.try_into().map_or(0, u64::from_le_bytes);
        let mut guards: Vec<_> = bytes.chunks_exact(16).map(|b| (word(&b[..8]), word(&b[8..]))).collect();
        guards.sort_unstable();
        Ok(guards)
    }
}
