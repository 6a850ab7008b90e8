//! Memory control groups for tests, of either cgroup version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A group with a limit; removed when dropped, if it is empty then.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    unified: bool,
}

impl Group {
    /// Makes a group with this limit in bytes.
    ///
    /// # Errors
    /// The reason why no group can be made here.
    pub fn with_limit(bytes: u64) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trapline-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let places = mounts.lines().filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let memory = words.get(3)?.split(',').any(|option| option == "memory");
            let usable = words[2] == "cgroup2" || words[2] == "cgroup" && memory;
            usable.then(|| (PathBuf::from(words[1]), words[2] == "cgroup2"))
        });
        let mut why = "no hierarchy of control groups is mounted".to_owned();
        for (place, unified) in places {
            if unified {
                // This fails without the memory controller, and then the next step fails too.
                fs::write(place.join("cgroup.subtree_control"), "+memory").ok();
            }
            let group = Self { folder: place.join(&name), unified };
            match fs::create_dir(&group.folder).and_then(|()| fs::write(group.limit(), bytes.to_string())) {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{}: {error}", group.folder.display()),
            }
        }
        Err(format!("no memory control group can be made here: {why}"))
    }
    fn limit(&self) -> PathBuf {
        self.folder.join(if self.unified { "memory.max" } else { "memory.limit_in_bytes" })
    }
    /// The file to which a member's PID is written.
    #[must_use]
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
    /// Moves a process into the group.
    ///
    /// # Panics
    /// If that fails.
    pub fn take(&self, pid: u32) {
        fs::write(self.members(), pid.to_string()).expect("a member");
    }
    /// Bytes that count against the limit.
    ///
    /// # Panics
    /// If the group is gone.
    #[must_use]
    pub fn used(&self) -> u64 {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        number(&self.folder.join(file))
    }
    /// Number of members that the kernel has killed at the limit.
    ///
    /// # Panics
    /// If the group is gone.
    #[must_use]
    pub fn killed(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder.join(file)).expect("the group");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).expect("a count");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A killed member leaves the group a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn number(path: &Path) -> u64 {
    fs::read_to_string(path).expect("the group").trim().parse().expect("a number")
}
