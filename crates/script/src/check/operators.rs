//! Operators: which types they take, what they result in, and constants, which are computed here.
//!
//! In: operators with operands. Out: typed expressions. Integers are computed in 64 bits; the result has a sign if one
//! operand has, or if it is a difference. Does not: compute what is not known before the script runs.

use super::checker::Checker;
use crate::program::{Op, Place, Typed};
use crate::source::Span;
use crate::tree::{Binary, Expr, ExprKind, Unary};
use crate::types::{Int, Type};

impl<'a> Checker<'a> {
    pub(super) fn binary(&mut self, op: Binary, left: &'a Expr, right: &'a Expr, span: Span) -> Typed {
        if op.is_logical() {
            let (left, right) = (self.condition(left), self.condition(right));
            let at = self.at(span);
            let op = if op == Binary::And { Op::And(left, right) } else { Op::Or(left, right) };
            return Typed::new(op, Type::Bool, &at);
        }
        let (left, right) = (self.expr(left), self.expr(right));
        let (mut left, right) = (self.read_sum(left), self.read_sum(right));
        // A map that has no value yet begins with zero.
        if left.ty.is_none() && matches!(&*left.op, Op::Map { .. }) && right.ty.is_number() {
            left.ty = Type::of_literal(0);
        }
        self.combine(op, left, right, span)
    }
    fn combine(&mut self, op: Binary, left: Typed, right: Typed, span: Span) -> Typed {
        let at = self.at(span);
        if left.ty.is_none() || right.ty.is_none() {
            if self.last {
                return self.mismatch(op, &left, &right, span);
            }
            return Typed::nothing(&at);
        }
        match (&left.ty, &right.ty) {
            (Type::Pointer(_), _) | (_, Type::Pointer(_)) => self.pointer_binary(op, left, right, span),
            (a, b) if a.is_number() && b.is_number() => {
                if let Some(folded) = fold(op, &left, &right) {
                    return Typed { at, ..folded };
                }
                let ty = int_result(op, &left.ty, &right.ty);
                Typed::new(Op::Compute(op, left, right), ty, &at)
            }
            _ => self.compare_values(op, left, right, span),
        }
    }
    fn mismatch(&mut self, op: Binary, left: &Typed, right: &Typed, span: Span) -> Typed {
        let (sign, left, right) = (op.sign(), &left.ty, &right.ty);
        self.fail(
            format!("The {sign} operator can not be used on expressions of types {left}, {right}"),
            span,
        )
    }
    /// Addition to a pointer, and comparisons of pointers.
    fn pointer_binary(&mut self, op: Binary, left: Typed, right: Typed, span: Span) -> Typed {
        let at = self.at(span);
        let is_pointer = |typed: &Typed| matches!(typed.ty, Type::Pointer(_));
        let suits = |typed: &Typed| is_pointer(typed) || typed.ty.is_number();
        if op.compares() && suits(&left) && suits(&right) {
            return Typed::new(Op::Compute(op, left, right), Type::Bool, &at);
        }
        let (pointer, by) = match op {
            Binary::Add if is_pointer(&left) => (left, right),
            Binary::Add => (right, left),
            Binary::Subtract if is_pointer(&left) => (left, right),
            _ => return self.mismatch(op, &left, &right, span),
        };
        if is_pointer(&by) || !by.ty.is_number() {
            return self.mismatch(op, &pointer, &by, span);
        }
        let scale = self.pointee_size(&pointer.ty);
        let scale = if op == Binary::Subtract { -scale } else { scale };
        let ty = pointer.ty.clone();
        Typed::new(Op::Offset { pointer, by, scale }, ty, &at)
    }
    /// How many bytes one is when it is added to a pointer.
    pub(super) fn pointee_size(&self, pointer: &Type) -> i64 {
        match pointer {
            Type::Pointer(to) => i64::from(self.size_of(to).max(1)),
            _ => 1,
        }
    }
    /// `==` and `!=` of texts, tuples, arrays and the like.
    fn compare_values(&mut self, op: Binary, left: Typed, right: Typed, span: Span) -> Typed {
        let at = self.at(span);
        if left.ty.promoted(&right.ty).is_none() && !same_shape(&left.ty, &right.ty) {
            let (sign, a, b) = (op.sign(), &left.ty, &right.ty);
            return self.fail(format!("Type mismatch for '{sign}': comparing {a} with {b}"), span);
        }
        if !matches!(op, Binary::Equal | Binary::Unequal) {
            return self.mismatch(op, &left, &right, span);
        }
        let right = self.fit(right, &left.ty);
        Typed::new(Op::Same { equal: op == Binary::Equal, left, right }, Type::Bool, &at)
    }
    pub(super) fn unary(&mut self, op: Unary, of: &'a Expr, span: Span) -> Typed {
        if op == Unary::Deref {
            return self.deref(of, span);
        }
        let at = self.at(span);
        if op == Unary::Not {
            let of = self.condition(of);
            return Typed::new(Op::Not(of), Type::Bool, &at);
        }
        let value = self.expr(of);
        let value = self.read_sum(value);
        if value.ty.is_none() && !self.last {
            return value;
        }
        if !value.ty.is_int() {
            let (sign, ty) = (op.sign(), &value.ty);
            return self
                .fail(format!("The {sign} operator can not be used on expressions of type '{ty}'"), span);
        }
        if let (Unary::Negate, Some(constant)) = (op, value.constant()) {
            let negative = constant.wrapping_neg();
            let fits = value.ty != Type::uint(8) || constant == i64::MIN;
            if fits {
                return Typed::int(negative, Type::of_negative(negative), &at);
            }
        }
        let ty = if value.ty.is_signed() { Type::int(8) } else { Type::uint(8) };
        let op = if op == Unary::Negate { Op::Negate(value) } else { Op::Invert(value) };
        Typed::new(op, ty, &at)
    }
    /// `++` and `--`.
    pub(super) fn step(&mut self, of: &'a Expr, up: bool, before: bool, span: Span) -> Typed {
        let at = self.at(span);
        let counted = |old: &Type| match old {
            Type::Pointer(_) => old.clone(),
            old if up && !old.is_signed() => Type::uint(8),
            _ => Type::int(8),
        };
        let (place, ty) = match &of.kind {
            ExprKind::Variable(name) => {
                let Some(variable) = self.variable(name) else {
                    return self.fail(format!("Undefined or undeclared variable: ${name}"), span);
                };
                let ty = counted(&self.local(variable.slot));
                self.grow_local(variable.slot, name, &ty, span);
                (Place::Local(variable.slot), self.local(variable.slot))
            }
            ExprKind::Map { name, key } => {
                let Some(map) = self.map_named(name, of.span) else { return Typed::nothing(&at) };
                let key = self.map_key(map, key.as_deref(), of.span);
                let ty = counted(&self.maps[map].info.value);
                self.grow_value(map, &ty, span);
                (Place::Map { map, key }, self.maps[map].info.value.clone())
            }
            _ => return self.fail("increment/decrement requires a variable or map", of.span),
        };
        if !ty.is_int() && !matches!(ty, Type::Pointer(_)) {
            let sign = if up { "++" } else { "--" };
            return self
                .fail(format!("The {sign} operator can not be used on expressions of type '{ty}'"), span);
        }
        let by = self.pointee_size(&ty) * if up { 1 } else { -1 };
        Typed::new(Op::Step { place, by, before }, ty, &at)
    }
}

