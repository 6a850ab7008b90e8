//! A program's code on x86-64.
//!
//! In: a program with locations ([`allocate`]); how inputs are loaded ([`Inputs`]); the frame. Out: code that falls
//! through at outcome 0, and the jumps of all other outcomes.
//!
//! ```text
//!   rax, r11   variables; r11 is the way to memory if variables are there
//!   rdx        of a division; then it is loaded again from the frame
//!   words      variables that found no register
//!   flags      overwritten
//!   rax        the result, at outcome 0
//! ```
//!
//! Each instruction has two operands, and the first one is written. `to = left op right` is thus
//!
//! ```text
//!   mov to, left;  op to, right            in general
//!   op to, left                            right is in `to`, and the operands may change places
//!   neg to;  add to, left                  right is in `to`, of a subtraction
//! ```
//!
//! Invariants: CODE-1, CODE-4. Does not: choose locations.

use super::asm::{Alu, Asm, Cond, Fix, Mem, R11, RAX, RDX, Reg, Shift};
use crate::allocate::{Allocated, Location, NoRoom, Pool};
use crate::program::{Compare, Compute, Op, Operand, Program, Target, Unary};

/// Holds what is on its way from or to memory.
const WAY: Reg = R11;

/// How a program's inputs are read.
pub trait Inputs {
    /// The register that holds an input. The program's code reads it there, and does not write it.
    fn register(&self, nth: u16) -> Option<Reg>;
    /// Loads an input that is in no register. The code may use `to` and flags.
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg);
}

/// The parts of a stub's frame that a program's code uses.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Words for variables.
    pub words: &'a [Mem],
    /// Where rdx is saved. It is loaded again behind each division.
    pub rdx: Mem,
}

/// Chooses locations for a program that has `words` stack words.
///
/// # Errors
/// There are too few.
pub fn allocate(program: Program, words: usize, inputs: &impl Inputs) -> Result<Allocated, NoRoom> {
    let registers = &[RAX.0, R11.0];
    let pool = Pool { registers, divided: registers, words, result: RAX.0 };
    Allocated::new(program, &pool, |nth| inputs.register(nth).is_some())
}

/// Upper bound of the code's bytes, wherever it lies.
///
/// `input`: upper bound of the bytes of [`Inputs::load`].
#[must_use]
pub fn most_bytes(program: &Program, input: usize) -> usize {
    // The longest forms: `mov to, imm64`; a load or store of a word; two moves and `op`; a compare with a word and an
    // immediate, `jcc`, and what may be put before both so that they lie within 32 bytes.
    const WORD: usize = 8;
    let most = |op: &Op| match op {
        Op::Input { .. } => input + WORD,
        Op::Number { .. } => 10 + WORD,
        Op::Move { .. } => 2 * WORD,
        Op::Unary { .. } => 2 * WORD + 7,
        Op::Compute { op, .. } if op.divides() => 3 * WORD + 30,
        Op::Compute { .. } => 2 * WORD + 10,
        Op::Branch { .. } => WORD + 2 * 18,
        Op::Jump { .. } => 5,
        Op::Bind { .. } => 0,
    };
    program.ops().iter().map(most).sum::<usize>() + WORD
}

/// Appends a program's code. Returns the jumps of the other outcomes, each with its outcome's number.
pub fn emit(
    asm: &mut Asm<'_>,
    allocated: &Allocated,
    inputs: &impl Inputs,
    frame: Frame<'_>,
) -> Vec<(u8, Fix)> {
    let program = allocated.program();
    let mut emitter = Emitter { allocated, inputs, frame, open: Vec::new() };
    for (at, op) in program.ops.iter().enumerate() {
        emitter.op(asm, *op, program.ops.get(at + 1));
    }
    emitter.bind(asm, Target::Outcome(0));
    if let Some(result) = program.result {
        emitter.load(asm, RAX, result);
    }
    let outcome = |(to, fix)| match to {
        Target::Outcome(outcome) => Some((outcome, fix)),
        // All labels are bound (`verify`).
        Target::Label(_) => None,
    };
    emitter.open.into_iter().filter_map(outcome).collect()
}

struct Emitter<'a, I> {
    allocated: &'a Allocated,
    inputs: &'a I,
    frame: Frame<'a>,
    /// Jumps that are not bound yet, and where they lead.
    open: Vec<(Target, Fix)>,
}

/// Where an operand is read.
#[derive(Clone, Copy)]
enum Source {
    Register(Reg),
    Memory(Mem),
    Number(i32),
}

