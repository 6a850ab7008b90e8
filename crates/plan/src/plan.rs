//! What the planner answers: every byte to be written, where, and what to do with a thread caught in between.

use crate::refusal::Refusal;
use smallvec::SmallVec;
use trapline_record::journal::MAX_PATCH;
use trapline_record::{FileOffset, RemoteAddr};

/// A range of the target's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Region {
    /// First byte.
    pub addr: RemoteAddr,
    /// Bytes; whole pages.
    pub len: u64,
}

impl Region {
    /// First byte after it.
    #[must_use]
    pub fn end(&self) -> RemoteAddr {
        self.addr + self.len
    }
    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, at: RemoteAddr) -> bool {
        at.0.wrapping_sub(self.addr.0) < self.len
    }
}

/// How a site is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tactic {
    /// `jmp rel32` with the module's displacement.
    Jump,
    /// `jmp rel8` to an island in padding; on arm64 `b` to an island, from where a register leads to a stub that lies too far.
    Short,
    /// `jmp rel32` whose last bytes are the following instruction's own.
    Pun,
    /// `int3`, served by the guard handler; in-process engine only.
    Trap,
    /// A kernel uprobe.
    Kernel,
}

impl Tactic {
    /// All, in order of preference.
    pub const ALL: [Self; 5] = [Self::Jump, Self::Short, Self::Pun, Self::Trap, Self::Kernel];
    /// The word in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jump => "jump",
            Self::Short => "short",
            Self::Pun => "pun",
            Self::Trap => "trap",
            Self::Kernel => "kernel",
        }
    }
}

/// What a patch is for. Publishing goes islands, exits, entries; removal the other way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PatchRole {
    /// A jump in padding that a short jump leads to.
    Island,
    /// An exit by `ret`.
    ExitRet,
    /// An exit by jumping, or running on, into another function.
    ExitTail,
    /// A function's entry, an instruction that is counted, or a window that holds both entry and exit.
    Entry,
}

/// Bytes to be written at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// The probe of the (first) want it serves.
    pub probe: u32,
    /// Index of that want.
    pub want: u32,
    /// What it is for.
    pub role: PatchRole,
    /// How its site is reached (an island has its site's tactic).
    pub tactic: Tactic,
    /// First changed byte.
    pub addr: RemoteAddr,
    /// How many bytes change, 1 to 8, from `addr` on.
    pub len: u8,
    /// How many bytes from `addr` on must stay as they are while the patch is in place: `len`, or 5 for a punned jump,
    /// which ends in the following code's own bytes. Another patch that changes one of them must be refused.
    pub relies: u8,
    /// The file's bytes there; the first `len` count, the others are 0.
    pub old: [u8; MAX_PATCH],
    /// The bytes to write.
    pub new: [u8; MAX_PATCH],
    /// Where a thread that traps on an int3 written at `addr` continues: the stub's start.
    pub head: RemoteAddr,
    /// The changed bytes lie in two cache lines: no single write may publish them.
    pub crosses_line: bool,
    /// Bit n: an instruction that may run starts at byte n of the changed bytes, which is not the first: whoever is there traps.
    pub starts: u8,
    /// A displaced instruction may fault, with the copy's address.
    pub faults: bool,
}

impl Patch {
    /// Whether somebody may stand strictly inside the changed bytes.
    #[must_use]
    pub const fn needs_guard(&self) -> bool {
        self.starts != 0
    }
    /// First and behind the last of the bytes that nobody else may change while the patch is in place.
    #[must_use]
    pub fn needs(&self) -> (RemoteAddr, RemoteAddr) {
        (self.addr, self.addr + u64::from(self.relies))
    }
}

/// An instruction boundary inside a window, and where a thread that traps there continues.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Guard {
    /// Address of the (overwritten) instruction.
    pub at: RemoteAddr,
    /// Address of its copy.
    pub resume: RemoteAddr,
}

/// Code to be written at one place of a code region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where.
    pub addr: RemoteAddr,
    /// First byte in [`ModulePlan::bytes`].
    pub off: u32,
    /// Bytes.
    pub len: u32,
}

/// A site for a kernel uprobe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSite {
    /// The want's probe.
    pub probe: u32,
    /// Index of the want.
    pub want: u32,
    /// Where in the file.
    pub offset: FileOffset,
}

/// An instruction before which consumers are called, and what a trap's handler needs to do the same in place of a stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The instruction.
    pub at: RemoteAddr,
    /// Where the patch begins whose stub calls them.
    pub head: RemoteAddr,
    /// The patch is an int3, for good.
    pub is_trap: bool,
    /// A copy of the displaced instruction, with the way back.
    pub copy: RemoteAddr,
    /// Who is called, in this order: the want's probe, and whether it is told of a return.
    pub called: SmallVec<[(u32, bool); 1]>,
}

