//! Code for one processor stands behind a door: an attribute of a `mod` or of a `use` beside it, or of a whole file.
//!
//! In: Rust files. Out: each line that asks for the processor elsewhere. Does not: expand macros.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Folders of the repository with code of ours.
const FOLDERS: [&str; 4] = ["crates", "tests", "tools", "fuzz"];

/// Lines of all files that ask for the processor, but not at a door.
pub(super) fn elsewhere(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for folder in FOLDERS {
        for file in files(&root.join(folder))? {
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let name = file.strip_prefix(root).unwrap_or(&file).display();
            faults.extend(wrong_lines(&text).iter().map(|line| {
                format!("{name}:{line} asks for the processor, and not at the door of a module")
            }));
        }
    }
    Ok(faults)
}

/// All Rust files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Numbers of the lines that ask elsewhere, from 1 on.
fn wrong_lines(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let wrong = |at: &usize| asks(lines[*at]) && !is_door(lines[*at], &lines[*at + 1..]);
    (0..lines.len()).filter(wrong).map(|at| at + 1).collect()
}

/// Whether a line asks for the processor. Comments and lines of text do not.
fn asks(line: &str) -> bool {
    const PROCESSOR: &str = "target_arch";
    let is_code = !line.starts_with("//") && !line.starts_with('"');
    is_code && line.contains("cfg") && line.contains(PROCESSOR)
}

/// Whether the line is an attribute of a file, of a module or of an import. `next`: the lines after it.
fn is_door(line: &str, next: &[&str]) -> bool {
    let of_item = || {
        let item = next.iter().find(|line| !line.starts_with("#[")).copied().unwrap_or_default();
        let words = item.split_whitespace().find(|word| !word.starts_with("pub"));
        matches!(words, Some("mod" | "use"))
    };
    line.starts_with("#![") || line.starts_with("#[") && of_item()
}

#[cfg(test)]
mod tests {
    use super::wrong_lines;

    #[test]
    fn doors_are_modules_imports_and_files() {
        let text = [
            "#![cfg(target_arch = \"x86_64\")]",
            "#[cfg(all(not(loom), target_arch = \"aarch64\"))]",
            "pub(crate) mod aarch64;",
            "#[cfg(target_arch = \"aarch64\")]",
            "use aarch64 as native;",
            "#[cfg_attr(target_arch = \"x86_64\", path = \"x86_64.rs\")]",
            "#[cfg_attr(target_arch = \"aarch64\", path = \"aarch64.rs\")]",
            "mod native;",
            "// #[cfg(target_arch = \"aarch64\")]",
            "fn neutral() {}",
        ];
        assert_eq!(wrong_lines(&text.join("\n")), [0; 0]);
    }

    #[test]
    fn functions_statements_and_expressions_are_no_doors() {
        let text = [
            "#[cfg(target_arch = \"aarch64\")]",
            "fn synchronize() {}",
            "let processor = if cfg!(target_arch = \"aarch64\") { 183 } else { 62 };",
            "#[cfg(target_arch = \"aarch64\")]",
            "synchronize();",
        ];
        assert_eq!(wrong_lines(&text.join("\n")), [1, 3, 4]);
    }
}
