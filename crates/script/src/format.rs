//! Formats of `printf`: parts of text, and how the values between them are written.
//!
//! In: a format, then values. Out: bytes. As C's `printf`, with `%r`, `%rx`, `%rh` for buffers; a number is cut to the
//! size that its length modifier says, 32 bits without one. Does not: know where the text goes.

use crate::plain::{hex, plain};
use crate::shown::Shown;
use crate::types::Type;

/// A format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// One more than there are values.
    fragments: Vec<Vec<u8>>,
    specs: Vec<Spec>,
}

/// How a value is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    length: Vec<u8>,
    kind: String,
}

/// Longest width and precision.
const WIDEST: usize = 4096;

/// The conversions, longer ones first.
const KINDS: [&str; 24] = [
    "gr", "rh", "rx", "d", "i", "o", "u", "x", "X", "e", "E", "f", "F", "g", "G", "a", "A", "c", "s", "p",
    "n", "r", "b", "%",
];

impl Format {
    /// Reads a format. A per cent sign that begins no conversion is text.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let (mut fragments, mut specs, mut fragment) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            match Spec::parse(rest) {
                Some((spec, after)) if spec.kind == "%" => {
                    fragment.push(b'%');
                    rest = after;
                }
                Some((spec, after)) => {
                    fragments.push(std::mem::take(&mut fragment));
                    specs.push(spec);
                    rest = after;
                }
                None => {
                    fragment.push(byte);
                    rest = after;
                }
            }
        }
        fragments.push(fragment);
        Self { fragments, specs }
    }
    /// Whether values of these types can be written so.
    pub(crate) fn check(&self, types: &[Type]) -> Result<(), String> {
        let (given, wanted) = (types.len(), self.specs.len());
        if given != wanted {
            let word = if given < wanted { "not enough" } else { "too many" };
            return Err(format!("{word} arguments for format string ({given} supplied, {wanted} expected)"));
        }
        for (spec, ty) in self.specs.iter().zip(types) {
            let kind = &spec.kind;
            if matches!(ty, Type::None | Type::Void) {
                return Err(format!("unable to print none type for specifier: {kind}"));
            }
            let ok = match kind.as_str() {
                "d" | "i" | "u" | "o" | "x" | "X" | "c" | "p" => {
                    matches!(ty, Type::Int(_) | Type::Bool | Type::Pointer(_))
                }
                "r" | "rx" | "rh" => matches!(ty, Type::Buffer(_)),
                "s" => true,
                _ => return Err(format!("unsupported format specifier: {kind}")),
            };
            if !ok {
                return Err(format!("unsupported format specifier for type '{ty}': {kind}"));
            }
        }
        Ok(())
    }
    /// The text of values.
    pub(crate) fn apply(&self, values: &[Shown]) -> Vec<u8> {
        let mut out = self.fragments[0].clone();
        for ((spec, value), fragment) in self.specs.iter().zip(values).zip(&self.fragments[1..]) {
            out.extend(spec.apply(value));
            out.extend(fragment);
        }
        out
    }
}

/// Takes a byte if it is next.
fn take(rest: &mut &[u8], wanted: u8) -> bool {
    match rest.split_first() {
        Some((&byte, after)) if byte == wanted => {
            *rest = after;
            true
        }
        _ => false,
    }
}

/// Takes a number if one is next.
fn digits(rest: &mut &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (number, after) = rest.split_at(end);
    *rest = after;
    let value = number
        .iter()
        .fold(0usize, |value, digit| value.saturating_mul(10).saturating_add(usize::from(digit - b'0')));
    (!number.is_empty()).then_some(value.min(WIDEST))
}

