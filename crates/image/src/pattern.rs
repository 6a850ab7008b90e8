//! Patterns for names of functions and USDT probes.
//!
//! In: text. Out: [`Pattern`], which decides whether a name matches.
//! Does not: know a file's functions (see `select`).

use crate::{SourceLine, SpecError, demangle};
use std::fmt;
use std::str::FromStr;
use trapline_record::Svma;

/// Selects functions of a file.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A name, raw or demangled, with or without its parameter list.
    Exact(Exact),
    /// `*` matches any run of characters, `?` any one character. The star of a receiver in a name of Go's,
    /// `main.(*T).f`, is itself.
    Glob(Glob),
    /// `/…/`, a regular expression that is not anchored.
    Regex(regex_lite::Regex),
    /// The function or instruction at this address, as the ELF file states it.
    Address(Svma),
    /// The code of this source line.
    Line(SourceLine),
}

/// A plain name and what may follow it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exact {
    /// The name as typed.
    pub name: String,
    /// `@VERSION`, or `@@` for the default version.
    pub version: Option<Version>,
    /// `+off`, bytes from the function's start.
    pub offset: u64,
}

/// The symbol version that a pattern requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// `sym@@` or `sym@@VERSION`: the default version, with that name if a name is given.
    Default(Option<String>),
    /// `sym@VERSION`: that version, default or not.
    Named(String),
}

impl Version {
    /// Whether a symbol's version is the required one.
    #[must_use]
    pub fn matches(&self, version: Option<&str>, default: bool) -> bool {
        match self {
            Self::Default(None) => default && version.is_some(),
            Self::Default(Some(name)) => default && version == Some(name),
            Self::Named(name) => version == Some(name),
        }
    }
}

/// A shell-like pattern that must match a whole name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob(pub String);

impl Glob {
    /// Whether it matches all of `text`. Takes at most `pattern × text` steps.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        // Where to go on after a mismatch: behind the last star, one byte further in the text.
        let mut retry = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') if !is_of_receiver(pattern, p) => {
                    p += 1;
                    retry = Some((p, t));
                    continue;
                }
                // One character, which may be several bytes.
                Some(b'?') => {
                    t += 1;
                    while text.get(t).is_some_and(|byte| byte & 0xc0 == 0x80) {
                        t += 1;
                    }
                    p += 1;
                    continue;
                }
                Some(byte) if *byte == text[t] => {
                    (p, t) = (p + 1, t + 1);
                    continue;
                }
                _ => {}
            }
            let Some((star_p, star_t)) = retry else { return false };
            (p, t) = (star_p, star_t + 1);
            retry = Some((p, t));
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

impl Pattern {
    /// Whether a plain text, such as a USDT probe's name, matches; an address and a line match none.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact.name == text,
            Self::Glob(glob) => glob.matches(text),
            Self::Regex(regex) => regex.is_match(text),
            Self::Address(_) | Self::Line(_) => false,
        }
    }

    /// Whether it selects a function of this name, raw, or demangled with or without its parameters. An
    /// address selects a function with that address as its name; a line, none.
    #[must_use]
    pub fn means(&self, name: &str) -> bool {
        if let Self::Address(at) = self {
            return name == format!("{:#x}", at.0);
        }
        let fits = |text: &str| match self {
            // `f(char*)` is a name before it is a glob.
            Self::Exact(Exact { name, .. }) | Self::Glob(Glob(name)) if name.contains('(') => {
                spaceless(name) == spaceless(text) || self.matches(text)
            }
            _ => self.matches(text),
        };
        let demangled = || [demangle::full(name), demangle::short(name)].into_iter().flatten();
        fits(name) || demangled().any(|text| fits(&text))
    }

    /// Whether it can select several functions by design.
    #[must_use]
    pub const fn is_wild(&self) -> bool {
        matches!(self, Self::Glob(_) | Self::Regex(_))
    }
}

