//! Calls, as sessions and recordings report them.
//!
//! In: what records of a call's entry and exit hold. Out: [`Call`] and its parts, with texts decoded from a
//! record's words. Does not: pair records (`pairing`) or read ring slots (`decode`).

use std::sync::Arc;
use std::time::Duration;

/// Which floats and which memory records hold, if requested.
pub use trapline_plan::filter::{FloatArguments, OPERANDS};
pub use trapline_plan::{Floats, KeptPointer, KeptText, Read as FieldRead, Results};
pub use trapline_record::ring::TEXT_BYTES;

use trapline_record::calls::{FAILED, FAULT, MOST_BYTES, text_words};

use crate::report::Site;
use crate::stacks::HitStack;

/// How a call ended, as far as was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// Only the entry was recorded.
    Entered,
    /// It returned.
    Returned,
    /// It ended by a jump to another function.
    TailCall,
    /// Its exit was not seen: it was still running when tracing ended, was left by a longjmp or an exception,
    /// or its record was dropped.
    Unfinished,
}

/// One call of a function, or one hit of an instruction. [`Session::calls`](crate::Session::calls) returns
/// them while calls are recorded ([`Builder::record`](crate::Builder::record)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Traced process; calls of a forked child count as its parent's.
    pub pid: u32,
    /// Thread that entered; 0 if its number is not known: its C library keeps none, and a seccomp filter may
    /// forbid to ask for it.
    pub tid: u32,
    /// Site of the function or instruction.
    pub site: Arc<Site>,
    /// Time of the entry, from the session's start.
    pub at: Duration,
    /// First integer arguments as registers hold them, six at most; of a USDT probe, its arguments. As many as
    /// requested.
    pub arguments: [u64; OPERANDS],
    /// Bit `n`: argument `n` is not known, because it is neither in a register nor in readable memory. Its
    /// word is 0.
    pub unseen: u16,
    /// Which arguments of a USDT probe are floats; the words of these are their bits.
    pub float_arguments: FloatArguments,
    /// Low 64 bits of the vector registers that hold the first floats; 0 for those that were not requested.
    pub floats: [u64; 8],
    /// What arguments pointed to at the entry, if requested.
    pub texts: Vec<Text>,
    /// Fields that were read for the call, in the order of [`Filter::reads`](crate::filter::Filter::reads);
    /// `argument` is the index there.
    pub fields: Vec<Text>,
    /// Texts that the call kept for its return, in the order of [`Filter::keeps`](crate::filter::Filter::keeps);
    /// `argument` is the index there. None of a call that has not returned.
    pub kept: Vec<Text>,
    /// First word of the returned value; for a float, its bits if requested.
    pub returned: Option<u64>,
    /// What the call returned, in the registers that were asked for ([`Results`]): general ones, then vector registers.
    /// Nothing where one general register was asked for, and in recordings.
    pub results: Vec<u64>,
    /// Duration; for a call that ended by a jump to another function, until that jump.
    pub took: Option<Duration>,
    /// How it ended.
    pub how: CallEnd,
    /// Its callers, where stacks are reported hit by hit
    /// ([`Session::announce_entries`](crate::Session::announce_entries)).
    pub stack: Option<HitStack>,
}

impl Call {
    /// Nanoseconds from the entry to the return. `None` for a call that ended by a jump to another function,
    /// since that function is part of it.
    #[must_use]
    pub fn whole_ns(&self) -> Option<u64> {
        let took = self.took.filter(|_| self.how != CallEnd::TailCall)?;
        Some(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Bytes that an argument pointed to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text {
    /// Index of the argument, from 0.
    pub argument: u8,
    /// First bytes there, at most [`TEXT_BYTES`] or as many as were asked for.
    pub bytes: Vec<u8>,
    /// Why there are no more bytes.
    pub reading: ReadOutcome,
}

/// How far the memory was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// As far as a record has room.
    Whole,
    /// Up to unmapped memory: the program could not have read further either.
    Fault,
    /// Not at all, because of this error.
    Failed(i32),
}

impl Text {
    /// The bytes as a number, if all were read.
    #[must_use]
    pub fn word(&self) -> Option<u64> {
        let mut word = [0; 8];
        let len = self.bytes.len().min(8);
        word[..len].copy_from_slice(&self.bytes[..len]);
        (self.reading == ReadOutcome::Whole).then_some(u64::from_le_bytes(word))
    }
    /// Decodes a text from the words of a record: the answer of process_vm_readv (or its equal from the
    /// stub's own loads), then the bytes.
    pub(crate) fn new(argument: u8, words: impl Fn(u64) -> u64) -> Self {
        Self::of(argument, TEXT_BYTES, words)
    }
    /// Decodes a text behind an entry in a compact ring; also returns the words behind it. `None` if they are not all there.
    pub(crate) fn packed(argument: u8, words: &[u64]) -> Option<(Self, &[u64])> {
        let first = *words.first()? as u8;
        let (text, rest) = words.split_at_checked(text_words(first))?;
        let mut bytes: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).skip(1).collect();
        if u64::from(first) == FAILED {
            let error = bytes.first_chunk().map_or(0, |error| i32::from_le_bytes(*error));
            let (bytes, reading) = (Vec::new(), ReadOutcome::Failed(error.wrapping_neg()));
            return Some((Self { argument, bytes, reading }, rest));
        }
        let (read, is_fault) = (usize::from(first & 0x7f), u64::from(first) & FAULT != 0);
        bytes.truncate(read);
        if !is_fault && read < MOST_BYTES as usize {
            // It is as long as that since a 0 follows, which was read.
            bytes.push(0);
        }
        let reading = if is_fault { ReadOutcome::Fault } else { ReadOutcome::Whole };
        Some((Self { argument, bytes, reading }, rest))
    }
    /// The same, where `asked` bytes were requested.
    pub(crate) fn of(argument: u8, asked: usize, words: impl Fn(u64) -> u64) -> Self {
        const EFAULT: i64 = 14;
        let answer = words(0).cast_signed();
        let read = usize::try_from(answer).unwrap_or(0).min(asked);
        let mut bytes: Vec<u8> =
            (1..=asked.div_ceil(8) as u64).flat_map(|n| words(n).to_le_bytes()).collect();
        bytes.truncate(read);
        let reading = match answer {
            0.. if read == asked => ReadOutcome::Whole,
            0.. => ReadOutcome::Fault,
            _ if answer == -EFAULT => ReadOutcome::Fault,
            _ => ReadOutcome::Failed(i32::try_from(answer.wrapping_neg()).unwrap_or(i32::MAX)),
        };
        Self { argument, bytes, reading }
    }
}

/// Puts calls of several processes in the order in which they ended (CLS-3).
pub(crate) fn in_order(calls: &mut [Call]) {
    calls.sort_by_key(|call| call.at + call.took.unwrap_or_default());
}
