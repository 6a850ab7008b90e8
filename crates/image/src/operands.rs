//! The arguments of a USDT probe (*mark* in identifiers): their places when the probe is reached, according
//! to the compiler.
//!
//! In: a note's argument string, in assembler syntax (`-4@%edi 8@-24(%rbp) 8@$5 4@sym(%rip) 8f@%xmm0`; arm64:
//! `4@w0 8@[sp, 24] -4@5 8f@d0`), and the processor. Out: for each argument its width and its place. An argument
//! that cannot be read is [`MarkPlace::Unknown`], with the reason, and stays in the list, so that the others keep
//! their numbers. Does not: find symbols, read memory.
//!
//! ```text
//!   string    = { argument }                          separated by spaces
//!   argument  = [ "-" ] bytes [ "f" ] "@" operand     "-": it is signed; "f": it is a float
//! ```

use crate::Machine;

/// An argument of a USDT probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkArgument {
    /// Width in bytes: 1, 2, 4 or 8; of floats 4 or 8.
    pub bytes: u8,
    /// What its bits mean.
    pub class: MarkClass,
    /// Its place.
    pub place: MarkPlace,
}

/// What the bits of an argument mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkClass {
    /// A number without a sign, or an address.
    Unsigned,
    /// A number with a sign.
    Signed,
    /// A float.
    Float,
}

/// Place of a USDT probe's argument. Registers have their hardware numbers: x86-64's as in instructions,
/// arm64's x0 to x30, and 31 for sp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MarkPlace {
    /// In the low bytes of a general register.
    Register(u8),
    /// In the low bytes of a vector register.
    Vector(u8),
    /// It is this constant.
    Constant(i64),
    /// In memory, at this distance from a register. With an index, that is added too.
    Memory {
        /// The register.
        base: u8,
        /// The index.
        index: Option<MarkIndex>,
        /// The distance in bytes.
        offset: i32,
    },
    /// In memory, at this distance from a symbol of the file.
    Symbol {
        /// Its name.
        name: String,
        /// The distance in bytes.
        offset: i64,
    },
    /// It is the address at this distance from a symbol of the file.
    Address {
        /// The symbol's name.
        name: String,
        /// The distance in bytes.
        offset: i64,
    },
    /// The place is unknown.
    Unknown(NoPlace),
}

/// The index of an address: a register times a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MarkIndex {
    /// The register.
    pub register: u8,
    /// The exponent of the power; 3 at most.
    pub scale: u8,
    /// Which of its bits count.
    pub extend: Extend,
}

/// Which bits of an index register count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extend {
    /// All of them.
    Whole,
    /// The low 32, with their sign.
    Signed,
    /// The low 32, without a sign.
    Unsigned,
}

/// Why the place of an argument is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPlace {
    /// It has no size, or one that is none of a number's.
    #[error("its size is none that a number or a float has")]
    Size,
    /// Its operand has none of the known forms.
    #[error("its operand has no form that can be read")]
    Form,
    /// It is in bits 8 to 15 of a register.
    #[error("it is in the second byte of a register")]
    SecondByte,
    /// Each thread has another one.
    #[error("it is in thread-local memory")]
    ThreadLocal,
    /// A float in a general register, or a number in a vector register.
    #[error("its register is not of the kind that its size says")]
    Class,
}

/// Maximum number of arguments of a USDT probe.
pub const MARK_ARGUMENTS: usize = 12;

/// All arguments of a note, as its string names them for this processor.
#[must_use]
pub fn mark_arguments(text: &str, machine: Machine) -> Vec<MarkArgument> {
    words(text).take(MARK_ARGUMENTS).map(|word| argument(word, machine)).collect()
}

/// Words separated by spaces, except for spaces inside brackets.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        let mut depth = 0_u32;
        let end = rest.char_indices().find(|&(_, c)| {
            match c {
                '[' | '(' => depth += 1,
                ']' | ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && c.is_ascii_whitespace()
        });
        let (word, behind) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        rest = behind.trim_start();
        (!word.is_empty()).then_some(word)
    })
}

