//! What defines an id: CONTRIBUTING.md says it for people.
//!
//! In: a file. Out: the ids that it defines, each with its text.
//! - In a `.rs` file only the first lines (`//!`) define. An id that begins a list's item defines, and so does one that
//!   begins a sentence or a clause behind `Invariants:`, up to `Does not:` or the paragraph's end. Its text follows
//!   behind a space.
//! - In PROMISES.md a row defines the id that is alone in its first cell.
//!
//! Everything else refers: `TAB-1:` (what it means there), `TAB-1, …`, `(TAB-1)`, `TAB-1 to TAB-3`.

use super::words::{Id, leading};

/// An id, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) id: Id,
    pub(super) path: String,
    /// What it says, in one line.
    pub(super) says: String,
}

/// The definitions in this file.
pub(super) fn of(path: &str, text: &str) -> Vec<Definition> {
    let found: Vec<(Id, String)> = if path == "PROMISES.md" {
        text.lines().filter_map(promise).collect()
    } else if path.ends_with(".rs") {
        paragraphs(text).iter().flat_map(|paragraph| invariants(paragraph)).collect()
    } else {
        Vec::new()
    };
    found.into_iter().map(|(id, says)| Definition { id, path: path.to_owned(), says }).collect()
}

/// The promise of a table's row.
fn promise(line: &str) -> Option<(Id, String)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (id, "") = leading(cells.next()?)? else { return None };
    Some((id, cells.next()?.to_owned()))
}

/// The paragraphs and list items of a file's first lines, each in one line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.trim();
        let begins = line.starts_with("- ") || line.starts_with('|') || line.starts_with('#');
        match found.last_mut().filter(|_| goes_on && !begins) {
            Some(last) if !line.is_empty() => *last = format!("{last} {line}"),
            _ => found.push(line.to_owned()),
        }
        goes_on = !line.is_empty();
    }
    found
}

/// The ids that a paragraph defines.
fn invariants(paragraph: &str) -> Vec<(Id, String)> {
    if let Some(item) = paragraph.strip_prefix("- ") {
        return leading(item).and_then(|(id, rest)| Some((id, text_behind(rest)?))).into_iter().collect();
    }
    let behind = ["Invariants:", "Invariant:"].iter().find_map(|word| paragraph.split_once(word));
    let Some((_, list)) = behind else { return Vec::new() };
    let list = list.split("Does not:").next().unwrap_or(list).trim();
    let mut starts: Vec<usize> = vec![0];
    starts
        .extend([". ", "; "].iter().flat_map(|end| list.match_indices(end)).map(|(at, end)| at + end.len()));
    starts.retain(|&at| leading(&list[at..]).is_some());
    starts.sort_unstable();
    let ends = starts.iter().skip(1).copied().chain([list.len()]);
    let clauses = starts.iter().zip(ends).map(|(&from, to)| &list[from..to]);
    clauses
        .filter_map(|clause| leading(clause).and_then(|(id, rest)| Some((id, text_behind(rest)?))))
        .collect()
}

/// What follows an id, if that defines it.
fn text_behind(rest: &str) -> Option<String> {
    let text = rest.strip_prefix(' ')?;
    let refers = text.starts_with('(') || text.strip_prefix("to ").is_some_and(|to| leading(to).is_some());
    (!refers && !text.is_empty()).then(|| text.trim_end_matches([' ', ';', '.']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::of;

    fn defines(text: &str) -> Vec<String> {
        of("x.rs", text).iter().map(|found| format!("{}={}", found.id, found.says)).collect()
    }

    #[test]
    fn clauses_and_sentences_behind_the_word_define() {
        let header = "//! A table.\n//!\n//! In: x. Invariants: TAB-1 a key\n//! stays; then it\n//! goes. TAB-2 two. More;\n//! TAB-3 three. Does not: TAB-4 four.\n";
        assert_eq!(defines(header), ["TAB-1=a key stays; then it goes", "TAB-2=two. More", "TAB-3=three"]);
        assert_eq!(
            defines("//! Invariant: TAB-1 one\n//!\n//! TAB-2 two\n//! # TAB-3 three\n"),
            ["TAB-1=one"]
        );
    }

    #[test]
    fn items_define_wherever_the_list_stands() {
        let header =
            "//! Invariants:\n//! - TAB-1 one,\n//!   and on;\n//! - TAB-2 two.\n//!\n//! - *x*: TAB-3\n";
        assert_eq!(defines(header), ["TAB-1=one, and on", "TAB-2=two"]);
    }

    #[test]
    fn a_reference_defines_nothing() {
        let header = "//! Invariants: TAB-1: here; TAB-2, TAB-3; TAB-4 to TAB-6 of x; TAB-7 (see x). TAB-8. Of TAB-9 x.\n";
        assert_eq!(defines(header), [""; 0]);
        assert_eq!(
            defines("//! TAB-1 one\nuse x;\n//! Invariants: TAB-2 two\n/// Invariants: TAB-3 x\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_row_of_a_promise_defines_it() {
        let found =
            of("PROMISES.md", "| id | x |\n|---|---|\n| SAFE-1 | Never. | y |\n| WCH-1…5 | z | y |\n");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id.to_string(), &*found[0].says), ("SAFE-1".into(), "Never."));
        assert_eq!(of("README.md", "| SAFE-1 | Never. |\n"), []);
    }
}
