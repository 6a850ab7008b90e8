//! Expressions.
//!
//! In: typed expressions. Out: values. Integers are computed in 64 bits and wrap; division by zero is 1 with a warning;
//! `>>` brings in zeros; a difference of sizes is no error. Does not: call functions (see `calls`).

use std::rc::Rc;

use super::frame::{Flow, Frame};
use super::memory;
use crate::bytes::{bit_field, decode, encode, filled, wrap};
use crate::fields::Bits;
use crate::program::{Op, Place, Typed};
use crate::tree::Binary;
use crate::types::{Int, Type};
use crate::value::Value;

impl Frame<'_> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &Typed) -> Value {
        match &*expr.op {
            Op::Zero => Value::Nothing,
            Op::Int(value) => Value::Int(*value),
            Op::Text(text) => match expr.ty {
                Type::Array(..) => Value::Bytes(text.clone()),
                _ => Value::Text(text.clone()),
            },
            Op::Local(slot) => self.locals[*slot].clone(),
            Op::Map { map, key } => self.read_map(*map, key.as_ref(), expr),
            Op::Compute(op, left, right) => self.compute(*op, left, right, expr),
            Op::Same { equal, left, right } => {
                let (a, b) = (self.eval(left), self.eval(right));
                Value::from(same(&a, &b) == *equal)
            }
            Op::And(left, right) => Value::from(self.is_true(left) && self.is_true(right)),
            Op::Or(left, right) => Value::from(self.is_true(left) || self.is_true(right)),
            Op::Not(of) => Value::from(!self.is_true(of)),
            Op::Invert(of) => Value::Int(!self.int(of)),
            Op::Negate(of) => Value::Int(self.int(of).wrapping_neg()),
            Op::If { condition, then, other } => {
                let chosen = if self.is_true(condition) { then } else { other };
                self.eval(chosen)
            }
            Op::Block { steps, value } => {
                self.steps(steps);
                if self.flow == Flow::Next { self.eval(value) } else { Value::Nothing }
            }
            Op::Cast(of) => self.cast(of, &expr.ty),
            Op::Tuple(parts) => Value::Parts(parts.iter().map(|part| self.eval(part)).collect()),
            Op::Reorder(of, order) => {
                let value = self.eval(of);
                Value::Parts(order.iter().map(|index| value.part(*index)).collect())
            }
            Op::Part(of, index) => self.eval(of).part(*index),
            Op::Slice { of, offset, scale, bits } => self.slice(of, offset, *scale, *bits, expr),
            Op::Load { address, bits } => self.load(address, *bits, expr),
            Op::AddressOfLocal(slot) => Value::Int(memory::of_local(*slot)),
            Op::Offset { pointer, by, scale } => {
                let (pointer, by) = (self.int(pointer), self.int(by));
                Value::Int(pointer.wrapping_add(by.wrapping_mul(*scale)))
            }
            Op::Step { place, by, before } => self.step_place(place, *by, *before, expr),
            Op::Positional { index, offset } => {
                let offset = self.int(offset);
                Value::Int(memory::of_positional(*index).wrapping_add(offset))
            }
            Op::Sum(..) => Value::Nothing,
            Op::Call { meaning, args } => self.call(*meaning, args, expr),
            Op::OnMap { meaning, map, args } => self.on_map(*meaning, *map, args, expr),
            Op::Find { map, key, slot } => self.find(*map, key, *slot),
            Op::Format { meaning, format, args } => {
                self.formatted(*meaning, format, args, expr);
                Value::Nothing
            }
        }
    }
    /// The key of a map.
    pub(super) fn key(&mut self, key: &Typed) -> Value {
        filled(self.eval(key), &key.ty)
    }
    fn read_map(&mut self, map: usize, key: Option<&Typed>, expr: &Typed) -> Value {
        let has_key = key.is_some();
        let key = key.map_or(Value::Nothing, |key| self.key(key));
        let signed = self.state.program.maps[map].value.is_signed();
        let value = self.state.maps[map].get(&key).map(|cell| cell.value(signed));
        if value.is_none() && has_key && self.state.style.lookups {
            let message = "Can't lookup map element because it does not exist.";
            self.helper_error(&expr.at, message, "map_lookup_elem", 0);
        }
        value.unwrap_or_default()
    }
    fn compute(&mut self, op: Binary, left: &Typed, right: &Typed, expr: &Typed) -> Value {
        let (a, b) = (self.int(left), self.int(right));
        let (x, y) = (a as u64, b as u64);
        let signed = left.ty.is_signed() || right.ty.is_signed();
        // A literal that is not negative goes with either sign.
        let flexible = |ty: &Type| matches!(ty, Type::Int(Int { flexible: true, .. }));
        let unsigned = |ty: &Type| ty.is_number() && !ty.is_signed() || matches!(ty, Type::Pointer(_));
        let signed = signed
            && !(flexible(&left.ty) && unsigned(&right.ty))
            && !(flexible(&right.ty) && unsigned(&left.ty));
        let order = if signed { a.cmp(&b) } else { x.cmp(&y) };
        match op {
            Binary::Equal => Value::from(a == b),
            Binary::Unequal => Value::from(a != b),
            Binary::Less => Value::from(order.is_lt()),
            Binary::LessEqual => Value::from(order.is_le()),
            Binary::Greater => Value::from(order.is_gt()),
            Binary::GreaterEqual => Value::from(order.is_ge()),
            Binary::Add => Value::Int(a.wrapping_add(b)),
            Binary::Subtract => Value::Int(a.wrapping_sub(b)),
            Binary::Multiply => Value::Int(a.wrapping_mul(b)),
            Binary::BitAnd => Value::Int(a & b),
            Binary::BitOr => Value::Int(a | b),
            Binary::BitXor => Value::Int(a ^ b),
            Binary::Left => Value::Int(a.wrapping_shl(b as u32)),
            Binary::Right => Value::Int(x.wrapping_shr(b as u32) as i64),
            Binary::Divide | Binary::Remainder if b == 0 => {
                let message = "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used \
                               as the result.";
                self.warn(&expr.at, message);
                Value::Int(1)
            }
            Binary::Divide if signed => Value::Int(a.wrapping_div(b)),
            Binary::Divide => Value::Int((x / y) as i64),
            Binary::Remainder if signed => Value::Int(a.wrapping_rem(b)),
            Binary::Remainder => Value::Int((x % y) as i64),
            Binary::And | Binary::Or => Value::Nothing,
        }
    }
    fn cast(&mut self, of: &Typed, ty: &Type) -> Value {
        let value = self.eval(of);
        match (&of.ty, ty) {
            (Type::Array(..) | Type::Text(_), Type::Int(_) | Type::Bool) => decode(value.text(), ty),
            (_, Type::Int(int)) => Value::Int(wrap(value.int(), int)),
            (_, Type::Bool) => Value::from(value.is_true()),
            (from @ (Type::Int(_) | Type::Text(_)), Type::Array(..)) => {
                let mut bytes = match from {
                    // A literal is as wide as what it is cast to.
                    Type::Int(_) => value.int().to_le_bytes().to_vec(),
                    from => encode(&value, from),
                };
                bytes.resize(ty.size() as usize, 0);
                Value::Bytes(bytes.into())
            }
            (Type::Array(..), Type::Text(_)) => decode(value.text(), ty),
            // An address has no sign: a negative number of few bits is a small address.
            (Type::Int(int), Type::Pointer(_)) => {
                Value::Int(wrap(value.int(), &Int { signed: false, ..int.clone() }))
            }
            (_, Type::Username) => {
                let uid = value.int() as u32;
                let name = self.world.user(uid).unwrap_or_else(|| uid.to_string());
                Value::Named(name.into(), u64::from(uid))
            }
            (Type::Text(_), Type::Pointer(_)) => match &*of.op {
                Op::Local(slot) => Value::Int(memory::of_local(*slot)),
                _ => Value::Int(0),
            },
            _ => value,
        }
    }
    /// Bytes of a value that is a structure, an array or a text.
    fn slice(&mut self, of: &Typed, offset: &Typed, scale: u32, bits: Option<Bits>, expr: &Typed) -> Value {
        let value = self.eval(of);
        let at = (self.int(offset) as u64).checked_mul(u64::from(scale));
        let size = of.ty.size() as u64;
        let inside =
            at.filter(|at| at.saturating_add(u64::from(scale)) <= size.max(value.text().len() as u64));
        let Some(at) = inside else {
            if matches!(of.ty, Type::Array(..)) {
                self.warn(&expr.at, "Array access out of bounds. This can lead to unexpected results.");
            }
            return Value::Nothing;
        };
        let bytes = value.text();
        field(&bytes[(at as usize).min(bytes.len())..], bits, &expr.ty)
    }
    fn load(&mut self, address: &Typed, bits: Option<Bits>, expr: &Typed) -> Value {
        let ty = &expr.ty;
        let address = self.int(address) as u64;
        // A text of a structure may fill all of its room, and its type has one byte more.
        let size = if let Type::Text(size) = ty { size.saturating_sub(1) } else { ty.size() } as usize;
        let bytes = self.memory(address, size, &expr.at);
        if bytes.len() == size { field(&bytes, bits, ty) } else { Value::Nothing }
    }
    fn step_place(&mut self, place: &Place, by: i64, before: bool, expr: &Typed) -> Value {
        let (old, key) = match place {
            Place::Local(slot) => (self.locals[*slot].int(), Value::Nothing),
            Place::Map { map, key } => {
                let key = key.as_ref().map_or(Value::Nothing, |key| self.key(key));
                let cell = self.state.maps[*map].get(&key);
                (cell.map_or(0, |cell| cell.value(true).int()), key)
            }
        };
        if self.flow != Flow::Next {
            return Value::Nothing;
        }
        let new = old.wrapping_add(by);
        let new = if let Type::Int(int) = &expr.ty { wrap(new, int) } else { new };
        match place {
            Place::Local(slot) => self.locals[*slot] = Value::Int(new),
            Place::Map { map, .. } => self.put(*map, key, Value::Int(new), &expr.at),
        }
        Value::Int(if before { new } else { old })
    }
    fn find(&mut self, map: usize, key: &Typed, slot: usize) -> Value {
        let key = self.key(key);
        let signed = self.state.program.maps[map].value.is_signed();
        match self.state.maps[map].get(&key).map(|cell| cell.value(signed)) {
            Some(value) => {
                self.locals[slot] = value;
                Value::from(true)
            }
            None => Value::from(false),
        }
    }
}

/// The value that bytes hold, or some of their bits.
fn field(bytes: &[u8], bits: Option<Bits>, ty: &Type) -> Value {
    let value = decode(bytes, ty);
    match bits {
        Some(bits) => Value::Int(bit_field(value.int(), bits, ty)),
        None => value,
    }
}

/// Whether two values are equal; texts by their letters, and what was never assigned is zero.
fn same(a: &Value, b: &Value) -> bool {
    let zero = |value: &Value| match value {
        Value::Nothing => true,
        Value::Int(value) => *value == 0,
        Value::Text(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.iter().all(|byte| *byte == 0),
        _ => false,
    };
    match (a, b) {
        (Value::Nothing, other) | (other, Value::Nothing) => zero(other),
        (Value::Parts(a), Value::Parts(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
        }
        (Value::Text(_) | Value::Named(..), Value::Text(_) | Value::Named(..)) => {
            let text = |value: &Value| -> Rc<[u8]> {
                let text = value.text();
                let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                text[..end].into()
            };
            text(a) == text(b)
        }
        _ => a == b,
    }
}
