//! Values ↔ bytes, as C lays them out, in little endian.
//!
//! In: values or bytes, with types. Out: the other. Invariants: decoding what was encoded gives the value again, within
//! its type; bytes that are missing are zero. Does not: read memory.

use crate::fields::Bits;
use crate::types::{Int, Type, layout};
use crate::value::Value;

/// A number as an integer type holds it, extended to 64 bits.
pub(crate) fn wrap(value: i64, int: &Int) -> i64 {
    let unused = 64 - u32::from(int.size.clamp(1, 8)) * 8;
    match int.signed {
        true => value << unused >> unused,
        false => ((value as u64) << unused >> unused) as i64,
    }
}

/// A number of `bytes`, of which those that are missing are zero.
fn number(bytes: &[u8], size: usize) -> u64 {
    bytes.iter().take(size.min(8)).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The value of a type that bytes hold.
pub(crate) fn decode(bytes: &[u8], ty: &Type) -> Value {
    let part = |offset: u32, ty: &Type| {
        let from = (offset as usize).min(bytes.len());
        decode(&bytes[from..], ty)
    };
    let padded = |size: u32| -> Value {
        let mut all = bytes[..bytes.len().min(size as usize)].to_vec();
        all.resize(size as usize, 0);
        Value::Bytes(all.into())
    };
    match ty {
        Type::Int(int) => Value::Int(wrap(number(bytes, usize::from(int.size)) as i64, int)),
        Type::Bool => Value::from(bytes.first().is_some_and(|byte| *byte != 0)),
        Type::Text(size) => {
            let all = &bytes[..bytes.len().min(*size as usize)];
            let end = all.iter().position(|byte| *byte == 0).unwrap_or(all.len());
            Value::of_text(&all[..end])
        }
        Type::Array(..) | Type::Struct(..) => padded(ty.size()),
        Type::Buffer(size) => padded(*size),
        Type::Tuple(parts) => {
            let (offsets, _) = layout(parts.iter());
            Value::Parts(offsets.iter().zip(parts.iter()).map(|(at, ty)| part(*at, ty)).collect())
        }
        Type::Record(fields) => {
            let (offsets, _) = layout(fields.iter().map(|(_, ty)| ty));
            Value::Parts(offsets.iter().zip(fields.iter()).map(|(at, (_, ty))| part(*at, ty)).collect())
        }
        Type::None | Type::Void => Value::Nothing,
        _ => Value::Int(number(bytes, 8) as i64),
    }
}

/// The bytes of a value; as many as its type has.
pub(crate) fn encode(value: &Value, ty: &Type) -> Vec<u8> {
    let size = ty.size() as usize;
    let mut out = match (ty, value) {
        (Type::Tuple(_) | Type::Record(_), value) => {
            let parts = ty.parts();
            let (offsets, _) = layout(parts.iter().copied());
            let mut all = Vec::new();
            for (index, (offset, part)) in offsets.iter().zip(parts).enumerate() {
                all.resize(*offset as usize, 0);
                all.extend(encode(&value.part(index), part));
            }
            all
        }
        (_, Value::Text(bytes) | Value::Bytes(bytes)) => bytes.to_vec(),
        (_, Value::Named(text, _)) => text.as_bytes().to_vec(),
        (_, value) => value.int().to_le_bytes().to_vec(),
    };
    out.resize(size, 0);
    out
}

/// A value in which everything that was never assigned is zero of its type, so equal keys are one key.
pub(crate) fn filled(value: Value, ty: &Type) -> Value {
    match value {
        Value::Nothing => decode(&[], ty),
        Value::Parts(parts) => {
            let types = ty.parts();
            let part = |(index, part): (usize, &Value)| match types.get(index) {
                Some(ty) => filled(part.clone(), ty),
                None => part.clone(),
            };
            Value::Parts(parts.iter().enumerate().map(part).collect())
        }
        value => value,
    }
}

/// The bits of a bit field in the integer that holds them. They have no sign, as in bpftrace, but for those that fill a
/// signed integer.
pub(crate) fn bit_field(value: i64, bits: Bits, ty: &Type) -> i64 {
    if bits.count == 0 {
        return 0;
    }
    let unused = 64 - bits.count.min(64);
    let raised = (value as u64) << 64u32.saturating_sub(bits.from + bits.count).min(63);
    let field = (raised >> unused) as i64;
    if let Type::Int(int) = ty { wrap(field, int) } else { field }
}

#[cfg(test)]
mod tests {
    use super::{bit_field, decode, encode, wrap};
    use crate::fields::Bits;
    use crate::types::{Int, Type};
    use crate::value::Value;

    #[test]
    fn numbers_wrap_as_their_types_do() {
        let int = |size, signed| Int { size, signed, flexible: false, of: None };
        assert_eq!(wrap(255, &int(1, true)), -1);
        assert_eq!(wrap(-1, &int(1, false)), 255);
        assert_eq!(wrap(-1, &int(8, false)), -1);
        assert_eq!(wrap(1 << 40, &int(4, false)), 0);
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let ty = Type::Tuple(vec![Type::int(1), Type::Text(4), Type::int(8)].into());
        let value = Value::Parts([Value::Int(-3), Value::of_text(b"abc"), Value::Int(1 << 50)].into());
        let bytes = encode(&value, &ty);
        assert_eq!(bytes.len(), 16);
        assert_eq!(decode(&bytes, &ty), value);
    }

    #[test]
    fn bit_fields_are_taken_from_their_integer() {
        let ty = Type::uint(8);
        let field = |from, count| bit_field(0x1e, Bits { from, count }, &ty);
        assert_eq!([field(0, 1), field(1, 1), field(2, 2)], [0, 1, 3]);
        assert_eq!(bit_field(0b1000, Bits { from: 0, count: 4 }, &Type::int(4)), 8);
        assert_eq!(bit_field(0xffff_ffff, Bits { from: 0, count: 32 }, &Type::int(4)), -1);
        assert_eq!(bit_field(-1, Bits { from: 1, count: 31 }, &Type::int(4)), 0x7fff_ffff);
        assert_eq!(bit_field(-1, Bits { from: 0, count: 64 }, &ty), -1);
    }
}
