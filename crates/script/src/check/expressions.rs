//! Expressions: literals, names, variables, maps, and what contains others.
//!
//! In: expressions of the tree. Out: typed expressions. Does not: know operators, fields or functions.

use std::rc::Rc;

use super::checker::{Bound, Checker};
use crate::calls::{self, FUNCTIONS};
use crate::diagnostic::{At, Diagnostic};
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::suggest::nearest;
use crate::tree::{Block, Expr, ExprKind};
use crate::types::{Int, Type};

impl<'a> Checker<'a> {
    /// An expression.
    pub(super) fn expr(&mut self, expr: &'a Expr) -> Typed {
        let done = self.bounded(expr.span, |checker| checker.expr_inside(expr));
        done.unwrap_or_else(|| Typed::nothing(&self.at(expr.span)))
    }
    fn expr_inside(&mut self, expr: &'a Expr) -> Typed {
        let (span, at) = (expr.span, self.at(expr.span));
        match &expr.kind {
            ExprKind::Int(value) => Typed::int(*value as i64, Type::of_literal(*value), &at),
            ExprKind::Text(text) => self.literal(text, span),
            ExprKind::Bool(value) => Typed::int(i64::from(*value), Type::Bool, &at),
            ExprKind::Name(name) => self.named_value(name, span),
            ExprKind::Variable(name) => self.variable_value(name, span),
            ExprKind::Map { name, key } => self.map_read(name, key.as_deref(), span),
            ExprKind::Positional(index) => self.positional(*index, span),
            ExprKind::PositionalCount => {
                let count = self.options.positional.len() as u64;
                Typed::int(count as i64, Type::of_literal(count), &at)
            }
            ExprKind::Call { name, args } => self.call(name, args, span),
            ExprKind::Unary { op, of } => self.unary(*op, of, span),
            ExprKind::Binary { op, left, right } => self.binary(*op, left, right, span),
            ExprKind::Step { of, up, before } => self.step(of, *up, *before, span),
            ExprKind::Field { of, name } => self.field(of, name, span),
            ExprKind::Item { of, index } => {
                let of = self.expr(of);
                self.item(of, *index, span)
            }
            ExprKind::Element { of, index } => self.element(of, index, span),
            ExprKind::If { condition, then, other } => self.choice(condition, then, other.as_deref(), span),
            ExprKind::Block(block) => self.scoped(|checker| checker.block_value(block, &at)),
            ExprKind::Cast { ty, of } => self.cast(ty, of, span),
            ExprKind::AddressOf(of) => self.address_of(of, span),
            ExprKind::Tuple(parts) => {
                let types = |parts: &[Typed]| Type::Tuple(parts.iter().map(|part| part.ty.clone()).collect());
                self.parts(parts.iter(), types, &at)
            }
            ExprKind::Record(fields) => {
                let types = |parts: &[Typed]| {
                    let named = fields.iter().zip(parts);
                    Type::Record(named.map(|((name, _), part)| (name.clone(), part.ty.clone())).collect())
                };
                self.parts(fields.iter().map(|(_, part)| part), types, &at)
            }
            ExprKind::SizeOf(ty) => {
                let ty = self.type_of(ty);
                if ty.is_none() && self.last {
                    self.error("the size of this is not known", span);
                }
                Typed::int(i64::from(ty.size()), Type::of_literal(u64::from(ty.size())), &at)
            }
            ExprKind::OffsetOf(ty, fields) => self.offset_of(ty, fields, span),
            ExprKind::Type(_) => self.fail("a type cannot be used as a value here", span),
        }
    }
    /// A block with a value.
    fn block_value(&mut self, block: &'a Block, at: &At) -> Typed {
        let steps = self.statements(&block.statements);
        let value = match &block.value {
            Some(value) => self.expr(value),
            None => Typed::nothing(at),
        };
        let ty = value.ty.clone();
        Typed::new(Op::Block { steps, value }, ty, at)
    }
    /// A tuple, or a record: its parts, and the type that they make.
    fn parts(
        &mut self,
        parts: impl Iterator<Item = &'a Expr>,
        types: impl FnOnce(&[Typed]) -> Type,
        at: &At,
    ) -> Typed {
        let parts: Vec<Typed> = parts.map(|part| self.part(part)).collect();
        let ty = if parts.iter().any(|part| part.ty.is_none()) { Type::None } else { types(&parts) };
        Typed::new(Op::Tuple(parts), ty, at)
    }
    /// A part of a tuple: maps that add up are read.
    fn part(&mut self, expr: &'a Expr) -> Typed {
        let value = self.expr(expr);
        match &value.ty {
            Type::Sum(sum, _) if !sum.is_number() => {
                let message = format!("'{}' cannot be a part of a tuple", value.ty);
                self.fail(message, expr.span)
            }
            Type::None if self.last => {
                self.fail("this has no value, so it cannot be a part of a tuple", expr.span)
            }
            _ => self.read_sum(value),
        }
    }
    pub(super) fn literal(&self, text: &[u8], span: Span) -> Typed {
        let size = u32::try_from(text.len()).unwrap_or(u32::MAX).saturating_add(1);
        Typed::new(Op::Text(text.into()), Type::Text(size), &self.at(span))
    }
    /// A parameter: a number if it can be one, else a text.
    fn positional(&self, index: usize, span: Span) -> Typed {
        let at = self.at(span);
        let Some(text) = self.options.positional.get(index - 1) else {
            return Typed::int(0, Type::of_literal(0), &at);
        };
        match signed(text) {
            Some((value, ty)) => Typed::int(value, ty, &at),
            None => self.literal(text.as_bytes(), span),
        }
    }
    /// A name without a sign: a parameter of a macro, a value of an enumeration, a builtin, or a macro.
    fn named_value(&mut self, name: &'a str, span: Span) -> Typed {
        match self.here().params.get(name).cloned() {
            Some(Bound::Expr(expr, frame)) => return self.elsewhere(frame, |checker| checker.expr(expr)),
            Some(_) => return self.fail(format!("{name} is not an expression"), span),
            None => {}
        }
        let at = self.at(span);
        if let Some((of, value)) = self.layouts.constants.get(name) {
            let of = Some(Rc::clone(of));
            return Typed::int(
                *value,
                Type::Int(Int { size: 4, signed: *value < 0, flexible: false, of }),
                &at,
            );
        }
        if let Some((_, value)) = self.options.constants.iter().find(|(other, _)| other == name) {
            let ty = u64::try_from(*value).map_or_else(|_| Type::of_negative(*value), Type::of_literal);
            return Typed::int(*value, ty, &at);
        }
        if self.has_macro(name, 0) || calls::find(name).is_some() {
            return self.call(name, &[], span);
        }
        let near = nearest(name, FUNCTIONS.iter().map(|function| function.name));
        let mut error = Diagnostic::error(format!("Unknown identifier: '{name}'"), at.clone());
        if let Some(near) = near {
            error = error.hint(format!("Did you mean {near}?"));
        }
        self.say(error);
        Typed::nothing(&at)
    }
    /// Goes through something where it was written: in the frame of a macro's caller.
    pub(super) fn elsewhere<T>(&mut self, frame: usize, rule: impl FnOnce(&mut Self) -> T) -> T {
        let here = std::mem::replace(&mut self.frame, frame);
        let done = rule(self);
        self.frame = here;
        done
    }
    fn variable_value(&mut self, name: &str, span: Span) -> Typed {
        match self.variable(name) {
            Some(variable) => {
                let ty = self.local(variable.slot);
                if ty.is_none() && self.last {
                    return self.fail("Could not resolve the type of this variable", span);
                }
                Typed::new(Op::Local(variable.slot), ty, &self.at(span))
            }
            None => self.fail(format!("Undefined or undeclared variable: ${name}"), span),
        }
    }
    /// The map of a name: in a macro, the one that was passed.
    pub(super) fn map_named(&mut self, name: &str, span: Span) -> Option<usize> {
        let in_macro = self.here().call.is_some();
        match self.here().params.get(name).cloned() {
            Some(Bound::Map(name)) => Some(self.map_index(&name)),
            _ if in_macro => {
                self.error(
                    format!(
                        "Unhygienic access to map: {name}. Maps must be passed into the macro as arguments"
                    ),
                    span,
                );
                None
            }
            _ => Some(self.map_index(name)),
        }
    }
    /// Notes that a map is used, without saying whether it has keys.
    pub(super) fn note_used(&mut self, map: usize) {
        self.maps[map].used = true;
    }
    /// The key of a map, as the map holds it.
    pub(super) fn map_key(&mut self, map: usize, key: Option<&'a Expr>, span: Span) -> Option<Typed> {
        self.note_keyed(map, key.is_some(), span);
        let value = self.expr(key?);
        Some(self.checked_key(map, value, span))
    }
    pub(super) fn checked_key(&mut self, map: usize, value: Typed, span: Span) -> Typed {
        let value = match &value.ty {
            Type::Sum(sum, _) if !sum.is_number() => {
                let message = format!("{} cannot be part of a map key", value.ty);
                return self.fail(message, span);
            }
            Type::None => {
                if self.last {
                    self.error("Invalid map key type: none", value.at.span);
                }
                return value;
            }
            _ => self.read_sum(value),
        };
        self.grow_key(map, &value.ty, span);
        let ty = self.maps[map].info.key.clone().unwrap_or(Type::None);
        self.fit(value, &ty)
    }
    fn map_read(&mut self, name: &str, key: Option<&'a Expr>, span: Span) -> Typed {
        let Some(map) = self.map_named(name, span) else { return Typed::nothing(&self.at(span)) };
        let key = self.map_key(map, key, span);
        let ty = self.maps[map].info.value.clone();
        if ty.is_none() && self.last {
            return self.fail(format!("Undefined map: {name}"), span);
        }
        Typed::new(Op::Map { map, key }, ty, &self.at(span))
    }
    /// `c ? a : b`, and `if` as a value.
    fn choice(&mut self, condition: &'a Expr, then: &'a Expr, other: Option<&'a Expr>, span: Span) -> Typed {
        let at = self.at(span);
        let condition = self.condition(condition);
        let then = self.expr(then);
        let other = other.map_or_else(|| Typed::nothing(&at), |other| self.expr(other));
        let sums = matches!(&*then.op, Op::Sum(..)) || matches!(&*other.op, Op::Sum(..));
        let (then, other) = if sums { (then, other) } else { (self.read_sum(then), self.read_sum(other)) };
        let Some(ty) = then.ty.promoted(&other.ty) else {
            let message = format!(
                "Branches must return the same type or compatible types: have '{}' and '{}'",
                then.ty, other.ty
            );
            return self.fail(message, span);
        };
        let (then, other) = if sums { (then, other) } else { (self.fit(then, &ty), self.fit(other, &ty)) };
        Typed::new(Op::If { condition, then, other }, ty, &at)
    }
    /// What decides: a number, a pointer or a truth value.
    pub(super) fn condition(&mut self, expr: &'a Expr) -> Typed {
        let value = self.expr(expr);
        if !value.ty.is_condition() && !self.is_open(&value.ty) {
            let message = format!("Invalid condition: {}", value.ty);
            return self.fail(message, expr.span);
        }
        self.read_sum(value)
    }
    /// A number.
    pub(super) fn number(&mut self, expr: &'a Expr) -> Typed {
        let value = self.expr(expr);
        if !value.ty.is_number() && !self.is_open(&value.ty) {
            let message = format!("an integer is expected here ({} provided)", value.ty);
            return self.fail(message, expr.span);
        }
        self.read_sum(value)
    }
    /// The number that a map has added up; other values stay.
    pub(super) fn read_sum(&self, value: Typed) -> Typed {
        match value.ty {
            Type::Sum(sum, signed) if sum.is_number() && !matches!(&*value.op, Op::Sum(..)) => {
                let ty = if signed { Type::int(8) } else { Type::uint(8) };
                let at = value.at.clone();
                Typed::new(Op::Cast(value), ty, &at)
            }
            _ => value,
        }
    }
    /// A value as a place of a type holds it: records have their fields in the place's order.
    pub(super) fn fit(&self, value: Typed, ty: &Type) -> Typed {
        let (Type::Record(from), Type::Record(to)) = (&value.ty, ty) else { return value };
        let order = to.iter().map(|(name, _)| from.iter().position(|(other, _)| other == name));
        match order.collect::<Option<Vec<usize>>>() {
            Some(order) if order.iter().enumerate().any(|(index, from)| index != *from) => {
                let at = value.at.clone();
                Typed::new(Op::Reorder(value, order), ty.clone(), &at)
            }
            _ => value,
        }
    }
}

/// A parameter as a number with its type, if it is one.
pub(super) fn signed(text: &str) -> Option<(i64, Type)> {
    if let Some(rest) = text.strip_prefix('-') {
        let value = crate::lex::number(rest).ok().and_then(|value| 0i64.checked_sub_unsigned(value))?;
        return Some((value, Type::of_negative(value)));
    }
    let value = crate::lex::number(text).ok()?;
    Some((value as i64, Type::of_literal(value)))
}
