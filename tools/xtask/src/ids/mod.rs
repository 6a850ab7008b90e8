//! Ids of invariants and promises: each has one definition, each that is named has one, and each document that is named
//! exists. Promises have tests, or say that they have none.
//!
//! In: the sources and documents. Out: what is wrong; docs/design/invariants.md and docs/promises-tests.md, compared or
//! written (`--write`).
//! Does not: judge whether an invariant is kept, or look into this folder: its tests are full of made-up ids.

mod definitions;
mod documents;
mod promises;
mod table;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, bail};

use self::definitions::Definition;
use self::words::Id;
use crate::outcome::Outcome;
use crate::tree::{self, Tree};

/// Checks the repository, behind writing the table if that is asked for.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let write = match args {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => bail!("expected nothing or --write, got `{}`", args.join(" ")),
    };
    let root = tree::root();
    let mut tree = tree::read(&root)?;
    if write {
        let page = expected(&tree).with_context(|| format!("{} lacks the table's lines", table::PAGE))?;
        let (tests, _) = promises::page(&tree.texts);
        for (path, page) in [(table::PAGE, page), (promises::PAGE, tests)] {
            fs::write(root.join(path), &page).context(path)?;
            tree.paths.insert(path.into());
            tree.texts.insert(path.into(), page);
        }
    }
    let faults = faults(&tree);
    for fault in &faults {
        println!("ids: {fault}");
    }
    if !faults.is_empty() {
        println!("ids: `TAB-1 text` defines, `TAB-1: text` refers: see CONTRIBUTING.md");
    }
    println!("ids: {} ids, {} files, {} faults", defined(&tree).len(), tree.texts.len(), faults.len());
    Ok(Outcome::single(faults.is_empty()))
}

/// All definitions, in the order of files.
fn defined(tree: &Tree) -> Vec<Definition> {
    tree.texts.iter().flat_map(|(path, text)| definitions::of(path, text)).collect()
}

/// The page of the table as it should be; none if it has no place for it.
fn expected(tree: &Tree) -> Option<String> {
    let mut pages: BTreeMap<Id, Vec<String>> = BTreeMap::new();
    for (path, text) in &tree.texts {
        let name = path.strip_prefix("docs/design/").and_then(|name| name.strip_suffix(".md"));
        let Some(name) = name.filter(|_| path != table::PAGE) else { continue };
        let ids: BTreeSet<Id> = words::named(text).into_iter().map(|(_, id)| id).collect();
        for id in ids {
            pages.entry(id).or_default().push(name.to_owned());
        }
    }
    table::write(tree.texts.get(table::PAGE)?, &defined(tree), &pages)
}

/// Everything that is wrong.
fn faults(tree: &Tree) -> Vec<String> {
    let mut definitions: BTreeMap<Id, Vec<String>> = BTreeMap::new();
    for found in defined(tree) {
        definitions.entry(found.id).or_default().push(found.path);
    }
    let twice = definitions.iter().filter(|(_, paths)| paths.len() > 1);
    let mut faults: Vec<String> = twice
        .map(|(id, paths)| format!("{id} is defined {} times: {}", paths.len(), paths.join(", ")))
        .collect();
    for (path, text) in &tree.texts {
        let named: BTreeSet<(usize, Id)> = words::named(text).into_iter().collect();
        let unknown = named.into_iter().filter(|(_, id)| !definitions.contains_key(id));
        faults.extend(unknown.map(|(line, id)| format!("{path}:{line}: {id} has no definition")));
        let missing = documents::missing(path, text, &tree.paths);
        faults.extend(missing.into_iter().map(|(line, name)| format!("{path}:{line}: there is no {name}")));
    }
    let page = expected(tree);
    if page.is_none() || page.as_ref() != tree.texts.get(table::PAGE) {
        faults.push(format!("{} is not what `cargo xtask ids --write` writes", table::PAGE));
    }
    let (tests, unshown) = promises::page(&tree.texts);
    if tree.texts.get(promises::PAGE) != Some(&tests) {
        faults.push(format!("{} is not what `cargo xtask ids --write` writes", promises::PAGE));
    }
    faults.extend(unshown);
    faults
}

#[cfg(test)]
mod tests {
    use super::{Tree, expected, faults, promises, table};

    /// A repository of these files, with the table written.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let page =
            "<!-- The table is written by `cargo xtask ids --write`. -->\n<!-- End of the table. -->\n";
        let mut tree = Tree::default();
        for (path, text) in [("PROMISES.md", ""), (table::PAGE, page)].iter().chain(files) {
            tree.paths.insert((*path).to_owned());
            tree.texts.insert((*path).to_owned(), (*text).to_owned());
        }
        let page = expected(&tree).expect("the page has a place for the table");
        tree.texts.insert(table::PAGE.into(), page);
        let (page, _) = promises::page(&tree.texts);
        tree.texts.insert(promises::PAGE.into(), page);
        tree
    }

    #[test]
    fn one_definition_and_any_number_of_references_pass() {
        let files = [
            ("a.rs", "//! Invariants: TAB-1 one.\n// TAB-1, SAFE-1\n"),
            ("b.rs", "//! Invariants: TAB-1: here.\n"),
            ("PROMISES.md", "| SAFE-1 | Never. | no test |\n"),
        ];
        assert_eq!(faults(&tree(&files)), [""; 0]);
    }

    #[test]
    fn a_second_definition_is_found() {
        let files = [("a.rs", "//! Invariants: TAB-1 one.\n"), ("b.rs", "//! - TAB-1 two\n")];
        assert_eq!(faults(&tree(&files)), ["TAB-1 is defined 2 times: a.rs, b.rs"]);
    }

    #[test]
    fn an_id_without_definition_is_found() {
        let files = [("a.rs", "//! Invariants: TAB-1 one.\n\n// TAB-2\n"), ("b.md", "RUN-1 to RUN-2\n")];
        assert_eq!(
            faults(&tree(&files)),
            [
                "a.rs:3: TAB-2 has no definition",
                "b.md:1: RUN-1 has no definition",
                "b.md:1: RUN-2 has no definition"
            ]
        );
    }

    #[test]
    fn a_dead_document_is_found() {
        assert_eq!(faults(&tree(&[("a.rs", "\n// DESIGN §4\n")])), ["a.rs:2: there is no DESIGN §4"]);
    }

    #[test]
    fn a_table_that_is_behind_is_found() {
        let mut tree = tree(&[("a.rs", "//! Invariants: TAB-1 one.\n")]);
        assert_eq!(faults(&tree), [""; 0]);
        tree.texts.insert("a.rs".into(), "//! Invariants: TAB-1 two.\n".into());
        assert_eq!(faults(&tree), ["docs/design/invariants.md is not what `cargo xtask ids --write` writes"]);
        tree.texts.remove(table::PAGE);
        assert_eq!(faults(&tree).len(), 1, "no page, no table");
    }

    #[test]
    fn a_promise_that_no_test_names_is_found() {
        let promises = [("PROMISES.md", "| SAFE-1 | Never. | kept |\n")];
        assert_eq!(faults(&tree(&promises)), ["SAFE-1: no test names it, and its status does not say so"]);
        let test = ("tests/tests/a.rs", "//! SAFE-1: it is not.\n");
        let mut tree = tree(&[promises[0], test]);
        assert_eq!(faults(&tree), [""; 0]);
        tree.texts.insert(test.0.into(), "//! SAFE-1: it never is.\n".into());
        assert_eq!(faults(&tree), ["docs/promises-tests.md is not what `cargo xtask ids --write` writes"]);
    }
}
