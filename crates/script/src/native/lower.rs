//! A block as operations.
//!
//! In: a checked block. Out: its operations, given to an [`Emit`]; or what in it has none. What each means is what the
//! interpreter does (`run::eval`, `run::steps`). Does not: know what is made of them.

use trapline_code::{Compare, Compute, Unary, Width};

use super::emit::{Emit, Known, comparison};
use super::maps::{Native, Not};
use super::uses::{is_init, is_whole};
use crate::attach::Probe;
use crate::calls::Meaning;
use crate::diagnostic::At;
use crate::program::{self, Op, Place, Program, Step, Typed};
use crate::tree::Binary;
use crate::types::{Int, Type};

/// Turns of a block's loops at most, all together: each has operations of its own.
const MOST_TURNS: u32 = 16;

/// Gives a block's operations to `emit`. `native` is what [`Natives::of`](super::Natives::of) found.
///
/// # Errors
/// What has none; not for a block that the target is to run.
pub fn lower<E: Emit>(emit: &mut E, program: &Program, block: usize, native: &mut Native) -> Result<(), Not> {
    Lower::new(emit, Of { program, block: &program.blocks[block] }, native).block()
}

/// A block of a program.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) program: &'a Program,
    pub(super) block: &'a program::Block,
}

/// A block on its way.
pub(super) struct Lower<'a, E: Emit> {
    pub(super) emit: &'a mut E,
    pub(super) of: Of<'a>,
    pub(super) native: &'a mut Native,
    locals: Vec<E::Variable>,
    end: E::Label,
    /// Turns of loops that are left.
    turns: u32,
    /// A key names a stack.
    pub(super) walks: bool,
}

