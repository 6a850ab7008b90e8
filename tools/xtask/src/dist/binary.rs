//! The static binary of one processor.
//!
//! In: sources, a folder for build output. Out: the binary's path; whether it is static, small enough, and the same
//! when it is built elsewhere. Invariant: no path of the machine that builds it is in it. Does not: run it.
//!
//! It is linked with musl: that is complete without plug-ins for host names, and its licence permits static links.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::printed;
use crate::cargo::cargo_path;
use crate::outcome::Outcome;
use crate::tree;

/// Bytes that a binary may have.
const MOST_BYTES: u64 = 8_000_000;

/// A processor that Trapline runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

pub(super) const MACHINES: [Machine; 2] = [Machine::X86_64, Machine::Aarch64];

impl Machine {
    /// The one that packages are made for.
    pub(super) const HOST: Self = Self::X86_64;

    pub(super) fn named(name: &str) -> Result<Self> {
        let found = MACHINES.into_iter().find(|machine| machine.name() == name);
        found.with_context(|| format!("no processor `{name}`; x86_64 or aarch64"))
    }
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
    fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }
    /// The linker that cargo has to be told, if the system's own does not do.
    const fn linker(self) -> Option<&'static str> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some("aarch64-linux-gnu-gcc"),
        }
    }
    /// Relocations in a form that takes a thirtieth of the space (on arm64 there are none), and functions with the same
    /// code kept once. The second needs the linker that comes with the compiler.
    fn link_flags(self, own: Option<&Path>) -> Vec<String> {
        let packed = (self == Self::X86_64).then(|| "-Wl,-z,pack-relative-relocs".to_owned());
        let folded =
            own.map(|own| [format!("-B{}", own.display()), "-fuse-ld=lld".into(), "-Wl,--icf=all".into()]);
        let all = packed.into_iter().chain(folded.into_iter().flatten());
        all.flat_map(|flag| ["-C".to_owned(), format!("link-arg={flag}")]).collect()
    }
    /// The binary's name among the packages.
    pub(super) fn file_name(self) -> String {
        format!("trapline-{}-{}-linux", env!("CARGO_PKG_VERSION"), self.name())
    }
}

/// Flags that take the machine's paths out of what is built. The last one that fits counts, and the folder of build
/// output often lies in that of the sources.
fn remapped(root: &Path, target: &Path, home: &Path) -> Vec<String> {
    let pairs = [(root, "trapline"), (home, "cargo"), (target, "target")];
    pairs.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())).into()
}

/// Where cargo keeps the sources of crates.
fn cargo_home() -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default().join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// The folder of the linker that comes with the compiler. One from a distribution has none.
fn own_linker() -> Option<PathBuf> {
    let of = |what: &[&str]| printed(Command::new("rustc").args(what)).ok();
    let version = of(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "))?;
    let root = of(&["--print", "sysroot"])?;
    Some(Path::new(root.trim()).join("lib/rustlib").join(host).join("bin/gcc-ld"))
        .filter(|path| path.exists())
}

/// Has the compiler learn the target, if it can be had.
pub(super) fn toolchain(machine: Machine) -> Result<()> {
    let triple = machine.triple();
    // Where rustup is not, or has them already, this does nothing. The second one is the sample program's.
    for triple in [&triple, &triple.replace("-musl", "-gnu")] {
        drop(Command::new("rustup").args(["target", "add", triple]).output());
    }
    let root = printed(Command::new("rustc").args(["--print", "sysroot"]))?;
    let library = Path::new(root.trim()).join("lib/rustlib").join(&triple);
    ensure!(library.exists(), "the compiler has no {triple}, and rustup could not add it");
    Ok(())
}

/// What builds it from the sources in `root`.
pub(super) fn builder(machine: Machine, root: &Path, target: &Path) -> Command {
    let triple = machine.triple();
    let mut flags = remapped(root, target, &cargo_home());
    flags.extend(machine.link_flags(own_linker().as_deref()));
    let mut cargo = Command::new(cargo_path());
    cargo
        .current_dir(root)
        .args(["build", "--profile", "dist", "--locked", "-p", "trapline-cli", "--target", &triple])
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    if let Some(linker) = machine.linker() {
        let name = triple.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    }
    cargo
}

/// Builds it.
pub(super) fn build(machine: Machine, root: &Path, target: &Path) -> Result<PathBuf> {
    let triple = machine.triple();
    toolchain(machine)?;
    println!("building {triple}");
    ensure!(
        builder(machine, root, target).status().context("cargo")?.success(),
        "the static binary for {} does not build",
        machine.name()
    );
    Ok(target.join(triple).join("dist/trapline"))
}

/// Whether it needs no loader, is small, and names no folder of this machine.
pub(super) fn check(machine: Machine, file: &Path) -> Result<Outcome> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let mut faults = Vec::new();
    if bytes.len() as u64 > MOST_BYTES {
        faults.push(format!("{} bytes, at most {MOST_BYTES}", bytes.len()));
    }
    let headers = printed(Command::new("readelf").args(["-lW"]).arg(file))?;
    if headers.contains("INTERP") {
        faults.push("it needs a loader, so it is not static".to_owned());
    }
    for folder in [tree::root(), cargo_home()] {
        let path = folder.display().to_string();
        if memory_has(&bytes, path.as_bytes()) {
            faults.push(format!("it contains {path}"));
        }
    }
    for fault in &faults {
        println!("{}: {fault}", machine.file_name());
    }
    Ok(Outcome::single(faults.is_empty()))
}

