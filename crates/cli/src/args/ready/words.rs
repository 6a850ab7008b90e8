//! Splits a command that was given as one text into words. In: text. Out: words. Does not: expand anything.

use super::error::UsageError;

/// Words of a text that may end within one.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Words that have ended.
    pub(crate) ended: Vec<String>,
    /// The last word, if no space stands behind it.
    pub(crate) last: Option<String>,
    /// The quote that is still open.
    pub(crate) quote: Option<char>,
}

/// Splits a command as a shell would split plain words, quotes and backslashes; nothing is expanded.
pub(crate) fn split_words(text: &str) -> Result<Vec<String>, UsageError> {
    let Begun { mut ended, last, quote } = begun_words(text);
    ended.extend(last);
    if quote.is_some() { Err(UsageError::Quote(text.to_owned())) } else { Ok(ended) }
}

/// The same of a command that is half typed.
pub(crate) fn begun_words(text: &str) -> Begun {
    let Begun { ended: mut words, last: mut word, mut quote } = Begun::default();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    Begun { ended: words, last: word, quote }
}

#[cfg(test)]
mod tests {
    use super::{UsageError, split_words};

    #[test]
    fn words_split_as_in_a_shell() {
        let split = |text| split_words(text).map_err(|e| e.to_string());
        assert_eq!(
            split(r#"git -c 'a b' "c \" d" e\ f ''"#).unwrap(),
            ["git", "-c", "a b", "c \" d", "e f", ""]
        );
        assert!(matches!(split_words("ls 'a"), Err(UsageError::Quote(_))));
    }
}
