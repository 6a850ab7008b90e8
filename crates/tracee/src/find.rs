//! Finding processes by name, by a file that they map, or by the time that they have used.
//!
//! Input: a name or a file. Output: pids, in ascending order, never our own. Processes that end meanwhile are
//! left out.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use trapline_order::Order as _;

use crate::living;
use crate::maps::{DELETED, FileId, Mapping};
use crate::process::Process;
use crate::procfs;

fn pids() -> Vec<u32> {
    let own = std::process::id();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .collect();
    pids.order();
    pids
}

fn last_part(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().trim_end_matches(DELETED).to_owned())
}

fn is_named(pid: u32, name: &str) -> bool {
    let folder = living::folder(pid);
    let comm = procfs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let exe = || fs::read_link(folder.join("exe")).ok().and_then(|path| last_part(&path));
    let argv0 = || {
        let line = procfs::read(folder.join("cmdline")).ok()?;
        last_part(Path::new(OsStr::from_bytes(line.split(|&b| b == 0).next()?)))
    };
    let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm));
    comm == name || exe().as_deref() == Some(name) || argv0().as_deref() == Some(name)
}

/// Pids of processes with `name` as comm, as program file name or as last part of the first argument; never
/// the tracer's own.
#[must_use]
pub fn by_name(name: &str) -> Vec<u32> {
    pids().into_iter().filter(|&pid| is_named(pid, name) && living::living(pid).is_some()).collect()
}

/// Processes that may be traced, with their names; those that have used most CPU time come first. Never our own, those
/// above us, or the first process.
#[must_use]
pub fn busiest() -> Vec<(u32, String)> {
    let above: HashSet<u32> = std::iter::successors(Some(std::process::id()), |&pid| parent(pid)).collect();
    let may = |pid: &u32| *pid > 1 && !above.contains(pid) && Process::open(*pid).is_ok();
    let used = |pid: u32| living::cpu_ticks(pid).map(|ticks| (Reverse(ticks), pid));
    let mut found: Vec<_> = pids().into_iter().filter(may).filter_map(used).collect();
    found.order();
    found.into_iter().map(|(_, pid)| (pid, living::comm(pid))).collect()
}

/// Its parent; `None` if it has none here.
fn parent(pid: u32) -> Option<u32> {
    let parent = living::stat(pid).ok()?.field(4)?;
    u32::try_from(parent).ok().filter(|&pid| pid > 0)
}

fn maps_file(pid: u32, file: FileId) -> bool {
    // In the kernel's own notation, so that most lines are skipped without being parsed.
    let inode = format!(" {} ", file.inode);
    let text = procfs::read(living::folder(pid).join("maps")).unwrap_or_default();
    text.split(|&byte| byte == b'\n')
        .filter(|line| line.windows(inode.len()).any(|part| part == inode.as_bytes()))
        .any(|line| Mapping::parse_bytes(line).is_some_and(|map| map.file == Some(file)))
}

/// Pids that map this file and that we may trace; never our own.
#[must_use]
pub fn by_mapped_file(file: FileId) -> Vec<u32> {
    let may =
        |pid: &u32| File::options().read(true).write(true).open(living::folder(*pid).join("mem")).is_ok();
    users_of(file).into_iter().filter(may).collect()
}

/// All pids that map this memfd, whether or not we may write to them; never our own.
#[must_use]
pub fn users_of(memfd: FileId) -> Vec<u32> {
    pids().into_iter().filter(|&pid| maps_file(pid, memfd)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::by_name;

    #[test]
    fn a_process_has_the_names_of_its_file_of_its_first_argument_and_its_own() {
        let own = std::process::id();
        let file = std::env::temp_dir().join(format!("trapline-a-long-name-{own}"));
        std::fs::copy("/bin/sleep", &file).expect("a copy");
        let argument = format!("/no/such/folder/tl-first-argument-{own}");
        let mut child = Command::new(&file).arg0(&argument).arg("60").spawn().expect("it starts");
        // A spawn returns when the new memory exists, a moment before the arguments do.
        let arguments = || std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        while std::path::Path::new(&format!("/proc/{}/exe", child.id())).exists()
            && !arguments().ends_with(b"\x0060\0")
        {
            std::thread::yield_now();
        }
        let found = |name: &str| by_name(name).contains(&child.id());
        let names = [file.file_name().and_then(|name| name.to_str()), argument.rsplit('/').next()];
        let all = names.map(|name| name.is_some_and(found));
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).expect("its own name");
        let (by_comm, by_part, by_path) =
            (found(comm.trim_end()), found("trapline-a-long"), found(&argument));
        let our_name = std::fs::read_to_string("/proc/self/comm").expect("our own name");
        let ourselves = by_name(our_name.trim_end()).contains(&own);
        child.kill().and_then(|()| child.wait()).expect("it ends");
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(all, [true, true], "file and first argument");
        assert!(by_comm && by_part, "comm is the file's name, cut after 15 bytes: {comm}");
        assert!(!by_path && !ourselves, "a path is no name");
        assert!(!by_name(comm.trim_end()).contains(&child.id()), "it ended");
    }
}
