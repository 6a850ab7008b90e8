//! Random states with which an instruction stays inside the machine.

use crate::machine::{AREA, FLAGS, Machine, Rng};
use iced_x86::{Decoder, DecoderOptions, OpKind, Register};
use trapline_insn::x86_64::simulate::{Action, Address, Base, Destination, Op, Target, Value};
use trapline_insn::x86_64::{Gpr, Regs};

/// Sets the parts of an encoding that decide whether it stays inside the machine: displacements of branches,
/// absolute and rip-relative addresses, and addresses with rsp as base. `false` if it cannot run at all.
pub(crate) fn aim(bytes: &mut [u8], machine: &Machine, rng: &mut Rng) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, machine.code(), DecoderOptions::NONE);
    let raw = decoder.decode();
    if raw.is_invalid() || raw.len() != bytes.len() {
        return false;
    }
    let constants = decoder.get_constant_offsets(&raw);
    let end = machine.code() + bytes.len() as u64;
    if raw.op0_kind() == OpKind::NearBranch64 {
        let near = constants.immediate_size() == 1;
        let to = machine.pads()[rng.below(if near { 2 } else { 4 }) as usize];
        put(bytes, constants.immediate_offset(), constants.immediate_size(), to.wrapping_sub(end));
        return true;
    }
    // The return address that it pushes would overwrite the code.
    if raw.is_call_near_indirect() && raw.op0_register() == Register::RSP {
        return false;
    }
    let Some(expected) = constants.has_displacement().then(|| wanted(machine, rng)) else { return true };
    let (base, index) = (raw.memory_base(), raw.memory_index());
    let displacement = match base {
        Register::RIP | Register::EIP => expected.wrapping_sub(end),
        Register::RSP | Register::ESP => rng.below(64).wrapping_sub(32),
        Register::None if index == Register::None => expected,
        _ => return true,
    };
    put(bytes, constants.displacement_offset(), constants.displacement_size(), displacement);
    true
}

fn put(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// An address in the middle of the area.
fn wanted(machine: &Machine, rng: &mut Rng) -> u64 {
    machine.area() + 32 + rng.below(AREA as u64 - 96)
}

fn interesting(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.below(4),
        1 => rng.below(4).wrapping_neg(),
        2 => rng.pick(&[0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 1 << 63, !(1 << 63)]),
        _ => rng.next(),
    }
}

/// Random registers with which the instruction stays inside the machine.
pub(crate) fn state(machine: &Machine, op: &Op, memory: &mut [u8; AREA], rng: &mut Rng) -> Regs {
    let mut regs = Regs { rip: machine.code(), rflags: rng.next() & FLAGS, ..Regs::default() };
    regs.gpr.iter_mut().for_each(|gpr| *gpr = interesting(rng));
    if uses_stack(op) || address_of(op).is_some_and(|at| at.base == Base::Register(Gpr::Rsp)) {
        regs.set(Gpr::Rsp, machine.area() + 64 + rng.below(AREA as u64 - 144));
    }
    if op.action == Action::Leave {
        regs.set(Gpr::Rbp, wanted(machine, rng));
    }
    let mut at = regs.sp();
    if let Some(address) = address_of(op) {
        at = reach(machine, &mut regs, address, rng);
    }
    let pad = rng.pick(&machine.pads());
    let code = at.wrapping_sub(machine.area()) as usize;
    match op.action {
        Action::Jump(Target::Through(Destination::Register(part)))
        | Action::Call(Target::Through(Destination::Register(part))) => regs.set(part.of, pad),
        Action::Jump(Target::Through(_)) | Action::Call(Target::Through(_)) | Action::Return(_) => {
            memory[code..code + 8].copy_from_slice(&pad.to_le_bytes());
        }
        _ => {}
    }
    regs
}

fn uses_stack(op: &Op) -> bool {
    matches!(op.action, Action::Push(_) | Action::Pop(_) | Action::Call(_) | Action::Return(_))
}

/// Address of the operand in memory that is accessed.
fn address_of(op: &Op) -> Option<Address> {
    let place = match op.action {
        Action::Move { to: Destination::Memory { at, .. }, .. } => return Some(at),
        Action::Alu { to: Destination::Memory { at, .. }, .. } => return Some(at),
        Action::Move { from: Value::At(place), .. }
        | Action::Alu { from: Value::At(place), .. }
        | Action::Push(Value::At(place))
        | Action::Pop(place)
        | Action::Jump(Target::Through(place))
        | Action::Call(Target::Through(place)) => place,
        _ => return None,
    };
    if let Destination::Memory { at, .. } = place { Some(at) } else { None }
}

/// Chooses the registers so that the operand is inside the area; returns its address.
fn reach(machine: &Machine, regs: &mut Regs, of: Address, rng: &mut Rng) -> u64 {
    let expected = wanted(machine, rng);
    let noise = if of.narrow { rng.next() << 32 } else { 0 };
    let scale = 1u64 << of.shift;
    match (of.base, of.index) {
        (Base::Zero, None) => return of.offset.cast_unsigned(),
        (Base::Here, _) => return regs.rip.wrapping_add_signed(of.offset) & mask(of),
        (Base::Register(Gpr::Rsp), index) => {
            let index = index.inspect(|&index| regs.set(index, rng.below(4)));
            let sum = regs.sp().wrapping_add(index.map_or(0, |index| regs.get(index) * scale));
            return sum.wrapping_add_signed(of.offset) & mask(of);
        }
        (Base::Zero, Some(index)) => {
            let rest = expected.wrapping_sub(of.offset.cast_unsigned()) / scale;
            regs.set(index, rest | if of.shift == 0 { 0 } else { rng.next() << (64 - of.shift) });
        }
        (Base::Register(base), Some(index)) if base == index => {
            let rest = expected.wrapping_sub(of.offset.cast_unsigned());
            let factor = scale + 1;
            regs.set(base, if factor == 2 { rest / 2 } else { rest.wrapping_mul(inverse(factor)) });
        }
        (Base::Register(base), index) => {
            let index = index.map_or(0, |index| regs.get(index).wrapping_mul(scale));
            regs.set(base, expected.wrapping_sub(of.offset.cast_unsigned()).wrapping_sub(index) ^ noise);
        }
    }
    effective(regs, of)
}

fn effective(regs: &Regs, of: Address) -> u64 {
    let base = match of.base {
        Base::Register(base) => regs.get(base),
        _ => 0,
    };
    let index = of.index.map_or(0, |index| regs.get(index) << of.shift);
    base.wrapping_add(index).wrapping_add_signed(of.offset) & mask(of)
}

const fn mask(of: Address) -> u64 {
    if of.narrow { 0xFFFF_FFFF } else { u64::MAX }
}

/// Inverse of an odd number, modulo 2^64.
fn inverse(of: u64) -> u64 {
    (0..6).fold(of, |x, _| x.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(x))))
}
