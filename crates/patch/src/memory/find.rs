//! What tracers have left in a process, found from its maps and memory alone.
//!
//! In: a process. Out: segments, newest first, with the tracer that made them and their state. Everything
//! read here was writable by the process and is treated as input.
//! Does not: change anything.

use std::collections::BTreeMap;

use trapline_record::control::{MEMFD_NAME, State, VERSION, at};
use trapline_record::journal::{Entry, EntryKind};
use trapline_record::{FileOffset, RemoteAddr};
use trapline_tracee::{FileId, Mapping, Process};

use crate::error::PatchError;
use crate::memory::words::Block;

/// A segment that a process maps.
#[derive(Clone, Debug)]
pub struct FoundSegment {
    /// Address of a mapping of its control block.
    pub control: RemoteAddr,
    /// Its memfd.
    pub memfd: FileId,
    /// All its mappings.
    pub mappings: Vec<Mapping>,
    pub(crate) block: Block,
}

impl FoundSegment {
    /// What its tracer was doing; `None` if the word makes no sense.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        self.block.state()
    }
    /// The tracer that made it: pid and start time.
    #[must_use]
    pub fn tracer(&self) -> (u32, u64) {
        (self.block.get(at::TRACER_PID) as u32, self.block.get(at::TRACER_START))
    }
    /// Whether its tracer lives.
    #[must_use]
    pub fn tracer_alive(&self) -> bool {
        let (pid, start) = self.tracer();
        trapline_tracee::start_time(pid).is_ok_and(|began| began == start) && trapline_tracee::runs(pid)
    }
    /// The process for which it was made; a forked child maps it too.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.block.get(at::OWNER_PID) as u32
    }
    /// Whether this process maps it as the tracer of another one.
    pub(crate) fn is_tracers(&self, pid: u32) -> bool {
        self.tracer().0 == pid && self.owner() != pid
    }
    /// Number of bytes of address space that it takes.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.mappings.iter().map(|m| m.end - m.start).sum::<u64>()
            + self.block.get(at::STAMPS_LEN)
            + self.block.trampolines().map_or(0, |trampolines| trampolines.table_len())
    }
    /// Whether `pc` lies in its code.
    #[must_use]
    pub fn is_code(&self, pc: u64) -> bool {
        self.mappings.iter().any(|m| m.perms.exec && (m.start.0..m.end.0).contains(&pc))
    }
}

/// How often maps are read again that another tracer changes meanwhile: it unmaps a segment once.
const LOOKS: u32 = 8;

/// Segments that a process maps, newest first: those of Trapline, of any version.
///
/// Another tracer may unmap its segment between our look at the maps and the read of its control block. Then all is
/// looked at again.
///
/// # Errors
/// If the process is gone or its memory cannot be read.
pub fn find_segments(process: &Process) -> Result<Vec<FoundSegment>, PatchError> {
    let mut looks = 1;
    loop {
        match look_for_segments(process) {
            Err(_) if looks < LOOKS => looks += 1,
            done => return done,
        }
    }
}

fn look_for_segments(process: &Process) -> Result<Vec<FoundSegment>, PatchError> {
    let mut by_file: BTreeMap<FileId, Vec<Mapping>> = BTreeMap::new();
    for mapping in process.maps()? {
        if let (Some(file), true) = (mapping.file, is_ours(&mapping)) {
            by_file.entry(file).or_default().push(mapping);
        }
    }
    let mut found = Vec::new();
    for (memfd, mappings) in by_file {
        let blocks = mappings.iter().filter(|m| m.offset == FileOffset(0) && m.perms.write);
        let Some(control) = blocks.map(|m| m.start).next() else { continue };
        if let Some(block) = Block::read(process, control)? {
            found.push(FoundSegment { control, memfd, mappings, block });
        }
    }
    // Inode numbers of memfds grow with time.
    found.sort_by_key(|f| std::cmp::Reverse(f.memfd.inode));
    Ok(found)
}

