//! Fields, elements, parts of tuples, and what pointers point to.
//!
//! In: expressions of the tree. Out: typed expressions: of bytes that a value has, or of memory. Does not: read memory.

use super::checker::Checker;
use crate::calls::Meaning;
use crate::config::{Config, Setting};
use crate::diagnostic::{At, Diagnostic};
use crate::fields::{Bits, Field};
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::suggest::nearest;
use crate::tree::{Expr, ExprKind, TypeOf};
use crate::types::Type;

impl<'a> Checker<'a> {
    /// `value.name`.
    pub(super) fn field(&mut self, of: &'a Expr, name: &str, span: Span) -> Typed {
        if let ExprKind::Name(function) | ExprKind::Call { name: function, .. } = &of.kind
            && crate::calls::find(function).is_some_and(|row| row.meaning == Meaning::Config)
        {
            return self.setting(name, span);
        }
        if matches!(&of.kind, ExprKind::Name(function) if function == "args" && !self.has_macro("args", 0)) {
            return self.argument_named(name, span);
        }
        let value = self.expr(of);
        let at = self.at(span);
        match value.ty.clone() {
            Type::None if !self.last => Typed::nothing(&at),
            Type::Record(fields) => match fields.iter().position(|(field, _)| field == name) {
                Some(index) => Typed::new(Op::Part(value, index), fields[index].1.clone(), &at),
                None => {
                    let names = fields.iter().map(|(field, _)| field.as_str());
                    self.no_field(&value.ty, name, nearest(name, names), span)
                }
            },
            Type::Struct(owner, _) => match self.field_of(&owner, &value.ty, name, span) {
                Some(field) => {
                    let offset = Typed::int(i64::from(field.offset), Type::uint(4), &at);
                    self.slice(value, offset, 1, field.bits, field.ty, &at)
                }
                None => Typed::nothing(&at),
            },
            Type::Pointer(to) => self.field_behind(value, &to, name, span),
            other => self.fields_of_none(&other, name, span),
        }
    }
    /// `pointer->name`; `to` is what the pointer leads to.
    fn field_behind(&mut self, pointer: Typed, to: &Type, name: &str, span: Span) -> Typed {
        let at = self.at(span);
        let Type::Struct(owner, _) = to else { return self.fields_of_none(to, name, span) };
        let Some(field) = self.field_of(owner, to, name, span) else { return Typed::nothing(&at) };
        let by = Typed::int(i64::from(field.offset), Type::int(8), &at);
        let ty = pointer.ty.clone();
        let address = Typed::new(Op::Offset { pointer, by, scale: 1 }, ty, &at);
        self.load(address, field.ty, field.bits, span)
    }
    /// A type that has no fields.
    fn fields_of_none(&mut self, ty: &Type, name: &str, span: Span) -> Typed {
        self.fail(format!("Can not access field '{name}' on expression of type '{ty}'"), span)
    }
    fn no_field(&mut self, owner: &Type, name: &str, near: Option<&str>, span: Span) -> Typed {
        let at = self.at(span);
        let mut error =
            Diagnostic::error(format!("{owner} does not contain a field named '{name}'"), at.clone());
        if let Some(near) = near {
            error = error.hint(format!("Did you mean {near}?"));
        }
        self.say(error);
        Typed::nothing(&at)
    }
    /// A field of a structure.
    fn field_of(&mut self, owner: &str, ty: &Type, name: &str, span: Span) -> Option<Field> {
        let Some(laid) = self.layouts.structure(owner) else {
            self.error(format!("Unknown struct/union: 'struct {owner}'"), span);
            return None;
        };
        if let Some(field) = laid.field(name) {
            // A text in a structure may fill all of it.
            let ty = match &field.ty {
                Type::Text(size) => Type::Text(size.saturating_add(1)),
                other => other.clone(),
            };
            return Some(Field { ty, ..field.clone() });
        }
        let near = nearest(name, laid.fields.iter().map(|field| field.name.as_str())).map(str::to_owned);
        self.no_field(ty, name, near.as_deref(), span);
        None
    }
    /// A setting, as `config().name` reads it.
    fn setting(&mut self, name: &str, span: Span) -> Typed {
        let at = self.at(span);
        match self.config.get(name) {
            Some(Setting::Number(value)) => Typed::int(value, Type::uint(8), &at),
            Some(Setting::Bool(value)) => Typed::int(i64::from(value), Type::Bool, &at),
            Some(Setting::Text(text)) => self.literal(text.as_bytes(), span),
            None => {
                let near = nearest(name, Config::names()).map(|near| format!("Did you mean {near}?"));
                let mut error =
                    Diagnostic::error(format!("{name}: not a known configuration option"), at.clone());
                error.hints.extend(near);
                self.say(error);
                Typed::nothing(&at)
            }
        }
    }
    /// A part of a tuple.
    pub(super) fn item(&mut self, of: Typed, index: usize, span: Span) -> Typed {
        let at = self.at(span);
        let Type::Tuple(parts) = of.ty.clone() else {
            if of.ty.is_none() && !self.last {
                return Typed::nothing(&at);
            }
            let ty = &of.ty;
            return self.fail(format!("Can not access index '{index}' on expression of type '{ty}'"), span);
        };
        match parts.get(index) {
            Some(ty) => Typed::new(Op::Part(of, index), ty.clone(), &at),
            None => {
                let count = parts.len();
                self.fail(format!("Invalid tuple index: {index}. Found {count} elements in tuple."), span)
            }
        }
    }
    /// `value[index]`.
    pub(super) fn element(&mut self, of: &'a Expr, index: &'a Expr, span: Span) -> Typed {
        let at = self.at(span);
        let value = self.expr(of);
        let index_span = index.span;
        let index = self.number(index);
        let constant = index.constant();
        if constant.is_some_and(|constant| constant < 0) {
            let ty = &index.ty;
            let message =
                format!("The array index operator [] only accepts non-negative integer indices. Got: {ty}");
            return self.fail(message, index_span);
        }
        match value.ty.clone() {
            Type::None if !self.last => Typed::nothing(&at),
            Type::Tuple(_) => match constant {
                Some(index) => self.item(value, usize::try_from(index).unwrap_or(usize::MAX), span),
                None => self.fail("the index of a tuple must be known before the script runs", index_span),
            },
            Type::Array(_, count) if count > 0 && constant.is_some_and(|nth| nth >= i64::from(count)) => {
                let nth = constant.unwrap_or_default();
                self.fail(format!("the index {nth} is out of bounds for array of size {count}"), span)
            }
            Type::Array(of, _) => self.array_element(value, index, (*of).clone(), span),
            Type::Text(_) | Type::Buffer(_) => {
                let slice = Op::Slice { of: value, offset: index, scale: 1, bits: None };
                Typed::new(slice, Type::int(1), &at)
            }
            Type::Pointer(to) if matches!(&*to, Type::Void | Type::None) => self.fail(
                "The array index operator [] cannot be used on a pointer to an unsized type (void *).",
                span,
            ),
            Type::Pointer(to) => {
                let (scale, ty) = (self.pointee_size(&value.ty), value.ty.clone());
                let address = Typed::new(Op::Offset { pointer: value, by: index, scale }, ty, &at);
                self.load(address, (*to).clone(), None, span)
            }
            other => {
                let message = format!(
                    "The array index operator [] can only be used on arrays and pointers, found {other}."
                );
                self.fail(message, span)
            }
        }
    }
    fn array_element(&mut self, value: Typed, index: Typed, of: Type, span: Span) -> Typed {
        let scale = self.size_of(&of);
        let at = self.at(span);
        self.slice(value, index, scale, None, of, &at)
    }
    /// A part of what is in memory, or of a value. Of memory, only that part is loaded if its place is known.
    fn slice(&self, of: Typed, offset: Typed, scale: u32, bits: Option<Bits>, ty: Type, at: &At) -> Typed {
        match (&*of.op, offset.constant()) {
            (Op::Load { address, bits: None }, Some(_)) => {
                let (to, pointer) = (address.ty.clone(), address.clone());
                let address = Typed::new(Op::Offset { pointer, by: offset, scale: i64::from(scale) }, to, at);
                Typed::new(Op::Load { address, bits }, ty, at)
            }
            _ => Typed::new(Op::Slice { of, offset, scale, bits }, ty, at),
        }
    }
    /// `*pointer`.
    pub(super) fn deref(&mut self, of: &'a Expr, span: Span) -> Typed {
        let value = self.expr(of);
        match value.ty.clone() {
            Type::Pointer(to) => match &*to {
                Type::Void | Type::None => {
                    self.fail("Can not dereference type 'void *'. It has no size.", span)
                }
                _ => self.load(value, (*to).clone(), None, span),
            },
            Type::Int(int) => {
                let ty = if int.signed { Type::int(int.size) } else { Type::uint(int.size) };
                let ty = if value.constant().is_some() { Type::uint(8) } else { ty };
                self.load(value, ty, None, span)
            }
            Type::None if !self.last => Typed::nothing(&self.at(span)),
            other => self.fail(format!("Can not dereference type '{other}'. It is not a pointer."), span),
        }
    }
    /// What is at an address.
    pub(super) fn load(&mut self, address: Typed, ty: Type, bits: Option<Bits>, span: Span) -> Typed {
        if let Type::Struct(name, 0) = &ty
            && self.layouts.structure(name).is_none()
        {
            return self.fail(format!("Unknown struct/union: 'struct {name}'"), span);
        }
        Typed::new(Op::Load { address, bits }, ty, &self.at(span))
    }
    /// `&$x`.
    pub(super) fn address_of(&mut self, of: &'a Expr, span: Span) -> Typed {
        let ExprKind::Variable(name) = &of.kind else {
            return self.fail("the address of a map is not available; use its value", span);
        };
        match self.variable(name) {
            Some(variable) => {
                let ty = self.local(variable.slot);
                Typed::new(Op::AddressOfLocal(variable.slot), Type::pointer(ty), &self.at(span))
            }
            None => self.fail(format!("Undefined or undeclared variable: ${name}"), span),
        }
    }
    /// `offsetof(type, field.field)`.
    pub(super) fn offset_of(&mut self, ty: &'a TypeOf, fields: &[String], span: Span) -> Typed {
        let mut ty = self.type_of(ty);
        let mut offset = 0u32;
        for name in fields {
            let Type::Struct(owner, _) = &ty else {
                return self.fail(format!("'{ty}' is not a C type."), span);
            };
            let Some(laid) = self.layouts.structure(owner) else {
                return self.fail(format!("'struct {owner}' does not exist."), span);
            };
            let Some(field) = laid.field(name) else {
                return self.fail(format!("'struct {owner}' has no field named '{name}'"), span);
            };
            offset = offset.saturating_add(field.offset);
            ty = field.ty.clone();
        }
        Typed::int(i64::from(offset), Type::of_literal(u64::from(offset)), &self.at(span))
    }
}
