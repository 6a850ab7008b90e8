//! Which processes a session traces.
//!
//! In: pids, names, files that probes name. Out: opened processes, or an error that names the process that
//! was meant and is not there. Does not: launch commands; the session does.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use trapline_image::ProbeSpec;
use trapline_order::Order as _;
use trapline_tracee::{Among, Process, by_name};

use crate::error::Error;
use crate::modules::mapped;
use crate::roots::{below, other_roots};

/// Processes to trace; [`Builder::target`](crate::Builder::target) takes it. For a single process,
/// [`Builder::pid`](crate::Builder::pid) is shorter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// Every process that maps a probed file and may be traced.
    #[default]
    Any,
    /// The same, and every process that maps such a file later, from its first instruction there. Root alone can
    /// have that; otherwise later ones are not traced, with a notice. Of all processes, those that are [`Among`] these.
    All(Among),
    /// These processes, and all that have one of these names.
    Running {
        /// Process ids.
        pids: Vec<u32>,
        /// Process names.
        names: Vec<String>,
    },
    /// A command that is started, and probed before its own first instruction.
    Launch(Vec<OsString>),
}

/// Keeps track of several processes of which some may end while they are looked at. One of several that ends
/// stops nothing, and is reported. An only one must be there.
#[derive(Debug)]
pub(crate) struct Several {
    many: bool,
    /// Error of the last process that was gone.
    gone: Option<Error>,
}

impl Several {
    pub(crate) const fn new(processes: usize) -> Self {
        Self { many: processes > 1, gone: None }
    }
    /// Takes the result for one of them: `None` if the process is gone, whatever failed because of that.
    pub(crate) fn one<T>(&mut self, pid: u32, became: Result<T, Error>) -> Result<Option<T>, Error> {
        match became {
            Ok(one) => Ok(Some(one)),
            Err(error) if self.many && (error.is_gone() || has_ended(pid)) => {
                self.gone = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
    /// With none `left`, fails with the last error.
    pub(crate) fn end(self, left: usize) -> Result<(), Error> {
        match self.gone {
            Some(error) if left == 0 => Err(error),
            _ => Ok(()),
        }
    }
}

/// Notice about a process that is gone.
pub(crate) fn gone_notice(pid: u32) -> String {
    format!("process {pid} is not traced, since it has ended; the others are")
}

fn has_ended(pid: u32) -> bool {
    Process::look_into(pid).is_err_and(|error| error.is_gone())
}

/// Processes of a target. A process named by pid must be traceable, unless it is one of several and has
/// ended. Any other process that cannot be traced is a notice.
pub(crate) fn resolve(
    target: &Target,
    specs: &[ProbeSpec],
    notices: &mut Vec<String>,
) -> Result<Vec<Process>, Error> {
    let (pids, names) = match target {
        Target::Running { pids, names } => (pids, names),
        Target::All(among) => return mapping_processes(specs, among),
        Target::Any | Target::Launch(_) => return mapping_processes(specs, &Among::default()),
    };
    let mut seen = HashSet::new();
    let mut processes = Vec::new();
    let pids: Vec<u32> = pids.iter().copied().filter(|&pid| seen.insert(pid)).collect();
    let mut several = Several::new(pids.len() + names.len());
    for pid in pids {
        match several.one(pid, Process::open(pid).map_err(Error::from))? {
            Some(process) => processes.push(process),
            None => notices.push(gone_notice(pid)),
        }
    }
    for name in names {
        let found = by_name(name);
        if found.is_empty() {
            return Err(Error::NoProcessNamed { name: name.clone(), near: near_names(name) });
        }
        let mut last = None;
        for pid in found.into_iter().filter(|&pid| seen.insert(pid)) {
            match Process::open(pid) {
                Ok(process) => processes.push(process),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if processes.is_empty() => return Err(error.into()),
            Some(error) => notices.push(error.to_string()),
            None => {}
        }
    }
    several.end(processes.len())?;
    Ok(processes)
}

/// Every process among these that maps a file which a probe names.
pub(crate) fn mapping_processes(specs: &[ProbeSpec], among: &Among) -> Result<Vec<Process>, Error> {
    if let Some(spec) = specs.iter().find(|spec| spec.file.is_none()) {
        return Err(Error::NoTarget { probe: spec.text.clone() });
    }
    let names: Vec<&str> = specs.iter().filter_map(|spec| spec.file.as_deref()).collect();
    let exists = |file: &Path| {
        let inside = || other_roots(among).iter().any(|root| below(root, file).exists());
        file.exists() || file.is_absolute() && inside()
    };
    for spec in specs {
        if let Some(file) = spec.file.as_deref().filter(|file| file.contains('/') && !exists(Path::new(file)))
        {
            let why = "there is none, here or in a container".to_owned();
            return Err(Error::NoFile { file: file.to_owned(), probe: spec.text.clone(), why });
        }
    }
    let maps_one = |process: &Process| {
        let maps = process.maps().unwrap_or_default();
        mapped(process, &maps).iter().any(|one| names.iter().any(|name| one.is_named(process, name)))
    };
    let me = std::process::id();
    let found: Vec<Process> = all_pids()
        .filter(|&pid| pid != me && among.has(pid))
        .filter_map(|pid| Process::open(pid).ok())
        .filter(maps_one)
        .collect();
    if found.is_empty() { Err(Error::NotMapped { file: names.join(", ") }) } else { Ok(found) }
}

pub(crate) fn all_pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Names of running processes that are similar to `name`.
fn near_names(name: &str) -> Vec<String> {
    let lower = name.to_lowercase();
    let comm = |pid: u32| Some(trapline_tracee::comm(pid));
    let alike = |comm: &String| {
        let other = comm.to_lowercase();
        other != "?" && (other.contains(&lower) || lower.contains(&other) || other.get(..3) == lower.get(..3))
    };
    let mut near: Vec<String> = all_pids().filter_map(comm).filter(alike).collect();
    near.order();
    near.dedup();
    near.truncate(3);
    near
}
