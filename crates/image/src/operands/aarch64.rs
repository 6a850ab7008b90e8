//! Operands of arm64, as compilers write them: without `#` before numbers, or with it.
//!
//! In: an operand of a USDT probe's argument, without its size. Out: its place, or why that is unknown.
//! Does not: know sizes.

use super::{Extend, MarkIndex, MarkPlace, NoPlace, Read, number, numbered};

/// `x0`, `w0`, `d0`, `5`, `[sp, 24]`, `[x29, -8]`, `[x1]`, `[x0, x1, lsl 3]`, `[x0, w1, sxtw 2]`.
pub(super) fn operand(operand: &str) -> Read {
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

/// The name of a general register by its hardware number.
pub(super) fn name(register: u8) -> String {
    if register == 31 { "sp".to_owned() } else { format!("x{register}") }
}

fn general(name: &str, letter: &str) -> Option<u8> {
    numbered(name, letter, 31)
}
