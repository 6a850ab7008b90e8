//! The trap path of the own process: the handlers that serve its traps, and what they know of each.
//!
//! In: traps that are about to be written, each with the copy of what it displaces and the probes of the
//! consumers that it calls. Out: the runtime's handlers in front of the program's; the table of traps that
//! they use. Invariants: TRAP-1 to TRAP-3, kept by `trapline_runtime::trap`. PATCH-4: a trap is in the table
//! before its byte is written, and taken out after the byte is changed back. Does not: write bytes
//! (`patcher`).
//!
//! The handlers are code of this program, so they also exist in a forked child and after `vfork`, and need
//! nothing that an outside tracer brings. They stay when the last probe goes: there is no way to know that no
//! trap is on its way to them.

use std::sync::OnceLock;

use smallvec::SmallVec;
use trapline_image::Image;
use trapline_record::RemoteAddr;
use trapline_record::addr::Bias;
use trapline_runtime::native::{Block, Called, Copies, Placed, Role, Signal, Sites, install, stands};
use trapline_runtime::probe::Probe;

use super::Error;
use super::arch::step;
use super::mapped_files::{MappedFiles, regions};
use super::memory::engine;
use super::site_request::Load;

/// Traps of this process.
pub(super) fn sites() -> Option<&'static Sites> {
    static SITES: OnceLock<Option<Sites>> = OnceLock::new();
    SITES.get_or_init(|| Some(Sites::new(engine()?, regions()?, 0))).as_ref()
}

/// Puts the handlers in front of the program's, once.
///
/// # Errors
/// If that is not possible, or if the program has taken SIGTRAP back since. Then traps that are in place are
/// not served any more, and no more are made.
pub(super) fn serve() -> Result<(), Error> {
    static BLOCK: OnceLock<Block> = OnceLock::new();
    if let Some(traps) = sites().filter(|_| BLOCK.get().is_none()) {
        install(BLOCK.get_or_init(|| Block { traps, copies: Copies::new() }))?;
    }
    if stands(Signal::Trap) { Ok(()) } else { Err(Error::TrapsTaken) }
}

/// An instruction before which consumers are called.
#[derive(Clone, Debug)]
pub(super) struct CalledSite {
    at: u64,
    copy: u64,
    called: SmallVec<[Called; 1]>,
}

impl CalledSite {
    /// `called`: the probes, each with whether this is a return.
    pub(super) fn new(at: u64, copy: u64, called: impl Iterator<Item = (&'static Probe, bool)>) -> Self {
        let role = |exit| if exit { Role::Exit } else { Role::Entry };
        let called = called.map(|(probe, exit)| Called { probe, role: role(exit) }).collect();
        Self { at, copy, called }
    }
}

/// A trap of this engine, in the form that the handler uses.
#[derive(Clone, Debug)]
pub(super) struct EngineTrap {
    pub(super) at: u64,
    placed: Placed,
}

impl EngineTrap {
    /// Collects what the handler needs to know of a trap.
    pub(super) fn new(
        here: &CalledSite,
        load: Load,
        image: &Image,
        known: &mut MappedFiles,
        shadow: bool,
    ) -> Option<Self> {
        let at = Bias(load.bias).stated(RemoteAddr(here.at));
        let step = step::of(image, at, (here.at, here.copy), shadow)?;
        let site = known.site(load.file, image.offset_of(at)?)?;
        Some(Self {
            at: here.at,
            placed: Placed { step, site, called: here.called.iter().copied().collect() },
        })
    }
    /// Enters it in the table, before the byte is written.
    pub(super) fn put(&self, known: &MappedFiles) {
        if let (Some(sites), Some(map)) = (sites(), known.map()) {
            sites.put(self.at, self.placed.clone(), map);
        }
    }
    /// Takes it out of the table, when the byte is the program's again.
    pub(super) fn take_out(&self) {
        sites().into_iter().for_each(|sites| sites.take_out(self.at));
    }
}
