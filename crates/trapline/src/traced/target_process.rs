//! The process itself, and what was found out about it once.
//!
//! In: an opened process, its program. Out: its name, its children, whether its calls belong to goroutines.
//! Invariant: children are only added. Does not: read maps, or patch.

use std::collections::HashSet;

use trapline_tracee::Process;

use crate::arch::GOROUTINE_IN_REGISTER;
use crate::containers::Workload;
use crate::error::Error;
use crate::modules::Module;
use crate::names::ProcessNames;
use crate::procfs;

/// A process under trace.
#[derive(Debug)]
pub(super) struct TargetProcess {
    pub(super) process: Process,
    /// Number of the process in this session.
    pub(super) nth: u32,
    pub(super) name: String,
    /// The container and the service that it is a part of, as they were at the beginning.
    pub(super) workload: Workload,
    /// Forked children that were seen; they count into the same tables.
    pub(super) children: HashSet<u32>,
    /// Calls belong to goroutines, which may move between threads.
    pub(super) is_go: bool,
    /// Where threads keep the pointer to their goroutine: bytes from the thread pointer.
    pub(super) go_g: Option<i32>,
}

impl TargetProcess {
    pub(super) fn new(process: Process, nth: u32) -> Result<Self, Error> {
        let name = ProcessNames::of(&process)?.shown().to_owned();
        let workload = Workload::of(process.pid());
        Ok(Self { process, nth, name, workload, children: HashSet::new(), is_go: false, go_g: None })
    }
    pub(super) const fn pid(&self) -> u32 {
        self.process.pid()
    }
    /// Notes whether the program, if it is among these modules, is Go's.
    pub(super) fn note_program(&mut self, modules: &[Module]) {
        if let Some(program) = modules.iter().find(|module| module.is_program && module.file.image.is_go()) {
            self.is_go = true;
            self.go_g = program.file.image.go_g_in_tls().and_then(|at| i32::try_from(at).ok());
        }
    }
    /// Whether returns can decide about calls here. In Go that takes the goroutine, by which an exit finds
    /// what its entry left.
    pub(super) const fn returns_decide(&self) -> bool {
        !self.is_go || self.go_g.is_some() || GOROUTINE_IN_REGISTER
    }
    /// Adds the children that it has now.
    pub(super) fn look_for_children(&mut self) {
        let pid = self.pid();
        self.children.extend(procfs::children(pid));
    }
}
