//! The traps of an engine: which traps of ours exist, and which probes they belong to.
//!
//! In: for the writer, an address with the instruction displaced there and the probes; for the handler, the
//! address of a trap. Out: an [`Answer`], with consumers called. Invariants: RUN-1 to RUN-3. TRAP-3 a hit is
//! ours only if the table of traps has the address *and* the region there is still of the file and offset
//! that was patched. So a mapping or unmapping that was not reported to us causes no wrong hit.
//! Does not: write traps, or know how long code lives (`patch`).
//!
//! # A trap
//!
//! | step | what |
//! |---|---|
//! | S1 | the table: if it has no entry, the trap is not ours |
//! | S2 | the thread's line, enter (`epoch`); without a line: missed, the instruction is carried out |
//! | S3 | the region at the address, validated by its own sequence: changing, so again |
//! | S4 | of another file or offset: not ours |
//! | S5 | call the consumers of the probes that the entry names (`dispatch`); none, once their lists are empty |
//! | S6 | leave |
//! | S7 | unless a consumer moved the instruction pointer: if the instruction is one that nearly every function |
//! | | begins with or ends in, carry it out in the registers themselves ([`Quick`]). |
//! | | That was decided when the entry was made. Other instructions, and those that fault, are left to the handler |
//!
//! An entry names its probes. It also names the region where its site was when it was added, as one word:
//! mapping entry and generation (`Regions::mark`, `Marks`). If the mapping entry still has that generation
//! and is alive, nothing about the region has changed, so S3 and S4 are one load. Otherwise the full lookup
//! is made, from the address by granule and page, until the writer has looked again ([`Sites::refresh`]).
//!
//! # The table
//!
//! Entries are never freed, since a thread without a line has nothing that would keep them. An entry that is
//! removed is used again for the same instruction at the same address.
//!
//! - *removed between S1 and S6*: the entry stays valid; the copy that it leads to is kept as code is.
//! - *the region changes between the load of `region` and that of the mapping entry's sequence*: another
//!   generation, or dead, so the full lookup is made.
//! - *`region` is stored again meanwhile*: both words were true of the same site when they were stored, and
//!   each is compared with its own mapping entry's sequence.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_record::RemoteAddr;

use super::trap_table::TrapTable;
use super::traps::{Answer, Step, Traps};
use super::windows::Windows;
use crate::dispatch::{self, GoOn};
use crate::engine::Engine;
use crate::epoch::{Inside, Seal, ThreadPointer};
use crate::file_site::FileSite;
use crate::native::Regs;
use crate::native::access::{ENTRY_LEN, Quick, is_push, push};
use crate::probe::Probe;
use crate::regions::{Map, Marks, Regions, Retry};

/// The kind of place that a trap is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The probe's own site.
    Entry,
    /// A place where the probed function returns, with the stack pointer as at its entry.
    Exit,
}

/// A probe; its consumers are called at a trap.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// The probe. It outlives every trap that names it.
    pub probe: &'static Probe,
    /// Entry or exit.
    pub role: Role,
}

impl PartialEq for Called {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.probe, other.probe) && self.role == other.role
    }
}

/// What is known of one trap.
#[derive(Clone, PartialEq, Debug)]
pub struct Placed {
    /// How the displaced instruction is carried out.
    pub step: Step,
    /// Its place, by file and offset.
    pub site: FileSite,
    /// The probes, in the order in which their consumers are called, until one moves the instruction pointer.
    pub called: Box<[Called]>,
}

/// An entry of the table. The fields that a lookup needs lie in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    /// The region where the site was last known to be (`Regions::mark`), or 0.
    region: AtomicU64,
    /// The probe that is called first.
    first: Option<&'static Probe>,
    /// S7: whether the instruction is a push (`push`), and whether it is done by [`Quick`]. The most frequent
    /// case comes first.
    pushes: bool,
    quick: Option<Quick>,
    placed: Placed,
}
const _: () = assert!(size_of::<Entry>() == ENTRY_LEN);

/// All traps of an engine.
#[derive(Debug)]
pub struct Sites {
    engine: &'static Engine,
    regions: &'static Regions,
    /// The regions' marks, kept here to save one load at each hit.
    marks: Marks,
    table: TrapTable,
    windows: Windows,
}

/// Bit in the word of a removed entry: the entry's address with this bit is in the table.
const TAKEN_OUT: u64 = 1;

