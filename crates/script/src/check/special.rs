//! Functions that need more than the table says: of maps, texts, formats.
//!
//! In: a row and arguments. Out: typed expressions. Does not: compute anything.

use std::rc::Rc;

use super::checker::Checker;
use crate::calls::{Arg, Function, Meaning};
use crate::diagnostic::Diagnostic;
use crate::format::Format;
use crate::memory::{FileVariable, READ_BYTES, RETURNED_BYTES};
use crate::program::{Op, Typed};
use crate::shown::Shown;
use crate::source::Span;
use crate::tree::{Expr, ExprKind, TypeOf};
use crate::types::{Sum, Type};

/// Most bytes of a text whose length is asked for.
const LONG_TEXT: u32 = 512;

impl<'a> Checker<'a> {
    /// A function with rules of its own; `None` if it has none.
    pub(super) fn special(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Option<Typed> {
        Some(match row.meaning {
            Meaning::Print => self.print(args, span),
            Meaning::Clear | Meaning::Zero => self.whole_map(row, args, span),
            Meaning::Delete => self.delete(args, span),
            Meaning::HasKey | Meaning::Find => self.has_key(row, args, span),
            Meaning::Len => self.len(args, span),
            Meaning::Str | Meaning::Buf => self.text_at(row, args, span),
            Meaning::Getopt => self.getopt(args, span),
            Meaning::Bswap => {
                let value = self.argument(row.name, Arg::Int, &args[0]);
                let ty = Type::uint(value.ty.size().clamp(1, 8) as u8);
                Typed::new(Op::Call { meaning: row.meaning, args: vec![value] }, ty, &self.at(span))
            }
            Meaning::Pton => self.pton(args, span),
            Meaning::Reg => self.register(row, args, span),
            Meaning::Uaddr => self.file_variable(row, args, span),
            Meaning::Args => self.all_arguments(span),
            Meaning::Macaddr => self.bytes_of(row, args, span),
            Meaning::Ntop => self.ntop(args, span),
            Meaning::ContainerOf => self.container_of(args, span),
            Meaning::Strftime => self.strftime(args, span),
            Meaning::Config => self.fail("config() has settings: use config().name", span),
            Meaning::Join => {
                self.needs.unavailable.push(("an array of texts of the program".to_owned(), self.at(span)));
                return None;
            }
            _ => return None,
        })
    }
    /// The map that an argument is.
    fn map_argument(&mut self, name: &str, arg: &'a Expr) -> Option<usize> {
        if let ExprKind::Map { name: map, key: None } = &arg.kind {
            let index = self.map_named(map, arg.span)?;
            self.note_used(index);
            if self.last && self.maps[index].info.value.is_none() {
                self.error(format!("Undefined map: {map}"), arg.span);
                return None;
            }
            return Some(index);
        }
        if let ExprKind::Name(_) = &arg.kind
            && let Some((arg, frame)) = self.bound(arg)
        {
            return self.elsewhere(frame, |checker| checker.map_argument(name, arg));
        }
        self.error(format!("{name}() expects a map to be provided"), arg.span);
        None
    }
    /// The expression for which a parameter of a macro stands.
    fn bound(&mut self, arg: &Expr) -> Option<(&'a Expr, usize)> {
        let ExprKind::Name(name) = &arg.kind else { return None };
        match self.here().params.get(name) {
            Some(super::checker::Bound::Expr(expr, frame)) => Some((*expr, *frame)),
            _ => None,
        }
    }
    /// Whether an argument is a map without key.
    fn is_map(&mut self, arg: &'a Expr) -> bool {
        match self.bound(arg) {
            Some((arg, frame)) => self.elsewhere(frame, |checker| checker.is_map(arg)),
            None => matches!(arg.kind, ExprKind::Map { key: None, .. }),
        }
    }
    fn on_map(&mut self, meaning: Meaning, map: usize, args: Vec<Typed>, ty: Type, span: Span) -> Typed {
        Typed::new(Op::OnMap { meaning, map, args }, ty, &self.at(span))
    }
    fn print(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        if self.is_map(&args[0]) {
            let Some(map) = self.map_argument("print", &args[0]) else { return Typed::nothing(&at) };
            let numbers: Vec<Typed> =
                args[1..].iter().map(|arg| self.argument("print", Arg::Number, arg)).collect();
            let info = &self.maps[map].info;
            if numbers.len() == 2 && matches!(info.value, Type::Sum(Sum::Stats, _)) {
                self.warn("The div argument has no effect on stats maps", span);
            }
            return self.on_map(Meaning::Print, map, numbers, Type::None, span);
        }
        if args.len() > 1 {
            let count = args.len();
            return self.fail(format!("Non-map print() only takes 1 argument, {count} found"), span);
        }
        let value = self.expr(&args[0]);
        let value = self.read_sum(value);
        match &value.ty {
            Type::None if !self.last => value,
            Type::None | Type::Void | Type::Sum(..) => {
                let ty = &value.ty;
                self.fail(format!("{ty} type passed to print() is not printable"), span)
            }
            _ => Typed::new(Op::Call { meaning: Meaning::Print, args: vec![value] }, Type::None, &at),
        }
    }
    fn whole_map(&mut self, row: &Function, args: &'a [Expr], span: Span) -> Typed {
        match self.map_argument(row.name, &args[0]) {
            Some(map) => self.on_map(row.meaning, map, Vec::new(), Type::None, span),
            None => Typed::nothing(&self.at(span)),
        }
    }
    /// `delete(@a, key)`, `delete(@a)`, and the older `delete(@a[key])`.
    fn delete(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        if let (ExprKind::Map { name, key: Some(key) }, 1) = (&args[0].kind, args.len()) {
            let Some(map) = self.map_named(name, args[0].span) else { return Typed::nothing(&at) };
            let key = self.map_key(map, Some(key), args[0].span);
            return self.on_map(Meaning::Delete, map, key.into_iter().collect(), Type::Bool, span);
        }
        let Some(map) = self.map_argument("delete", &args[0]) else { return Typed::nothing(&at) };
        let keyed = self.maps[map].keyed;
        if args.len() == 1 {
            if keyed == Some(true) {
                let message = "call to delete() with a single argument expects a map without explicit keys (scalar map)";
                return self.fail(message, span);
            }
            return self.on_map(Meaning::Delete, map, Vec::new(), Type::Bool, span);
        }
        if keyed == Some(false) {
            let message =
                "call to delete() with two arguments expects a map with explicit keys (non-scalar map)";
            return self.fail(message, span);
        }
        let key = self.expr(&args[1]);
        let key = self.checked_key(map, key, span);
        self.on_map(Meaning::Delete, map, vec![key], Type::Bool, span)
    }
    fn has_key(&mut self, row: &Function, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let Some(map) = self.map_argument(row.name, &args[0]) else { return Typed::nothing(&at) };
        if self.maps[map].keyed == Some(false) {
            let name = row.name;
            return self
                .fail(format!("call to {name}() expects a map with explicit keys (non-scalar map)"), span);
        }
        let key = self.expr(&args[1]);
        let key = self.checked_key(map, key, args[1].span);
        if row.meaning == Meaning::HasKey {
            return self.on_map(row.meaning, map, vec![key], Type::Bool, span);
        }
        let ExprKind::Variable(name) = &args[2].kind else {
            return self.fail("find() expects a variable as its third argument", args[2].span);
        };
        let slot = match self.variable(name) {
            Some(variable) => variable.slot,
            None => self.declare(name, args[2].span),
        };
        let ty = match self.maps[map].info.value.clone() {
            Type::Sum(_, true) => Type::int(8),
            Type::Sum(_, false) => Type::uint(8),
            other => other,
        };
        if !ty.is_none() {
            self.grow_local(slot, name, &ty, span);
        }
        Typed::new(Op::Find { map, key, slot }, Type::Bool, &at)
    }
    fn len(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        if self.is_map(&args[0]) {
            let Some(map) = self.map_argument("len", &args[0]) else { return Typed::nothing(&at) };
            if self.maps[map].keyed == Some(false) {
                let message = "call to len() expects a map with explicit keys (non-scalar map)";
                return self.fail(message, span);
            }
            return self.on_map(Meaning::Len, map, Vec::new(), Type::int(8), span);
        }
        let value = self.expr(&args[0]);
        if value.ty != Type::Stack && (self.last || !value.ty.is_none()) {
            return self.fail("call to len() expects a map or ustack", span);
        }
        Typed::new(Op::Call { meaning: Meaning::Len, args: vec![value] }, Type::int(8), &at)
    }
    /// `str(x, n)` and `buf(x, n)`.
    fn text_at(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let is_str = row.meaning == Meaning::Str;
        let value = match self.parameter_text(&args[0]) {
            Some(text) => text,
            None => self.expr(&args[0]),
        };
        let value = self.read_sum(value);
        let known = matches!(&value.ty, Type::Text(_) | Type::Array(..) | Type::Buffer(_));
        let at_address = value.ty.is_number() || matches!(value.ty, Type::Pointer(_));
        if !known && !at_address && (self.last || !value.ty.is_none()) {
            let (name, ty) = (row.name, &value.ty);
            return self
                .fail(format!("{name}() expects an integer or pointer argument ({ty} provided)"), span);
        }
        if !is_str && !known && args.len() < 2 && !value.ty.is_none() {
            let ty = &value.ty;
            return self.fail(format!("buf() expects a length argument for non-array type {ty}"), span);
        }
        let mut typed = vec![value];
        if let Some(length) = args.get(1) {
            let length = self.argument(row.name, Arg::Int, length);
            if length.constant().is_some_and(|length| length < 0) {
                return self.fail(format!("{}() cannot use negative length", row.name), span);
            }
            typed.push(length);
        }
        let most = self.config.max_strlen.min(if at_address { self.recorded_text(&typed) } else { u32::MAX });
        let ty = if is_str { Type::Text(most) } else { Type::Buffer(most) };
        Typed::new(Op::Call { meaning: row.meaning, args: typed }, ty, &self.at(span))
    }
    /// How much of a text at an address, or of so many bytes there, a block can have.
    fn recorded_text(&self, args: &[Typed]) -> u32 {
        let length = args.get(1).and_then(Typed::constant).and_then(|length| u32::try_from(length).ok());
        match &*args[0].op {
            Op::Positional { .. } | Op::Int(_) => u32::MAX,
            _ if self.of_program().is_none() => u32::MAX,
            Op::Call { meaning: Meaning::Retval, .. } => RETURNED_BYTES,
            _ if self.sorts.contains(&"usdt") => READ_BYTES,
            _ => length.unwrap_or(READ_BYTES).clamp(READ_BYTES, LONG_TEXT),
        }
    }
    /// `$1` and `$1 + n` in `str` are the text of the parameter.
    fn parameter_text(&mut self, arg: &'a Expr) -> Option<Typed> {
        let at = self.at(arg.span);
        let (index, offset) = match &arg.kind {
            ExprKind::Positional(index) => (*index, Typed::int(0, Type::int(8), &at)),
            ExprKind::Binary { op: crate::tree::Binary::Add, left, right } => match (&left.kind, &right.kind)
            {
                (ExprKind::Positional(index), _) => (*index, self.number(right)),
                (_, ExprKind::Positional(index)) => (*index, self.number(left)),
                _ => return None,
            },
            _ => return None,
        };
        Some(Typed::new(Op::Positional { index: index - 1, offset }, Type::int(8), &at))
    }
    /// A register of the hit.
    fn register(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let name = self.argument(row.name, Arg::Literal, &args[0]);
        let text = String::from_utf8_lossy(name.literal().unwrap_or_default()).into_owned();
        let known = self.options.registers.iter().map(String::as_str);
        if name.literal().is_some() && !known.clone().any(|known| known == text) {
            let at = self.at(span);
            let error = Diagnostic::error(format!("'{text}' is not a register that is recorded"), at.clone());
            self.say(error.hint(format!("registers are {}", known.collect::<Vec<_>>().join(", "))));
            return Typed::nothing(&at);
        }
        Typed::new(Op::Call { meaning: row.meaning, args: vec![name] }, Type::uint(8), &self.at(span))
    }
    /// The address of a variable of the probed file: its name, and then its address there. It points to a number as wide as the
    /// variable.
    fn file_variable(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let (name, at) = (self.argument(row.name, Arg::Literal, &args[0]), self.at(span));
        let Some(text) = name.literal().map(|text| String::from_utf8_lossy(text).into_owned()) else {
            return Typed::nothing(&at);
        };
        let mut first: Option<FileVariable> = None;
        for probe in &self.probes.clone() {
            let unknown = || "the probed file is not known here".to_owned();
            let found = self.options.declared.as_ref().ok_or_else(unknown);
            let found = found.and_then(|declared| declared.variable(probe, &text));
            let wrong = match (found, &first) {
                (Ok(one), Some(other)) if one != *other => {
                    "it is another one at each of the block's probes".to_owned()
                }
                (Ok(one), _) => {
                    first = Some(one);
                    continue;
                }
                (Err(why), _) => why,
            };
            return self.fail(format!("Could not resolve symbol: {text}: {wrong}"), span);
        }
        let Some(FileVariable { at: address, size, .. }) = first else { return Typed::nothing(&at) };
        let bytes = if matches!(size, 1 | 2 | 4) { size as u8 } else { 8 };
        let address = Typed::int(address as i64, Type::uint(8), &at);
        let args = vec![name, address];
        Typed::new(Op::Call { meaning: row.meaning, args }, Type::pointer(Type::uint(bytes)), &at)
    }
    fn pton(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let text = self.argument("pton", Arg::Literal, &args[0]);
        let text = String::from_utf8_lossy(text.literal().unwrap_or_default()).into_owned();
        let bytes = match text.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(address)) => address.octets().to_vec(),
            Ok(std::net::IpAddr::V6(address)) => address.octets().to_vec(),
            Err(_) if self.last => {
                return self.fail(format!("pton() expects a valid IPv4/IPv6 address, got {text}"), span);
            }
            Err(_) => return Typed::nothing(&at),
        };
        let ty = Type::Array(Rc::new(Type::uint(1)), bytes.len() as u32);
        Typed::new(Op::Text(bytes.into()), ty, &at)
    }
    fn bytes_of(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let value = self.expr(&args[0]);
        match &value.ty {
            Type::Array(..) | Type::Pointer(_) => {}
            Type::Text(_) if !matches!(&*value.op, Op::Text(_)) => {}
            Type::None if !self.last => return value,
            ty => {
                let message =
                    format!("{}() only supports array or pointer arguments ({ty} provided)", row.name);
                return self.fail(message, span);
            }
        }
        Typed::new(Op::Call { meaning: row.meaning, args: vec![value] }, Type::Mac, &self.at(span))
    }
    fn ntop(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let typed: Vec<Typed> = args.iter().map(|arg| self.expr(arg)).collect();
        let Some(address) = typed.last() else { return Typed::nothing(&self.at(span)) };
        let ok = address.ty.is_number() || matches!(address.ty, Type::Array(..) | Type::Text(_));
        if !ok && (self.last || !address.ty.is_none()) {
            let ty = &address.ty;
            return self.fail(format!("ntop() expects an integer or array argument, got {ty}"), span);
        }
        Typed::new(Op::Call { meaning: Meaning::Ntop, args: typed }, Type::Inet, &self.at(span))
    }
    /// The structure of which a pointer's target is a field.
    fn container_of(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let pointer = self.expr(&args[0]);
        let (ExprKind::Type(ty), ExprKind::Name(field)) = (&args[1].kind, &args[2].kind) else {
            return self.fail("container_of() expects a pointer, typeof(type), and a field", span);
        };
        let ty: &'a TypeOf = ty;
        let owner = self.type_of(ty);
        let offset = self.offset_of(ty, std::slice::from_ref(field), span);
        let Some(offset) = offset.constant() else { return Typed::nothing(&at) };
        let by = Typed::int(-offset, Type::int(8), &at);
        Typed::new(Op::Offset { pointer, by, scale: 1 }, Type::pointer(owner), &at)
    }
    fn strftime(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let format = self.argument("strftime", Arg::Literal, &args[0]);
        let moment = self.argument("strftime", Arg::Int, &args[1]);
        if moment.constant().is_some_and(|moment| moment < 0) && moment.ty.is_signed() {
            return self.fail("strftime() does not accept negative timestamps", span);
        }
        // A time of a clock that is not the default one says so itself.
        let clock = match &*moment.op {
            Op::Call { meaning: Meaning::Nsecs, args } => args.first().cloned(),
            _ => None,
        };
        if clock.as_ref().and_then(Typed::literal) == Some(b"monotonic") {
            return self.fail("strftime() can not take a monotonic timestamp", span);
        }
        let mut typed = vec![format, moment];
        typed.extend(clock);
        Typed::new(Op::Call { meaning: Meaning::Strftime, args: typed }, Type::Timestamp, &self.at(span))
    }
    /// `printf` and all that take a format.
    pub(super) fn formatted(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let literal = self.argument(row.name, Arg::Literal, &args[0]);
        let Some(text) = literal.literal() else { return Typed::nothing(&at) };
        let format = Format::parse(text);
        let typed: Vec<Typed> = args[1..]
            .iter()
            .map(|arg| {
                let value = self.expr(arg);
                self.read_sum(value)
            })
            .collect();
        if !self.last {
            return Typed::nothing(&at);
        }
        let types: Vec<Type> = typed.iter().map(|arg| arg.ty.clone()).collect();
        if let Err(message) = format.check(&types) {
            return self.fail(format!("{}(): {message}", row.name), span);
        }
        if row.meaning == Meaning::Fail {
            let shown: Vec<Shown> = typed.iter().map(as_shown).collect();
            let text = String::from_utf8_lossy(&format.apply(&shown)).into_owned();
            return self.fail(text, span);
        }
        let op = Op::Format { meaning: row.meaning, format: Rc::new(format), args: typed };
        Typed::new(op, Type::None, &at)
    }
}

/// A literal as it is shown.
fn as_shown(value: &Typed) -> Shown {
    match (value.literal(), value.constant()) {
        (Some(text), _) => Shown::Text(text.to_vec()),
        (_, Some(number)) => Shown::Int(number),
        _ => Shown::Text(b"?".to_vec()),
    }
}
