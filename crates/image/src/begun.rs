//! A probe that is half typed, and how it may go on.
//!
//! In: the first letters of a probe; an image. Out: its parts so far ([`BegunProbe`]); the names in the image that begin
//! like the last part, sorted, with underscores last, at most as many as are asked for. Each name that comes out selects a function, or a USDT
//! probe, if it is typed. Does not: choose files, quote for a shell.

use std::collections::BTreeSet;

use crate::select::{is_mangled, needle};
use crate::spec::split;
use crate::{Image, ProbeKind, demangle};

/// The parts of a probe that is half typed. `head`, then `name`, is the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BegunProbe<'a> {
    /// What is complete: all up to the last colon that separates.
    pub head: &'a str,
    /// The kind, if one was typed.
    pub kind: Option<ProbeKind>,
    /// The file, if one was typed, with its colon behind it.
    pub file: Option<&'a str>,
    /// What is being typed: a function's name if there is a file, else possibly a kind or a file, too.
    pub name: &'a str,
}

impl<'a> BegunProbe<'a> {
    /// Takes a text apart.
    #[must_use]
    pub fn of(text: &'a str) -> Self {
        let typed = split(text).and_then(|(word, rest)| Some((ProbeKind::from_word(word)?, rest)));
        let (kind, rest) = typed.map_or((None, text), |(kind, rest)| (Some(kind), rest));
        let (file, name) = split(rest).map_or((None, rest), |(file, name)| (Some(file), name));
        Self { head: &text[..text.len() - name.len()], kind, file, name }
    }
}

impl Image {
    /// Names of functions that begin with `start`: as in the symbol table, or demangled without parameters.
    #[must_use]
    pub fn functions_from(&self, start: &str, most: usize) -> Vec<String> {
        let part = needle(start);
        let names = self.functions().iter().flat_map(|function| self.names(function));
        first(most, names.filter_map(|name| fitting(name.raw, start, part)))
    }
    /// USDT probes, `PROVIDER:NAME`, that begin with `start`.
    #[must_use]
    pub fn markers_from(&self, start: &str, most: usize) -> Vec<String> {
        let all = self.usdt().iter().map(|one| format!("{}:{}", one.provider, one.name));
        first(most, all.filter(|text| text.starts_with(start)))
    }
}

/// The form of a symbol's name that begins with `start`. `part` is in every name that does.
fn fitting(raw: &str, start: &str, part: Option<&str>) -> Option<String> {
    if !is_mangled(raw) || start.starts_with('_') && raw.starts_with(start) {
        return raw.starts_with(start).then(|| raw.to_owned());
    }
    if !part.is_none_or(|part| raw.contains(part)) {
        return None;
    }
    demangle::short(raw).filter(|name| name.starts_with(start))
}

/// The first of some texts in their order, each once. What begins with an underscore comes last.
fn first(most: usize, texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = BTreeSet::new();
    for text in texts {
        kept.insert((text.starts_with('_'), text));
        if kept.len() > most {
            kept.pop_last();
        }
    }
    kept.into_iter().map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::{BegunProbe, first, fitting};
    use crate::ProbeKind;

    #[test]
    fn parts_of_a_probe_that_is_half_typed() {
        for (text, head, kind, file, name) in [
            ("", "", None, None, ""),
            ("lib", "", None, None, "lib"),
            ("libc:", "libc:", None, Some("libc"), ""),
            ("libc:mal", "libc:", None, Some("libc"), "mal"),
            ("u:li", "u:", Some(ProbeKind::Entry), None, "li"),
            ("uretprobe:/bin/x:f", "uretprobe:/bin/x:", Some(ProbeKind::Return), Some("/bin/x"), "f"),
            ("usdt:libc:libc:set", "usdt:libc:", Some(ProbeKind::Usdt), Some("libc"), "libc:set"),
            ("ns::f", "", None, None, "ns::f"),
            ("shop:ns::f", "shop:", None, Some("shop"), "ns::f"),
        ] {
            assert_eq!(BegunProbe::of(text), BegunProbe { head, kind, file, name }, "{text}");
        }
    }

    #[test]
    fn names_go_on_as_they_were_begun() {
        assert_eq!(fitting("malloc", "mal", None).as_deref(), Some("malloc"));
        assert_eq!(fitting("calloc", "mal", None), None);
        assert_eq!(fitting("_ZN2ns1fEi", "ns:", None).as_deref(), Some("ns::f"));
        assert_eq!(fitting("_ZN2ns1fEi", "_ZN", None).as_deref(), Some("_ZN2ns1fEi"));
        assert_eq!(fitting("_ZN2ns1fEi", "", None).as_deref(), Some("ns::f"));
    }

    #[test]
    fn no_more_are_kept_than_asked_for() {
        let of = |most| first(most, ["c", "_", "a", "b", "a"].map(str::to_owned).into_iter());
        assert_eq!(
            (of(2), of(9)),
            (vec!["a".to_owned(), "b".to_owned()], ["a", "b", "c", "_"].map(str::to_owned).to_vec())
        );
    }
}
