//! A function's signature as typed: `libc:openat(fd, char path, int flags) -> int`.
//!
//! In: a probe, with or without a signature. Out: the probe's own text, and the names and types of its
//! arguments and its returned value. Does not: read memory; it only determines which arguments point to text.

use trapline::filter::Float;

use trapline::ProbeSpec;
use trapline::beyond;
use trapline::calls::{KeptPointer, KeptText, OPERANDS, TEXT_BYTES};
use trapline::probes::ProbeKind;

use super::fields::{PATHS, is_path, stacked};
use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Signature, Type};

/// Bytes of a text without a length.
const TEXT: u16 = TEXT_BYTES as u16;

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
        "`{0}` is no argument that could be a length; write buf(len=NAME), with an argument's name or its number, as arg1"
    )]
    Length(String),
    /// The length of a text is none.
    #[error("`{0}` is no text that trace shows: write str[N] or buf(len=NAME)[N], with N from 1 to {1}")]
    Bytes(String, u16),
    /// Long texts are read through the first six arguments.
    #[error("`{0}` with a length, or of the returned length, is for arguments in registers of a function")]
    Long(String),
    /// The register does not exist.
    #[error("`{0}` is no general register here; write reg(NAME) with one of 64 bits")]
    Register(String),
    /// There are more arguments than records hold.
    #[error("{0} arguments; {1} can be shown")]
    Many(usize, usize),
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
    let (value, kept) = returned(value)?;
    let returned_text = (!kept.is_empty()).then_some(0);
    let (parameters, selected, fields) = Default::default();
    Ok(Signature { parameters, value: Some(value), selected, fields, kept, returned_text, noted: None })
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
    let (parameters, fields) = match (paths, is_mark(probe)) {
        (true, _) => Default::default(),
        (false, true) => (numbered(&words)?, Vec::new()),
        (false, false) => parameters(&words)?,
    };
    let mut parameters = parameters;
    let mut kept = kept(&words, &mut parameters)?;
    if is_mark(probe) && !kept.is_empty() {
        return Err(SignatureError::Long("str".to_owned()));
    }
    let (value, text) = match value.map(returned).transpose()? {
        Some((value, text)) => (Some(value), text),
        None => (None, Vec::new()),
    };
    let returned_text = (!text.is_empty()).then_some(kept.len() as u8);
    kept.extend(text);
    let signature = Signature { parameters, value, selected, fields, kept, returned_text, noted: None };
    Ok((probe.trim().to_owned(), Some(signature)))
}

/// The type of the returned value, and the text to which it points, if it is one.
fn returned(text: &str) -> Result<(Type, Vec<KeptText>), SignatureError> {
    let (word, bytes) = sized(text.trim())?;
    if word != "str" {
        return Ok((type_of(text)?, Vec::new()));
    }
    let text = KeptText { pointer: KeptPointer::Returned, at_return: true, bytes: bytes.unwrap_or(TEXT) };
    Ok((Type::Str, vec![text]))
}

/// The texts that a call keeps for its return: those with a length in brackets, and those whose length is returned.
/// Their parameters are changed accordingly.
fn kept(words: &[&str], parameters: &mut [Parameter]) -> Result<Vec<KeptText>, SignatureError> {
    let mut kept = Vec::new();
    for (word, parameter) in words.iter().zip(parameters) {
        let (kind, bytes) = sized(word)?;
        let at_return = parameter.shown == Type::BufReturned;
        if !at_return && bytes.is_none() {
            continue;
        }
        let ArgumentPlace::General(argument) = parameter.place else {
            return Err(SignatureError::Long(kind));
        };
        parameter.place = ArgumentPlace::Kept { argument, text: kept.len() as u8 };
        let pointer = KeptPointer::Argument(argument);
        kept.push(KeptText { pointer, at_return, bytes: bytes.unwrap_or(TEXT) });
    }
    Ok(kept)
}

