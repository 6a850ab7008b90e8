//! What several tests need: compilers, binutils as oracles, files of this machine. If a file is missing, a
//! test skips it and prints that.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod forms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use trapline_image::{Image, NoDebugFiles};

/// Runs a tool and gives its standard output; a missing or failing tool fails the test.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    let output = Command::new(tool).args(args).env("LC_ALL", "C").output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert!(output.status.success(), "{tool} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Path for a test's own file, below the build directory.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
    std::fs::create_dir_all(&dir).expect("scratch directory");
    dir.join(name)
}

/// Compiles a source text with these flags; returns the program's path.
pub(crate) fn compile(compiler: &str, name: &str, source: &str, flags: &[&str]) -> String {
    let input = scratch(&format!("{name}.{}", if compiler == "g++" { "cc" } else { "c" }));
    let output = scratch(name).to_str().expect("UTF-8 path").to_owned();
    std::fs::write(&input, source).expect("source");
    let mut args = vec![input.to_str().expect("UTF-8 path"), "-o", &output];
    args.extend(flags);
    run(compiler, &args);
    output
}

/// Reads a file without its debug file.
pub(crate) fn image(path: &str) -> Image {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Image::parse(bytes, &mut NoDebugFiles).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Those of these files that exist; prints which do not.
pub(crate) fn present<'a>(paths: &[&'a str]) -> Vec<&'a str> {
    let (found, missing): (Vec<&str>, Vec<&str>) = paths.iter().partition(|path| Path::new(path).exists());
    for path in missing {
        eprintln!("SKIPPED: {path} is not on this machine");
    }
    assert!(!found.is_empty(), "none of {paths:?} is on this machine");
    found
}

pub(crate) const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
pub(crate) const LIBSTDCXX: &str = "/lib/x86_64-linux-gnu/libstdc++.so.6";
pub(crate) const GIT: &str = "/usr/bin/git";
pub(crate) const PYTHON: &str = "/usr/bin/python3.11";

/// A FUNC or IFUNC symbol as readelf lists it.
#[derive(Clone, Debug)]
pub(crate) struct ElfSymbol {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) ifunc: bool,
    /// With `@VERSION`, as printed.
    pub(crate) name: String,
}

/// Defined function symbols as `readelf` sees them, in either table.
pub(crate) fn readelf_functions(path: &str) -> Vec<ElfSymbol> {
    let listing = run("readelf", &["-sW", path]);
    let symbol = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, value, size, kind @ ("FUNC" | "IFUNC"), _, _, section, name, ..] = fields[..] else {
            return None;
        };
        let size = match size.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?,
            None => size.parse().ok()?,
        };
        let start = u64::from_str_radix(value, 16).ok()?;
        (section != "UND").then(|| ElfSymbol { start, size, ifunc: kind == "IFUNC", name: name.to_owned() })
    };
    listing.lines().filter_map(symbol).collect()
}

/// Unwind entries as `readelf` sees them: start → (end, whether the rows begin as they do at a call).
pub(crate) fn readelf_fdes(path: &str) -> BTreeMap<u64, (u64, bool)> {
    // readelf fails if a debug file that the file names does not exist, but only after it has listed
    // everything.
    let output = Command::new("readelf").args(["--debug-dump=frames", path]).env("LC_ALL", "C").output();
    let listing = String::from_utf8_lossy(&output.expect("readelf").stdout).into_owned();
    assert!(listing.contains(" pc="), "{path}: readelf lists no unwind entry");
    let mut found = BTreeMap::new();
    let mut current: Option<u64> = None;
    for line in listing.lines() {
        if let Some((_, range)) = line.split_once(" pc=") {
            let (start, end) = range.trim().split_once("..").expect("pc=START..END");
            let parse = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
            found.insert(parse(start), (parse(end), true));
            current = Some(parse(start));
        } else if line.contains(" CIE") || line.contains("DW_CFA_advance_loc") || line.trim().is_empty() {
            current = None;
        } else if let Some(start) = current {
            let moves = ["DW_CFA_def_cfa", "DW_CFA_offset"].iter().any(|op| line.contains(op));
            let as_called = line.contains("DW_CFA_def_cfa_offset: 8") && line.trim().ends_with(": 8");
            if moves && !as_called {
                found.get_mut(&start).expect("entry").1 = false;
            }
        }
    }
    found
}

/// Address ranges of sections by name, as `readelf` sees them.
pub(crate) fn readelf_sections(path: &str) -> Vec<(String, u64, u64)> {
    let listing = run("readelf", &["-SW", path]);
    let section = |line: &str| {
        let (_, rest) = line.split_once(']')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let [name, _, address, _, size, ..] = fields[..] else { return None };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        Some((name.to_owned(), hex(address)?, hex(size)?))
    };
    listing.lines().filter_map(section).collect()
}
