//! What can be done with an instruction that a trap displaced.
//!
//! In: bytes. Out: a [`Verdict`]. It is computed once, when a probe is registered. Invariants: INSN-1;
//! INSN-2; an instruction on which vendors disagree is never simulated.
//! Does not: run anything.

use super::op::{
    Action, Address, Alu, Base, Condition, Destination, LoopTest, Op, RegisterPart, Size, Target, Value,
    Verdict,
};
use crate::x86_64::decode::{Class, Flow, decode_one, decoder, has_data_size};
use crate::x86_64::gpr::Gpr;
use crate::x86_64::relocate::{Immovable, Options, may_displace};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// What can be done with the instruction at the start of `bytes`.
#[must_use]
pub fn verdict(bytes: &[u8], options: Options) -> Verdict {
    let Some(insn) = decode_one(bytes, 0) else { return Verdict::Refuse(Immovable::Invalid) };
    if insn.class == Class::DataSize {
        return Verdict::Refuse(Immovable::OperandSize);
    }
    let raw = decoder(bytes, 0).decode();
    // Some processors take `ret` with a data size as one of 16 bits.
    let unknown = raw.is_invalid() || insn.flow() == Flow::Ret && has_data_size(bytes);
    let action = if unknown { None } else { action(&raw).filter(|action| !is_below_red_zone(action)) };
    match (action, may_displace(&insn)) {
        (Some(Action::Call(_)), _) if options.shadow_stack => Verdict::Refuse(Immovable::ShadowStack),
        (Some(Action::Return(_)), _) if options.shadow_stack => Verdict::OutOfLine,
        (Some(action), _) => Verdict::Simulate(Op { action, len: insn.len }),
        (None, Ok(())) => Verdict::OutOfLine,
        (None, Err(why)) => Verdict::Refuse(why),
    }
}

/// Whether it is a store below the red zone. The frame of the signal in which it would be simulated is there.
const fn is_below_red_zone(action: &Action) -> bool {
    match action {
        Action::Move { to: Destination::Memory { at, .. }, .. } => {
            matches!(at.base, Base::Register(Gpr::Rsp)) && at.offset < -128
        }
        _ => false,
    }
}

/// The action; `None` if the instruction is not simulated.
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

/// Whether it is 0F 1F. No processor cares about the register field of its ModRM.
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
    (what.only_flags() || matches!(to, Destination::Register(_))).then_some(Action::Alu { what, to, from })
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

fn place(raw: &Instruction, operand: u32) -> Option<Destination> {
    match raw.op_kind(operand) {
        OpKind::Register => part(raw.op_register(operand)).map(Destination::Register),
        OpKind::Memory => {
            Some(Destination::Memory { at: address(raw)?, size: Size::of_bytes(raw.memory_size().size())? })
        }
        _ => None,
    }
}

/// `None` if it is not a general register.
fn part(register: Register) -> Option<RegisterPart> {
    let high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    Some(RegisterPart { of: Gpr::of(register)?, size: Size::of_bytes(register.size())?, high })
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
        // A displacement without registers is cut by the decoder already.
        narrow: !displacement_alone && (is_narrow(base) || is_narrow(index)),
    })
}
