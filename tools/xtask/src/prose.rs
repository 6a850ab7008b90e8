//! How long documents, sentences and cells may be.
//!
//! In: the documents, and the comments of sources. Out: what is too long, and the share of long sentences.
//! A sentence ends at `.`, `?` or `!` before a space, or with its paragraph or list item. Code, tables and headings are
//! none. A word is what spaces separate, if it has a letter or a digit; a link counts as its text.
//! Does not: judge whether a sentence is good.

use anyhow::Result;

use crate::outcome::Outcome;
use crate::tree;

/// Lines that a document may have.
const LINES: &[(&str, usize)] = &[("README.md", 120), ("ARCHITECTURE.md", 150)];
/// Characters that a cell of README.md's tables may have, as a reader sees it.
const CELL: usize = 80;
/// Words that a sentence may have, and how many of a hundred may have more: in a document, in `docs`, in all comments.
const SENTENCE: usize = 35;
const LONG_OF_HUNDRED: usize = 5;
/// Words of an entry of CHANGELOG.md, and one too many.
const ENTRY: usize = 20;

/// Checks the documents.
pub(crate) fn run() -> Result<Outcome> {
    let tree = tree::read(&tree::root())?;
    let text = |path: &str| tree.texts.get(path).map(String::as_str).unwrap_or_default();
    let mut faults = Vec::new();
    for (path, most) in LINES {
        let lines = text(path).lines().count();
        faults.extend((lines > *most).then(|| format!("{path}: {lines} lines, at most {most}")));
    }
    faults.extend(wide_cells(text("README.md")));
    faults.extend(long_entries(text("CHANGELOG.md")));
    let pages = tree.texts.iter().filter(|(path, _)| path.starts_with("docs/") && path.ends_with(".md"));
    let pages: Vec<(&str, &str)> = pages.map(|(path, text)| (path.as_str(), text.as_str())).collect();
    for path in ["README.md", "ARCHITECTURE.md", "PROMISES.md", "CONTRIBUTING.md"] {
        faults.extend(long_sentences(path, &[(path, text(path))]));
    }
    faults.extend(long_sentences("docs", &pages));
    let sources = tree.texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources: Vec<(&str, String)> = sources.map(|(path, text)| (path.as_str(), comments(text))).collect();
    let sources: Vec<(&str, &str)> = sources.iter().map(|(path, text)| (*path, text.as_str())).collect();
    faults.extend(long_sentences("comments", &sources));
    for fault in &faults {
        println!("prose: {fault}");
    }
    Ok(Outcome::single(faults.is_empty()))
}

/// Cells that are too wide, with the number of their line.
fn wide_cells(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with('|')) {
        let cells = text.split('|').map(|cell| shown(cell.trim()));
        let wide = cells.filter(|cell| cell.chars().count() > CELL);
        found.extend(
            wide.map(|cell| format!("README.md:{line}: a cell of more than {CELL} characters: {cell}")),
        );
    }
    found
}

/// Entries of the list of changes that are too long.
fn long_entries(text: &str) -> Vec<String> {
    let entries = items(text).into_iter().filter(|(_, item)| item.starts_with("- "));
    let long = entries.filter(|(_, item)| words(item) >= ENTRY);
    long.map(|(line, item)| format!("CHANGELOG.md:{line}: {} words, under {ENTRY}: {item}", words(&item)))
        .collect()
}

/// What is wrong with the sentences of these documents; their share of long ones is printed.
fn long_sentences(name: &str, documents: &[(&str, &str)]) -> Vec<String> {
    let (mut all, mut long) = (0, Vec::new());
    for (path, text) in documents {
        for (line, item) in items(text) {
            for sentence in sentences(&item) {
                all += 1;
                let count = words(&sentence);
                if count > SENTENCE {
                    long.push(format!("{path}:{line}: a sentence of {count} words: {sentence}"));
                }
            }
        }
    }
    println!("prose: {name}: {} of {all} sentences have more than {SENTENCE} words", long.len());
    if long.len() * 100 <= all * LONG_OF_HUNDRED { Vec::new() } else { long }
}

/// The comments of a source, each on its line.
fn comments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        comment.strip_prefix(['/', '!']).unwrap_or(comment).to_owned() + "\n"
    });
    lines.collect()
}

/// Paragraphs and list items, each in one line, with the number of its first line.
fn items(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut goes_on) = (false, false);
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence || line.is_empty() || line.starts_with(['|', '#', '<']) {
            goes_on = false;
            continue;
        }
        let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let begins = line.starts_with("- ") || digits.starts_with(". ") && digits.len() < line.len();
        match found.last_mut().filter(|_| goes_on && !begins) {
            Some((_, item)) => *item = format!("{item} {line}"),
            None => found.push((number, line.to_owned())),
        }
        goes_on = true;
    }
    found
}

/// The sentences of a paragraph, without links' targets.
fn sentences(item: &str) -> Vec<String> {
    let text = shown(item);
    let (mut found, mut from) = (Vec::new(), 0);
    for (at, _) in text.match_indices(' ') {
        let end = text[..at].trim_end_matches(['*', ')', '"', '`', '_']);
        if end.ends_with(['.', '?', '!']) {
            found.push(text[from..at].trim().to_owned());
            from = at;
        }
    }
    found.push(text[from..].trim().to_owned());
    found.retain(|sentence| words(sentence) > 0);
    found
}

/// The text as a reader sees it: links without their targets.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once("](") {
        shown += before;
        rest = from.split_once(')').map_or("", |(_, rest)| rest);
    }
    (shown + rest).replace('[', "")
}

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::{comments, long_entries, long_sentences, sentences, wide_cells};

    #[test]
    fn sentences_end_where_a_reader_ends_them() {
        let text = "One [two](x.y z) three. *Four* (five.) 3.14 six: seven? – Eight";
        assert_eq!(sentences(text), ["One two three.", "*Four* (five.)", "3.14 six: seven?", "– Eight"]);
    }

    #[test]
    fn long_sentences_are_found_in_text_alone() {
        let long = ["word"; 36].join(" ");
        let fine =
            format!("# {long}\n\n| {long} |\n\n```\n{long}\n```\n\n- {0}\n- {0}\n", ["word"; 20].join("\n "));
        assert_eq!(long_sentences("x", &[("a.md", &fine)]), [""; 0]);
        let found = long_sentences("x", &[("a.md", &format!("One.\n\n{long}.\n"))]);
        assert_eq!(found, [format!("a.md:3: a sentence of 36 words: {long}.")]);
        let among = format!("{} {long}.", "One.".to_owned() + &" Two.".repeat(20));
        assert_eq!(long_sentences("x", &[("a.md", &among)]), [""; 0], "one of twenty-two");
    }

    #[test]
    fn comments_are_text_on_their_lines() {
        let source = "//! One\n//! two.\n\n/// Three\nfn f() {\n    // four\n}\n";
        assert_eq!(comments(source), " One\n two.\n\n Three\n\n four\n\n");
    }

    #[test]
    fn wide_cells_and_long_entries_are_found() {
        let fine = format!("| {} | [{}](a/long/path/of/a/file.md) |\n", "x".repeat(80), "y".repeat(80));
        assert_eq!(wide_cells(&fine), [""; 0]);
        assert_eq!(wide_cells(&format!("\n| {} |\n", "x".repeat(81))).len(), 1);
        let entry = |words: usize| format!("# Changes\n\n- {}\n  end\n", ["word"; 25][..words - 1].join(" "));
        assert_eq!(long_entries(&entry(19)), [""; 0]);
        assert_eq!(long_entries(&entry(20)).len(), 1);
    }
}
