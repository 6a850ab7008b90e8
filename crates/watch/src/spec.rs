//! The user's text for what to watch: `[module:]place[:len][:w|rw|x]`.
//!
//! In: text. Out: [`WatchSpec`]. A place is an address (`0x…`), or a name with an optional distance
//! (`counter`, `table+16`, `server.stat_numcommands`, `list[3].next`). `::` is a part of a name. Does not:
//! look anything up.

use std::str::FromStr;

use trapline_record::RemoteAddr;
use trapline_tracee::perf::Access;

use crate::error::WatchError;

/// The place of a watchpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchPlace {
    /// An address in the process.
    Address(u64),
    /// A name, and a distance behind it.
    Name {
        /// A symbol, or a variable with a path to a field of it.
        name: String,
        /// The distance in bytes.
        offset: u64,
    },
}

/// What to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// As typed.
    pub text: String,
    /// The file, if one was named.
    pub module: Option<String>,
    /// The place to watch.
    pub place: WatchPlace,
    /// The length in bytes, if one was typed.
    pub len: Option<u64>,
    /// The accesses to watch.
    pub access: Access,
}

/// Why a text is not a place to watch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WatchSpecError {
    /// The text is empty.
    #[error(
        "it names nothing; write a variable, FILE:VARIABLE, or 0xADDRESS, with :LEN and :w, :rw or :x behind it"
    )]
    Empty,
    /// It has too many parts.
    #[error("too many parts; write [FILE:]PLACE[:LEN][:w|rw|x]")]
    Parts,
    /// The access is `:r`.
    #[error("x86-64 cannot watch reads alone; use :rw")]
    ReadOnly,
    /// A part is not a number.
    #[error("`{0}` is no number of bytes")]
    Number(String),
    /// Code was given a length.
    #[error("execution is watched at one address; leave the length out")]
    ExecuteLen,
}

/// Checks that one debug register can hold a range.
///
/// # Errors
/// [`WatchError::Range`], which names what would be right.
pub fn check_range(addr: RemoteAddr, len: u64) -> Result<(), WatchError> {
    let why = match len {
        1 | 2 | 4 | 8 if addr.0.is_multiple_of(len) => return Ok(()),
        1 | 2 | 4 | 8 => {
            format!("a debug register takes {len} bytes only at a multiple of {len}; {}", parts(addr.0, len))
        }
        0 => "it must be 1, 2, 4 or 8 bytes".to_owned(),
        _ => format!("a debug register holds 1, 2, 4 or 8 bytes; {}", parts(addr.0, len)),
    };
    Err(WatchError::Range { addr, len, why })
}

