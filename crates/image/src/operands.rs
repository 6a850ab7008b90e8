//! The arguments of a USDT probe (*mark* in identifiers): their places when the probe is reached, according
//! to the compiler.
//!
//! In: a note's argument string, in assembler syntax (`-4@%edi 8@-24(%rbp) 8@$5 4@sym(%rip)`; arm64: `4@w0
//! 8@[sp, 24] -4@5`), and the processor. Out: for each argument its width and its place. An argument that
//! cannot be read is [`MarkPlace::Unknown`] and stays in the list, so that the others keep their numbers.
//! Does not: find symbols, read memory.

use crate::Machine;

/// An argument of a USDT probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkArgument {
    /// Width in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether it is signed.
    pub signed: bool,
    /// Its place.
    pub place: MarkPlace,
}

/// Place of a USDT probe's argument. Registers have their hardware numbers: x86-64's as in instructions,
/// arm64's x0 to x30, and 31 for sp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MarkPlace {
    /// In the low bytes of a general register.
    Register(u8),
    /// It is this constant.
    Constant(i64),
    /// In memory, at this distance from a register. With an index, that register times a power of two is
    /// added.
    Memory {
        /// The register.
        base: u8,
        /// The index register, and the exponent of the power.
        index: Option<(u8, u8)>,
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
    /// The place is unknown.
    Unknown,
}

/// Maximum number of arguments of a USDT probe.
const MOST: usize = 12;

/// All arguments of a note.
pub(crate) fn parse(text: &str, machine: Machine) -> Vec<MarkArgument> {
    words(text).take(MOST).map(|word| argument(word, machine)).collect()
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
    let unknown = MarkArgument { bytes: 8, signed: false, place: MarkPlace::Unknown };
    let Some((size, operand)) = word.split_once('@') else { return unknown };
    let (signed, digits) = size.strip_prefix('-').map_or((false, size), |digits| (true, digits));
    // Other sizes are of vectors; those of floats have an `f`.
    let Some(bytes) = digits.parse::<u8>().ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8)) else {
        return unknown;
    };
    let place = match machine {
        Machine::X86_64 => x86_64(operand.trim()),
        Machine::Aarch64 => aarch64(operand.trim()),
    };
    MarkArgument { bytes, signed, place: place.unwrap_or(MarkPlace::Unknown) }
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

/// `$5`, `%eax`, `-24(%rbp)`, `8(%rax,%rbx,4)`, `sym+4(%rip)`.
fn x86_64(operand: &str) -> Option<MarkPlace> {
    if let Some(constant) = operand.strip_prefix('$') {
        return number(constant).map(MarkPlace::Constant);
    }
    if let Some(name) = operand.strip_prefix('%') {
        return gpr(name).map(MarkPlace::Register);
    }
    let (offset, inside) = operand.strip_suffix(')')?.split_once('(')?;
    if inside == "%rip" {
        return symbol(offset);
    }
    let offset = if offset.is_empty() { 0 } else { i32::try_from(number(offset)?).ok()? };
    let mut parts = inside.split(',').map(str::trim);
    let base = wide(parts.next()?)?;
    let index = match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) => None,
        (Some(index), scale, None) => {
            let scale = ["1", "2", "4", "8"].iter().position(|&one| one == scale.unwrap_or("1"))?;
            let index = wide(index)?;
            // No instruction can have rsp as index.
            (index != 4).then_some(Some((index, scale as u8)))?
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
    let digits = name.strip_prefix('r')?.trim_end_matches(['d', 'w', 'b']);
    let suffix = name.len() - 1 - digits.len();
    digits.parse().ok().filter(|nth| (8..16).contains(nth) && suffix <= 1)
}

/// `sym`, `sym+8`, `8+sym`, `sym-4`.
fn symbol(text: &str) -> Option<MarkPlace> {
    let is_name = |name: &str| {
        let first = name.chars().next()?;
        let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '$'));
        (plain && !first.is_ascii_digit()).then(|| name.to_owned())
    };
    if let Some(name) = is_name(text) {
        return Some(MarkPlace::Symbol { name, offset: 0 });
    }
    if let Some((offset, name)) = text.split_once('+')
        && let (Some(offset), Some(name)) = (number(offset), is_name(name))
    {
        return Some(MarkPlace::Symbol { name, offset });
    }
    let at = text.rfind(['+', '-'])?;
    let offset = number(text[at..].trim_start_matches('+'))?;
    Some(MarkPlace::Symbol { name: is_name(&text[..at])?, offset })
}

