//! The book: the repository's documents as pages for a browser.
//!
//! In: the documents, the chapters that docs/SUMMARY.md lists. Out: `target/book`, which needs no other file: sources that
//! pages link to lie in it, too. Faults are: what mdBook warns of, links and headings that are not there, pictures that no
//! page shows. So is a search that does not find what there is.
//! Does not: install mdBook for other uses. It is built once, into `target/tools`; where that fails, the step is skipped
//! and says so.

mod rendered;
mod search;
mod stage;
mod tool;

use std::fs;

use anyhow::{Context as _, Result};

use crate::outcome::Outcome;
use crate::tree;

/// Builds the book and checks it.
pub(crate) fn run() -> Result<Outcome> {
    let (root, target) = (tree::root(), tree::target()?);
    let (sources, book) = (target.join("book-sources"), target.join("book"));
    let layout = stage::Layout::of(tree::read(&root)?)?;
    fs::remove_dir_all(&sources).or_else(is_absent).context("earlier sources")?;
    let mut faults = layout.write(&root, &sources)?;
    let (mut is_built, mut skipped) = (false, Vec::new());
    match tool::ensure(&target) {
        Ok(program) => {
            let warnings = tool::build(&program, &sources, &book)?;
            is_built = warnings.is_empty();
            faults.extend(warnings);
        }
        Err(error) => skipped.push(format!("book: {error:#}")),
    }
    if is_built {
        faults.extend(rendered::check(&book)?);
        match search::check(&book, &target.join("book-profile")) {
            Ok(found) => faults.extend(found),
            Err(error) => skipped.push(format!("book: {error:#}")),
        }
    }
    for fault in &faults {
        println!("book: {fault}");
    }
    for skip in &skipped {
        println!("LOUD SKIP: {skip}");
    }
    println!("book: {} chapters, {} faults, in {}", layout.chapters(), faults.len(), book.display());
    let is_checked = is_built || !faults.is_empty();
    let checked = if is_checked { Outcome::single(faults.is_empty()) } else { Outcome::default() };
    Ok(Outcome { skipped, ..checked })
}

/// No error where nothing was there.
fn is_absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
