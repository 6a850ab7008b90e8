//! What a recording holds about its probes, and its end: as JSON, in the notes of its first and last block.
//!
//! In: probes with their signatures; reports. Out: bytes; and the same values again from bytes, which anyone
//! may have written. The names here belong to the format (docs/guide/recordings.md), whatever names the program
//! uses. Does not: read files.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trapline::ProbeSpec;
use trapline::calls::{FieldRead, OPERANDS};
use trapline::filter::{Float, Int};
use trapline::probes::ProbeKind;

use super::command::Calls;
use super::command::types::{ArgumentPlace, Enumeration, FieldOf, Parameter, Signature, Type};

/// Why the notes of a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeptError {
    /// It is not JSON, or not of this form.
    #[error("what it says of itself cannot be read: {0}")]
    Form(#[from] serde_json::Error),
    /// It has a probe that cannot have been typed.
    #[error("it is of a probe that cannot be read: {0}")]
    Probe(#[from] trapline::error::SpecError),
    /// It has a type that no value has.
    #[error("argument `{0}` has a type that there is none of")]
    Type(String),
}

/// The note of the first block.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Version of the program that wrote it.
    pub(crate) version: String,
    /// The command line.
    pub(crate) command: String,
    /// Number of integer arguments in each record.
    pub(crate) arguments: u8,
    /// Whether exits were recorded.
    pub(crate) returns: bool,
    probes: Vec<Probe>,
}

/// The note of the last block.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// The summary for people.
    pub(crate) summary: String,
    /// A `count` object for each process, one line each.
    pub(crate) reports: Vec<String>,
}

/// A probe with its signature.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    text: String,
    signature: Option<Kept>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    arguments: Vec<Argument>,
    value: Option<Of>,
    fields: Vec<Field>,
    /// The one of the texts that calls kept to which the returned value points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    returned_text: Option<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Argument {
    name: String,
    of: Of,
    place: At,
}

#[derive(Debug, Serialize, Deserialize)]
struct Field {
    path: String,
    of: Of,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Signed(u8),
    Unsigned(u8),
    Hex,
    Bool,
    Char,
    Float,
    Double,
    Enum {
        bits: u8,
        signed: bool,
        names: Vec<(String, i128)>,
    },
    Str,
    Buf(u8),
    BufReturned,
    /// The field with this number has its length.
    BufField(u8),
    Opaque,
    Unknown,
    Void,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum At {
    General(u8),
    Vector(u8),
    Field(u8),
    Kept(u8, u8),
    Unseen,
}

impl Begin {
    pub(crate) fn new(args: &Calls, command: String) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            arguments: args.arguments(),
            returns: args.returns,
            probes: Probe::all(&args.probes),
        }
    }
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, KeptError> {
        Ok(serde_json::from_slice(bytes)?)
    }
    /// The probes, in the form in which a command line has them.
    pub(crate) fn probes(&self) -> Result<Vec<(ProbeSpec, Option<Signature>)>, KeptError> {
        self.probes.iter().map(Probe::ready).collect()
    }
}

impl Probe {
    pub(crate) fn all(probes: &[(ProbeSpec, Option<Signature>)]) -> Vec<Self> {
        let one = |(spec, signature): &(ProbeSpec, Option<Signature>)| Self {
            text: spec.text.clone(),
            signature: signature.as_ref().map(Kept::of),
        };
        probes.iter().map(one).collect()
    }
    /// The probe, in the form in which a command line has it.
    pub(crate) fn ready(&self) -> Result<(ProbeSpec, Option<Signature>), KeptError> {
        let spec: ProbeSpec = self.text.parse()?;
        let arguments = if spec.kind == ProbeKind::Usdt { OPERANDS as u8 } else { 6 };
        let signature = self.signature.as_ref().map(|kept| kept.ready(arguments)).transpose()?;
        Ok((spec, signature))
    }
}

impl End {
    /// Reads the note; replaces control characters, which a terminal would act on.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, KeptError> {
        let read: Self = serde_json::from_slice(bytes)?;
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
        };
        Ok(Self {
            summary: plain(&read.summary),
            reports: read.reports.iter().map(|line| plain(line)).collect(),
        })
    }
}

