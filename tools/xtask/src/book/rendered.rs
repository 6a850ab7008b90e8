//! Links and pictures of the finished pages that lead nowhere.
//!
//! In: the book's files. Out: each link to a file of the book, or to a heading there, that does not exist.
//! Does not: ask other sites.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::links;

/// Checks all pages below this folder.
pub(super) fn check(book: &Path) -> Result<Vec<String>> {
    let (mut pages, mut files) = (BTreeMap::new(), BTreeSet::new());
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(book.join(&folder)).context("the book")? {
            let entry = entry?;
            let path = format!("{folder}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(format!("{path}/"));
                continue;
            }
            if path.ends_with(".html") {
                pages.insert(path.clone(), fs::read_to_string(entry.path()).with_context(|| path.clone())?);
            }
            files.insert(path);
        }
    }
    Ok(dead(&pages, &files))
}

/// Each dead link of these pages.
fn dead(pages: &BTreeMap<String, String>, files: &BTreeSet<String>) -> Vec<String> {
    let headings: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path.as_str(), values(text, " id=\"").collect())).collect();
    let leads = |path: &str, link: &str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let to =
            if file.is_empty() { Some(path.to_owned()) } else { links::resolve(links::folder(path), file) };
        let Some(to) = to.filter(|to| files.contains(to)) else { return false };
        heading.is_empty() || headings.get(to.as_str()).is_none_or(|ids| ids.contains(heading))
    };
    let mut found = Vec::new();
    for (path, text) in pages {
        let links: BTreeSet<&str> = values(text, " href=\"").chain(values(text, " src=\"")).collect();
        let dead = links.into_iter().filter(|link| !link.contains(':') && !leads(path, link));
        found.extend(dead.map(|link| format!("{path}: a link to {link}, which is not in the book")));
    }
    found
}

/// Values of an attribute, which is given as it stands before them, in all tags. (In text, `<` is written otherwise.)
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    let tags = text.split('<').skip(1).filter_map(|from| Some(from.split_once('>')?.0));
    tags.filter(|tag| tag.starts_with(|c: char| c.is_ascii_alphabetic()))
        .filter_map(move |tag| tag.split_once(attribute)?.1.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::dead;
    use std::collections::BTreeMap;

    #[test]
    fn dead_links_and_headings_are_found() {
        let page = "<h2 id=\"here\"><a class=\"x\" href=\"#here\">h</a></h2> href=\"no\" <img src=\"../a.svg\">\
                    <a href=\"b.html#there\">b</a><a href=\"https://x.org/y\">y</a>";
        let faulty =
            "<a href=\"c.html\">c</a><a href=\"b.html#else\">b</a><img src=\"b.svg\"><a href=\"#no\">n</a>";
        let pages = [("d/a.html", page), ("d/b.html", "<p id=\"there\">"), ("d/f.html", faulty)];
        let pages: BTreeMap<_, _> = pages.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        let files = pages.keys().cloned().chain(["a.svg".to_owned()]).collect();
        let found = dead(&pages, &files);
        let expected = ["#no", "b.html#else", "b.svg", "c.html"];
        assert_eq!(found, expected.map(|to| format!("d/f.html: a link to {to}, which is not in the book")));
    }
}
