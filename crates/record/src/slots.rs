//! Return slots: what stands in for the return addresses of calls that are timed by their stack word.
//!
//! A *slot* is a few bytes of code that nothing but a return leads to. While a call is *armed*, its stack word holds the
//! address of a slot that no other call has, and the slot's *entry* says where the call really returns to. The entries are
//! private memory of the process, so that a forked child, whose stack is a copy, has its own:
//!
//! ```text
//!   HOMES × 64         where to look for a free slot first: one line for each home (a CPU, or a hash of the stack)
//!   count              one byte for each slot: 0 free, 0xff lent
//!   count × ENTRY      entries, from the next page on
//! ```
//!
//! Who takes a slot exchanges its byte with 0xff, and owns it if the byte was 0; who gives it back stores 0. So there is no
//! order, no list and no ABA, nothing is lost by a thread that stands still, and a child of `vfork`, which runs on its parent's
//! rseq area, may do both.
//!
//! An entry names no thread: the stack word says which call it is, and a stack may go on in another thread.

/// Lines of hints; a power of two.
pub const HOMES: u64 = 64;
/// Bytes of a slot's code.
pub const CODE: u64 = 32;
/// A return to a slot leads to this byte of it, so that an unwinder that looks one byte back still finds the same slot: behind its first instruction, which nobody runs.
pub const RETURN: u64 = if cfg!(target_arch = "aarch64") { 4 } else { 1 };
/// In our own process, a second way through a slot: a call of the function, from within the slot, …
pub const ENTER: u64 = 11;
/// … which returns to this byte (`plan`'s `stub::landing`).
pub const PAIRED: u64 = 17;
/// Bytes of an entry: a cache line, since neighbours are lent to different CPUs.
pub const ENTRY: u64 = 64;
/// Slots of a segment, unless said otherwise.
pub const USUAL: u32 = 1 << 14;
/// Armed frames on one stack word: chains of tail calls.
pub const CHAIN: u32 = 16;

/// A lent slot's byte.
pub const LENT: u8 = 0xff;

/// Byte offsets in an entry.
pub mod at {
    /// Where the call returns to: an address of the program, or of the slot that its caller left there (a tail call).
    pub const REAL: u64 = 0;
    /// Address of the stack word; 0 while the slot is being lent or given back.
    pub const WORD: u64 = 8;
    /// Time-stamp counter at the entry.
    pub const TIME: u64 = 16;
    /// In our own process, in its place: of a call that has no instance, the address that was hit; 0: it has one.
    pub const SITE: u64 = TIME;
    /// What the code behind the slots needs to know of the function: for latency, the address of its block on line 0.
    pub const WHAT: u64 = 24;
    /// How many slots lie under this one on the same stack word.
    pub const UNDER: u64 = 32;
    /// In our own process: 1 from the moment on at which the slot stays with its stack word and return address (`runtime::slots`).
    pub const BOUND: u64 = 40;
    /// In our own process: where a call by way of `ENTER` leads to.
    pub const GO: u64 = 48;
    /// In our own process: where this slot's [`ENTER`](super::ENTER) is.
    pub const INTO: u64 = 56;
}

/// Where the parts of a process' slots lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// First byte of slot 0's code.
    pub code: u64,
    /// First byte of the private memory.
    pub table: u64,
    /// How many: a power of two, at least 64.
    pub count: u32,
}

impl Slots {
    /// The least and the most that a segment may have.
    pub const LIMITS: (u32, u32) = (64, 1 << 22);

    /// Byte offset of the bytes that say which slots are lent.
    pub const LENT_OFF: u64 = HOMES * 64;

    /// Bytes of code, the slots alone.
    #[must_use]
    pub const fn code_len(&self) -> u64 {
        self.count as u64 * CODE
    }
    /// Byte offset of the entries.
    #[must_use]
    pub const fn entries_off(&self) -> u64 {
        (Self::LENT_OFF + self.count as u64).next_multiple_of(4096)
    }
    /// Bytes of private memory; whole pages.
    #[must_use]
    pub const fn table_len(&self) -> u64 {
        (self.entries_off() + self.count as u64 * ENTRY).next_multiple_of(4096)
    }
    /// What is written once before use, so that CPUs begin apart: (address, word).
    pub fn hints(&self) -> impl Iterator<Item = (u64, u64)> {
        let Self { table, count, .. } = *self;
        (0..HOMES).map(move |home| (table + home * 64, (home * 64) & (count as u64 - 1)))
    }
    /// Address of a slot's entry.
    #[must_use]
    pub const fn entry(&self, slot: u32) -> u64 {
        self.table + self.entries_off() + slot as u64 * ENTRY
    }
    /// What an armed stack word holds.
    #[must_use]
    pub const fn address(&self, slot: u32) -> u64 {
        self.code + slot as u64 * CODE + RETURN
    }
    /// The slot in whose code an address lies.
    #[must_use]
    pub const fn slot_of(&self, addr: u64) -> Option<u32> {
        let off = addr.wrapping_sub(self.code);
        if off < self.code_len() { Some((off / CODE) as u32) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::{CODE, ENTRY, Slots};

    const SLOTS: Slots = Slots { code: 0x1000, table: 0x10_0000, count: 64 };

    #[test]
    fn a_slot_is_found_by_any_address_in_it_and_by_no_other() {
        for slot in 0..64 {
            assert_eq!(SLOTS.slot_of(SLOTS.address(slot)), Some(slot));
            assert_eq!(SLOTS.slot_of(SLOTS.address(slot) - 1), Some(slot), "what an unwinder looks up");
        }
        assert_eq!(SLOTS.slot_of(SLOTS.code - 1), None);
        assert_eq!(SLOTS.slot_of(SLOTS.code + 64 * CODE), None);
    }

    #[test]
    fn parts_do_not_overlap() {
        for log in 6..=22 {
            let slots = Slots { count: 1 << log, ..SLOTS };
            assert!(slots.entries_off() >= Slots::LENT_OFF + u64::from(slots.count));
            let end = slots.entry(slots.count - 1) + ENTRY - slots.table;
            assert!(end <= slots.table_len() && slots.table_len().is_multiple_of(4096));
        }
    }
}