impl Sites {
    /// No traps yet, with room for so many.
    #[must_use]
    pub fn new(engine: &'static Engine, regions: &'static Regions, room: usize) -> Self {
        let (marks, table) = (regions.marks(), TrapTable::new(room));
        Self { engine, regions, marks, table, windows: Windows::default() }
    }
    /// Patched windows of several instructions: their interior boundaries trap as well.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }
    /// Adds a trap that is about to be written at `addr`. For the writer; `map` is that of the regions.
    pub fn put(&self, addr: u64, placed: Placed, map: &Map) {
        let region = self.mark(addr, placed.site, map);
        let entry = match self.last(addr).filter(|before| before.placed == placed) {
            Some(before) => {
                before.region.store(region, Relaxed);
                core::ptr::from_ref(before)
            }
            None => {
                let first = placed.called.first().map(|called| called.probe);
                let (pushes, quick) = (is_push(&placed.step), Quick::of(&placed.step, addr));
                Box::into_raw(Box::new(Entry { region: region.into(), first, pushes, quick, placed }))
            }
        };
        self.table.set(addr, entry as u64);
        self.windows.forget(addr);
    }
    /// Removes the trap at `addr`, where the original byte is back. For the writer.
    pub fn take_out(&self, addr: u64) {
        let entry = self.table.get(addr);
        if entry != 0 {
            self.table.set(addr, entry | TAKEN_OUT);
        }
    }
    /// Looks up again the sites with regions that have changed. For the writer, after changes; until then
    /// their hits take the full lookup.
    pub fn refresh(&self, map: &Map) {
        self.table.each(|addr, _| {
            if let Some(entry) = self.last(addr).filter(|entry| !self.marks.has(entry.region.load(Relaxed))) {
                entry.region.store(self.mark(addr, entry.placed.site, map), Relaxed);
            }
        });
    }
    fn mark(&self, addr: u64, site: FileSite, map: &Map) -> u64 {
        let found = map.find(RemoteAddr(addr)).filter(|found| found.place() == Some(site));
        found.map_or(0, |found| self.regions.mark(&found))
    }
    /// The entry that is, or was last, at an address.
    fn last(&self, addr: u64) -> Option<&'static Entry> {
        entry(self.table.get(addr) & !TAKEN_OUT)
    }
    /// S1.
    #[inline]
    fn find(&self, addr: u64) -> Option<&'static Entry> {
        let word = self.table.get(addr);
        if word & TAKEN_OUT == 0 { entry(word) } else { None }
    }
    /// S3 and S4. First the entry's own region: one word says whether it is unchanged.
    #[inline]
    fn is_here(&self, inside: &Inside<'_>, addr: u64, entry: &Entry) -> Result<bool, Retry> {
        if self.marks.has(entry.region.load(Relaxed)) {
            return Ok(true);
        }
        self.is_here_now(inside, addr, entry)
    }
    /// The full lookup. Separate, so that the fast path keeps its values in registers.
    #[cold]
    #[inline(never)]
    fn is_here_now(&self, inside: &Inside<'_>, addr: u64, entry: &Entry) -> Result<bool, Retry> {
        let found = self.regions.find(inside, RemoteAddr(addr))?;
        Ok(found.and_then(|found| found.place()) == Some(entry.placed.site))
    }
    /// The probe that is called first for a trap at `addr`: the lookup of a hit, without the hit.
    ///
    /// # Errors
    /// The region there was changing.
    #[inline]
    pub fn probe_at(&self, inside: &Inside<'_>, addr: u64) -> Result<Option<&'static Probe>, Retry> {
        let Some(entry) = self.find(addr) else { return Ok(None) };
        let is_here = self.is_here(inside, addr, entry)?;
        Ok(entry.first.filter(|_| is_here))
    }
}

#[inline]
fn entry(word: u64) -> Option<&'static Entry> {
    // SAFETY: null, or leaked by `put`. The table's acquire makes its content visible.
    unsafe { (word as *const Entry).as_ref() }
}

/// Counts the hit as missed, for a thread without a line.
pub(crate) fn unplaced(called: &[Called]) {
    for called in called.iter().filter(|called| called.role == Role::Entry) {
        called.probe.engine().counts().unplaced(called.probe.number());
    }
}

/// S5. Returns where the thread goes on.
///
/// # Safety
/// `regs` is the state of the calling thread at the site of these probes, and only the caller uses it.
#[inline]
pub(crate) unsafe fn call_inside(inside: &Inside<'_>, row: usize, all: &[Called], regs: &mut Regs) -> GoOn {
    let sp = regs.sp();
    for called in all {
        // SAFETY: the caller promises it.
        let goes = unsafe {
            match called.role {
                Role::Entry => dispatch::entered(inside, row, called.probe, regs),
                Role::Exit => dispatch::exited(inside, row, called.probe, regs),
            }
        };
        if goes == GoOn::Elsewhere {
            return goes;
        }
    }
    if regs.sp() == sp { GoOn::Original } else { GoOn::OtherStack }
}

impl Traps for Sites {
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer<'_> {
        let Some(entry) = self.find(addr) else { return Answer::NotOurs };
        let placed = &entry.placed;
        let Some((row, line)) = self.engine.lines().of(ThreadPointer::own()) else {
            unplaced(&placed.called);
            return Answer::Hit(&placed.step);
        };
        let seal = Seal::new();
        let inside = line.enter_from(&seal, regs.sp());
        match self.is_here(&inside, addr, entry) {
            Ok(true) => {}
            Ok(false) => return Answer::NotOurs,
            Err(Retry) => return Answer::Again,
        }
        // SAFETY: probes of the table are never freed; only the caller uses `regs`.
        let goes = unsafe { call_inside(&inside, row, &placed.called, regs) };
        drop(inside);
        // SAFETY: these are the registers, in the signal's frame, of a thread that trapped at that
        // instruction.
        if entry.pushes && unsafe { push(regs, addr) } {
            return Answer::Done;
        }
        match entry.quick {
            Some(quick) if goes != GoOn::Elsewhere => {
                quick.done(regs);
                Answer::Done
            }
            _ => Answer::Hit(&placed.step),
        }
    }
    fn guard(&self, addr: u64) -> Option<u64> {
        self.windows.guard(addr)
    }
    fn turns(&self) -> u64 {
        self.windows.turns()
    }
    fn is_generated(&self, pc: u64) -> bool {
        self.windows.has(pc)
    }
    fn original(&self, pc: u64) -> Option<u64> {
        self.windows.original(pc)
    }
}
