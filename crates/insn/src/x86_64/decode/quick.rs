//! The everyday encodings by tables, several times as fast as the decoder.
//!
//! In: bytes and their address. Out: the instructions that [`sweep`] gives. Invariant QUICK-1: both give the same, field by field; whatever
//! is not in the tables is left to the decoder. Does not: give instructions in full.

use super::super::scan::{
    C4, G5, I1, IV, IZ, J1, J4, JC, LEA, M, M1, MZ, N, ONE, RI, RT, T1, TR, TWO, TZ, Z1, ZZ, word,
};
use super::{Class, Flow, Gpr, Insn, MemKind, MemUse, Sweep, sweep};

/// The same as [`sweep`], sooner.
#[must_use]
pub fn quick_sweep(bytes: &[u8], addr: u64) -> QuickSweep<'_> {
    QuickSweep { bytes, at: 0, addr, full: sweep(bytes, addr) }
}

/// Iterator of [`quick_sweep`].
#[allow(missing_debug_implementations, reason = "the decoder inside has none")]
pub struct QuickSweep<'a> {
    bytes: &'a [u8],
    at: usize,
    addr: u64,
    full: Sweep<'a>,
}

impl Iterator for QuickSweep<'_> {
    type Item = Insn;

    #[inline]
    fn next(&mut self) -> Option<Insn> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let by_tables = match rest.first_chunk() {
            Some(window) => by_tables(window, self.addr),
            None => {
                let mut window = [0; 16];
                window.get_mut(..rest.len())?.copy_from_slice(rest);
                by_tables(&window, self.addr).filter(|insn| usize::from(insn.len) <= rest.len())
            }
        };
        let insn = match by_tables {
            Some(insn) => insn,
            None => self.full.at(self.at, self.addr)?,
        };
        self.at += usize::from(insn.len);
        self.addr = insn.end();
        Some(insn)
    }
}

/// A ModRM and what belongs to it.
struct Operand {
    len: usize,
    mem: MemUse,
    /// The displacement relative to rip.
    named: Option<i32>,
}

