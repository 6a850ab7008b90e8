//! Which files an attach point means: one, those that a pattern matches, or all that a process maps.
//!
//! In: the file of an attach point, a process. Out: paths, as attach points name them. Does not: look into files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use trapline::probes::is_short_name;
use trapline_script::is_match;

/// Whether a name is a pattern.
pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// The files that are meant. Without a name, or with a star alone, they are those that the process maps.
pub(super) fn files(name: &str, pid: Option<u32>) -> Vec<String> {
    match pid {
        Some(pid) if name.is_empty() || is_pattern(name) => {
            let suits = |path: &String| name.is_empty() || is_match(name.as_bytes(), path.as_bytes());
            mapped(pid).into_iter().filter(suits).collect()
        }
        None if is_pattern(name) => on_disk(name),
        _ => vec![name.to_owned()],
    }
}

/// Files from which a process runs code, and that a name without a folder means: `libc`, `bash`.
pub(super) fn named(name: &str, pid: u32) -> Vec<String> {
    match name.contains('/') || name.is_empty() || is_pattern(name) {
        true => Vec::new(),
        false => mapped(pid).into_iter().filter(|path| is_short_name(path, name)).collect(),
    }
}

/// Files from which a process runs code.
fn mapped(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let path = |line: &str| {
        let mut words = line.split_whitespace();
        let executable = words.nth(1)?.contains('x');
        let path = line.find('/').map(|at| line[at..].trim_end_matches(" (deleted)").to_owned());
        path.filter(|_| executable)
    };
    maps.lines().filter_map(path).collect()
}

/// Files whose paths a pattern matches, folder by folder.
fn on_disk(pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for (nth, part) in pattern.split('/').enumerate() {
        let joined = |folder: &String, name: &str| match nth {
            0 => name.to_owned(),
            _ => format!("{folder}/{name}"),
        };
        found = match is_pattern(part) {
            false => found.iter().map(|folder| joined(folder, part)).collect(),
            true => {
                let inside = found.iter().flat_map(|folder| {
                    let path = if nth == 0 {
                        "."
                    } else if folder.is_empty() {
                        "/"
                    } else {
                        folder
                    };
                    names(Path::new(path))
                        .into_iter()
                        .filter(|name| is_match(part.as_bytes(), name.as_bytes()))
                        .map(|name| joined(folder, &name))
                        .collect::<Vec<_>>()
                });
                inside.collect()
            }
        };
    }
    found.retain(|path| Path::new(path).is_file());
    found
}

/// The names in a folder, in their order.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::{files, mapped, named};

    #[test]
    fn a_pattern_means_the_files_that_it_matches() {
        let all = files("/proc/self/n?/p*", None);
        assert!(all.contains(&"/proc/self/ns/pid".to_owned()), "{all:?}");
        assert!(all.iter().all(|path| path.starts_with("/proc/self/ns/p")), "{all:?}");
        assert_eq!(files("/nowhere/x", None), ["/nowhere/x"]);
        assert!(files("/nowhere/*", None).is_empty());
    }

    #[test]
    fn a_process_has_the_files_that_it_maps() {
        let own = std::env::current_exe().expect("a program").display().to_string();
        let pid = std::process::id();
        assert!(mapped(pid).contains(&own));
        assert_eq!(files(&own, Some(pid)), std::slice::from_ref(&own));
        let base = own.rsplit('/').next().expect("a name");
        assert_eq!(named(base, pid), std::slice::from_ref(&own));
        assert!(named(&own, pid).is_empty() && named("no-such-file", pid).is_empty());
        assert!(files("", Some(pid)).contains(&own) && files("*", Some(pid)).contains(&own));
    }
}