/// A parameter or type without the number of `str[200]` or `buf(len=n)[200]`, and the number.
fn sized(word: &str) -> Result<(String, Option<u16>), SignatureError> {
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

/// Whether the text names a USDT probe.
fn is_mark(probe: &str) -> bool {
    probe.trim().parse::<ProbeSpec>().is_ok_and(|spec| spec.kind == ProbeKind::Usdt)
}

/// A USDT probe's arguments, in the order of its note.
fn numbered(words: &[&str]) -> Result<Vec<Parameter>, SignatureError> {
    if words.len() > OPERANDS {
        return Err(SignatureError::Many(words.len(), OPERANDS));
    }
    let names: Vec<(&str, u8)> = (0..).zip(words).map(|(nth, word)| (name_of(word).1, nth)).collect();
    let one = |(nth, word): (u8, &&str)| {
        if register(word).is_some() {
            return Err(SignatureError::Type((*word).to_owned()));
        }
        let (name, shown) = parameter(word, &names)?;
        Ok(Parameter { name, shown, place: ArgumentPlace::General(nth) })
    };
    (0..).zip(words).map(one).collect()
}

/// Each argument with its place. Floats and all others are numbered separately; what finds no register is on the
/// stack, in the order of the arguments (System V ABI, 3.2.3; AAPCS64, 6.8.2).
fn parameters(words: &[&str]) -> Result<(Vec<Parameter>, Vec<FieldOf>), SignatureError> {
    const VECTORS: u8 = 8;
    let (mut general, mut vectors, mut stacked_words) = (0, 0, 0);
    let mut places = Vec::new();
    for word in words {
        if register(word).is_some() {
            places.push(At::Named);
            continue;
        }
        let (next, most) = match is_float(word) {
            true => (&mut vectors, VECTORS),
            false => (&mut general, beyond::ARGUMENT_REGISTERS),
        };
        let at = if *next < most { At::Register(*next) } else { At::Stack(stacked_words) };
        *(if *next < most { next } else { &mut stacked_words }) += 1_u8;
        places.push(at);
    }
    let in_record =
        |at: &At| if let At::Register(nth) = at { Some(*nth).filter(|nth| *nth < 6) } else { None };
    let named = words.iter().zip(&places).filter(|(word, _)| !is_float(word));
    let names = named.filter_map(|(word, at)| Some((name_of(word).1, in_record(at)?)));
    let names: Vec<(&str, u8)> = names.collect();
    let mut fields = Vec::new();
    let mut one = |(nth, (word, at)): (usize, (&&str, &At))| {
        if let Some((register, name)) = register(word) {
            let read =
                beyond::register(register).ok_or_else(|| SignatureError::Register(register.to_owned()))?;
            let name = if name.is_empty() { register } else { name };
            if fields.len() == PATHS {
                return Err(SignatureError::Many(words.len(), nth));
            }
            return Ok(stacked(name.to_owned(), Type::Hex, read, &mut fields));
        }
        let (name, shown) = parameter(word, &names)?;
        let bytes = shown.int().map_or(8, |int| int.bits / 8);
        let bytes = if shown == Type::Float(Float::Single) { 4 } else { bytes };
        let read = match *at {
            At::Register(n) if is_float(word) => {
                return Ok(Parameter { name, shown, place: ArgumentPlace::Vector(n) });
            }
            At::Register(n) => match beyond::argument_register(n, bytes) {
                Some(read) => read,
                None => return Ok(Parameter { name, shown, place: ArgumentPlace::General(n) }),
            },
            At::Stack(word) => beyond::stack_argument(word, bytes),
            At::Named => return Err(SignatureError::Type((*word).to_owned())),
        };
        if fields.len() == PATHS {
            return Err(SignatureError::Many(words.len(), nth));
        }
        Ok(stacked(name, shown, read, &mut fields))
    };
    let parameters = words.iter().zip(&places).enumerate().map(&mut one).collect::<Result<_, _>>()?;
    Ok((parameters, fields))
}

/// Where an argument lies when a function is called.
#[derive(Clone, Copy)]
enum At {
    /// In this one of the registers for its kind.
    Register(u8),
    /// In this word on the stack.
    Stack(u8),
    /// It is no argument, but a register of that name.
    Named,
}

/// The register of `reg(rax) name`, and the name.
fn register(word: &str) -> Option<(&str, &str)> {
    let (register, name) = word.strip_prefix("reg(")?.split_once(')')?;
    Some((register.trim(), name.trim()))
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
fn name_of(text: &str) -> (&str, &str) {
    text.split_at(text.rfind(|c: char| c.is_whitespace() || c == '*').map_or(0, |at| at + 1))
}

/// The number of an argument in records, by its name, or as `arg0`.
fn register_of(name: &str, names: &[(&str, u8)]) -> Result<u8, SignatureError> {
    let most = names.len().max(6) as u8;
    let number = || name.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|&n| n < most);
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
    use super::{ArgumentPlace, Float, KeptPointer, KeptText, SignatureError, Type, beyond, split};

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
        assert_eq!(split("f(double x, buf(len=x) p)"), Err(SignatureError::Length("x".into())));
        assert!(split(&format!("f({},a,b,c,d,e,f)", ["float"; 8].join(","))).is_ok());
    }

    #[test]
    fn what_finds_no_register_is_on_the_stack() {
        let ints = vec!["int"; usize::from(beyond::ARGUMENT_REGISTERS)].join(", ");
        let nine = ["double"; 9].join(", ");
        let text = format!("f({ints}, u8 a, {nine}, str text, int last)");
        let signature = split(&text).unwrap().1.unwrap();
        let last = &signature.parameters[signature.parameters.len() - 3..];
        assert!(last.iter().all(|one| matches!(one.place, ArgumentPlace::Field(_))), "{last:?}");
        let reads: Vec<_> = signature.fields.iter().map(|field| field.read.clone()).collect();
        let stack = |word, bytes| beyond::stack_argument(word, bytes);
        let expected = [stack(0, 1), stack(1, 8), beyond::text_at(stack(2, 8), 64), stack(3, 4)];
        assert_eq!(reads[reads.len() - 4..], expected);
        // A number on the stack is no length of a buffer.
        assert_eq!(
            split(&format!("f({ints}, int n, buf(len=n) p)")),
            Err(SignatureError::Length("n".into()))
        );
    }

    #[test]
    fn texts_of_returns_and_long_ones_are_kept() {
        let text = "SSL_read(ptr s, buf(len=ret) data, int n, str[200] name, buf(len=n)[4000] all) -> str";
        let signature = split(text).unwrap().1.unwrap();
        let shown: Vec<_> =
            signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone(), p.place)).collect();
        let kept = |argument, text| ArgumentPlace::Kept { argument, text };
        let expected = [
            ("s", Type::Hex, ArgumentPlace::General(0)),
            ("data", Type::BufReturned, kept(1, 0)),
            ("n", Type::Signed(32), ArgumentPlace::General(2)),
            ("name", Type::Str, kept(3, 1)),
            ("all", Type::Buf(2), kept(4, 2)),
        ];
        assert_eq!(shown, expected);
        let kept = |pointer, at_return, bytes| KeptText { pointer, at_return, bytes };
        let expected = [
            kept(KeptPointer::Argument(1), true, 64),
            kept(KeptPointer::Argument(3), false, 200),
            kept(KeptPointer::Argument(4), false, 4000),
            kept(KeptPointer::Returned, true, 64),
        ];
        assert_eq!((signature.kept.as_slice(), signature.returned_text), (&expected[..], Some(3)));
        assert_eq!(
            (signature.value.clone(), signature.texts(), signature.registers()),
            (Some(Type::Str), 0, 5)
        );
        assert_eq!(split("f() -> str[300]").unwrap().1.unwrap().kept[0].bytes, 300);
        assert!(split("f(buf(len=ret)) -> int").unwrap().1.unwrap().kept[0].at_return);
    }

    #[test]
    fn a_register_takes_no_arguments_place() {
        let name = if beyond::ARGUMENT_REGISTERS == 6 { "rax" } else { "x9" };
        let signature =
            split(&format!("f(int a, reg({name}), reg({name}) count, int b)")).unwrap().1.unwrap();
        let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.place)).collect();
        let expected = [
            ("a", ArgumentPlace::General(0)),
            (name, ArgumentPlace::Field(0)),
            ("count", ArgumentPlace::Field(1)),
            ("b", ArgumentPlace::General(1)),
        ];
        assert_eq!(shown, expected);
        assert_eq!(signature.fields[0].read, beyond::register(name).unwrap());
        assert_eq!(split("f(reg(eax))"), Err(SignatureError::Register("eax".into())));
        assert!(split("usdt:x:y(reg(rax))").is_err());
    }

    #[test]
    fn a_mark_has_its_arguments_in_order() {
        let text =
            "usdt:postgres:query__start(double x, str query, buf(len=n) p, float, char, int, int, u64 n)";
        let (probe, signature) = split(text).unwrap();
        let signature = signature.unwrap();
        let places: Vec<_> = signature.parameters.iter().map(|p| p.place).collect();
        assert_eq!(places, (0..8).map(ArgumentPlace::General).collect::<Vec<_>>());
        assert_eq!((probe.as_str(), signature.fields.len()), ("usdt:postgres:query__start", 0));
        assert_eq!(signature.parameters[2].shown, Type::Buf(7));
        assert_eq!(signature.parameters[0].shown, Type::Float(Float::Double));
        assert_eq!((signature.texts(), signature.registers(), signature.floats().arguments), (0b110, 8, 0));
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
        assert!(matches!(split("f(str[0] s)"), Err(SignatureError::Bytes(..))));
        assert!(matches!(split("f(int) -> str[5000]"), Err(SignatureError::Bytes(..))));
        assert!(matches!(split("usdt:x:y(str[200] s)"), Err(SignatureError::Long(_))));
        assert_eq!(split("f(buf(len=m) p, int n)"), Err(SignatureError::Length("m".into())));
        let many = vec!["int"; 40].join(",");
        assert!(matches!(split(&format!("f({many})")), Err(SignatureError::Many(40, 14 | 16))));
        let many = vec!["int"; 13].join(",");
        assert_eq!(split(&format!("usdt:x:y({many})")), Err(SignatureError::Many(13, 12)));
        assert_eq!(split("f(int) -> what"), Err(SignatureError::Type("what".into())));
    }
}
