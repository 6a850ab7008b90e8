//! The watched bytes before and after an access, and how certain they are.
//!
//! In: the access according to the registers, what a BPF program read at the trap, what was known before.
//! Out: [`Change`]. Three sources are exact (WCH-3). The first is the value that the instruction stored, from
//! its registers. The second is what was read at the trap, on the CPU that made the access, before the thread
//! went on. The third is the result of the instruction on a value that was known exactly before it, if
//! nothing was lost between. So a counter that is only incremented is exact from the first access on, once
//! its value was known when watching began ([`Chain::is_now`]).
//!
//! The latter two hold only if no other CPU accessed the bytes at about the same time, and as far as every
//! writer is watched. Writes by another process to shared memory, or by a debugger, are not watched. A value
//! that is read any later is [`ValueSource::Late`]. Does not: read anything.

use trapline_insn::effect::{Effect, Op, Stored};

/// Watched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub addr: u64,
    /// Number of bytes, 1 to 8.
    pub len: u8,
}

/// The source of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ValueSource {
    /// From the registers of the instruction that stored it.
    Stored,
    /// Read at the trap.
    Read,
    /// Computed from the value before.
    Derived,
    /// Read later, when other accesses may have come between.
    Late,
    /// There is no value.
    Unknown,
}

impl ValueSource {
    /// Whether the value is the one that this access left.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::Stored | Self::Read | Self::Derived)
    }
}

/// The values before and after an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The value before the access.
    pub before: Option<u64>,
    /// Whether `before` is exact.
    pub before_exact: bool,
    /// The value after it.
    pub after: Option<u64>,
    /// The source of `after`.
    pub how: ValueSource,
}

impl Range {
    const fn mask(self) -> u64 {
        if self.len >= 8 { u64::MAX } else { (1 << (8 * self.len)) - 1 }
    }
    /// Takes the watched bytes out of a word that was read at their address rounded down to 8.
    #[must_use]
    pub const fn of_word(self, word: u64) -> u64 {
        word >> (8 * (self.addr & 7)) & self.mask()
    }
    /// Whether an access touched these bytes. An access with an unknown address may have.
    #[must_use]
    pub fn touched_by(self, effect: &Effect) -> bool {
        effect.at.is_none_or(|at| {
            at < self.addr.saturating_add(self.len.into()) && self.addr < at.saturating_add(effect.len.into())
        })
    }
    /// First byte of the access. If its address is unknown and it has the length of these bytes, it is taken
    /// to be at these bytes.
    fn start(self, effect: &Effect) -> Option<u64> {
        effect.at.or((effect.len == u32::from(self.len)).then_some(self.addr))
    }
    /// The watched bytes after `value` of `len` bytes was stored at `at`, over their old value.
    fn overlay(self, at: u64, len: u32, value: u64, old: Option<u64>) -> Option<u64> {
        let (start, end) = (self.addr.max(at), (self.addr + u64::from(self.len)).min(at + u64::from(len)));
        let covered = end.checked_sub(start).filter(|&bytes| bytes > 0)?;
        let part = value.checked_shr((8 * (start - at)) as u32)?;
        if covered == u64::from(self.len) {
            return Some(part & self.mask());
        }
        let shift = 8 * (start - self.addr);
        let mask = ((1 << (8 * covered)) - 1) << shift;
        Some(old? & !mask | part << shift & mask)
    }
    fn changed(self, at: u64, size: u8, op: Op, old: Option<u64>) -> Option<u64> {
        let covers = at <= self.addr && self.addr + u64::from(self.len) <= at + u64::from(size);
        let shift = (8 * self.addr.checked_sub(at)?) as u32;
        let part = |with: u64| with.checked_shr(shift);
        let op = match op {
            Op::And(with) => Op::And(part(with)?),
            Op::Or(with) => Op::Or(part(with)?),
            Op::Xor(with) => Op::Xor(part(with)?),
            // Carries come only from lower bytes, so the lowest bytes have all that they need.
            Op::Add(_) | Op::Neg | Op::Shl(_) if shift == 0 => op,
            other if shift == 0 && size == self.len => other,
            _ => return None,
        };
        covers.then(|| old.map(|old| op.apply(old, self.len)))?
    }
    /// The watched bytes if each element of the access is `element`; only if one element holds them all.
    fn filled(self, at: u64, size: u8, element: u64) -> Option<u64> {
        let into = self.addr.checked_sub(at)? % u64::from(size.max(1));
        (into + u64::from(self.len) <= u64::from(size)).then(|| element >> (8 * into) & self.mask())
    }
}

/// The knowledge of the watched bytes from access to access, in one address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    last: Option<u64>,
    exact: bool,
}

