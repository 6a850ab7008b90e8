//! Processes of later: a tracer that waits for them, groups and containers in which they start.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::programs;
use crate::tracing::Tracing;

/// Starts `count --all`, and waits until the kernel has its marks.
///
/// # Errors
/// When the kernel grants none.
///
/// # Panics
/// If the tracer ends, or has no marks in time.
pub fn waiting(args: &[&str]) -> Result<Tracing, String> {
    let mut tracing = Tracing::spawn("count", &[&["--all"], args].concat());
    let begun = Instant::now();
    let has_mark = |pid: u32| {
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        infos
            .filter_map(|info| std::fs::read_to_string(info.path()).ok())
            .any(|text| text.contains("fanotify ino:"))
    };
    while !has_mark(tracing.pid()) {
        if tracing.output_text().contains("CAP_SYS_ADMIN") {
            return Err("the kernel grants no permission events".to_owned());
        }
        assert!(tracing.is_running(), "it ended: {}", tracing.output_text());
        assert!(begun.elapsed() < Duration::from_secs(20), "no marks: {}", tracing.output_text());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(tracing)
}

/// A control group that is removed at the end. Processes that are in it must have ended.
#[derive(Debug)]
pub struct Group(pub PathBuf);

impl Group {
    /// One below the first hierarchy in which we may make one.
    ///
    /// # Errors
    /// When there is none.
    ///
    /// # Panics
    /// If our own mounts cannot be read.
    pub fn new(name: &str) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("our own");
        let at = |line: &str| Some(line.split(' ').nth(1)?.to_owned()).filter(|_| line.contains(" cgroup2 "));
        let at = mounts.lines().find_map(at).ok_or("no control groups of version 2 are mounted")?;
        let group = Path::new(&at).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        Ok(Self(group))
    }
    /// Runs a command in it.
    ///
    /// # Panics
    /// If no shell starts.
    #[must_use]
    pub fn run(&self, command: &Path, args: &str) -> std::process::ExitStatus {
        let script =
            format!("echo 0 > {}/cgroup.procs && exec {} {args}", self.0.display(), command.display());
        Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status().expect("sh starts")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("it is empty");
    }
}

/// Fills a folder with what a container needs to run this program as `/bin/app`: a shell, their C library and its loader.
///
/// # Panics
/// If something cannot be copied.
pub fn furnish(root: &Path, app: &Path) {
    for inside in ["bin", "lib", "lib64", "proc", "old"] {
        std::fs::create_dir_all(root.join(inside)).expect("a folder of ours");
    }
    let copy = |path: &Path, to: PathBuf| programs::copy(path, &to).expect("a copy");
    copy(app, root.join("bin/app"));
    copy(Path::new("/bin/sh"), root.join("bin/sh"));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own");
    let mapped: std::collections::BTreeSet<&str> =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    for path in mapped.into_iter().map(Path::new) {
        match path.file_name().map(|name| name.to_string_lossy()) {
            Some(name) if name.starts_with("libc.so") => copy(path, root.join("lib").join(&*name)),
            Some(name) if name.starts_with("ld-") => copy(path, root.join("lib64").join(&*name)),
            _ => {}
        }
    }
}
