//! A displaced instruction: the same effect at a new address.
//!
//! In: a word, its address, the address of its copy, and what the target allows. Out: the words of the copy.
//! Invariants: INSN-1, INSN-2, INSN-3. The copy is in a page that is not guarded (no `PROT_BTI`): a `br` from
//! there may land on any pad.
//! Does not: append the branch back to `next`.
//!
//! | at its place | in the copy |
//! |---|---|
//! | `b` | `b`; if the target is out of its reach, through x16, if that is free |
//! | `b.cond`, `cbz`, `tbz` | the opposite, over a `b` as above |
//! | `bl` | the original return address into x30, `b` as above: no address of the copy is left anywhere |
//! | `blr` | the same, `br` |
//! | `adr`, `adrp` | `adr`, `adrp`, `adrp`+`add`, or `movz`+`movk`, the shortest that reaches |
//! | `ldr`, `ldrsw` of a literal | the same if in reach, |
//! | | else the literal's address into the destination and a load from there |
//! | `ldr` of a literal to a vector or xzr, `prfm` | the same if in reach, |
//! | | else through x16, which is pushed and popped if it is not free |
//!
//! x16 and x17 are free where AAPCS64 6.1.1 allows a linker to insert a veneer: at a `bl`, and at the entry
//! of a function that is called through one. Only the caller knows this; see [`Options::ip_free`]. AAPCS64
//! has no red zone, so memory below sp is unused (6.4.5.1), and at most signal handlers see a push there. sp
//! must be a multiple of 16 there, as for every access through it. If a literal's load faults, its
//! destination contains the address; but literals of code are mapped.

use super::decode::decode;
use super::encode::{self, POP_X16, PUSH_X16, adr, adrp, movk, movz, with_imm19};
use super::gpr::Gpr;
use super::verdict::{Away, Literal, Op, Refusal, Test, Through, Vector, Verdict};

/// Number of words of the longest copy: a `bl` out of reach, with a return address of four halves.
pub const LONGEST: usize = 9;

/// A word at its new address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocated {
    words: [u32; LONGEST],
    len: usize,
    /// Whether control can run off the end; the caller then appends a branch to `next`.
    pub falls_through: bool,
    /// Address of the instruction behind the original.
    pub next: u64,
}

impl Relocated {
    /// The code, at most [`LONGEST`] words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        self.words.get(..self.len).unwrap_or_default()
    }
}

/// What the target allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// x16 and x17 hold no value in use at this place.
    pub ip_free: bool,
    /// The page of the original is guarded (`PROT_BTI`). A branch of its copy that needs a register becomes a
    /// `ret`, which may land anywhere.
    pub guarded: bool,
    /// A guarded control stack is on: calls cannot be emulated, and a far branch cannot become a `ret`.
    pub control_stack: bool,
}

/// Why an instruction must stay where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Immovable {
    /// No probe is possible on it at all.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A branch to a target that `b` does not reach from the new address, and no register is free.
    #[error("{target:#x} is out of reach from the new place")]
    OutOfReach {
        /// The target of the branch.
        target: u64,
    },
    /// A call under a guarded control stack.
    #[error("a call, and the guarded control stack is on")]
    ControlStack,
    /// `blr x30`, and no register is free.
    #[error("a call through the link register")]
    CallByLink,
    /// An address that is no multiple of 4.
    #[error("{addr:#x} is not a multiple of 4")]
    Misaligned {
        /// The address.
        addr: u64,
    },
}

/// The instruction `word` of address `from`, rewritten to work at `to`. A branch to itself still goes to the
/// old address, where the patch is: each round is a hit.
///
/// # Errors
/// The reason why it must stay.
pub fn relocate(word: u32, from: u64, to: u64, options: Options) -> Result<Relocated, Immovable> {
    if let Some(&addr) = [from, to].iter().find(|addr| !addr.is_multiple_of(4)) {
        return Err(Immovable::Misaligned { addr });
    }
    let next = from.wrapping_add(4);
    let out = Relocated { words: [encode::NOP; LONGEST], len: 0, falls_through: true, next };
    let mut copy = Copy { word, from, to, options, out };
    match decode(word) {
        Verdict::Refuse(why) => return Err(why.into()),
        Verdict::OutOfLine(Away::Plain) => copy.push(word),
        Verdict::OutOfLine(Away::Authenticated) => {
            copy.push(word);
            copy.out.falls_through = false;
        }
        Verdict::OutOfLine(Away::LoadVector { size, to, offset }) => {
            let load = match size {
                Vector::S => 0xBD40_0000,
                Vector::D => 0xFD40_0000,
                Vector::Q => 0x3DC0_0000,
            };
            copy.load(load | u32::from(to), Gpr::R31, offset);
        }
        Verdict::Simulate(op) => copy.op(op)?,
    }
    Ok(copy.out)
}

/// A copy under construction.
struct Copy {
    word: u32,
    from: u64,
    to: u64,
    options: Options,
    out: Relocated,
}

