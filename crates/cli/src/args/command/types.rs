//! The meaning of a probe's values: their types, their names, and where each lies.
//!
//! In: raw words of a call. Out: numbers and text. Does not: read memory, or know where a signature came from.

use std::rc::Rc;
use std::sync::Arc;

use trapline::Call;
use trapline::calls::{FieldRead, Floats, KeptText, Results};
use trapline::filter::{Float, Int};
use trapline::prototypes::{Layout, ProbedFunction, ValueType};

use super::whole::{self, MOST, RegisterPart};

/// How a value is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    /// A signed integer of this many bits.
    Signed(u8),
    /// An unsigned integer of this many bits.
    Unsigned(u8),
    /// In hexadecimal: `hex`, `ptr`, `TYPE *`.
    Hex,
    /// The same; the function that begins there has a name.
    Code,
    /// `true` or `false`.
    Bool,
    /// A character.
    Char,
    /// `float` or `double`.
    Float(Float),
    /// A number with names for its values.
    Enum(Arc<Enumeration>),
    /// The text that it points to, up to a 0; only for arguments.
    Str,
    /// The bytes that it points to; the argument in this register is their number. Only for arguments.
    Buf(u8),
    /// The bytes to which a field leads; the field of this index is their number.
    BufField(u8),
    /// The bytes that it points to when the call returns; the returned value is their number. Only for arguments.
    BufReturned,
    /// The values to which a field leads; the field of this index has their number.
    Elements(Rc<ElementsOf>, u8),
    /// More than one value, or more bytes than a register has.
    Whole(Rc<Layout>),
    /// The same; not shown.
    Opaque,
    /// It is not known whether there is a value.
    Unknown,
    /// No value.
    Void,
}

/// The elements of a slice or vector.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct ElementsOf {
    /// Of what one consists.
    pub(crate) of: Layout,
    /// Bytes of one.
    pub(crate) stride: u64,
    /// Whether the field has the addresses of the first one and behind the last one, and not their number.
    pub(crate) by_end: bool,
}

/// The names of an enumeration's values.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Enumeration {
    pub(crate) int: Int,
    pub(crate) names: Vec<(String, i128)>,
}

/// Where an argument lies at the entry of the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArgumentPlace {
    /// In this general register for arguments, counted from 0; of a USDT probe, its argument of this number.
    General(u8),
    /// In this vector register for arguments, counted from 0.
    Vector(u8),
    /// In memory: it is this one of the probe's fields.
    Field(u8),
    /// The same, in several fields that follow each other.
    Fields {
        /// The first of them.
        first: u8,
        /// How many there are.
        count: u8,
    },
    /// In a general register, counted from 0; what it points to is this one of the texts that calls keep.
    Kept {
        /// The register.
        argument: u8,
        /// The text.
        text: u8,
    },
    /// In several registers, or it is more than one value.
    Parts([Option<RegisterPart>; MOST]),
    /// Not in a single register, so it is not seen.
    Unseen,
}

/// One argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shown: Type,
    pub(crate) place: ArgumentPlace,
}

/// One field, and how it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FieldOf {
    /// The path, as typed.
    pub(crate) path: String,
    /// How the target reads it.
    pub(crate) read: FieldRead,
    /// The type by which it is shown.
    pub(crate) shown: Type,
}

/// The types, names and places of a probe's values.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    pub(crate) parameters: Vec<Parameter>,
    /// Type of the returned value; `None` if none is known, and it is shown in hexadecimal.
    pub(crate) value: Option<Type>,
    /// Arguments and fields typed by name, still to be found in debug information.
    pub(crate) selected: Vec<String>,
    /// The memory of those fields, in the order of [`ArgumentPlace::Field`].
    pub(crate) fields: Vec<FieldOf>,
    /// The texts that calls keep for their return.
    pub(crate) kept: Vec<KeptText>,
    /// The registers of a returned value of several parts.
    pub(crate) value_in: Vec<RegisterPart>,
    /// The one of them to which the returned value points, if that is shown as text.
    pub(crate) returned_text: Option<u8>,
    /// Debug information in which further fields are found.
    pub(crate) noted: Option<Rc<ProbedFunction>>,
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        let all = |one: &Self| (one.parameters.clone(), one.value.clone(), one.selected.clone());
        all(self) == all(other)
    }
}

/// A value for machines.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Number(i128),
    Single(f32),
    Double(f64),
    Text(String),
    /// Members, in their order.
    Record(Vec<(String, Self)>),
    List(Vec<Self>),
    Nothing,
}

