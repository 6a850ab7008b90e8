//! Names of a process and of its program.
//!
//! In: a process. Out: the names by which a user may know it: its comm, the last part of its first argument,
//! the last part of its program file; and the path that such a name means. A program is often started through
//! a symbolic link (redis-server is a link to redis-check-rdb), and then the file's own name means nothing to
//! the user. Does not: search for processes.

use std::path::Path;

use trapline_tracee::{FileId, Process, TargetError};

/// Longest comm in bytes; the kernel cuts a longer name to it.
const COMM_LEN: usize = 15;

/// The names of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProcessNames {
    comm: String,
    /// The first argument: as the program was started, or as the process has set it since.
    argv0: String,
    exe: String,
}

impl ProcessNames {
    /// Reads the names of a process.
    pub(crate) fn of(process: &Process) -> Result<Self, TargetError> {
        let line = std::fs::read(process.folder().join("cmdline")).unwrap_or_default();
        let first = line.split(|&byte| byte == 0).next().unwrap_or_default();
        let argv0 = String::from_utf8_lossy(first).into_owned();
        Ok(Self { comm: trapline_tracee::comm(process.pid()), argv0, exe: process.exe_name()? })
    }
    /// Last part of the first argument. Programs that write a title there keep their name as its first word:
    /// `nginx: worker process`.
    fn started_as(&self) -> &str {
        let word = self.argv0.split_whitespace().next().unwrap_or_default();
        word.rsplit('/').next().unwrap_or_default().trim_end_matches(':')
    }
    /// Name in reports: the comm, or the full name if the kernel has cut the comm.
    pub(crate) fn shown(&self) -> &str {
        // The cut may be inside of a character.
        let whole = self.comm.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let full = |name: &&str| self.comm.len() >= COMM_LEN && name.starts_with(whole);
        [self.started_as(), &self.exe].into_iter().find(full).unwrap_or(&self.comm)
    }
    /// Whether a user who types `wanted` means this program.
    pub(crate) fn mean(&self, wanted: &str) -> bool {
        let whole = self.argv0.rsplit('/').next().unwrap_or_default();
        [self.shown(), self.started_as(), whole, &self.exe].contains(&wanted)
    }
    /// Path that leads to the program's file under the name that it runs by, if there is one beside the file
    /// itself.
    pub(crate) fn path(&self, process: &Process, mapped: &str, id: FileId) -> Option<String> {
        let names = [self.started_as(), self.shown()];
        names.into_iter().find_map(|name| beside(process, mapped, id, name))
    }
}

/// Path of `name` in the directory of a mapped file, if it leads to that very file.
pub(crate) fn beside(process: &Process, mapped: &str, id: FileId, name: &str) -> Option<String> {
    let (dir, _) = mapped.rsplit_once('/')?;
    let path = format!("{dir}/{name}");
    (!name.is_empty() && leads_to(&process.rooted(&path), id)).then_some(path)
}

/// Whether a path, as the tracer sees it, leads to this very file.
pub(crate) fn leads_to(path: &Path, id: FileId) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.metadata().is_ok_and(|meta| FileId { dev: meta.dev(), inode: meta.ino() } == id)
}

#[cfg(test)]
mod tests {
    use super::ProcessNames;

    fn names(comm: &str, argv0: &str, exe: &str) -> ProcessNames {
        ProcessNames { comm: comm.into(), argv0: argv0.into(), exe: exe.into() }
    }

    #[test]
    fn a_process_has_several_names() {
        for (names, shown, wanted) in [
            (
                names("redis-server", "/usr/bin/redis-server *:6379", "redis-check-rdb"),
                "redis-server",
                "redis-check-rdb",
            ),
            (names("nginx", "nginx: worker process", "nginx"), "nginx", "nginx"),
            (names("worker", "/opt/a b/tool", "tool"), "worker", "tool"),
            (names("a-very-long-nam", "./a-very-long-name", "x"), "a-very-long-name", "a-very-long-name"),
            (names("a-very-long-nam", "other", "a-very-long-name-2"), "a-very-long-name-2", "other"),
        ] {
            assert_eq!(names.shown(), shown);
            assert!(names.mean(shown) && names.mean(wanted) && !names.mean("") && !names.mean("redis"));
        }
    }
}
