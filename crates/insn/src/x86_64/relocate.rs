//! Displaced instructions: the same effect at a new address.
//!
//! In: a window's instructions and bytes, and the address of the copy. Out: the copy, and where in it each
//! instruction is. Invariants: INSN-1, INSN-2, INSN-3.
//! Does not: choose windows, append the jump back, or see what only its caller can, such as branches from
//! elsewhere into the window.
//!
//! Most instructions are copied. Those that depend on their address are rewritten:
//!
//! | in the window | in the copy |
//! |---|---|
//! | rip-relative operand | the same with another disp32 |
//! | `jmp`, `jcc` | the 32-bit form |
//! | `loop`, `jrcxz` | itself over a `jmp +5`, to a `jmp rel32` |
//! | `call f` | push of the original return address, `jmp f`: no address of the copy is ever on the stack |
//! | `call *x` | the same push, `jmp *x` (x moved by 8 when it is addressed by `rsp`) |

use super::decode::{Class, Flow, Insn, legacy_prefixes, sweep};

/// Instructions at their new address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Relocated {
    /// The code.
    pub bytes: Vec<u8>,
    /// For each instruction: its offset in the window, and the offset of its copy in `bytes`.
    pub offsets: Vec<(u8, u32)>,
    /// Whether control can run off the end of `bytes`; the caller then appends a jump to `next`.
    pub falls_through: bool,
    /// Address of the instruction behind the window.
    pub next: u64,
}

/// What the target requires of displaced code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// A shadow stack is on: a call cannot be emulated by a push.
    pub shadow_stack: bool,
}

/// Why an instruction must stay where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Immovable {
    /// Bytes that are no known instruction.
    #[error("no instruction that is known")]
    Invalid,
    /// An operand relative to `eip`.
    #[error("an operand relative to eip")]
    EipRelative,
    /// `xbegin`.
    #[error("a transaction's abort address depends on its place")]
    Xbegin,
    /// Far jump, call or return.
    #[error("a far branch")]
    Far,
    /// `int3`, `ud2` and similar: handlers look up their address.
    #[error("traps, and its address is what shows why")]
    Trap,
    /// A near branch with an operand-size prefix: processors disagree on its length and its target.
    #[error("processors disagree on the length and target of this branch")]
    OperandSize,
    /// An indirect call by `rsp`, or through the word that the call itself writes.
    #[error("the target of this call depends on the push that it makes")]
    CallByStack,
    /// A call under a shadow stack.
    #[error("a call, and the shadow stack is on")]
    ShadowStack,
    /// A call, system call or interrupt that is not the last instruction of the window.
    #[error("returns into the window")]
    NotLast,
    /// The address that it refers to would be more than 2 GiB away.
    #[error("{target:#x} is out of reach from the new place")]
    OutOfReach {
        /// The address.
        target: u64,
    },
}

/// A window that cannot be displaced.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RelocateError {
    /// One instruction must stay.
    #[error("instruction {bytes:02x?} at {addr:#x} cannot be moved: {why}")]
    Immovable {
        /// Its address.
        addr: u64,
        /// Its bytes.
        bytes: Vec<u8>,
        /// The reason.
        why: Immovable,
    },
    /// A branch inside the window to a place in it where no instruction starts.
    #[error("branch at {addr:#x} leads to {target:#x}, inside another instruction of the window")]
    IntoInstruction {
        /// The branch.
        addr: u64,
        /// Where it leads.
        target: u64,
    },
    /// Instructions and bytes given do not belong together, or are more than 255 bytes.
    #[error("{insns} instructions do not match {bytes} bytes")]
    Mismatch {
        /// Number of instructions.
        insns: usize,
        /// Number of bytes.
        bytes: usize,
    },
}

/// Whether an instruction may be displaced at all: as the last of its window, without a shadow stack, to an
/// address in reach. This is necessary, not sufficient: [`relocate_with`] also sees the bytes and the
/// address.
///
/// # Errors
/// The reason why not.
pub const fn may_displace(insn: &Insn) -> Result<(), Immovable> {
    match (insn.flow(), insn.class) {
        (Flow::Invalid, _) => Err(Immovable::Invalid),
        (Flow::Trap, _) => Err(Immovable::Trap),
        (_, Class::Xbegin) => Err(Immovable::Xbegin),
        (_, Class::Far) => Err(Immovable::Far),
        (_, Class::DataSize) => Err(Immovable::OperandSize),
        (_, Class::EipRelative) => Err(Immovable::EipRelative),
        _ => Ok(()),
    }
}

/// [`relocate_with`] with the default options.
///
/// # Errors
/// As [`relocate_with`].
pub fn relocate(insns: &[Insn], bytes: &[u8], to: u64) -> Result<Relocated, RelocateError> {
    relocate_with(insns, bytes, to, Options::default())
}

