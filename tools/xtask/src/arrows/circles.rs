//! Circles of files: which file of a crate uses which, and the groups in which each uses each.
//!
//! In: a crate's root file. Out: each circle, with the names that tie it.
//! A file uses another if it names an item that the other defines. Re-exports are followed to the definition, and are
//! no use by themselves. Methods are not seen, only names. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};

use super::modules::{FileId, Id, Modules};

/// More files than this may not stand in one circle.
pub(super) const LIMIT: usize = 3;

/// Which file uses which, and by which names.
type Uses = BTreeMap<FileId, BTreeMap<FileId, BTreeSet<String>>>;

/// Files that use each other, directly or through others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Circle {
    /// Paths below the crate's folder of sources.
    pub(super) files: Vec<String>,
    /// `a -> b: names`.
    pub(super) ties: Vec<String>,
}

/// All circles of a crate, the largest first.
pub(super) fn of(root: &Path) -> Result<Vec<Circle>> {
    let modules = Modules::read(root)?;
    let uses = uses(&modules);
    let folder = root.parent().unwrap_or(root);
    let name = |file: FileId| {
        let path = &modules.files[file].path;
        path.strip_prefix(folder).unwrap_or(path).display().to_string()
    };
    let mut circles: Vec<Circle> = components(&uses, modules.files.len())
        .into_iter()
        .map(|files| {
            let mut ties = Vec::new();
            for (from, to, names) in files.iter().flat_map(|from| {
                uses.get(from).into_iter().flatten().map(move |(to, names)| (from, to, names))
            }) {
                if files.contains(to) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    ties.push(format!("{} -> {}: {}", name(*from), name(*to), names.join(", ")));
                }
            }
            Circle { files: files.into_iter().map(name).collect(), ties }
        })
        .collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.files.len()));
    Ok(circles)
}

/// Groups of two files and more in which each reaches each.
fn components(uses: &Uses, files: usize) -> Vec<BTreeSet<FileId>> {
    let reached: Vec<BTreeSet<FileId>> = (0..files).map(|file| reach(uses, file)).collect();
    let mut components = BTreeSet::new();
    for file in 0..files {
        let circle: BTreeSet<FileId> =
            reached[file].iter().copied().filter(|&other| reached[other].contains(&file)).collect();
        if circle.len() > 1 {
            components.insert(circle);
        }
    }
    components.into_iter().collect()
}

/// Files that are used from `start`, directly or through others.
fn reach(uses: &Uses, start: FileId) -> BTreeSet<FileId> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(file) = open.pop() {
        open.extend(
            uses.get(&file).into_iter().flatten().map(|(&to, _)| to).filter(|&to| reached.insert(to)),
        );
    }
    reached
}

fn uses(modules: &Modules) -> Uses {
    let mut uses = Uses::new();
    for (file, source) in modules.files.iter().enumerate() {
        let mut words = BTreeSet::new();
        for (module, item) in &source.items {
            let mut paths = BTreeSet::new();
            paths_in(item.clone(), &mut paths, &mut words);
            for path in paths {
                add(&mut uses, file, modules, *module, &path);
            }
        }
        for module in modules.modules_of(file) {
            for import in &modules.module(module).imports {
                // A public one may be nothing but a re-export; if the file's own code says its name, it is used too.
                if !import.public || words.contains(&import.name) {
                    add(&mut uses, file, modules, module, &import.path);
                }
            }
        }
    }
    uses
}

fn add(uses: &mut Uses, file: FileId, modules: &Modules, module: Id, path: &[String]) {
    if let Some((to, name)) = modules.definition(module, path)
        && to != file
    {
        uses.entry(file).or_default().entry(to).or_default().insert(name);
    }
}

/// Paths of two words and more, and all single words, in any tokens: those of macros too.
fn paths_in(tokens: TokenStream, paths: &mut BTreeSet<Vec<String>>, words: &mut BTreeSet<String>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(ident) => {
                let word = ident.to_string();
                words.insert(word.clone());
                if colons != 2 {
                    end(&mut path, paths);
                }
                path.push(word);
            }
            TokenTree::Group(group) => {
                end(&mut path, paths);
                paths_in(group.stream(), paths, words);
            }
            _ => end(&mut path, paths),
        }
        colons = 0;
    }
    end(&mut path, paths);
}

fn end(path: &mut Vec<String>, paths: &mut BTreeSet<Vec<String>>) {
    if path.len() > 1 {
        paths.insert(std::mem::take(path));
    }
    path.clear();
}

#[cfg(test)]
mod tests {
    use super::{Circle, of};

    fn crate_of(files: &[(&str, &str)]) -> Vec<Circle> {
        let folder = std::env::temp_dir().join(format!("xtask-circles-{}-{:p}", std::process::id(), files));
        for (path, text) in files {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let circles = of(&folder.join("lib.rs")).expect("circles");
        std::fs::remove_dir_all(folder).expect("removed");
        circles
    }

    #[test]
    fn files_that_use_each_other_are_a_circle_also_through_reexports_and_macros() {
        let circles = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A; pub use b::*;"),
            ("a.rs", "pub struct A; fn f() { say!(crate::B) }"),
            ("b.rs", "use super::c::C; pub struct B(C);"),
            ("c/mod.rs", "mod deep; use crate::A; pub struct C(A);"),
            ("c/deep.rs", "fn f(_: super::super::A) {}"),
            ("d.rs", "use crate::{A, B}; pub struct D(A, B);"),
        ]);
        let files: Vec<_> = circles.iter().map(|circle| circle.files.join(" ")).collect();
        assert_eq!(files, ["a.rs b.rs c/mod.rs"]);
        assert_eq!(circles[0].ties, ["a.rs -> b.rs: B", "b.rs -> c/mod.rs: C", "c/mod.rs -> a.rs: A"]);
    }

    #[test]
    fn reexports_modules_and_tests_are_no_use() {
        let circles = crate_of(&[
            ("lib.rs", "mod a; pub use a::A; pub struct Root;"),
            ("a.rs", "use crate::Root; pub struct A(Root); #[cfg(test)] mod tests { use super::A; }"),
        ]);
        assert_eq!(circles, []);
        let used = crate_of(&[
            ("lib.rs", "mod a; pub use a::A; pub struct Root; fn f(_: A) {}"),
            ("a.rs", "use crate::Root; pub struct A(Root);"),
        ]);
        assert_eq!(used.len(), 1);
    }
}