/// The bytes of a note.
pub(crate) fn bytes(note: &impl Serialize) -> Vec<u8> {
    // The note holds strings and numbers in structures. JSON can hold all of these.
    serde_json::to_vec(note).unwrap_or_default()
}

impl Kept {
    fn of(signature: &Signature) -> Self {
        let argument = |one: &Parameter| Argument {
            name: one.name.clone(),
            of: Of::kept(&one.shown),
            place: match one.place {
                ArgumentPlace::General(n) => At::General(n),
                ArgumentPlace::Vector(n) => At::Vector(n),
                ArgumentPlace::Field(n) => At::Field(n),
                ArgumentPlace::Kept { argument, text } => At::Kept(argument, text),
                ArgumentPlace::Fields { .. } | ArgumentPlace::Parts(_) | ArgumentPlace::Unseen => At::Unseen,
            },
        };
        let field = |one: &FieldOf| Field { path: one.path.clone(), of: Of::kept(&one.shown) };
        Self {
            arguments: signature.parameters.iter().map(argument).collect(),
            value: signature.value.as_ref().map(Of::kept),
            fields: signature.fields.iter().map(field).collect(),
            returned_text: signature.returned_text,
        }
    }
    /// A record has this many `arguments`.
    fn ready(&self, arguments: u8) -> Result<Signature, KeptError> {
        let wrong = |name: &str| KeptError::Type(name.escape_debug().to_string());
        let parameter = |one: &Argument| {
            let place = match one.place {
                At::General(n) if n < arguments => ArgumentPlace::General(n),
                At::Vector(n) if n < 8 => ArgumentPlace::Vector(n),
                At::Field(n) => ArgumentPlace::Field(n),
                At::Kept(argument, text) if argument < 6 => ArgumentPlace::Kept { argument, text },
                At::Unseen => ArgumentPlace::Unseen,
                At::General(_) | At::Vector(_) | At::Kept(..) => return Err(wrong(&one.name)),
            };
            let shown = one.of.ready(arguments).ok_or_else(|| wrong(&one.name))?;
            Ok(Parameter { name: plain(&one.name)?, shown, place })
        };
        let field = |one: &Field| {
            let shown = one.of.ready(arguments).ok_or_else(|| wrong(&one.path))?;
            // The field was read when the call was recorded.
            let read = FieldRead { register: 0, offsets: Vec::new(), bytes: 0 };
            Ok(FieldOf { path: plain(&one.path)?, read, shown })
        };
        let value = self.value.as_ref().map(|value| value.ready(arguments).ok_or_else(|| wrong("return")));
        Ok(Signature {
            parameters: self.arguments.iter().map(parameter).collect::<Result<_, KeptError>>()?,
            value: value.transpose()?,
            selected: Vec::new(),
            fields: self.fields.iter().map(field).collect::<Result<_, KeptError>>()?,
            // They were read when the call was recorded.
            kept: Vec::new(),
            value_in: Vec::new(),
            returned_text: self.returned_text,
            noted: None,
        })
    }
}

/// Checks that a name has no control characters.
fn plain(name: &str) -> Result<String, KeptError> {
    let orders = name.chars().any(char::is_control);
    if orders { Err(KeptError::Type(name.escape_debug().to_string())) } else { Ok(name.to_owned()) }
}

