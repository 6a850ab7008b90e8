//! Return trampolines: their addresses replace the return addresses of calls that
//! are timed by their stack word.
//!
//! A *return trampoline* is a few bytes of code that only a return leads to. While a call is *armed*, its
//! stack word holds the address of a trampoline that no other call has. The trampoline's *entry* contains the
//! call's real return address. The entries are private memory of the process, so that a forked child has its
//! own, as its stack is a copy:
//!
//! ```text
//!   HINT_LINES × 64         where to look for a free trampoline first: one line for each CPU or each hash of a stack
//!   count              one byte for each trampoline: 0 free, 0xff in use
//!   count × ENTRY      entries, from the next page on
//! ```
//!
//! A thread that takes a trampoline exchanges its byte with 0xff, and owns it if the byte was 0; giving it
//! back stores 0. So there is no order, no list and no ABA, and no trampoline is lost if a thread stands
//! still. A child of `vfork`, which runs on its parent's rseq area, may do both.
//!
//! An entry contains no thread's number: the stack word identifies the call, and a stack may go on in another
//! thread.

pub use crate::native::RETURN;

/// Number of lines of hints; a power of two.
pub const HINT_LINES: u64 = 64;
/// Length of a trampoline's code in bytes.
pub const CODE: u64 = 32;
/// In our own process, offset of a second way through a trampoline: a call of the function, from within the
/// trampoline, …
pub const ENTER: u64 = 11;
/// … and offset of the byte that this call returns to (`plan`'s `stub::own_trampolines`).
pub const PAIRED: u64 = 17;
/// Length of an entry in bytes: a cache line, since neighbours are used on different CPUs.
pub const ENTRY: u64 = 64;
/// Default number of trampolines in a segment.
pub const USUAL: u32 = 1 << 14;
/// Maximum number of armed calls on one stack word: chains of tail calls.
pub const CHAIN: u32 = 16;

/// Byte of a trampoline in use.
pub const LENT: u8 = 0xff;

/// Byte offsets in an entry.
pub mod at {
    /// The call's return address: an address of the program, or of the trampoline that its caller left there
    /// (a tail call).
    pub const REAL: u64 = 0;
    /// Address of the stack word; 0 while the trampoline is being taken or given back.
    pub const WORD: u64 = 8;
    /// Time-stamp counter at the entry.
    pub const TIME: u64 = 16;
    /// In our own process, in place of the time: the address that was hit, if the call has no instance; 0 if
    /// it has one.
    pub const SITE: u64 = TIME;
    /// What the trampolines' code needs for the function: for latency, the address of its block on line 0.
    pub const WHAT: u64 = 24;
    /// Number of trampolines under this one on the same stack word.
    pub const UNDER: u64 = 32;
    /// In our own process: 1 once the trampoline stays with its stack word and return address
    /// (`runtime::trampolines`).
    pub const BOUND: u64 = 40;
    /// In our own process: where a call from `ENTER` leads to.
    pub const GO: u64 = 48;
    /// In our own process: address of this trampoline's [`ENTER`](super::ENTER).
    pub const INTO: u64 = 56;
}

/// Addresses of a process' return trampolines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trampolines {
    /// Address of trampoline 0's code.
    pub code: u64,
    /// Address of the private memory.
    pub table: u64,
    /// Number of trampolines: a power of two, at least 64.
    pub count: u32,
}

impl Trampolines {
    /// Minimum and maximum number in a segment.
    pub const LIMITS: (u32, u32) = (64, 1 << 22);

    /// Byte offset in the private memory of the bytes that say which trampolines are in use.
    pub const LENT_OFF: u64 = HINT_LINES * 64;

    /// Length in bytes of the code of the trampolines alone.
    #[must_use]
    pub const fn code_len(&self) -> u64 {
        self.count as u64 * CODE
    }
    /// Byte offset of the entries in the private memory.
    #[must_use]
    pub const fn entries_off(&self) -> u64 {
        (Self::LENT_OFF + self.count as u64).next_multiple_of(4096)
    }
    /// Length of the private memory in bytes; whole pages.
    #[must_use]
    pub const fn table_len(&self) -> u64 {
        (self.entries_off() + self.count as u64 * ENTRY).next_multiple_of(4096)
    }
    /// Hints that are written once before use, so that CPUs begin at different trampolines: (address, word).
    pub fn hints(&self) -> impl Iterator<Item = (u64, u64)> {
        let Self { table, count, .. } = *self;
        (0..HINT_LINES).map(move |line| (table + line * 64, (line * 64) & (count as u64 - 1)))
    }
    /// Address of a trampoline's entry.
    #[must_use]
    pub const fn entry(&self, trampoline: u32) -> u64 {
        self.table + self.entries_off() + trampoline as u64 * ENTRY
    }
    /// Address that an armed stack word holds.
    #[must_use]
    pub const fn address(&self, trampoline: u32) -> u64 {
        self.code + trampoline as u64 * CODE + RETURN
    }
    /// Number of the trampoline that has this address in its code.
    #[must_use]
    pub const fn number_of(&self, addr: u64) -> Option<u32> {
        let off = addr.wrapping_sub(self.code);
        if off < self.code_len() { Some((off / CODE) as u32) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::{CODE, ENTRY, Trampolines};

    const TRAMPOLINES: Trampolines = Trampolines { code: 0x1000, table: 0x10_0000, count: 64 };

    #[test]
    fn a_trampoline_is_found_by_any_address_in_it_and_by_no_other() {
        for trampoline in 0..64 {
            assert_eq!(TRAMPOLINES.number_of(TRAMPOLINES.address(trampoline)), Some(trampoline));
            assert_eq!(
                TRAMPOLINES.number_of(TRAMPOLINES.address(trampoline) - 1),
                Some(trampoline),
                "what an unwinder looks up"
            );
        }
        assert_eq!(TRAMPOLINES.number_of(TRAMPOLINES.code - 1), None);
        assert_eq!(TRAMPOLINES.number_of(TRAMPOLINES.code + 64 * CODE), None);
    }

    #[test]
    fn parts_do_not_overlap() {
        for log in 6..=22 {
            let trampolines = Trampolines { count: 1 << log, ..TRAMPOLINES };
            assert!(trampolines.entries_off() >= Trampolines::LENT_OFF + u64::from(trampolines.count));
            let end = trampolines.entry(trampolines.count - 1) + ENTRY - trampolines.table;
            assert!(end <= trampolines.table_len() && trampolines.table_len().is_multiple_of(4096));
        }
    }
}
