//! Bytes to instructions: only what planning needs of each, in 48 bytes.
//!
//! In: bytes and their address. Out: [`Insn`] values, one per instruction, in order, without gaps.
//! Invariants: INSN-1; INSN-2 (APX, REX2, truncated and reserved encodings are [`Flow::Invalid`], one byte
//! long).
//! Does not: format text or keep operands; code that needs more decodes the bytes again.

mod quick;

use super::gpr::Gpr;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

pub use quick::sweep_into;

/// Where control goes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Flow {
    /// To the next instruction.
    #[default]
    Next,
    /// Unconditional jump: the direct target, or `None` when it comes from a register or memory.
    Jump(Option<u64>),
    /// Conditional: to the target or to the next instruction (`jcc`, `loop*`, `jrcxz`, `xbegin`).
    Branch(u64),
    /// A call: the direct target, or `None` when it comes from a register or memory.
    Call(Option<u64>),
    /// `ret`, `rep ret`, `ret n`, and the far kinds.
    Ret,
    /// Into the kernel and back: `syscall`, `sysenter`, `int n`.
    Syscall,
    /// Stops or traps here: `int3`, `int1`, `ud0..2`, `hlt`, and instructions that user space may not run.
    Trap,
    /// Not an instruction that this decoder knows. One byte is skipped.
    Invalid,
}

impl Flow {
    /// The direct target of a jump, branch or call.
    #[must_use]
    pub const fn target(self) -> Option<u64> {
        match self {
            Self::Jump(target) | Self::Call(target) => target,
            Self::Branch(target) => Some(target),
            _ => None,
        }
    }
    /// Whether the next instruction in memory can run after this one. A call counts as returning.
    #[must_use]
    pub const fn falls_through(self) -> bool {
        matches!(self, Self::Next | Self::Branch(_) | Self::Call(_) | Self::Syscall)
    }
}

/// Kind of an instruction, as far as it matters to a planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Class {
    /// Anything not named below.
    #[default]
    Plain,
    /// `endbr64`.
    Endbr64,
    /// `nop` of any length, `xchg ax,ax` included.
    Nop,
    /// `int3`.
    Int3,
    /// `push`.
    Push,
    /// `pop`.
    Pop,
    /// `jcc`, 2 bytes or 6.
    Jcc,
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: no form with a 32-bit displacement exists.
    Loop,
    /// `xbegin`: its target is where a transaction aborts to.
    Xbegin,
    /// Far jump, call or return.
    Far,
    /// A near branch with an operand-size prefix and no REX.W: vendors disagree on its length, and on how
    /// many bits of the target they use.
    DataSize,
    /// A memory operand relative to `eip`, cut to 32 bits.
    EipRelative,
}

/// How an instruction's memory operand is addressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MemKind {
    /// No memory operand, or one that is not accessed (`lea`, `nop`). Implicit stack accesses (`push`,
    /// `call`, `ret`, `leave`) belong here too.
    #[default]
    None,
    /// By `rsp` only.
    Stack,
    /// By `rip`.
    Ip,
    /// By a constant only, in any segment.
    Absolute,
    /// By a general register other than `rsp`, or by a vector of indexes.
    Register,
}

/// An instruction's memory operand. `movs` and `cmps` have two; base and index then name both registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemUse {
    /// How it is addressed.
    pub kind: MemKind,
    /// Base register, if general.
    pub base: Option<Gpr>,
    /// Index register, if general.
    pub index: Option<Gpr>,
}

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Insn {
    /// Address of its first byte.
    pub addr: u64,
    /// The target of a direct jump, branch or call, or what an operand relative to rip refers to. None has both.
    named: u64,
    /// Its memory operand.
    pub mem: MemUse,
    way: Way,
    /// Length in bytes, 1 to 15.
    pub len: u8,
    /// Offset in the instruction of the 4-byte displacement behind [`Insn::ip_rel`]; 0 when there is none.
    pub disp_at: u8,
    /// Length in bytes of a direct branch's displacement, which is always at the end; 0 when there is none.
    pub rel_size: u8,
    /// Kind of the instruction.
    pub class: Class,
}

