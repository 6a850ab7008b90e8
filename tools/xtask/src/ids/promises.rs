//! Which tests show which promise.
//!
//! In: PROMISES.md; the sources. Out: the page that lists the tests of each promise; promises that no test names.
//! A test file names a promise in its first lines (`//!`), which stands for all its tests, and a single test in its comment
//! (`///`). What a bench measures is listed too, and is no test.
//! Does not: judge whether a test would fail.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::table::first_sentence;
use super::words::{Id, named};

/// The page that is written.
pub(super) const PAGE: &str = "docs/promises-tests.md";
const PROMISES: &str = "PROMISES.md";
const HEAD: &str = "\
# Tests of the promises

<!-- `cargo xtask ids --write` writes this page. -->

[PROMISES.md](../PROMISES.md) says what is promised, and within which limits. Here are the tests that would fail if it
were not kept. A test file names the promise in its first lines (`//!`), or a single test does in its comment (`///`).
*Measured* is what a bench reports: nothing fails there.
";

/// A row of PROMISES.md.
struct Promise {
    ids: Vec<Id>,
    cell: String,
    says: String,
    status: String,
}

/// A place that names promises.
struct Shows {
    path: String,
    /// Of a single test.
    test: Option<String>,
    says: String,
}

impl Shows {
    fn is_measured(&self) -> bool {
        self.path.starts_with("tools/bench/")
    }
    fn row(&self) -> String {
        let Self { path, test, says } = self;
        let name = path.strip_prefix("crates/").unwrap_or(path);
        let test = test.as_ref().map(|test| format!(": `{test}`")).unwrap_or_default();
        let measured = if self.is_measured() { "*measured*: " } else { "" };
        format!("| [{name}](../{path}){test} | {measured}{says} |\n")
    }
}

/// The page, and what is wrong with it.
pub(super) fn page(texts: &BTreeMap<String, String>) -> (String, Vec<String>) {
    let mut shown: BTreeMap<Id, Vec<Shows>> = BTreeMap::new();
    for (path, text) in texts {
        for (ids, shows) in places(path, text) {
            for id in ids {
                let Shows { path, test, says } = &shows;
                let shows = Shows { path: path.clone(), test: test.clone(), says: says.clone() };
                shown.entry(id).or_default().push(shows);
            }
        }
    }
    let (mut page, mut faults) = (HEAD.to_owned(), Vec::new());
    for promise in texts.get(PROMISES).into_iter().flat_map(|text| text.lines().filter_map(promise)) {
        let (cell, says) = (&promise.cell, &promise.says);
        let mut found: BTreeMap<(&str, Option<&str>), &Shows> = BTreeMap::new();
        for shows in promise.ids.iter().filter_map(|id| shown.get(id)).flatten() {
            found.insert((&shows.path, shows.test.as_deref()), shows);
        }
        faults.extend(fault(&promise, found.values().any(|shows| !shows.is_measured())));
        let _ = write!(page, "\n## {cell}\n\n{says}\n\n| test | shows |\n|---|---|\n");
        page.extend(found.values().map(|shows| shows.row()));
    }
    (page, faults)
}

/// What is wrong with a promise's status.
fn fault(promise: &Promise, has_test: bool) -> Option<String> {
    match (has_test, promise.status.contains("no test")) {
        (false, false) => Some(format!("{}: no test names it, and its status does not say so", promise.cell)),
        (true, true) => {
            Some(format!("{}: its status says that there is no test, and there is one", promise.cell))
        }
        _ => None,
    }
}

/// The promise of a table's row.
fn promise(line: &str) -> Option<Promise> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let [cell, says, status, ..] = cells[..] else { return None };
    let ids: Vec<Id> = named(cell).into_iter().map(|(_, id)| id).collect();
    let [cell, says, status] = [cell, says, status].map(str::to_owned);
    (!ids.is_empty()).then_some(Promise { ids, cell, says, status })
}