/// `x0`, `w0`, `5`, `[sp, 24]`, `[x29, -8]`, `[x1]`.
fn aarch64(operand: &str) -> Option<MarkPlace> {
    if let Some(inside) = operand.strip_prefix('[') {
        let mut parts = inside.strip_suffix(']')?.split(',').map(str::trim);
        let base = parts.next()?;
        let base = if base == "sp" { 31 } else { xreg(base, "x")? };
        let offset = parts.next().map_or(Some(0), |text| number(text.trim_start_matches('#')));
        let offset = i32::try_from(offset?).ok()?;
        return parts.next().is_none().then_some(MarkPlace::Memory { base, index: None, offset });
    }
    match operand {
        "sp" => Some(MarkPlace::Register(31)),
        "xzr" | "wzr" => Some(MarkPlace::Constant(0)),
        _ => {
            let register = xreg(operand, "x").or_else(|| xreg(operand, "w")).map(MarkPlace::Register);
            register.or_else(|| number(operand.trim_start_matches('#')).map(MarkPlace::Constant))
        }
    }
}

fn xreg(name: &str, letter: &str) -> Option<u8> {
    let digits = name.strip_prefix(letter)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&nth: &u8| plain && nth <= 30)
}

#[cfg(test)]
mod tests {
    use super::{MOST, Machine, MarkArgument, MarkPlace, parse};
    use proptest::prelude::*;

    fn one(text: &str, machine: Machine) -> (i8, MarkPlace) {
        let all = parse(text, machine);
        assert_eq!(all.len(), 1, "{text}");
        let MarkArgument { bytes, signed, place } = all[0].clone();
        (if signed { -(bytes as i8) } else { bytes as i8 }, place)
    }

    fn memory(base: u8, index: Option<(u8, u8)>, offset: i32) -> MarkPlace {
        MarkPlace::Memory { base, index, offset }
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
            // These only look like valid operands.
            ("1@%ah", 1, MarkPlace::Unknown),
            ("8f@%xmm0", 8, MarkPlace::Unknown),
            ("8@%xmm0", 8, MarkPlace::Unknown),
            ("4@%fs:-4", 4, MarkPlace::Unknown),
            ("8@8(%rax,%rsp,1)", 8, MarkPlace::Unknown),
            ("8@8(%rax,%rbx,3)", 8, MarkPlace::Unknown),
            ("8@8(%eax)", 8, MarkPlace::Unknown),
            ("8@$sym", 8, MarkPlace::Unknown),
            ("8@%r16", 8, MarkPlace::Unknown),
            ("8@99999999999(%rax)", 8, MarkPlace::Unknown),
            ("%edi", 8, MarkPlace::Unknown),
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
            ("8@[x1, x2]", 8, MarkPlace::Unknown),
            ("8@x31", 8, MarkPlace::Unknown),
            ("8@d0", 8, MarkPlace::Unknown),
        ] {
            assert_eq!(one(text, Machine::Aarch64), (bytes, place), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_its_number() {
        let all = parse("4@%edi what 8@[sp, 8] 8@$1", Machine::X86_64);
        let known: Vec<bool> = all.iter().map(|one| one.place != MarkPlace::Unknown).collect();
        assert_eq!(known, [true, false, false, true]);
        assert_eq!(parse(" ", Machine::X86_64), []);
        assert_eq!(parse("8@[sp, 8] 4@w1", Machine::Aarch64).len(), 2);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[-$%@()\\[\\],+ 0-9a-z.:]{0,60}") {
            for machine in [Machine::X86_64, Machine::Aarch64] {
                let all = parse(&text, machine);
                prop_assert!(all.len() <= MOST);
                for one in all {
                    prop_assert!(matches!(one.bytes, 1 | 2 | 4 | 8));
                    match one.place {
                        MarkPlace::Register(nth) => prop_assert!(nth < 32),
                        MarkPlace::Memory { base, index, .. } => {
                            prop_assert!(base < 32 && index.is_none_or(|(nth, scale)| nth < 16 && nth != 4 && scale < 4));
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
            let read = parse(&text.join(" "), Machine::X86_64);
            prop_assert_eq!(read.len(), all.len());
            for (read, (_, place)) in read.into_iter().zip(all) {
                prop_assert_eq!(read, MarkArgument { bytes: size.unsigned_abs(), signed: size < 0, place });
            }
        }
    }
}
