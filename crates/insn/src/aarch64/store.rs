//! What an instruction is about to do to memory, according to the registers before it.
//!
//! In: a word; the general registers before it runs. Out: which bytes it reads or writes, and what it writes:
//! the value itself, or what becomes of the old value, or that the registers do not show it (vector stores,
//! exclusive stores). Invariants: INSN-1; INSN-4 (proven against execution in `tests/aarch64/store_native.rs`).
//! Does not: know what memory contains, or read it.
//!
//! The registers are those *before* the instruction, since a watchpoint traps before the access (Arm ARM
//! D2.10). So no operand is lost, unlike on x86-64. Not covered are accesses of SVE and SME, `dc zva`, tags,
//! and the block instructions (FEAT_MOPS, FEAT_LS64).

use super::gpr::Gpr;
use super::regs::Regs;
use crate::effect::{Effect, Op, Stored, low};

/// An instruction that accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accessor {
    addr: u64,
    at: At,
    /// Length of an element in bytes.
    size: u32,
    /// Number of consecutive elements.
    elements: u32,
    does: Does,
}

/// The address of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Relative to the instruction's own address.
    Literal(i64),
    /// A register, or the stack pointer, and an offset.
    Base(Gpr, i64),
    /// A register and a second one, extended and shifted: `option` of the instruction, number of bits to
    /// shift by.
    Index(Gpr, Gpr, u32, u32),
    /// An authenticated pointer.
    Unknown,
}

/// What the instruction does at that address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Load,
    Store(Gpr),
    StorePair(Gpr, Gpr),
    /// A store of vector registers, or of a pair that was compared.
    StoreUnknown,
    /// A store that happens only if no other access came between.
    StoreExclusive,
    /// Load and change, by number: add, clear, exclusive or, set, signed maximum and minimum, unsigned ones.
    Change(u32, Gpr),
    Compare {
        expected: Gpr,
        new: Gpr,
    },
}

/// `len` bits from bit `at` on.
const fn bits(word: u32, at: u32, len: u32) -> u32 {
    word >> at & ((1 << len) - 1)
}

/// `len` bits from bit `at` on, sign-extended.
const fn signed(word: u32, at: u32, len: u32) -> i64 {
    ((bits(word, at, len) << (32 - len)).cast_signed() >> (32 - len)) as i64
}

const fn is_set(word: u32, at: u32) -> bool {
    word >> at & 1 == 1
}

/// Register fields.
const RT: u32 = 0;
const RN: u32 = 5;
const RT2: u32 = 10;
const RM: u32 = 16;

/// Length of an element in bytes, number of elements, what is done to them.
type Elements = (u32, u32, Does);

