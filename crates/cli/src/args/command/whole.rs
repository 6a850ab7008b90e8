//! Values that consist of several: structures, unions, integers of 16 bytes.
//!
//! In: of what they consist, and their bytes. Out: numbers and text; a debugger shows the same. What bytes are not
//! there for is unknown (`?`, JSON `null`). Does not: know where the bytes come from.

use std::ops::Range;

use trapline::Call;
use trapline::calls::{ReadOutcome, Results};
use trapline::prototypes::{LaidOut, Layout, ParameterPlace, Piece, ValueType};

use super::types::{Type, Value};

/// Registers that hold one value at most.
pub(crate) const MOST: usize = 4;

/// Bytes of a value in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RegisterPart {
    /// Whether it is a vector register.
    pub(crate) vector: bool,
    /// Which argument register of its kind.
    pub(crate) nth: u8,
    /// Where the bytes are in the value, and how many there are.
    pub(crate) offset: u8,
    pub(crate) bytes: u8,
}

/// Vector registers that a record can hold.
const VECTORS: u8 = 8;

/// The registers of a value; `None` if there are more than a record holds, or one is not known.
pub(crate) fn registers(pieces: &[Piece], recorded: u8) -> Option<[Option<RegisterPart>; MOST]> {
    let mut all = [None; MOST];
    if pieces.is_empty() || pieces.len() > MOST {
        return None;
    }
    for (to, piece) in all.iter_mut().zip(pieces) {
        *to = Some(RegisterPart::of(piece, recorded)?);
    }
    Some(all)
}

/// The registers of a returned value, up to one that no record holds; `recorded`: of so many general registers.
pub(crate) fn returned_in(pieces: &[Piece], recorded: u8) -> Vec<RegisterPart> {
    let mut parts = Vec::new();
    for piece in pieces {
        let Some(part) = RegisterPart::of(piece, recorded) else { break };
        parts.push(part);
        if results(&parts).words() > usize::from(Results::MOST) {
            parts.pop();
            break;
        }
    }
    parts
}

/// The registers that a record must hold for these parts.
pub(crate) fn results(parts: &[RegisterPart]) -> Results {
    let many = |vector: bool| {
        parts.iter().filter(|part| part.vector == vector).map(|part| part.nth + 1).max().unwrap_or(0)
    };
    Results { general: many(false), vectors: many(true) }
}

/// The bytes of a value that a call returned in these registers, up to what was not recorded.
pub(crate) fn returned(call: &Call, parts: &[RegisterPart]) -> Vec<u8> {
    let general = results(parts).general;
    let first = call.returned.filter(|_| call.results.is_empty());
    let words = if let Some(first) = &first { std::slice::from_ref(first) } else { &call.results[..] };
    let mut bytes = Vec::new();
    for part in parts {
        let nth = usize::from(if part.vector { general + part.nth } else { part.nth });
        let Some(word) = words.get(nth) else { break };
        part.put(*word, &mut bytes);
    }
    bytes
}

impl RegisterPart {
    /// `None` if no record holds it.
    fn of(piece: &Piece, recorded: u8) -> Option<Self> {
        let (vector, nth) = match piece.place {
            ParameterPlace::General(nth) if nth < recorded => (false, nth),
            ParameterPlace::Vector(nth) if nth < VECTORS => (true, nth),
            _ => return None,
        };
        // Of a vector register the low half is recorded.
        (piece.bytes <= 8).then_some(Self { vector, nth, offset: piece.offset, bytes: piece.bytes })
    }
    /// Adds its bytes behind those of the parts before it.
    fn put(&self, word: u64, bytes: &mut Vec<u8>) {
        bytes.resize(bytes.len().max(usize::from(self.offset)), 0);
        bytes.extend(&word.to_le_bytes()[..usize::from(self.bytes)]);
    }
}

/// The bytes of a value that argument registers held.
pub(crate) fn bytes_of(call: &Call, parts: &[Option<RegisterPart>; MOST]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in parts.iter().flatten() {
        let nth = usize::from(part.nth);
        let word = match part.vector {
            true => *call.floats.get(nth)?,
            false if call.unseen >> (part.nth & 15) & 1 == 1 => return None,
            false => *call.arguments.get(nth)?,
        };
        part.put(word, &mut bytes);
    }
    Some(bytes)
}

/// The bytes of a value that was read in memory as these fields, if all were read.
pub(crate) fn bytes_in(call: &Call, fields: Range<u8>) -> Option<Vec<u8>> {
    let read = call.fields.get(usize::from(fields.start)..usize::from(fields.end))?;
    let is_whole = read.iter().all(|one| one.reading == ReadOutcome::Whole);
    is_whole.then(|| read.iter().flat_map(|one| &one.bytes).copied().collect())
}

