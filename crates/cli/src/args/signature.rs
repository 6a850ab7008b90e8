//! A function's signature as typed: `libc:openat(fd, char path, int flags) -> int`.
//!
//! In: a probe, with or without it. Out: the probe's own text, and what its arguments and its value are called and how they are shown.
//! Does not: read memory, so there are integers and pointers only.

/// How a value is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    /// A signed integer of so many bits.
    Signed(u8),
    /// An unsigned one.
    Unsigned(u8),
    /// In hexadecimal: `hex`, `ptr`, `TYPE *`.
    Hex,
    /// `true` or `false`.
    Bool,
    /// A character.
    Char,
    /// Nothing.
    Void,
}

/// One argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shown: Type,
}

/// What a probe's values mean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signature {
    pub(crate) parameters: Vec<Parameter>,
    /// `None` where nothing was said: shown in hexadecimal.
    pub(crate) value: Option<Type>,
}

/// What is wrong with a signature.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    /// No closing bracket.
    #[error("the list of arguments has no `)`")]
    Open,
    /// Something behind the list.
    #[error("`{0}` stands behind the list of arguments, where only `-> TYPE` may")]
    Behind(String),
    /// Not a type.
    #[error(
        "`{0}` is no type that trace shows: int, unsigned, long, size_t, char, bool, i8 to i64, u8 to u64, hex, ptr, TYPE *"
    )]
    Type(String),
    /// More than registers hold.
    #[error("{0} arguments; registers hold the first six")]
    Many(usize),
}

/// Splits a probe from its signature. A name may hold brackets itself (C++): only a last pair that ends the text, or stands before
/// `->`, is one.
pub(crate) fn split(text: &str) -> Result<(String, Option<Signature>), SignatureError> {
    let (call, value) = match text.rsplit_once("->") {
        Some((call, value)) if call.trim_end().ends_with(')') => (call.trim_end(), Some(value.trim())),
        _ => (text.trim_end(), None),
    };
    let Some((probe, list)) = call.split_once('(') else { return Ok((text.to_owned(), None)) };
    let Some((list, behind)) = list.rsplit_once(')') else { return Err(SignatureError::Open) };
    if !behind.trim().is_empty() {
        return Err(SignatureError::Behind(behind.trim().to_owned()));
    }
    let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let words = if words == ["void"] { Vec::new() } else { words };
    if words.len() > 6 {
        return Err(SignatureError::Many(words.len()));
    }
    let parameters = words.into_iter().map(parameter).collect::<Result<_, _>>()?;
    let value = value.map(type_of).transpose()?;
    Ok((probe.trim().to_owned(), Some(Signature { parameters, value })))
}

/// `int flags`, `flags`, `struct x *p`.
fn parameter(text: &str) -> Result<Parameter, SignatureError> {
    let at = text.rfind(|c: char| c.is_whitespace() || c == '*').map_or(0, |at| at + 1);
    let (kind, name) = text.split_at(at);
    // A type alone has no name of its own.
    if name.is_empty() || kind.trim().is_empty() && known(name).is_some() {
        return Ok(Parameter { name: String::new(), shown: type_of(text)? });
    }
    let shown = if kind.trim().is_empty() { Type::Signed(64) } else { type_of(kind)? };
    Ok(Parameter { name: name.to_owned(), shown })
}

fn type_of(text: &str) -> Result<Type, SignatureError> {
    if text.trim_end().ends_with('*') {
        return Ok(Type::Hex);
    }
    let words: Vec<&str> = text.split_whitespace().filter(|word| !["const", "enum"].contains(word)).collect();
    known(&words.join(" ")).ok_or_else(|| SignatureError::Type(text.trim().to_owned()))
}

fn known(text: &str) -> Option<Type> {
    Some(match text {
        "int" | "signed" | "signed int" | "i32" | "int32_t" => Type::Signed(32),
        "unsigned" | "unsigned int" | "u32" | "uint32_t" | "uint" => Type::Unsigned(32),
        "long" | "long int" | "long long" | "i64" | "int64_t" | "ssize_t" | "off_t" | "intptr_t" => {
            Type::Signed(64)
        }
        "unsigned long" | "unsigned long long" | "ulong" | "u64" | "uint64_t" | "size_t" => {
            Type::Unsigned(64)
        }
        "short" | "i16" | "int16_t" => Type::Signed(16),
        "unsigned short" | "u16" | "uint16_t" => Type::Unsigned(16),
        "i8" | "int8_t" | "signed char" => Type::Signed(8),
        "u8" | "uint8_t" | "unsigned char" => Type::Unsigned(8),
        "char" => Type::Char,
        "bool" | "_Bool" => Type::Bool,
        "hex" | "ptr" | "uintptr_t" => Type::Hex,
        "void" => Type::Void,
        _ => return None,
    })
}

impl Type {
    /// A register's value, as wide as the type.
    pub(crate) fn number(self, value: u64) -> i128 {
        let over = |bits: u8| 64 - u32::from(bits);
        match self {
            Self::Signed(bits) => i128::from((value << over(bits)).cast_signed() >> over(bits)),
            Self::Unsigned(bits) => i128::from(value << over(bits) >> over(bits)),
            Self::Char => i128::from(value as u8),
            Self::Bool => i128::from(value as u8 != 0),
            Self::Hex | Self::Void => i128::from(value),
        }
    }
    /// A register's value, as text.
    pub(crate) fn show(self, value: u64) -> String {
        match self {
            Self::Signed(_) | Self::Unsigned(_) => self.number(value).to_string(),
            Self::Hex => format!("{value:#x}"),
            Self::Bool => (value as u8 != 0).to_string(),
            Self::Char => format!("'{}'", (value as u8).escape_ascii()),
            Self::Void => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SignatureError, Type, split};

    #[test]
    fn signatures_are_split_from_probes() {
        let (probe, signature) =
            split("libc:openat(fd, const char *path, int flags, unsigned) -> int").unwrap();
        let signature = signature.unwrap();
        assert_eq!((probe.as_str(), signature.value), ("libc:openat", Some(Type::Signed(32))));
        let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.shown)).collect();
        let want = [
            ("fd", Type::Signed(64)),
            ("path", Type::Hex),
            ("flags", Type::Signed(32)),
            ("", Type::Unsigned(32)),
        ];
        assert_eq!(shown, want);
        assert_eq!(split("libc:open*").unwrap(), ("libc:open*".to_owned(), None));
        assert_eq!(split("f(void)").unwrap().1.unwrap().parameters, []);
        assert_eq!(split("f() -> void").unwrap().1.unwrap().value, Some(Type::Void));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(split("f(int"), Err(SignatureError::Open));
        assert_eq!(split("f(int x) y"), Err(SignatureError::Behind("y".into())));
        assert_eq!(split("f(str path)"), Err(SignatureError::Type("str".into())));
        assert_eq!(split("f(a,b,c,d,e,f,g)"), Err(SignatureError::Many(7)));
        assert_eq!(split("f(int) -> what"), Err(SignatureError::Type("what".into())));
    }

    #[test]
    fn values_are_as_wide_as_their_types() {
        assert_eq!(Type::Signed(32).show(0xffff_ffff), "-1");
        assert_eq!(Type::Signed(32).show(0x1234_5678_0000_0001), "1");
        assert_eq!(Type::Unsigned(16).show(u64::MAX), "65535");
        assert_eq!(Type::Signed(64).show(u64::MAX), "-1");
        assert_eq!((Type::Bool.show(0x100), Type::Char.show(10)), ("false".into(), "'\\n'".into()));
        assert_eq!(Type::Hex.show(255), "0xff");
    }
}