impl Copy {
    fn op(&mut self, op: Op) -> Result<(), Immovable> {
        match op {
            Op::Nop | Op::Push { .. } | Op::PushFrame { .. } | Op::Add { .. } => self.push(self.word),
            Op::Branch { offset, link } => {
                if link {
                    self.return_address()?;
                }
                self.out.falls_through = false;
                self.jump(self.named(offset.into()), link)?;
            }
            Op::BranchIf { test: Test::Flags(cond), offset } if cond.is_always() => {
                self.out.falls_through = false;
                self.jump(self.named(offset.into()), false)?;
            }
            Op::BranchIf { test, offset } => self.branch_if(test, self.named(offset.into()))?,
            Op::BranchTo { through, to } => self.branch_to(through, to)?,
            Op::Address { to, offset, pages } => {
                let base = if pages { self.from & !0xFFF } else { self.from };
                self.address(to, base.wrapping_add_signed(offset));
            }
            Op::Load { literal, to, offset } => {
                let load = match literal {
                    Literal::Word => 0xB940_0000,
                    Literal::Double => 0xF940_0000,
                    Literal::Signed => 0xB980_0000,
                    Literal::Prefetch => 0xF980_0000,
                };
                let through = if literal == Literal::Prefetch { Gpr::R31 } else { to };
                self.load(load | to.number(), through, offset);
            }
        }
        Ok(())
    }

    fn push(&mut self, word: u32) {
        if let Some(place) = self.out.words.get_mut(self.out.len) {
            *place = word;
            self.out.len += 1;
        }
    }

    /// Address of the next word of the copy.
    const fn here(&self) -> u64 {
        self.to.wrapping_add(4 * self.out.len as u64)
    }

    /// The address at an offset from the original.
    const fn named(&self, offset: i64) -> u64 {
        self.from.wrapping_add_signed(offset)
    }

    /// Branches to `target`. At a call x16 is free.
    fn jump(&mut self, target: u64, call: bool) -> Result<(), Immovable> {
        if let Some(word) = encode::b(self.here(), target) {
            self.push(word);
            return Ok(());
        }
        let landless = self.options.guarded;
        if !(self.options.ip_free || call) || (landless && self.options.control_stack) {
            return Err(Immovable::OutOfReach { target });
        }
        self.address(Gpr::X16, target);
        self.push(if landless { encode::ret(Gpr::X16) } else { encode::br(Gpr::X16) });
        Ok(())
    }

    /// The opposite condition over a jump.
    fn branch_if(&mut self, test: Test, target: u64) -> Result<(), Immovable> {
        let at = self.out.len;
        self.push(self.word);
        self.jump(target, false)?;
        let over = (self.out.len - at) as u32;
        let word = match test {
            Test::Flags(_) => (self.word ^ 1) & !0x00FF_FFE0 | over << 5,
            Test::Zero { .. } => (self.word ^ 1 << 24) & !0x00FF_FFE0 | over << 5,
            Test::Bit { .. } => (self.word ^ 1 << 24) & !0x0007_FFE0 | over << 5,
        };
        if let Some(place) = self.out.words.get_mut(at) {
            *place = word;
        }
        Ok(())
    }

    fn branch_to(&mut self, through: Through, to: Gpr) -> Result<(), Immovable> {
        self.out.falls_through = false;
        if through != Through::Call {
            self.push(self.word);
            return Ok(());
        }
        let mut target = to;
        if to == Gpr::X30 {
            if !self.options.ip_free {
                return Err(Immovable::CallByLink);
            }
            target = Gpr::X16;
            self.push(encode::mov(target, to));
        }
        self.return_address()?;
        self.push(encode::br(target));
        Ok(())
    }

    fn return_address(&mut self) -> Result<(), Immovable> {
        if self.options.control_stack {
            return Err(Immovable::ControlStack);
        }
        self.address(Gpr::X30, self.out.next);
        Ok(())
    }

    /// Loads `value` into `to`; nothing if that is register 31. At most four words.
    fn address(&mut self, to: Gpr, value: u64) {
        let here = self.here();
        if to.is_31() {
            self.push(encode::NOP);
        } else if let Some(word) = adr(to, here, value) {
            self.push(word);
        } else if let Some(word) = adrp(to, here, value) {
            self.push(word);
            if value & 0xFFF != 0 {
                self.push(encode::add(to, to, value as u32 & 0xFFF));
            }
        } else {
            self.halves(to, value);
        }
    }

    fn halves(&mut self, to: Gpr, value: u64) {
        let half = |position: u32| (value >> (16 * position)) as u16;
        let first = (0..4).find(|position| half(*position) != 0).unwrap_or(0);
        self.push(movz(to, half(first), first));
        for position in first + 1..4 {
            if half(position) != 0 {
                self.push(movk(to, half(position), position));
            }
        }
    }

    /// `load`, with its base register still open, of the literal at `offset`. Its address goes through
    /// register `through`, or through x16 if that is 31.
    fn load(&mut self, load: u32, through: Gpr, offset: i32) {
        let literal = self.named(offset.into());
        if let Some(word) = with_imm19(self.word, self.here(), literal) {
            return self.push(word);
        }
        let base = if through.is_31() { Gpr::X16 } else { through };
        let saved = through.is_31() && !self.options.ip_free;
        if saved {
            self.push(PUSH_X16);
        }
        self.address(base, literal);
        self.push(load | base.number() << 5);
        if saved {
            self.push(POP_X16);
        }
    }
}
