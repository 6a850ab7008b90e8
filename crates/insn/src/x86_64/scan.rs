//! The targets of a stretch of code, found without decoding it in full: an order of magnitude faster than a
//! sweep.
//!
//! In: bytes and their address. Out: direct targets, addresses of rip-relative operands, returns and indirect
//! jumps, in order. Lengths of the common encodings come from two tables. Encodings that are not in them are
//! left to the decoder, so that the scan steps exactly as [`sweep`](super::sweep) does. Invariant: SCAN-1
//! over whole instructions the scan and a sweep find the same.
//! Does not: classify an indirect jump, or know what an instruction does.

use super::decode::{Flow, decode_one};

/// Something that a scan found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanItem {
    /// A direct jump, conditional or not, leads here.
    Jump(u64),
    /// A direct call leads here.
    Call(u64),
    /// A rip-relative operand refers to this address.
    Name(u64),
    /// A jump through a register or through memory that a register addresses.
    Indirect,
    /// A jump through memory at a fixed address: a tail call.
    ThroughEntry,
    /// A return.
    Return,
}

/// How a scan ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// The last instruction ends where the bytes end, and control does not run on behind it.
    pub leaves: bool,
    /// Some bytes were not an instruction.
    pub invalid: bool,
}

/// Opcode alone.
pub(super) const N: u8 = 1;
/// ModRM.
pub(super) const M: u8 = 2;
/// ModRM and one byte.
pub(super) const M1: u8 = 3;
/// ModRM and two or four bytes.
pub(super) const MZ: u8 = 4;
/// One byte.
pub(super) const I1: u8 = 5;
/// Two or four bytes.
pub(super) const IZ: u8 = 6;
/// Two, four or eight bytes.
pub(super) const IV: u8 = 7;
/// ModRM, and one byte if its register field is 0 or 1.
pub(super) const T1: u8 = 8;
/// ModRM, and two or four bytes if its register field is 0 or 1.
pub(super) const TZ: u8 = 9;
/// ModRM with register field 0, one byte.
pub(super) const Z1: u8 = 10;
/// ModRM with register field 0, two or four bytes.
pub(super) const ZZ: u8 = 11;
/// Group 5.
pub(super) const G5: u8 = 12;
/// ModRM with a memory operand.
pub(super) const LEA: u8 = 13;
/// Jumps, calls and returns.
pub(super) const J1: u8 = 14;
pub(super) const J4: u8 = 15;
pub(super) const C4: u8 = 16;
pub(super) const JC: u8 = 17;
pub(super) const RT: u8 = 18;
pub(super) const RI: u8 = 19;
pub(super) const TR: u8 = 20;

/// Fills `table[from..=to]`.
const fn fill(mut table: [u8; 256], from: usize, to: usize, form: u8) -> [u8; 256] {
    let mut at = from;
    while at <= to {
        table[at] = form;
        at += 1;
    }
    table
}

/// Forms of one-byte opcodes; 0 is left to the decoder.
pub(super) const ONE: [u8; 256] = {
    let mut t = [0; 256];
    let mut row = 0;
    while row < 0x40 {
        t = fill(t, row, row + 3, M);
        t[row + 4] = I1;
        t[row + 5] = IZ;
        row += 8;
    }
    t = fill(t, 0x50, 0x5F, N);
    t[0x63] = M;
    t[0x68] = IZ;
    t[0x69] = MZ;
    t[0x6A] = I1;
    t[0x6B] = M1;
    t = fill(t, 0x70, 0x7F, JC);
    t[0x80] = M1;
    t[0x81] = MZ;
    t[0x83] = M1;
    t = fill(t, 0x84, 0x8B, M);
    t[0x8D] = LEA;
    t = fill(t, 0x90, 0x99, N);
    t = fill(t, 0xA4, 0xA7, N);
    t[0xA8] = I1;
    t[0xA9] = IZ;
    t = fill(t, 0xAA, 0xAF, N);
    t = fill(t, 0xB0, 0xB7, I1);
    t = fill(t, 0xB8, 0xBF, IV);
    t = fill(t, 0xC0, 0xC1, M1);
    t[0xC2] = RI;
    t[0xC3] = RT;
    t[0xC6] = Z1;
    t[0xC7] = ZZ;
    t[0xC9] = N;
    t[0xCC] = TR;
    t = fill(t, 0xD0, 0xD3, M);
    t[0xE8] = C4;
    t[0xE9] = J4;
    t[0xEB] = J1;
    t[0xF6] = T1;
    t[0xF7] = TZ;
    t[0xFF] = G5;
    t
};