/// A value of several parts, as text.
pub(crate) fn show(layout: &Layout, bytes: &[u8]) -> String {
    let within = |offset: u64| bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
    match layout {
        Layout::Value(of, size) => match word(bytes, *size) {
            Some(raw) => Type::from(of.clone()).show(raw),
            None => "?".to_owned(),
        },
        Layout::Wide { .. } => match value(layout, bytes) {
            Value::Nothing => "?".to_owned(),
            value => value.cell(),
        },
        Layout::Record(members) => {
            let one = |member: &LaidOut| {
                let inner = show(&member.of, within(member.offset));
                if member.name.is_empty() { inner } else { format!("{}={inner}", member.name) }
            };
            format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        Layout::OneOf { .. } => form(layout, bytes)
            .map_or_else(|| "?".to_owned(), |of| format!("{}{}", of.name, inner(of, within(of.offset)))),
        Layout::Array(of, stride, count) => {
            let one = |nth: u64| show(of, within(nth.saturating_mul(*stride)));
            format!("{{{}}}", (0..*count).map(one).collect::<Vec<_>>().join(", "))
        }
        Layout::Text(size) => match text(bytes, *size) {
            Some(text) => format!("\"{}\"", text.escape_ascii()),
            None => "?".to_owned(),
        },
        Layout::Bits { of, .. } => match bits(layout, bytes) {
            Some(raw) => Type::from(of.clone()).show(raw),
            None => "?".to_owned(),
        },
        Layout::Unknown => "?".to_owned(),
    }
}

/// A value of several parts, for machines.
pub(crate) fn value(layout: &Layout, bytes: &[u8]) -> Value {
    let within = |offset: u64| bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
    match layout {
        Layout::Value(of, size) => {
            word(bytes, *size).map_or(Value::Nothing, |raw| Type::from(of.clone()).value(raw))
        }
        Layout::Wide { signed } => {
            let whole = bytes.first_chunk::<16>().map(|bytes| u128::from_le_bytes(*bytes));
            match (whole, signed) {
                (None, _) => Value::Nothing,
                (Some(whole), true) => wide(whole.cast_signed(), || whole.cast_signed().to_string()),
                (Some(whole), false) => match i128::try_from(whole) {
                    Ok(fits) => wide(fits, || whole.to_string()),
                    Err(_) => Value::Text(whole.to_string()),
                },
            }
        }
        Layout::Record(members) => {
            let one = |member: &LaidOut| (member.name.clone(), value(&member.of, within(member.offset)));
            // C names the members of a member without a name as its own.
            let each = members.iter().map(one).flat_map(|(name, value)| match value {
                Value::Record(inner) if name.is_empty() => inner,
                value => vec![(name, value)],
            });
            Value::Record(each.collect())
        }
        Layout::OneOf { .. } => match form(layout, bytes) {
            None => Value::Nothing,
            Some(LaidOut { name, of: Layout::Record(members), .. }) if members.is_empty() => {
                Value::Text(name.clone())
            }
            Some(of) => Value::Record(vec![(of.name.clone(), unnamed(value(&of.of, within(of.offset))))]),
        },
        Layout::Array(of, stride, count) => {
            Value::List((0..*count).map(|nth| value(of, within(nth.saturating_mul(*stride)))).collect())
        }
        Layout::Text(size) => text(bytes, *size)
            .map_or(Value::Nothing, |text| Value::Text(String::from_utf8_lossy(text).into_owned())),
        Layout::Bits { of, .. } => {
            bits(layout, bytes).map_or(Value::Nothing, |raw| Type::from(of.clone()).value(raw))
        }
        Layout::Unknown => Value::Nothing,
    }
}

/// An integer of 16 bytes. Most readers of JSON would cut one that does not fit into 64 bits, so that is a text.
fn wide(whole: i128, text: impl FnOnce() -> String) -> Value {
    match i64::try_from(whole).is_ok() || u64::try_from(whole).is_ok() {
        true => Value::Number(whole),
        false => Value::Text(text()),
    }
}

/// The number that so many bytes are.
fn word(bytes: &[u8], size: u8) -> Option<u64> {
    let mut word = [0; 8];
    let size = usize::from(size.min(8));
    word[..size].copy_from_slice(bytes.get(..size)?);
    Some(u64::from_le_bytes(word))
}

fn text(bytes: &[u8], size: u64) -> Option<&[u8]> {
    let bytes = bytes.get(..usize::try_from(size).ok()?)?;
    Some(bytes.split(|byte| *byte == 0).next().unwrap_or(bytes))
}

/// The form that a value has, of several; `None` if that is not known.
fn form<'l>(of: &'l Layout, bytes: &[u8]) -> Option<&'l LaidOut> {
    let Layout::OneOf { tag, forms, .. } = of else { return None };
    let number = match tag {
        Some((at, size)) => Some(word(bytes.get(usize::try_from(*at).ok()?..)?, *size)?),
        None => None,
    };
    let width = tag.map_or(64, |(_, size)| 8 * u32::from(size));
    let low = |tag: u64| tag << (64 - width) >> (64 - width);
    let named = forms.iter().find(|form| form.tag.map(low) == number && number.is_some());
    named.or_else(|| forms.iter().find(|form| form.tag.is_none())).map(|form| &form.of)
}

