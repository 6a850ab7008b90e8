//! Splits a command that was given as one text into words. In: text. Out: words. Does not: expand anything.

use super::error::UsageError;

/// Splits a command as a shell would split plain words, quotes and backslashes; nothing is expanded.
pub(crate) fn split_words(text: &str) -> Result<Vec<String>, UsageError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
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
    words.extend(word);
    if quote.is_some() { Err(UsageError::Quote(text.to_owned())) } else { Ok(words) }
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