impl Accessor {
    /// The instruction, if it accesses memory and is covered here.
    #[must_use]
    pub fn decode(word: u32, addr: u64) -> Option<Self> {
        let base = |offset| At::Base(Gpr::field(word, RN), offset);
        // The group of loads and stores (Arm ARM C4.1.96): bit 27 set, bit 25 clear.
        let (at, (size, elements, does)) = match bits(word, 24, 6) {
            0b00_1000 => (base(0), exclusive(word)?),
            0b00_1100 | 0b00_1101 if !is_set(word, 31) => (base(0), structures(word)?),
            0b01_1000 | 0b01_1100 => (At::Literal(signed(word, 5, 19) * 4), literal(word)?),
            0b01_1001 if !is_set(word, 21) && bits(word, 10, 2) == 0 => {
                (base(signed(word, 12, 9)), ordered(word)?)
            }
            0b10_1000 | 0b10_1001 | 0b10_1100 | 0b10_1101 => {
                let (size, elements, does) = pair(word)?;
                // Post-indexed: the access is at the base.
                let offset = if bits(word, 23, 2) == 1 { 0 } else { signed(word, 15, 7) * i64::from(size) };
                (base(offset), (size, elements, does))
            }
            0b11_1000 | 0b11_1100 => register(word)?,
            0b11_1001 | 0b11_1101 => {
                let (size, elements, does) = single(word)?;
                (base(i64::from(bits(word, 10, 12) * size)), (size, elements, does))
            }
            _ => return None,
        };
        Some(Self { addr, at, size, elements, does })
    }
    /// Its address.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }
    /// Whether it may write to memory.
    #[must_use]
    pub const fn writes(&self) -> bool {
        !matches!(self.does, Does::Load)
    }
    /// Whether it stores only if nothing came between it and the load before it. A trap comes between.
    #[must_use]
    pub const fn is_exclusive(&self) -> bool {
        matches!(self.does, Does::StoreExclusive)
    }
    /// What it will do, according to the registers before it. For a pair of registers, the effect of the one
    /// that covers all `len` bytes at `watched`.
    #[must_use]
    pub fn effect(&self, before: &Regs, watched: u64, len: u8) -> Effect {
        let (at, all) = (self.address(before), self.size * self.elements);
        let whole = |stored| Effect { at, len: all, size: all.min(255) as u8, stored };
        let size = self.size as usize;
        let value = |of: Gpr| low(before.get(of), size);
        match self.does {
            Does::Load => whole(Stored::Nothing),
            Does::StoreUnknown | Does::StoreExclusive => whole(Stored::Unknown { old: None }),
            Does::Store(of) => whole(Stored::Value { new: value(of), old: None }),
            Does::Change(which, with) => whole(Stored::Changed(change(which, value(with)))),
            Does::Compare { expected, new } => {
                whole(Stored::Changed(Op::Swap { expected: value(expected), new: value(new) }))
            }
            Does::StorePair(first, second) if size == 4 => {
                whole(Stored::Value { new: value(first) | value(second) << 32, old: None })
            }
            Does::StorePair(first, second) => {
                let Some(at) = at else { return whole(Stored::Unknown { old: None }) };
                let into = watched.wrapping_sub(at);
                let (of, start) = if into < 8 { (first, at) } else { (second, at.wrapping_add(8)) };
                // The watched bytes are in both, or outside.
                if watched.wrapping_sub(start).saturating_add(len.into()) > 8 {
                    return whole(Stored::Unknown { old: None });
                }
                let stored = Stored::Value { new: value(of), old: None };
                Effect { at: Some(start), len: 8, size: 8, stored }
            }
        }
    }
    fn address(&self, before: &Regs) -> Option<u64> {
        let base = |of: Gpr| if of.is_31() { before.sp } else { before.get(of) };
        let at = match self.at {
            At::Literal(offset) => self.addr.wrapping_add_signed(offset),
            At::Base(of, offset) => base(of).wrapping_add_signed(offset),
            At::Index(of, by, option, shift) => {
                let by = before.get(by);
                let by = match option {
                    0b010 => by & 0xFFFF_FFFF,
                    0b110 => i64::from(by as u32 as i32).cast_unsigned(),
                    _ => by,
                };
                base(of).wrapping_add(by << shift)
            }
            At::Unknown => return None,
        };
        // The top byte is not part of an address in user space (tagged-address-abi of the kernel's
        // documentation).
        Some(at & u64::MAX >> 8)
    }
}

fn change(which: u32, with: u64) -> Op {
    match which {
        0 => Op::Add(with),
        1 => Op::And(!with),
        2 => Op::Xor(with),
        3 => Op::Or(with),
        4 => Op::MaxSigned(with),
        5 => Op::MinSigned(with),
        6 => Op::Max(with),
        _ => Op::Min(with),
    }
}

/// Exclusive, ordered, compare and swap: C4.1.96.
fn exclusive(word: u32) -> Option<Elements> {
    let (size, rt, load) = (bits(word, 30, 2), Gpr::field(word, RT), is_set(word, 22));
    let single = 1 << size;
    let pair = 4 << (size & 1);
    let store = |does| if load { Does::Load } else { does };
    Some(match (is_set(word, 23), is_set(word, 21)) {
        (false, false) => (single, 1, store(Does::StoreExclusive)),
        (false, true) if size >= 2 => (pair, 2, store(Does::StoreExclusive)),
        (false, true) if bits(word, RT2, 5) == 31 => (pair, 2, Does::StoreUnknown),
        (true, false) => (single, 1, store(Does::Store(rt))),
        (true, true) if bits(word, RT2, 5) == 31 => {
            (single, 1, Does::Compare { expected: Gpr::field(word, RM), new: rt })
        }
        _ => return None,
    })
}

/// Several vector registers, or one element of each.
fn structures(word: u32) -> Option<Elements> {
    let does = if is_set(word, 22) { Does::Load } else { Does::StoreUnknown };
    let is_post = is_set(word, 23);
    if is_set(word, 24) {
        let scale = bits(word, 14, 2);
        let size = match (scale, bits(word, 10, 2)) {
            (3, size) if does == Does::Load => 1 << size,
            (0, _) => 1,
            (1, 0 | 2) => 2,
            (2, 0) => 4,
            (2, 1) if !is_set(word, 12) => 8,
            _ => return None,
        };
        let fits = is_post || bits(word, RM, 5) == 0;
        let is_replicated_in_part = scale == 3 && is_set(word, 12);
        return (fits && !is_replicated_in_part).then_some((
            size,
            (bits(word, 13, 1) << 1 | bits(word, 21, 1)) + 1,
            does,
        ));
    }
    let registers = match bits(word, 12, 4) {
        0b0000 | 0b0010 => 4,
        0b0100 | 0b0110 => 3,
        0b1000 | 0b1010 => 2,
        0b0111 => 1,
        _ => return None,
    };
    let fits = !is_set(word, 21) && (is_post || bits(word, RM, 5) == 0);
    // Elements of 64 bits are interleaved only in whole registers.
    let is_reserved = bits(word, 10, 2) == 3 && !is_set(word, 30) && bits(word, 12, 2) == 0;
    (fits && !is_reserved).then_some((8 << bits(word, 30, 1), registers, does))
}