/// What a form holds: `(5)`, `{side=4}`, nothing.
fn inner(of: &LaidOut, bytes: &[u8]) -> String {
    let Layout::Record(members) = &of.of else { return format!("({})", show(&of.of, bytes)) };
    let all = show(&of.of, bytes);
    match members.first() {
        None => String::new(),
        // Rust calls the members of a tuple `__0` and so on.
        Some(first) if first.name == "__0" => {
            let one = |member: &LaidOut| {
                show(
                    &member.of,
                    bytes.get(usize::try_from(member.offset).unwrap_or(usize::MAX)..).unwrap_or(&[]),
                )
            };
            format!("({})", members.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        Some(_) => all,
    }
}

/// The members of a tuple of Rust's as a list, or the only one.
fn unnamed(of: Value) -> Value {
    match of {
        Value::Record(mut members) if members.first().is_some_and(|(name, _)| name == "__0") => {
            match members.len() {
                1 => members.remove(0).1,
                _ => Value::List(members.into_iter().map(|(_, value)| value).collect()),
            }
        }
        other => other,
    }
}

/// The value of a bit-field, extended by its own sign.
fn bits(of: &Layout, bytes: &[u8]) -> Option<u64> {
    let Layout::Bits { of, bytes: size, from, count } = of else { return None };
    let above = 64_u32.checked_sub(from.checked_add(*count)?)?;
    let raised = word(bytes, *size)?.checked_shl(above)?;
    let unused = 64_u32.checked_sub(*count)?;
    match has_sign(of) {
        true => Some(raised.cast_signed().checked_shr(unused)?.cast_unsigned()),
        false => raised.checked_shr(unused),
    }
}

/// Whether the highest bit of a value is a sign.
pub(crate) const fn has_sign(of: &ValueType) -> bool {
    matches!(of, ValueType::Integer { signed: true, .. } | ValueType::Enumeration { signed: true, .. })
}

#[cfg(test)]
mod tests {
    use trapline::prototypes::{LaidOut, Layout, ValueType};

    use super::{show, value};

    fn int(bytes: u8, signed: bool) -> Layout {
        Layout::Value(ValueType::Integer { bytes, signed }, bytes)
    }

    fn member(name: &str, offset: u64, of: Layout) -> LaidOut {
        LaidOut { name: name.to_owned(), offset, of }
    }

    fn bits(signed: bool, from: u32, count: u32) -> Layout {
        Layout::Bits { of: ValueType::Integer { bytes: 2, signed }, bytes: 2, from, count }
    }

    #[test]
    fn structures_are_shown_member_by_member() {
        let inner = Layout::Record(vec![member("x", 0, int(2, true)), member("y", 2, int(2, false))]);
        let of = Layout::Record(vec![
            member("a", 0, int(1, true)),
            member("", 2, inner),
            member("b", 6, bits(true, 0, 4)),
            member("c", 6, bits(false, 4, 12)),
            member("name", 8, Layout::Text(4)),
            member("d", 12, Layout::Array(Box::new(int(2, true)), 2, 2)),
        ]);
        let bytes = [0xff, 0, 0xfe, 0xff, 0xfe, 0xff, 0x8f, 0x12, b'h', b'"', 0, b'x', 1, 0, 0xff, 0xff];
        assert_eq!(show(&of, &bytes), r#"{a=-1, {x=-2, y=65534}, b=-1, c=296, name="h\"", d={1, -1}}"#);
        let json = serde_json::to_string(&value(&of, &bytes)).expect("JSON");
        assert_eq!(json, r#"{"a":-1,"x":-2,"y":65534,"b":-1,"c":296,"name":"h\"","d":[1,-1]}"#);
        // What is not there is unknown, and nothing else.
        assert_eq!(show(&of, &bytes[..6]), "{a=-1, {x=-2, y=65534}, b=?, c=?, name=?, d={?, ?}}");
        assert!(serde_json::to_string(&value(&of, &bytes[..6])).expect("JSON").contains(r#""b":null"#));
    }

    #[test]
    fn integers_of_16_bytes_are_numbers() {
        let bytes = (-5_i128).to_le_bytes();
        assert_eq!(show(&Layout::Wide { signed: true }, &bytes), "-5");
        assert_eq!(show(&Layout::Wide { signed: false }, &bytes), (u128::MAX - 4).to_string());
        assert_eq!(show(&Layout::Wide { signed: true }, &bytes[..8]), "?");
    }
}