/// The places in a file that name ids as tests do.
fn places(path: &str, text: &str) -> Vec<(Vec<Id>, Shows)> {
    let is_whole = path.starts_with("tests/tests/")
        || path.starts_with("fuzz/src/")
        || path.starts_with("tools/bench/src/")
        || path.strip_prefix("crates/").is_some_and(|path| path.split('/').nth(1) == Some("tests"));
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let header: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let whole = is_whole.then(|| (None, header.join("\n"))).into_iter();
    let all = whole.chain(single(text).into_iter().map(|(name, comment)| (Some(name), comment)));
    let shows = all.map(|(test, comment)| {
        let ids: Vec<Id> = named(&comment).into_iter().map(|(_, id)| id).collect();
        let paragraph = comment.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let says = without_ids(&first_sentence(&paragraph)).trim_end_matches(['.', ':']).to_owned();
        (ids, Shows { path: path.to_owned(), test, says })
    });
    shows.filter(|(ids, _)| !ids.is_empty()).collect()
}

/// What follows the ids that a comment begins with.
fn without_ids(text: &str) -> &str {
    let is_of_id = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "-…, ".contains(c);
    text.split_once(": ").filter(|(ids, _)| ids.chars().all(is_of_id)).map_or(text, |(_, rest)| rest)
}

/// Name and comment of each test.
fn single(text: &str) -> Vec<(String, String)> {
    let (mut found, mut comment, mut is_test) = (Vec::new(), Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push(words.trim());
        } else if line.starts_with("#[") {
            is_test |= line == "#[test]";
        } else {
            let name = line.split_once("fn ").and_then(|(_, rest)| rest.split('(').next());
            found.extend(name.filter(|_| is_test).map(|name| (name.to_owned(), comment.join("\n"))));
            comment.clear();
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{HEAD, PROMISES, page};
    use std::collections::BTreeMap;

    fn written(files: &[(&str, &str)]) -> (String, Vec<String>) {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        page(&files.iter().map(own).collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn files_and_single_tests_are_listed() {
        let (page, faults) = written(&[
            (
                PROMISES,
                "| id | promise | status |\n|---|---|---|\n| SAFE-1 | Never. | kept |\n| WCH-1…2 | Once. | kept |\n",
            ),
            ("tests/tests/a.rs", "//! SAFE-1: one\n//! thing. More.\n"),
            (
                "crates/x/src/b.rs",
                "//! WCH-2 here.\n\n/// WCH-2: a | b.\n#[test]\n#[ignore]\nfn it_is() {}\n/// SAFE-1.\nfn no() {}\n",
            ),
            ("crates/x/tests/c.rs", "//! Of others.\n//!\n//! WCH-1 to WCH-2.\n"),
        ]);
        assert_eq!(faults, [""; 0]);
        let expected = "\n## SAFE-1\n\nNever.\n\n| test | shows |\n|---|---|\n\
             | [tests/tests/a.rs](../tests/tests/a.rs) | one thing |\n\
             \n## WCH-1…2\n\nOnce.\n\n| test | shows |\n|---|---|\n\
             | [x/src/b.rs](../crates/x/src/b.rs): `it_is` | a \\| b |\n\
             | [x/tests/c.rs](../crates/x/tests/c.rs) | Of others |\n";
        assert_eq!(page.strip_prefix(HEAD), Some(expected));
    }

    #[test]
    fn a_promise_without_test_is_found_unless_it_says_so() {
        let bench = ("tools/bench/src/a.rs", "//! COST-1: a figure.\n");
        let row = |status: &str| format!("| COST-1 | Fast. | {status} |\n");
        let (page, faults) = written(&[(PROMISES, &row("kept")), bench]);
        assert_eq!(faults, ["COST-1: no test names it, and its status does not say so"]);
        assert!(page.ends_with("| *measured*: a figure |\n"), "{page}");
        assert_eq!(written(&[(PROMISES, &row("measured: no test")), bench]).1, [""; 0]);
        let test = ("tests/tests/a.rs", "//! COST-1: a bound.\n");
        assert_eq!(written(&[(PROMISES, &row("no test")), test]).1.len(), 1);
    }
}