fn argument(word: &str, machine: Machine) -> MarkArgument {
    let unknown = |why| MarkArgument { bytes: 8, class: MarkClass::Unsigned, place: MarkPlace::Unknown(why) };
    let Some((size, operand)) = word.split_once('@') else { return unknown(NoPlace::Form) };
    let Some((bytes, class)) = sized(size) else { return unknown(NoPlace::Size) };
    let place = match machine {
        Machine::X86_64 => x86_64(operand.trim()),
        Machine::Aarch64 => aarch64(operand.trim()),
    };
    let place = place.and_then(|place| match (&place, class) {
        (MarkPlace::Vector(_), MarkClass::Float) => Ok(place),
        (MarkPlace::Vector(_), _) => Err(NoPlace::Class),
        // No constant and no general register holds what the compiler calls a float.
        (MarkPlace::Memory { .. } | MarkPlace::Symbol { .. }, _) => Ok(place),
        (_, MarkClass::Float) => Err(NoPlace::Class),
        _ => Ok(place),
    });
    MarkArgument { bytes, class, place: place.unwrap_or_else(MarkPlace::Unknown) }
}

/// Width and class: `4`, `-8`, `8f`. Other sizes are of vectors and of `long double`.
fn sized(text: &str) -> Option<(u8, MarkClass)> {
    let (signed, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (float, digits) = text.strip_suffix('f').map_or((false, text), |rest| (true, rest));
    let bytes = ["1", "2", "4", "8"].iter().position(|one| *one == digits).map(|nth| 1 << nth)?;
    match (float, signed) {
        // The sign of a float is its own.
        (true, _) => matches!(bytes, 4 | 8).then_some((bytes, MarkClass::Float)),
        (false, true) => Some((bytes, MarkClass::Signed)),
        (false, false) => Some((bytes, MarkClass::Unsigned)),
    }
}

/// A decimal or hexadecimal number, with or without sign.
fn number(text: &str) -> Option<i64> {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok(),
    }?;
    let value = value.cast_signed();
    Some(if minus { value.wrapping_neg() } else { value })
}

type Read = Result<MarkPlace, NoPlace>;

/// `$5`, `$sym`, `%eax`, `%xmm0`, `-24(%rbp)`, `8(%rax,%rbx,4)`, `sym+4(%rip)`, `sym`.
fn x86_64(operand: &str) -> Read {
    if let Some(constant) = operand.strip_prefix('$') {
        let address = || symbol(constant).map(|(name, offset)| MarkPlace::Address { name, offset });
        return number(constant).map(MarkPlace::Constant).or_else(address).ok_or(NoPlace::Form);
    }
    if let Some(name) = operand.strip_prefix('%') {
        return match name {
            "ah" | "bh" | "ch" | "dh" => Err(NoPlace::SecondByte),
            _ if name.starts_with("fs:") || name.starts_with("gs:") => Err(NoPlace::ThreadLocal),
            _ => gpr(name)
                .map(MarkPlace::Register)
                .or_else(|| numbered(name, "xmm", 16).map(MarkPlace::Vector))
                .ok_or(NoPlace::Form),
        };
    }
    if operand.contains("@tpoff") || operand.contains("@TPOFF") {
        return Err(NoPlace::ThreadLocal);
    }
    addressed(operand).ok_or(NoPlace::Form)
}

/// An operand in memory.
fn addressed(operand: &str) -> Option<MarkPlace> {
    let in_file = |text| symbol(text).map(|(name, offset)| MarkPlace::Symbol { name, offset });
    let Some((offset, inside)) = operand.strip_suffix(')').and_then(|whole| whole.split_once('(')) else {
        return in_file(operand);
    };
    if inside == "%rip" {
        return in_file(offset);
    }
    let offset = if offset.is_empty() { 0 } else { i32::try_from(number(offset)?).ok()? };
    let mut parts = inside.split(',').map(str::trim);
    let base = wide(parts.next()?)?;
    let index = match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) => None,
        (Some(index), scale, None) => {
            let scale = ["1", "2", "4", "8"].iter().position(|&one| one == scale.unwrap_or("1"))?;
            let register = wide(index)?;
            // No instruction can have rsp as index.
            let index = MarkIndex { register, scale: scale as u8, extend: Extend::Whole };
            (register != 4).then_some(Some(index))?
        }
        _ => return None,
    };
    Some(MarkPlace::Memory { base, index, offset })
}

/// A register of 64 bits, with its `%`.
fn wide(text: &str) -> Option<u8> {
    let name = text.strip_prefix('%')?;
    let is_wide = name.starts_with('r') && !name.ends_with(['d', 'w', 'b']);
    gpr(name).filter(|_| is_wide)
}

