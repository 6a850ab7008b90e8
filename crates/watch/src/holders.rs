//! Who else has debug registers: debuggers, and processes with perf events open.
//!
//! The kernel tells nobody whose breakpoints they are; what can be seen is who traces a process (a debugger's breakpoints
//! are set by ptrace) and who has perf events open at all.

use std::fmt;
use std::fs;

/// Somebody who may hold debug registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// How.
    pub how: How,
}

/// How somebody holds debug registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It traces the process.
    Debugger,
    /// It has so many perf events open, of whatever kind.
    PerfEvents(u32),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, comm, how } = self;
        match how {
            How::Debugger => write!(f, "{comm} ({pid}) debugs it"),
            How::PerfEvents(1) => write!(f, "{comm} ({pid}) has a perf event open"),
            How::PerfEvents(events) => write!(f, "{comm} ({pid}) has {events} perf events open"),
        }
    }
}

pub(crate) fn comm(tid: u32) -> String {
    fs::read_to_string(format!("/proc/{tid}/comm"))
        .map_or_else(|_| "?".into(), |comm| comm.trim_end().to_owned())
}

/// Everybody but ourselves, for a thread.
pub(crate) fn holders(tid: u32) -> Vec<Holder> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok());
    let mut found = Vec::new();
    if let Some(pid) = tracer.filter(|&pid| pid != 0) {
        found.push(Holder { pid, comm: comm(pid), how: How::Debugger });
    }
    let me = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids =
        pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|&pid| pid != me);
    for pid in pids {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_event = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[perf_event]")
        };
        let events = links.filter(is_event).count() as u32;
        if events > 0 {
            found.push(Holder { pid, comm: comm(pid), how: How::PerfEvents(events) });
        }
    }
    found
}