/// Segments that are no longer used, and may be unmapped if that is proven (`free`). `own` are this
/// session's.
pub(crate) fn left_behind(process: &Process, own: &[FileId]) -> Result<Vec<FoundSegment>, PatchError> {
    let mut found = find_segments(process)?;
    let is_left = |f: &FoundSegment| f.state() == Some(State::Removed) && !f.is_tracers(process.pid());
    found.retain(|f| f.block.is_ours() && is_left(f) && !own.contains(&f.memfd));
    Ok(found)
}

fn is_ours(mapping: &Mapping) -> bool {
    mapping.perms.shared && mapping.path.strip_prefix("/memfd:") == Some(MEMFD_NAME)
}

/// Refuses segments that another tracer uses, tracers' own, and other versions. `own` are segments of this session.
pub(crate) fn check_free(
    pid: u32,
    found: &[FoundSegment],
    own: &[FileId],
    dead_allowed: bool,
) -> Result<(), PatchError> {
    for segment in found.iter().filter(|f| !own.contains(&f.memfd)) {
        if !segment.block.is_ours() {
            return Err(PatchError::OtherVersion { pid, found: segment.block.version(), ours: VERSION });
        }
        if segment.is_tracers(pid) {
            return Err(PatchError::IsTracer { pid, target: segment.owner() });
        }
        if segment.state() == Some(State::Removed) {
            continue;
        }
        let tracer = segment.tracer().0;
        if segment.tracer_alive() {
            return Err(PatchError::InUse { pid, tracer, comm: trapline_tracee::comm(tracer) });
        }
        if !dead_allowed {
            return Err(PatchError::LeftBehind { pid, tracer });
        }
    }
    Ok(())
}

/// One segment, in numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentStatus {
    /// What its tracer was doing; `None` if the word makes no sense.
    pub state: Option<State>,
    /// Version of its layout. If it is not ours, the other fields are 0.
    pub version: u64,
    /// Pid of the tracer that made it.
    pub tracer: u32,
    /// Name of that tracer, if it lives.
    pub tracer_comm: Option<String>,
    /// Pid of the process for which it was made.
    pub owner: u32,
    /// Number of sites in the journal.
    pub sites: u32,
    /// Number of sites that hold our bytes now.
    pub in_place: u32,
    /// Number of semaphores in the journal.
    pub semaphores: u32,
    /// Number of guard traps that the handler in the process has served.
    pub guard_hits: u64,
    /// Number of bytes of address space.
    pub mapped: u64,
}

/// What is patched in a process, and by which tracers.
///
/// # Errors
/// If the process is gone or its memory cannot be read.
pub fn status(process: &Process) -> Result<Vec<SegmentStatus>, PatchError> {
    let look = || {
        find_segments(process)?.iter().map(|found| segment_status(process, found)).collect::<Result<_, _>>()
    };
    // A segment that another tracer has unmapped meanwhile is not found again.
    look().or_else(|_| look())
}

pub(crate) fn segment_status(process: &Process, found: &FoundSegment) -> Result<SegmentStatus, PatchError> {
    let ours = found.block.is_ours();
    let entries = if ours { found.block.journal(process, found.control)? } else { Vec::new() };
    let is_code = |e: &&Entry| e.kind != EntryKind::Semaphore;
    // Bytes that look like ours belong to a later segment: what is removed in the process for which it was
    // made is removed. A child has a text of its own.
    let is_removed = found.state() == Some(State::Removed) && found.owner() == process.pid();
    let holds = |e: &&Entry| {
        if is_removed {
            return false;
        }
        let len = usize::from(e.len);
        let mut present = [0; 8];
        process.read(e.addr, &mut present[..len]).is_ok() && present[..len] == e.new[..len]
    };
    Ok(SegmentStatus {
        state: found.state().filter(|_| ours),
        version: found.block.version(),
        tracer: found.tracer().0,
        tracer_comm: found.tracer_alive().then(|| trapline_tracee::comm(found.tracer().0)),
        owner: found.owner(),
        sites: entries.iter().filter(is_code).count() as u32,
        in_place: entries.iter().filter(is_code).filter(holds).count() as u32,
        semaphores: entries.iter().filter(|e| e.kind == EntryKind::Semaphore).count() as u32,
        guard_hits: if ours { found.block.get(at::GUARD_HITS) } else { 0 },
        mapped: found.mapped(),
    })
}