fn memory_has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Builds it again from a copy of the committed sources in another folder, and compares.
pub(super) fn same_elsewhere(machine: Machine, file: &Path) -> Result<Outcome> {
    let folder = std::env::temp_dir().join(format!("trapline-dist-{}", std::process::id()));
    let result = elsewhere(machine, file, &folder);
    std::fs::remove_dir_all(&folder).ok();
    result
}

fn elsewhere(machine: Machine, file: &Path, folder: &Path) -> Result<Outcome> {
    let root = tree::root();
    let changed = printed(Command::new("git").current_dir(&root).args(["status", "--porcelain", "-uno"]))?;
    if !changed.is_empty() {
        bail!("--twice compares with the last commit, and there are changes since");
    }
    let sources = folder.join("sources of a second build");
    printed(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(&root).arg(&sources))?;
    let again = build(machine, &sources, &folder.join("output"))?;
    let same = std::fs::read(&again)? == std::fs::read(file)?;
    println!(
        "{}: built twice, in different folders: {}",
        machine.file_name(),
        if same { "the same" } else { "NOT the same" }
    );
    Ok(Outcome::single(same))
}

#[cfg(test)]
mod tests {
    use super::{Machine, memory_has, remapped};
    use std::path::Path;

    #[test]
    fn processors_have_names_of_their_own() {
        assert_eq!(Machine::named("aarch64").ok(), Some(Machine::Aarch64));
        assert!(Machine::named("arm64").is_err());
        assert_eq!(Machine::X86_64.triple(), "x86_64-unknown-linux-musl");
        assert!(Machine::Aarch64.file_name().ends_with("-aarch64-linux"));
    }

    #[test]
    fn paths_are_replaced_by_names() {
        let flags = remapped(Path::new("/a b"), Path::new("/t"), Path::new("/h"));
        assert_eq!(
            flags,
            [
                "--remap-path-prefix=/a b=trapline",
                "--remap-path-prefix=/h=cargo",
                "--remap-path-prefix=/t=target"
            ]
        );
    }

    #[test]
    fn the_compilers_linker_is_used_where_it_is() {
        let without = Machine::X86_64.link_flags(None);
        assert_eq!(without, ["-C", "link-arg=-Wl,-z,pack-relative-relocs"]);
        let with = Machine::Aarch64.link_flags(Some(Path::new("/own")));
        assert_eq!(with.join(" "), "-C link-arg=-B/own -C link-arg=-fuse-ld=lld -C link-arg=-Wl,--icf=all");
    }

    #[test]
    fn a_path_is_found_in_the_middle() {
        assert!(memory_has(b"x/home/me/y", b"/home/me") && !memory_has(b"/home/m", b"/home/me"));
    }
}
