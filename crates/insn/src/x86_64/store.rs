//! What an instruction did to memory, according to the registers after it.
//!
//! In: an instruction's bytes; the general registers and flags after it ran. Out: which bytes it read or
//! wrote, and what it wrote: the value itself, or what the old value became, or that the registers do not
//! show it (vector stores, `xchg`). Invariants: INSN-1; INSN-4: an answer with an address or a value is what
//! the processor did (proven against native execution in `tests/store.rs`); in doubt there is none.
//! Does not: know what memory contained before, or read it.
//!
//! The registers are those *after* the instruction, since a data breakpoint traps after the access. So an
//! operand that the instruction itself overwrites is lost: `xadd` leaves the old value in its register and
//! the addend nowhere.

use super::decode::decoder;
use super::gpr::Gpr;
use crate::effect::low;
pub use crate::effect::{Effect, Op, Stored};
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

/// General registers in hardware order, and the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegFile {
    /// By hardware number, see [`Gpr`].
    pub gprs: [u64; 16],
    /// RFLAGS.
    pub flags: u64,
}

impl RegFile {
    /// A register's value as an operand: sub-registers are cut out.
    fn get(&self, register: Register) -> Option<u64> {
        let full = self.gprs[Gpr::of(register)? as usize];
        Some(match register.size() {
            1 if matches!(register, Register::AH | Register::CH | Register::DH | Register::BH) => {
                full >> 8 & 0xff
            }
            size => low(full, size),
        })
    }
    const fn flag(&self, bit: u32) -> bool {
        self.flags >> bit & 1 == 1
    }
}

const CF: u32 = 0;
const PF: u32 = 2;
const ZF: u32 = 6;
const SF: u32 = 7;
const DF: u32 = 10;
const OF: u32 = 11;

/// An instruction that accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accessor {
    raw: Instruction,
    operand: u32,
    writes: bool,
    reads: bool,
}

/// Number of bytes that a repeated string instruction may process between two possible traps: microcode moves
/// blocks at a time.
const REP_REACH: u32 = 256;

