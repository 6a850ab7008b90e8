//! What scripts ask of the system: names, files, numbers, commands.
//!
//! In: questions. Out: answers, read when they are asked. Does not: know scripts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trapline_script::Zone;

/// An error without the number that the standard library puts behind it.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The begin of a file.
pub(super) fn file(path: &str, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| reason(&error))
}

/// What a command of the shell writes to standard output.
pub(super) fn command(text: &str) -> Result<Vec<u8>, String> {
    let output =
        Command::new("sh").arg("-c").arg(text).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    output.map(|output| output.stdout).map_err(|error| reason(&error))
}

/// The name of a user.
pub(super) fn user(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The time zone of this machine, or of `TZ`.
pub(super) fn zone() -> Zone {
    let path = match std::env::var("TZ") {
        Ok(name) if name.starts_with('/') => PathBuf::from(name),
        Ok(name) if !name.is_empty() => Path::new("/usr/share/zoneinfo").join(name.trim_start_matches(':')),
        Ok(_) => return Zone::default(),
        Err(_) => PathBuf::from("/etc/localtime"),
    };
    fs::read(path).map(|bytes| Zone::parse(&bytes)).unwrap_or_default()
}

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The number of our own control group.
pub(super) fn cgroup() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    [CGROUPS.to_owned(), format!("{CGROUPS}/unified")].into_iter().find_map(|root| {
        let path = format!("{root}{path}");
        fs::metadata(&path).ok().map(|metadata| metadata.ino())
    })
}

/// The path of a control group, as bpftrace writes it.
pub(super) fn cgroup_path(id: u64) -> String {
    fn find(path: &Path, id: u64, deep: usize) -> Option<PathBuf> {
        let metadata = fs::metadata(path).ok()?;
        // A number may be cut to 32 bits.
        if metadata.ino() == id || metadata.ino() & 0xffff_ffff == id {
            return Some(path.to_owned());
        }
        let inside = fs::read_dir(path).ok().filter(|_| deep < 16)?;
        inside
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .find_map(|path| find(&path, id, deep + 1))
    }
    match find(Path::new(CGROUPS), id, 0) {
        Some(path) => {
            let path = path.strip_prefix(CGROUPS).map_or(PathBuf::new(), Path::to_owned);
            format!("unified:/{}", path.display())
        }
        None => String::new(),
    }
}

/// How many CPUs there can be.
pub(super) fn cpus() -> u64 {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = possible.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u64>().ok());
    last.map_or(1, |last| last + 1)
}

/// The NUMA node of a CPU.
pub(super) fn node(cpu: usize) -> u64 {
    let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok();
    let node = |name: String| name.strip_prefix("node")?.parse().ok();
    entries
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|entry| node(entry.file_name().into_string().ok()?))
        .unwrap_or(0)
}

/// The kernel's ticks, if we may see them.
pub(super) fn jiffies() -> Option<u64> {
    let timers = fs::read_to_string("/proc/timer_list").ok()?;
    timers.lines().find_map(|line| line.trim().strip_prefix("jiffies: ")?.trim().parse().ok())
}

/// Whether our numbers of processes are those of the whole system.
pub(super) fn is_first_namespace() -> bool {
    /// The number that Linux gives the first namespace of processes.
    const FIRST: u64 = 0xefff_fffc;
    fs::metadata("/proc/self/ns/pid").is_ok_and(|metadata| metadata.ino() == FIRST)
}

/// A number of `/proc/PID/status`.
pub(super) fn status(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok())
}

/// The name of our own thread.
pub(super) fn comm() -> Vec<u8> {
    name_in("/proc/thread-self/comm").unwrap_or_default()
}

/// The name of a process's first thread.
pub(super) fn name_of_process(pid: u32) -> Option<Vec<u8>> {
    name_in(&format!("/proc/{pid}/comm"))
}

/// The name in a file, without the end of its line.
fn name_in(path: &str) -> Option<Vec<u8>> {
    let mut name = fs::read(path).ok()?;
    name.truncate(name.iter().position(|byte| *byte == b'\n').unwrap_or(name.len()));
    Some(name)
}
