//! What one parameter of a signature says: `int flags`, `str[200] path`, `buf(len=n) data`, `reg(rax)`.
//!
//! In: the words between two commas; names of other arguments, which may be lengths. Out: a name and a type. Does not:
//! know places ([`places`](super::places)).

use trapline::calls::KeptText;
use trapline::filter::Float;

use super::error::SignatureError;
use crate::args::command::types::Type;

/// A parameter or type without the number of `str[200]` or `buf(len=n)[200]`, and the number.
pub(super) fn sized(word: &str) -> Result<(String, Option<u16>), SignatureError> {
    let end = match word.starts_with("buf(len=") {
        true => word.find(')').map_or(0, |at| at + 1),
        false => "str".len(),
    };
    let (kind, behind) = word.split_at_checked(end).unwrap_or(("", ""));
    let Some(number) = behind.strip_prefix('[').filter(|_| kind == "str" || kind.starts_with("buf(")) else {
        return Ok((word.to_owned(), None));
    };
    let digits = number.split_once(']');
    let bytes = digits.and_then(|(digits, _)| digits.trim().parse().ok());
    let bytes = bytes.filter(|bytes| (1..=KeptText::MAX).contains(bytes));
    let bytes = bytes.ok_or_else(|| SignatureError::Bytes(word.to_owned(), KeptText::MAX))?;
    Ok((kind.to_owned() + digits.map_or("", |(_, behind)| behind), Some(bytes)))
}

/// The register of `reg(rax) name`, and the name.
pub(super) fn register(word: &str) -> Option<(&str, &str)> {
    let (register, name) = word.strip_prefix("reg(")?.split_once(')')?;
    Some((register.trim(), name.trim()))
}

pub(super) fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(|c: char| c.is_ascii_digit())
}

pub(super) fn is_float(word: &str) -> bool {
    let (kind, name) = name_of(word);
    let type_alone = kind.trim().is_empty();
    matches!(type_of(if type_alone { name } else { kind }), Ok(Type::Float(_)))
}

/// Parses `int flags`, `flags` or `struct x *p`.
pub(super) fn parameter(text: &str, names: &[(&str, u8)]) -> Result<(String, Type), SignatureError> {
    let (bare, _) = sized(text)?;
    let text = bare.as_str();
    let (kind, name) = name_of(text);
    for (words, called) in [(kind, name), (text, "")] {
        if words.trim() == "buf(len=ret)" {
            return Ok((called.to_owned(), Type::BufReturned));
        }
        if let Some(length) = words.trim().strip_prefix("buf(len=").and_then(|rest| rest.strip_suffix(')')) {
            return Ok((called.to_owned(), Type::Buf(register_of(length.trim(), names)?)));
        }
    }
    if kind.trim() == "str" || kind.trim().is_empty() && name == "str" {
        let name = if kind.trim().is_empty() { "" } else { name };
        return Ok((name.to_owned(), Type::Str));
    }
    // A type alone has no name.
    if name.is_empty() || kind.trim().is_empty() && known(name).is_some() {
        return Ok((String::new(), type_of(text)?));
    }
    let shown = if kind.trim().is_empty() { Type::Signed(64) } else { type_of(kind)? };
    Ok((name.to_owned(), shown))
}

/// A parameter's words without the last one, and the last one.
pub(super) fn name_of(text: &str) -> (&str, &str) {
    text.split_at(text.rfind(|c: char| c.is_whitespace() || c == '*').map_or(0, |at| at + 1))
}

/// The number of an argument in records, by its name, or as `arg0`.
fn register_of(name: &str, names: &[(&str, u8)]) -> Result<u8, SignatureError> {
    let most = names.len().max(6) as u8;
    let number = || name.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|&n| n < most);
    let named = names.iter().find(|(other, _)| *other == name && !name.is_empty()).map(|&(_, at)| at);
    named.or_else(number).ok_or_else(|| SignatureError::Length(name.to_owned()))
}

pub(super) fn type_of(text: &str) -> Result<Type, SignatureError> {
    if text.trim_end().ends_with('*') {
        return Ok(Type::Hex);
    }
    let words: Vec<&str> = text.split_whitespace().filter(|word| !["const", "enum"].contains(word)).collect();
    known(&words.join(" ")).ok_or_else(|| SignatureError::Type(text.trim().to_owned()))
}

pub(super) fn known(text: &str) -> Option<Type> {
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
        "float" => Type::Float(Float::Single),
        "double" => Type::Float(Float::Double),
        "hex" | "ptr" | "uintptr_t" => Type::Hex,
        "void" => Type::Void,
        _ => return None,
    })
}
