//! Which crate of the house may use which (ARCHITECTURE.md), against what `cargo metadata` says. Which crates must
//! forbid unsafe code. Which files of a crate use each other in a circle ([`circles`]). Where code asks for the
//! processor ([`doors`]).
//!
//! Dependencies of tests (`dev`) are free: a test may stand anywhere to look at anything.

mod circles;
mod doors;
mod modules;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cargo::cargo_path;
use crate::outcome::Outcome;

/// Package and the packages of ours that it may use. Packages not listed (tools, tests) may use any.
const ARROWS: &[(&str, &[&str])] = &[
    ("trapline-record", &[]),
    ("trapline-order", &[]),
    ("trapline-insn", &["trapline-record"]),
    ("trapline-code", &["trapline-insn"]),
    ("trapline-script", &["trapline-code", "trapline-order"]),
    ("trapline-image", &["trapline-record"]),
    ("trapline-runtime", &["trapline-record", "trapline-insn"]),
    ("trapline-tracee", &["trapline-record", "trapline-order"]),
    ("trapline-plan", &["trapline-record", "trapline-insn", "trapline-image", "trapline-code"]),
    ("trapline-patch", &["trapline-record", "trapline-plan", "trapline-tracee", "trapline-runtime"]),
    (
        "trapline-watch",
        &["trapline-record", "trapline-order", "trapline-tracee", "trapline-image", "trapline-insn"],
    ),
    (
        "trapline",
        &[
            "trapline-record",
            "trapline-order",
            "trapline-insn",
            "trapline-image",
            "trapline-plan",
            "trapline-runtime",
            "trapline-tracee",
            "trapline-patch",
            "trapline-watch",
        ],
    ),
    ("trapline-cli", &["trapline", "trapline-script", "trapline-order"]),
    ("trapline-capi", &["trapline"]),
];

/// Crate roots that must say `#![forbid(unsafe_code)]`.
const SAFE_ROOTS: &[&str] = &[
    "crates/record/src/lib.rs",
    "crates/order/src/lib.rs",
    "crates/insn/src/lib.rs",
    "crates/code/src/lib.rs",
    "crates/script/src/lib.rs",
    "crates/image/src/lib.rs",
    "crates/plan/src/lib.rs",
    "crates/watch/src/lib.rs",
    "crates/cli/src/main.rs",
];

/// Checks the workspace around the current folder; or prints the circles of the crates in `folders` with all ties.
pub(crate) fn run(folders: &[String]) -> Result<Outcome> {
    if folders.is_empty() {
        return check();
    }
    let mut ok = true;
    for folder in folders {
        for circle in circles::of(&root_file(Path::new(folder)))? {
            ok &= circle.files.len() <= circles::LIMIT;
            println!("{folder}: {} files: {}", circle.files.len(), circle.files.join(" "));
            for tie in circle.ties {
                println!("  {tie}");
            }
        }
    }
    Ok(Outcome::single(ok))
}

/// The file from which a crate's others are reached.
fn root_file(folder: &Path) -> std::path::PathBuf {
    let library = folder.join("src/lib.rs");
    if library.exists() { library } else { folder.join("src/main.rs") }
}

/// Circles of more files than may be, in all crates.
fn large_circles(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for folder in std::fs::read_dir(root.join("crates")).context("crates")? {
        let folder = folder.context("crates")?.path();
        for circle in circles::of(&root_file(&folder))? {
            if circle.files.len() > circles::LIMIT {
                let name = folder.file_name().unwrap_or_default().display().to_string();
                faults.push(format!(
                    "{} files of crates/{name} use each other in a circle (`cargo xtask arrows crates/{name}` shows by which names): {}",
                    circle.files.len(),
                    circle.files.join(" ")
                ));
            }
        }
    }
    Ok(faults)
}

fn check() -> Result<Outcome> {
    let output = Command::new(cargo_path())
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
    let root = metadata["workspace_root"].as_str().unwrap_or(".").to_owned();
    let mut faults = wrong_arrows(&metadata);
    for path in SAFE_ROOTS {
        let text =
            std::fs::read_to_string(Path::new(&root).join(path)).with_context(|| (*path).to_owned())?;
        faults.extend(unsafe_allowed(path, &text));
    }
    faults.extend(large_circles(Path::new(&root))?);
    faults.extend(doors::elsewhere(Path::new(&root))?);
    for fault in &faults {
        println!("arrows: {fault}");
    }
    println!(
        "arrows: {} packages, {} faults",
        metadata["packages"].as_array().map_or(0, Vec::len),
        faults.len()
    );
    Ok(Outcome::single(faults.is_empty()))
}

/// Arrows in `metadata` that the house does not have.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut faults = Vec::new();
    for package in packages {
        let Some((name, allowed)) = ARROWS.iter().find(|(name, _)| package["name"] == *name) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = dependency["name"].as_str() else { continue };
            if dependency["kind"] != "dev" && ours.contains(&to) && !allowed.contains(&to) {
                faults.push(format!("{name} -> {to} is not an arrow of the house"));
            }
        }
    }
    for (name, _) in ARROWS {
        if !ours.contains(name) {
            faults.push(format!("package {name} is missing"));
        }
    }
    faults
}

/// Says so if a crate root lacks the attribute.
fn unsafe_allowed(path: &str, text: &str) -> Option<String> {
    let forbids = text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    (!forbids).then(|| format!("{path} does not forbid unsafe code"))
}

#[cfg(test)]
mod tests {
    use super::{ARROWS, unsafe_allowed, wrong_arrows};
    use serde_json::{Value, json};

    fn house(extra: Value) -> Value {
        let mut packages: Vec<Value> = ARROWS
            .iter()
            .map(|(name, uses)| {
                let uses: Vec<Value> = uses.iter().map(|to| json!({"name": to, "kind": null})).collect();
                json!({"name": name, "dependencies": uses})
            })
            .filter(|p| p["name"] != extra["name"])
            .collect();
        packages.push(extra);
        json!({ "packages": packages })
    }

    #[test]
    fn the_house_itself_passes() {
        assert_eq!(wrong_arrows(&house(json!({"name": "xtask", "dependencies": []}))), [""; 0]);
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        let upward =
            json!({"name": "trapline-insn", "dependencies": [{"name": "trapline-tracee", "kind": null}]});
        assert_eq!(
            wrong_arrows(&house(upward)),
            ["trapline-insn -> trapline-tracee is not an arrow of the house"]
        );
        let test_only =
            json!({"name": "trapline-insn", "dependencies": [{"name": "trapline-tracee", "kind": "dev"}]});
        assert_eq!(wrong_arrows(&house(test_only)), [""; 0]);
    }

    #[test]
    fn a_missing_package_and_a_missing_attribute_are_found() {
        assert_eq!(wrong_arrows(&json!({"packages": []})).len(), ARROWS.len());
        assert_eq!(unsafe_allowed("x", "//! doc\n#![forbid(unsafe_code)]\n"), None);
        assert!(unsafe_allowed("x", "// #![forbid(unsafe_code)]\n").is_some());
    }
}