impl Signature {
    /// The arguments that point to text, as bits: bit `n` for register `n`.
    pub(crate) fn texts(&self) -> u16 {
        let bit = |parameter: &Parameter| match (&parameter.shown, parameter.place) {
            (Type::Str | Type::Buf(_), ArgumentPlace::General(n)) => 1 << n,
            _ => 0,
        };
        self.parameters.iter().map(bit).fold(0, |all, one: u16| all | one)
    }
    /// Those of them with a text that ends at a 0.
    pub(crate) fn ended(&self) -> u16 {
        let ends = |parameter: &&Parameter| parameter.shown == Type::Str;
        let bit =
            |parameter: &Parameter| if let ArgumentPlace::General(n) = parameter.place { 1 << n } else { 0 };
        self.parameters.iter().filter(ends).map(bit).fold(0, |all, one: u16| all | one)
    }
    /// The values that are floats, and the registers of the returned value.
    pub(crate) fn floats(&self) -> Floats {
        let bit = |parameter: &Parameter| match parameter.place {
            ArgumentPlace::Vector(n) => 1 << n,
            ArgumentPlace::Parts(parts) => {
                let vectors = parts.iter().flatten().filter(|part| part.vector);
                vectors.fold(0, |all, part| all | 1 << part.nth)
            }
            _ => 0,
        };
        let arguments = self.parameters.iter().map(bit).fold(0, |all, one: u8| all | one);
        let results = match &self.value {
            Some(Type::Float(_)) => Results::FLOAT,
            Some(Type::Whole(_)) => whole::results(&self.value_in),
            _ => Results::INTEGER,
        };
        Floats { arguments, results }
    }
    /// Whether some value points to a function.
    pub(crate) fn points_to_code(&self) -> bool {
        let shown = self.parameters.iter().map(|parameter| &parameter.shown);
        shown.chain(&self.value).any(|one| *one == Type::Code)
    }
    /// What a call returned, as text; `raw` is its first word.
    pub(crate) fn show_returned(&self, call: &Call, raw: u64) -> String {
        match &self.value {
            Some(Type::Whole(layout)) => whole::show(layout, &whole::returned(call, &self.value_in)),
            value => value.as_ref().unwrap_or(&Type::Hex).show(raw),
        }
    }
    /// The same for machines.
    pub(crate) fn returned(&self, call: &Call, raw: u64) -> Value {
        match &self.value {
            Some(Type::Whole(layout)) => whole::value(layout, &whole::returned(call, &self.value_in)),
            value => value.as_ref().unwrap_or(&Type::Hex).value(raw),
        }
    }
    /// The number of general registers that hold arguments, up to the last one that is named.
    pub(crate) fn registers(&self) -> u8 {
        let one = |parameter: &Parameter| match parameter.place {
            ArgumentPlace::General(n) | ArgumentPlace::Kept { argument: n, .. } => n + 1,
            ArgumentPlace::Parts(parts) => {
                let general = parts.iter().flatten().filter(|part| !part.vector);
                general.map(|part| part.nth + 1).max().unwrap_or(0)
            }
            ArgumentPlace::Vector(_)
            | ArgumentPlace::Field(_)
            | ArgumentPlace::Fields { .. }
            | ArgumentPlace::Unseen => 0,
        };
        let length =
            |parameter: &Parameter| if let Type::Buf(length) = parameter.shown { length + 1 } else { 0 };
        self.parameters.iter().map(|parameter| one(parameter).max(length(parameter))).max().unwrap_or(0)
    }
}