impl FromStr for Pattern {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.is_empty() {
            return Err(SpecError::NoFunction(text.to_owned()));
        }
        if let Some(pattern) = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
            let compiled = regex_lite::RegexBuilder::new(pattern).size_limit(1 << 22).build();
            return compiled.map(Self::Regex).map_err(|error| SpecError::Regex {
                pattern: pattern.to_owned(),
                reason: error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
            });
        }
        if text.starts_with("0x") || text.starts_with("0X") {
            return number(text).map(|address| Self::Address(Svma(address)));
        }
        let (name, offset) = split_offset(text)?;
        let is_wild =
            |(at, byte): (usize, u8)| byte == b'?' || byte == b'*' && !is_of_receiver(name.as_bytes(), at);
        if name.bytes().enumerate().any(is_wild) {
            return match offset {
                0 => Ok(Self::Glob(Glob(name.to_owned()))),
                _ => Err(SpecError::Offset(text.to_owned())),
            };
        }
        let (name, version) = split_version(name);
        if name.is_empty() {
            return Err(SpecError::NoFunction(text.to_owned()));
        }
        Ok(Self::Exact(Exact { name: name.to_owned(), version, offset }))
    }
}

/// Whether a star stands where Go writes the receiver's pointer: `.(*T`.
fn is_of_receiver(name: &[u8], star: usize) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
    name[..star].ends_with(b".(") && name.get(star + 1).is_some_and(is_letter)
}

/// The text without spaces, in which the spellings of C++ names differ.
pub(crate) fn spaceless(text: &str) -> String {
    text.chars().filter(|c| *c != ' ').collect()
}

/// `func+0x10`. A plus without a digit behind it is part of the name: `operator+`, `operator+=(X)`.
fn split_offset(text: &str) -> Result<(&str, u64), SpecError> {
    match text.rsplit_once('+') {
        Some((name, offset)) if !name.is_empty() && offset.starts_with(|c: char| c.is_ascii_digit()) => {
            Ok((name, number(offset)?))
        }
        _ => Ok((text, 0)),
    }
}

fn split_version(text: &str) -> (&str, Option<Version>) {
    let Some((name, version)) = text.split_once('@').filter(|(name, _)| !name.is_empty()) else {
        return (text, None);
    };
    let version = match version.strip_prefix('@') {
        Some("") => Version::Default(None),
        Some(version) => Version::Default(Some(version.to_owned())),
        None => Version::Named(version.to_owned()),
    };
    (name, Some(version))
}

fn number(text: &str) -> Result<u64, SpecError> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let value = match hex {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    value.ok_or_else(|| SpecError::Number(text.to_owned()))
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(exact) => {
                f.write_str(&exact.name)?;
                match &exact.version {
                    Some(Version::Default(version)) => write!(f, "@@{}", version.as_deref().unwrap_or(""))?,
                    Some(Version::Named(version)) => write!(f, "@{version}")?,
                    None => {}
                }
                if exact.offset == 0 { Ok(()) } else { write!(f, "+{:#x}", exact.offset) }
            }
            Self::Glob(glob) => f.write_str(&glob.0),
            Self::Regex(regex) => write!(f, "/{regex}/"),
            Self::Address(at) => write!(f, "{at}"),
            Self::Line(line) => write!(f, "{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn the_star_of_a_receiver_is_itself() {
        let means = |pattern: &str, name: &str| pattern.parse::<Pattern>().expect("a pattern").means(name);
        let method = "main.(*T).f";
        for pattern in [method, "main.(*T).*", "main.(*).f", "main.*", "*.f"] {
            assert!(means(pattern, method), "{pattern}");
        }
        assert!(!means(method, "main.(*MyT).f") && !means("main.(*T).*", "main.(*MyT).f"));
        assert!(matches!("main.(*T).f+0x4".parse(), Ok(Pattern::Exact(exact)) if exact.offset == 4));
    }
}
