//! What the planner returns: every byte to be written, its address, and where a thread caught in between goes
//! on.

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
    /// First byte behind it.
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

/// How a site leads to its stub.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tactic {
    /// `jmp rel32` with the module's displacement.
    Jump,
    /// `jmp rel8` to an island in padding. On arm64: `b` to an island, which reaches a stub that is too far
    /// for a `b` by a register.
    Short,
    /// `jmp rel32`. The last bytes of its displacement are those of the instruction that follows.
    Pun,
    /// `int3`, which the guard handler serves; only for programs that probe themselves.
    Trap,
    /// A kernel uprobe.
    Kernel,
}

impl Tactic {
    /// All tactics, in order of preference.
    pub const ALL: [Self; 5] = [Self::Jump, Self::Short, Self::Pun, Self::Trap, Self::Kernel];
    /// The tactic's name in reports.
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

/// What a patch is for. Patches are published in this order (handlers, islands, exits, entries), and removed
/// in the reverse order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PatchRole {
    /// The entry of a handler of the program's, whatever else is done there (`Action::Deliver`).
    Handler,
    /// A jump in padding, to which a short jump leads.
    Island,
    /// An exit by `ret`.
    ExitRet,
    /// An exit that jumps to another function, or runs on into one.
    ExitTail,
    /// A function's entry, an instruction that is counted, or a window that holds both entry and exit.
    Entry,
}

/// Bytes to be written at one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Probe of the first request that this patch serves.
    pub probe: u32,
    /// Index of that request.
    pub request: u32,
    /// What the patch is for.
    pub role: PatchRole,
    /// How the site leads to its stub. An island has the tactic of its site.
    pub tactic: Tactic,
    /// First changed byte.
    pub addr: RemoteAddr,
    /// Number of changed bytes from `addr` on, 1 to 8.
    pub len: u8,
    /// Number of bytes from `addr` on that must not change while the patch is in place. This is `len`, or 5
    /// for a punned jump, which ends in bytes of the code that follows. Another patch that changes one of
    /// these bytes must be refused.
    pub relies: u8,
    /// The file's bytes at `addr`. The first `len` are valid, the others are 0.
    pub old: [u8; MAX_PATCH],
    /// The bytes to write; as many are valid as in `old`.
    pub new: [u8; MAX_PATCH],
    /// Start of the stub: where a thread goes on that traps on an int3 written at `addr`.
    pub head: RemoteAddr,
    /// The changed bytes lie in two cache lines, so no single write may publish them.
    pub crosses_line: bool,
    /// Bit `n`: an instruction that may run starts at byte `n` of the changed bytes, and `n` is not 0. A
    /// thread that arrives there traps.
    pub starts: u8,
    /// One of the displaced instructions may fault; the fault would show the copy's address.
    pub faults: bool,
    /// The instruction before the window, the function's first, may fault. A call that a handler leaves there is
    /// not seen.
    pub faults_before: bool,
}

impl Patch {
    /// Whether a thread may stand strictly inside the changed bytes.
    #[must_use]
    pub const fn needs_guard(&self) -> bool {
        self.starts != 0
    }
    /// Range of the bytes that no other patch may change while this one is in place: first byte, and first
    /// byte behind the range.
    #[must_use]
    pub fn needs(&self) -> (RemoteAddr, RemoteAddr) {
        (self.addr, self.addr + u64::from(self.relies))
    }
}

/// An interior boundary of a window, and where a thread that traps there goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Guard {
    /// Address of the instruction that the patch overwrites.
    pub at: RemoteAddr,
    /// Address of that instruction's copy.
    pub resume: RemoteAddr,
}

/// The copy of an instruction. A fault there is delivered at the original's address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Delivery {
    /// Address of the copy.
    pub copy: RemoteAddr,
    /// Address of the original.
    pub original: RemoteAddr,
    /// The original lies inside the changed bytes. A thread that returns there traps.
    pub is_inside: bool,
}

/// Code to be written at one address of a code region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Address of the first byte.
    pub addr: RemoteAddr,
    /// Offset of the first byte in [`ModulePlan::bytes`].
    pub off: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A site for a kernel uprobe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSite {
    /// The request's probe.
    pub probe: u32,
    /// Index of the request.
    pub request: u32,
    /// Offset of the instruction in the file.
    pub offset: FileOffset,
}

/// An instruction before which consumers are called, with all that a trap handler needs to call them in place
/// of a stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Address of the instruction.
    pub at: RemoteAddr,
    /// Start of the patch with the stub that calls the consumers.
    pub head: RemoteAddr,
    /// The patch is an int3 and stays one.
    pub is_trap: bool,
    /// Address of a copy of the displaced instruction, followed by the jump back.
    pub copy: RemoteAddr,
    /// The probes to call, in this order: the request's probe, and whether this hit is a return.
    pub called: SmallVec<[(u32, bool); 1]>,
}

/// A stretch of generated code, up to the next entry's address, and the original address that a thread there
/// would be at if nothing were patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Original {
    /// First address of the stretch.
    pub copy: RemoteAddr,
    /// The instruction of which a copy starts there, or the one that the jump back leads to; 0 if there is
    /// neither.
    pub of: RemoteAddr,
}