impl<I: Inputs> Emitter<'_, I> {
    fn source(&self, operand: impl Into<Operand>) -> Source {
        let var = match operand.into() {
            Operand::Number(number) => return Source::Number(number),
            Operand::Var(var) => var,
        };
        match self.allocated.location(var) {
            Location::Register(register) => Source::Register(Reg(register)),
            Location::Word(word) => Source::Memory(self.frame.words[usize::from(word)]),
            Location::Input(nth) => self.inputs.register(nth).map_or(Source::Number(0), Source::Register),
            Location::Nowhere => Source::Number(0),
        }
    }
    /// `to` = an operand.
    fn load(&self, asm: &mut Asm<'_>, to: Reg, from: impl Into<Operand>) {
        match self.source(from) {
            Source::Register(from) if from == to => {}
            Source::Register(from) => asm.mov(to, from),
            Source::Memory(from) => asm.load(to, from),
            Source::Number(number) => asm.mov_imm64(to, i64::from(number).cast_unsigned()),
        }
    }

    fn op(&mut self, asm: &mut Asm<'_>, op: Op, next: Option<&Op>) {
        match op {
            Op::Jump { to } if is_next(to, next) => {}
            Op::Jump { to } => {
                let fix = asm.jmp_later();
                self.open.push((to, fix));
            }
            Op::Branch { when, left, right, to } => {
                let fix = self.branch(asm, when, left.into(), right);
                self.open.push((to, fix));
            }
            Op::Bind { label } => self.bind(asm, Target::Label(label)),
            _ => self.write(asm, op),
        }
    }
    /// Makes all that lead there lead here.
    fn bind(&mut self, asm: &mut Asm<'_>, target: Target) {
        self.open.retain(|(to, fix)| {
            if *to == target {
                asm.bind(*fix);
            }
            *to != target
        });
    }
    /// An operation that writes a variable.
    fn write(&self, asm: &mut Asm<'_>, op: Op) {
        let Some(var) = op.written() else { return };
        let (to, memory) = match self.allocated.location(var) {
            Location::Register(register) => (Reg(register), None),
            Location::Word(word) => (WAY, Some(self.frame.words[usize::from(word)])),
            Location::Input(_) | Location::Nowhere => return,
        };
        match op {
            Op::Input { nth, .. } => match self.inputs.register(nth) {
                Some(register) => asm.mov(to, register),
                None => self.inputs.load(asm, nth, to),
            },
            Op::Number { value, .. } => asm.mov_imm64(to, value),
            Op::Move { from, .. } => self.load(asm, to, from),
            Op::Unary { op, from, .. } => self.unary(asm, op, to, from.into()),
            Op::Compute { op, left, right, .. } if op.divides() => {
                self.divide(asm, op, to, (left.into(), right));
            }
            Op::Compute { op, left, right, .. } => self.compute(asm, op, to, (left.into(), right)),
            Op::Branch { .. } | Op::Jump { .. } | Op::Bind { .. } => {}
        }
        if let Some(memory) = memory {
            asm.store(memory, to);
        }
    }
    fn unary(&self, asm: &mut Asm<'_>, op: Unary, to: Reg, from: Operand) {
        let source = self.source(from);
        match (op, source) {
            (Unary::Extend(width), Source::Register(from)) if width.bits < 64 => {
                return asm.extend(to, from, width.bits, width.signed);
            }
            _ => self.load(asm, to, from),
        }
        match op {
            Unary::Negate => asm.negate(to),
            Unary::Complement => asm.not(to),
            Unary::Extend(width) if width.bits < 64 => asm.extend(to, to, width.bits, width.signed),
            Unary::Extend(_) => {}
        }
    }
    fn compute(&self, asm: &mut Asm<'_>, op: Compute, to: Reg, (left, right): (Operand, Operand)) {
        let (from, with) = (self.source(left), self.source(right));
        let in_place = |source| matches!(source, Source::Register(reg) if reg == to);
        let (left, with) = match in_place(with) && !in_place(from) {
            true if op.commutes() => (right, from),
            // Only a subtraction has its right operand in a register, and does not commute.
            true => {
                asm.negate(to);
                return with_source(asm, Compute::Add, to, from);
            }
            false => (left, with),
        };
        if let (Compute::Multiply, Source::Number(number), Source::Register(from)) =
            (op, with, self.source(left))
        {
            return asm.imul_imm(to, from, number, true);
        }
        self.load(asm, to, left);
        with_source(asm, op, to, with);
    }
    /// Divides rax by r11.
    fn divide(&self, asm: &mut Asm<'_>, op: Compute, to: Reg, (left, right): (Operand, Operand)) {
        match (self.source(left), self.source(right)) {
            (Source::Register(R11), Source::Register(RAX)) => asm.exchange(RAX, R11),
            (_, Source::Register(RAX | R11)) => {
                // The divisor first: rax may hold it.
                let same = left == right;
                self.load(asm, R11, right);
                self.load(asm, RAX, if same { right } else { left });
            }
            _ => {
                self.load(asm, RAX, left);
                self.load(asm, R11, right);
            }
        }
        match op {
            Compute::Divide | Compute::Remainder => {
                asm.mov_imm32(RDX, 0);
                asm.div(R11);
            }
            _ => asm.divide_signed(R11),
        }
        match op {
            Compute::Remainder | Compute::RemainderSigned => asm.mov(to, RDX),
            _ if to != RAX => asm.mov(to, RAX),
            _ => {}
        }
        asm.load(RDX, self.frame.rdx);
    }
    fn branch(&self, asm: &mut Asm<'_>, when: Compare, left: Operand, right: Operand) -> Fix {
        let (mut from, with) = (self.source(left), self.source(right));
        if let (Source::Memory(_), Source::Memory(_)) | (Source::Number(_), _) = (from, with) {
            self.load(asm, WAY, left);
            from = Source::Register(WAY);
        }
        let zero = matches!(with, Source::Number(0));
        asm.unbroken(|asm| {
            let condition = match (from, with, when) {
                (Source::Register(left), _, Compare::Equal | Compare::NotEqual) if zero => {
                    asm.test(left, left, true);
                    condition(when)
                }
                (Source::Register(left), _, Compare::Less | Compare::GreaterEqual) if zero => {
                    asm.test(left, left, true);
                    if when == Compare::Less { Cond::Sign } else { Cond::NotSign }
                }
                (Source::Register(left), with, _) => {
                    match with {
                        Source::Register(right) => asm.alu(Alu::Cmp, left, right),
                        Source::Memory(right) => asm.alu_load(Alu::Cmp, left, right),
                        Source::Number(number) => asm.alu_imm(Alu::Cmp, left, number, true),
                    }
                    condition(when)
                }
                (Source::Memory(left), Source::Register(right), _) => {
                    asm.alu_store(Alu::Cmp, left, right, false);
                    condition(when)
                }
                (Source::Memory(left), Source::Number(number), _) => {
                    asm.cmp_mem_imm(left, number);
                    condition(when)
                }
                // Neither is left after the load above.
                (Source::Memory(_), Source::Memory(_), _) | (Source::Number(_), ..) => condition(when),
            };
            asm.jcc_later(condition)
        })
    }
}