/// The number of the register, if this names its low bytes; `ah` and similar name other bytes.
fn gpr(name: &str) -> Option<u8> {
    const OLD: [[&str; 4]; 8] = [
        ["rax", "eax", "ax", "al"],
        ["rcx", "ecx", "cx", "cl"],
        ["rdx", "edx", "dx", "dl"],
        ["rbx", "ebx", "bx", "bl"],
        ["rsp", "esp", "sp", "spl"],
        ["rbp", "ebp", "bp", "bpl"],
        ["rsi", "esi", "si", "sil"],
        ["rdi", "edi", "di", "dil"],
    ];
    if let Some(nth) = OLD.iter().position(|names| names.contains(&name)) {
        return Some(nth as u8);
    }
    let digits = name.strip_suffix(['d', 'w', 'b']).unwrap_or(name);
    numbered(digits, "r", 16).filter(|nth| *nth >= 8)
}

/// The number behind a register's letters, below `end`; without zeros in front.
fn numbered(name: &str, letters: &str, end: u8) -> Option<u8> {
    let digits = name.strip_prefix(letters)?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|nth| plain && *nth < end)
}

/// `sym`, `sym+8`, `8+sym`, `sym-4`: the name, and the distance.
fn symbol(text: &str) -> Option<(String, i64)> {
    let is_name = |name: &str| {
        let first = name.chars().next()?;
        let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '$'));
        (plain && !first.is_ascii_digit()).then(|| name.to_owned())
    };
    if let Some(name) = is_name(text) {
        return Some((name, 0));
    }
    if let Some((offset, name)) = text.split_once('+')
        && let (Some(offset), Some(name)) = (number(offset), is_name(name))
    {
        return Some((name, offset));
    }
    let at = text.rfind(['+', '-'])?;
    let offset = number(text[at..].trim_start_matches('+'))?;
    Some((is_name(&text[..at])?, offset))
}

/// `x0`, `w0`, `d0`, `5`, `[sp, 24]`, `[x29, -8]`, `[x1]`, `[x0, x1, lsl 3]`, `[x0, w1, sxtw 2]`.
fn aarch64(operand: &str) -> Read {
    if let Some(inside) = operand.strip_prefix('[') {
        let inside = inside.strip_suffix(']').ok_or(NoPlace::Form)?;
        return based(inside).ok_or(NoPlace::Form);
    }
    let vector = || ["d", "s", "v"].iter().find_map(|letter| numbered(operand, letter, 32));
    match operand {
        "sp" => Ok(MarkPlace::Register(31)),
        "xzr" | "wzr" => Ok(MarkPlace::Constant(0)),
        _ => general(operand, "x")
            .or_else(|| general(operand, "w"))
            .map(MarkPlace::Register)
            .or_else(|| vector().map(MarkPlace::Vector))
            .or_else(|| number(operand.trim_start_matches('#')).map(MarkPlace::Constant))
            .ok_or(NoPlace::Form),
    }
}

/// The inside of brackets: a base, and perhaps a distance or an index.
fn based(inside: &str) -> Option<MarkPlace> {
    let mut parts = inside.split(',').map(str::trim);
    let base = parts.next()?;
    let base = if base == "sp" { 31 } else { general(base, "x")? };
    let (second, third) = (parts.next(), parts.next());
    if parts.next().is_some() {
        return None;
    }
    let Some(second) = second else { return Some(MarkPlace::Memory { base, index: None, offset: 0 }) };
    let index = |register, scale, extend| {
        Some(MarkPlace::Memory { base, index: Some(MarkIndex { register, scale, extend }), offset: 0 })
    };
    let (kind, scale) = match third {
        None => (None, 0),
        Some(third) => {
            let (kind, scale) = third.split_once(' ').unwrap_or((third, "0"));
            let scale = number(scale.trim().trim_start_matches('#'))?;
            (Some(kind), u8::try_from(scale).ok().filter(|scale| *scale <= 3)?)
        }
    };
    match (general(second, "x"), general(second, "w"), kind) {
        (Some(register), _, None | Some("lsl")) => index(register, scale, Extend::Whole),
        (_, Some(register), Some("sxtw")) => index(register, scale, Extend::Signed),
        (_, Some(register), Some("uxtw")) => index(register, scale, Extend::Unsigned),
        (None, None, None) => {
            let offset = i32::try_from(number(second.trim_start_matches('#'))?).ok()?;
            Some(MarkPlace::Memory { base, index: None, offset })
        }
        _ => None,
    }
}

fn general(name: &str, letter: &str) -> Option<u8> {
    numbered(name, letter, 31)
}

#[cfg(test)]
mod tests {
    use super::{
        Extend, MARK_ARGUMENTS, Machine, MarkArgument, MarkClass, MarkIndex, MarkPlace, NoPlace,
        mark_arguments,
    };
    use proptest::prelude::*;

