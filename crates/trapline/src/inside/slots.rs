//! Replaced return addresses of our own process: which sites have them, and who is told.
//!
//! In: what consumers ask for ([`Returns`]). Out: slots, made when the first consumer wants one; the unwinders of this process told of them, those
//! that are mapped later too. Invariants: UNW-3 no call is armed while an unwinder is known here that was not told.
//! Does not: take slots (`trapline_runtime::slots`), make their code (`landing` of the twins), decide whether a function may be armed (`plan`).
//!
//! Unwinders are told by an ordinary call of `__register_frame`, by the thread that registers or looks. It may allocate, and takes locks of its own: nobody
//! holds these and waits for the engine, as nobody registers in a handler. What was told stays true, since slots stay mapped, so nobody is told that they
//! are no more. A forked child has copies of slots and unwinders. Once told, libgcc before 13 takes a lock whenever it unwinds, which no fork waits for: a
//! child that is forked while another thread unwinds must not unwind itself (POSIX allows it no more than calls that are safe in signal handlers).
//!
//! An unwinder that is mapped later is found by the look that the loader waits for. It cannot be called there: the loader has not relocated it
//! yet. So the slots are *closed* (no more calls are armed; they count as missed), and the thread that looks asks the maps every millisecond until the
//! loader has made its pages unwritable, which is when it is told and the slots are opened. If it unwinds before that (its own constructors, or in the
//! first millisecond) through a call that was armed before, it finds no information there. No libc of ours loads libgcc twice; what does is a
//! plugin with a copy of its own.
//!
//! One that is found later and cannot be told (a library with one of its own, statically linked) closes the slots: no more calls are armed, and they are
//! counted as missed, until it is gone. Those in flight stay; an exception that it leads through one of these ends the process, as
//! one through any frame without unwind information does.
#![allow(
    unsafe_code,
    reason = "libgcc's functions are called by address; the engine is promised what they were told"
)]

use std::collections::HashSet;
use std::ffi::c_void;

use trapline_record::{RemoteAddr, slots};
use trapline_runtime::engine::Engine;
use trapline_runtime::slots::Table;

use super::arch::landing;
use super::memory::{self, engine};
use super::place::Wanted;
use super::state::{Key, State};
use super::{Consumer, Error, Request};
use crate::Returns;
use crate::unwinders::unwinding;

/// Calls whose return address can be replaced at a time, in all threads.
pub const SLOTS: u32 = slots::USUAL;

/// Where a call really returns to whose stack word holds `address`, if that is a slot's ([`Consumer::returns_by`]): for unwinders that find no unwind
/// information by themselves (framehop, frame pointers). To be asked for calls that go on, by their own thread or while that stands. Takes no lock.
#[must_use]
pub fn returns_to(address: u64) -> Option<u64> {
    memory::made()?.slots()?.real(address)
}

/// Who was told.
#[derive(Debug, Default)]
pub(super) struct Unwinders {
    unwind: Option<RemoteAddr>,
    told: HashSet<RemoteAddr>,
    /// One is mapped that cannot be told yet.
    pub(super) loading: bool,
}

/// A site is about to be written.
pub(super) fn accepted(wanted: &Wanted) {
    if wanted.part.armed {
        // SAFETY: the planner has accepted the function (`Role::CallArmed`), and all unwinders were told before it was wanted (UNW-3).
        unsafe { wanted.probe.set_arms(true) };
    }
}