impl Parameter {
    /// The argument as text, unless it points to text.
    pub(crate) fn show(&self, call: &Call) -> String {
        match (self.place, &self.shown) {
            (ArgumentPlace::Field(nth), Type::Elements(of, number)) => of.show(call, (nth, *number)),
            (place, Type::Whole(layout)) => match self.bytes(call) {
                Some(bytes) => whole::show(layout, &bytes),
                None if matches!(place, ArgumentPlace::Field(_) | ArgumentPlace::Fields { .. }) => {
                    "<fault>".to_owned()
                }
                None => "?".to_owned(),
            },
            (ArgumentPlace::Unseen, Type::Opaque) => self.shown.show(0),
            (ArgumentPlace::Unseen, _) => "?".to_owned(),
            (ArgumentPlace::General(_) | ArgumentPlace::Kept { .. }, _) if self.raw(call).is_none() => {
                "?".to_owned()
            }
            _ => self.raw(call).map_or_else(|| "<fault>".to_owned(), |raw| self.shown.show(raw)),
        }
    }
    /// The argument for machines.
    pub(crate) fn value(&self, call: &Call) -> Value {
        if let (Type::Elements(of, number), ArgumentPlace::Field(nth)) = (&self.shown, self.place) {
            return of.value(call, (nth, *number));
        }
        if let Type::Whole(layout) = &self.shown {
            return self.bytes(call).map_or(Value::Nothing, |bytes| whole::value(layout, &bytes));
        }
        self.raw(call).map_or(Value::Nothing, |raw| self.shown.value(raw))
    }
    /// The bytes of a value of several parts, if they are known.
    fn bytes(&self, call: &Call) -> Option<Vec<u8>> {
        match self.place {
            ArgumentPlace::Parts(parts) => whole::bytes_of(call, &parts),
            ArgumentPlace::Field(nth) => whole::bytes_in(call, nth..nth + 1),
            ArgumentPlace::Fields { first, count } => whole::bytes_in(call, first..first + count),
            _ => None,
        }
    }
    /// The name of its value, if the value has one.
    pub(crate) fn label(&self, call: &Call) -> Option<&str> {
        self.shown.label(self.raw(call)?)
    }
    /// The word that the call had in its place, if that is known.
    pub(crate) fn raw(&self, call: &Call) -> Option<u64> {
        match self.place {
            ArgumentPlace::General(n) if call.unseen >> (n & 15) & 1 == 1 => None,
            // What is a float according to a USDT probe's note is none of another type, and the reverse.
            ArgumentPlace::General(n) if call.float_arguments.of(n) != self.shown.float() => None,
            ArgumentPlace::General(n) | ArgumentPlace::Kept { argument: n, .. } => {
                call.arguments.get(usize::from(n)).copied()
            }
            ArgumentPlace::Vector(n) => Some(call.floats[usize::from(n) % 8]),
            ArgumentPlace::Field(n) => call.fields.get(usize::from(n))?.word(),
            ArgumentPlace::Fields { .. } | ArgumentPlace::Parts(_) | ArgumentPlace::Unseen => None,
        }
    }
}

impl Type {
    /// Width and sign of an integer; `None` for any other type.
    pub(crate) fn int(&self) -> Option<Int> {
        Some(match self {
            Self::Signed(bits) => Int { bits: *bits, signed: true },
            Self::Unsigned(bits) => Int { bits: *bits, signed: false },
            Self::Bool | Self::Char => Int { bits: 8, signed: false },
            Self::Hex | Self::Code | Self::Str | Self::Buf(_) | Self::BufField(_) | Self::BufReturned => {
                Int::U64
            }
            Self::Enum(of) => of.int,
            Self::Float(_)
            | Self::Elements(..)
            | Self::Whole(_)
            | Self::Opaque
            | Self::Unknown
            | Self::Void => return None,
        })
    }
    /// Width of a float; `None` for any other type.
    pub(crate) const fn float(&self) -> Option<Float> {
        if let Self::Float(float) = self { Some(*float) } else { None }
    }
    /// A register's value, cut to the width of the type.
    pub(crate) fn value(&self, raw: u64) -> Value {
        match self {
            Self::Float(Float::Single) => Value::Single(f32::from_bits(raw as u32)),
            Self::Float(Float::Double) => Value::Double(f64::from_bits(raw)),
            Self::Whole(layout) => whole::value(layout, &raw.to_le_bytes()),
            Self::Elements(..) | Self::Opaque | Self::Unknown => Value::Nothing,
            Self::Bool => Value::Number((raw as u8 != 0).into()),
            other => Value::Number(number(other.int().unwrap_or(Int::U64), raw)),
        }
    }
    /// The name of a value, if it has one.
    pub(crate) fn label(&self, raw: u64) -> Option<&str> {
        let Self::Enum(of) = self else { return None };
        let value = number(of.int, raw);
        of.names.iter().find(|(_, named)| *named == value).map(|(name, _)| name.as_str())
    }
    /// A register's value, as text.
    pub(crate) fn show(&self, raw: u64) -> String {
        match self {
            Self::Hex | Self::Code | Self::Str | Self::Buf(_) | Self::BufField(_) | Self::BufReturned => {
                format!("{raw:#x}")
            }
            Self::Bool => (raw as u8 != 0).to_string(),
            Self::Char => format!("'{}'", (raw as u8).escape_ascii()),
            Self::Enum(of) => match self.label(raw) {
                Some(name) => name.to_owned(),
                None => enum_number(of.int, raw),
            },
            Self::Whole(layout) => whole::show(layout, &raw.to_le_bytes()),
            Self::Elements(..) | Self::Opaque => "{...}".to_owned(),
            Self::Unknown => "?".to_owned(),
            Self::Void => String::new(),
            Self::Signed(_) | Self::Unsigned(_) | Self::Float(_) => self.value(raw).cell(),
        }
    }
}

