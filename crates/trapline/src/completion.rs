//! How a probe that is half typed may go on: what a shell offers when the user presses TAB.
//!
//! In: the first letters of a probe; pids of the processes that are meant, if any. Out: whole probes, or first parts of
//! such that end in a colon or a slash; threads, users; at most [`MOST`]. What cannot be read is left out, without a word. Does not:
//! attach to a process, quote for a shell.

use std::path::{Path, PathBuf};

use trapline_image::{BegunProbe, ProbeKind};
use trapline_order::Order as _;
use trapline_tracee::{Process, busiest, comm};

use crate::files::{Files, ModuleFile};
use crate::listing::{find_file, is_elf};
use crate::modules::{mapped, name_of};
use crate::names::ProcessNames;

/// The most texts that are offered.
pub const MOST: usize = 2000;
/// The most processes that are looked into, if none is named.
const PROCESSES: usize = 200;
/// Words for a probe's kind.
const KINDS: [&str; 3] = ["uprobe:", "uretprobe:", "usdt:"];

/// How a probe may go on that begins with `text`.
#[must_use]
pub fn probes(text: &str, pids: &[u32]) -> Vec<String> {
    let begun = BegunProbe::of(text);
    let mut found = match begun.file {
        Some(file) => names(begun, file_called(file, pids).as_deref()),
        None if begun.name.contains('/') => paths(begun.name),
        None => {
            let kinds = KINDS.iter().filter(|_| begun.kind.is_none()).map(|&kind| kind.to_owned());
            let program = (!pids.is_empty()).then(|| names(begun, program_of(pids).as_deref()));
            program.into_iter().flatten().chain(kinds).chain(files(pids)).collect()
        }
    };
    found.retain(|one| one.starts_with(begun.name));
    found.truncate(MOST);
    found.iter().map(|one| format!("{}{one}", begun.head)).collect()
}

/// Threads of these processes, each with its name.
#[must_use]
pub fn threads(pids: &[u32]) -> Vec<(u32, String)> {
    let of = |pid: &u32| Process::open(*pid).and_then(|process| process.threads()).unwrap_or_default();
    pids.iter().flat_map(of).map(|tid| (tid, comm(tid))).take(MOST).collect()
}

/// Names of this machine's users.
#[must_use]
pub fn users() -> Vec<String> {
    let text = std::fs::read("/etc/passwd").unwrap_or_default();
    let names = text.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b':').next());
    names.filter(|name| !name.is_empty()).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Functions of a file, or its USDT probes.
fn names(begun: BegunProbe<'_>, file: Option<&ModuleFile>) -> Vec<String> {
    let Some(file) = file else { return Vec::new() };
    match begun.kind {
        Some(ProbeKind::Usdt) => file.image.markers_from(begun.name, MOST),
        _ => file.image.functions_from(begun.name, MOST),
    }
}

/// The processes that are meant, or if none is named those that have used most time.
fn processes(pids: &[u32]) -> impl Iterator<Item = Process> {
    let busy = || busiest().into_iter().map(|(pid, _)| pid).take(PROCESSES).collect();
    let pids: Vec<u32> = if pids.is_empty() { busy() } else { pids.to_vec() };
    pids.into_iter().filter_map(|pid| Process::open(pid).ok())
}

/// The program's file of the first process that can be read.
fn program_of(pids: &[u32]) -> Option<std::sync::Arc<ModuleFile>> {
    processes(pids).find_map(|process| {
        let maps = process.maps().ok()?;
        let program = mapped(&process, &maps).into_iter().find(|one| one.is_program)?;
        program.open(&process, &mut Files::default()).ok().map(|module| module.file)
    })
}

