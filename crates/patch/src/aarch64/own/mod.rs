//! The writer of code for our own process on arm64: one word at a time, by jumps and traps. Steps and
//! interleavings are argued in [`protocol`].
//!
//! In: words to be patched, each with what is done for it at a hit. Out: sites in place, each as a value by
//! which it can be taken out and put back; what the handler of traps needs, before anything traps.
//! Invariants: PATCH-4: what a patch leads to exists before it; PATCH-11: present words are compared before
//! any is changed.
//! Does not: lock (the caller does), know consumers, wait for them, keep a journal (no other tool takes out
//! this process' traps).

mod code_regions;
mod live;
mod placed;
pub mod protocol;
mod site;
mod trampolines;

use std::collections::BTreeMap;
use std::time::Duration;

use trapline_plan::aarch64::{BRK, Options, TrapPlan, branch, is_landing_pad};
use trapline_plan::{PatchRole, Tactic};
use trapline_record::{FileOffset, RemoteAddr};
use trapline_runtime::aarch64::{Called, Windows, gate};
use trapline_tracee::{FileId, Mapping, OwnCaller, Process};

use crate::error::PatchError;
use crate::memory::segment::MadeTrampolines;
use crate::threads::blocked::no_traps;
use crate::why::{NoTraps, Why};
use code_regions::{CodeRegions, Displaced};
use live::{NewWords, Pages, mapping};
use placed::Placed;
pub use site::OwnSite;

/// A word to be patched.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Word<'a> {
    /// Its address.
    pub at: RemoteAddr,
    /// The file's word.
    pub old: u32,
    /// What is done for it at a hit.
    pub step: TrapPlan,
    /// What its copy may use.
    pub options: Options,
    /// What the patch is for.
    pub role: PatchRole,
    /// The file, and the offset in it, that the mapping there must show.
    pub place: (FileId, FileOffset),
    /// The probes that are called if a jump may lead to them. `None`: it is to be a trap.
    pub by_jump: Option<&'a [Called]>,
}

/// What was prepared for a word, before anything leads there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Index of the word.
    pub index: usize,
    /// How the site will lead there: [`Tactic::Jump`] or [`Tactic::Trap`].
    pub tactic: Tactic,
    /// Address of its copy; 0 if there is none, as the word is simulated.
    pub copy: u64,
    /// The word that will replace it.
    new: u32,
}

/// What a batch placed.
#[derive(Debug, Default)]
pub struct Added {
    /// Sites in place, each with the index of its word.
    pub sites: Vec<(usize, OwnSite)>,
    /// Words that are not patched, by index, each with the reason.
    pub refused: Vec<(usize, Why)>,
}

/// Our own process, and its patches.
#[derive(Debug)]
pub struct Own {
    process: Process,
    windows: &'static Windows,
    code_regions: CodeRegions,
    /// Address of the gate through which jumps lead.
    gate: u64,
    /// Return trampolines, once they were requested.
    trampolines: Option<MadeTrampolines>,
    /// Our patches.
    placed: Placed,
}

