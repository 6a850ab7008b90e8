//! Which processes of a machine are meant: those of a control group, a container, a user, or below a process.
//!
//! In: rules, a pid. Out: whether the process is meant, by what /proc shows at that moment. Invariants: AMG-1 what
//! cannot be read of a process does not make it one that is meant. Does not: look again; a process that moves later
//! stays what it was.
//!
//! A process is meant if it fits one rule of each kind that is given. Paths of control groups are compared as the kernel
//! shows them, relative to our own cgroup namespace, so a folder is translated by the mount that it lies in.

use std::path::{Path, PathBuf};

use crate::procfs;
use crate::status::ThreadStatus;

/// Fewest digits of a container's id. Docker's short form has twelve.
const LEAST_DIGITS: usize = 12;

/// Rules; no rule means every process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Among {
    groups: Vec<Group>,
    users: Vec<u32>,
    roots: Vec<u32>,
}

/// Control groups that are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Group {
    /// This one, and those below.
    At {
        /// Controllers of its hierarchy, as /proc/PID/cgroup shows them; empty for version 2.
        controllers: String,
        path: String,
    },
    /// Those with this id in a part of their path.
    Container(String),
}

/// A rule that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AmongError {
    /// There is no such folder.
    #[error("no control group {0}: give a folder below /sys/fs/cgroup, as `cat /proc/PID/cgroup` names it")]
    NoGroup(PathBuf),
    /// The folder is none of a control group.
    #[error("{0} is no control group: no cgroup file system is mounted there")]
    NotOfGroup(PathBuf),
    /// It does not look like an id.
    #[error(
        "`{0}` is no container's id: give at least 12 of its digits (docker inspect -f '{{{{.Id}}}}' NAME, crictl ps)"
    )]
    NotAnId(String),
    /// There is no such process.
    #[error("no process {0}, whose descendants are meant")]
    NoRoot(u32),
}

impl Among {
    /// Adds processes of a control group, given as a folder, and of groups below it.
    ///
    /// # Errors
    /// When there is no such folder, or it is no control group's.
    pub fn group(mut self, folder: &Path) -> Result<Self, AmongError> {
        let found = folder.canonicalize().map_err(|_| AmongError::NoGroup(folder.to_owned()))?;
        let mounts = procfs::text("/proc/self/mountinfo").unwrap_or_default();
        self.groups.push(group_of(&found, &mounts).ok_or_else(|| AmongError::NotOfGroup(folder.to_owned()))?);
        Ok(self)
    }
    /// Adds processes of a container, given by its id or the first digits of it.
    ///
    /// # Errors
    /// When it has too few digits, or other letters.
    pub fn container(mut self, id: &str) -> Result<Self, AmongError> {
        if id.len() < LEAST_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(AmongError::NotAnId(id.to_owned()));
        }
        self.groups.push(Group::Container(id.to_lowercase()));
        Ok(self)
    }
    /// Adds processes of a user, by the real id.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.users.push(uid);
        self
    }
    /// Adds a process and its descendants, as far as their ancestors are alive.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn below(mut self, pid: u32) -> Result<Self, AmongError> {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(AmongError::NoRoot(pid));
        }
        self.roots.push(pid);
        Ok(self)
    }
    /// Whether every process is meant.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.groups.is_empty() && self.users.is_empty() && self.roots.is_empty()
    }
    /// Whether a process is meant.
    #[must_use]
    pub fn has(&self, pid: u32) -> bool {
        (self.users.is_empty() || self.is_of_user(pid))
            && (self.groups.is_empty() || self.is_in_group(pid))
            && (self.roots.is_empty() || self.is_below(pid))
    }
    fn is_of_user(&self, pid: u32) -> bool {
        let status = status(pid);
        status.tgid != 0 && self.users.contains(&status.uids[0])
    }
    fn is_in_group(&self, pid: u32) -> bool {
        let shown = procfs::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        self.groups.iter().any(|group| shown.lines().any(|line| group.has(line)))
    }
    fn is_below(&self, pid: u32) -> bool {
        let parent = |pid: &u32| Some(status(*pid).ppid).filter(|parent| *parent != 0);
        std::iter::successors(Some(pid), parent).any(|one| self.roots.contains(&one))
    }
}

fn status(pid: u32) -> ThreadStatus {
    ThreadStatus::parse(&procfs::read(format!("/proc/{pid}/status")).unwrap_or_default())
}