impl Of {
    fn kept(shown: &Type) -> Self {
        match shown {
            Type::Signed(bits) => Self::Signed(*bits),
            Type::Unsigned(bits) => Self::Unsigned(*bits),
            // Another process may have other code there when the recording is read.
            Type::Hex | Type::Code => Self::Hex,
            Type::Bool => Self::Bool,
            Type::Char => Self::Char,
            Type::Float(Float::Single) => Self::Float,
            Type::Float(Float::Double) => Self::Double,
            Type::Enum(of) => {
                let Int { bits, signed } = of.int;
                Self::Enum { bits, signed, names: of.names.clone() }
            }
            Type::Str => Self::Str,
            Type::Buf(length) => Self::Buf(*length),
            Type::BufReturned => Self::BufReturned,
            Type::BufField(length) => Self::BufField(*length),
            Type::Elements(..) | Type::Whole(_) | Type::Opaque => Self::Opaque,
            Type::Unknown => Self::Unknown,
            Type::Void => Self::Void,
        }
    }
    fn ready(&self, arguments: u8) -> Option<Type> {
        Some(match self {
            Self::Signed(bits) => Type::Signed(*bits),
            Self::Unsigned(bits) => Type::Unsigned(*bits),
            Self::Hex => Type::Hex,
            Self::Bool => Type::Bool,
            Self::Char => Type::Char,
            Self::Float => Type::Float(Float::Single),
            Self::Double => Type::Float(Float::Double),
            Self::Enum { bits, signed, names } => {
                let int = Int { bits: *bits, signed: *signed };
                let named = names.iter().all(|(name, _)| plain(name).is_ok());
                let of = Enumeration { int, names: names.clone() };
                return (named && matches!(bits, 8 | 16 | 32 | 64)).then(|| Type::Enum(Arc::new(of)));
            }
            Self::Str => Type::Str,
            Self::Buf(length) => return (*length < arguments).then_some(Type::Buf(*length)),
            Self::BufReturned => Type::BufReturned,
            Self::BufField(length) => Type::BufField(*length),
            Self::Opaque => Type::Opaque,
            Self::Unknown => Type::Unknown,
            Self::Void => Type::Void,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Argument, At, Begin, End, Field, Kept, Of, Probe, bytes};

    fn begin(signature: Kept) -> Begin {
        let text = "libc:/^open/".to_owned();
        let probes = vec![Probe { text, signature: Some(signature) }];
        Begin { version: "1".to_owned(), command: "x".to_owned(), arguments: 6, returns: true, probes }
    }

    fn of(of: Of, place: At) -> Kept {
        let arguments = vec![Argument { name: "a".to_owned(), of, place }];
        Kept { arguments, value: Some(Of::Void), fields: Vec::new(), returned_text: None }
    }

    #[test]
    fn signatures_come_back_as_they_were() {
        let names = vec![("LEAST".to_owned(), i128::from(i64::MIN)), ("MOST".to_owned(), u64::MAX.into())];
        let all = [
            Of::Signed(32),
            Of::Unsigned(8),
            Of::Hex,
            Of::Bool,
            Of::Char,
            Of::Float,
            Of::Double,
            Of::Enum { bits: 32, signed: true, names },
            Of::Str,
            Of::Buf(5),
            Of::BufReturned,
            Of::Opaque,
            Of::Unknown,
            Of::Void,
        ];
        for one in all {
            let mut kept = of(one, At::General(5));
            kept.fields = vec![Field { path: "a->b".to_owned(), of: Of::Unsigned(64) }];
            let written = bytes(&begin(kept));
            let read = Begin::read(&written).expect("JSON").probes().expect("probes");
            let signature = read[0].1.as_ref().expect("a signature");
            assert_eq!(read[0].0.text, "libc:/^open/");
            let again = begin(Kept::of(signature));
            assert_eq!(String::from_utf8(bytes(&again)), String::from_utf8(written));
        }
    }

    #[test]
    fn what_would_lead_astray_is_refused() {
        let enumeration = |bits| Of::Enum { bits, signed: false, names: vec![("\x1b[2J".to_owned(), 1)] };
        for (kept, says) in [
            (of(Of::Buf(6), At::General(0)), "has a type that there is none of"),
            (of(Of::Hex, At::General(6)), "has a type that there is none of"),
            (of(Of::Hex, At::Vector(8)), "has a type that there is none of"),
            (of(enumeration(32), At::Unseen), "has a type that there is none of"),
            (of(enumeration(65), At::Unseen), "has a type that there is none of"),
        ] {
            let error = begin(kept).probes().expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        let mut probe = begin(of(Of::Hex, At::Unseen));
        probe.probes[0].text = "/[/".to_owned();
        assert!(probe.probes().is_err());
        assert!(Begin::read(b"{}").is_err() && Begin::read(b"\xff").is_err());
        let end = End { summary: "a\n\x1b[2J".to_owned(), reports: vec!["\x07".to_owned()] };
        let end = End::read(&bytes(&end)).expect("JSON");
        assert_eq!((end.summary.as_str(), end.reports), ("a\n?[2J", vec!["?".to_owned()]));
    }
}