impl Own {
    /// Our process with nothing placed yet. The code that serves traps in this process uses `windows`.
    ///
    /// # Errors
    /// If /proc/self cannot be used, or a tracer holds us.
    pub fn open(windows: &'static Windows) -> Result<Self, PatchError> {
        let process = Process::open(std::process::id())?;
        let gate = gate::address(std::arch::is_aarch64_feature_detected!("sve"));
        let (code_regions, placed) = (CodeRegions::default(), Placed::default());
        Ok(Self { process, windows, code_regions, gate, trampolines: None, placed })
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
    /// Whether this is the copy in a forked child, where descriptors lead to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.pid() != std::process::id()
    }
    /// For a forked child: goes on with memory of its own, which holds what the parent's held.
    ///
    /// # Errors
    /// As [`Own::open`].
    pub fn disinherit(&mut self) -> Result<(), PatchError> {
        self.process = Process::open(std::process::id())?;
        Ok(())
    }
    /// Steps O1 to O6. Addresses are distinct. `announce` gets what will be in place, before anything leads
    /// there.
    ///
    /// # Errors
    /// If it fails, nothing was changed, or what was changed was undone.
    pub fn add(
        &mut self,
        words: &[Word<'_>],
        announce: &mut dyn FnMut(&[Ready]),
    ) -> Result<Added, PatchError> {
        self.alone()?;
        let maps = self.process.maps()?;
        let (mut look, mut added, mut ready) =
            (Look::default(), Added::default(), Vec::with_capacity(words.len()));
        for (index, word) in words.iter().enumerate() {
            match self.prepare(index, word, &maps, &mut look)? {
                Ok(one) => ready.push(one),
                Err(why) => added.refused.push((index, why)),
            }
        }
        if self.code_regions.are_fresh() {
            OwnCaller::default().sync_cores()?;
        }
        announce(&ready);
        added.sites = ready.iter().map(|one| (one.index, words[one.index].site(one))).collect();
        let all: Vec<OwnSite> = added.sites.iter().map(|site| site.1).collect();
        if let Err(error) = self.write(&maps, &all) {
            self.take_out(&all)?;
            return Err(error);
        }
        Ok(added)
    }
    /// Steps O1 and O2 for a word.
    fn prepare(
        &mut self,
        index: usize,
        word: &Word<'_>,
        maps: &[Mapping],
        look: &mut Look,
    ) -> Result<Result<Ready, Why>, PatchError> {
        if let Some(why) = self.compare(maps, word)? {
            return Ok(Err(why));
        }
        if let Some(jump) = self.jump(index, word, look.guards(maps, word.at))? {
            return Ok(Ok(jump));
        }
        if let Some(because) = look.no_traps(&self.process)? {
            return Ok(Err(Why::NeedsTraps { addr: word.at, because }));
        }
        let trap = |copy| Ready { index, tactic: Tactic::Trap, copy, new: BRK };
        Ok(self.displace(word)?.map(trap))
    }
    /// Makes a stub, if a branch to one may stand there. On a guarded page, none may replace a landing pad.
    fn jump(&mut self, index: usize, word: &Word<'_>, guarded: bool) -> Result<Option<Ready>, PatchError> {
        let Some(called) = word.by_jump.filter(|_| !(guarded && is_landing_pad(word.old))) else {
            return Ok(None);
        };
        let options = Options { guarded, ..word.options };
        let one = Displaced { at: word.at, word: word.old, options, comes_back: true };
        let stub = self.code_regions.stub(&self.process, self.windows, &one, self.gate, called)?;
        Ok(stub.and_then(|stub| {
            let new = branch(word.at.0, stub.at)?;
            Some(Ready { index, tactic: Tactic::Jump, copy: stub.displaced, new })
        }))
    }
    /// Takes out sites. Those that hold anything but our patch are left alone; returns their number.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn take_out(&mut self, sites: &[OwnSite]) -> Result<usize, PatchError> {
        let maps = self.process.maps()?;
        let mut left = 0;
        for returns in [false, true] {
            let mut words = NewWords::new();
            for site in sites.iter().filter(|site| site.is_return() == returns) {
                let at = site.entry.addr;
                let Some((old, new)) = self.placed.forget(at.0) else { continue };
                match self.word(at) {
                    Some(word) if word == new => drop(words.insert(at.0, old)),
                    Some(word) if word == old => {}
                    _ => left += 1,
                }
            }
            if !words.is_empty() {
                left += Pages::new(&self.process, &maps).change(&words)?.len();
            }
        }
        Ok(left)
    }
    /// Step S1: marks these as planned anew. Their patches stay meanwhile.
    ///
    /// # Errors
    /// None on arm64.
    pub fn soften(&mut self, sites: &[OwnSite], _: &[RemoteAddr]) -> Result<(), PatchError> {
        self.placed.soften(sites.iter().map(|site| site.entry.addr.0));
        Ok(())
    }
    /// Step S3: removes soft patches that were not placed anew, and for which `stay` is false.
    ///
    /// # Errors
    /// If memory cannot be reached at all.
    pub fn harden(&mut self, stay: impl Fn(u64) -> bool) -> Result<(), PatchError> {
        let over = self.placed.take_soft().into_iter().filter(|at| !stay(*at));
        let site =
            |at| Some(OwnSite::of(RemoteAddr(at), self.placed.at(at)?, PatchRole::Entry, Tactic::Trap));
        let over: Vec<OwnSite> = over.filter_map(site).collect();
        self.take_out(&over).map(drop)
    }
    /// Puts back sites that were taken out, with the copies that they had. Returns for each whether it is in
    /// place. A site is not put back if its word is not the file's any more, or if another patch stands
    /// there.
    ///
    /// # Errors
    /// If another writer came meanwhile, or memory cannot be reached. No site is in place then.
    pub fn put_back(&mut self, sites: &[OwnSite]) -> Result<Vec<bool>, PatchError> {
        self.alone()?;
        let maps = self.process.maps()?;
        let fits = |site: &OwnSite| {
            let at = site.entry.addr;
            let original = self.word(at).map(|word| self.placed.original(at.0, word));
            self.placed.is_free(at.0) && original == Some(site.words().0)
        };
        let fit: Vec<bool> = sites.iter().map(fits).collect();
        let back: Vec<OwnSite> = sites.iter().zip(&fit).filter(|one| *one.1).map(|one| *one.0).collect();
        if let Err(error) = self.write(&maps, &back) {
            self.take_out(&back)?;
            return Err(error);
        }
        Ok(fit)
    }
    /// Whether all of these hold our patches now. A library that was unloaded, and loaded there again, holds
    /// the file's words.
    #[must_use]
    pub fn holds(&self, sites: &[OwnSite]) -> bool {
        sites.iter().all(|site| self.word(site.entry.addr) == Some(site.words().1))
    }
    /// Forgets sites that went away with their mapping.
    pub fn forget(&mut self, sites: &[OwnSite]) {
        for site in sites {
            self.placed.forget(site.entry.addr.0);
        }
    }
    /// Steps O4 to O6, returns before entries.
    fn write(&mut self, maps: &[Mapping], sites: &[OwnSite]) -> Result<(), PatchError> {
        for returns in [true, false] {
            let mut words = NewWords::new();
            for site in sites.iter().filter(|site| site.is_return() == returns) {
                let (at, both) = (site.entry.addr.0, site.words());
                if self.placed.place(at, both) {
                    words.insert(at, both.1);
                }
            }
            if !words.is_empty() {
                // Each was found in a file's code a moment ago.
                Pages::new(&self.process, maps).change(&words)?;
            }
        }
        Ok(())
    }
    /// Part of O1: why a word cannot be patched.
    fn compare(&mut self, maps: &[Mapping], word: &Word<'_>) -> Result<Option<Why>, PatchError> {
        let addr = word.at;
        let shows = |one: &&Mapping| {
            let offset = one.offset + (addr - one.start);
            one.perms.exec && one.file.map(|file| (file, offset)) == Some(word.place)
        };
        if mapping(maps, addr).filter(shows).is_none() {
            return Ok(Some(Why::NotMapped { addr }));
        }
        let mut found = [0; 4];
        self.process.read(addr, &mut found)?;
        let present = u32::from_le_bytes(found);
        match self.placed.at(addr.0) {
            Some((old, new)) if present == new => {
                let is_free = self.placed.is_soft(addr.0) && old == word.old;
                return Ok((!is_free).then_some(Why::Held { addr }));
            }
            // The patch that stood here went away with its mapping.
            Some(_) => _ = self.placed.forget(addr.0),
            None => {}
        }
        let differs = Why::Differs { addr, file: word.old.to_le_bytes().to_vec(), found: found.to_vec() };
        Ok((present != word.old).then_some(differs))
    }
    /// Step O2, and the copy's part of O3.
    fn displace(&mut self, word: &Word<'_>) -> Result<Result<u64, Why>, PatchError> {
        let TrapPlan::Copy { comes_back } = word.step else { return Ok(Ok(0)) };
        let one = Displaced { at: word.at, word: word.old, options: word.options, comes_back };
        self.code_regions.copy(&self.process, self.windows, &one)
    }
    /// The word at an address.
    fn word(&self, at: RemoteAddr) -> Option<u32> {
        let mut word = [0; 4];
        self.process.read(at, &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }
    /// Checks that no tracer holds us: two tools that put `brk` into the same code would each take the
    /// other's for its own.
    fn alone(&self) -> Result<(), PatchError> {
        let (pid, tracer) = (self.process.pid(), self.process.status_of_caller()?.tracer);
        if tracer == 0 {
            return Ok(());
        }
        Err(PatchError::InUse { pid, tracer, comm: trapline_tracee::comm(tracer) })
    }
}

/// What a batch has found out so far.
#[derive(Default)]
struct Look {
    /// Whether mappings are guarded, by their start.
    guarded: BTreeMap<u64, bool>,
    /// Why there may be no traps now; `None` until it was checked.
    no_traps: Option<Option<NoTraps>>,
}

impl Look {
    fn guards(&mut self, maps: &[Mapping], at: RemoteAddr) -> bool {
        let start = mapping(maps, at).map_or(at.0, |mapping| mapping.start.0);
        *self.guarded.entry(start).or_insert_with(|| OwnCaller::is_guarded(at))
    }
    fn no_traps(&mut self, process: &Process) -> Result<Option<NoTraps>, PatchError> {
        if let Some(known) = self.no_traps {
            return Ok(known);
        }
        let because = no_traps(process, false, &mut || {
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        })?;
        Ok(*self.no_traps.insert(because))
    }
}

impl Word<'_> {
    fn site(&self, ready: &Ready) -> OwnSite {
        OwnSite::of(self.at, (self.old, ready.new), self.role, ready.tactic)
    }
}
