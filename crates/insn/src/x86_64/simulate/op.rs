//! Decoded instructions, small enough to copy at every hit, and what can be done with one that a trap displaced.
//!
//! In: bytes. Out: a [`Verdict`]. Decoded once, when a probe is registered; everything is relative to the instruction's own
//! address, so that one [`Op`] serves every mapping of its file. Does not: run anything ([`super::simulate`] does).

use crate::x86_64::decode::{Class, Flow, decode_one, decoder, has_data_size};
use crate::x86_64::gpr::Gpr;
use crate::x86_64::relocate::{Immovable, Options, may_displace};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// Width of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Size {
    /// 8 bits.
    Byte = 1,
    /// 16 bits.
    Word = 2,
    /// 32 bits. A register's upper half becomes zero when this much of it is written.
    Long = 4,
    /// 64 bits.
    Quad = 8,
}

impl Size {
    /// All its bits.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Byte => 0xFF,
            Self::Word => 0xFFFF,
            Self::Long => 0xFFFF_FFFF,
            Self::Quad => u64::MAX,
        }
    }
    /// Its highest bit.
    #[must_use]
    pub const fn sign(self) -> u64 {
        self.mask() ^ self.mask() >> 1
    }
    const fn of_bytes(bytes: usize) -> Option<Self> {
        Some(match bytes {
            1 => Self::Byte,
            2 => Self::Word,
            4 => Self::Long,
            8 => Self::Quad,
            _ => return None,
        })
    }
}

/// A register, or part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The whole register.
    pub of: Gpr,
    /// How much of it, from bit 0 on.
    pub size: Size,
    /// Bits 8 to 15 instead: `ah`, `ch`, `dh`, `bh`.
    pub high: bool,
}

/// What an address starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Nothing.
    Zero,
    /// The address of the instruction itself (not of the one behind it, as in the encoding).
    Here,
    /// A register.
    Register(Gpr),
}

/// How an operand in memory is addressed. No segment base: those that have one are not simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Added to the sum.
    pub offset: i64,
    /// The first summand.
    pub base: Base,
    /// Shifted left by `shift` and added.
    pub index: Option<Gpr>,
    /// 0 to 3.
    pub shift: u8,
    /// The sum is cut to 32 bits (address-size prefix).
    pub narrow: bool,
}

/// An operand that can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A register.
    Register(Part),
    /// Memory.
    Memory {
        /// Where.
        at: Address,
        /// How much.
        size: Size,
    },
}

impl Place {
    /// Its width.
    #[must_use]
    pub const fn size(self) -> Size {
        match self {
            Self::Register(Part { size, .. }) | Self::Memory { size, .. } => size,
        }
    }
}

/// An operand that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// What stands there.
    At(Place),
    /// A constant, sign-extended.
    Constant(u64),
}

/// Where a jump or call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// So far from the instruction's own address.
    Offset(i64),
    /// To the address that stands there.
    Through(Place),
}

/// A condition on the flags, by the low four bits of its opcodes (SDM vol. 2, B.1.4.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition(u8);

impl Condition {
    /// The condition with that number; only the low four bits count.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number & 15)
    }
    /// Its number, 0 to 15: o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// When a `loop` or `jrcxz` goes to its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopTest {
    /// `loop`: the count, less one, is not 0.
    Count,
    /// `loope`: and ZF is set.
    CountEqual,
    /// `loopne`: and ZF is clear.
    CountNotEqual,
    /// `jrcxz`: the count is 0. It is not changed.
    Zero,
}

/// An operation of two operands that sets the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alu {
    /// `add`
    Add,
    /// `sub`
    Sub,
    /// `and`
    And,
    /// `or`
    Or,
    /// `xor`
    Xor,
    /// `cmp`: `sub` without its result.
    Cmp,
    /// `test`: `and` without its result.
    Test,
}

impl Alu {
    /// Whether it sets flags alone.
    #[must_use]
    pub const fn only_flags(self) -> bool {
        matches!(self, Self::Cmp | Self::Test)
    }
}