    fn one(text: &str, machine: Machine) -> (i8, MarkPlace) {
        let all = mark_arguments(text, machine);
        assert_eq!(all.len(), 1, "{text}");
        let MarkArgument { bytes, class, place } = all[0].clone();
        let is_float = class == MarkClass::Float;
        let is_fit = |place: &MarkPlace| {
            matches!(
                place,
                MarkPlace::Vector(_)
                    | MarkPlace::Memory { .. }
                    | MarkPlace::Symbol { .. }
                    | MarkPlace::Unknown(_)
            )
        };
        assert!(!is_float || is_fit(&place), "{text}");
        (if class == MarkClass::Signed { -(bytes as i8) } else { bytes as i8 }, place)
    }

    fn memory(base: u8, index: Option<(u8, u8)>, offset: i32) -> MarkPlace {
        let index = index.map(|(register, scale)| MarkIndex { register, scale, extend: Extend::Whole });
        MarkPlace::Memory { base, index, offset }
    }

    fn indexed(base: u8, register: u8, scale: u8, extend: Extend) -> MarkPlace {
        MarkPlace::Memory { base, index: Some(MarkIndex { register, scale, extend }), offset: 0 }
    }

    fn at(name: &str, offset: i64) -> MarkPlace {
        MarkPlace::Symbol { name: name.to_owned(), offset }
    }

