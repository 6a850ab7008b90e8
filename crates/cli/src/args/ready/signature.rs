//! A function's signature as typed: `libc:openat(fd, char path, int flags) -> int`.
//!
//! In: a probe, with or without a signature. Out: the probe's own text, and the names and types of its
//! arguments and its returned value. Does not: read memory; it only determines which arguments point to text.

use trapline::filter::Float;

use super::fields::is_path;
use crate::args::command::types::{ArgumentPlace, Parameter, Signature, Type};

/// What is wrong with a signature.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    /// There is no closing bracket.
    #[error("the list of arguments has no `)`")]
    Open,
    /// There are two commas, or one at an end.
    #[error("argument {0} is missing: there is nothing at its place between the commas")]
    Nothing(usize),
    /// Something follows the list.
    #[error("`{0}` stands behind the list of arguments, where only `-> TYPE` may")]
    Behind(String),
    /// The type does not exist.
    #[error(
        "`{0}` is no type that trace shows: int, unsigned, long, size_t, char, bool, i8 to i64, u8 to u64, float, double, hex, ptr, TYPE *; arguments also str, buf(len=NAME)"
    )]
    Type(String),
    /// The length of a buffer is wrong.
    #[error(
        "`{0}` is no argument that could be a length; write buf(len=NAME), with an argument's name or arg0 to arg5"
    )]
    Length(String),
    /// There are more arguments than registers hold.
    #[error("{0} arguments that are no floats; registers hold the first six")]
    Many(usize),
    /// There are more floats than vector registers hold.
    #[error("{0} floats; registers hold the first eight")]
    ManyFloats(usize),
}

/// The text before `->`, and the type behind it.
pub(super) fn call(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once("->") {
        Some((call, value)) if call.trim_end().ends_with([')', 't']) && call.contains(')') => {
            (call.trim_end(), Some(value.trim()))
        }
        _ => (text.trim_end(), None),
    }
}

/// A signature that has only the type of the returned value.
pub(super) fn value_alone(value: &str) -> Result<Signature, SignatureError> {
    let value = Some(type_of(value)?);
    Ok(Signature { parameters: Vec::new(), value, selected: Vec::new(), fields: Vec::new(), noted: None })
}

/// Splits a probe from its signature. A name may hold brackets itself (C++). Only a last pair that ends the
/// text, or stands before `->`, is a signature.
pub(crate) fn split(text: &str) -> Result<(String, Option<Signature>), SignatureError> {
    let (call, value) = call(text);
    let Some((probe, list)) = call.split_once('(') else { return Ok((text.to_owned(), None)) };
    let Some((list, behind)) = list.rsplit_once(')') else { return Err(SignatureError::Open) };
    if !behind.trim().is_empty() {
        return Err(SignatureError::Behind(behind.trim().to_owned()));
    }
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    let words = if matches!(words[..], ["" | "void"]) { Vec::new() } else { words };
    if let Some(nth) = words.iter().position(|word| word.is_empty()) {
        return Err(SignatureError::Nothing(nth + 1));
    }
    let paths = words.iter().any(|word| is_path(word));
    // Names alone are those of the source, if debug information has them.
    let is_name = |word: &&str| known(word).is_none() && *word != "str" && is_word(word);
    let named = paths || words.iter().all(is_name);
    let selected = words.iter().filter(|_| named).map(|&word| word.to_owned()).collect();
    let parameters = if paths { Vec::new() } else { parameters(&words)? };
    let value = value.map(type_of).transpose()?;
    Ok((
        probe.trim().to_owned(),
        Some(Signature { parameters, value, selected, fields: Vec::new(), noted: None }),
    ))
}

/// Each argument with the register that holds it. Floats and all others are numbered separately (System V
/// ABI, 3.2.3).
fn parameters(words: &[&str]) -> Result<Vec<Parameter>, SignatureError> {
    let (mut general, mut vectors) = (0, 0);
    let mut places = Vec::new();
    for word in words {
        let next = if is_float(word) { &mut vectors } else { &mut general };
        places.push(*next);
        *next += 1;
    }
    match (general, vectors) {
        (7.., _) => return Err(SignatureError::Many(general)),
        (_, 9..) => return Err(SignatureError::ManyFloats(vectors)),
        _ => {}
    }
    let named = words.iter().zip(&places).filter(|(word, _)| !is_float(word));
    let names: Vec<(&str, u8)> = named.map(|(word, &at)| (name_of(word).1, at as u8)).collect();
    let one = |(word, &at): (&&str, &usize)| {
        let (name, shown) = parameter(word, &names)?;
        let place =
            if is_float(word) { ArgumentPlace::Vector(at as u8) } else { ArgumentPlace::General(at as u8) };
        Ok(Parameter { name, shown, place })
    };
    words.iter().zip(&places).map(one).collect()
}

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn is_float(word: &str) -> bool {
    let (kind, name) = name_of(word);
    let type_alone = kind.trim().is_empty();
    matches!(type_of(if type_alone { name } else { kind }), Ok(Type::Float(_)))
}

