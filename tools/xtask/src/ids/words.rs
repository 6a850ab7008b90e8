//! Where a text names ids.
//!
//! In: a text. Out: the ids in it, each with its line; a range (`POOL-1 to POOL-6`, `CON-1…3`) counts as all of its ids.
//! Does not: know which ids exist.

use std::fmt;
use std::ops::RangeInclusive;

/// Words that look like ids and are names of others: encodings and checksums.
const NOT_IDS: &[&str] = &["UTF-8", "UTF-16", "UTF-32", "CRC-32", "SHA-1"];

/// How many capital letters an id begins with. `LICENSE-2` is none.
const LETTERS: RangeInclusive<usize> = 2..=6;

/// A prefix in capital letters and a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) prefix: String,
    pub(super) number: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.prefix, self.number)
    }
}

/// The id with which `text` begins, and the rest.
pub(super) fn leading(text: &str) -> Option<(Id, &str)> {
    let letters = text.bytes().take_while(u8::is_ascii_uppercase).count();
    let (prefix, rest) = text.split_at(letters);
    let digits = rest.strip_prefix('-')?;
    let (number, rest) = number(digits)?;
    let word = &text[..text.len() - rest.len()];
    let is_id = LETTERS.contains(&letters) && !NOT_IDS.contains(&word);
    is_id.then(|| (Id { prefix: prefix.to_owned(), number }, rest))
}

/// A number of one or two digits that is a word of its own, and the rest.
fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(digits);
    let ends = !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let is_one = ends && digits.len() <= 2;
    Some((digits.parse().ok().filter(|_| is_one)?, rest))
}

/// Every id that `text` names, with the number of its line, from 1 on.
pub(super) fn named(text: &str) -> Vec<(usize, Id)> {
    let mut found = Vec::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let starts = !(before.is_ascii_alphanumeric() || before == '_' || before == '-');
        before = c;
        let Some((id, rest)) = text.get(at..).filter(|_| starts).and_then(leading) else { continue };
        let line = 1 + text[..at].matches('\n').count();
        let last = range_end(&id, rest).unwrap_or(id.number);
        found.extend((id.number..=last).map(|number| (line, Id { number, ..id.clone() })));
    }
    found
}

/// The last number of the range that begins with `first`, which `rest` follows.
fn range_end(first: &Id, rest: &str) -> Option<u32> {
    if let Some(rest) = rest.strip_prefix('…') {
        return number(rest).map(|(last, _)| last);
    }
    // The range may go over the end of a line, and so of a comment's line.
    let between = |c: char| c.is_whitespace() || c == '/' || c == '!';
    let rest = rest.trim_start_matches(between).strip_prefix("to")?;
    let (last, _) = leading(rest.trim_start_matches(between))?;
    (last.prefix == first.prefix).then_some(last.number)
}

#[cfg(test)]
mod tests {
    use super::named;

    fn names(text: &str) -> Vec<String> {
        named(text).iter().map(|(line, id)| format!("{line}:{id}")).collect()
    }

    #[test]
    fn ids_are_words_of_their_own() {
        assert_eq!(names("see (POOL-1), TAB-12.\nRUN-3's"), ["1:POOL-1", "1:TAB-12", "2:RUN-3"]);
        let others = "UTF-8 AVX-512 FNV-1a LICENSE-2.0 X-1 A_TAB-1 xTAB-1 2-TAB-1 TAB-1-2 TAB-1_x TAB- TAB-x";
        assert_eq!(names(others), [""; 0]);
    }

    #[test]
    fn a_range_is_all_of_its_ids() {
        assert_eq!(names("TAB-1 to TAB-3"), ["1:TAB-1", "1:TAB-2", "1:TAB-3", "1:TAB-3"]);
        assert_eq!(names("TAB-1…3"), ["1:TAB-1", "1:TAB-2", "1:TAB-3"]);
        assert_eq!(names("//! TAB-1 to\n//! TAB-2"), ["1:TAB-1", "1:TAB-2", "2:TAB-2"]);
        assert_eq!(names("TAB-1 to RUN-2; TAB-1 tops"), ["1:TAB-1", "1:RUN-2", "1:TAB-1"]);
    }
}