/// The pieces that cover a range, if they are few.
fn parts(addr: u64, len: u64) -> String {
    let mut pieces = Vec::new();
    let (mut at, end) = (addr, addr.saturating_add(len));
    while at < end {
        let fits = |size: &u64| at.is_multiple_of(*size) && size.saturating_add(at) <= end;
        let size = [8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        pieces.push(format!("{at:#x}:{size}"));
        at = at.saturating_add(size);
        if pieces.len() > 4 {
            return "watch a part of it, ADDRESS:LEN".to_owned();
        }
    }
    format!("watch {}", pieces.join(" and "))
}

/// Splits at single colons; `::` does not split.
fn split(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let single = |&at: &usize| {
        bytes[at] == b':' && bytes.get(at + 1) != Some(&b':') && (at == 0 || bytes[at - 1] != b':')
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for at in (0..bytes.len()).filter(single) {
        parts.push(&text[from..at]);
        from = at + 1;
    }
    parts.push(&text[from..]);
    parts
}

pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn place(text: &str) -> Result<WatchPlace, WatchSpecError> {
    if text.starts_with("0x") || text.starts_with("0X") {
        return number(text).map(WatchPlace::Address).ok_or_else(|| WatchSpecError::Number(text.to_owned()));
    }
    let (name, offset) = match text.rsplit_once('+') {
        Some((name, offset)) if offset.starts_with(|c: char| c.is_ascii_digit()) => {
            (name, number(offset).ok_or_else(|| WatchSpecError::Number(offset.to_owned()))?)
        }
        _ => (text, 0),
    };
    if name.is_empty() {
        Err(WatchSpecError::Empty)
    } else {
        Ok(WatchPlace::Name { name: name.to_owned(), offset })
    }
}

impl FromStr for WatchSpec {
    type Err = WatchSpecError;

    fn from_str(text: &str) -> Result<Self, WatchSpecError> {
        let mut parts = split(text.trim());
        let access = match parts.last() {
            Some(&"w") if parts.len() > 1 => Some(Access::Write),
            Some(&("rw" | "wr")) if parts.len() > 1 => Some(Access::ReadWrite),
            Some(&"x") if parts.len() > 1 => Some(Access::Execute),
            Some(&"r") if parts.len() > 1 => return Err(WatchSpecError::ReadOnly),
            _ => None,
        };
        if access.is_some() {
            parts.pop();
        }
        let is_number =
            |part: &&str| part.starts_with(|c: char| c.is_ascii_digit()) && !part.starts_with("0x");
        let len = match parts.last().copied().filter(is_number) {
            Some(part) if parts.len() > 1 => {
                parts.pop();
                Some(number(part).ok_or_else(|| WatchSpecError::Number(part.to_owned()))?)
            }
            _ => None,
        };
        let (module, named) = match parts[..] {
            [named] => (None, named),
            [module, named] if !module.is_empty() => (Some(module.to_owned()), named),
            [_, _] => return Err(WatchSpecError::Empty),
            _ => return Err(WatchSpecError::Parts),
        };
        if named.is_empty() {
            return Err(WatchSpecError::Empty);
        }
        let access = access.unwrap_or(Access::Write);
        if access == Access::Execute && len.is_some_and(|len| len != 1) {
            return Err(WatchSpecError::ExecuteLen);
        }
        Ok(Self { text: text.to_owned(), module, place: place(named)?, len, access })
    }
}

#[cfg(test)]
mod tests {
    use super::{WatchPlace, WatchSpec, WatchSpecError, check_range};
    use proptest::prelude::*;
    use trapline_record::RemoteAddr;
    use trapline_tracee::perf::Access;

    fn parse(text: &str) -> (Option<String>, WatchPlace, Option<u64>, Access) {
        let spec: WatchSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        (spec.module, spec.place, spec.len, spec.access)
    }

    fn name(name: &str, offset: u64) -> WatchPlace {
        WatchPlace::Name { name: name.into(), offset }
    }

    #[test]
    fn places_are_read() {
        use Access::{Execute, ReadWrite, Write};
        assert_eq!(parse("counter"), (None, name("counter", 0), None, Write));
        assert_eq!(parse("counter:rw"), (None, name("counter", 0), None, ReadWrite));
        assert_eq!(
            parse("libx:counter+0x10:4:w"),
            (Some("libx".into()), name("counter", 16), Some(4), Write)
        );
        assert_eq!(parse("0x601040:8"), (None, WatchPlace::Address(0x60_1040), Some(8), Write));
        assert_eq!(parse("/bin/a:server.x:x"), (Some("/bin/a".into()), name("server.x", 0), None, Execute));
        assert_eq!(parse("ns::T::count:2"), (None, name("ns::T::count", 0), Some(2), Write));
        assert_eq!(parse("w"), (None, name("w", 0), None, Write));
        assert_eq!(parse("a[3].b+4"), (None, name("a[3].b", 4), None, Write));
    }

    #[test]
    fn each_wrong_text_has_its_reason() {
        for (text, wrong) in [
            ("", WatchSpecError::Empty),
            (":w", WatchSpecError::Empty),
            ("libx:", WatchSpecError::Empty),
            ("a:b:c:d", WatchSpecError::Parts),
            ("x:r", WatchSpecError::ReadOnly),
            ("0xzz", WatchSpecError::Number("0xzz".into())),
            ("main:4:x", WatchSpecError::ExecuteLen),
        ] {
            assert_eq!(text.parse::<WatchSpec>(), Err(wrong), "{text}");
        }
    }

    #[test]
    fn ranges_are_held_or_taken_apart() {
        let why = |addr, len| check_range(RemoteAddr(addr), len).err().map(|error| error.to_string());
        assert_eq!(why(0x1000, 8), None);
        assert_eq!(why(0x1001, 1), None);
        assert!(why(0x1002, 4).is_some_and(|why| why.ends_with("watch 0x1002:2 and 0x1004:2")));
        assert!(why(0x1000, 12).is_some_and(|why| why.ends_with("watch 0x1000:8 and 0x1008:4")));
        assert!(why(0x1000, 4096).is_some_and(|why| why.ends_with("watch a part of it, ADDRESS:LEN")));
        assert!(why(0x1000, 0).is_some());
        assert!(why(u64::MAX - 1, 7).is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}") {
            let _spec = text.parse::<WatchSpec>();
        }
    }
}