/// Parses `int flags`, `flags` or `struct x *p`.
fn parameter(text: &str, names: &[(&str, u8)]) -> Result<(String, Type), SignatureError> {
    let (kind, name) = name_of(text);
    for (words, called) in [(kind, name), (text, "")] {
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
fn name_of(text: &str) -> (&str, &str) {
    text.split_at(text.rfind(|c: char| c.is_whitespace() || c == '*').map_or(0, |at| at + 1))
}

/// The general register of an argument's name, or of `arg0` to `arg5`.
fn register_of(name: &str, names: &[(&str, u8)]) -> Result<u8, SignatureError> {
    let number = || name.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|&n| n < 6);
    let named = names.iter().find(|(other, _)| *other == name && !name.is_empty()).map(|&(_, at)| at);
    named.or_else(number).ok_or_else(|| SignatureError::Length(name.to_owned()))
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
        "float" => Type::Float(Float::Single),
        "double" => Type::Float(Float::Double),
        "hex" | "ptr" | "uintptr_t" => Type::Hex,
        "void" => Type::Void,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{ArgumentPlace, Float, SignatureError, Type, split};

    #[test]
    fn signatures_are_split_from_probes() {
        let (probe, signature) =
            split("libc:openat(fd, const char *path, int flags, unsigned) -> int").unwrap();
        let signature = signature.unwrap();
        assert_eq!((probe.as_str(), signature.value), ("libc:openat", Some(Type::Signed(32))));
        let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone())).collect();
        let expected = [
            ("fd", Type::Signed(64)),
            ("path", Type::Hex),
            ("flags", Type::Signed(32)),
            ("", Type::Unsigned(32)),
        ];
        assert_eq!(shown, expected);
        assert_eq!(split("libc:open*").unwrap(), ("libc:open*".to_owned(), None));
        assert_eq!(split("f(void)").unwrap().1.unwrap().parameters, []);
        assert_eq!(split("f() -> void").unwrap().1.unwrap().value, Some(Type::Void));
    }

    #[test]
    fn text_is_an_arguments_type() {
        let (probe, signature) =
            split("w(int fd, buf(len=n) data, size_t n, str, buf(len=arg0)) -> int").unwrap();
        let signature = signature.unwrap();
        let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone())).collect();
        let expected = [
            ("fd", Type::Signed(32)),
            ("data", Type::Buf(2)),
            ("n", Type::Unsigned(64)),
            ("", Type::Str),
            ("", Type::Buf(0)),
        ];
        assert_eq!((probe.as_str(), shown.as_slice(), signature.texts()), ("w", &expected[..], 0b1_1010));
    }

    #[test]
    fn floats_have_registers_of_their_own() {
        let text = "f(double x, int n, float, buf(len=m) p, double *q, size_t m, const double y) -> float";
        let signature = split(text).unwrap().1.unwrap();
        let places: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.place)).collect();
        let expected = [
            ("x", ArgumentPlace::Vector(0)),
            ("n", ArgumentPlace::General(0)),
            ("", ArgumentPlace::Vector(1)),
            ("p", ArgumentPlace::General(1)),
            ("q", ArgumentPlace::General(2)),
            ("m", ArgumentPlace::General(3)),
            ("y", ArgumentPlace::Vector(2)),
        ];
        assert_eq!(places, expected);
        assert_eq!(signature.parameters[3].shown, Type::Buf(3));
        assert_eq!(signature.value, Some(Type::Float(Float::Single)));
        assert_eq!((signature.floats().arguments, signature.floats().returned), (0b111, true));
        assert_eq!((signature.registers(), signature.texts()), (4, 0b10));
        let nine = ["double"; 9].join(",");
        assert_eq!(split(&format!("f({nine})")), Err(SignatureError::ManyFloats(9)));
        assert_eq!(split("f(double x, buf(len=x) p)"), Err(SignatureError::Length("x".into())));
        assert!(split(&format!("f({},a,b,c,d,e,f)", ["float"; 8].join(","))).is_ok());
    }

    #[test]
    fn paths_are_looked_for_later() {
        let (probe, signature) = split("h(req->len, mode, req->in.tag) -> int").unwrap();
        let signature = signature.unwrap();
        assert_eq!((probe.as_str(), signature.selected.len(), signature.parameters.len()), ("h", 3, 0));
        assert_eq!(signature.value, Some(Type::Signed(32)));
        assert_eq!(split("h(req->len)").unwrap().1.unwrap().selected, ["req->len"]);
    }

    #[test]
    fn what_is_wrong_is_an_error() {
        assert_eq!(split("f(int"), Err(SignatureError::Open));
        assert_eq!(split("f(int a,, int b)"), Err(SignatureError::Nothing(2)));
        assert_eq!(split("f(int a, )"), Err(SignatureError::Nothing(2)));
        assert_eq!(split("f( )").unwrap().1.unwrap().parameters, []);
        assert_eq!(split("f(int x) y"), Err(SignatureError::Behind("y".into())));
        assert_eq!(split("f(text path)"), Err(SignatureError::Type("text".into())));
        assert_eq!(split("f(int) -> str"), Err(SignatureError::Type("str".into())));
        assert_eq!(split("f(buf(len=m) p, int n)"), Err(SignatureError::Length("m".into())));
        assert_eq!(split("f(a,b,c,d,e,f,g)"), Err(SignatureError::Many(7)));
        assert_eq!(split("f(int) -> what"), Err(SignatureError::Type("what".into())));
    }
}
