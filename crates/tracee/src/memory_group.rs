//! The memory that a process may still take: the limits of its memory control group, and of all groups above.
//!
//! Input: a pid. Output: for each group that has a limit, what is left of it; and how often the kernel's
//! out-of-memory killer ended a process of the process' own group. Both versions of control groups are read,
//! where they are mounted for us. Groups that are not visible from here (another namespace) are reported as
//! unseen. Does not: decide what that means (`plan::charge`), or change anything.
//!
//! A page is charged to the group of the process that touches it first, and stays charged there. Neither a
//! move to another group nor the end of the group charges it to the other processes that map it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::procfs;

/// The limit that leaves least, and what it leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryLeft {
    /// Bytes: the limit, minus what is used, plus what the kernel takes back from the file cache first.
    pub left: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The group, as /proc/PID/cgroup names it.
    pub group: String,
    /// The name of the limit's file.
    pub file: &'static str,
}

/// A process' memory control group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryGroup {
    /// Its folder, then those of the groups above; empty where there are no memory control groups.
    folders: Vec<PathBuf>,
    /// The path of the first folder's group.
    name: String,
    /// Whether it is in the hierarchy of version 2.
    unified: bool,
    /// Whether there may be groups above that are not visible from here.
    unseen: bool,
}

/// A limit's file, and the file with the usage that counts against it.
type Pair = (&'static str, &'static str);

const UNIFIED: [Pair; 2] = [("memory.max", "memory.current"), ("memory.high", "memory.current")];
const FIRST: [Pair; 2] = [
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
];
/// A limit of version 1 that is this high means that there is none.
const NO_LIMIT: u64 = 1 << 62;
/// /proc/self/ns/cgroup in the namespace that shows all groups (linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "cgroup:[4026531835]";

impl MemoryGroup {
    /// The memory control group of a process; one without limits where nothing can be read.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let Ok(groups) = procfs::text(format!("/proc/{pid}/cgroup")) else { return Self::default() };
        let mounts = procfs::text("/proc/self/mountinfo").unwrap_or_default();
        let sees_all = fs::read_link("/proc/self/ns/cgroup")
            .is_ok_and(|namespace| namespace == Path::new(FIRST_NAMESPACE));
        let mut group = Self::find(&groups, &mounts);
        group.unseen |= !sees_all && !group.name.is_empty();
        group
    }
    /// Finds the group in the texts of /proc/PID/cgroup and /proc/self/mountinfo.
    fn find(groups: &str, mounts: &str) -> Self {
        let lines = groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            Some((parts.next()?, parts.next()?, parts.next()?))
        });
        let of_memory = |controllers: &str| controllers.split(',').any(|one| one == "memory");
        let first = lines.clone().find(|(_, controllers, _)| of_memory(controllers));
        let Some((number, _, name)) = first.or_else(|| lines.clone().find(|(number, ..)| *number == "0"))
        else {
            return Self::default();
        };
        let unified = number == "0";
        let hidden = Self {
            name: name.to_owned(),
            unified,
            unseen: !name.trim_matches('/').is_empty(),
            ..Self::default()
        };
        let Some((root, at)) = mounts.lines().find_map(|line| mount(line, unified)) else { return hidden };
        let Some(below) = below(name, &root) else { return hidden };
        let whole = Path::new(&at).join(below);
        let folders = whole.ancestors().take_while(|folder| folder.starts_with(&at));
        Self { folders: folders.map(Path::to_path_buf).collect(), unseen: root != "/", ..hidden }
    }
    /// Whether there may be a limit that cannot be read.
    #[must_use]
    pub const fn is_unseen(&self) -> bool {
        self.unseen
    }
    /// The limit that leaves least; `None` where there is none.
    #[must_use]
    pub fn left(&self) -> Option<MemoryLeft> {
        let pairs = if self.unified { UNIFIED } else { FIRST };
        let limits = self.folders.iter().enumerate().flat_map(|(above, folder)| {
            let group = Path::new(&self.name).ancestors().nth(above).unwrap_or_else(|| Path::new("/"));
            let one = move |(file, used): Pair| {
                let limit = number(folder, file).filter(|limit| *limit < NO_LIMIT)?;
                let free = limit.saturating_sub(number(folder, used)?);
                let left = free.saturating_add(file_cache(folder, self.unified)).min(limit);
                Some(MemoryLeft { left, limit, group: group.display().to_string(), file })
            };
            pairs.into_iter().filter_map(one)
        });
        limits.min_by_key(|limit| limit.left)
    }
    /// How many of its processes the kernel's out-of-memory killer has ended; `None` where the kernel does
    /// not show that.
    #[must_use]
    pub fn killed(&self) -> Option<u64> {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        entry(&procfs::text(self.folders.first()?.join(file)).ok()?, "oom_kill")
    }
    /// Its path, as /proc/PID/cgroup shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Bytes of memory that the machine has available; the largest number if that cannot be read.
#[must_use]
pub fn machine_has() -> u64 {
    let text = procfs::text("/proc/meminfo").unwrap_or_default();
    entry(&text, "MemAvailable:").map_or(u64::MAX, |kib| kib << 10)
}

