//! The traps of an engine: which of ours stands where, and whose hit it is.
//!
//! In: for the writer, an address with what was displaced there and whose it is; for the handler, the address of a trap. Out: an [`Answer`], with
//! consumers called. Invariants: RUN-1 to RUN-3; TRAP-3 a hit is ours only if this table has the address *and* the region there is still of the
//! file and offset that was patched: a mapping or unmapping that nobody told us of makes no wrong hit.
//! Does not: write traps, or know how long code lives (`patch`).
//!
//! # A trap
//!
//! | step | what |
//! |---|---|
//! | S1 | the table: none, so nobody's |
//! | S2 | the thread's line, enter (`epoch`); without a line: missed, the instruction is done |
//! | S3 | the region at the address, validated by its own sequence: changing, so again |
//! | S4 | of another file or offset: nobody's |
//! | S5 | consumers of the probes that the entry names (`dispatch`): nobody, once their lists are empty |
//! | S6 | leave |
//! | S7 | unless a consumer moved the instruction pointer: what nearly every function begins with or ends in is done in the registers themselves ([`Quick`]), as was decided when the entry was made. What is another instruction, or faults, is the handler's to do |
//!
//! An entry names its probes, and the region where its site was when it was put there, as one word: slot and generation (`Regions::mark`, `Marks`). If the slot
//! has that generation still and is alive, nothing about the region has changed, so S3 and S4 are one load. Otherwise the whole way is gone, from the
//! address by granule and page, until the writer has looked again ([`Sites::refresh`]).
//!
//! # The table
//!
//! What is in it stays: a thread that finds no line has nothing that would keep it. An entry that is taken out is used again for the same
//! instruction at the same address.
//!
//! - *taken out between S1 and S6*: the entry holds; the copy it leads to is kept as code is.
//! - *the region changes between the load of `region` and that of the slot's sequence*: another generation, or dead: the whole way.
//! - *`region` is stored anew meanwhile*: both words were true of the same site when they were stored; each is compared with its own slot's sequence.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use trapline_record::RemoteAddr;

use super::places::Places;
use super::windows::Windows;
use super::{Answer, Step, Traps};
use crate::dispatch::{self, GoOn};
use crate::engine::Engine;
use crate::epoch::{Inside, Seal, ThreadPointer};
use crate::native::Regs;
use crate::native::access::{Quick, is_push, push};
use crate::probe::Probe;
use crate::regions::{Map, Marks, Regions, Retry};
use crate::registry::Site;

/// What a trap is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The probe's own site.
    Entry,
    /// A place where the probed function returns, with the stack pointer as at its entry.
    Exit,
}

/// Who is called at a trap.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// Whose consumers. It outlives every trap that names it.
    pub probe: &'static Probe,
    /// What for.
    pub role: Role,
}

impl PartialEq for Called {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.probe, other.probe) && self.role == other.role
    }
}

/// What stands under a trap.
#[derive(Clone, PartialEq, Debug)]
pub struct Placed {
    /// How the displaced instruction is done.
    pub step: Step,
    /// Where it is, by file and offset.
    pub site: Site,
    /// Who is called, in this order, until one moves the instruction pointer.
    pub called: Box<[Called]>,
}

/// What the table leads to. What a look needs lies on the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    /// Where the site was last known to be (`Regions::mark`), or 0.
    region: AtomicU64,
    /// Who is called first.
    first: Option<&'static Probe>,
    /// S7: what is done there, most often first.
    pushes: bool,
    quick: Option<Quick>,
    placed: Placed,
}
#[cfg(target_arch = "aarch64")]
const _: () = assert!(size_of::<Entry>() == 64);

/// All traps of an engine.
#[derive(Debug)]
pub struct Sites {
    engine: &'static Engine,
    regions: &'static Regions,
    /// Theirs: one load less at each hit.
    marks: Marks,
    table: Places,
    windows: Windows,
}

/// Marks what was taken out, in the address of an entry.
const TAKEN_OUT: u64 = 1;