/// The window `insns` (`bytes` are its bytes), rewritten to work at `to`. A branch to the window's own first
/// instruction still goes to the old address, where the patch is: a loop to the site is a hit each time.
/// Branches to its other instructions go to their copies.
///
/// # Errors
/// What cannot be moved, with address and bytes.
pub fn relocate_with(
    insns: &[Insn],
    bytes: &[u8],
    to: u64,
    options: Options,
) -> Result<Relocated, RelocateError> {
    let mut moved = Relocated::default();
    relocate_into(&mut moved, insns, bytes, to, options)?;
    Ok(moved)
}

/// The same, with the result in `moved`. Its memory is reused.
///
/// # Errors
/// As [`relocate_with`]; `moved` is empty then.
pub fn relocate_into(
    moved: &mut Relocated,
    insns: &[Insn],
    bytes: &[u8],
    to: u64,
    options: Options,
) -> Result<(), RelocateError> {
    let Relocated { bytes: mut out, mut offsets, .. } = core::mem::take(moved);
    out.clear();
    offsets.clear();
    let (Some(first), Some(last)) = (insns.first(), insns.last()) else {
        return Err(RelocateError::Mismatch { insns: 0, bytes: bytes.len() });
    };
    out.reserve(bytes.len() + 24);
    offsets.reserve(insns.len());
    let mut copy = Copy { start: first.addr, end: last.end(), to, out, offsets, pending: Vec::new() };
    let mismatch = || RelocateError::Mismatch { insns: insns.len(), bytes: bytes.len() };
    let mut at = 0;
    for insn in insns {
        let offset = u8::try_from(at).map_err(|_| mismatch())?;
        let own = bytes.get(at..at + usize::from(insn.len)).ok_or_else(mismatch)?;
        if insn.addr != first.addr.wrapping_add(at as u64) {
            return Err(mismatch());
        }
        copy.offsets.push((offset, copy.out.len() as u32));
        check(insn, insn.end() == copy.end, options)
            .and_then(|()| copy.emit(insn, own))
            .map_err(|why| RelocateError::Immovable { addr: insn.addr, bytes: own.to_vec(), why })?;
        at += own.len();
    }
    if at != bytes.len() {
        return Err(mismatch());
    }
    copy.join()?;
    let falls_through = last.flow().falls_through() && !matches!(last.flow(), Flow::Call(_));
    *moved = Relocated { bytes: copy.out, offsets: copy.offsets, falls_through, next: last.end() };
    Ok(())
}

/// Decodes any bytes at `from` and relocates them to `to`: the entry point for fuzzing.
///
/// # Errors
/// As [`relocate_with`].
pub fn relocate_bytes(
    bytes: &[u8],
    from: u64,
    to: u64,
    options: Options,
) -> Result<Relocated, RelocateError> {
    let insns: Vec<Insn> = sweep(bytes, from).collect();
    relocate_with(&insns, bytes, to, options)
}

/// Rules that need to know the instruction's place in the window.
fn check(insn: &Insn, is_last: bool, options: Options) -> Result<(), Immovable> {
    may_displace(insn)?;
    match insn.flow() {
        Flow::Call(_) | Flow::Syscall if !is_last => Err(Immovable::NotLast),
        Flow::Call(_) if options.shadow_stack => Err(Immovable::ShadowStack),
        _ => Ok(()),
    }
}

/// A copy under construction.
struct Copy {
    start: u64,
    end: u64,
    to: u64,
    out: Vec<u8>,
    offsets: Vec<(u8, u32)>,
    /// Branches inside the window: offset of the rel32 in `out`, the branch's address, its target.
    pending: Vec<(usize, u64, u64)>,
}

impl Copy {
    fn emit(&mut self, insn: &Insn, bytes: &[u8]) -> Result<(), Immovable> {
        match (insn.flow(), insn.class) {
            (Flow::Jump(Some(target)), _) => self.jump(insn, target),
            (Flow::Branch(target), Class::Loop) => {
                let displacement = bytes.len() - 1;
                self.out.extend_from_slice(&bytes[..displacement]);
                self.out.extend_from_slice(&[2, 0xEB, 5]);
                self.jump(insn, target)
            }
            (Flow::Branch(target), _) => {
                // 70+cc rel8, or 0F 80+cc rel32: the condition is the low half of the opcode's last byte.
                let opcode = bytes.len() - usize::from(insn.rel_size) - 1;
                self.out.extend_from_slice(&[0x0F, 0x80 | bytes[opcode] & 0xF]);
                self.rel32(insn, target)
            }
            (Flow::Call(Some(target)), _) => {
                self.push(insn.end());
                self.jump(insn, target)
            }
            (Flow::Call(None), _) => {
                let jump = indirect_jump(bytes)?;
                self.push(insn.end());
                self.copied(insn, &jump)
            }
            _ => self.copied(insn, bytes),
        }
    }

