//! Replaced return addresses in the own process: which sites use return trampolines, and which unwinders are
//! informed of them.
//!
//! In: the form that consumers request ([`Returns`](super::Returns)). Out: return trampolines, made when the first consumer
//! requests them; the unwinders of this process informed of them, also those that are mapped later.
//! Invariants: UNW-3 no call is armed while an unwinder is known that was not informed. Does not: take
//! trampolines (`trapline_runtime::trampolines`), make their code (`trampolines` of the twins), decide
//! whether a function may be armed (`plan`).
//!
//! Unwinders are informed by an ordinary call of `__register_frame`, in the thread that registers or looks.
//! That function may allocate, and takes locks of its own. No thread holds these and waits for the engine,
//! since nothing can be registered in a handler. The information that unwinders were given stays true, since
//! trampolines stay mapped, so it never has to be withdrawn. A forked child has copies of trampolines and
//! unwinders. Once informed, libgcc before version 13 takes a lock whenever it unwinds, and a fork does not
//! wait for it. So a child that is forked while another thread unwinds must not unwind itself. (POSIX allows
//! such a child only calls that are safe in signal handlers.)
//!
//! An unwinder that is mapped later is found by the look for which the loader waits. It cannot be called
//! then: the loader has not relocated it yet. So the trampolines are *closed*: no more calls are armed; they
//! count as missed. The thread that looks reads the maps every millisecond until the loader has made the
//! unwinder's pages read-only. Then the unwinder is informed, and the trampolines are opened. If it unwinds
//! before that through a call that was armed earlier, it finds no information there. It could do so in its
//! own constructors, or in the first millisecond. Neither glibc nor musl loads libgcc twice; a plugin with
//! its own copy does.
//!
//! An unwinder that is found later and cannot be informed (in a library with a statically linked one) closes
//! the trampolines until it is gone: no more calls are armed, and they count as missed. Armed calls that are
//! in flight stay. An exception that this unwinder leads through one of them ends the process, as one through
//! any frame without unwind information does.
#![allow(
    unsafe_code,
    reason = "libgcc's functions are called by address; the engine is promised what they were informed of"
)]

use std::collections::HashSet;
use std::ffi::c_void;

use trapline_record::{RemoteAddr, trampolines};
use trapline_runtime::engine::Engine;
use trapline_runtime::probe::Probe;
use trapline_runtime::trampolines::TrampolineTable;

use super::Error;
use super::arch::trampolines as arch_trampolines;
use super::memory::{self, engine};
use super::own_process::OwnProcess;
use super::site_request::SiteRequest;
use crate::files::Files;
use crate::unwinders::unwinding;

/// Number of calls that can have a replaced return address at a time, in all threads.
pub const TRAMPOLINES: u32 = trampolines::USUAL;

/// Real return address of a call with `address` in its stack word, if that is a return trampoline
/// ([`Consumer::returns_by`](super::Consumer::returns_by)). This is for unwinders that find no unwind
/// information by themselves (framehop, frame pointers). Only for calls that have not returned: ask from
/// their own thread, or while that is stopped. Takes no lock.
#[must_use]
pub fn returns_to(address: u64) -> Option<u64> {
    memory::made()?.trampolines()?.real(address)
}

/// Which unwinders were informed.
#[derive(Debug, Default)]
pub(super) struct Unwinders {
    unwind: Option<RemoteAddr>,
    registered: HashSet<RemoteAddr>,
    /// One is mapped that cannot be informed yet.
    loading: bool,
}

/// Called when a site is about to be written.
pub(super) fn accepted(site_request: &SiteRequest) {
    if site_request.part.armed {
        arm(site_request.probe);
    }
}

/// Lets a probe arm calls. Only for a site with a patch that was planned for that (`Action::CallArmed`).
pub(super) fn arm(probe: &Probe) {
    // SAFETY: the planner has accepted the function (`Action::CallArmed`), and all unwinders were informed
    // before the site was requested (UNW-3).
    unsafe { probe.set_arms(true) };
}

/// Lets a probe arm no more calls.
pub(super) fn disarm(probe: &Probe) {
    // SAFETY: the probe arms no more calls, which needs no promise.
    unsafe { probe.set_arms(false) };
}

impl Unwinders {
    /// Whether one is mapped that cannot be informed yet.
    pub(super) const fn is_loading(&self) -> bool {
        self.loading
    }
    /// Provides return trampolines, once, after all unwinders were informed.
    pub(super) fn lend(&mut self, process: &mut OwnProcess, files: &mut Files) -> Result<(), String> {
        let engine: &'static Engine = engine().ok_or_else(|| Error::NoEngine.to_string())?;
        if engine.trampolines().is_none() {
            let table = self.make(process)?;
            self.register(process, files)?;
            engine.lend(table);
        }
        self.inform(process, files)
    }
    /// Maps return trampolines, which are not in use yet.
    fn make(&mut self, process: &mut OwnProcess) -> Result<&'static TrampolineTable, String> {
        arch_trampolines::possible()?;
        let (hints, quick) = memory::hints().ok_or_else(|| Error::NoEngine.to_string())?;
        let mut table = None;
        let own = process.open().map_err(|error| error.to_string())?;
        let maps = own.process().maps().map_err(|error| error.to_string())?;
        let made = arch_trampolines::make(own, TRAMPOLINES, |trampolines| {
            // SAFETY: `Own::trampolines` maps it for good right after this; probes stay for good (INS-3).
            let made =
                unsafe { TrampolineTable::new(*trampolines, hints, quick) }.map(Box::new).map(Box::leak);
            table = made.map(|made| &*made);
            table
        })?;
        self.unwind = Some(made.unwind);
        let vdso = maps.iter().find(|map| map.path == "[vdso]");
        table.zip(vdso).into_iter().for_each(|(table, vdso)| table.spare(vdso.start.0..vdso.end.0));
        table.ok_or_else(|| "more return trampolines than hints can name".into())
    }
    /// Informs all unwinders that are mapped now and were not informed yet. If one cannot be informed, the
    /// others keep the information.
    fn register(&mut self, process: &mut OwnProcess, files: &mut Files) -> Result<(), String> {
        let Some(unwind) = self.unwind else { return Ok(()) };
        let own = process.open().map_err(|error| error.to_string())?;
        let found = unwinding(own.process(), files)?;
        self.loading = found.loading.is_some();
        if let Some(path) = found.loading {
            return Err(format!("{path} is just being loaded, and has an unwinder"));
        }
        if found.go {
            return Err(
                "Go moves its stacks and must know every return address; its exits can be patched".into()
            );
        }
        for unwinder in found.unwinders {
            if self.registered.insert(unwinder.register) {
                // SAFETY: this is the address of that function in a file that is mapped. Its argument is
                // unwind information, terminated as it expects, and mapped for good.
                unsafe {
                    let register: extern "C" fn(*const c_void) = std::mem::transmute(unwinder.register.0);
                    register(unwind.0 as *const c_void);
                }
            }
        }
        Ok(())
    }
    /// Called after a look has found other mappings (UNW-3).
    pub(super) fn inform(&mut self, process: &mut OwnProcess, files: &mut Files) -> Result<(), String> {
        let Some(table) = engine().and_then(Engine::trampolines) else { return Ok(()) };
        let registered = self.register(process, files);
        table.close(registered.is_err());
        registered
    }
}
