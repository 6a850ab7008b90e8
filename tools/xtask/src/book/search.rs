//! Whether a reader who searches the book finds what there is.
//!
//! In: the book's files. Out: each question to which the book's own search does not give the page that answers it. The
//! search runs as readers run it, in a browser; where there is none, its index and its library run under node.
//! Does not: judge the order of what is found.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::browser;

/// What a reader types, and the page that is to be among the results.
const QUESTIONS: &[(&str, &str)] = &[
    ("flame graph", "guide/stack.html"),
    ("hardware breakpoints", "guide/watch.html"),
    ("ltrace", "guide/from.html"),
    ("redis-server", "guide/hist.html"),
];
/// Prints the pages that the index has for a question, best first.
const ASK: &str = "const [elasticlunr, index, question] = process.argv.slice(1);
globalThis.window = {search: {}};
eval(require('fs').readFileSync(index, 'utf8'));
const search = window.search;
const found = require(elasticlunr).Index.load(search.index).search(question, search.search_options);
for (const {ref} of found.slice(0, search.results_options.limit_results)) console.log(search.doc_urls[ref]);";

/// What is wrong with the search of this book. An error, with a name, if it cannot be tried.
pub(super) fn check(book: &Path, scratch: &Path) -> Result<Vec<String>> {
    let (Some(index), Some(elasticlunr)) = (named(book, "searchindex")?, named(book, "elasticlunr")?) else {
        return Ok(vec!["the book has no search: this mdbook was built without it".to_owned()]);
    };
    let ask = |question: &str| match browser::find() {
        Some(_) => in_browser(book, question, scratch),
        None => under_node(&elasticlunr, &index, question),
    };
    let mut faults = Vec::new();
    for (question, page) in QUESTIONS {
        faults.extend(fault(question, page, &ask(question)?));
    }
    Ok(faults)
}

/// What is wrong with these results, each the address of a page, perhaps with a heading.
fn fault(question: &str, page: &str, found: &[String]) -> Option<String> {
    let is_it = |address: &String| address.split(['?', '#']).next() == Some(page);
    let some = found.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!found.iter().any(is_it)).then(|| {
        format!("a search for `{question}` does not find {page}; it finds {} places: {some}", found.len())
    })
}

/// The book's file whose name begins so; mdBook puts a hash behind.
fn named(book: &Path, begin: &str) -> Result<Option<std::path::PathBuf>> {
    for entry in fs::read_dir(book).context("the book")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(begin) && name.ends_with(".js") {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

fn in_browser(book: &Path, question: &str, scratch: &Path) -> Result<Vec<String>> {
    let address =
        format!("file://{}?search={}", book.join("index.html").display(), question.replace(' ', "+"));
    Ok(results(&browser::dom(&address, scratch)?))
}

/// The addresses in the list of results of a page.
fn results(page: &str) -> Vec<String> {
    let list = page.split_once("id=\"mdbook-searchresults\"").and_then(|(_, from)| from.split_once("</ul>"));
    let links = list.map_or("", |(list, _)| list).split(" href=\"").skip(1);
    links.filter_map(|link| link.split('"').next().map(str::to_owned)).collect()
}

fn under_node(elasticlunr: &Path, index: &Path, question: &str) -> Result<Vec<String>> {
    let mut node = Command::new("node");
    let output = node.args(["-e", ASK]).args([elasticlunr, index]).arg(question).output();
    let output = output.with_context(|| {
        format!("the search is not tried: there is neither a browser (package {}) nor node", browser::PACKAGE)
    })?;
    ensure!(output.status.success(), "node: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{fault, results};

    #[test]
    fn a_page_that_is_not_found_is_a_fault() {
        let page = "<ul id=\"mdbook-searchresults\"><li><a href=\"a/b.html?highlight=x#h\" aria-details=\"t\">b</a>\
                    </li><li><a href=\"c.html#x\">c</a></li></ul><a href=\"d.html\">";
        let found = results(page);
        assert_eq!(found, ["a/b.html?highlight=x#h", "c.html#x"]);
        assert_eq!(fault("q", "a/b.html", &found), None);
        let expected =
            "a search for `q` does not find d.html; it finds 2 places: a/b.html?highlight=x#h, c.html#x";
        assert_eq!(fault("q", "d.html", &found).as_deref(), Some(expected));
    }
}
