//! Values as they are shown: what text and JSON are written of.
//!
//! In: a value and its type. Out: a [`Shown`], with names put in for numbers where there are any. Does not: write.

use crate::bytes::{bit_field, decode};
use crate::config::Config;
use crate::layout::Layouts;
use crate::types::{Int, Type};
use crate::value::{StackMode, Value};

/// A value that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Vec<u8>),
    Buffer(Vec<u8>),
    Array(Vec<Self>),
    Tuple(Vec<Self>),
    Record(Vec<(String, Self)>),
    /// A text for people, a number for machines.
    Symbolic(Vec<u8>, u64),
}

/// Names the frames of a stack.
type NameStack<'a> = dyn Fn(&[u64], StackMode) -> Vec<u8> + 'a;

/// What showing needs to know.
pub(crate) struct Names<'a> {
    pub(crate) layouts: &'a Layouts,
    pub(crate) config: &'a Config,
    /// Names the frames of a stack.
    pub(crate) stack: Box<NameStack<'a>>,
}

impl std::fmt::Debug for Names<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Shown {
    pub(crate) fn of(value: &Value, ty: &Type, names: &Names<'_>) -> Self {
        match ty {
            Type::None | Type::Void => Self::Null,
            Type::Bool => Self::Bool(value.is_true()),
            Type::Int(int) => Self::number(value.int(), int, names),
            Type::Pointer(_) => {
                let address = value.int() as u64;
                Self::Symbolic(format!("{address:#x}").into_bytes(), address)
            }
            Type::Text(size) => Self::text(value.text(), *size, names),
            Type::Buffer(_) => Self::Buffer(value.text().to_vec()),
            Type::Array(of, count) => {
                let (bytes, size) = (value.text(), of.size() as usize);
                let element = |index: usize| {
                    let from = (index * size).min(bytes.len());
                    Self::of(&decode(&bytes[from..], of), of, names)
                };
                Self::Array((0..*count as usize).map(element).collect())
            }
            Type::Struct(name, _) => Self::structure(name, value.text(), names),
            Type::Tuple(parts) => {
                let part = |(index, ty)| Self::of(&value.part(index), ty, names);
                Self::Tuple(parts.iter().enumerate().map(part).collect())
            }
            Type::Record(fields) => {
                let field = |(index, (name, ty)): (usize, &(String, Type))| {
                    (name.clone(), Self::of(&value.part(index), ty, names))
                };
                Self::Record(fields.iter().enumerate().map(field).collect())
            }
            Type::Stack => match value {
                Value::Stack(frames, mode) => Self::Text((names.stack)(frames, *mode)),
                _ => Self::Text(b"\n".to_vec()),
            },
            Type::Sum(_, true) => Self::Int(value.int()),
            Type::Sum(_, false) => Self::Uint(value.int() as u64),
            Type::Symbol | Type::Inet | Type::Username | Type::Timestamp | Type::Mac | Type::CgroupPath => {
                Self::Text(value.text().to_vec())
            }
        }
    }
    fn number(value: i64, int: &Int, names: &Names<'_>) -> Self {
        if let Some(of) = &int.of {
            let unsigned = value as u64 & 0xffff_ffff;
            let name = names.layouts.variant(of, value).map_or_else(|| value.to_string(), str::to_owned);
            return Self::Symbolic(name.into_bytes(), unsigned);
        }
        if int.signed { Self::Int(value) } else { Self::Uint(value as u64) }
    }
    /// A text; one that fills all of its room was cut off.
    fn text(text: &[u8], size: u32, names: &Names<'_>) -> Self {
        let mut out = text.to_vec();
        if size > 0 && text.len() >= size as usize {
            out.truncate(size as usize);
            out.extend(names.config.str_trunc_trailer.as_bytes());
        }
        Self::Text(out)
    }
    fn structure(name: &str, bytes: &[u8], names: &Names<'_>) -> Self {
        let Some(laid) = names.layouts.structure(name) else { return Self::Null };
        let field = |field: &crate::fields::Field| {
            let from = (field.offset as usize).min(bytes.len());
            // A text in a structure may fill all of its room.
            let ty = match &field.ty {
                Type::Text(size) => Type::Text(size.saturating_add(1)),
                other => other.clone(),
            };
            let room = &bytes[from..bytes.len().min(from + field.ty.size() as usize)];
            let value = decode(room, &ty);
            let value = match field.bits {
                Some(bits) => Value::Int(bit_field(value.int(), bits, &ty)),
                None => value,
            };
            (field.name.clone(), Self::of(&value, &ty, names))
        };
        Self::Record(laid.fields.iter().map(field).collect())
    }
    /// The number, if it is one.
    pub(crate) fn number_of(&self) -> Option<i64> {
        match self {
            Self::Bool(value) => Some(i64::from(*value)),
            Self::Int(value) => Some(*value),
            Self::Uint(value) | Self::Symbolic(_, value) => Some(*value as i64),
            _ => None,
        }
    }
    /// Divides a number.
    pub(crate) fn divided(self, by: i64) -> Self {
        match self {
            Self::Int(value) if by > 1 => Self::Int(value / by),
            Self::Uint(value) if by > 1 => Self::Uint(value / by as u64),
            other => other,
        }
    }
}
