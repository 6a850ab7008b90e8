//! What is wrong with a script: messages with their places.
//!
//! In: a message and where it applies. Out: text as bpftrace writes it: place, severity, message, the marked line,
//! hints, and the calls of macros that led there. Does not: decide what is wrong.

use std::fmt::Write;
use std::rc::Rc;

use crate::source::{Source, Span};

/// A place in the script, with the calls of macros that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct At {
    /// The place itself.
    pub span: Span,
    /// The call of the macro in which the place is.
    pub caller: Option<Rc<Self>>,
}

impl At {
    /// The calls of macros that led to this place, innermost first.
    pub fn callers(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.caller.as_deref(), |at| at.caller.as_deref())
    }
}

impl From<Span> for At {
    fn from(span: Span) -> Self {
        Self { span, caller: None }
    }
}

/// How bad a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The script runs, but perhaps not as meant.
    Warning,
    /// The script does not run.
    Error,
}

impl Severity {
    /// The word before the message.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

/// One message about a script.
#[derive(Debug, Clone)]
pub(crate) struct Diagnostic {
    /// How bad it is.
    pub(crate) severity: Severity,
    /// What is wrong.
    pub(crate) message: String,
    /// Where.
    pub(crate) at: At,
    /// What could be done, one a line.
    pub(crate) hints: Vec<String>,
    /// Other places that belong to it.
    pub(crate) notes: Vec<(String, Span)>,
    /// Whether it is about no place: the place is not shown.
    pub(crate) placeless: bool,
}

impl Diagnostic {
    pub(crate) fn new(severity: Severity, message: String, at: At) -> Self {
        Self { severity, message, at, hints: Vec::new(), notes: Vec::new(), placeless: false }
    }
    pub(crate) fn error(message: impl Into<String>, at: impl Into<At>) -> Self {
        Self::new(Severity::Error, message.into(), at.into())
    }
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
    pub(crate) fn note(mut self, note: impl Into<String>, at: Span) -> Self {
        self.notes.push((note.into(), at));
        self
    }
    /// Without its place.
    pub(crate) fn placeless(mut self) -> Self {
        self.placeless = true;
        self
    }
    /// The message as people read it.
    pub(crate) fn text(&self, source: &Source) -> String {
        let mut out = String::new();
        let word = self.severity.word();
        if self.placeless {
            return format!("{word}: {}\n", self.message);
        }
        let mut say = |span: Span, message: &str| {
            let (place, context) = (source.place(span), source.context(span));
            write!(out, "{place}: {word}: {message}\n{context}").unwrap_or_default();
        };
        say(self.at.span, &self.message);
        for (note, span) in &self.notes {
            say(*span, note);
        }
        for hint in &self.hints {
            writeln!(out, "HINT: {hint}").unwrap_or_default();
        }
        out + &expansions(&self.at, word, source)
    }
}

/// A line and its context for each macro call that led to a place.
pub(crate) fn expansions(at: &At, word: &str, source: &Source) -> String {
    let mut out = String::new();
    for caller in at.callers() {
        let (place, context) = (source.place(caller.span), source.context(caller.span));
        write!(out, "{place}: {word}: expanded from\n{context}").unwrap_or_default();
    }
    out
}
