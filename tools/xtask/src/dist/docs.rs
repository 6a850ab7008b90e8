//! What the package `trapline` holds: the binary, manual pages, completions, documents, scripts as examples.
//!
//! In: the binary, an empty folder. Out: a [`Package`], with its files in the folder. Does not: write texts of its own;
//! pages and completions come from the binary itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::control::Package;
use super::deb::{put, put_zipped};
use super::printed;
use crate::tree;

/// Shells, and the file in which each looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/trapline"),
    ("zsh", "usr/share/zsh/vendor-completions/_trapline"),
    ("fish", "usr/share/fish/vendor_completions.d/trapline.fish"),
];
/// Folders of documents, and the ends of the files that are taken from them.
const DOCUMENTS: [(&str, &str); 2] = [("docs/guide", "md"), ("docs/scripts", "md")];
/// A static program is what the package is for: it runs in containers that have no libraries. It can lie at any address,
/// so `lintian` takes it for a library.
const OVERRIDES: &str = "trapline: shared-library-lacks-prerequisites [usr/bin/trapline]\n";

/// Stages the package.
pub(super) fn command(binary: &Path, root: &Path) -> Result<Package> {
    fs::remove_dir_all(root).ok();
    put(&root.join("usr/bin/trapline"), &fs::read(binary).context("the binary")?, 0o755)?;
    manual(binary, root)?;
    for (shell, file) in COMPLETIONS {
        let script = printed(Command::new(binary).args(["completions", shell]))?;
        put(&root.join(file), script.as_bytes(), 0o644)?;
    }
    documents(root)?;
    put(&root.join("usr/share/lintian/overrides/trapline"), OVERRIDES.as_bytes(), 0o644)?;
    Ok(Package {
        name: "trapline",
        section: "devel",
        depends: None,
        suggests: None,
        summary: "count, time and record functions of running programs",
        description: "\
Trapline puts short jumps into the code of a running program. They lead to
code that counts, takes the time or writes records, and back. At the end the
original code is put back.

The program needs no restart, no rebuild and no library. Trapline needs the
right to ptrace it. A hit costs a nanosecond or two, where a kernel entry
costs hundreds. It also runs scripts in bpftrace's language, without BPF.",
        control_files: Vec::new(),
        root: root.to_owned(),
    })
}

/// The manual pages, compressed.
fn manual(binary: &Path, root: &Path) -> Result<()> {
    let pages = root.join("usr/share/man/man1");
    printed(Command::new(binary).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        put_zipped(&page, &fs::read(&page)?)?;
    }
    Ok(())
}

/// Documents as they are in the repository, and the scripts of `run`.
fn documents(root: &Path) -> Result<()> {
    let (from, to) = (tree::root(), root.join("usr/share/doc/trapline"));
    for name in ["README.md", "docs/glossary.md", "docs/performance.md"] {
        put(&to.join(name), &fs::read(from.join(name))?, 0o644)?;
    }
    put_zipped(&to.join("NEWS"), &fs::read(from.join("CHANGELOG.md"))?)?;
    let ends = |path: &Path, end: &str| path.extension().is_some_and(|extension| extension == end);
    for (folder, end) in DOCUMENTS {
        for file in fs::read_dir(from.join(folder))? {
            let file = file?;
            if ends(&file.path(), end) {
                put(&to.join(folder).join(file.file_name()), &fs::read(file.path())?, 0o644)?;
            }
        }
    }
    for script in fs::read_dir(from.join("scripts"))? {
        let script = script?;
        if ends(&script.path(), "bt") {
            put(&to.join("examples").join(script.file_name()), &fs::read(script.path())?, 0o755)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn the_guide_and_the_scripts_are_packed() {
        let root = std::env::temp_dir().join(format!("trapline-docs-{}", std::process::id()));
        let done = documents(&root);
        let docs = root.join("usr/share/doc/trapline");
        let there = ["docs/guide/count.md", "docs/guide/install.md", "examples/funccount.bt", "NEWS.gz"]
            .map(|name| docs.join(name).exists());
        std::fs::remove_dir_all(&root).ok();
        done.expect("staged");
        assert_eq!(there, [true; 4]);
    }
}