/// `to = to op with`
fn with_source(asm: &mut Asm<'_>, op: Compute, to: Reg, with: Source) {
    match (op, with) {
        (Compute::ShiftLeft, Source::Number(by)) => asm.shift(Shift::Left, to, by as u8 & 63, true),
        (Compute::ShiftRight, Source::Number(by)) => asm.shift(Shift::Right, to, by as u8 & 63, true),
        (Compute::ShiftSigned, Source::Number(by)) => asm.shift(Shift::SignedRight, to, by as u8 & 63, true),
        (Compute::Multiply, Source::Register(with)) => asm.multiply(to, with),
        (Compute::Multiply, Source::Memory(with)) => asm.multiply_load(to, with),
        (Compute::Multiply, Source::Number(number)) => asm.imul_imm(to, to, number, true),
        (_, Source::Register(with)) => asm.alu(alu(op), to, with),
        (_, Source::Memory(with)) => asm.alu_load(alu(op), to, with),
        (_, Source::Number(number)) => asm.alu_imm(alu(op), to, number, true),
    }
}

/// Whether a jump leads to the next operation.
fn is_next(to: Target, next: Option<&Op>) -> bool {
    match (to, next) {
        (Target::Label(label), Some(Op::Bind { label: bound })) => label == *bound,
        (Target::Outcome(0), None) => true,
        _ => false,
    }
}

const fn alu(op: Compute) -> Alu {
    match op {
        Compute::Subtract => Alu::Sub,
        Compute::And => Alu::And,
        Compute::Or => Alu::Or,
        Compute::Xor => Alu::Xor,
        _ => Alu::Add,
    }
}

const fn condition(when: Compare) -> Cond {
    match when {
        Compare::Equal => Cond::Equal,
        Compare::NotEqual => Cond::NotEqual,
        Compare::Less => Cond::Less,
        Compare::LessEqual => Cond::LessEq,
        Compare::Greater => Cond::Greater,
        Compare::GreaterEqual => Cond::GreaterEq,
        Compare::Below => Cond::Below,
        Compare::BelowEqual => Cond::BelowEq,
        Compare::Above => Cond::Above,
        Compare::AboveEqual => Cond::AboveEq,
    }
}
