//! The documents as the book needs them: one folder, in which every link leads to a file.
//!
//! In: the repository, docs/SUMMARY.md. Out: the chapters with their links rewritten, and the files that they link to.
//! Chapters of `docs` keep their place, those beside it (README.md) come to the top. A README.md is a folder's `index.md`,
//! as mdBook has it. Every other file that is linked lies under `repository`, as text.
//! Does not: judge links to files that do not exist; `ids` does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::links;
use crate::tree::Tree;

/// The list of chapters.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The book's settings.
const SETTINGS: &str = "docs/book.toml";
/// Files that a browser shows as they are.
const SHOWN: &[&str] = &["png", "svg", "txt"];
/// Where pictures of real runs lie.
const PICTURES: &str = "docs/pictures/";

/// Which file lies where in the book.
#[derive(Debug)]
pub(super) struct Layout {
    tree: Tree,
    chapters: BTreeSet<String>,
}

impl Layout {
    pub(super) fn of(tree: Tree) -> Result<Self> {
        let summary = tree.texts.get(SUMMARY).context(SUMMARY)?;
        let links = links::targets(summary).into_iter();
        let chapters = links.filter_map(|at| links::resolve(links::folder(SUMMARY), &summary[at])).collect();
        Ok(Self { tree, chapters })
    }

    pub(super) fn chapters(&self) -> usize {
        self.chapters.len()
    }

    /// Writes the book's sources. What is wrong with them.
    pub(super) fn write(&self, root: &Path, sources: &Path) -> Result<Vec<String>> {
        let mut linked = BTreeSet::from([SETTINGS.to_owned()]);
        for path in self.chapters.iter().map(String::as_str).chain([SUMMARY]) {
            let page = self.page(path, &mut linked).with_context(|| format!("there is no {path}"))?;
            let to = sources.join(self.place(path));
            fs::create_dir_all(to.parent().context("a folder")?)?;
            fs::write(&to, page).with_context(|| to.display().to_string())?;
        }
        for path in &linked {
            let to = sources.join(self.place(path));
            fs::create_dir_all(to.parent().context("a folder")?)?;
            fs::copy(root.join(path), &to).with_context(|| path.clone())?;
        }
        Ok(self.left_out().into_iter().chain(self.unseen(&linked)).collect())
    }

    /// Documents that no reader of the book would find.
    fn left_out(&self) -> Vec<String> {
        let documents =
            self.tree.texts.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
        let left_out = documents.filter(|path| *path != SUMMARY && !self.chapters.contains(*path));
        left_out.map(|path| format!("{path} is not in {SUMMARY}")).collect()
    }

    /// Pictures that no page of the book shows.
    fn unseen(&self, linked: &BTreeSet<String>) -> Vec<String> {
        let pictures = self.tree.paths.iter().filter(|path| path.starts_with(PICTURES));
        let unseen = pictures.filter(|path| !linked.contains(*path));
        unseen.map(|path| format!("{path} is shown by no page of the book")).collect()
    }

    /// A page with the book's links. Files that it links to and that are no chapters are added to `linked`.
    fn page(&self, path: &str, linked: &mut BTreeSet<String>) -> Option<String> {
        let text = self.tree.texts.get(path)?;
        let (mut page, mut done) = (String::new(), 0);
        for at in links::targets(text) {
            let named = links::resolve(links::folder(path), &text[at.clone()]);
            let Some(to) = named.and_then(|path| self.file(path)) else { continue };
            page += &text[done..at.start];
            page += &links::between(&self.place(path), &self.place(&to));
            done = at.end;
            // The list itself is no page; a link to it is dead, and found later.
            if !self.chapters.contains(&to) && to != SUMMARY {
                linked.insert(to);
            }
        }
        Some(page + &text[done..])
    }

    /// The file that a link to `path` shows: of a folder, its README.md.
    fn file(&self, path: String) -> Option<String> {
        let readme = format!("{path}/README.md");
        [path, readme].into_iter().find(|path| self.tree.paths.contains(path))
    }

    /// Where a file of the repository lies in the book.
    fn place(&self, path: &str) -> String {
        let inside = path.strip_prefix("docs/");
        if self.chapters.contains(path) {
            let place = inside.unwrap_or(path);
            return match place.strip_suffix("README.md") {
                Some(folder) => format!("{folder}index.md"),
                None => place.to_owned(),
            };
        }
        let is_shown = path.rsplit_once('.').is_some_and(|(_, end)| SHOWN.contains(&end));
        match inside {
            Some(inside) => inside.to_owned(),
            None if is_shown => format!("repository/{path}"),
            // mdBook takes `.md` anywhere in a link for a chapter.
            None => format!("repository/{}.txt", path.replace(".md", "-md")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, SUMMARY};
    use crate::tree::Tree;
    use std::collections::BTreeSet;

    fn layout(files: &[(&str, &str)]) -> Layout {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.paths.insert((*path).to_owned());
            tree.texts.insert((*path).to_owned(), (*text).to_owned());
        }
        Layout::of(tree).expect("a summary")
    }

    #[test]
    fn links_lead_to_where_the_book_has_the_file() {
        let layout = layout(&[
            (SUMMARY, "[R](../README.md) [g](guide/README.md) [a](design/a.md)"),
            ("README.md", "[g](docs/guide) [t](docs/guide/README.md#there)"),
            ("docs/guide/README.md", ""),
            ("docs/design/a.md", "[R](../../README.md) [x](../../crates/x.rs) [m](../../x/y.md) [no](b.md)"),
            ("x/y.md", ""),
            ("crates/x.rs", ""),
        ]);
        let mut linked = BTreeSet::new();
        let page = |path: &str, linked: &mut BTreeSet<String>| layout.page(path, linked).expect("a page");
        assert_eq!(page(SUMMARY, &mut linked), "[R](index.md) [g](guide/index.md) [a](design/a.md)");
        assert_eq!(page("README.md", &mut linked), "[g](guide/index.md) [t](guide/index.md#there)");
        assert!(linked.is_empty());
        let there =
            "[R](../index.md) [x](../repository/crates/x.rs.txt) [m](../repository/x/y-md.txt) [no](b.md)";
        assert_eq!(page("docs/design/a.md", &mut linked), there);
        assert_eq!(linked.into_iter().collect::<Vec<_>>(), ["crates/x.rs", "x/y.md"]);
    }

    #[test]
    fn a_document_that_is_no_chapter_is_found() {
        let layout = layout(&[(SUMMARY, "[a](a.md)"), ("docs/a.md", ""), ("docs/b.md", ""), ("x.md", "")]);
        assert_eq!(layout.left_out(), ["docs/b.md is not in docs/SUMMARY.md"]);
    }

    #[test]
    fn a_picture_that_no_page_shows_is_found() {
        let layout = layout(&[
            (SUMMARY, "[a](guide/a.md)"),
            ("docs/guide/a.md", "![A](../pictures/a.svg) and `docs/pictures/b.png`"),
            ("docs/pictures/a.svg", ""),
            ("docs/pictures/b.png", ""),
        ]);
        let mut linked = BTreeSet::new();
        let page = layout.page("docs/guide/a.md", &mut linked).expect("a page");
        assert_eq!(page, "![A](../pictures/a.svg) and `docs/pictures/b.png`");
        assert_eq!(layout.unseen(&linked), ["docs/pictures/b.png is shown by no page of the book"]);
    }
}