/// A request that got no patch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The request's probe.
    pub probe: u32,
    /// Index of the request.
    pub request: u32,
    /// The rule that refused it, with address and bytes.
    pub why: Refusal,
}

/// Number of sites by tactic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Sites (not islands) for each of [`Tactic::ALL`].
    pub sites: [u32; 5],
    /// Refused requests.
    pub refused: u32,
    /// Patches that cross a cache line.
    pub crossing: u32,
    /// Patches with an interior boundary.
    pub guarded: u32,
}

impl Stats {
    /// Number of sites with this tactic.
    #[must_use]
    pub const fn of(&self, tactic: Tactic) -> u32 {
        self.sites[tactic as usize]
    }
}

/// The plan for one module of one process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModulePlan {
    /// Displacement (rel32) of every patch by [`Tactic::Jump`], and of every island.
    pub k: i32,
    /// Where the near part is to be mapped, shared and writable, from offset 0 of the segment on.
    pub data: Region,
    /// Where the code region is to be mapped, readable and executable. It is sparse: only chunks are written.
    pub code: Region,
    /// Small separate code regions for punned jumps, and for arm64's islands; page-aligned, disjoint, sorted.
    pub pun_regions: Vec<Region>,
    /// First byte of the code region that this plan does not use.
    pub free: RemoteAddr,
    /// At least 4096 free bytes at the end of `code`, for code that the batch needs itself (the trap
    /// handler).
    pub spare: Region,
    /// Chunks of code, sorted by address, disjoint.
    pub chunks: Vec<Chunk>,
    /// The chunks' bytes.
    pub bytes: Vec<u8>,
    /// More of them: their offsets go on behind those of `bytes`. They are not copied, since they may be megabytes.
    pub further: Vec<Vec<u8>>,
    /// Patches, sorted by address, disjoint.
    pub patches: Vec<Patch>,
    /// Guards, sorted by address, without duplicates. The start of a patch (for int3) is not among them.
    pub guards: Vec<Guard>,
    /// Instructions of stubs that may fault, and where a thread goes on after such a fault; sorted by
    /// address.
    pub fixups: Vec<Guard>,
    /// Copies of which faults are delivered, sorted by address; only with
    /// [`faults_delivered`](crate::ProcessTraits::faults_delivered).
    pub deliveries: Vec<Delivery>,
    /// Instructions at which consumers are called, sorted by address.
    pub calls: Vec<Call>,
    /// For the patches that call consumers: which code is a copy of which instruction, sorted by the copies'
    /// addresses.
    pub originals: Vec<Original>,
    /// Kernel uprobes to place.
    pub kernel: Vec<KernelSite>,
    /// Pairs of requests that share a window: the one that the patch names, and another one that it serves as
    /// well.
    pub shares: Vec<(u32, u32)>,
    /// Requests with an exit that jumps to another function, or runs on into one.
    pub tails: Vec<u32>,
    /// Requests for exits that got a return trampoline instead, and why: the exits could not be found or
    /// patched, or one of them jumps to another function.
    pub armed: Vec<Refused>,
    /// What was refused, in the order of the requests.
    pub refused: Vec<Refused>,
    /// Sites by tactic.
    pub stats: Stats,
}

impl ModulePlan {
    /// Appends a part that was laid out separately: code, patches, guards.
    pub(crate) fn join(&mut self, other: Self) {
        if self.chunks.is_empty() && self.patches.is_empty() {
            // Moved, not copied: it may be a megabyte of code.
            let Self {
                chunks, bytes, further, patches, guards, fixups, deliveries, calls, originals, ..
            } = other;
            (self.chunks, self.bytes, self.patches, self.guards) = (chunks, bytes, patches, guards);
            self.further = further;
            (self.fixups, self.deliveries) = (fixups, deliveries);
            (self.calls, self.originals) = (calls, originals);
            return;
        }
        let shift = self.add_bytes(other.bytes);
        self.further.extend(other.further);
        self.chunks.extend(other.chunks.into_iter().map(|c| Chunk { off: c.off + shift, ..c }));
        self.patches.extend(other.patches);
        self.guards.extend(other.guards);
        self.fixups.extend(other.fixups);
        self.deliveries.extend(other.deliveries);
        self.calls.extend(other.calls);
        self.originals.extend(other.originals);
    }
    /// Adds bytes of chunks. Returns their offset.
    pub(crate) fn add_bytes(&mut self, bytes: Vec<u8>) -> u32 {
        let all = self.bytes.len() + self.further.iter().map(Vec::len).sum::<usize>();
        self.further.push(bytes);
        all as u32
    }
    /// A chunk's bytes.
    #[must_use]
    pub fn chunk_bytes(&self, chunk: &Chunk) -> &[u8] {
        let (mut off, len) = (chunk.off as usize, chunk.len as usize);
        for bytes in core::iter::once(&self.bytes).chain(&self.further) {
            if off < bytes.len() {
                return bytes.get(off..off + len).unwrap_or_default();
            }
            off -= bytes.len();
        }
        &[]
    }
    /// Where a thread goes on that trapped at `at`, the address of the trapping byte.
    #[must_use]
    pub fn resume(&self, at: RemoteAddr) -> Option<RemoteAddr> {
        let found = self.guards.binary_search_by_key(&at, |g| g.at).ok()?;
        Some(self.guards[found].resume)
    }
}