impl Chain {
    /// Begins with a value that was read when watching began.
    #[must_use]
    pub const fn starting_with(value: Option<u64>) -> Self {
        Self { last: value, exact: false }
    }
    /// Notes that this is the present value, and that every access from here on is reported.
    pub const fn is_now(&mut self, value: u64) {
        (self.last, self.exact) = (Some(value), true);
    }
    /// Notes that something was missed, so what is known may be old.
    pub const fn doubt(&mut self) {
        self.exact = false;
    }
    fn sure(&self) -> Option<u64> {
        self.last.filter(|_| self.exact)
    }
    /// Processes one access: `effect` comes from the registers, `word` from the BPF program.
    pub fn step(&mut self, range: Range, effect: Option<&Effect>, word: Option<u64>) -> Change {
        let read = word.map(|word| range.of_word(word));
        let (stored, old) = effect.map_or((None, None), |effect| self.values_of_effect(range, effect));
        let derived = effect.and_then(|effect| self.derived(range, effect));
        let (before, before_exact) = match old.or_else(|| self.sure()) {
            Some(old) => (Some(old), true),
            None => (self.last, false),
        };
        let (after, how) = match (stored, read, derived) {
            (Some(value), _, _) => (Some(value), ValueSource::Stored),
            (None, Some(value), _) => (Some(value), ValueSource::Read),
            (None, None, Some(value)) => (Some(value), ValueSource::Derived),
            (None, None, None) => (None, ValueSource::Unknown),
        };
        *self = Self { last: after.or(self.last), exact: after.is_some() };
        // A load leaves the value that it found.
        let loaded = effect.is_some_and(|effect| effect.stored == Stored::Nothing) && after.is_some();
        let (before, before_exact) = if loaded { (after, true) } else { (before, before_exact) };
        Change { before, before_exact, after, how }
    }
    /// Processes one access to which an access by another CPU is too close. Neither their order is known, nor
    /// which of them wrote the value that was read.
    pub fn disputed(&mut self, range: Range, effect: Option<&Effect>, word: Option<u64>) -> Change {
        self.doubt();
        let mut change = self.step(range, effect, None);
        self.late(&mut change, word.map(|word| range.of_word(word)));
        self.doubt();
        change
    }
    /// Completes a change that has no value with one that was read later.
    pub fn late(&mut self, change: &mut Change, value: Option<u64>) {
        if change.how == ValueSource::Unknown && value.is_some() {
            (change.after, change.how) = (value, ValueSource::Late);
            *self = Self { last: value, exact: false };
        }
    }
    /// The new and the old value, as the registers show them.
    fn values_of_effect(&self, range: Range, effect: &Effect) -> (Option<u64>, Option<u64>) {
        let Some(at) = range.start(effect) else { return (None, None) };
        let whole = |old: Option<u64>| range.overlay(at, effect.len, old?, None);
        match effect.stored {
            Stored::Value { new, old } => (range.overlay(at, effect.len, new, self.sure()), whole(old)),
            Stored::Unknown { old } => (None, whole(old)),
            Stored::Fill(element) => (range.filled(at, effect.size, element), None),
            Stored::Nothing | Stored::Changed(_) => (None, None),
        }
    }
    fn derived(&self, range: Range, effect: &Effect) -> Option<u64> {
        match effect.stored {
            Stored::Nothing => self.sure(),
            Stored::Changed(op) => range.changed(range.start(effect)?, effect.size, op, self.sure()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, Range, ValueSource};
    use proptest::prelude::*;
    use trapline_insn::effect::{Effect, Op, Stored};

    const RANGE: Range = Range { addr: 0x1000, len: 4 };

    fn effect(at: u64, size: u8, stored: Stored) -> Effect {
        Effect { at: Some(at), len: size.into(), size, stored }
    }

    #[test]
    fn a_store_is_believed_before_what_was_read() {
        let mut chain = Chain::starting_with(Some(7));
        let store = effect(0x1000, 4, Stored::Value { new: 9, old: None });
        let change = chain.step(RANGE, Some(&store), Some(0x55));
        assert_eq!((change.before, change.before_exact), (Some(7), false));
        assert_eq!((change.after, change.how), (Some(9), ValueSource::Stored));
        let change = chain.step(RANGE, None, Some(0xff_0000_0055));
        assert_eq!((change.before, change.before_exact), (Some(9), true));
        assert_eq!((change.after, change.how), (Some(0x55), ValueSource::Read));
    }

    #[test]
    fn an_increment_is_derived_only_from_what_is_sure() {
        let add = effect(0x1000, 4, Stored::Changed(Op::Add(1)));
        let mut chain = Chain::starting_with(Some(7));
        let mut change = chain.step(RANGE, Some(&add), None);
        assert_eq!((change.after, change.how), (None, ValueSource::Unknown));
        chain.late(&mut change, Some(12));
        assert_eq!((change.after, change.how), (Some(12), ValueSource::Late));
        assert_eq!(chain.step(RANGE, Some(&add), None).how, ValueSource::Unknown, "late values are not sure");
        chain.step(RANGE, Some(&effect(0x1000, 4, Stored::Value { new: 20, old: None })), None);
        assert_eq!(chain.step(RANGE, Some(&add), None).after, Some(21));
        chain.doubt();
        let change = chain.step(RANGE, Some(&add), None);
        assert_eq!((change.before, change.before_exact, change.after), (Some(21), false, None));
    }

    #[test]
    fn of_disputed_accesses_only_registers_tell() {
        let mut chain = Chain::default();
        chain.is_now(5);
        let add = effect(0x1000, 4, Stored::Changed(Op::Add(1)));
        assert_eq!(chain.step(RANGE, Some(&add), None).after, Some(6));
        let change = chain.disputed(RANGE, Some(&add), Some(8));
        assert_eq!((change.after, change.how, change.before_exact), (Some(8), ValueSource::Late, false));
        let swap = effect(0x1000, 4, Stored::Value { new: 20, old: Some(8) });
        let change = chain.disputed(RANGE, Some(&swap), Some(9));
        assert_eq!((change.after, change.how, change.before_exact), (Some(20), ValueSource::Stored, true));
        assert_eq!(
            chain.step(RANGE, Some(&add), None).how,
            ValueSource::Unknown,
            "which was last is not known"
        );
    }

    #[test]
    fn parts_and_wholes() {
        let mut chain = Chain::default();
        let wide = effect(0xffc, 8, Stored::Value { new: 0x1122_3344_5566_7788, old: None });
        assert_eq!(chain.step(RANGE, Some(&wide), None).after, Some(0x1122_3344));
        let byte = effect(0x1001, 1, Stored::Value { new: 0xaa, old: None });
        assert_eq!(chain.step(RANGE, Some(&byte), None).after, Some(0x1122_aa44));
        let or = effect(0xffc, 8, Stored::Changed(Op::Or(0xff00_0000_0000_0000)));
        assert_eq!(chain.step(RANGE, Some(&or), None).after, Some(0xff22_aa44));
        let shift = effect(0xffc, 8, Stored::Changed(Op::Shr(8)));
        assert_eq!(chain.step(RANGE, Some(&shift), None).after, None, "bits come from elsewhere");
    }

    #[test]
    fn a_fill_is_known_where_one_element_covers_all() {
        let mut chain = Chain::default();
        let fill = |size| Effect {
            at: Some(0xf00),
            len: 256 + 8,
            size,
            stored: Stored::Fill(0x0807_0605_0403_0201),
        };
        assert_eq!(chain.step(RANGE, Some(&fill(8)), None).after, Some(0x0403_0201));
        assert_eq!(chain.step(RANGE, Some(&fill(2)), None).after, None);
    }

    #[test]
    fn a_load_leaves_what_it_found() {
        let mut chain = Chain::default();
        let load = effect(0x1000, 4, Stored::Nothing);
        let change = chain.step(RANGE, Some(&load), Some(3));
        assert_eq!((change.before, change.after, change.before_exact), (Some(3), Some(3), true));
        assert!(!Range { addr: 0x2000, len: 1 }.touched_by(&load));
    }

    proptest! {
        /// Stores of random places and sizes against a byte array.
        #[test]
        fn overlays_are_what_memory_would_hold(
            stores in proptest::collection::vec((0u64..24, 0usize..4, any::<u64>()), 1..40), at in 8u64..12, size in 0usize..4,
        ) {
            let mut memory = [0u8; 40];
            let len = 1u8 << size;
            let range = Range { addr: at / u64::from(len) * u64::from(len), len };
            let word = |memory: &[u8]| memory[range.addr as usize..][..len as usize].iter().rev()
                .fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            let mut chain = Chain::default();
            for (to, size, new) in stores {
                let bytes = 1u8 << size;
                memory[to as usize..][..bytes as usize].copy_from_slice(&new.to_le_bytes()[..bytes as usize]);
                let mask = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
                let store = effect(to, bytes, Stored::Value { new: new & mask, old: None });
                if !range.touched_by(&store) {
                    continue;
                }
                let change = chain.step(range, Some(&store), None);
                if let Some(after) = change.after {
                    prop_assert_eq!(after, word(&memory));
                }
            }
        }
    }
}
