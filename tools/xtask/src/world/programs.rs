//! The programs that packages hold.
//!
//! In: packages, as far as they are installed. Out: their programs in machine code of this processor, each with its
//! jobs; and what is left out, with the reason. Does not: run anything of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::{Job, Package};

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Its file, links followed.
    pub(super) file: PathBuf,
    /// The path to start it by: programs look at their own name.
    pub(super) path: PathBuf,
    /// The package that it is from.
    pub(super) package: String,
    /// What to run it with.
    pub(super) jobs: Vec<Job>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Programs, in the order of the packages.
    pub(super) programs: Vec<Program>,
    /// Programs that are never run: `NAME: why`.
    pub(super) left_out: Vec<String>,
    /// Packages that are not installed.
    pub(super) absent: Vec<String>,
}

/// Folders of programs.
const FOLDERS: [&str; 5] = ["/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/", "/usr/games/"];

/// Programs that are not run, each with its reason.
const EXCLUDED: [(&str, &str); 18] = [
    ("halt", "stops the machine, whatever its arguments are"),
    ("reboot", "stops the machine, whatever its arguments are"),
    ("poweroff", "stops the machine, whatever its arguments are"),
    ("shutdown", "stops the machine"),
    ("init", "is the machine's first process"),
    ("telinit", "speaks to the machine's first process"),
    ("runlevel", "reads the machine's state, which changes"),
    ("kexec", "starts another kernel"),
    ("unshare", "is what runs are made with"),
    ("strace", "holds its child by ptrace, as we do"),
    ("ltrace", "holds its child by ptrace, as we do"),
    ("gdb", "holds its child by ptrace, as we do"),
    ("uftrace", "traces its child"),
    ("bpftrace", "needs the kernel's tracing files"),
    ("valgrind", "runs translated code; it has a test of its own"),
    ("yes", "prints without end where it does not know an option"),
    ("unar", UNWRITTEN_WIDTH),
    ("lsar", UNWRITTEN_WIDTH),
];

/// `ioctl(TIOCGWINSZ)` fails without a terminal, and they use the structure anyway: 1 of 300 bare runs wraps
/// differently, too.
const UNWRITTEN_WIDTH: &str = "wraps lines at a width that it never wrote: a dead word of its stack";

/// Finds the programs of all packages that are installed. A file that several packages or links name is taken once, by
/// its first name.
pub(super) fn of(packages: &[Package]) -> Found {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    let own = std::env::current_exe().ok().and_then(|exe| head(&exe)).unwrap_or_default();
    for package in packages {
        let Some(paths) = files(&package.name) else {
            found.absent.push(package.name.clone());
            continue;
        };
        for path in paths {
            let Some(program) = program(&path, package, &own) else { continue };
            let name = file_name(&program.path);
            if let Some((_, why)) = EXCLUDED.iter().find(|(excluded, _)| *excluded == name) {
                found.left_out.push(format!("{name}: {why}"));
            } else if seen.insert(program.file.clone()) {
                found.programs.push(program);
            }
        }
    }
    found
}

/// The package's files in folders of programs, as dpkg knows them.
fn files(package: &str) -> Option<Vec<PathBuf>> {
    let output = Command::new("dpkg").args(["-L", package]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of_programs = |line: &&str| FOLDERS.iter().any(|folder| line.starts_with(folder));
    output.status.success().then(|| text.lines().filter(of_programs).map(PathBuf::from).collect())
}

fn program(path: &Path, package: &Package, own: &[u8; 20]) -> Option<Program> {
    let file = path.canonicalize().ok()?;
    if !is_native(&head(&file)?, own) {
        return None;
    }
    let name = file_name(path);
    let mut jobs: Vec<Job> = ["--version", "--help"]
        .map(|word| Job { program: name.clone(), arguments: vec![word.into()], input: None })
        .into();
    jobs.extend(package.jobs.iter().filter(|job| job.program == name).cloned());
    Some(Program { file, path: path.to_path_buf(), package: package.name.clone(), jobs })
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn head(file: &Path) -> Option<[u8; 20]> {
    use std::io::Read as _;
    let mut head = [0; 20];
    std::fs::File::open(file).ok()?.read_exact(&mut head).ok()?;
    Some(head)
}

/// Whether it is an executable ELF file for the processor of `own`, this program's file: 64 bits, little-endian, EXEC
/// or DYN.
fn is_native(head: &[u8; 20], own: &[u8; 20]) -> bool {
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    head.starts_with(b"\x7fELF\x02\x01") && matches!(half(16), 2 | 3) && head[18..] == own[18..]
}

#[cfg(test)]
mod tests {
    use super::{is_native, of};
    use crate::world::list::{Job, Package};

    #[test]
    fn programs_of_a_package_that_every_machine_has_are_found() {
        let job = Job { program: "sort".into(), arguments: vec!["-n".into()], input: None };
        let package = |name: &str| Package { name: name.into(), jobs: vec![job.clone()] };
        let found = of(&[package("coreutils"), package("no-such-package")]);
        let sort = found.programs.iter().find(|program| program.path.ends_with("sort")).expect("sort");
        assert_eq!(sort.jobs.len(), 3);
        assert!(found.programs.len() > 80);
        assert_eq!(found.absent, ["no-such-package"]);
    }

    #[test]
    fn scripts_and_other_processors_programs_are_no_programs() {
        let program = |processor| {
            let mut head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\0\0";
            head[18] = processor;
            head
        };
        let (x86_64, arm64) = (program(62), program(183));
        assert!(is_native(&x86_64, &x86_64) && is_native(&arm64, &arm64));
        assert!(!is_native(&x86_64, &arm64) && !is_native(&arm64, &x86_64));
        assert!(!is_native(b"#!/bin/sh\necho hello", &x86_64));
    }
}
