//! Demangling of names.
//!
//! In: a raw symbol name. Out: its demangled forms, at most [`MAX_LEN`] bytes each (IMG-3: forged names
//! expand exponentially).
//! Does not: keep anything; demangling happens where a pattern or a report needs it.

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use std::fmt::{self, Write};

/// Maximum length of a demangled name, in bytes.
const MAX_LEN: usize = 1 << 16;

/// A text with a maximum length.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_LEN {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

/// The name with its parameters, as `c++filt` writes it; Rust's names without hash. `None` for names that are
/// not mangled.
#[must_use]
pub fn full(raw: &str) -> Option<String> {
    rust(raw).or_else(|| cpp(raw, &DemangleOptions::new()))
}

/// The name without parameters and return type: what follows `Class::` and ends before `(`.
pub(crate) fn short(raw: &str) -> Option<String> {
    rust(raw).or_else(|| cpp(raw, &DemangleOptions::new().no_params().no_return_type()))
}

fn rust(raw: &str) -> Option<String> {
    // Legacy Rust names are C++ names that end in a hash.
    let legacy = || {
        let plain = raw.split_once(".llvm.").map_or(raw, |(plain, _)| plain);
        let hash = plain.strip_suffix('E').and_then(|rest| rest.get(rest.len().checked_sub(19)?..));
        hash.is_some_and(|h| h.starts_with("17h") && h[3..].bytes().all(|b| b.is_ascii_hexdigit()))
    };
    if !(raw.starts_with("_R") || raw.starts_with("_ZN") && legacy()) {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(raw).ok()?;
    let mut text = Bounded::default();
    write!(text, "{demangled:#}").ok()?;
    Some(text.0)
}

fn cpp(raw: &str, options: &DemangleOptions) -> Option<String> {
    if !raw.starts_with("_Z") {
        return None;
    }
    let (symbol, tail) = BorrowedSymbol::with_tail(raw.as_bytes()).ok()?;
    let mut text = Bounded::default();
    symbol.structured_demangle(&mut text, options).ok()?;
    if let Some(thunk) = thunk(&text.0) {
        text.0 = thunk;
    }
    if tail.is_empty() {
        return Some(text.0);
    }
    // `.part.0`, `.constprop.1`: a variant made by the compiler.
    let tail = std::str::from_utf8(tail).ok().filter(|tail| tail.starts_with('.'))?;
    write!(text, " [clone {tail}]").ok()?;
    Some(text.0)
}

/// The usual form `virtual thunk to X` for `{virtual override thunk({virtual offset(0, -24)}, X)}`.
fn thunk(text: &str) -> Option<String> {
    let (offset, target) = text.strip_prefix("{virtual override thunk({")?.split_once("}, ")?;
    let kind = if offset.starts_with("virtual") { "virtual" } else { "non-virtual" };
    Some(format!("{kind} thunk to {}", target.strip_suffix(")}")?))
}