/// The type of an operation on integers.
fn int_result(op: Binary, left: &Type, right: &Type) -> Type {
    if op.compares() {
        return Type::Bool;
    }
    let signed = |ty: &Type, other: &Type| match (ty, other) {
        (Type::Int(Int { flexible: true, .. }), Type::Int(Int { flexible: false, signed, .. })) => *signed,
        (ty, _) => ty.is_signed(),
    };
    let shift = matches!(op, Binary::Left | Binary::Right);
    let is_signed = match op {
        Binary::Subtract => true,
        _ if shift => signed(left, right),
        _ => signed(left, right) || signed(right, left),
    };
    if is_signed { Type::int(8) } else { Type::uint(8) }
}

/// Whether two types are alike in all but sizes.
fn same_shape(left: &Type, right: &Type) -> bool {
    match (left, right) {
        (Type::Array(a, m), Type::Array(b, n)) => a == b && m == n,
        (Type::Inet | Type::Mac | Type::Symbol | Type::Username | Type::Text(_), Type::Text(_)) => true,
        (Type::Text(_), Type::Inet | Type::Mac | Type::Symbol | Type::Username) => true,
        _ => false,
    }
}

/// The result, if both operands are constants and it does not overflow.
fn fold(op: Binary, left: &Typed, right: &Typed) -> Option<Typed> {
    let value = |typed: &Typed| {
        let constant = typed.constant()?;
        let unsigned = typed.ty == Type::uint(8);
        Some(if unsigned { i128::from(constant as u64) } else { i128::from(constant) })
    };
    let (a, b) = (value(left)?, value(right)?);
    let shift = || u32::try_from(b).ok().filter(|by| *by < 64);
    let result = match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a.checked_div(b)?,
        Binary::Remainder => a.checked_rem(b)?,
        Binary::BitAnd => a & b,
        Binary::BitOr => a | b,
        Binary::BitXor => a ^ b,
        Binary::Left => a.checked_shl(shift()?)?,
        Binary::Right if a >= 0 => a >> shift()?,
        _ if op.compares() => return Some(Typed::int(i64::from(holds(op, a, b)), Type::Bool, &left.at)),
        _ => return None,
    };
    let ty = match u64::try_from(result) {
        Ok(value) => Type::of_literal(value),
        Err(_) => Type::of_negative(i64::try_from(result).ok()?),
    };
    // Only literals fold: what has been cast keeps the type that was asked for.
    if !is_literal(left) || !is_literal(right) {
        return None;
    }
    Some(Typed::int(result as i64, ty, &left.at))
}

/// Whether a comparison holds.
fn holds(op: Binary, a: i128, b: i128) -> bool {
    match op {
        Binary::Equal => a == b,
        Binary::Unequal => a != b,
        Binary::Less => a < b,
        Binary::LessEqual => a <= b,
        Binary::Greater => a > b,
        _ => a >= b,
    }
}

/// Whether a constant has the type that its value gives it.
fn is_literal(typed: &Typed) -> bool {
    let Some(value) = typed.constant() else { return false };
    let large = u64::try_from(value).is_err() && typed.ty == Type::uint(8);
    large || typed.ty == Type::of_literal(value as u64) || typed.ty == Type::of_negative(value)
}