impl<'a, E: Emit> Lower<'a, E> {
    pub(super) fn new(emit: &'a mut E, of: Of<'a>, native: &'a mut Native) -> Self {
        let locals = of.block.locals.iter().map(|_| emit.variable()).collect();
        let end = emit.label();
        Self { emit, of, native, locals, end, turns: MOST_TURNS, walks: false }
    }
    pub(super) fn block(mut self) -> Result<(), Not> {
        for local in self.locals.clone() {
            let zero = self.emit.number(0);
            self.emit.set(local, zero);
        }
        self.steps(&self.of.block.body)?;
        let at_entry = self.of.block.probes.iter().any(|probe| matches!(probe, Probe::Uprobe(..)));
        if at_entry && self.walks && !self.native.read.is_empty() {
            return Err(Not { what: "a stack and a text of the program".to_owned(), at: None });
        }
        self.emit.bind(self.end);
        Ok(())
    }
    fn steps(&mut self, steps: &[Step]) -> Result<(), Not> {
        steps.iter().try_for_each(|step| self.step(step))
    }
    fn step(&mut self, step: &Step) -> Result<(), Not> {
        match step {
            Step::Set(slot, value) => {
                let value = self.value(value)?;
                self.emit.set(self.locals[*slot], value);
                Ok(())
            }
            Step::SetMap { map, key, value } => self.set_map(*map, key.as_ref(), value),
            Step::Do(expr) => self.effect(expr),
            Step::Return => {
                self.emit.jump(self.end);
                Ok(())
            }
            Step::Times { count, body, at } => (0..*count).try_for_each(|_| {
                self.turns = self.turns.checked_sub(1).ok_or_else(|| Not::yet("a long loop", at))?;
                self.steps(body)
            }),
            Step::While { at, .. } | Step::ForRange { at, .. } | Step::ForMap { at, .. } => {
                Err(Not::yet("a loop", at))
            }
            Step::Break | Step::Continue => Err(Not { what: "a loop".to_owned(), at: None }),
        }
    }
    /// An expression whose value is not used.
    fn effect(&mut self, expr: &Typed) -> Result<(), Not> {
        match &*expr.op {
            Op::Zero => Ok(()),
            Op::Block { steps, value } => {
                self.steps(steps)?;
                self.effect(value)
            }
            Op::If { condition, then, other } => {
                let [no, end] = [(); 2].map(|()| self.emit.label());
                self.unless(condition, no)?;
                self.effect(then)?;
                self.emit.jump(end);
                self.emit.bind(no);
                self.effect(other)?;
                self.emit.bind(end);
                Ok(())
            }
            Op::OnMap { meaning: Meaning::Delete, map, args } => {
                let key = self.assigned_key(*map, args.first(), Vec::new(), &expr.at)?;
                self.emit.delete(*map, &key);
                Ok(())
            }
            Op::Step { place: Place::Map { map, key }, by, .. } if self.is_counted(*map, key.as_ref()) => {
                let by = self.emit.number(*by as u64);
                self.add_number(*map, key.as_ref(), by, &expr.at)
            }
            Op::Format { meaning: Meaning::Printf, args, .. }
            | Op::Call { meaning: Meaning::Print, args }
                if self.native.says =>
            {
                self.say(expr, args)
            }
            Op::Call { meaning: Meaning::Exit, args }
                if self.native.says && self.of.program.maps.is_empty() =>
            {
                self.say(expr, args)?;
                self.emit.jump(self.end);
                Ok(())
            }
            _ => self.value(expr).map(drop),
        }
    }
    fn set_map(&mut self, map: usize, key: Option<&Typed>, value: &Typed) -> Result<(), Not> {
        match &*value.op {
            Op::Sum(sum, added, args) => {
                self.add(map, key, (*sum, added, *args), (value.ty.is_signed(), &value.at))
            }
            Op::Block { steps, value: inner } if matches!(inner.ty, Type::Sum(..)) => {
                self.steps(steps)?;
                self.set_map(map, key, inner)
            }
            Op::If { condition, then, other } if matches!(value.ty, Type::Sum(..)) => {
                let [no, end] = [(); 2].map(|()| self.emit.label());
                self.unless(condition, no)?;
                self.set_map(map, key, then)?;
                self.emit.jump(end);
                self.emit.bind(no);
                self.set_map(map, key, other)?;
                self.emit.bind(end);
                Ok(())
            }
            Op::Compute(Binary::Add, left, right)
                if key.is_none() && is_whole(left, map) && self.is_counted(map, None) =>
            {
                let by = self.value(right)?;
                self.add_number(map, None, by, &value.at)
            }
            _ => self.assign(map, key, value),
        }
    }
    /// The value of an expression that is a number.
    pub(super) fn value(&mut self, expr: &Typed) -> Result<E::Value, Not> {
        match &*expr.op {
            Op::Zero => Ok(self.emit.number(0)),
            _ if !is_word(&expr.ty) && !expr.ty.is_none() => {
                Err(Not::yet(format!("a value of type {}", expr.ty), &expr.at))
            }
            Op::Int(value) => Ok(self.emit.number(*value as u64)),
            Op::Local(slot) => {
                let (copy, value) = (self.emit.variable(), self.emit.get(self.locals[*slot]));
                self.emit.set(copy, value);
                Ok(self.emit.get(copy))
            }
            Op::Compute(op, left, right) if comparison(*op).is_none() => {
                self.computed(*op, left, right, &expr.at)
            }
            Op::Compute(..) | Op::And(..) | Op::Or(..) | Op::Not(_) => self.truth(expr),
            Op::Invert(of) => self.unary(Unary::Complement, of),
            Op::Negate(of) => self.unary(Unary::Negate, of),
            Op::If { condition, then, other } => self.either(condition, then, other),
            Op::Block { steps, value } => {
                self.steps(steps)?;
                self.value(value)
            }
            Op::Cast(of) => self.cast(of, expr),
            Op::Offset { pointer, by, scale } => {
                let (pointer, by, scale) =
                    (self.value(pointer)?, self.value(by)?, self.emit.number(*scale as u64));
                let bytes = self.emit.compute(Compute::Multiply, by, scale);
                Ok(self.emit.compute(Compute::Add, pointer, bytes))
            }
            Op::Step { place, by, before } => self.step_place(place, *by, *before, expr),
            Op::Call { meaning, args } => self.call(*meaning, args, &expr.at),
            Op::Map { map, key } => {
                let key = self.read_key(*map, key.as_ref(), &expr.at)?;
                Ok(self.emit.read(*map, &key, 0).1)
            }
            Op::Part(of, nth) => self.part_of_value(of, *nth),
            Op::OnMap { meaning: Meaning::HasKey, map, args } => {
                let key = self.assigned_key(*map, args.first(), Vec::new(), &expr.at)?;
                Ok(self.emit.read(*map, &key, 0).0)
            }
            Op::Find { map, key, slot } => {
                let key = self.read_key(*map, Some(key), &expr.at)?;
                let (is_there, value) = self.emit.read(*map, &key, 0);
                let (none, zero) = (self.emit.label(), self.emit.number(0));
                self.emit.branch(Compare::Equal, is_there, zero, none);
                self.emit.set(self.locals[*slot], value);
                self.emit.bind(none);
                Ok(is_there)
            }
            _ => Err(Not::yet("this", &expr.at)),
        }
    }
    fn unary(&mut self, op: Unary, of: &Typed) -> Result<E::Value, Not> {
        let of = self.value(of)?;
        Ok(self.emit.unary(op, of))
    }
    fn computed(&mut self, op: Binary, left: &Typed, right: &Typed, at: &At) -> Result<E::Value, Not> {
        let signed = is_signed(left, right);
        let constant = right.constant();
        let op = match (op, constant) {
            (Binary::Add, _) => Compute::Add,
            (Binary::Subtract, _) => Compute::Subtract,
            (Binary::Multiply, _) => Compute::Multiply,
            (Binary::BitAnd, _) => Compute::And,
            (Binary::BitOr, _) => Compute::Or,
            (Binary::BitXor, _) => Compute::Xor,
            (Binary::Left, Some(by)) => return self.shifted(Compute::ShiftLeft, left, by),
            (Binary::Right, Some(by)) => return self.shifted(Compute::ShiftRight, left, by),
            (Binary::Divide, Some(1..)) if signed => Compute::DivideSigned,
            (Binary::Divide, Some(1..)) => Compute::Divide,
            (Binary::Remainder, Some(1..)) if signed => Compute::RemainderSigned,
            (Binary::Remainder, Some(1..)) => Compute::Remainder,
            _ => return Err(Not::yet("a division or shift by what is no positive constant", at)),
        };
        let (left, right) = (self.value(left)?, self.value(right)?);
        Ok(self.emit.compute(op, left, right))
    }
    fn shifted(&mut self, op: Compute, left: &Typed, by: i64) -> Result<E::Value, Not> {
        let (left, by) = (self.value(left)?, self.emit.number(by as u64 & 63));
        Ok(self.emit.compute(op, left, by))
    }
    /// 1 if a condition holds, else 0.
    fn truth(&mut self, expr: &Typed) -> Result<E::Value, Not> {
        let (truth, end) = (self.emit.variable(), self.emit.label());
        let [zero, one] = [0, 1].map(|number| self.emit.number(number));
        self.emit.set(truth, zero);
        self.unless(expr, end)?;
        self.emit.set(truth, one);
        self.emit.bind(end);
        Ok(self.emit.get(truth))
    }
    fn either(&mut self, condition: &Typed, then: &Typed, other: &Typed) -> Result<E::Value, Not> {
        let (value, no, end) = (self.emit.variable(), self.emit.label(), self.emit.label());
        self.unless(condition, no)?;
        let one = self.value(then)?;
        self.emit.set(value, one);
        self.emit.jump(end);
        self.emit.bind(no);
        let one = self.value(other)?;
        self.emit.set(value, one);
        self.emit.bind(end);
        Ok(self.emit.get(value))
    }
    /// Goes to `no` unless a condition holds.
    fn unless(&mut self, condition: &Typed, no: E::Label) -> Result<(), Not> {
        match &*condition.op {
            Op::And(left, right) => {
                self.unless(left, no)?;
                self.unless(right, no)
            }
            Op::Or(left, right) => {
                let [other, yes] = [(); 2].map(|()| self.emit.label());
                self.unless(left, other)?;
                self.emit.jump(yes);
                self.emit.bind(other);
                self.unless(right, no)?;
                self.emit.bind(yes);
                Ok(())
            }
            Op::Not(of) => {
                let yes = self.emit.label();
                self.unless(of, yes)?;
                self.emit.jump(no);
                self.emit.bind(yes);
                Ok(())
            }
            Op::Compute(op, left, right) if let Some((signed, unsigned)) = comparison(*op) => {
                let when = if is_signed(left, right) { signed } else { unsigned };
                let (left, right) = (self.value(left)?, self.value(right)?);
                self.emit.branch(when.opposite(), left, right, no);
                Ok(())
            }
            _ => {
                let (value, zero) = (self.value(condition)?, self.emit.number(0));
                self.emit.branch(Compare::Equal, value, zero, no);
                Ok(())
            }
        }
    }
    fn cast(&mut self, of: &Typed, expr: &Typed) -> Result<E::Value, Not> {
        if !is_word(&of.ty) {
            return Err(Not::yet(format!("a cast of {}", of.ty), &expr.at));
        }
        let value = self.value(of)?;
        match (&of.ty, &expr.ty) {
            (_, Type::Int(int)) => Ok(self.wrapped(value, int)),
            (_, Type::Bool) => {
                let (truth, end) = (self.emit.variable(), self.emit.label());
                let [zero, one] = [0, 1].map(|number| self.emit.number(number));
                self.emit.set(truth, zero);
                self.emit.branch(Compare::Equal, value, zero, end);
                self.emit.set(truth, one);
                self.emit.bind(end);
                Ok(self.emit.get(truth))
            }
            (Type::Int(int), Type::Pointer(_)) => {
                Ok(self.wrapped(value, &Int { signed: false, ..int.clone() }))
            }
            _ => Ok(value),
        }
    }
    fn wrapped(&mut self, value: E::Value, int: &Int) -> E::Value {
        match int.size {
            8 => value,
            bytes => {
                let width = Width { bits: bytes * 8, signed: int.signed };
                self.emit.unary(Unary::Extend(width), value)
            }
        }
    }
    fn step_place(&mut self, place: &Place, by: i64, before: bool, expr: &Typed) -> Result<E::Value, Not> {
        let by = self.emit.number(by as u64);
        let old = self.emit.variable();
        let key = match place {
            Place::Local(slot) => {
                let value = self.emit.get(self.locals[*slot]);
                self.emit.set(old, value);
                Vec::new()
            }
            Place::Map { map, key } => {
                let key = self.read_key(*map, key.as_ref(), &expr.at)?;
                let value = self.emit.read(*map, &key, 0).1;
                self.emit.set(old, value);
                key
            }
        };
        let old = self.emit.get(old);
        let new = self.emit.compute(Compute::Add, old, by);
        let new = if let Type::Int(int) = &expr.ty { self.wrapped(new, int) } else { new };
        match place {
            Place::Local(slot) => self.emit.set(self.locals[*slot], new),
            Place::Map { map, .. } => self.emit.assign(*map, &key, &[new]),
        }
        Ok(if before { new } else { old })
    }
    fn call(&mut self, meaning: Meaning, args: &[Typed], at: &At) -> Result<E::Value, Not> {
        let boot = args.first().is_none_or(|clock| clock.literal() == Some(b"boot"));
        let known = match meaning {
            Meaning::Argument(nth) if nth < self.arguments() => Known::Argument(nth),
            Meaning::Retval => Known::Returned,
            Meaning::Nsecs if boot => Known::Nanos,
            Meaning::Tid if self.native.processes.same_tids && !is_init(args) => Known::Thread,
            Meaning::Tid | Meaning::Pid => {
                return Err(Not::yet("such a tid or pid but as a part of a key", at));
            }
            _ => return Err(Not::yet("such a function or value", at)),
        };
        Ok(self.emit.known(known))
    }
}

impl<E: Emit> Lower<'_, E> {
    /// How many arguments a hit has.
    fn arguments(&self) -> u8 {
        let is_mark = |probe: &Probe| matches!(probe, Probe::Usdt(..));
        if self.of.block.probes.iter().all(is_mark) { 12 } else { 6 }
    }
}

/// Whether a value of this type is one word.
pub(super) fn is_word(ty: &Type) -> bool {
    matches!(ty, Type::Int(_) | Type::Bool | Type::Pointer(_))
}

/// Whether operands are compared and divided by their signs: as `run::eval` decides.
fn is_signed(left: &Typed, right: &Typed) -> bool {
    let flexible = |ty: &Type| matches!(ty, Type::Int(Int { flexible: true, .. }));
    let unsigned = |ty: &Type| ty.is_number() && !ty.is_signed() || matches!(ty, Type::Pointer(_));
    (left.ty.is_signed() || right.ty.is_signed())
        && !(flexible(&left.ty) && unsigned(&right.ty))
        && !(flexible(&right.ty) && unsigned(&left.ty))
}