/// Where control goes after an instruction, without the target. [`Flow`] is what others see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Way {
    #[default]
    Next,
    Jump,
    JumpBy,
    Branch,
    Call,
    CallBy,
    Ret,
    Syscall,
    Trap,
    Invalid,
}

// Attaching to a large program makes millions.
const _: () = assert!(size_of::<Insn>() == 24);

impl Insn {
    /// Where control goes after it.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        match self.way {
            Way::Next => Flow::Next,
            Way::Jump => Flow::Jump(Some(self.named)),
            Way::JumpBy => Flow::Jump(None),
            Way::Branch => Flow::Branch(self.named),
            Way::Call => Flow::Call(Some(self.named)),
            Way::CallBy => Flow::Call(None),
            Way::Ret => Flow::Ret,
            Way::Syscall => Flow::Syscall,
            Way::Trap => Flow::Trap,
            Way::Invalid => Flow::Invalid,
        }
    }
    const fn set_flow(&mut self, flow: Flow) {
        self.way = match flow {
            Flow::Next => Way::Next,
            Flow::Jump(Some(_)) => Way::Jump,
            Flow::Jump(None) => Way::JumpBy,
            Flow::Branch(_) => Way::Branch,
            Flow::Call(Some(_)) => Way::Call,
            Flow::Call(None) => Way::CallBy,
            Flow::Ret => Way::Ret,
            Flow::Syscall => Way::Syscall,
            Flow::Trap => Way::Trap,
            Flow::Invalid => Way::Invalid,
        };
        if let Some(target) = flow.target() {
            self.named = target;
        }
    }
    /// The address that a rip-relative memory operand (or `lea`) refers to.
    #[must_use]
    pub const fn ip_rel(&self) -> Option<u64> {
        if self.disp_at == 0 { None } else { Some(self.named) }
    }
    /// Address of the byte after it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.addr.wrapping_add(self.len as u64)
    }
    /// The same instruction in a file that is `by` bytes higher.
    #[must_use]
    pub const fn moved(mut self, by: u64) -> Self {
        self.addr = self.addr.wrapping_add(by);
        self.named = self.named.wrapping_add(by);
        self
    }
    /// Whether it is of a kind that compilers and linkers put between functions.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        matches!(self.class, Class::Nop | Class::Int3)
    }
}

/// Whether an instruction can fault on an operand that a general register other than `rsp` addresses. A
/// handler may look up the faulting address, so such an instruction stays where it is in a program that
/// catches faults. The planner exempts by `insn.mem.base` (Go's r14).
#[must_use]
pub fn faults_on_register(insn: &Insn) -> bool {
    insn.mem.kind == MemKind::Register
}

/// The instruction at the start of `bytes`; `None` when there are no bytes.
#[must_use]
pub fn decode_one(bytes: &[u8], addr: u64) -> Option<Insn> {
    sweep(bytes, addr).next()
}

/// All instructions of `bytes`, one after another, the first at `addr`. Bytes that decode to nothing become
/// [`Flow::Invalid`] instructions of one byte, and the sweep goes on behind them.
#[must_use]
pub fn sweep(bytes: &[u8], addr: u64) -> Sweep<'_> {
    Sweep { decoder: decoder(bytes, addr), bytes, addr, scratch: Instruction::default() }
}

/// The one configuration of the decoder that this crate uses. MPX is on because old libraries still carry it,
/// and its encodings are harmless where the processor has none.
pub(crate) fn decoder(bytes: &[u8], addr: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, addr, DecoderOptions::MPX)
}

