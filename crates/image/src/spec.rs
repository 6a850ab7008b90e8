//! Probe specifications, in bpftrace's syntax.
//!
//! In: `uprobe:PATH:func+off`, `usdt:PATH:provider:name`, `lib:func`, `func`, `PATH:0xADDR`, `PATH@SOURCE.c:LINE`.
//! Out: [`ProbeSpec`].
//! Does not: look for files. A colon is a separator only if it is single (or before a `::`): `ns::f` is a
//! name.

use crate::{Pattern, SourceLine, SpecError};
use std::fmt;
use std::str::FromStr;

/// What a probe counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProbeKind {
    /// `uprobe`: entry, or the instruction at an offset.
    Entry,
    /// `uretprobe`: every exit.
    Return,
    /// `usdt`: a USDT probe.
    Usdt,
}

impl ProbeKind {
    /// The kind for the word before the first colon: bpftrace's words, and `p`, `r` as in bcc.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "uprobe" | "u" | "p" => Some(Self::Entry),
            "uretprobe" | "ur" | "r" => Some(Self::Return),
            "usdt" | "U" => Some(Self::Usdt),
            _ => None,
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Entry => "uprobe",
            Self::Return => "uretprobe",
            Self::Usdt => "usdt",
        })
    }
}

/// bpftrace's other probe types, so that they are not mistaken for files.
const FOREIGN: [&str; 17] = [
    "kprobe",
    "kretprobe",
    "tracepoint",
    "rawtracepoint",
    "profile",
    "interval",
    "hardware",
    "software",
    "watchpoint",
    "asyncwatchpoint",
    "fentry",
    "fexit",
    "kfunc",
    "kretfunc",
    "iter",
    "BEGIN",
    "END",
];

/// One probe as it was typed.
#[derive(Clone, Debug)]
pub struct ProbeSpec {
    /// Entry, return or USDT probe.
    pub kind: ProbeKind,
    /// Path, short library name or program name; `None`: the program itself, then its libraries.
    pub file: Option<String>,
    /// For `usdt`: the provider, if one was given.
    pub provider: Option<Pattern>,
    /// The function, or the USDT probe's name.
    pub func: Pattern,
    /// The text from which it was parsed.
    pub text: String,
    /// Variables whose values a hit inside a function has, by name or by a path from one: as a USDT probe has arguments.
    pub locals: Vec<String>,
}

impl FromStr for ProbeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let whole = text.trim();
        let (kind, rest) = match split(whole) {
            Some((word, rest)) => match ProbeKind::from_word(word) {
                Some(kind) => (kind, rest),
                None if FOREIGN.contains(&word) => return Err(SpecError::Kind { kind: word.to_owned() }),
                None => (ProbeKind::Entry, whole),
            },
            None => (ProbeKind::Entry, whole),
        };
        let (file, name) = match split(rest) {
            Some((file, name)) => (Some(file).filter(|file| !file.is_empty()), name),
            None => (None, rest),
        };
        if let Some((file, line)) = file.and_then(|file| source_line(file, name)) {
            if kind != ProbeKind::Entry {
                return Err(SpecError::Line(whole.to_owned()));
            }
            let file = Some(file.to_owned()).filter(|file| !file.is_empty());
            return Ok(Self {
                kind,
                file,
                provider: None,
                func: Pattern::Line(line),
                text: whole.to_owned(),
                locals: Vec::new(),
            });
        }
        let (provider, name) = match split(name).filter(|_| kind == ProbeKind::Usdt) {
            Some((provider, name)) => (Some(provider).filter(|p| !p.is_empty()), name),
            None => (None, name),
        };
        if kind == ProbeKind::Usdt && split(name).is_some() {
            return Err(SpecError::Parts(whole.to_owned()));
        }
        let func: Pattern = name.parse().map_err(|error| match error {
            SpecError::NoFunction(_) => SpecError::NoFunction(whole.to_owned()),
            other => other,
        })?;
        if misplaced_offset(kind, file, &func) {
            return Err(SpecError::Offset(whole.to_owned()));
        }
        let provider = provider.map(str::parse).transpose()?;
        Ok(Self {
            kind,
            file: file.map(str::to_owned),
            provider,
            func,
            text: whole.to_owned(),
            locals: Vec::new(),
        })
    }
}

impl ProbeSpec {
    /// Whether it is at a line, or behind a function's first instruction: registers do not hold the function's arguments
    /// there.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        match (self.kind, &self.func) {
            (ProbeKind::Entry, Pattern::Line(_)) => true,
            (ProbeKind::Entry, Pattern::Exact(exact)) => exact.offset > 0,
            _ => false,
        }
    }
    /// Whether it selects the function in a probe's text or label, in whatever file.
    #[must_use]
    pub fn means(&self, text: &str) -> bool {
        if let Pattern::Line(line) = &self.func {
            return text.strip_suffix(&line.to_string()).is_some_and(|rest| rest.ends_with('@'));
        }
        let mut name = text;
        while let Some((_, rest)) = split(name) {
            name = rest;
        }
        let Pattern::Exact(exact) = &self.func else { return self.func.means(name) };
        // An offset is written behind the name.
        let name =
            if exact.offset > 0 { name.strip_suffix(&format!("+{}", exact.offset)) } else { Some(name) };
        name.is_some_and(|name| self.func.means(name))
    }
}

/// `PATH@SOURCE.c` and `LINE` or `LINE:COLUMN`: the path, and the line.
fn source_line<'a>(file: &'a str, place: &str) -> Option<(&'a str, SourceLine)> {
    let (path, source) = file.rsplit_once('@').filter(|(_, source)| !source.is_empty())?;
    SourceLine::parse(source, place).map(|line| (path, line))
}

/// Whether an offset is at a place where none is allowed. `BASENAME+0x…` is the name of a nameless function,
/// not an offset into one. Without a file this can only be decided by looking at the functions, so it is left
/// to the code that selects.
fn misplaced_offset(kind: ProbeKind, file: Option<&str>, pattern: &Pattern) -> bool {
    let Pattern::Exact(exact) = pattern else { return false };
    let basename = file.map(|file| file.rsplit_once('/').map_or(file, |(_, base)| base));
    exact.offset != 0
        && match kind {
            ProbeKind::Entry => false,
            ProbeKind::Return => basename.is_some_and(|base| !exact.name.starts_with(base)),
            ProbeKind::Usdt => true,
        }
}

/// Splits at the first colon that is a separator; colons inside `/…/` and those of `::` are not.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    let whole_regex = text.len() > 1 && text.starts_with('/') && text.ends_with('/');
    if whole_regex && !text.contains(":/") && !text.ends_with("operator/") {
        return None;
    }
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|&&byte| byte == b':').count();
        // One colon is a separator; three are a separator and the `::` of a global name.
        if run % 2 == 1 {
            return Some((&text[..at], &text[at + 1..]));
        }
        at += run.max(1);
    }
    None
}

impl fmt::Display for ProbeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind)?;
        let between = if matches!(self.func, Pattern::Line(_)) { '@' } else { ':' };
        if let Some(file) = &self.file {
            write!(f, "{file}{between}")?;
        }
        if let Some(provider) = &self.provider {
            write!(f, "{provider}:")?;
        }
        write!(f, "{}", self.func)
    }
}
