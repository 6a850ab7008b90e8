//! A command line that is half typed, taken apart as a shell does.
//!
//! In: a line up to the cursor, as bash has it, or words. Out: the words before the cursor's, the cursor's own so far,
//! and for bash a candidate as it has to be inserted: quoted as the user began, without what bash keeps by itself (bash
//! breaks words at colons and equals signs). Does not: expand anything.

use crate::args::ready::words::{Begun, begun_words};

/// Words up to the cursor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// Complete words, without the command's own name.
    pub(super) before: Vec<String>,
    /// The word at the cursor, up to it.
    pub(super) current: String,
    /// Bytes of `current` that bash keeps.
    kept: usize,
    /// The quote that is open at the cursor.
    quote: Option<char>,
}

impl Line {
    /// Of words without the command's own name; the last one is at the cursor.
    pub(super) fn of_words(words: &[String]) -> Self {
        let (current, before) = words.split_last().map_or((String::new(), &[][..]), |(l, b)| (l.clone(), b));
        Self { before: before.to_vec(), current, ..Self::default() }
    }
    /// Of bash's line up to the cursor, and the part of it that bash replaces.
    pub(super) fn of_bash(line: &str, replaced: &str) -> Self {
        let Begun { ended, last, quote } = begun_words(line);
        let current = last.unwrap_or_default();
        let replaced = replaced.trim_start_matches(['\'', '"']).replace('\\', "");
        let kept = current.strip_suffix(&replaced).map_or(0, str::len);
        Self { before: ended.into_iter().skip(1).collect(), current, kept, quote }
    }
    /// A word that begins with `current`, as bash inserts it.
    pub(super) fn for_bash(&self, word: &str) -> String {
        let new = word.get(self.kept..).unwrap_or_default();
        match self.quote {
            Some('\'') => new.replace('\'', r"'\''"),
            Some(_) => escaped(new, r#"\"$`"#),
            None => escaped(new, "\\\"'$`|&;()<>*?[]{}!# "),
        }
    }
}

/// A text with a backslash before each of these characters.
fn escaped(text: &str, special: &str) -> String {
    text.chars().flat_map(|c| special.contains(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn a_line_is_taken_apart_as_bash_does() {
        let line = Line::of_bash(r#"trapline count -c "ls 'a" libc:mal"#, "mal");
        assert_eq!(line.before, ["count", "-c", "ls 'a"]);
        assert_eq!((line.current.as_str(), line.for_bash("libc:malloc")), ("libc:mal", "malloc".to_owned()));
        assert_eq!(Line::of_bash("trapline count ", "").current, "");
    }

    #[test]
    fn candidates_are_quoted_as_the_user_began() {
        let of = |line: &str, replaced: &str, word: &str| Line::of_bash(line, replaced).for_bash(word);
        assert_eq!(of("trapline count x:", "", "x:operator()"), r"operator\(\)");
        assert_eq!(of("trapline count 'x:o", "'x:o", "x:operator()"), "x:operator()");
        assert_eq!(of("trapline count \"x:o", "\"x:o", "x:a$b c"), r"x:a\$b c");
        assert_eq!(of(r"trapline count x:a\ b", r"a\ b", "x:a bc"), r"a\ bc");
    }
}
