//! The common encodings by tables, several times as fast as the decoder.
//!
//! In: bytes and their address. Out: the instructions that [`sweep`] produces. Invariant: QUICK-1 the
//! tables and the decoder produce the same, field by field; encodings that are not in the tables are left to
//! the decoder.
//! Does not: decode instructions in full.
//!
//! Instructions come in no order that a processor can foresee, and where one begins is known when the length of the one
//! before is. So there is no branch on what an instruction is, except for what is rare, and few steps to its length: its
//! [`Form`] and its [`Operand`] are looked up, and its fields are computed from these. An [`Insn`] is built once, at its
//! final place: copies of half-written ones take longer than all the rest.

use super::super::scan::{
    C4, I1, IV, IZ, J1, J4, JC, LEA, M, M1, MZ, N, ONE, RI, RT, T1, TWO, TZ, Z1, ZZ, word,
};
use super::{Class, Gpr, Insn, MemKind, MemUse, Way, sweep};

/// Appends what [`sweep`] produces, but faster.
pub fn sweep_into(bytes: &[u8], addr: u64, insns: &mut Vec<Insn>) {
    let (mut at, mut full) = (0, sweep(bytes, addr));
    while let Some(rest) = bytes.get(at..) {
        let here = addr.wrapping_add(at as u64);
        // The last few instructions are left to the decoder.
        if let Some(window) = rest.first_chunk()
            && let Some(insn) = by_tables(window, here)
        {
            at += usize::from(insn.len);
            insns.push(insn);
        } else {
            let Some(insn) = full.at(at, here) else { return };
            at += usize::from(insn.len);
            insns.push(insn);
        }
    }
}

/// What an opcode says about its instruction.
#[derive(Clone, Copy)]
struct Form {
    /// Bits below.
    is: u8,
    /// Number of bytes behind the operand.
    more: u8,
    class: Class,
    way: Way,
}

/// A ModRM follows.
const OPERAND: u8 = 1;
/// Its operand is not accessed.
const QUIET: u8 = 2;
/// Where it goes is told by its last bytes.
const DIRECT: u8 = 4;
/// Only in the tables where the operand is in memory …
const MEMORY: u8 = 8;
/// … the register field is 0 …
const ZERO: u8 = 16;
/// … and there is no REX.W.
const NARROW: u8 = 32;
/// The opcode is the next byte.
const ESCAPE: u8 = 64;
/// Left to the decoder.
const RARE: u8 = 128;

/// Forms of one-byte opcodes without prefixes but REX, and then of those behind 0F.
static FORMS: [Form; 512] = {
    let mut t = [Form::new(RARE, 0); 512];
    let mut op = 0;
    while op < 256 {
        t[op] = Form::one_byte(op as u8);
        t[op + 256] = Form::behind_0f(op as u8);
        op += 1;
    }
    t
};

impl Form {
    const fn new(is: u8, more: u8) -> Self {
        Self { is, more, class: Class::Plain, way: Way::Next }
    }
    const fn of(self, class: Class) -> Self {
        Self { class, ..self }
    }
    const fn goes(self, way: Way) -> Self {
        Self { way, ..self }
    }

    const fn one_byte(op: u8) -> Self {
        match (ONE[op as usize], op) {
            (_, 0x0F) => Self::new(ESCAPE, 0),
            (N, 0x50..=0x57) => Self::new(0, 0).of(Class::Push),
            (N, 0x58..=0x5F) => Self::new(0, 0).of(Class::Pop),
            (N, 0x91..=0x99 | 0xC9) => Self::new(0, 0),
            (I1, 0x6A) => Self::new(0, 1).of(Class::Push),
            (IZ, 0x68) => Self::new(0, 4).of(Class::Push),
            (I1, _) => Self::new(0, 1),
            (IZ, _) => Self::new(0, 4),
            (IV, _) => Self::new(NARROW, 4),
            (M, _) => Self::new(OPERAND, 0),
            (M1, _) => Self::new(OPERAND, 1),
            (MZ, _) => Self::new(OPERAND, 4),
            (Z1 | T1, _) => Self::new(OPERAND | ZERO, 1),
            (ZZ | TZ, _) => Self::new(OPERAND | ZERO, 4),
            (LEA, _) => Self::new(OPERAND | QUIET | MEMORY, 0),
            (JC, _) => Self::new(DIRECT, 1).of(Class::Jcc).goes(Way::Branch),
            (J1, _) => Self::new(DIRECT, 1).goes(Way::Jump),
            (J4, _) => Self::new(DIRECT, 4).goes(Way::Jump),
            (C4, _) => Self::new(DIRECT, 4).goes(Way::Call),
            (RT, _) => Self::new(0, 0).goes(Way::Ret),
            (RI, _) => Self::new(0, 2).goes(Way::Ret),
            _ => Self::new(RARE, 0),
        }
    }

