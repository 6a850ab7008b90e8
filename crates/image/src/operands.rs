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

mod aarch64;
mod spelled;
mod x86_64;

#[cfg(test)]
mod tests;

use trapline_record::Svma;

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
    /// In memory, behind pointers: to a register's content each of these distances is added, and what is there loaded.
    Loads {
        /// The register.
        base: u8,
        /// The distances in bytes.
        offsets: Vec<i32>,
    },
    /// The same, from an address of the file.
    StaticLoads {
        /// The address.
        at: Svma,
        /// The distances in bytes.
        offsets: Vec<i32>,
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
    /// The compiler notes no place for it at this instruction.
    #[error("debug information notes no place for it there")]
    NotNoted,
    /// The library exports it, so that another file may have the variable that counts.
    #[error("the program or another library may have the variable of this name that counts")]
    Replaceable,
    /// It is an array of characters, to which no pointer leads.
    #[error("it is an array of characters, which is not shown inside functions")]
    Characters,
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
        Machine::X86_64 => x86_64::operand(operand.trim()),
        Machine::Aarch64 => aarch64::operand(operand.trim()),
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

/// What an operand says: a place, or why that is unknown.
type Read = Result<MarkPlace, NoPlace>;

/// The number behind a register's letters, below `end`; without zeros in front.
fn numbered(name: &str, letters: &str, end: u8) -> Option<u8> {
    let digits = name.strip_prefix(letters)?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|nth| plain && *nth < end)
}