/// From one address of generated code to the next of its kind: what a thread there would be at without us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Original {
    /// First address.
    pub copy: RemoteAddr,
    /// The instruction that is copied there, or the one that the way back leads to; 0 where there is neither.
    pub of: RemoteAddr,
}

/// A want that got no patch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The want's probe.
    pub probe: u32,
    /// Index of the want.
    pub want: u32,
    /// Why.
    pub why: Refusal,
}

/// Sites by tactic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Sites (not islands) for each of [`Tactic::ALL`].
    pub sites: [u32; 5],
    /// Wants refused.
    pub refused: u32,
    /// Patches that cross a cache line.
    pub crossing: u32,
    /// Patches with a boundary inside.
    pub guarded: u32,
}

impl Stats {
    /// Sites with a tactic.
    #[must_use]
    pub const fn of(&self, tactic: Tactic) -> u32 {
        self.sites[tactic as usize]
    }
}

/// The plan for one module of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModulePlan {
    /// The rel32 of every patch whose tactic is [`Tactic::Jump`], and of every island.
    pub k: i32,
    /// Where the data part is to be mapped, shared and writable: offset 0 of the segment, whole.
    pub data: Region,
    /// Where the code region is to be mapped, readable and executable. Sparse: only chunks are written.
    pub code: Region,
    /// Small code regions of their own for punned jumps, and for arm64's islands; page-aligned, disjoint, sorted.
    pub pun_regions: Vec<Region>,
    /// First byte of the code region that this plan has no use for.
    pub free: RemoteAddr,
    /// At least 4096 free bytes at the end of `code`, for the batch's own code (trap handler).
    pub spare: Region,
    /// Code, sorted by address, disjoint.
    pub chunks: Vec<Chunk>,
    /// The chunks' bytes.
    pub bytes: Vec<u8>,
    /// Patches, sorted by address, disjoint.
    pub patches: Vec<Patch>,
    /// Guards, sorted by address, without duplicates. A head (for int3) is not among them.
    pub guards: Vec<Guard>,
    /// Instructions of stubs that may fault, and where their thread goes on then; sorted by address.
    pub fixups: Vec<Guard>,
    /// Where consumers are called, sorted by address.
    pub calls: Vec<Call>,
    /// Where consumers are called: which code is a copy of what, sorted by the copies' addresses.
    pub originals: Vec<Original>,
    /// Kernel uprobes to place.
    pub kernel: Vec<KernelSite>,
    /// (want that a patch is named after, another want that it serves as well), where windows are shared.
    pub shares: Vec<(u32, u32)>,
    /// Wants of which an exit is a jump to another function, or runs on into one.
    pub tails: Vec<u32>,
    /// Wants of exits that got a slot instead, and why: exits were not to be had, or one is a jump to another function.
    pub slotted: Vec<Refused>,
    /// What was refused, in the order of the wants.
    pub refused: Vec<Refused>,
    /// Sites by tactic.
    pub stats: Stats,
}

impl ModulePlan {
    /// Adds what was laid apart: code, patches, guards.
    pub(crate) fn join(&mut self, other: Self) {
        if self.chunks.is_empty() && self.patches.is_empty() {
            // A megabyte of code is moved, not copied.
            let Self { chunks, bytes, patches, guards, fixups, calls, originals, .. } = other;
            (self.chunks, self.bytes, self.patches, self.guards) = (chunks, bytes, patches, guards);
            (self.fixups, self.calls, self.originals) = (fixups, calls, originals);
            return;
        }
        let shift = self.bytes.len() as u32;
        self.bytes.extend(other.bytes);
        self.chunks.extend(other.chunks.into_iter().map(|c| Chunk { off: c.off + shift, ..c }));
        self.patches.extend(other.patches);
        self.guards.extend(other.guards);
        self.fixups.extend(other.fixups);
        self.calls.extend(other.calls);
        self.originals.extend(other.originals);
    }
    /// A chunk's bytes.
    #[must_use]
    pub fn chunk_bytes(&self, chunk: &Chunk) -> &[u8] {
        self.bytes.get(chunk.off as usize..(chunk.off + chunk.len) as usize).unwrap_or(&[])
    }
    /// Where a thread that trapped with its instruction pointer at `at` (the trapping byte) continues.
    #[must_use]
    pub fn resume(&self, at: RemoteAddr) -> Option<RemoteAddr> {
        let found = self.guards.binary_search_by_key(&at, |g| g.at).ok()?;
        Some(self.guards[found].resume)
    }
}