impl Sites {
    /// None yet, with room for some.
    #[must_use]
    pub fn new(engine: &'static Engine, regions: &'static Regions, room: usize) -> Self {
        let (marks, table) = (regions.marks(), Places::new(room));
        Self { engine, regions, marks, table, windows: Windows::default() }
    }
    /// Patched windows of several instructions, whose places inside trap as well.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }
    /// Tells of a trap that is about to be written at `addr`. For the writer; `map` is that of the regions.
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
    /// The trap at `addr` was taken out: its byte is the original's again. For the writer.
    pub fn take_out(&self, addr: u64) {
        let entry = self.table.get(addr);
        if entry != 0 {
            self.table.set(addr, entry | TAKEN_OUT);
        }
    }
    /// Finds anew where sites are whose regions have changed. For the writer, after changes; a hit until then takes the longer way.
    pub fn refresh(&self, map: &Map) {
        self.table.each(|addr, _| {
            if let Some(entry) = self.last(addr).filter(|entry| !self.marks.has(entry.region.load(Relaxed))) {
                entry.region.store(self.mark(addr, entry.placed.site, map), Relaxed);
            }
        });
    }
    fn mark(&self, addr: u64, site: Site, map: &Map) -> u64 {
        let found = map.find(RemoteAddr(addr)).filter(|found| found.place() == Some(site));
        found.map_or(0, |found| self.regions.mark(&found))
    }
    /// What is, or was last, at an address.
    fn last(&self, addr: u64) -> Option<&'static Entry> {
        entry(self.table.get(addr) & !TAKEN_OUT)
    }
    /// S1.
    #[inline]
    fn find(&self, addr: u64) -> Option<&'static Entry> {
        let word = self.table.get(addr);
        if word & TAKEN_OUT == 0 { entry(word) } else { None }
    }
    /// S3 and S4. The entry's own region first: one word says whether it is still that.
    #[inline]
    fn is_here(&self, inside: &Inside<'_>, addr: u64, entry: &Entry) -> Result<bool, Retry> {
        if self.marks.has(entry.region.load(Relaxed)) {
            return Ok(true);
        }
        self.is_here_now(inside, addr, entry)
    }
    /// The whole way. Apart, so that the usual one keeps what it has in registers.
    #[cold]
    #[inline(never)]
    fn is_here_now(&self, inside: &Inside<'_>, addr: u64, entry: &Entry) -> Result<bool, Retry> {
        let found = self.regions.find(inside, RemoteAddr(addr))?;
        Ok(found.and_then(|found| found.place()) == Some(entry.placed.site))
    }
    /// Who is called first for a trap at `addr`: the look of a hit, by itself.
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
    // SAFETY: null, or leaked by `put`. The table's acquire makes what it holds visible.
    unsafe { (word as *const Entry).as_ref() }
}

/// A thread without a line.
fn unplaced(called: &[Called]) {
    for called in called.iter().filter(|called| called.role == Role::Entry) {
        called.probe.engine().counts().unplaced(called.probe.number());
    }
}

/// S5. Where the thread goes on.
///
/// # Safety
/// `regs` is the state of the calling thread at the site of these probes, and the caller's alone.
#[inline]
unsafe fn call_inside(inside: &Inside<'_>, row: usize, all: &[Called], regs: &mut Regs) -> GoOn {
    let sp = regs.sp();
    for called in all {
        // SAFETY: the caller's.
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

/// S2, S5 and S6 where a jump led here: what was mapped at the site when it was patched is so still, or nobody could have come.
///
/// # Safety
/// As [`call_inside`]; all probes are of one engine, and there for good.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(all: &[Called], regs: &mut Regs) -> GoOn {
    let Some(first) = all.first() else { return GoOn::Original };
    let Some((row, line)) = first.probe.engine().lines().of(ThreadPointer::own()) else {
        unplaced(all);
        return GoOn::Original;
    };
    let seal = Seal::new();
    // SAFETY: the caller's.
    unsafe { call_inside(&line.enter_from(&seal, regs.sp()), row, all, regs) }
}

impl Traps for Sites {
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer<'_> {
        let Some(entry) = self.find(addr) else { return Answer::Nobody };
        let placed = &entry.placed;
        let Some((row, line)) = self.engine.lines().of(ThreadPointer::own()) else {
            unplaced(&placed.called);
            return Answer::Hit(&placed.step);
        };
        let seal = Seal::new();
        let inside = line.enter_from(&seal, regs.sp());
        match self.is_here(&inside, addr, entry) {
            Ok(true) => {}
            Ok(false) => return Answer::Nobody,
            Err(Retry) => return Answer::Again,
        }
        // SAFETY: probes of the table are for good; `regs` is the caller's own.
        let goes = unsafe { call_inside(&inside, row, &placed.called, regs) };
        drop(inside);
        // SAFETY: these are the registers of a thread that trapped at that instruction, in the signal's frame.
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