impl Accessor {
    /// The instruction at the start of `bytes`, if it accesses memory: its explicit operand, or the stack for
    /// `push` and `call`. If it has two operands (`movs`), this is the one that is written.
    #[must_use]
    pub fn decode(bytes: &[u8], addr: u64) -> Option<Self> {
        let raw = decoder(bytes, addr).decode();
        if raw.is_invalid() {
            return None;
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(&raw, InstructionInfoOptions::NONE);
        let access = |operand: u32| info.op_access(operand);
        let memory =
            |operand: &u32| is_memory(raw.op_kind(*operand)) && access(*operand) != OpAccess::NoMemAccess;
        let mut operands = (0..raw.op_count()).filter(memory);
        let first = operands.next();
        let written = first.into_iter().chain(operands).find(|&operand| writes(access(operand)));
        match (written, first) {
            (Some(operand), _) => Some(Self { raw, operand, writes: true, reads: reads(access(operand)) }),
            _ if pushes(&raw) => Some(Self { raw, operand: u32::MAX, writes: true, reads: false }),
            (None, Some(operand)) => {
                Some(Self { raw, operand, writes: false, reads: reads(access(operand)) })
            }
            (None, None) => None,
        }
    }
    /// Its address.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.raw.ip()
    }
    /// Address of the instruction behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.raw.next_ip()
    }
    /// Whether it may write to memory.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }
    /// Whether it may read the memory that it accesses.
    #[must_use]
    pub const fn reads(&self) -> bool {
        self.reads
    }
    /// Whether it is repeated, so that it may trap in the middle, at its own address.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.raw.has_rep_prefix() || self.raw.has_repne_prefix()
    }
    /// What it did, according to the registers after it.
    #[must_use]
    pub fn effect(&self, after: &RegFile) -> Effect {
        if self.operand == u32::MAX {
            return self.push(after);
        }
        let size = self.raw.memory_size().size() as u32;
        match self.raw.op_kind(self.operand) {
            OpKind::Memory => self.plain(after, size),
            _ => self.string(after, size),
        }
    }
    fn push(&self, after: &RegFile) -> Effect {
        let size: u8 = if self.raw.stack_pointer_increment() == -2 { 2 } else { 8 };
        let value = match self.raw.op_kind(0) {
            _ if self.raw.mnemonic() == Mnemonic::Call => Some(self.raw.next_ip()),
            // The value pushed is rsp before it moved.
            OpKind::Register if self.raw.op0_register() == Register::RSP => {
                Some(after.gprs[Gpr::Rsp as usize].wrapping_add(size.into()))
            }
            OpKind::Register => after.get(self.raw.op0_register()),
            OpKind::Memory => None,
            _ => immediate(&self.raw, 0),
        };
        let stored = value.map_or(Stored::Unknown { old: None }, |new| Stored::Value {
            new: low(new, size.into()),
            old: None,
        });
        Effect { at: Some(after.gprs[Gpr::Rsp as usize]), len: size.into(), size, stored }
    }
    /// `stos`, `movs`, `ins`: the pointer has moved already.
    fn string(&self, after: &RegFile, size: u32) -> Effect {
        let uses_di = !matches!(
            self.raw.op_kind(self.operand),
            OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI
        );
        let pointer = after.gprs[if uses_di { Gpr::Rdi } else { Gpr::Rsi } as usize];
        let len = if self.repeats() { REP_REACH.next_multiple_of(size.max(1)) } else { size };
        let at =
            if after.flag(DF) { pointer.wrapping_add(size.into()) } else { pointer.wrapping_sub(len.into()) };
        let stored = match (self.writes, self.raw.mnemonic()) {
            (false, _) => Stored::Nothing,
            (_, Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq) => {
                Stored::Fill(low(after.gprs[Gpr::Rax as usize], size as usize))
            }
            _ => Stored::Unknown { old: None },
        };
        Effect { at: Some(at), len, size: size.min(255) as u8, stored }
    }
    fn plain(&self, after: &RegFile, size: u32) -> Effect {
        let stored = if self.writes { self.stored(after, size) } else { Stored::Nothing };
        // A load that overwrote its own base or index: the address is lost.
        let lost = self.overwrites_address();
        let at = if lost { None } else { self.address(after) };
        Effect { at, len: size, size: size.min(255) as u8, stored }
    }
    fn address(&self, after: &RegFile) -> Option<u64> {
        self.raw.virtual_address(self.operand, 0, |register, _, _| match register {
            Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
            // `pop [rsp+n]` computes its address after rsp has moved, which is where it is now.
            _ => after.get(register),
        })
    }
    fn overwrites_address(&self) -> bool {
        // `pop [rsp+n]` and `push` use the moved rsp.
        let parts = [self.raw.memory_base(), self.raw.memory_index()];
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(&self.raw, InstructionInfoOptions::NO_MEMORY_USAGE);
        info.used_registers().iter().any(|used| {
            let same =
                |part: &Register| part.is_gpr() && part.full_register() == used.register().full_register();
            writes(used.access()) && parts.iter().any(same) && self.raw.mnemonic() != Mnemonic::Pop
        })
    }
    fn stored(&self, after: &RegFile, size: u32) -> Stored {
        let unknown = Stored::Unknown { old: None };
        if size > 8 || size == 0 || self.operand != 0 {
            return unknown;
        }
        let size = size as usize;
        let value = |new: u64| Stored::Value { new: low(new, size), old: None };
        // The second operand, as wide as the first; the decoder extends signs.
        let with = || match self.raw.op1_kind() {
            OpKind::Register => after.get(self.raw.op1_register()),
            _ => immediate(&self.raw, 1).map(|wide| low(wide, size)),
        };
        let changed = |op: Option<Op>| op.map_or(unknown, Stored::Changed);
        match self.raw.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movnti => with().map_or(unknown, value),
            Mnemonic::Movbe => with().map_or(unknown, |wide| value(wide.swap_bytes() >> (64 - 8 * size))),
            Mnemonic::Add => changed(with().map(Op::Add)),
            Mnemonic::Sub => changed(with().map(|by| Op::Add(by.wrapping_neg()))),
            Mnemonic::Inc => Stored::Changed(Op::Add(1)),
            Mnemonic::Dec => Stored::Changed(Op::Add(u64::MAX)),
            Mnemonic::And => changed(with().map(Op::And)),
            Mnemonic::Or => changed(with().map(Op::Or)),
            Mnemonic::Xor => changed(with().map(Op::Xor)),
            Mnemonic::Not => Stored::Changed(Op::Xor(u64::MAX)),
            Mnemonic::Neg => Stored::Changed(Op::Neg),
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Rol | Mnemonic::Ror => {
                changed(self.shift(after, size))
            }
            Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc if self.raw.op1_kind() != OpKind::Register => {
                let bit = self.raw.immediate8() as u32 % (8 * size as u32);
                Stored::Changed(match self.raw.mnemonic() {
                    Mnemonic::Bts => Op::Or(1 << bit),
                    Mnemonic::Btr => Op::And(!(1 << bit)),
                    _ => Op::Xor(1 << bit),
                })
            }
            Mnemonic::Xchg => Stored::Unknown { old: self.exchanged(after) },
            Mnemonic::Xadd => Stored::Unknown { old: after.get(self.raw.op1_register()) },
            Mnemonic::Cmpxchg => compare_exchange(&self.raw, after, size),
            mnemonic => condition(mnemonic, after).map_or(unknown, |set| value(set.into())),
        }
    }
    /// The old value, which is in the register of an `xchg`.
    fn exchanged(&self, after: &RegFile) -> Option<u64> {
        (self.raw.op1_kind() == OpKind::Register).then(|| after.get(self.raw.op1_register()))?
    }
    fn shift(&self, after: &RegFile, size: usize) -> Option<Op> {
        let count = match self.raw.op1_kind() {
            OpKind::Register => after.get(Register::CL)?,
            _ => immediate(&self.raw, 1)?,
        };
        let count = (count & if size == 8 { 63 } else { 31 }) as u32;
        Some(match self.raw.mnemonic() {
            Mnemonic::Shl | Mnemonic::Sal => Op::Shl(count),
            Mnemonic::Shr => Op::Shr(count),
            Mnemonic::Sar => Op::Sar(count),
            Mnemonic::Rol => Op::Rol(count),
            _ => Op::Ror(count),
        })
    }
}