    /// The bytes as they are, with the rip-relative displacement corrected.
    fn copied(&mut self, insn: &Insn, bytes: &[u8]) -> Result<(), Immovable> {
        let begin = self.out.len();
        self.out.extend_from_slice(bytes);
        if let Some(target) = insn.ip_rel() {
            let end = self.to.wrapping_add(self.out.len() as u64);
            let displacement = distance(end, target)?;
            let at = begin + usize::from(insn.disp_at);
            self.out[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        Ok(())
    }

    fn jump(&mut self, insn: &Insn, target: u64) -> Result<(), Immovable> {
        self.out.push(0xE9);
        self.rel32(insn, target)
    }

    fn rel32(&mut self, insn: &Insn, target: u64) -> Result<(), Immovable> {
        let at = self.out.len();
        let inside = target.wrapping_sub(self.start);
        let displacement = if inside != 0 && inside < self.end.wrapping_sub(self.start) {
            self.pending.push((at, insn.addr, target));
            0
        } else {
            distance(self.to.wrapping_add(at as u64 + 4), target)?
        };
        self.out.extend_from_slice(&displacement.to_le_bytes());
        Ok(())
    }

    /// Pushes `value` as the call would, without changing flags or other registers. rsp moves first, so that
    /// a signal in between does not overwrite the halves written so far.
    fn push(&mut self, value: u64) {
        let low = value as u32;
        if value.cast_signed() == i64::from(low.cast_signed()) {
            self.out.push(0x68); // push imm32, sign-extended
            self.out.extend_from_slice(&low.to_le_bytes());
            return;
        }
        self.out.extend_from_slice(&[0x48, 0x8D, 0x64, 0x24, 0xF8]); // lea rsp, [rsp-8]
        self.out.extend_from_slice(&[0xC7, 0x04, 0x24]); // mov dword [rsp], low
        self.out.extend_from_slice(&low.to_le_bytes());
        self.out.extend_from_slice(&[0xC7, 0x44, 0x24, 0x04]); // mov dword [rsp+4], high
        self.out.extend_from_slice(&((value >> 32) as u32).to_le_bytes());
    }

    /// Fills in the branches inside the window, since every copy's address is known now.
    fn join(&mut self) -> Result<(), RelocateError> {
        for &(at, addr, target) in &self.pending {
            let offset = target.wrapping_sub(self.start);
            let copy = self.offsets.iter().find(|(old, _)| u64::from(*old) == offset);
            let &(_, copy) = copy.ok_or(RelocateError::IntoInstruction { addr, target })?;
            let displacement = (i64::from(copy) - (at as i64 + 4)) as i32;
            self.out[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        Ok(())
    }
}

fn distance(from: u64, target: u64) -> Result<i32, Immovable> {
    i32::try_from(target.wrapping_sub(from).cast_signed()).map_err(|_| Immovable::OutOfReach { target })
}

/// `call *x` as the `jmp *x` that follows the push: /2 becomes /4, and the displacement of an operand on the
/// stack grows by 8.
fn indirect_jump(call: &[u8]) -> Result<Vec<u8>, Immovable> {
    let mut at = legacy_prefixes(call);
    let rex = call.get(at).copied().filter(|b| b & 0xF0 == 0x40);
    at += usize::from(rex.is_some());
    let (Some(0xFF), Some(&modrm)) = (call.get(at), call.get(at + 1)) else {
        return Err(Immovable::Invalid);
    };
    let mut jump = call.to_vec();
    jump[at + 1] = modrm & !0x38 | 4 << 3;
    let names_rsp = modrm & 7 == 4 && rex.unwrap_or(0) & 1 == 0;
    match modrm >> 6 {
        3 if names_rsp => Err(Immovable::CallByStack),
        3 => Ok(jump),
        _ if modrm & 7 == 4 => match call.get(at + 2) {
            Some(sib) if names_rsp && sib & 7 == 4 => stack_operand(jump, at + 1, rex),
            _ => Ok(jump),
        },
        _ => Ok(jump),
    }
}

/// Adds 8 to the displacement of an operand based on rsp; `modrm` is the offset of its ModRM.
fn stack_operand(mut jump: Vec<u8>, modrm: usize, rex: Option<u8>) -> Result<Vec<u8>, Immovable> {
    let (sib, rest) = (jump[modrm + 1], &jump[modrm + 2..]);
    let old = match (jump[modrm] >> 6, rest) {
        (0, []) => 0,
        (1, &[d]) => i32::from(d.cast_signed()),
        (2, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]),
        _ => return Err(Immovable::Invalid),
    };
    let indexed = sib >> 3 & 7 != 4 || rex.unwrap_or(0) & 2 != 0;
    let new = old.checked_add(8).ok_or(Immovable::CallByStack)?;
    if indexed || old < 0 {
        return Err(Immovable::CallByStack);
    }
    jump.truncate(modrm + 2);
    jump[modrm] = jump[modrm] & 0x3F | 2 << 6;
    jump.extend_from_slice(&new.to_le_bytes());
    Ok(jump)
}
