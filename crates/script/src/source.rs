//! The text of a script, and places in it.
//!
//! In: a name and bytes. Out: spans as people read them: file, line, columns, and the line with the place marked.
//! Does not: know what the text means.

use std::fmt::Write;

/// A stretch of a script's text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Span {
    /// The first byte.
    pub begin: usize,
    /// The byte behind the last one.
    pub end: usize,
}

impl Span {
    pub(crate) const fn new(begin: usize, end: usize) -> Self {
        Self { begin, end }
    }
}

/// A script's text with its name.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    text: Vec<u8>,
}

impl Source {
    /// A text; `name` is what messages call it, such as `stdin` for `-e`.
    pub fn new(name: &str, text: &[u8]) -> Self {
        Self { name: name.to_owned(), text: text.to_owned() }
    }
    /// The text itself.
    pub fn text(&self) -> &[u8] {
        &self.text
    }
    /// What messages call the text.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Line and column of a byte, both counted from 1.
    pub fn line_and_column(&self, at: usize) -> (usize, usize) {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let begin = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        (line, before.len() - begin + 1)
    }
    /// `stdin:1:10-13`, or `stdin:1-2` for a span of several lines.
    pub fn place(&self, span: Span) -> String {
        let ((line, begin), (last, end)) = (self.line_and_column(span.begin), self.line_and_column(span.end));
        match line == last {
            true => format!("{}:{line}:{begin}-{end}", self.name),
            false => format!("{}:{line}-{last}", self.name),
        }
    }
    /// The lines of a span. A single line is followed by one that marks the span.
    pub fn context(&self, span: Span) -> String {
        let ((line, begin), (last, end)) = (self.line_and_column(span.begin), self.line_and_column(span.end));
        let lines = self.text.split(|&byte| byte == b'\n').skip(line - 1);
        let mut out = String::new();
        for line in lines.take(last - line + 1) {
            let line = String::from_utf8_lossy(line).replace('\t', "    ");
            writeln!(out, "{line}").unwrap_or_default();
        }
        if line == last {
            let tabs = |until: usize| {
                let start = span.begin + 1 - begin;
                let text = self.text.get(start..start + until).unwrap_or_default();
                until + 3 * text.iter().filter(|&&byte| byte == b'\t').count()
            };
            let (from, to) = (tabs(begin - 1), tabs(end - 1));
            writeln!(out, "{}{}", " ".repeat(from), "~".repeat(to - from)).unwrap_or_default();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, Span};

    #[test]
    fn a_place_is_file_line_and_columns() {
        let source = Source::new("stdin", b"begin {\n\tprint(x)\n}");
        let span = Span::new(15, 16);
        assert_eq!(source.place(span), "stdin:2:8-9");
        assert_eq!(source.context(span), "    print(x)\n          ~\n");
        assert_eq!(source.place(Span::new(0, 12)), "stdin:1-2");
        assert_eq!(source.context(Span::new(0, 12)), "begin {\n    print(x)\n");
    }

    #[test]
    fn a_place_at_the_end_of_the_text_is_a_place() {
        let source = Source::new("stdin", b"");
        assert_eq!(source.place(Span::new(0, 0)), "stdin:1:1-1");
        assert_eq!(source.context(Span::new(0, 0)), "\n\n");
    }
}