impl Spec {
    /// The conversion that begins here, and what is behind it.
    fn parse(text: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = text.strip_prefix(b"%")?;
        let mut spec = Self {
            left: take(&mut rest, b'-'),
            plus: take(&mut rest, b'+'),
            space: take(&mut rest, b' '),
            alternate: take(&mut rest, b'#'),
            zero: take(&mut rest, b'0'),
            ..Self::default()
        };
        spec.width = digits(&mut rest).unwrap_or(0);
        if take(&mut rest, b'.') {
            spec.precision = Some(digits(&mut rest)?);
        }
        while let Some((&byte, after)) = rest.split_first()
            && b"hlLjzt".contains(&byte)
        {
            spec.length.push(byte);
            rest = after;
        }
        let kind = KINDS.into_iter().find(|kind| rest.starts_with(kind.as_bytes()))?;
        kind.clone_into(&mut spec.kind);
        Some((spec, &rest[kind.len()..]))
    }
    /// Bits of a number of this length.
    fn bits(&self) -> u32 {
        match &self.length[..] {
            b"hh" => 8,
            b"h" => 16,
            b"" | b"L" => 32,
            _ => 64,
        }
    }
    fn apply(&self, value: &Shown) -> Vec<u8> {
        let number = value.number_of();
        let body = match (self.kind.as_str(), number) {
            ("d" | "i", Some(value)) => return self.signed(value),
            ("u" | "o" | "x" | "X", Some(value)) => return self.unsigned(value),
            ("c", Some(value)) => vec![value as u8],
            ("p", Some(0)) => b"0".to_vec(),
            ("p", Some(value)) => format!("{value:#x}").into_bytes(),
            ("r" | "rx" | "rh", _) => match value {
                Shown::Buffer(bytes) => hex(bytes, self.kind == "r", self.kind != "rh"),
                other => plain(other),
            },
            _ => {
                let mut text = plain(value);
                text.truncate(self.precision.unwrap_or(text.len()));
                text
            }
        };
        self.padded(&[], body, false)
    }
    fn signed(&self, value: i64) -> Vec<u8> {
        let unused = 64 - self.bits();
        let value = value << unused >> unused;
        let sign = match () {
            () if value < 0 => "-",
            () if self.plus => "+",
            () if self.space => " ",
            () => "",
        };
        self.padded(sign.as_bytes(), value.unsigned_abs().to_string().into_bytes(), true)
    }
    fn unsigned(&self, value: i64) -> Vec<u8> {
        let unused = 64 - self.bits();
        let value = (value as u64) << unused >> unused;
        let (prefix, body) = match self.kind.as_str() {
            "o" => ("0", format!("{value:o}")),
            "x" => ("0x", format!("{value:x}")),
            "X" => ("0X", format!("{value:X}")),
            _ => ("", value.to_string()),
        };
        let prefix = if self.alternate && value != 0 { prefix } else { "" };
        self.padded(prefix.as_bytes(), body.into_bytes(), true)
    }
    /// As wide as was asked for. Zeros stand between a sign and the number.
    fn padded(&self, sign: &[u8], body: Vec<u8>, number: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(sign.len() + body.len());
        let mut out = Vec::new();
        let zeros = self.zero && !self.left && number;
        if !self.left && !zeros {
            out.resize(missing, b' ');
        }
        out.extend(sign);
        if zeros {
            out.resize(out.len() + missing, b'0');
        }
        out.extend(body);
        if self.left {
            out.resize(out.len() + missing, b' ');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Format;
    use crate::shown::Shown;
    use crate::types::Type;

    fn written(format: &str, values: &[Shown]) -> String {
        String::from_utf8(Format::parse(format.as_bytes()).apply(values)).expect("a text")
    }

    #[test]
    fn numbers_are_cut_padded_and_signed() {
        let large = Shown::Int(0x12_3456_78ab_cdef);
        for (format, value, text) in [
            ("%hhx", large.clone(), "ef"),
            ("%hx", large.clone(), "cdef"),
            ("%x", large.clone(), "78abcdef"),
            ("%jx", large, "12345678abcdef"),
            ("%5d|", Shown::Int(-3), "   -3|"),
            ("%-5d|", Shown::Int(-3), "-3   |"),
            ("%05d", Shown::Int(-3), "-0003"),
            ("%+d", Shown::Int(3), "+3"),
            ("%#x", Shown::Int(255), "0xff"),
            ("%lu", Shown::Int(-1), "18446744073709551615"),
            ("%d", Shown::Uint(u64::MAX), "-1"),
            ("%c%%", Shown::Int(65), "A%"),
            ("%p", Shown::Symbolic(b"x".to_vec(), 16), "0x10"),
        ] {
            assert_eq!(written(format, &[value]), text, "{format}");
        }
    }

    #[test]
    fn texts_and_buffers_have_widths_too() {
        let text = || Shown::Text(b"abc".to_vec());
        assert_eq!(written("%5s|%-5s|%.2s", &[text(), text(), text()]), "  abc|abc  |ab");
        let buffer = || Shown::Buffer(b"A\0".to_vec());
        assert_eq!(written("%r %rx %rh", &[buffer(), buffer(), buffer()]), "A\\x00 \\x41\\x00 41 00");
    }

    #[test]
    fn what_begins_no_conversion_is_text() {
        assert_eq!(written("100% y%", &[]), "100% y%");
        assert_eq!(written("%99999999999999999999d", &[Shown::Int(1)]).len(), 4096);
    }

    #[test]
    fn values_must_suit_their_conversions() {
        let check = |format: &str, types: &[Type]| Format::parse(format.as_bytes()).check(types);
        assert_eq!(check("%d %s", &[Type::int(8), Type::int(8)]), Ok(()));
        assert!(check("%d", &[]).is_err_and(|message| message.starts_with("not enough arguments")));
        assert!(check("%d", &[Type::Bool, Type::Bool]).is_err());
        assert!(check("%d", &[Type::Text(3)]).is_err());
        assert!(check("%r", &[Type::Text(3)]).is_err());
        assert!(check("%f", &[Type::int(8)]).is_err());
    }
}
