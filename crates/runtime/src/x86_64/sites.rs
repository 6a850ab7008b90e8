//! The traps of an engine: which of ours stands where, and whose hit it is.
//!
//! In: for the writer, an address with what was displaced there; for the handler, the address of a trap. Out: an [`Answer`], with
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
//! | S5 | the registry: whose site it is. None: it is being taken out, the instruction is done |
//! | S6 | consumers (`dispatch`) |
//! | S7 | leave |
//!
//! # The table
//!
//! What is in it stays: a thread that finds no line has nothing that would keep it. An entry that is taken out is used again for the same
//! instruction at the same address, and a table that is too small is replaced and kept, so memory is bounded by twice the
//! traps that there ever were at a time, and one entry for each other instruction that was at their addresses.
//!
//! - *taken out between S1 and S7*: the entry holds; the copy it leads to is kept as code is (`copies`, C4).
//! - *put in between S1 and the end of the look*: seen or not. The writer writes the trap behind it, so a trap that was executed
//!   finds it.
//! - *the table is replaced during S1*: the old one has what it had before its replacement; a trap put in later was not executed before.

use alloc::boxed::Box;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use trapline_insn::x86_64::Regs;
use trapline_record::RemoteAddr;

use super::trap::{Answer, Step, Traps};
use crate::dispatch;
use crate::engine::Engine;
use crate::epoch::{Seal, ThreadPointer};
use crate::regions::Regions;
use crate::registry::{Registry, Site};

/// What a trap is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The probe's own site.
    Entry,
    /// A place where the probed function returns, with the stack pointer as at its entry.
    Exit,
}

/// What stands under a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// How the displaced instruction is done.
    pub step: Step,
    /// Where it is, by file and offset.
    pub site: Site,
    /// Whose it is: the same, but for exits.
    pub probe: Site,
    /// The number of that probe, for hits without a line.
    pub number: u32,
    /// Entry or exit.
    pub role: Role,
}

/// `addr` 0 is free; it is set once. `placed` null is taken out.
#[derive(Debug, Default)]
struct Place {
    addr: AtomicU64,
    placed: AtomicPtr<Placed>,
}

#[derive(Debug)]
struct Places {
    places: Box<[Place]>,
    used: AtomicU64,
}

impl Places {
    /// Half of them are free, so walks are short.
    fn leaked(room: usize) -> &'static Self {
        let places = (0..room.max(32).next_power_of_two() * 2).map(|_| Place::default()).collect();
        Box::leak(Box::new(Self { places, used: AtomicU64::new(0) }))
    }
    /// The place of an address, or the free one where it would be.
    #[inline]
    fn place(&self, addr: u64) -> Option<&Place> {
        let mask = self.places.len().wrapping_sub(1);
        let first = (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..self.places.len()).map_while(|step| self.places.get(first.wrapping_add(step) & mask)).find(
            |place| {
                let found = place.addr.load(Acquire);
                found == addr || found == 0
            },
        )
    }
    fn set(&self, addr: u64, placed: *mut Placed) {
        let Some(place) = self.place(addr) else { return };
        place.placed.store(placed, Release);
        if place.addr.load(Relaxed) == 0 {
            place.addr.store(addr, Release);
            self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        }
    }
}

/// All traps of an engine.
#[derive(Debug)]
pub struct Sites {
    engine: &'static Engine,
    regions: &'static Regions,
    registry: &'static Registry,
    table: AtomicPtr<Places>,
}

impl Sites {
    /// None yet, with room for some.
    #[must_use]
    pub fn new(
        engine: &'static Engine,
        regions: &'static Regions,
        registry: &'static Registry,
        room: usize,
    ) -> Self {
        let table = AtomicPtr::new(ptr::from_ref(Places::leaked(room)).cast_mut());
        Self { engine, regions, registry, table }
    }
    fn table(&self) -> &'static Places {
        // SAFETY: never null; tables are leaked. Acquire pairs with the release that published it.
        unsafe { &*self.table.load(Acquire) }
    }
    /// Tells of a trap that is about to be written at `addr`. For the writer.
    pub fn put(&self, addr: u64, placed: Placed) {
        let mut table = self.table();
        if (table.used.load(Relaxed) + 1) * 2 > table.places.len() as u64 {
            let larger = Places::leaked(table.places.len());
            for place in &table.places {
                let (addr, placed) = (place.addr.load(Relaxed), place.placed.load(Relaxed));
                if addr != 0 {
                    larger.set(addr, placed);
                }
            }
            self.table.store(ptr::from_ref(larger).cast_mut(), Release);
            table = larger;
        }
        let before = self.last(addr).filter(|before| **before == placed);
        let new =
            before.map_or_else(|| Box::into_raw(Box::new(placed)), |same| ptr::from_ref(same).cast_mut());
        table.set(addr, new.map_addr(|at| at & !TAKEN_OUT));
    }
    /// The trap at `addr` was taken out: its byte is the original's again. For the writer.
    pub fn take_out(&self, addr: u64) {
        if let Some(place) = self.table().place(addr) {
            place.placed.store(place.placed.load(Relaxed).map_addr(|at| at | TAKEN_OUT), Release);
        }
    }
    /// What is, or was last, at an address.
    fn last(&self, addr: u64) -> Option<&'static Placed> {
        let placed = self.table().place(addr)?.placed.load(Acquire);
        // SAFETY: null, or leaked by `put`, marked or not.
        unsafe { placed.map_addr(|at| at & !TAKEN_OUT).as_ref() }
    }
    /// S1.
    #[inline]
    fn find(&self, addr: u64) -> Option<&'static Placed> {
        let place = self.table().place(addr)?;
        let placed = place.placed.load(Acquire);
        if placed.addr() & TAKEN_OUT != 0 {
            return None;
        }
        // SAFETY: null, or leaked by `put`. Acquire: what it holds is visible.
        unsafe { placed.as_ref() }
    }
}

/// Marks what was taken out, in a pointer that is aligned.
const TAKEN_OUT: usize = 1;

impl Traps for Sites {
    unsafe fn hit(&self, addr: u64, regs: &mut Regs) -> Answer {
        let Some(placed) = self.find(addr) else { return Answer::Nobody };
        let Some((row, line)) = self.engine.lines().of(ThreadPointer::own()) else {
            self.engine.counts().unplaced(placed.number);
            return Answer::Hit(placed.step);
        };
        let seal = Seal::new();
        let inside = line.enter(&seal);
        let region = match self.regions.find(&inside, RemoteAddr(addr)) {
            Ok(region) => region.and_then(|found| found.site()),
            Err(_) => return Answer::Again,
        };
        if region != Some(placed.site) {
            return Answer::Nobody;
        }
        if let Some(probe) = self.registry.find(&inside, placed.probe) {
            // SAFETY: found inside, so it is alive; `regs` is the caller's own.
            unsafe {
                match placed.role {
                    Role::Entry => dispatch::entered(&inside, row, probe, regs),
                    Role::Exit => dispatch::exited(&inside, row, probe, regs),
                };
            }
        }
        Answer::Hit(placed.step)
    }
}
