//! What a straight line of instructions surely overwrites, so that a stub need not save it.
//!
//! In: decoded instructions and their bytes. Out: a yes, or a set of registers; "no" and "none" when in
//! doubt. The line ends at the first instruction after which control does not simply go on to the next.

use super::decode::{Flow, Insn, Sweep, decoder, sweep};
use super::gpr::Gpr;
use super::lead::Lead;
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, Register, RflagsBits,
};

const STATUS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// What a straight line surely overwrites before reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overwritten {
    /// OF, SF, ZF, AF, CF and PF, all of them.
    pub flags: bool,
    /// Bit `n`: general register `n` in hardware order; never `rsp`.
    pub gprs: u16,
}

/// Decodes and finds out what is overwritten, in one pass. Keeps its tables from call to call.
#[allow(missing_debug_implementations, reason = "the factory inside has none")]
pub struct Look(InstructionInfoFactory);

impl Default for Look {
    fn default() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

/// Number of dead registers that is enough: no stub uses more.
const ENOUGH: u32 = 4;

impl Look {
    /// Replaces `insns` by up to `most` instructions at the start of `bytes`, the first at `addr`; at least
    /// `least` bytes of them if there are that many. The straight line ends at the first instruction that
    /// does not simply go on to the next, or for which `sure` is false. The result is that of
    /// [`flags_dead_after`] and [`overwritten_gprs`], except that the search may end early once it has found
    /// enough.
    pub fn ahead(
        &mut self,
        insns: &mut Vec<Insn>,
        (bytes, addr): (&[u8], u64),
        (most, least): (usize, u64),
        sure: impl Fn(&Insn) -> bool,
    ) -> Overwritten {
        insns.clear();
        let mut sweep = sweep(bytes, addr);
        self.follow(insns, &mut sweep, addr, (most, least), sure)
    }

    /// The same for the line that begins behind the first instruction, with what that one changed. `None` if
    /// that one does not simply go on to the next, if `sure` is false for it, or if the stack pointer is
    /// unknown afterwards. `insns` contains the first one too.
    pub fn behind(
        &mut self,
        insns: &mut Vec<Insn>,
        (bytes, addr): (&[u8], u64),
        (most, least): (usize, u64),
        sure: impl Fn(&Insn) -> bool,
    ) -> Option<(Lead, Overwritten)> {
        insns.clear();
        let mut sweep = sweep(bytes, addr);
        let first = sweep.next().filter(|first| first.flow() == Flow::Next && sure(first))?;
        insns.push(first);
        let lead = Lead::of(&mut self.0, sweep.raw())?;
        Some((lead, self.follow(insns, &mut sweep, addr, (most, least), sure)))
    }

    /// Appends the instructions that follow, and follows the straight line through them.
    fn follow(
        &mut self,
        insns: &mut Vec<Insn>,
        sweep: &mut Sweep<'_>,
        addr: u64,
        (most, least): (usize, u64),
        sure: impl Fn(&Insn) -> bool,
    ) -> Overwritten {
        let mut line = Line::default();
        let mut open = true;
        while insns.len() < most
            && let Some(insn) = sweep.next()
        {
            insns.push(insn);
            open = open && insn.flow() == Flow::Next && sure(&insn);
            if open {
                line.flags(sweep.raw());
                line.gprs(&mut self.0, sweep.raw());
                open = !line.is_enough();
            }
            if !open && insn.end().wrapping_sub(addr) >= least {
                break;
            }
        }
        Overwritten { flags: line.pending == 0, gprs: line.overwritten }
    }
}

/// A straight line, as far as it was followed.
struct Line {
    /// Flags that are not yet written.
    pending: u32,
    /// A flag was read before it was written.
    flag_read: bool,
    read: u16,
    overwritten: u16,
}

impl Default for Line {
    fn default() -> Self {
        Self { pending: STATUS, flag_read: false, read: Gpr::Rsp.bit(), overwritten: 0 }
    }
}

impl Line {
    fn is_enough(&self) -> bool {
        (self.pending == 0 || self.flag_read) && self.overwritten.count_ones() >= ENOUGH
    }

