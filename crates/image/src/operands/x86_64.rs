//! Operands of x86-64, in AT&T's assembler syntax.
//!
//! In: an operand of a USDT probe's argument, without its size. Out: its place, or why that is unknown.
//! Does not: look for symbols, or know sizes.

use super::{Extend, MarkIndex, MarkPlace, NoPlace, Read, number, numbered};

/// `$5`, `$sym`, `%eax`, `%xmm0`, `-24(%rbp)`, `8(%rax,%rbx,4)`, `sym+4(%rip)`, `sym`.
pub(super) fn operand(operand: &str) -> Read {
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

/// Names of the first eight registers and of their low bytes.
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

/// The name of a general register by its hardware number.
pub(super) fn name(register: u8) -> String {
    OLD.get(usize::from(register)).map_or_else(|| format!("r{register}"), |names| names[0].to_owned())
}

/// The number of the register, if this names its low bytes; `ah` and similar name other bytes.
fn gpr(name: &str) -> Option<u8> {
    if let Some(nth) = OLD.iter().position(|names| names.contains(&name)) {
        return Some(nth as u8);
    }
    let digits = name.strip_suffix(['d', 'w', 'b']).unwrap_or(name);
    numbered(digits, "r", 16).filter(|nth| *nth >= 8)
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