/// The file that a name means: in the processes that are meant, on this machine, or in any process.
fn file_called(name: &str, pids: &[u32]) -> Option<std::sync::Arc<ModuleFile>> {
    let files = &mut Files::default();
    if pids.is_empty()
        && let Some(path) = find_file(name)
    {
        return files.of_path(&path).ok();
    }
    processes(pids).find_map(|process| {
        let maps = process.maps().ok()?;
        let one = mapped(&process, &maps).into_iter().find(|one| one.is_named(&process, name))?;
        one.open(&process, files).ok().map(|module| module.file)
    })
}

/// Names of files that processes map, each with a colon: programs as they were started, libraries by their short names.
fn files(pids: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for process in processes(pids) {
        let maps = process.maps().unwrap_or_default();
        let names = ProcessNames::of(&process).ok();
        found.extend(mapped(&process, &maps).iter().map(|one| match &names {
            Some(names) if one.is_program => format!("{}:", names.shown()),
            _ => format!("{}:", short_name(&one.mapping.path)),
        }));
    }
    found.order();
    found.dedup();
    found
}

/// The short name of a library: `libc` for `/lib/libc.so.6` and `/lib/libc-2.31.so`.
fn short_name(path: &str) -> &str {
    let base = name_of(path);
    let stem = base.split_once(".so").map_or(base, |(stem, _)| stem);
    let is_version = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.');
    stem.rsplit_once('-').filter(|(_, version)| is_version(version)).map_or(stem, |(name, _)| name)
}

/// Programs and libraries, each with a colon, and folders, each with a slash, that a path may go on to.
fn paths(begun: &str) -> Vec<String> {
    let (folder, last) = begun.rsplit_once('/').unwrap_or(("", begun));
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let folder_path = match folder.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => home().unwrap_or_default().join(rest.trim_start_matches('/')),
        None => PathBuf::from(format!("{folder}/")),
    };
    let entries = std::fs::read_dir(folder_path).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_meant = name.starts_with(last) && (last.starts_with('.') || !name.starts_with('.'));
            let end = is_meant.then(|| end_of(&entry.path()))??;
            Some(format!("{folder}/{name}{end}"))
        })
        .collect();
    found.order();
    found
}

/// What stands behind a path: a slash if it is a folder, a colon if it is a program or library.
fn end_of(path: &Path) -> Option<char> {
    let meta = path.metadata().ok()?;
    // A pipe or a device might let us wait.
    if meta.is_dir() { Some('/') } else { (meta.is_file() && is_elf(path)).then_some(':') }
}

#[cfg(test)]
mod tests {
    use super::{MOST, paths, probes, short_name};

    #[test]
    fn libraries_are_offered_by_their_short_names() {
        for (path, name) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("/lib/libc-2.31.so", "libc"),
            ("/usr/lib/libstdc++.so.6.0.30", "libstdc++"),
            ("/lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64"),
        ] {
            assert_eq!(short_name(path), name);
            assert!(crate::modules::is_short_name(path, name), "{name} for {path}");
        }
    }

    #[test]
    fn a_process_offers_its_functions_kinds_and_files() {
        let me = [std::process::id()];
        let of = |text: &str| probes(text, &me);
        assert!(of("libc:mallo").contains(&"libc:malloc".to_owned()), "{:?}", of("libc:mallo"));
        assert!(of("ur:libc:mallo").contains(&"ur:libc:malloc".to_owned()));
        assert!(of("lib").contains(&"libc:".to_owned()), "{:?}", of("lib"));
        assert_eq!(of("ure"), ["uretprobe:"]);
        assert!(of("").len() <= MOST && of("libc:").len() <= MOST);
        assert!(of("nothing:").is_empty());
    }

    #[test]
    fn paths_go_on_to_folders_and_programs() {
        let program = std::env::current_exe().expect("own path").to_string_lossy().into_owned();
        let (folder, _) = program.rsplit_once('/').expect("absolute");
        assert_eq!(paths(&program[..program.len() - 1]), [format!("{program}:")]);
        assert_eq!(paths(folder), [format!("{folder}/")]);
        assert!(paths("/proc/self/stat").is_empty(), "no program");
    }
}