impl Group {
    /// Whether a line of /proc/PID/cgroup (`ID:CONTROLLERS:PATH`) shows it.
    fn has(&self, line: &str) -> bool {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(of), Some(shown)) = (parts.next(), parts.next()) else { return false };
        match self {
            Self::At { controllers, path } => {
                let below = shown.strip_prefix(path.as_str());
                of == controllers
                    && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || path == "/")
            }
            Self::Container(id) => shown.split('/').any(|part| part.contains(id.as_str())),
        }
    }
}

/// The group of a folder, by the mount that it lies in. `mounts`: the text of mountinfo.
fn group_of(folder: &Path, mounts: &str) -> Option<Group> {
    let of_line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let (root, at) = (left.split(' ').nth(3)?, left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let controllers = match kind {
            "cgroup2" => String::new(),
            "cgroup" => {
                let is_controller = |word: &&str| !matches!(*word, "rw" | "ro" | "xattr" | "clone_children");
                options.split(',').filter(is_controller).collect::<Vec<_>>().join(",")
            }
            _ => return None,
        };
        let rest = folder.strip_prefix(at).ok()?.to_str()?;
        let joined = format!("{}/{rest}", root.trim_end_matches('/'));
        let path = if rest.is_empty() { root.to_owned() } else { joined };
        Some((at.len(), Group::At { controllers, path }))
    };
    mounts.lines().filter_map(of_line).max_by_key(|one| one.0).map(|one| one.1)
}

#[cfg(test)]
mod tests {
    use super::{Among, AmongError, Group, group_of};
    use std::path::Path;

    const MOUNTS: &str = "\
30 24 0:26 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

    #[test]
    fn a_folder_is_a_group_of_the_hierarchy_that_is_mounted_there() {
        let cases = [
            ("/sys/fs/cgroup/unified/a/b", "", "/a/b"),
            ("/sys/fs/cgroup/unified", "", "/"),
            ("/sys/fs/cgroup/cpu,cpuacct/a", "cpu,cpuacct", "/a"),
            ("/sys/fs/cgroup/memory/a", "memory", "/box/a"),
            ("/sys/fs/cgroup/memory", "memory", "/box"),
            ("/sys/fs/cgroup/systemd/x", "name=systemd", "/x"),
        ];
        for (folder, controllers, path) in cases {
            let wanted = Group::At { controllers: controllers.to_owned(), path: path.to_owned() };
            assert_eq!(group_of(Path::new(folder), MOUNTS), Some(wanted), "{folder}");
        }
        assert_eq!(group_of(Path::new("/sys/fs/cgroup/other"), MOUNTS), None);
    }

    #[test]
    fn a_process_is_in_a_group_and_in_those_above() {
        let at =
            |controllers: &str, path: &str| Group::At { controllers: controllers.into(), path: path.into() };
        for (group, line, is) in [
            (at("", "/a"), "0::/a", true),
            (at("", "/a"), "0::/a/b", true),
            (at("", "/a"), "0::/ab", false),
            (at("", "/"), "0::/ab", true),
            (at("", "/a"), "4:memory:/a", false),
            (at("memory", "/a"), "4:memory:/a", true),
            (at("", "/a:b"), "0::/a:b", true),
            (Group::Container("0123456789ab".into()), "0::/system.slice/docker-0123456789abcdef.scope", true),
            (Group::Container("0123456789ab".into()), "1:cpu:/kubepods/pod1/0123456789abff/x", true),
            (Group::Container("0123456789ab".into()), "0::/docker-1123456789ab.scope", false),
        ] {
            assert_eq!(group.has(line), is, "{group:?} {line}");
        }
    }

    #[test]
    fn rules_of_one_kind_add_and_of_two_kinds_restrict() {
        let own = std::process::id();
        let uid = super::status(own).uids[0];
        let among = Among::default().user(uid).user(uid + 1);
        assert!(among.has(own) && !Among::default().user(uid + 1).has(own));
        let below = among.below(1).expect("pid 1 lives");
        assert!(below.has(own), "all processes descend from 1, or 1 is out of sight");
        assert!(
            !below.user(uid).below(own).expect("we live").container("0123456789ab").expect("an id").has(own)
        );
        assert!(!Among::default().user(uid).has(u32::MAX), "AMG-1");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let no = Among::default().group(Path::new("/nonexistent"));
        assert_eq!(no, Err(AmongError::NoGroup("/nonexistent".into())));
        assert_eq!(Among::default().group(Path::new("/etc")), Err(AmongError::NotOfGroup("/etc".into())));
        assert_eq!(Among::default().container("shop"), Err(AmongError::NotAnId("shop".to_owned())));
        assert_eq!(Among::default().below(u32::MAX), Err(AmongError::NoRoot(u32::MAX)));
    }
}
