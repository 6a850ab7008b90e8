//! Casts, and types as they are written.
//!
//! In: written types and expressions. Out: types; expressions of another type. Between an integer and an array of the
//! same size, bytes stay as they are. Does not: lay structures out.

use std::rc::Rc;

use super::checker::{Bound, Checker};
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::tree::{Expr, ExprKind, TypeKind, TypeName, TypeOf};
use crate::types::Type;

impl<'a> Checker<'a> {
    /// The type that is written, or that an expression has.
    pub(super) fn type_of(&mut self, ty: &'a TypeOf) -> Type {
        match ty {
            TypeOf::Type(name) => self.named_type(name),
            TypeOf::Expr(expr) => match &expr.kind {
                ExprKind::Name(name) => match self.parameter_type(name, expr.span) {
                    Some(ty) => ty,
                    None => self.silent_type(expr),
                },
                ExprKind::Type(ty) => self.type_of(ty),
                _ => self.silent_type(expr),
            },
        }
    }
    /// The type of an expression that is not evaluated.
    fn silent_type(&mut self, expr: &'a Expr) -> Type {
        let needs = self.needs.clone();
        let ty = self.expr(expr).ty;
        self.needs = needs;
        ty
    }
    /// The type for which a name stands: a parameter of a macro, or a type without definition.
    fn parameter_type(&mut self, name: &str, span: Span) -> Option<Type> {
        if let Some(Bound::Expr(expr, frame)) = self.here().params.get(name).cloned() {
            return Some(self.elsewhere(frame, |checker| match &expr.kind {
                ExprKind::Type(ty) => checker.type_of(ty),
                _ => checker.silent_type(expr),
            }));
        }
        let name = TypeName { kind: TypeKind::Named(name.to_owned()), span };
        self.layouts.resolve(&name)
    }
    /// A type by its written name.
    pub(super) fn named_type(&mut self, name: &'a TypeName) -> Type {
        let ty = match &name.kind {
            TypeKind::Named(text) => self.parameter_type(text, name.span),
            TypeKind::Pointer(to) => Some(Type::pointer(self.named_type(to))),
            TypeKind::Array(of, Some(count)) => match self.named_type(of) {
                Type::Text(0) => Some(Type::Text(u32::try_from(*count).unwrap_or(u32::MAX))),
                Type::Buffer(0) => Some(Type::Buffer(u32::try_from(*count).unwrap_or(u32::MAX))),
                Type::None => Some(Type::None),
                of => Some(Type::Array(Rc::new(of), u32::try_from(*count).unwrap_or(u32::MAX))),
            },
            TypeKind::Array(of, None) => Some(Type::Array(Rc::new(self.named_type(of)), 0)),
            TypeKind::Struct(_) | TypeKind::Enum(_) => self.layouts.resolve(name),
        };
        match ty {
            Some(ty) => ty,
            None => {
                let text = match &name.kind {
                    TypeKind::Enum(text) => format!("Unknown enum: {text}"),
                    TypeKind::Named(text) => format!("Cannot resolve unknown type \"{text}\""),
                    _ => "Cannot resolve unknown type".to_owned(),
                };
                self.error(text, name.span);
                Type::None
            }
        }
    }
    /// The size of a type; structures by their definitions.
    pub(super) fn size_of(&self, ty: &Type) -> u32 {
        ty.size()
    }
    /// `(type)value`.
    pub(super) fn cast(&mut self, ty: &'a TypeOf, of: &'a Expr, span: Span) -> Typed {
        let ty = self.type_of(ty);
        let value = self.expr(of);
        let value = self.read_sum(value);
        if ty.is_none() || value.ty.is_none() {
            if self.last && value.ty.is_none() && !ty.is_none() {
                return self.fail("Cannot cast from \"none\" type", span);
            }
            return Typed::nothing(&self.at(span));
        }
        self.cast_to(ty, value, span)
    }
    fn cast_to(&mut self, ty: Type, value: Typed, span: Span) -> Typed {
        let at = self.at(span);
        let fits = |a: u32, b: u32| a == b;
        let ok = match (&value.ty, &ty) {
            (Type::Int(_) | Type::Bool | Type::Pointer(_), Type::Int(_) | Type::Bool | Type::Pointer(_)) => {
                true
            }
            (Type::Int(_), Type::Username | Type::Text(_)) => matches!(ty, Type::Username),
            (Type::Array(..) | Type::Text(_), Type::Int(int)) => {
                value.ty.size() >= u32::from(int.size) || matches!(value.ty, Type::Array(..))
            }
            (Type::Int(int), Type::Array(of, count)) => {
                let size = self.size_of(of);
                if *count == 0 {
                    return self.cast_to_whole(of.clone(), size, u32::from(int.size), value, span);
                }
                // A literal is as wide as the array.
                let total = size.saturating_mul(*count);
                fits(total, u32::from(int.size)) || int.flexible && total <= 8
            }
            (Type::Text(length), Type::Array(of, count)) => {
                let size = self.size_of(of);
                if *count == 0 {
                    return self.cast_to_whole(of.clone(), size, *length, value, span);
                }
                size == 1 && *count >= *length
            }
            (Type::Array(..), Type::Array(of, count)) => fits(self.size_of(of) * *count, value.ty.size()),
            (Type::Text(_), Type::Text(_)) | (Type::Array(..), Type::Text(_)) => true,
            (Type::Text(_), Type::Pointer(_)) => matches!(&*value.op, Op::Local(_) | Op::Text(_)),
            (old, new) => old == new,
        };
        if !ok {
            let old = &value.ty;
            return self.fail(format!("Cannot cast from \"{old}\" to \"{ty}\""), span);
        }
        self.check_variant(&ty, &value, span);
        if let (Some(constant), Type::Int(int)) = (value.constant(), &ty) {
            return Typed::int(crate::bytes::wrap(constant, int), ty, &at);
        }
        Typed::new(Op::Cast(value), ty, &at)
    }
    /// A cast to an array that is as long as the value.
    fn cast_to_whole(&mut self, of: Rc<Type>, size: u32, length: u32, value: Typed, span: Span) -> Typed {
        if size == 0 || !length.is_multiple_of(size) {
            let message =
                "Cannot determine array size: the element size is incompatible with the cast integer size";
            return self.fail(message, span);
        }
        let ty = Type::Array(of, length / size);
        Typed::new(Op::Cast(value), ty, &self.at(span))
    }
    /// Whether an enumeration has the value that is cast to it.
    fn check_variant(&mut self, ty: &Type, value: &Typed, span: Span) {
        if let (Type::Int(int), Some(constant)) = (ty, value.constant())
            && let Some(of) = &int.of
            && self.layouts.has_enum(of)
            && self.layouts.variant(of, constant).is_none()
        {
            self.error(format!("Enum: {of} doesn't contain a variant value of {constant}"), span);
        }
    }
}
