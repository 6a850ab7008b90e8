//! Watched bytes as values, and values as text.
//!
//! In: bits, and the type of the watched variable. Out: its value; the change that an access made, for
//! people. Does not: read memory.

use trapline::watch::{AccessKind, Accessed, Encoding, Watched};

/// A value, in the type of the watched variable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Typed {
    /// Unsigned.
    Unsigned(u64),
    /// Signed.
    Signed(i64),
    /// Floating point.
    Float(f64),
    /// An address.
    Pointer(u64),
    /// A character.
    Char(u8),
    /// True or false.
    Bool(bool),
}

/// The watched bytes as a value of the variable's type.
pub(crate) fn typed(bits: u64, watched: &Watched) -> Typed {
    let unused = 64 - 8 * u32::from(watched.len.clamp(1, 8));
    match watched.encoding {
        Encoding::Signed => Typed::Signed((bits << unused).cast_signed() >> unused),
        Encoding::Float if watched.len == 8 => Typed::Float(f64::from_bits(bits)),
        Encoding::Float if watched.len == 4 => Typed::Float(f32::from_bits(bits as u32).into()),
        Encoding::Pointer => Typed::Pointer(bits),
        Encoding::Char if watched.len == 1 => Typed::Char(bits as u8),
        Encoding::Bool => Typed::Bool(bits != 0),
        _ => Typed::Unsigned(bits),
    }
}

impl Typed {
    /// The value for conditions; fractions are cut off.
    pub(super) fn integer(self) -> i128 {
        match self {
            Self::Unsigned(value) | Self::Pointer(value) => value.into(),
            Self::Signed(value) => value.into(),
            Self::Float(value) => value as i128,
            Self::Char(value) => value.into(),
            Self::Bool(value) => value.into(),
        }
    }
    fn text(self) -> String {
        match self {
            Self::Unsigned(value) => value.to_string(),
            Self::Signed(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Pointer(value) => format!("{value:#x}"),
            Self::Char(value) if value.is_ascii_graphic() => format!("{value} '{}'", char::from(value)),
            Self::Char(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
        }
    }
}

/// `old -> new`, with a `?` behind a value that is uncertain.
pub(super) fn values(one: &Accessed, watched: &Watched) -> String {
    let change = one.event.change;
    let text = |value: Option<u64>, exact: bool| match value {
        Some(bits) => typed(bits, watched).text() + if exact { "" } else { "?" },
        None => "?".to_owned(),
    };
    let after = text(change.after, change.how.is_exact());
    match one.event.kind {
        AccessKind::Execute => String::new(),
        AccessKind::Read => format!("  = {after}"),
        AccessKind::Write | AccessKind::Kernel | AccessKind::Unknown => {
            format!("  {} -> {after}", text(change.before, change.before_exact))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Typed, typed};
    use crate::report::watch::samples::place;
    use trapline::watch::Encoding;

    #[test]
    fn bytes_are_shown_as_they_are_meant() {
        let mut one = place();
        for (encoding, len, bits, text) in [
            (Encoding::Signed, 2, 0xffff, "-1"),
            (Encoding::Unsigned, 2, 0xffff, "65535"),
            (Encoding::Float, 4, 0x3fc0_0000, "1.5"),
            (Encoding::Float, 8, 0x3ff8_0000_0000_0000, "1.5"),
            (Encoding::Pointer, 8, 0x1000, "0x1000"),
            (Encoding::Char, 1, 97, "97 'a'"),
            (Encoding::Bool, 1, 1, "true"),
        ] {
            (one.encoding, one.len) = (encoding, len);
            assert_eq!(typed(bits, &one).text(), text);
        }
        assert_eq!(Typed::Float(2.9).integer(), 2);
    }
}