/// What an instruction does, besides going on to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing: `nop` of any length, `endbr64`.
    Nop,
    /// `mov`, `movzx`, `movsx`, `movsxd`.
    Move {
        /// Destination.
        to: Place,
        /// Source, which may be narrower.
        from: Value,
        /// The source is sign-extended, not zero-extended.
        signed: bool,
    },
    /// `lea`
    Lea {
        /// Destination.
        to: Part,
        /// The address.
        from: Address,
    },
    /// `push`, 64 bits.
    Push(Value),
    /// `pop`, 64 bits. Its address, if based on rsp, is computed behind the increment.
    Pop(Place),
    /// `leave`
    Leave,
    /// Arithmetic. Memory is only ever read: the processor's read and write of one operand are one step to a signal handler.
    Alu {
        /// Which.
        what: Alu,
        /// First operand, and destination.
        to: Place,
        /// Second operand.
        from: Value,
    },
    /// `jmp`
    Jump(Target),
    /// `jcc`
    Branch {
        /// When.
        when: Condition,
        /// From the instruction's own address.
        offset: i64,
    },
    /// `loop`, `loope`, `loopne`, `jrcxz`
    Loop {
        /// When.
        when: LoopTest,
        /// The count is in ecx (address-size prefix).
        narrow: bool,
        /// From the instruction's own address.
        offset: i64,
    },
    /// `call`
    Call(Target),
    /// `ret`, which adds so many bytes more to rsp.
    Return(u16),
}

/// One instruction that can be simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What it does.
    pub action: Action,
    /// Its bytes.
    pub len: u8,
}

/// What a trap's handler does about the instruction that the trap stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// By hand.
    Simulate(Op),
    /// In a copy that jumps back.
    OutOfLine,
    /// It must stay where it is.
    Refuse(Immovable),
}

/// What can be done about the instruction at the start of `bytes`.
#[must_use]
pub fn verdict(bytes: &[u8], options: Options) -> Verdict {
    let Some(insn) = decode_one(bytes, 0) else { return Verdict::Refuse(Immovable::Invalid) };
    if insn.class == Class::DataSize {
        return Verdict::Refuse(Immovable::OperandSize);
    }
    let raw = decoder(bytes, 0).decode();
    // `ret` with a data size is one of 16 bits to some processors.
    let known = !raw.is_invalid() && !(insn.flow == Flow::Ret && has_data_size(bytes));
    let action = if known { action(&raw) } else { None };
    match (action, may_displace(&insn)) {
        (Some(Action::Call(_)), _) if options.shadow_stack => Verdict::Refuse(Immovable::ShadowStack),
        (Some(Action::Return(_)), _) if options.shadow_stack => Verdict::OutOfLine,
        (Some(action), _) => Verdict::Simulate(Op { action, len: insn.len }),
        (None, Ok(())) => Verdict::OutOfLine,
        (None, Err(why)) => Verdict::Refuse(why),
    }
}

/// `None` when it is none of those that are simulated.
fn action(raw: &Instruction) -> Option<Action> {
    if raw.has_lock_prefix() {
        return None;
    }
    Some(match raw.mnemonic() {
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Endbr32 => Action::Nop,
        Mnemonic::Reservednop if is_0f_1f(raw.code()) => Action::Nop,
        Mnemonic::Mov | Mnemonic::Movzx => {
            Action::Move { to: place(raw, 0)?, from: value(raw, 1)?, signed: false }
        }
        // With 16 bits, vendors disagree on how much it reads.
        Mnemonic::Movsx | Mnemonic::Movsxd if raw.code() != Code::Movsxd_r16_rm16 => {
            Action::Move { to: place(raw, 0)?, from: value(raw, 1)?, signed: true }
        }
        Mnemonic::Lea => Action::Lea { to: part(raw.op_register(0))?, from: address(raw)? },
        Mnemonic::Push if raw.stack_pointer_increment() == -8 => Action::Push(value(raw, 0)?),
        Mnemonic::Pop if raw.stack_pointer_increment() == 8 => Action::Pop(place(raw, 0)?),
        Mnemonic::Leave if raw.code() == Code::Leaveq => Action::Leave,
        Mnemonic::Add => alu(raw, Alu::Add)?,
        Mnemonic::Sub => alu(raw, Alu::Sub)?,
        Mnemonic::And => alu(raw, Alu::And)?,
        Mnemonic::Or => alu(raw, Alu::Or)?,
        Mnemonic::Xor => alu(raw, Alu::Xor)?,
        Mnemonic::Cmp => alu(raw, Alu::Cmp)?,
        Mnemonic::Test => alu(raw, Alu::Test)?,
        Mnemonic::Jmp => Action::Jump(target(raw)?),
        Mnemonic::Call => Action::Call(target(raw)?),
        Mnemonic::Ret if raw.code() == Code::Retnq => Action::Return(0),
        Mnemonic::Ret if raw.code() == Code::Retnq_imm16 => Action::Return(raw.immediate16()),
        mnemonic => branch(raw, mnemonic)?,
    })
}