/// Forms of opcodes behind 0F; 0 is left to the decoder.
pub(super) const TWO: [u8; 256] = {
    let mut t = [0; 256];
    t = fill(t, 0x10, 0x11, M);
    t = fill(t, 0x1E, 0x1F, M);
    t = fill(t, 0x28, 0x2A, M);
    t = fill(t, 0x2C, 0x2F, M);
    t = fill(t, 0x40, 0x4F, M);
    t = fill(t, 0x54, 0x5F, M);
    t = fill(t, 0x6E, 0x6F, M);
    t[0x70] = M1;
    t = fill(t, 0x7E, 0x7F, M);
    t = fill(t, 0x80, 0x8F, J4);
    t = fill(t, 0x90, 0x9F, M);
    t[0xA3] = M;
    t[0xAF] = M;
    t = fill(t, 0xB6, 0xB7, M);
    t = fill(t, 0xBE, 0xBF, M);
    t = fill(t, 0xC8, 0xCF, N);
    t[0xD6] = M;
    t[0xEF] = M;
    t
};

/// Scans `bytes`, the first of which is at `addr`, and calls `found` for everything that it finds.
pub fn scan(bytes: &[u8], addr: u64, mut found: impl FnMut(ScanItem)) -> Scanned {
    let mut at = 0;
    let mut result = Scanned::default();
    while at < bytes.len() {
        let by_tables = match bytes[at..].first_chunk() {
            Some(window) => step(window, at, addr, &mut found),
            None => cut_off(bytes, at, addr, &mut found),
        };
        match by_tables {
            Some((end, leaves)) => {
                at = end;
                result.leaves = leaves;
            }
            None => at = in_full(bytes, at, addr, &mut found, &mut result),
        }
    }
    result
}

/// One instruction by the tables: where it ends, and whether control does not go on there.
#[inline(always)]
fn step(window: &[u8; 16], at: usize, addr: u64, found: &mut impl FnMut(ScanItem)) -> Option<(usize, bool)> {
    let (mut n, mut narrow, mut wide, mut prefixed) = (0, false, false, false);
    let mut op = window[0];
    while matches!(op, 0x66 | 0xF2 | 0xF3 | 0x2E | 0x3E | 0x64 | 0x65) {
        narrow |= op == 0x66;
        prefixed = true;
        n += 1;
        if n == 4 {
            return None;
        }
        op = window[n];
    }
    if op & 0xF0 == 0x40 {
        wide = op & 8 != 0;
        n += 1;
        op = window[n];
    }
    let mut form = ONE[usize::from(op)];
    if op == 0x0F {
        n += 1;
        op = window[n];
        form = TWO[usize::from(op)];
    }
    n += 1;
    let z = if narrow && !wide { 2 } else { 4 };
    let here = |n: usize| addr.wrapping_add((at + n) as u64);
    let operand = |n: usize| modrm(window, n);
    let (memory, immediate) = match form {
        N => (None, 0),
        I1 => (None, 1),
        IZ => (None, z),
        IV => (None, if wide { 8 } else { z }),
        M => (Some(operand(n)), 0),
        M1 => (Some(operand(n)), 1),
        MZ => (Some(operand(n)), z),
        LEA if window[n] < 0xC0 => (Some(operand(n)), 0),
        T1 => (Some(operand(n)), usize::from(window[n] & 0x30 == 0)),
        TZ => (Some(operand(n)), if window[n] & 0x30 == 0 { z } else { 0 }),
        Z1 if window[n] & 0x38 == 0 => (Some(operand(n)), 1),
        ZZ if window[n] & 0x38 == 0 => (Some(operand(n)), z),
        G5 if matches!(window[n] >> 3 & 7, 0 | 1 | 6) => (Some(operand(n)), 0),
        G5 if !narrow && window[n] >> 3 & 7 == 2 => (Some(operand(n)), 0),
        G5 if !narrow && window[n] >> 3 & 7 == 4 => {
            let fixed = window[n] == 0x25 || (window[n] == 0x24 && window[n + 1] == 0x25);
            found(if fixed { ScanItem::ThroughEntry } else { ScanItem::Indirect });
            let (len, name) = operand(n);
            if let Some(name) = name {
                found(ScanItem::Name(here(n + len).wrapping_add_signed(name.into())));
            }
            return Some((at + n + len, true));
        }
        JC if !narrow => {
            found(ScanItem::Jump(here(n + 1).wrapping_add_signed(window[n].cast_signed().into())));
            return Some((at + n + 1, false));
        }
        J1 if !narrow => {
            found(ScanItem::Jump(here(n + 1).wrapping_add_signed(window[n].cast_signed().into())));
            return Some((at + n + 1, true));
        }
        J4 | C4 if !narrow => {
            let to = here(n + 4).wrapping_add_signed(word(window, n).into());
            found(if form == C4 { ScanItem::Call(to) } else { ScanItem::Jump(to) });
            return Some((at + n + 4, op == 0xE9));
        }
        RT if !narrow => {
            found(ScanItem::Return);
            return Some((at + n, true));
        }
        RI if !narrow => {
            found(ScanItem::Return);
            return Some((at + n + 2, true));
        }
        TR if !prefixed => return Some((at + n, true)),
        _ => return None,
    };
    let (len, name) = memory.unwrap_or((0, None));
    let end = n + len + immediate;
    if let Some(name) = name {
        found(ScanItem::Name(here(end).wrapping_add_signed(name.into())));
    }
    Some((at + end, false))
}