/// If equal, the register was stored in place of the value in rax. If different, the old value was written
/// back, and rax holds it.
fn compare_exchange(raw: &Instruction, after: &RegFile, size: usize) -> Stored {
    let rax = low(after.gprs[Gpr::Rax as usize], size);
    match (after.flag(ZF), after.get(raw.op1_register())) {
        (true, Some(new)) => Stored::Value { new: low(new, size), old: Some(rax) },
        (true, None) => Stored::Unknown { old: Some(rax) },
        (false, _) => Stored::Value { new: rax, old: Some(rax) },
    }
}

/// The value that `setcc` stores.
fn condition(mnemonic: Mnemonic, after: &RegFile) -> Option<bool> {
    let (cf, zf, sf, of, pf) =
        (after.flag(CF), after.flag(ZF), after.flag(SF), after.flag(OF), after.flag(PF));
    Some(match mnemonic {
        Mnemonic::Seto => of,
        Mnemonic::Setno => !of,
        Mnemonic::Setb => cf,
        Mnemonic::Setae => !cf,
        Mnemonic::Sete => zf,
        Mnemonic::Setne => !zf,
        Mnemonic::Setbe => cf || zf,
        Mnemonic::Seta => !cf && !zf,
        Mnemonic::Sets => sf,
        Mnemonic::Setns => !sf,
        Mnemonic::Setp => pf,
        Mnemonic::Setnp => !pf,
        Mnemonic::Setl => sf != of,
        Mnemonic::Setge => sf == of,
        Mnemonic::Setle => zf || sf != of,
        Mnemonic::Setg => !zf && sf == of,
        _ => return None,
    })
}

fn immediate(raw: &Instruction, operand: u32) -> Option<u64> {
    raw.try_immediate(operand).ok()
}

fn pushes(raw: &Instruction) -> bool {
    matches!(raw.mnemonic(), Mnemonic::Push | Mnemonic::Pushfq) && raw.stack_pointer_increment() < 0
        || raw.mnemonic() == Mnemonic::Call && !raw.is_call_far() && !raw.is_call_far_indirect()
}

const fn is_memory(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI
    )
}

const fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

const fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}