impl From<ValueType> for Type {
    /// The type as debug information has it.
    fn from(of: ValueType) -> Self {
        match of {
            ValueType::Void => Self::Void,
            ValueType::Integer { bytes, signed: true } => Self::Signed(bytes * 8),
            ValueType::Integer { bytes, signed: false } => Self::Unsigned(bytes * 8),
            ValueType::Char => Self::Char,
            ValueType::Bool => Self::Bool,
            ValueType::Float(4) => Self::Float(Float::Single),
            ValueType::Float(_) => Self::Float(Float::Double),
            ValueType::Pointer | ValueType::Text => Self::Hex,
            ValueType::Code => Self::Code,
            ValueType::Enumeration { bytes, signed, names } => {
                Self::Enum(Arc::new(Enumeration { int: Int { bits: bytes * 8, signed }, names }))
            }
            ValueType::Other(_) => Self::Opaque,
            ValueType::Unknown => Self::Unknown,
        }
    }
}

/// A value for which the enumeration has no name. Most often it is a combination of flags.
fn enum_number(int: Int, raw: u64) -> String {
    match number(int, raw) {
        negative @ ..0 => negative.to_string(),
        number => format!("{number:#x}"),
    }
}

fn number(int: Int, raw: u64) -> i128 {
    let value = int.value(raw);
    if int.signed { value.cast_signed().into() } else { value.into() }
}

impl Value {
    /// The value as a cell of a table; empty where nothing could be read.
    pub(crate) fn cell(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Single(real) => format!("{real:?}"),
            Self::Double(real) => format!("{real:?}"),
            Self::Text(text) => text,
            Self::Record(members) => {
                let one = |(name, value): (String, Self)| match name.is_empty() {
                    true => value.cell(),
                    false => format!("{name}={}", value.cell()),
                };
                format!("{{{}}}", members.into_iter().map(one).collect::<Vec<_>>().join(", "))
            }
            Self::List(all) => {
                format!("{{{}}}", all.into_iter().map(Self::cell).collect::<Vec<_>>().join(", "))
            }
            Self::Nothing => String::new(),
        }
    }
}

impl serde::Serialize for Value {
    /// JSON cannot hold a number that is not finite, so it becomes a string.
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => to.serialize_i128(*number),
            Self::Single(real) if real.is_finite() => to.serialize_f32(*real),
            Self::Double(real) if real.is_finite() => to.serialize_f64(*real),
            Self::Single(_) | Self::Double(_) => to.serialize_str(&self.clone().cell()),
            Self::Text(text) => to.serialize_str(text),
            Self::Record(members) => to.collect_map(members.iter().map(|(name, value)| (name, value))),
            Self::List(all) => to.collect_seq(all),
            Self::Nothing => to.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Enumeration, Float, Int, Type};
    use std::sync::Arc;

    #[test]
    fn values_are_as_wide_as_their_types() {
        assert_eq!(Type::Signed(32).show(0xffff_ffff), "-1");
        assert_eq!(Type::Signed(32).show(0x1234_5678_0000_0001), "1");
        assert_eq!(Type::Unsigned(16).show(u64::MAX), "65535");
        assert_eq!(Type::Signed(64).show(u64::MAX), "-1");
        assert_eq!((Type::Bool.show(0x100), Type::Char.show(10)), ("false".into(), "'\\n'".into()));
        assert_eq!(Type::Hex.show(255), "0xff");
    }

    #[test]
    fn floats_are_shown_as_they_are() {
        let json = |shown: &Type, raw| serde_json::to_string(&shown.value(raw)).expect("JSON");
        let (single, double) = (Type::Float(Float::Single), Type::Float(Float::Double));
        for (value, text, in_json) in [
            (0.1, "0.1", "0.1"),
            (-0.0, "-0.0", "-0.0"),
            (1.0, "1.0", "1.0"),
            (f64::NAN, "NaN", "\"NaN\""),
            (-f64::INFINITY, "-inf", "\"-inf\""),
            (5e-324, "5e-324", "5e-324"),
            (f64::MAX, "1.7976931348623157e308", "1.7976931348623157e+308"),
        ] {
            assert_eq!(
                (double.show(value.to_bits()), json(&double, value.to_bits())),
                (text.into(), in_json.into())
            );
        }
        // The bits above a float in its register are undefined.
        let raw = u64::from(0.1f32.to_bits()) | 0xdead_beef_0000_0000;
        assert_eq!((single.show(raw), json(&single, raw)), ("0.1".into(), "0.1".into()));
        assert_eq!(single.show(u64::from(f32::NEG_INFINITY.to_bits())), "-inf");
    }

    #[test]
    fn enumerations_have_names() {
        let names = vec![("OFF".to_owned(), -1), ("ON".to_owned(), 1)];
        let of = Type::Enum(Arc::new(Enumeration { int: Int { bits: 32, signed: true }, names }));
        let shown = [0xffff_ffff, 0xdead_0000_0001, 6, 0xffff_fffe].map(|raw| of.show(raw));
        assert_eq!(shown, ["OFF", "ON", "0x6", "-2"]);
    }
}