/// What ModRM's middle holds makes no difference to any processor.
const fn is_0f_1f(code: Code) -> bool {
    matches!(
        code,
        Code::Reservednop_rm16_r16_0F1F | Code::Reservednop_rm32_r32_0F1F | Code::Reservednop_rm64_r64_0F1F
    )
}

fn branch(raw: &Instruction, mnemonic: Mnemonic) -> Option<Action> {
    let offset = raw.near_branch64().cast_signed();
    let narrow = matches!(
        raw.code(),
        Code::Loop_rel8_64_ECX | Code::Loope_rel8_64_ECX | Code::Loopne_rel8_64_ECX | Code::Jecxz_rel8_64
    );
    let when = match mnemonic {
        Mnemonic::Loop => LoopTest::Count,
        Mnemonic::Loope => LoopTest::CountEqual,
        Mnemonic::Loopne => LoopTest::CountNotEqual,
        Mnemonic::Jrcxz | Mnemonic::Jecxz => LoopTest::Zero,
        _ if raw.is_jcc_short_or_near() && raw.condition_code() != ConditionCode::None => {
            let when = Condition::new(raw.condition_code() as u8 - ConditionCode::o as u8);
            return Some(Action::Branch { when, offset });
        }
        _ => return None,
    };
    Some(Action::Loop { when, narrow, offset })
}

fn alu(raw: &Instruction, what: Alu) -> Option<Action> {
    let (to, from) = (place(raw, 0)?, value(raw, 1)?);
    (what.only_flags() || matches!(to, Place::Register(_))).then_some(Action::Alu { what, to, from })
}

fn target(raw: &Instruction) -> Option<Target> {
    match raw.op0_kind() {
        OpKind::NearBranch64 => Some(Target::Offset(raw.near_branch64().cast_signed())),
        OpKind::Register | OpKind::Memory => {
            place(raw, 0).filter(|place| place.size() == Size::Quad).map(Target::Through)
        }
        _ => None,
    }
}

fn value(raw: &Instruction, operand: u32) -> Option<Value> {
    place(raw, operand).map(Value::At).or_else(|| raw.try_immediate(operand).ok().map(Value::Constant))
}

fn place(raw: &Instruction, operand: u32) -> Option<Place> {
    match raw.op_kind(operand) {
        OpKind::Register => part(raw.op_register(operand)).map(Place::Register),
        OpKind::Memory => {
            Some(Place::Memory { at: address(raw)?, size: Size::of_bytes(raw.memory_size().size())? })
        }
        _ => None,
    }
}

/// `None` for what is no general register.
fn part(register: Register) -> Option<Part> {
    let high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    Some(Part { of: Gpr::of(register)?, size: Size::of_bytes(register.size())?, high })
}

/// `None` for an operand with a segment base.
fn address(raw: &Instruction) -> Option<Address> {
    if raw.mnemonic() != Mnemonic::Lea && matches!(raw.memory_segment(), Register::FS | Register::GS) {
        return None;
    }
    let (base, index) = (raw.memory_base(), raw.memory_index());
    let is_narrow = |register: Register| register.is_gpr32() || register == Register::EIP;
    let displacement_alone = base == Register::None && index == Register::None;
    Some(Address {
        offset: raw.memory_displacement64().cast_signed(),
        base: match base {
            Register::None => Base::Zero,
            Register::RIP | Register::EIP => Base::Here,
            register => Base::Register(Gpr::of(register)?),
        },
        index: match index {
            Register::None => None,
            register => Some(Gpr::of(register)?),
        },
        shift: raw.memory_index_scale().trailing_zeros() as u8 & 3,
        // A displacement alone comes cut already.
        narrow: !displacement_alone && (is_narrow(base) || is_narrow(index)),
    })
}
