//! Relative links of Markdown: `[text](target#heading)`.
//!
//! In: a text, paths from the repository's root on. Out: where the targets stand, and which files they mean.
//! Does not: look at links to other sites, or know which files exist.

use std::ops::Range;

/// Where the targets of relative links stand in `text`, without `#heading`.
pub(crate) fn targets(text: &str) -> Vec<Range<usize>> {
    let target = |(at, before): (usize, &str)| {
        let from = at + before.len();
        let target = text[from..].split([')', '#', ' ', '\n']).next().unwrap_or_default();
        let is_relative = !target.is_empty() && !target.contains(':') && !target.starts_with(['`', '<']);
        is_relative.then(|| from..from + target.len())
    };
    text.match_indices("](").filter_map(target).collect()
}

/// The folder of a file; the root's is empty.
pub(crate) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path relative to a folder, from the root on; none if it leads out of the repository.
pub(crate) fn resolve(folder: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The relative link from one file to another.
pub(crate) fn between(from: &str, to: &str) -> String {
    let here: Vec<&str> = folder(from).split('/').filter(|part| !part.is_empty()).collect();
    let there: Vec<&str> = to.split('/').collect();
    let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(here.len() - common);
    format!("{up}{}", there[common..].join("/"))
}

#[cfg(test)]
mod tests {
    use super::{between, resolve, targets};

    #[test]
    fn targets_are_relative_and_without_heading() {
        let text = "[a](b.md#c) ![d](e.svg) [f](https://x.org) [g](#h) [i](j \"k\") `](` [l](m/n)";
        let found: Vec<&str> = targets(text).into_iter().map(|at| &text[at]).collect();
        assert_eq!(found, ["b.md", "e.svg", "j", "m/n"]);
    }

    #[test]
    fn a_link_between_two_files_leads_there() {
        for (from, to) in [("a/b/c", "a/d"), ("a", "b/c"), ("a/b", "a/c"), ("a/b", "c"), ("a/b/c", "d/e/f")] {
            let folder = super::folder(from);
            assert_eq!(resolve(folder, &between(from, to)).as_deref(), Some(to), "{from} {to}");
        }
        assert_eq!(between("x/a/b.md", "x/c.md"), "../c.md");
    }
}