/// Iterator of [`sweep`].
#[allow(missing_debug_implementations, reason = "the decoder inside has none")]
pub struct Sweep<'a> {
    decoder: Decoder<'a>,
    bytes: &'a [u8],
    addr: u64,
    scratch: Instruction,
}

impl Iterator for Sweep<'_> {
    type Item = Insn;

    fn next(&mut self) -> Option<Insn> {
        if !self.decoder.can_decode() {
            return None;
        }
        let start = self.decoder.position();
        self.decoder.decode_out(&mut self.scratch);
        let mut insn = if self.scratch.is_invalid() {
            self.resume_behind(start)
        } else {
            condense(&self.decoder, &self.scratch, self.bytes.get(start..).unwrap_or_default())
        };
        insn.addr = self.addr;
        self.addr = insn.end();
        Some(insn)
    }
}

impl Sweep<'_> {
    /// The instruction at offset `at`, which has the address `addr`.
    fn at(&mut self, at: usize, addr: u64) -> Option<Insn> {
        self.decoder.set_position(at).ok()?;
        self.decoder.set_ip(addr);
        self.addr = addr;
        self.next()
    }

    /// The last instruction, decoded in full.
    pub(crate) const fn raw(&self) -> &Instruction {
        &self.scratch
    }

    /// An invalid instruction is one byte long, however much the decoder consumed.
    fn resume_behind(&mut self, start: usize) -> Insn {
        if self.decoder.set_position(start + 1).is_ok() {
            self.decoder.set_ip(self.addr.wrapping_add(1));
        }
        Insn { way: Way::Invalid, len: 1, ..Insn::default() }
    }
}

fn condense(decoder: &Decoder<'_>, raw: &Instruction, bytes: &[u8]) -> Insn {
    let code = raw.code();
    let (flow, class) = flow_of(raw, code);
    let mut insn = Insn { class, len: raw.len() as u8, ..Insn::default() };
    insn.set_flow(flow);
    if flow.target().is_some() {
        insn.rel_size = rel_size(code);
    }
    memory_of(decoder, raw, &mut insn);
    // For any operand: AMD's processors use 16 bits of the target, Intel's all.
    if matches!(flow, Flow::Jump(_) | Flow::Call(_) | Flow::Branch(_)) && has_data_size(bytes) {
        insn.class = Class::DataSize;
    }
    insn
}

fn flow_of(raw: &Instruction, code: Code) -> (Flow, Class) {
    match raw.flow_control() {
        FlowControl::Next if code == Code::Hlt => (Flow::Trap, Class::Plain),
        FlowControl::Next => (Flow::Next, plain_class(code)),
        FlowControl::UnconditionalBranch => match direct(raw) {
            Some(target) => (Flow::Jump(Some(target)), Class::Plain),
            None => (Flow::Jump(None), Class::Far),
        },
        FlowControl::ConditionalBranch => {
            let class = if raw.is_jcc_short_or_near() { Class::Jcc } else { Class::Loop };
            (Flow::Branch(raw.near_branch_target()), class)
        }
        FlowControl::Call => match direct(raw) {
            Some(target) => (Flow::Call(Some(target)), Class::Plain),
            None if raw.is_call_far() => (Flow::Call(None), Class::Far),
            None => (Flow::Syscall, Class::Plain),
        },
        FlowControl::IndirectBranch => (Flow::Jump(None), far_if(raw.is_jmp_far_indirect())),
        FlowControl::IndirectCall => (Flow::Call(None), far_if(raw.is_call_far_indirect())),
        FlowControl::Return => (Flow::Ret, far_if(!matches!(code, Code::Retnq | Code::Retnq_imm16))),
        FlowControl::Interrupt if code == Code::Int3 => (Flow::Trap, Class::Int3),
        FlowControl::Interrupt if code == Code::Int_imm8 => (Flow::Syscall, Class::Plain),
        FlowControl::XbeginXabortXend if direct(raw).is_some() => {
            (Flow::Branch(raw.near_branch_target()), Class::Xbegin)
        }
        FlowControl::XbeginXabortXend => (Flow::Next, Class::Plain),
        FlowControl::Interrupt | FlowControl::Exception => (Flow::Trap, Class::Plain),
    }
}