impl Operand {
    #[inline(always)]
    fn at(window: &[u8; 16], n: usize, rex: u8) -> Self {
        let byte = window[n];
        let (mode, low) = (byte >> 6, byte & 7);
        if mode == 3 {
            return Self { len: 1, mem: MemUse::default(), named: None };
        }
        if mode == 0 && low == 5 {
            let mem = MemUse { kind: MemKind::Ip, base: None, index: None };
            return Self { len: 5, mem, named: Some(word(window, n + 1)) };
        }
        let gpr = |low: u8, high: u8| Gpr::ALL[usize::from(low | high << 3)];
        let high = rex & 1;
        let (mut base, mut index, mut len) = (Some(gpr(low, high)), None, [1, 2, 5][usize::from(mode)]);
        if low == 4 {
            let sib = window[n + 1];
            let scaled = gpr(sib >> 3 & 7, rex >> 1 & 1);
            index = (scaled != Gpr::Rsp).then_some(scaled);
            base = Some(gpr(sib & 7, high));
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
        Self { len, mem: MemUse { kind, base, index }, named: None }
    }
}

/// The instruction at the start of `window`, if the tables have it.
#[inline(always)]
fn by_tables(window: &[u8; 16], addr: u64) -> Option<Insn> {
    let (narrow, prefixed) = (window[0] == 0x66, matches!(window[0], 0x64..=0x66));
    let mut n = usize::from(prefixed);
    let rex = if window[n] & 0xF0 == 0x40 { window[n] } else { 0 };
    n += usize::from(rex != 0);
    let (op, wide) = (window[n], rex & 8 != 0);
    n += 1;
    if op == 0x0F {
        return two_bytes(window, n, addr, rex, (narrow, prefixed));
    }
    let (z, field) = (if narrow && !wide { 2 } else { 4 }, window[n] >> 3 & 7);
    let plain = |class, immediate| Some(Insn { addr, class, len: (n + immediate) as u8, ..Insn::default() });
    let operand = |immediate: usize| Some(of_operand(Operand::at(window, n, rex), n, immediate, addr));
    let flow = |flow, class, rel: u8| {
        let len = (n + usize::from(rel)) as u8;
        Some(Insn { addr, flow, class, len, rel_size: rel, ..Insn::default() })
    };
    let behind = |rel: usize| addr.wrapping_add((n + rel) as u64);
    match ONE[usize::from(op)] {
        N => match op {
            0x50..=0x57 if !narrow => plain(Class::Push, 0),
            0x58..=0x5F if !narrow => plain(Class::Pop, 0),
            0x90 if rex == 0 && (narrow || !prefixed) => plain(Class::Nop, 0),
            0x91..=0x99 | 0xC9 => plain(Class::Plain, 0),
            _ => None,
        },
        I1 if op == 0x6A => (!narrow).then(|| plain(Class::Push, 1))?,
        IZ if op == 0x68 => (!narrow).then(|| plain(Class::Push, z))?,
        I1 => plain(Class::Plain, 1),
        IZ => plain(Class::Plain, z),
        IV => plain(Class::Plain, if wide { 8 } else { z }),
        M => operand(0),
        M1 => operand(1),
        MZ => operand(z),
        T1 => operand(usize::from(field < 2)),
        TZ => operand(if field < 2 { z } else { 0 }),
        Z1 if field == 0 => operand(1),
        ZZ if field == 0 => operand(z),
        LEA if window[n] < 0xC0 => operand(0).map(|insn| Insn { mem: MemUse::default(), ..insn }),
        G5 if field < 2 => operand(0),
        G5 if narrow => None,
        G5 if field == 6 => operand(0).map(|insn| Insn { class: Class::Push, ..insn }),
        _ if prefixed => None,
        G5 if field == 2 => operand(0).map(|insn| Insn { flow: Flow::Call(None), ..insn }),
        G5 if field == 4 => operand(0).map(|insn| Insn { flow: Flow::Jump(None), ..insn }),
        JC => flow(Flow::Branch(behind(1).wrapping_add_signed(short(window, n))), Class::Jcc, 1),
        J1 => flow(Flow::Jump(Some(behind(1).wrapping_add_signed(short(window, n)))), Class::Plain, 1),
        J4 => {
            let to = behind(4).wrapping_add_signed(word(window, n).into());
            flow(Flow::Jump(Some(to)), Class::Plain, 4)
        }
        C4 => {
            let to = behind(4).wrapping_add_signed(word(window, n).into());
            flow(Flow::Call(Some(to)), Class::Plain, 4)
        }
        RT => flow(Flow::Ret, Class::Plain, 0),
        RI => flow(Flow::Ret, Class::Plain, 0).map(|insn| Insn { len: insn.len + 2, ..insn }),
        TR if rex == 0 => flow(Flow::Trap, Class::Int3, 0),
        _ => None,
    }
}

/// The opcodes behind 0F, the second byte of which is at `n`.
#[inline(always)]
fn two_bytes(
    window: &[u8; 16],
    n: usize,
    addr: u64,
    rex: u8,
    (narrow, prefixed): (bool, bool),
) -> Option<Insn> {
    let (op, n) = (window[n], n + 1);
    let operand = |immediate: usize| Some(of_operand(Operand::at(window, n, rex), n, immediate, addr));
    match (TWO[usize::from(op)], op) {
        // `endbr64` and its like.
        (_, 0x1E) => None,
        (M, 0x1F) if window[n] >> 3 & 7 == 0 => {
            operand(0).map(|insn| Insn { mem: MemUse::default(), class: Class::Nop, ..insn })
        }
        (M, 0x1F) => None,
        (M, 0xD6) if !narrow => None,
        (M, _) => operand(0),
        (M1, _) => operand(1),
        (N, _) => Some(Insn { addr, len: n as u8, ..Insn::default() }),
        (J4, _) if !prefixed => {
            let to = addr.wrapping_add((n + 4) as u64).wrapping_add_signed(word(window, n).into());
            let (flow, len) = (Flow::Branch(to), (n + 4) as u8);
            Some(Insn { addr, flow, class: Class::Jcc, len, rel_size: 4, ..Insn::default() })
        }
        _ => None,
    }
}

/// An instruction with an operand whose ModRM is at `n`.
#[inline(always)]
fn of_operand(operand: Operand, n: usize, immediate: usize, addr: u64) -> Insn {
    let len = n + operand.len + immediate;
    let mut insn = Insn { addr, mem: operand.mem, len: len as u8, ..Insn::default() };
    if let Some(named) = operand.named {
        insn.named = insn.end().wrapping_add_signed(named.into());
        insn.disp_at = n as u8 + 1;
    }
    insn
}

#[inline(always)]
fn short(window: &[u8; 16], n: usize) -> i64 {
    window[n].cast_signed().into()
}
