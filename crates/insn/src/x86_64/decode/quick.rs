//! The common encodings by tables, several times as fast as the decoder.
//!
//! In: bytes and their address. Out: the instructions that [`sweep`] produces. Invariant: QUICK-1 the
//! tables and the decoder produce the same, field by field; encodings that are not in the tables are left to
//! the decoder.
//! Does not: decode instructions in full.
//!
//! Each field is computed separately, and an [`Insn`] is built once, at its final place: copies of
//! half-written ones take longer than all the rest.

use super::super::scan::{
    C4, G5, I1, IV, IZ, J1, J4, JC, LEA, M, M1, MZ, N, ONE, RI, RT, T1, TR, TWO, TZ, Z1, ZZ, word,
};
use super::{Class, Gpr, Insn, MemKind, MemUse, Way, sweep};

/// Appends what [`sweep`] produces, but faster.
pub fn sweep_into(bytes: &[u8], addr: u64, insns: &mut Vec<Insn>) {
    let (mut at, mut full) = (0, sweep(bytes, addr));
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        // Not copied where they are 16: each byte would be loaded from the copy, some cycles later.
        let mut padded = [0; 16];
        let window = rest.first_chunk().unwrap_or_else(|| {
            padded.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
            &padded
        });
        let here = addr.wrapping_add(at as u64);
        if let Some(insn) = by_tables(window, here)
            && usize::from(insn.len) <= rest.len()
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

/// Whether a ModRM follows, number of further bytes, the class, where control goes.
type OpcodeForm = (bool, usize, Class, Way);

/// The parts of an instruction before its operands.
#[derive(Clone, Copy)]
struct Head {
    narrow: bool,
    prefixed: bool,
    rex: u8,
    op: u8,
    /// The register field, if the next byte is a ModRM.
    field: u8,
    /// The operand is a register, if the next byte is a ModRM.
    is_register: bool,
}

/// The instruction at the start of `window`, if the tables have it.
#[inline(always)]
fn by_tables(window: &[u8; 16], addr: u64) -> Option<Insn> {
    let (narrow, prefixed) = (window[0] == 0x66, matches!(window[0], 0x64..=0x66));
    let mut n = usize::from(prefixed);
    let rex = if window[n] & 0xF0 == 0x40 { window[n] } else { 0 };
    n += usize::from(rex != 0);
    let two = window[n] == 0x0F;
    n += usize::from(two);
    let op = window[n];
    n += 1;
    let (field, is_register) = (window[n] >> 3 & 7, window[n] >= 0xC0);
    let head = Head { narrow, prefixed, rex, op, field, is_register };
    let (has_operand, more, class, way) = if two { behind_0f(head)? } else { one_byte(head)? };
    let (mut len, mut mem, mut disp) = (n, MemUse::default(), None);
    if has_operand {
        let (bytes, used, named) = operand(window, n, rex);
        len += bytes;
        disp = named;
        // `lea` and `nop` access nothing.
        if class != Class::Nop && (two || op != 0x8D) {
            mem = used;
        }
    }
    len += more;
    let end = addr.wrapping_add(len as u64);
    let is_direct = matches!(way, Way::Jump | Way::Branch | Way::Call);
    let rel = if more == 1 { i64::from(window[n].cast_signed()) } else { word(window, n).into() };
    let named = if is_direct { Some(rel) } else { disp.map(i64::from) };
    Some(Insn {
        addr,
        named: named.map_or(0, |from_end| end.wrapping_add_signed(from_end)),
        mem,
        way,
        len: len as u8,
        disp_at: if disp.is_some() { n as u8 + 1 } else { 0 },
        rel_size: if is_direct { more as u8 } else { 0 },
        class,
    })
}

#[inline(always)]
fn one_byte(head: Head) -> Option<OpcodeForm> {
    let Head { narrow, prefixed, rex, op, field, .. } = head;
    let wide = rex & 8 != 0;
    let z = if narrow && !wide { 2 } else { 4 };
    let shape = match ONE[usize::from(op)] {
        N => match op {
            0x50..=0x57 if !narrow => (false, 0, Class::Push, Way::Next),
            0x58..=0x5F if !narrow => (false, 0, Class::Pop, Way::Next),
            0x90 if rex == 0 && (narrow || !prefixed) => (false, 0, Class::Nop, Way::Next),
            0x91..=0x99 | 0xC9 => (false, 0, Class::Plain, Way::Next),
            _ => return None,
        },
        I1 | IZ if matches!(op, 0x68 | 0x6A) && narrow => return None,
        I1 => (false, 1, if op == 0x6A { Class::Push } else { Class::Plain }, Way::Next),
        IZ => (false, z, if op == 0x68 { Class::Push } else { Class::Plain }, Way::Next),
        IV => (false, if wide { 8 } else { z }, Class::Plain, Way::Next),
        M => (true, 0, Class::Plain, Way::Next),
        M1 => (true, 1, Class::Plain, Way::Next),
        MZ => (true, z, Class::Plain, Way::Next),
        T1 => (true, usize::from(field < 2), Class::Plain, Way::Next),
        TZ => (true, if field < 2 { z } else { 0 }, Class::Plain, Way::Next),
        Z1 if field == 0 => (true, 1, Class::Plain, Way::Next),
        ZZ if field == 0 => (true, z, Class::Plain, Way::Next),
        LEA if !head.is_register => (true, 0, Class::Plain, Way::Next),
        G5 if field < 2 => (true, 0, Class::Plain, Way::Next),
        G5 if field == 6 && !narrow => (true, 0, Class::Push, Way::Next),
        _ if prefixed => return None,
        G5 if field == 2 => (true, 0, Class::Plain, Way::CallBy),
        G5 if field == 4 => (true, 0, Class::Plain, Way::JumpBy),
        JC => (false, 1, Class::Jcc, Way::Branch),
        J1 => (false, 1, Class::Plain, Way::Jump),
        J4 => (false, 4, Class::Plain, Way::Jump),
        C4 => (false, 4, Class::Plain, Way::Call),
        RT => (false, 0, Class::Plain, Way::Ret),
        RI => (false, 2, Class::Plain, Way::Ret),
        TR if rex == 0 => (false, 0, Class::Int3, Way::Trap),
        _ => return None,
    };
    Some(shape)
}

#[inline(always)]
fn behind_0f(head: Head) -> Option<OpcodeForm> {
    let Head { narrow, prefixed, op, field, .. } = head;
    match TWO[usize::from(op)] {
        // `endbr64` and similar; `nop`s with other register fields; an opcode that needs its prefix.
        M if op == 0x1E || (op == 0x1F && field != 0) || (op == 0xD6 && !narrow) => None,
        M => Some((true, 0, if op == 0x1F { Class::Nop } else { Class::Plain }, Way::Next)),
        M1 => Some((true, 1, Class::Plain, Way::Next)),
        N => Some((false, 0, Class::Plain, Way::Next)),
        J4 if !prefixed => Some((false, 4, Class::Jcc, Way::Branch)),
        _ => None,
    }
}

/// Number of bytes of the ModRM at `n` and what belongs to it, the memory operand, and the displacement if it
/// is relative to rip.
#[inline(always)]
fn operand(window: &[u8; 16], n: usize, rex: u8) -> (usize, MemUse, Option<i32>) {
    let (mode, low) = (window[n] >> 6, window[n] & 7);
    if mode == 3 {
        return (1, MemUse::default(), None);
    }
    if mode == 0 && low == 5 {
        return (5, MemUse { kind: MemKind::Ip, base: None, index: None }, Some(word(window, n + 1)));
    }
    let gpr = |low: u8, high: u8| Gpr::ALL[usize::from(low & 7 | (high & 1) << 3)];
    let (mut base, mut index, mut len) = (Some(gpr(low, rex)), None, [1, 2, 5, 1][usize::from(mode)]);
    if low == 4 {
        let sib = window[n + 1];
        let scaled = gpr(sib >> 3, rex >> 1);
        index = (scaled != Gpr::Rsp).then_some(scaled);
        base = Some(gpr(sib, rex));
        len += 1;
        if mode == 0 && sib & 7 == 5 {
            base = None;
            len += 4;
        }
    }
    let kind = match (base, index) {
        (None, None) => MemKind::Absolute,
        (Some(Gpr::Rsp), None) => MemKind::Stack,
        _ => MemKind::Register,
    };
    (len, MemUse { kind, base, index }, None)
}