const fn far_if(far: bool) -> Class {
    if far { Class::Far } else { Class::Plain }
}

fn direct(raw: &Instruction) -> Option<u64> {
    matches!(raw.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
        .then(|| raw.near_branch_target())
}

const fn rel_size(code: Code) -> u8 {
    match code {
        Code::Jmp_rel8_64 => 1,
        Code::Xbegin_rel16 => 2,
        _ if code.is_jcc_short() || code.is_loop() || code.is_loopcc() || code.is_jcx_short() => 1,
        _ => 4,
    }
}

/// Whether the prefixes at the start of `bytes` contain 66 and do not end in a REX with W, which would
/// override it.
pub(crate) fn has_data_size(bytes: &[u8]) -> bool {
    let prefixes = legacy_prefixes(bytes);
    let (legacy, rest) = bytes.split_at(prefixes);
    legacy.contains(&0x66) && rest.first().is_none_or(|b| b & 0xF8 != 0x48)
}

/// Number of legacy prefix bytes at the start of `bytes`.
pub(crate) fn legacy_prefixes(bytes: &[u8]) -> usize {
    let is_prefix =
        |b: &u8| matches!(b, 0x26 | 0x2E | 0x36 | 0x3E | 0x64 | 0x65 | 0x66 | 0x67 | 0xF0 | 0xF2 | 0xF3);
    bytes.iter().take_while(|b| is_prefix(b)).count()
}

const fn plain_class(code: Code) -> Class {
    match code {
        Code::Endbr64 => Class::Endbr64,
        Code::Nopw | Code::Nopd | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64 => Class::Nop,
        Code::Push_r64 | Code::Push_r16 | Code::Push_rm64 | Code::Pushq_imm32 | Code::Pushq_imm8 => {
            Class::Push
        }
        Code::Pop_r64 | Code::Pop_r16 | Code::Pop_rm64 => Class::Pop,
        _ => Class::Plain,
    }
}

fn memory_of(decoder: &Decoder<'_>, raw: &Instruction, insn: &mut Insn) {
    for operand in 0..raw.op_count() {
        match raw.op_kind(operand) {
            OpKind::Memory => explicit_memory(decoder, raw, insn),
            OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI => {
                string_operand(insn, Gpr::Rsi)
            }
            OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI => string_operand(insn, Gpr::Rdi),
            _ => {}
        }
    }
}

fn string_operand(insn: &mut Insn, register: Gpr) {
    insn.mem.kind = MemKind::Register;
    if insn.mem.base.is_none() {
        insn.mem.base = Some(register);
    } else {
        insn.mem.index = Some(register);
    }
}

fn explicit_memory(decoder: &Decoder<'_>, raw: &Instruction, insn: &mut Insn) {
    let base = raw.memory_base();
    if base == Register::RIP {
        insn.named = raw.memory_displacement64();
        insn.disp_at = decoder.get_constant_offsets(raw).displacement_offset() as u8;
    } else if base == Register::EIP {
        insn.class = Class::EipRelative;
    }
    if matches!(raw.code(), Code::Lea_r16_m | Code::Lea_r32_m | Code::Lea_r64_m) || insn.class == Class::Nop {
        return;
    }
    let index = raw.memory_index();
    insn.mem = MemUse { kind: MemKind::Register, base: Gpr::of(base), index: Gpr::of(index) };
    if index == Register::None {
        insn.mem.kind = match base {
            Register::RIP | Register::EIP => MemKind::Ip,
            Register::RSP | Register::ESP => MemKind::Stack,
            Register::None => MemKind::Absolute,
            _ => MemKind::Register,
        };
    }
}