/// What a line of mountinfo mounts, and where, if it is a hierarchy with memory control groups.
fn mount(line: &str, unified: bool) -> Option<(String, String)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (file_system, options) = (kind.next()?, kind.nth(1)?);
    let ours = match file_system {
        "cgroup2" => unified,
        "cgroup" => !unified && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut place = place.split(' ').skip(3);
    ours.then_some((place.next()?.to_owned(), place.next()?.replace("\\040", " ")))
}

/// A group's path below a mount's root; `None` if it lies elsewhere.
fn below<'a>(name: &'a str, root: &str) -> Option<&'a str> {
    let rest = if root == "/" { name } else { name.strip_prefix(root)? };
    let whole = rest.is_empty() || rest.starts_with('/');
    (whole && !rest.split('/').any(|part| part == "..")).then(|| rest.trim_start_matches('/'))
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    procfs::text(folder.join(file)).ok()?.trim().parse().ok()
}

/// The number that follows a word at the beginning of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of cached file pages, which the kernel drops before it ends any process.
fn file_cache(folder: &Path, unified: bool) -> u64 {
    let text = procfs::text(folder.join("memory.stat")).unwrap_or_default();
    let names =
        if unified { ["active_file", "inactive_file"] } else { ["total_active_file", "total_inactive_file"] };
    names.iter().filter_map(|name| entry(&text, name)).sum()
}

#[cfg(test)]
mod tests {
    use super::{MemoryGroup, below, entry};
    use std::path::Path;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
35 30 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
";

    #[test]
    fn the_first_version_is_asked_where_it_has_the_controller() {
        let found = MemoryGroup::find("4:memory:/a/b\n2:cpu:/c\n0::/d\n", MOUNTS);
        let folders: Vec<&Path> = found.folders.iter().map(|folder| folder.as_path()).collect();
        let expected = ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"];
        assert_eq!(folders, expected.map(Path::new));
        assert!(!found.unified && !found.unseen);
    }

    #[test]
    fn the_second_version_is_asked_else() {
        let found = MemoryGroup::find("2:cpu:/c\n0::/d\n", MOUNTS);
        assert_eq!(found.folders[0], Path::new("/sys/fs/cgroup/unified/d"));
        assert!(found.unified && !found.unseen);
    }

    #[test]
    fn what_lies_outside_of_what_is_mounted_is_unseen() {
        let found = MemoryGroup::find("0::/../x\n", MOUNTS);
        assert!(found.folders.is_empty() && found.unseen);
        let part = MOUNTS.replace("0:30 / ", "0:30 /docker/x ");
        let found = MemoryGroup::find("4:memory:/docker/x/y\n", &part);
        assert_eq!(found.folders[0], Path::new("/sys/fs/cgroup/memory/y"));
        assert!(found.unseen, "/docker may have a limit");
        assert!(MemoryGroup::find("4:memory:/docker/xy\n", &part).folders.is_empty());
        assert_eq!(MemoryGroup::find("", MOUNTS), MemoryGroup::default());
        assert!(!MemoryGroup::find("0::/\n", "").unseen, "the root has no limit");
        assert_eq!(below("/a/b", "/a"), Some("b"));
    }

    #[test]
    fn what_is_left_is_the_least_of_all_levels() {
        let base = std::env::temp_dir().join(format!("trapline-groups-{}", std::process::id()));
        let inner = base.join("a/b");
        std::fs::create_dir_all(&inner).expect("a folder");
        let write =
            |folder: &Path, file: &str, text: &str| std::fs::write(folder.join(file), text).expect("write");
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.high", "1000000\n");
        write(&inner, "memory.current", "400000\n");
        write(&inner, "memory.stat", "anon 5\ninactive_file 100000\nactive_file 1\n");
        write(&inner, "memory.events", "low 0\noom 7\noom_kill 3\n");
        write(&base.join("a"), "memory.max", "900000\n");
        write(&base.join("a"), "memory.current", "800000\n");
        let mounts = format!("31 30 0:27 / {} rw - cgroup2 cgroup2 rw\n", base.display());
        let found = MemoryGroup::find("0::/a/b\n", &mounts);
        let left = found.left().expect("a limit");
        assert_eq!(
            (left.left, left.limit, left.group.as_str(), left.file),
            (100_000, 900_000, "/a", "memory.max")
        );
        assert_eq!(found.killed(), Some(3));
        write(&base.join("a"), "memory.max", "max\n");
        assert_eq!(found.left().map(|left| (left.left, left.file)), Some((700_001, "memory.high")));
        std::fs::remove_dir_all(&base).expect("gone");
    }

    #[test]
    fn an_entry_is_a_whole_word() {
        assert_eq!(entry("oom 1\noom_kill 2\n", "oom_kill"), Some(2));
        assert_eq!(entry("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", "oom_kill"), Some(4));
        assert_eq!(entry("MemAvailable:   12 kB\n", "MemAvailable:"), Some(12));
    }
}