    const fn behind_0f(op: u8) -> Self {
        match (TWO[op as usize], op) {
            (M, 0x1F) => Self::new(OPERAND | QUIET | ZERO, 0).of(Class::Nop),
            // `endbr64` and similar; what needs its prefix.
            (M, 0x1E | 0xD6) => Self::new(RARE, 0),
            (M, _) => Self::new(OPERAND, 0),
            (M1, _) => Self::new(OPERAND, 1),
            (N, _) => Self::new(0, 0),
            (J4, _) => Self::new(DIRECT, 4).of(Class::Jcc).goes(Way::Branch),
            _ => Self::new(RARE, 0),
        }
    }
}

/// What a ModRM says about its operand.
#[derive(Clone, Copy)]
struct Operand {
    /// Bytes of both, without those that a SIB's base adds.
    len: u8,
    /// As it is without a SIB.
    kind: MemKind,
    /// Lower bits of the base register's number, or [`NONE`].
    base: u8,
    has_sib: bool,
    /// The bits of [`Form::is`] that it contradicts.
    not: u8,
}

/// The number of no register, in [`GPRS`].
const NONE: u8 = 16;
/// General registers by number; none from [`NONE`] on.
static GPRS: [Option<Gpr>; 32] = {
    let mut t = [None; 32];
    let mut number = 0;
    while number < 16 {
        t[number] = Some(Gpr::ALL[number]);
        number += 1;
    }
    t
};

static OPERANDS: [Operand; 256] = {
    let mut t = [Operand { len: 1, kind: MemKind::None, base: NONE, has_sib: false, not: MEMORY }; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mode, low) = (byte >> 6, byte as u8 & 7);
        let (has_sib, is_ip) = (low == 4, mode == 0 && low == 5);
        if mode < 3 {
            t[byte] = Operand {
                len: if is_ip { 5 } else { [1, 2, 5][mode] + has_sib as u8 },
                kind: if is_ip { MemKind::Ip } else { MemKind::Register },
                base: if is_ip { NONE } else { low },
                has_sib,
                not: 0,
            };
        }
        if byte & 0x38 != 0 {
            t[byte].not |= ZERO;
        }
        byte += 1;
    }
    t
};

/// The instruction at the start of `window`, if the tables have it.
#[inline(always)]
fn by_tables(window: &[u8; 16], addr: u64) -> Option<Insn> {
    let has_rex = window[0] & 0xF0 == 0x40;
    let rex = if has_rex { window[0] } else { 0 };
    let mut n = usize::from(has_rex);
    let mut form = FORMS[usize::from(window[n])];
    n += 1;
    if form.is & ESCAPE != 0 {
        form = FORMS[256 + usize::from(window[n])];
        n += 1;
    }
    let operand = OPERANDS[usize::from(window[n])];
    if form.is & (operand.not | RARE | if rex & 8 != 0 { NARROW } else { 0 }) != 0 {
        return None;
    }
    let has_operand = form.is & OPERAND != 0;
    let mut bytes = usize::from(operand.len);
    let mut mem = MemUse {
        kind: operand.kind,
        base: GPRS[usize::from(operand.base | (rex & 1) << 3) & 31],
        index: None,
    };
    if has_operand && operand.has_sib {
        let sib = window[n + 1];
        let has_base = window[n] >= 0x40 || sib & 7 != 5;
        (mem, bytes) = (by_sib(sib, rex, has_base), bytes + if has_base { 0 } else { 4 });
    }
    let len = n + if has_operand { bytes } else { 0 } + usize::from(form.more);
    let end = addr.wrapping_add(len as u64);
    let is_ip = has_operand && operand.kind == MemKind::Ip;
    let is_direct = form.is & DIRECT != 0;
    let rel = if form.more == 1 { window[n].cast_signed().into() } else { word(window, n) };
    let from_end = if is_direct { rel } else { word(window, n + 1) };
    let is_named = is_direct | is_ip;
    let is_used = has_operand && form.is & QUIET == 0;
    Some(Insn {
        addr,
        named: end.wrapping_add_signed(from_end.into()) & u64::from(is_named).wrapping_neg(),
        mem: if is_used { mem } else { MemUse::default() },
        way: form.way,
        len: len as u8,
        disp_at: if is_ip { n as u8 + 1 } else { 0 },
        rel_size: if is_direct { form.more } else { 0 },
        class: form.class,
    })
}

/// A memory operand with a SIB.
#[inline(always)]
fn by_sib(sib: u8, rex: u8, has_base: bool) -> MemUse {
    let (base, index) = (sib & 7 | (rex & 1) << 3, sib >> 3 & 7 | (rex & 2) << 2);
    let base = if has_base { base } else { NONE };
    let index = if index == Gpr::Rsp as u8 { NONE } else { index };
    let kind = match (base, index) {
        (NONE, NONE) => MemKind::Absolute,
        (4, NONE) => MemKind::Stack,
        _ => MemKind::Register,
    };
    MemUse { kind, base: GPRS[usize::from(base) & 31], index: GPRS[usize::from(index) & 31] }
}