impl State {
    /// Sees to it that sites whose consumers ask for slots can have them. Returns those that get them now.
    pub(super) fn armed_by(&mut self, spots: &[u32], requests: &[Request]) -> Result<Vec<u32>, Error> {
        let mut armed = Vec::new();
        for (&spot, request) in spots.iter().zip(requests) {
            let wanted = request.consumer.form() == Some(Returns::Stack);
            if !wanted || self.spots[spot as usize].armed {
                continue;
            }
            self.lend().map_err(|why| Error::NoSlots {
                path: request.file.clone(),
                offset: request.offset,
                why,
            })?;
            armed.push(spot);
        }
        armed.iter().for_each(|&spot| self.spots[spot as usize].armed = true);
        Ok(armed)
    }
    /// What form a site has.
    pub(super) fn form(&self, (spot, _): Key) -> Option<Returns> {
        let one = &self.spots[spot as usize];
        let waits = one.consumers.iter().any(|(_, consumer)| consumer.has_return());
        waits.then_some(if one.armed { Returns::Stack } else { Returns::Exits })
    }
    /// Gives a site slots whose exits cannot be had, if somebody there leaves the choice to us.
    pub(super) fn arm_instead(&mut self, spot: u32) -> bool {
        let one = &self.spots[spot as usize];
        let auto = |consumer: &Consumer| consumer.form() == Some(Returns::Auto);
        let wanted = !one.armed && one.consumers.iter().any(|(_, consumer)| auto(consumer));
        let armed = wanted && self.lend().is_ok();
        self.spots[spot as usize].armed |= armed;
        armed
    }
    /// Sites go back to exits.
    pub(super) fn disarm(&mut self, spots: &[u32]) {
        for &spot in spots {
            let one = &mut self.spots[spot as usize];
            one.armed = false;
            // SAFETY: it arms no more.
            unsafe { one.probe.set_arms(false) };
        }
    }
    /// Sites without anybody who waits arm nothing.
    pub(super) fn disarm_idle(&mut self, spots: impl Iterator<Item = u32>) {
        let waits = |spot: u32| self.spots[spot as usize].consumers.iter().any(|(_, one)| one.has_return());
        let idle: Vec<u32> = spots.filter(|&spot| !waits(spot)).collect();
        self.disarm(&idle);
    }
    /// Sites arm whose patch was planned for that.
    pub(super) fn arm(&self, spots: &[u32]) {
        for &spot in spots {
            let one = &self.spots[spot as usize];
            let mut parts = one.groups.iter().flat_map(|&group| &self.groups[group].parts);
            if one.armed && parts.any(|part| part.spot == spot && part.armed) {
                // SAFETY: the planner has accepted the function (`Role::CallArmed`), and all unwinders were told (UNW-3).
                unsafe { one.probe.set_arms(true) };
            }
        }
    }
    /// Slots, and everybody told, once.
    fn lend(&mut self) -> Result<(), String> {
        let engine: &'static Engine = engine().ok_or_else(|| Error::NoEngine.to_string())?;
        if engine.slots().is_none() {
            let table = self.make()?;
            self.tell_all()?;
            engine.lend(table);
        }
        self.tell_of_slots()
    }
    /// Memory for slots that nobody uses yet.
    fn make(&mut self) -> Result<&'static Table, String> {
        landing::possible()?;
        let (hints, quick) = memory::hints().ok_or_else(|| Error::NoEngine.to_string())?;
        let mut table = None;
        let own = self.own().map_err(|error| error.to_string())?;
        let maps = own.process().maps().map_err(|error| error.to_string())?;
        let made = landing::make(own, |slots| {
            // SAFETY: `Own::slots` maps it for good right behind this; probes stay for good (INS-3).
            let made = unsafe { Table::new(*slots, hints, quick) }.map(Box::new).map(Box::leak);
            table = made.map(|made| &*made);
            table
        })?;
        self.unwinders.unwind = Some(made.unwind);
        let vdso = maps.iter().find(|map| map.path == "[vdso]");
        table.zip(vdso).into_iter().for_each(|(table, vdso)| table.spare(vdso.start.0..vdso.end.0));
        table.ok_or_else(|| "more slots than hints can name".into())
    }
    /// Tells all unwinders that are mapped now and were not told yet; if one cannot be, none that is told is undone.
    fn tell_all(&mut self) -> Result<(), String> {
        let Some(unwind) = self.unwinders.unwind else { return Ok(()) };
        let mut why = String::new();
        let found = self.looking(|process, files| {
            unwinding(process, files).map_err(|error| {
                why = error;
                Error::Empty
            })
        });
        let found = found.map_err(|error| if why.is_empty() { error.to_string() } else { why })?;
        self.unwinders.loading = found.loading.is_some();
        if let Some(path) = found.loading {
            return Err(format!("{path} is just being loaded, and has an unwinder"));
        }
        if found.go {
            return Err(
                "Go moves its stacks and must know every return address; its exits can be patched".into()
            );
        }
        for unwinder in found.unwinders {
            if self.unwinders.told.insert(unwinder.register) {
                // SAFETY: the address of that function in a file that is mapped; what it is given is unwind information, ended as it expects, mapped for good.
                unsafe {
                    let register: extern "C" fn(*const c_void) = std::mem::transmute(unwinder.register.0);
                    register(unwind.0 as *const c_void);
                }
            }
        }
        Ok(())
    }
    /// After a look has found other mappings (UNW-3).
    pub(super) fn tell_of_slots(&mut self) -> Result<(), String> {
        let Some(table) = engine().and_then(Engine::slots) else { return Ok(()) };
        let told = self.tell_all();
        table.close(told.is_err());
        told
    }
}
