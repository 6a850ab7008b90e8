//! Documents that a text refers to and the repository does not have.
//!
//! In: a file, the paths of all files. Out: what it refers to in vain. That is paths that begin with `docs/`
//! or lead to a bench run, names in capitals that end in `.md`, sections (`DESIGN §4`) of such, and a
//! Markdown file's relative links.
//! Does not: look at headings behind `#`, or at addresses of other sites.

use std::collections::BTreeSet;

use crate::links::{self, resolve};

/// Each missing document, with the number of the line that names it.
pub(super) fn missing(path: &str, text: &str, paths: &BTreeSet<String>) -> Vec<(usize, String)> {
    let folder = links::folder(path);
    let is_there = |path: &str| {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let inside = paths.range(folder.clone()..).next().is_some_and(|found| found.starts_with(&folder));
        inside || paths.contains(path) || path.is_empty()
    };
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || "._-/".contains(c))) {
            let word = word.trim_end_matches(['.', '-', '/']);
            let beside = resolve(folder, word);
            let fails = match word.strip_suffix(".md") {
                Some(name) if is_capitals(name) => {
                    !is_there(word) && !beside.is_some_and(|path| is_there(&path))
                }
                _ => {
                    ["docs/", "tools/bench/runs/"].iter().any(|root| word.starts_with(root))
                        && !is_there(word)
                }
            };
            found.extend(fails.then(|| (line, word.to_owned())));
        }
        for (before, section) in text.match_indices('§').map(|(at, _)| text.split_at(at)) {
            let word = before.trim_end().rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).next();
            let name = word.unwrap_or_default().trim_end_matches(".md");
            let end = section.find(char::is_whitespace).unwrap_or(section.len());
            let fails = is_capitals(name) && !is_there(&format!("{name}.md"));
            found.extend(fails.then(|| (line, format!("{name} {}", &section[..end]))));
        }
        for at in links::targets(text).into_iter().filter(|_| path.ends_with(".md")) {
            let link = &text[at];
            let fails = !resolve(folder, link).is_some_and(|path| is_there(&path));
            found.extend(fails.then(|| (line, link.to_owned())));
        }
    }
    found
}

/// Whether this may be the name of one of our documents: four capital letters or more.
fn is_capitals(name: &str) -> bool {
    name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::missing;

    fn fails(path: &str, text: &str) -> Vec<String> {
        let paths = [
            "ARCHITECTURE.md",
            "docs/guide/hist.md",
            "docs/a.txt",
            "docs/guide-a/x",
            "tools/bench/runs/r1/raw",
            "x/README.md",
        ];
        let paths = paths.iter().map(ToString::to_string).collect();
        missing(path, text, &paths).into_iter().map(|(line, word)| format!("{line}:{word}")).collect()
    }

    #[test]
    fn a_dead_path_is_found() {
        assert_eq!(
            fails("a.rs", "// docs/guide/hist.md, docs/guide/, `docs`.\n// docs/x.md."),
            ["2:docs/x.md"]
        );
        assert_eq!(fails("a.rs", "// tools/bench/runs/r1, tools/bench/runs/r"), ["1:tools/bench/runs/r"]);
        assert_eq!(fails("a.rs", "// ../docs/x.md https://x.org/docs/x.md cmd/abi-internal.md"), [""; 0]);
    }

    #[test]
    fn a_dead_name_and_a_section_of_it_are_found() {
        assert_eq!(fails("a.rs", "// ARCHITECTURE.md, DESIGN.md"), ["1:DESIGN.md"]);
        assert_eq!(fails("a.rs", "// ARCHITECTURE §1, RFC §2, DESIGN §4.2, x"), ["1:DESIGN §4.2,"]);
        assert_eq!(fails("x/a.rs", "// README.md"), [""; 0]);
        assert_eq!(fails("y/a.rs", "// README.md"), ["1:README.md"]);
    }

    #[test]
    fn a_dead_link_is_found() {
        let text = "[a](hist.md) [b](../a.txt#x) [c](#x) [d](https://x.org) [e](../../docs)\n[f](b.md) [g](../../../x)";
        assert_eq!(fails("docs/guide/z.md", text), ["2:b.md", "2:../../../x"]);
        assert_eq!(fails("docs/guide/z.rs", text), [""; 0]);
    }
}
