//! The trap path of our own process: who serves its traps, and what the handler knows of each.
//!
//! In: traps that are about to be written, each with the copy of what it displaces and the probes whose consumers it calls. Out: the
//! runtime's handlers in front of the program's; the table of traps that they ask. Invariants: TRAP-1 to TRAP-3, kept by
//! `trapline_runtime::trap`; PATCH-4 a trap is in the table before its byte is written, and taken out after.
//! Does not: write bytes (`place`).
//!
//! The handlers are code of this program, so they are there in a forked child and after `vfork` as they are here, and need nothing that an
//! outside tracer brings. They stay when the last probe goes: nobody can tell that no trap is on its way to them.

use std::sync::OnceLock;

use smallvec::SmallVec;
use trapline_image::Image;
use trapline_record::RemoteAddr;
use trapline_record::addr::Bias;
use trapline_runtime::native::{
    Block, Called, Copies, Placed, Role, Signal, Sites, install, standing, stands,
};
use trapline_runtime::probe::Probe;

use super::Error;
use super::arch::step;
use super::known::{Known, regions};
use super::memory::engine;
use super::place::Load;

/// The traps of this process.
pub(super) fn sites() -> Option<&'static Sites> {
    static SITES: OnceLock<Option<Sites>> = OnceLock::new();
    SITES.get_or_init(|| Some(Sites::new(engine()?, regions()?, 0))).as_ref()
}

/// Puts the handlers in front of the program's, once.
///
/// # Errors
/// They cannot be, or the program has taken SIGTRAP back since: traps that are there are not served any more, and no more are made.
pub(super) fn serve() -> Result<(), Error> {
    static BLOCK: OnceLock<Block> = OnceLock::new();
    if let Some(traps) = sites().filter(|_| BLOCK.get().is_none()) {
        install(BLOCK.get_or_init(|| Block { traps, copies: Copies::new() }))?;
    }
    if stands(Signal::Trap) { Ok(()) } else { Err(Error::TrapsTaken) }
}

/// Whether every fault of displaced code is shown at its original: then code that faults may be displaced, whoever looks the address up.
pub(super) fn shows_originals() -> bool {
    standing()
}

/// An instruction before which consumers are called.
#[derive(Clone, Debug)]
pub(super) struct Here {
    at: u64,
    copy: u64,
    called: SmallVec<[Called; 1]>,
}

impl Here {
    /// An instruction, its copy, and who is called: whether at a return.
    pub(super) fn new(at: u64, copy: u64, called: impl Iterator<Item = (&'static Probe, bool)>) -> Self {
        let role = |exit| if exit { Role::Exit } else { Role::Entry };
        let called = called.map(|(probe, exit)| Called { probe, role: role(exit) }).collect();
        Self { at, copy, called }
    }
}

/// A trap of ours, as the handler knows it.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) at: u64,
    placed: Placed,
}

impl Told {
    /// What the handler needs to know of a trap.
    pub(super) fn new(
        here: &Here,
        load: Load,
        image: &Image,
        known: &mut Known,
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
    /// Before the byte is written.
    pub(super) fn put(&self, known: &Known) {
        if let (Some(sites), Some(map)) = (sites(), known.map()) {
            sites.put(self.at, self.placed.clone(), map);
        }
    }
    /// When the byte is the program's again.
    pub(super) fn take_out(&self) {
        sites().into_iter().for_each(|sites| sites.take_out(self.at));
    }
}