fn literal(word: u32) -> Option<Elements> {
    let size = match (is_set(word, 26), bits(word, 30, 2)) {
        (false, 0 | 2) | (true, 0) => 4,
        (false, 1) | (true, 1) => 8,
        (true, 2) => 16,
        _ => return None,
    };
    Some((size, 1, Does::Load))
}

/// `stlur`, `ldapur`.
fn ordered(word: u32) -> Option<Elements> {
    let size = bits(word, 30, 2);
    let does = match (bits(word, 22, 2), size) {
        (0, _) => Does::Store(Gpr::field(word, RT)),
        (1, _) | (2, 0..=2) | (3, 0 | 1) => Does::Load,
        _ => return None,
    };
    Some((1 << size, 1, does))
}

fn pair(word: u32) -> Option<Elements> {
    let (kind, load, is_vector) = (bits(word, 30, 2), is_set(word, 22), is_set(word, 26));
    let is_nontemporal = bits(word, 23, 2) == 0;
    let size = match (is_vector, kind) {
        (true, 0..=2) => 4 << kind,
        (false, 0) => 4,
        // `ldpsw`; the store in its place is one of tags.
        (false, 1) if load && !is_nontemporal => 4,
        (false, 2) => 8,
        _ => return None,
    };
    let does = match (load, is_vector) {
        (true, _) => Does::Load,
        (false, true) => Does::StoreUnknown,
        (false, false) => Does::StorePair(Gpr::field(word, RT), Gpr::field(word, RT2)),
    };
    Some((size, 2, does))
}

/// One register: its size, and whether it is a vector register.
fn single(word: u32) -> Option<Elements> {
    let (size, kind) = (bits(word, 30, 2), bits(word, 22, 2));
    if is_set(word, 26) {
        let log = match kind {
            0 | 1 => size,
            _ if size == 0 => 4,
            _ => return None,
        };
        return Some((1 << log, 1, if kind & 1 == 1 { Does::Load } else { Does::StoreUnknown }));
    }
    let does = match (kind, size) {
        (0, _) => Does::Store(Gpr::field(word, RT)),
        // Other combinations are a prefetch, or not allocated.
        (1, _) | (2, 0..=2) | (3, 0 | 1) => Does::Load,
        _ => return None,
    };
    Some((1 << size, 1, does))
}

/// One register at a base and something: unscaled, indexed, unprivileged, by a register; atomic.
fn register(word: u32) -> Option<(At, Elements)> {
    let rn = Gpr::field(word, RN);
    let mode = bits(word, 10, 2);
    if !is_set(word, 21) {
        // Unprivileged ones use general registers only.
        let is_there = mode != 2 || !is_set(word, 26);
        let offset = if mode == 1 { 0 } else { signed(word, 12, 9) };
        return is_there.then_some((At::Base(rn, offset), single(word)?));
    }
    match (mode, is_set(word, 26)) {
        (0, false) => Some((At::Base(rn, 0), atomic(word)?)),
        (2, _) => {
            let (size, elements, does) = single(word)?;
            let shift = if is_set(word, 12) { size.trailing_zeros() } else { 0 };
            let option = bits(word, 13, 3);
            let at = At::Index(rn, Gpr::field(word, RM), option, shift);
            (option & 2 == 2).then_some((at, (size, elements, does)))
        }
        // `ldraa`, `ldrab`.
        (1 | 3, false) if bits(word, 30, 2) == 3 => Some((At::Unknown, (8, 1, Does::Load))),
        _ => None,
    }
}

fn atomic(word: u32) -> Option<Elements> {
    let (which, with) = (bits(word, 12, 3), Gpr::field(word, RM));
    let does = match (is_set(word, 15), which) {
        (false, _) => Does::Change(which, with),
        (true, 0) => Does::Store(with),
        // `ldapr`
        (true, 4) if bits(word, 22, 2) == 2 && with.is_31() => Does::Load,
        _ => return None,
    };
    Some((1 << bits(word, 30, 2), 1, does))
}