    fn flags(&mut self, raw: &Instruction) {
        self.flag_read |= raw.rflags_read() & self.pending != 0;
        if !self.flag_read {
            self.pending &= !surely_written(raw);
        }
    }

    fn gprs(&mut self, factory: &mut InstructionInfoFactory, raw: &Instruction) {
        let used = factory.info_options(raw, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers();
        let gprs = || used.iter().filter_map(|u| Some((Gpr::of(u.register())?, u.register(), u.access())));
        for (gpr, _, access) in gprs() {
            if !matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess | OpAccess::None
            ) {
                self.read |= gpr.bit() & !self.overwritten;
            }
        }
        for (gpr, register, access) in gprs() {
            if access == OpAccess::Write && is_whole(register) {
                self.overwritten |= gpr.bit() & !self.read;
            }
        }
    }
}

/// True when OF, SF, ZF, AF, CF and PF are each written before any is read, along the straight line `insns`
/// (`bytes` are its bytes, from the first instruction on). Ends at the first instruction that does not simply
/// fall through. Flags left undefined count as not written, except for AF behind `and`, `or`, `xor` and `test`.
/// False when in doubt.
#[must_use]
pub fn flags_dead_after(insns: &[Insn], bytes: &[u8]) -> bool {
    let mut line = Line::default();
    straight_line(insns, bytes).for_each(|raw| line.flags(&raw));
    line.pending == 0
}

/// The general registers that the straight line surely overwrites, in full, before reading any part of them:
/// bit `n` is register `n` in hardware order. Writes of 32 bits count as full (they zero-extend), writes of 8
/// or 16 do not. `rsp` is never included.
#[must_use]
pub fn overwritten_gprs(insns: &[Insn], bytes: &[u8]) -> u16 {
    let mut factory = InstructionInfoFactory::new();
    let mut line = Line::default();
    straight_line(insns, bytes).for_each(|raw| line.gprs(&mut factory, &raw));
    line.overwritten
}

/// Whether a register's write is of the whole register. The decoder reports a 32-bit write as one of the
/// whole register; 32 bits are accepted for the same reason.
fn is_whole(register: Register) -> bool {
    register.is_gpr64() || register.is_gpr32()
}

/// The instructions decoded in full, up to the first that branches, traps or enters the kernel.
fn straight_line<'a>(insns: &'a [Insn], bytes: &'a [u8]) -> impl Iterator<Item = Instruction> + 'a {
    let addr = insns.first().map_or(0, |insn| insn.addr);
    let mut decoder = decoder(bytes, addr);
    insns.iter().take_while(|insn| insn.flow() == Flow::Next).map_while(move |insn| {
        let raw = decoder.can_decode().then(|| decoder.decode())?;
        (raw.ip() == insn.addr && raw.len() == usize::from(insn.len)).then_some(raw)
    })
}

/// Status flags to which `raw` gives a defined value, whatever its operands contain.
fn surely_written(raw: &Instruction) -> u32 {
    if raw.has_rep_prefix() || raw.has_repne_prefix() || is_shift_by_cl(raw) {
        return 0;
    }
    // Processors differ on whether these clear the flags that they do not set.
    if matches!(raw.mnemonic(), Mnemonic::Fcomi | Mnemonic::Fcomip | Mnemonic::Fucomi | Mnemonic::Fucomip) {
        return raw.rflags_written();
    }
    let written = raw.rflags_written() | raw.rflags_cleared() | raw.rflags_set();
    // The manuals leave AF undefined, so no program relies on it; processors clear it.
    let is_logic = matches!(raw.mnemonic(), Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test);
    if is_logic { written | RflagsBits::AF } else { written }
}

/// A shift by zero leaves every flag as it was.
fn is_shift_by_cl(raw: &Instruction) -> bool {
    let shifts = matches!(
        raw.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    shifts && (0..raw.op_count()).any(|operand| raw.op_register(operand) == Register::CL)
}
