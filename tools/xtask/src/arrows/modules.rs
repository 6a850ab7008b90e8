//! The modules of one crate, and the file in which a path's item is defined.
//!
//! In: the sources below a crate's root file. Out: a tree of modules, with the names that each defines or re-exports.
//! Code under `#[cfg(test)]` is left out: a test may look at anything. Modules of every processor are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::TokenStream;
use quote::ToTokens as _;
use syn::{Attribute, Item, Meta, UseTree};

/// Index of a module in [`Modules::all`].
pub(super) type Id = usize;

/// Index of a file in [`Modules::files`].
pub(super) type FileId = usize;

/// One module: a file, or a block in a file.
#[derive(Debug, Default)]
pub(super) struct Module {
    parent: Option<Id>,
    pub(super) file: FileId,
    children: BTreeMap<String, Id>,
    /// Names of items that are defined here.
    items: Vec<String>,
    /// What `use` brings in here: the name that it has here, and its path. The name `*` may stand more than once.
    pub(super) imports: Vec<Import>,
}

/// One name that a `use` brings into a module.
#[derive(Debug, Clone)]
pub(super) struct Import {
    pub(super) name: String,
    pub(super) path: Vec<String>,
    /// It has a visibility of its own, so it may be nothing but a re-export.
    pub(super) public: bool,
}

/// One source file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// Items outside tests, with the module in which they stand.
    pub(super) items: Vec<(Id, TokenStream)>,
}

/// All modules of a crate. The first is its root.
#[derive(Debug, Default)]
pub(super) struct Modules {
    all: Vec<Module>,
    pub(super) files: Vec<Source>,
}

/// A re-export of a re-export is followed so often. Circles of globs end here.
const FOLLOWED: usize = 12;

impl Modules {
    /// Reads a crate from its root file.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let folder = root.parent().context("a root file stands in a folder")?;
        modules.read_file(root, folder, None)?;
        Ok(modules)
    }

    /// Reads a file as a module; its children stand in `folder`.
    fn read_file(&mut self, path: &Path, folder: &Path, parent: Option<Id>) -> Result<Id> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        let file = self.files.len();
        self.files.push(Source { path: path.to_owned(), items: Vec::new() });
        let id = self.new_module(parent, file);
        self.read_items(id, folder, parsed.items)?;
        Ok(id)
    }

    fn new_module(&mut self, parent: Option<Id>, file: FileId) -> Id {
        self.all.push(Module { parent, file, ..Module::default() });
        self.all.len() - 1
    }

    fn read_items(&mut self, id: Id, folder: &Path, items: Vec<Item>) -> Result<()> {
        for item in items {
            if of_tests(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(item) => self.read_module(id, folder, item)?,
                Item::Use(item) => {
                    let public = !matches!(item.vis, syn::Visibility::Inherited);
                    imports(&item.tree, &mut Vec::new(), public, &mut self.all[id].imports);
                }
                item => {
                    self.all[id].items.extend(name_of(&item));
                    let file = self.all[id].file;
                    self.files[file].items.push((id, item.into_token_stream()));
                }
            }
        }
        Ok(())
    }

    fn read_module(&mut self, id: Id, folder: &Path, item: syn::ItemMod) -> Result<()> {
        let name = item.ident.to_string();
        let child = if let Some((_, items)) = item.content {
            let child = self.new_module(Some(id), self.all[id].file);
            self.read_items(child, &folder.join(&name), items)?;
            child
        } else {
            let beside = folder.join(format!("{name}.rs"));
            let inside = folder.join(&name).join("mod.rs");
            let path = match path_attribute(&item.attrs) {
                Some(path) => folder.join(path),
                None if beside.exists() => beside,
                None => inside,
            };
            self.read_file(&path, &folder.join(&name), Some(id))?
        };
        self.all[id].children.insert(name, child);
        Ok(())
    }

    pub(super) fn module(&self, id: Id) -> &Module {
        &self.all[id]
    }

    /// Modules that stand in a file.
    pub(super) fn modules_of(&self, file: FileId) -> impl Iterator<Item = Id> {
        (0..self.all.len()).filter(move |&id| self.all[id].file == file)
    }

    /// File that defines what `path` names in module `from`, and the name. None if it is of another crate.
    pub(super) fn definition(&self, from: Id, path: &[String]) -> Option<(FileId, String)> {
        self.find(from, path, true, FOLLOWED)
    }

    /// `first`: the path's first word may also be a name that is in scope in `from`.
    fn find(&self, from: Id, path: &[String], first: bool, depth: usize) -> Option<(FileId, String)> {
        let (name, rest) = path.split_first()?;
        let module = &self.all[from];
        let depth = depth.checked_sub(1)?;
        match (name.as_str(), first) {
            ("crate", true) => return self.below(0, rest, depth),
            ("self", true) => return self.below(from, rest, depth),
            // As if the rest stood in the parent; `super::super` too.
            ("super", _) => {
                let rest = if rest.first().is_some_and(|word| word == "super") {
                    rest.to_vec()
                } else {
                    [&["self".to_string()], rest].concat()
                };
                return self.find(module.parent?, &rest, true, depth);
            }
            _ => {}
        }
        if let Some(&child) = module.children.get(name) {
            return self.below(child, rest, depth);
        }
        if module.items.contains(name) {
            return Some((module.file, name.clone()));
        }
        let named = module.imports.iter().filter(|import| import.name == *name);
        let through =
            named.filter_map(|import| self.find(from, &[&import.path[..], rest].concat(), true, depth));
        let globs = module.imports.iter().filter(|import| import.name == "*");
        let from_globs =
            globs.filter_map(|import| self.find(from, &[&import.path[..], path].concat(), true, depth));
        through.chain(from_globs).next()
    }

    /// None if nothing of the module is named: a module's name alone ties nothing, what is used of it is named elsewhere.
    fn below(&self, id: Id, rest: &[String], depth: usize) -> Option<(FileId, String)> {
        self.find(id, rest, false, depth)
    }
}

/// All names that a tree of `use` brings in.
fn imports(tree: &UseTree, before: &mut Vec<String>, public: bool, out: &mut Vec<Import>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            imports(&path.tree, before, public, out);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            let name = before.last().cloned().unwrap_or_default();
            out.push(Import { name, path: before.clone(), public });
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            out.push(Import { path: [&before[..], std::slice::from_ref(&name)].concat(), name, public });
        }
        UseTree::Rename(rename) => {
            let path = [&before[..], &[rename.ident.to_string()]].concat();
            out.push(Import { name: rename.rename.to_string(), path, public });
        }
        UseTree::Glob(_) => out.push(Import { name: "*".into(), path: before.clone(), public }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imports(tree, before, public, out)),
    }
}

/// `#[cfg(test)]`, also beside other conditions.
fn of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let words = list.tokens.to_string();
        list.path.is_ident("cfg")
            && (words == "test" || words.starts_with("all (test") || words.starts_with("all(test"))
    })
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name that an item defines in its module.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