/// One of the last instructions, with zeros behind the bytes. An instruction that does not end within the
/// bytes is left to the decoder.
fn cut_off(bytes: &[u8], at: usize, addr: u64, found: &mut impl FnMut(ScanItem)) -> Option<(usize, bool)> {
    let rest = bytes.get(at..)?;
    let mut window = [0; 16];
    window.get_mut(..rest.len())?.copy_from_slice(rest);
    let mut kept = [None; 2];
    let mut count = 0;
    let (end, leaves) = step(&window, at, addr, &mut |new| {
        kept[count] = Some(new);
        count += 1;
    })?;
    (end <= bytes.len()).then(|| {
        kept.into_iter().flatten().for_each(found);
        (end, leaves)
    })
}

/// Number of bytes of the ModRM at `n` and what belongs to it, and the displacement if it is relative to rip.
#[inline(always)]
fn modrm(window: &[u8; 16], n: usize) -> (usize, Option<i32>) {
    let byte = window[n];
    let base = byte & 7;
    let sib = usize::from(base == 4);
    match byte >> 6 {
        3 => (1, None),
        2 => (5 + sib, None),
        1 => (2 + sib, None),
        _ if base == 5 => (5, Some(word(window, n + 1))),
        _ if base == 4 && window[n + 1] & 7 == 5 => (6, None),
        _ => (1 + sib, None),
    }
}

#[inline(always)]
pub(super) fn word(window: &[u8; 16], n: usize) -> i32 {
    i32::from_le_bytes([window[n], window[n + 1], window[n + 2], window[n + 3]])
}

/// One instruction by the decoder. Returns the offset where it ends.
#[cold]
fn in_full(
    bytes: &[u8],
    at: usize,
    addr: u64,
    found: &mut impl FnMut(ScanItem),
    result: &mut Scanned,
) -> usize {
    let rest = bytes.get(at..(at + 16).min(bytes.len())).unwrap_or_default();
    let Some(insn) = decode_one(rest, addr.wrapping_add(at as u64)) else { return bytes.len() };
    match insn.flow() {
        Flow::Jump(Some(to)) | Flow::Branch(to) => found(ScanItem::Jump(to)),
        Flow::Call(Some(to)) => found(ScanItem::Call(to)),
        Flow::Jump(None) if insn.ip_rel().is_some() => found(ScanItem::ThroughEntry),
        Flow::Jump(None) => found(ScanItem::Indirect),
        Flow::Ret => found(ScanItem::Return),
        Flow::Invalid => result.invalid = true,
        _ => {}
    }
    insn.ip_rel().into_iter().for_each(|name| found(ScanItem::Name(name)));
    result.leaves = !insn.flow().falls_through() && insn.flow() != Flow::Invalid;
    at + usize::from(insn.len)
}