    #[test]
    fn operands_of_x86_64() {
        for (text, bytes, place) in [
            ("4@%edi", 4, MarkPlace::Register(7)),
            ("-1@%sil", -1, MarkPlace::Register(6)),
            ("2@%r15w", 2, MarkPlace::Register(15)),
            ("8@%r8", 8, MarkPlace::Register(8)),
            ("8@$5", 8, MarkPlace::Constant(5)),
            ("-4@$-17", -4, MarkPlace::Constant(-17)),
            ("8@$0x10", 8, MarkPlace::Constant(16)),
            ("8@-24(%rbp)", 8, memory(5, None, -24)),
            ("4@(%rax)", 4, memory(0, None, 0)),
            ("8@8(%rsp)", 8, memory(4, None, 8)),
            ("8@16(%rax,%r12,8)", 8, memory(0, Some((12, 3)), 16)),
            ("4@counter(%rip)", 4, at("counter", 0)),
            ("4@table+12(%rip)", 4, at("table", 12)),
            ("4@12+table(%rip)", 4, at("table", 12)),
            ("4@x.0-4(%rip)", 4, at("x.0", -4)),
            ("8f@%xmm0", 8, MarkPlace::Vector(0)),
            ("4f@%xmm15", 4, MarkPlace::Vector(15)),
            ("8f@-8(%rbp)", 8, memory(5, None, -8)),
            ("-8f@scale(%rip)", 8, at("scale", 0)),
            ("4@counter", 4, at("counter", 0)),
            ("8@$table+8", 8, MarkPlace::Address { name: "table".to_owned(), offset: 8 }),
            // These only look like valid operands.
            ("1@%ah", 1, MarkPlace::Unknown(NoPlace::SecondByte)),
            ("8@%xmm0", 8, MarkPlace::Unknown(NoPlace::Class)),
            ("8f@%rax", 8, MarkPlace::Unknown(NoPlace::Class)),
            ("8f@$5", 8, MarkPlace::Unknown(NoPlace::Class)),
            ("2f@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
            ("16f@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
            ("16@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
            ("8f@%xmm16", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8f@%xmm01", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8f@%ymm0", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("4@%fs:-4", 4, MarkPlace::Unknown(NoPlace::ThreadLocal)),
            ("4@own@tpoff(%rax)", 4, MarkPlace::Unknown(NoPlace::ThreadLocal)),
            ("8@8(%rax,%rsp,1)", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@8(%rax,%rbx,3)", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@8(%eax)", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@*%rax", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@%r16", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@99999999999(%rax)", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("%edi", 8, MarkPlace::Unknown(NoPlace::Form)),
        ] {
            assert_eq!(one(text, Machine::X86_64), (bytes, place), "{text}");
        }
    }

    #[test]
    fn operands_of_arm64() {
        for (text, bytes, place) in [
            ("4@w0", 4, MarkPlace::Register(0)),
            ("-8@x30", -8, MarkPlace::Register(30)),
            ("8@sp", 8, MarkPlace::Register(31)),
            ("8@[sp, 24]", 8, memory(31, None, 24)),
            ("8@[x29, #-16]", 8, memory(29, None, -16)),
            ("4@[x1]", 4, memory(1, None, 0)),
            ("-4@5", -4, MarkPlace::Constant(5)),
            ("4@wzr", 4, MarkPlace::Constant(0)),
            ("8@[x1, x2]", 8, indexed(1, 2, 0, Extend::Whole)),
            ("8@[x0, x1, lsl #3]", 8, indexed(0, 1, 3, Extend::Whole)),
            ("8@[sp, x1, lsl 2]", 8, indexed(31, 1, 2, Extend::Whole)),
            ("4@[x0, w1, sxtw 2]", 4, indexed(0, 1, 2, Extend::Signed)),
            ("4@[x0, w1, uxtw]", 4, indexed(0, 1, 0, Extend::Unsigned)),
            ("8f@d0", 8, MarkPlace::Vector(0)),
            ("4f@s31", 4, MarkPlace::Vector(31)),
            ("8f@v1", 8, MarkPlace::Vector(1)),
            ("8f@[sp, 8]", 8, memory(31, None, 8)),
            // These only look like valid operands.
            ("8@d0", 8, MarkPlace::Unknown(NoPlace::Class)),
            ("8f@x0", 8, MarkPlace::Unknown(NoPlace::Class)),
            ("8f@d32", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("16@q0", 8, MarkPlace::Unknown(NoPlace::Size)),
            ("8@x31", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@[x0, w1]", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@[x0, x1, lsl #4]", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@[x0, x1, ror #2]", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("8@[x0, 8]!", 8, MarkPlace::Unknown(NoPlace::Form)),
            ("4@[x0, #:lo12:counter]", 4, MarkPlace::Unknown(NoPlace::Form)),
            ("8@[sp, x1, lsl 2, 8]", 8, MarkPlace::Unknown(NoPlace::Form)),
        ] {
            assert_eq!(one(text, Machine::Aarch64), (bytes, place), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_its_number() {
        let all = mark_arguments("4@%edi what 8@[sp, 8] 8@$1", Machine::X86_64);
        let known: Vec<bool> = all.iter().map(|one| !matches!(one.place, MarkPlace::Unknown(_))).collect();
        assert_eq!(known, [true, false, false, true]);
        assert_eq!(mark_arguments(" ", Machine::X86_64), []);
        assert_eq!(mark_arguments("8@[sp, 8] 4@w1", Machine::Aarch64).len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[-$%@()\\[\\],+ 0-9a-z.:]{0,60}") {
            for machine in [Machine::X86_64, Machine::Aarch64] {
                let all = mark_arguments(&text, machine);
                prop_assert!(all.len() <= MARK_ARGUMENTS);
                for one in all {
                    prop_assert!(matches!(one.bytes, 1 | 2 | 4 | 8));
                    match one.place {
                        MarkPlace::Register(nth) => prop_assert!(nth < 32),
                        MarkPlace::Vector(nth) => prop_assert!(nth < 32 && one.class == MarkClass::Float),
                        MarkPlace::Memory { base, index, .. } => {
                            let most = if machine == Machine::X86_64 { 16 } else { 31 };
                            prop_assert!(base < 32 && index.is_none_or(|one| one.register < most && one.scale < 4));
                        }
                        _ => {}
                    }
                }
            }
        }

        #[test]
        fn what_is_written_is_read(size in prop::sample::select(vec![-8i8, -4, -2, -1, 1, 2, 4, 8]), nth in 8u8..16, index in 9u8..16, scale in 0u8..4, offset: i32, constant: i64) {
            let name = |n: u8| format!("%r{n}");
            let all = [
                (name(nth), MarkPlace::Register(nth)),
                (format!("${constant}"), MarkPlace::Constant(constant)),
                (format!("{offset}({})", name(nth)), memory(nth, None, offset)),
                (format!("{offset}({},{},{})", name(nth), name(index), 1 << scale), memory(nth, Some((index, scale)), offset)),
            ];
            let text: Vec<String> = all.iter().map(|(operand, _)| format!("{size}@{operand}")).collect();
            let read = mark_arguments(&text.join(" "), Machine::X86_64);
            prop_assert_eq!(read.len(), all.len());
            for (read, (_, place)) in read.into_iter().zip(all) {
                let class = if size < 0 { MarkClass::Signed } else { MarkClass::Unsigned };
                prop_assert_eq!(read, MarkArgument { bytes: size.unsigned_abs(), class, place });
            }
        }
    }
}
