//! The packages for C programs: `libtrapline0`, and `libtrapline-dev` with header, static library and pkg-config file.
//!
//! In: the C ABI's crate, a folder. Out: two [`Package`]s, with their files in the folder. Does not: build the library
//! with the binary's profile. Its code runs at hits inside the program, so it is optimised for speed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::control::{MULTIARCH, Package, VERSION};
use super::deb::put;
use super::printed;
use crate::cargo::cargo_path;
use crate::tree;

const SONAME: &str = "libtrapline.so.0";
/// What programs rely on: a version, and what it brought.
const KEPT: &str = "crates/capi/abi/libtrapline.so.0.txt";

/// Builds the library, and stages both packages.
pub(super) fn packages(staged: &Path) -> Result<[Package; 2]> {
    let mut cargo = Command::new(cargo_path());
    cargo.current_dir(tree::root()).args(["build", "--release", "--locked", "-p", "trapline-capi"]);
    ensure!(cargo.status().context("cargo")?.success(), "the library for C does not build");
    of(&tree::target()?.join("release"), staged)
}

/// Stages both packages, with the library that lies in `built`.
pub(super) fn of(built: &Path, staged: &Path) -> Result<[Package; 2]> {
    Ok([shared(built, &staged.join("libtrapline0"))?, development(built, &staged.join("libtrapline-dev"))?])
}

fn shared(built: &Path, root: &Path) -> Result<Package> {
    fs::remove_dir_all(root).ok();
    let library = root.join("usr/lib").join(MULTIARCH).join(SONAME);
    put(&library, &fs::read(built.join("libtrapline_capi.so"))?, 0o644)?;
    printed(Command::new("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(&library))?;
    let needs = printed(Command::new("readelf").args(["-V", "-W"]).arg(&library))?;
    let glibc = newest_glibc(&needs).context("the library needs no version of glibc")?;
    Ok(Package {
        name: "libtrapline0",
        section: "libs",
        depends: Some(format!("libc6 (>= {glibc}), libgcc-s1 (>= 4.2)")),
        suggests: Some(format!("trapline (>= {VERSION})")),
        summary: "library that counts and times functions of programs",
        description: "\
Functions for C programs that probe themselves or others, without traps: a
probe's handler is called at each hit of a function.

Calls with their values, histograms, stacks and scripts come from the command
of the package trapline, which the library runs.

This package holds the shared library.",
        control_files: vec![
            ("shlibs", format!("libtrapline 0 libtrapline0 (>= {VERSION})\n")),
            ("triggers", "activate-noawait ldconfig\n".to_owned()),
            ("symbols", symbols(&fs::read_to_string(tree::root().join(KEPT))?)),
        ],
        root: root.to_owned(),
    })
}

fn development(built: &Path, root: &Path) -> Result<Package> {
    fs::remove_dir_all(root).ok();
    let (capi, library) = (tree::root().join("crates/capi"), root.join("usr/lib").join(MULTIARCH));
    put(&root.join("usr/include/trapline.h"), &fs::read(capi.join("include/trapline.h"))?, 0o644)?;
    let archive = library.join("libtrapline.a");
    put(&archive, &fs::read(built.join("libtrapline_capi.a"))?, 0o644)?;
    printed(Command::new("strip").args(["--strip-debug", "--enable-deterministic-archives"]).arg(&archive))?;
    let config = pkg_config(&fs::read_to_string(capi.join("trapline.pc.in"))?);
    put(&library.join("pkgconfig/trapline.pc"), config.as_bytes(), 0o644)?;
    std::os::unix::fs::symlink(SONAME, library.join("libtrapline.so"))?;
    Ok(Package {
        name: "libtrapline-dev",
        section: "libdevel",
        depends: Some(format!("libtrapline0 (= {VERSION}), libc6-dev")),
        suggests: Some("pkgconf".to_owned()),
        summary: "library that counts and times functions, for development",
        description: "\
Functions for C programs that probe themselves or others, without traps: a
probe's handler is called at each hit of a function.

This package holds the header, the static library and the file for
pkg-config.",
        control_files: Vec::new(),
        root: root.to_owned(),
    })
}

/// Debian's list of symbols: from which version on a program needs the library.
fn symbols(kept: &str) -> String {
    let function = |line: &str| {
        let (version, what) = line.split_once(' ')?;
        let (before, _) = what.strip_prefix("function ")?.split_once('(')?;
        let name = before.rsplit([' ', '*']).next().filter(|name| name.starts_with("trapline_"))?;
        Some(format!(" {name}@Base {version}\n"))
    };
    let mut lines: Vec<String> = kept.lines().filter_map(function).collect();
    lines.sort_unstable();
    format!("{SONAME} libtrapline0 #MINVER#\n{}", lines.concat())
}

/// The file for pkg-config, with Debian's folders.
fn pkg_config(template: &str) -> String {
    template.replace("@prefix@", "/usr").replace("${prefix}/lib", &format!("${{prefix}}/lib/{MULTIARCH}"))
}

/// The newest version of glibc's symbols that `readelf -V` shows.
fn newest_glibc(versions: &str) -> Option<String> {
    let parts =
        |version: &str| version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
    let found = versions.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_")).filter_map(parts);
    found.max().map(|parts| parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::{newest_glibc, pkg_config, symbols};

    #[test]
    fn symbols_are_the_functions() {
        let kept = "0.1.0 function const char *trapline_b(int)\n0.2.0 function int trapline_a(void *x)\n\
                    0.1.0 function typedef int (*trapline_handler)(int)\n0.1.0 constant TRAPLINE_X = 1\n";
        let expected =
            "libtrapline.so.0 libtrapline0 #MINVER#\n trapline_a@Base 0.2.0\n trapline_b@Base 0.1.0\n";
        assert_eq!(symbols(kept), expected);
        let real = symbols(include_str!("../../../../crates/capi/abi/libtrapline.so.0.txt"));
        assert!(real.contains(" trapline_register@Base 0.1.0\n"), "{real}");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let text = " 0x10: Name: GLIBC_2.9  Flags: none\n 0x20: Name: GLIBC_2.34  Flags: none\n Name: GCC_3.0\n GLIBC_PRIVATE";
        assert_eq!(newest_glibc(text).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }

    #[test]
    fn pkg_config_names_debians_folder() {
        let text = pkg_config(include_str!("../../../../crates/capi/trapline.pc.in"));
        assert!(
            text.contains("prefix=/usr\n") && text.contains("libdir=${prefix}/lib/x86_64-linux-gnu\n"),
            "{text}"
        );
        assert!(text.contains("includedir=${prefix}/include\n") && !text.contains('@'), "{text}");
    }
}
