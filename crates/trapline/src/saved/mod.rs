//! Recordings: records saved as they were taken from rings, and read back as calls.
//!
//! In: what [`Session::save`](crate::Session::save) takes; a file, which may hold anything. Out: blocks;
//! [`Call`](crate::Call)s, the same as the session would have reported from the same records (`decode` makes
//! both). Invariants: SAV-1 reading is bounded by the file's length (ring slots by sixteen times that) and by
//! the limits in `tables`, and no file causes a panic. SAV-2 a file is readable to its last whole block.
//! SAV-3 entries in slots + losses = hits.
//!
//! # The file
//!
//! A head ([`frame::HEAD`]) and blocks, each with a head of its own ([`frame::BLOCK`]): kind, checksum, length
//! of the rest in bytes. All numbers are little-endian. A text or note is its length (32 bits) and its bytes;
//! texts are UTF-8 without control characters.
//!
//! | kind | holds |
//! |---|---|
//! | 1 `Begin` | nanoseconds since 1970; the tick at which time begins; nanoseconds of a tick (64-bit float); a note |
//! | 2 `Probes` | process (its number in the file, from 0 on), pid, name; whether exits name no thread; |
//! | | number of probes, and for each: segment, number, whether its exits are recorded (bit 0), |
//! | | whether its values are others than those in registers (bit 1), its site, |
//! | | what its records hold besides integers, and with bit 1 what its values are (`crate::values`) |
//! | 3 `Slots` | process, segment, ring, bytes of a slot; |
//! | | slots, oldest first, as [`trapline_record::ring`] lays them out, packed (`pack`) |
//! | 4 `Names` | process; number of threads, and for each: its number, whether it had a name, the name |
//! | 5 `Losses` | process; number of counters, and for each: |
//! | | segment, probe, CPU (all ones: none), records dropped since the begin |
//! | 6 `Round` | the clock as in `Begin`, as exactly as it is known by now; |
//! | | the tick at which the round began |
//! | | (what happened before the begin of the previous round is reported now); |
//! | | number of processes that were looked at; 1 for the last round, which reports all, else 0 |
//! | 7 `End` | a note |
//! | 8 `Words` | process, segment, ring, 0; in 64 bits each: number of words taken before from that ring, the ring's last |
//! | | context before these words (0: none is known), a tick behind which none of them was written; |
//! | | words of a compact ring, oldest first, as [`trapline_record::calls`] has them. |
//! | | A file has either these or `Slots` (`crate::recorded`) |
//!
//! `Begin` is first, `End` is last, and each comes once. A process' `Probes` come before its other blocks,
//! and again whenever there are more probes. A thread's name comes before the `Round` of its first record.
//!
//! # Order of writing
//!
//! V1 new probes, if there are any. V2 ring by ring: slots are copied, the ring's tail is moved, the slots
//! are counted and packed, and the block is written. V3 names of new threads. V4 losses if there are more,
//! twice a second and at the end. V5 `Round`. V6 `End`, after the last round and the last losses, when all
//! patches are out. A tracer that is killed leaves blocks up to one of these steps, the last of them possibly
//! cut. Slots without their `Round` belong to a round that ended there. What the tracer had taken and not
//! written is in no count, and neither is what the target writes afterwards. A write that fails ends the
//! session; the file is then as one of a killed tracer.

pub(crate) mod blocks;
mod example;
pub mod frame;
pub(crate) mod pack;
mod read;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use example::{example, reseal};
pub use read::{Saved, SavedError, Step};
pub(crate) use tables::begin;
pub use tables::{Loss, end};
