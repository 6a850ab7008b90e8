//! The writer of code for our own process on arm64: one word at a time, by traps. Steps and interleavings are argued in [`protocol`].
//!
//! In: words that are to trap, each with what becomes of it at a hit. Out: sites in place, each as a value that takes it out again and puts it back; what the handler of
//! traps needs, before anything traps. Invariants: PATCH-4 what a trap leads to is there before it; PATCH-11 present words are compared before any is changed.
//! Does not: lock (the caller does), know consumers, wait for them, keep a journal (nobody else takes this process' traps out).

mod pages;
pub mod protocol;
mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trapline_plan::aarch64::{BRK, Options, Step};
use trapline_plan::{PatchRole, Tactic};
use trapline_record::journal::{Entry, Kind, MAX_PATCH};
use trapline_record::{FileOffset, RemoteAddr};
use trapline_runtime::aarch64::Windows;
use trapline_target::{FileId, Mapping, Process};

use crate::blocked::no_traps;
use crate::error::PatchError;
use crate::why::Why;
use pages::{Pages, Words, mapping};
use rooms::{Displaced, Rooms};

/// A word that is to trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Where it stands.
    pub at: RemoteAddr,
    /// The file's.
    pub old: u32,
    /// What becomes of it at a hit.
    pub step: Step,
    /// What its program allows its copy.
    pub options: Options,
    /// What it is for.
    pub role: PatchRole,
    /// Which file, and where in it, the mapping there must show.
    pub place: (FileId, FileOffset),
}

/// A site of our own: enough to take it out and to put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSite {
    /// What it is for.
    pub role: PatchRole,
    /// How it is reached: [`Tactic::Trap`].
    pub tactic: Tactic,
    /// Address and words.
    pub entry: Entry,
}

/// What a batch placed.
#[derive(Debug, Default)]
pub struct Added {
    /// Sites in place, each with the index of its word.
    pub sites: Vec<(usize, OwnSite)>,
    /// Words that do not trap, and why.
    pub refused: Vec<(usize, Why)>,
}

/// Our own process, and what traps there.
#[derive(Debug)]
pub struct Own {
    process: Process,
    windows: &'static Windows,
    rooms: Rooms,
    /// Words of the file where our traps stand.
    placed: BTreeMap<u64, u32>,
    /// Those of them that are planned anew (S1).
    soft: BTreeSet<u64>,
}

impl Own {
    /// Nothing placed yet. Whoever serves the traps of this process asks `windows`.
    ///
    /// # Errors
    /// When /proc/self cannot be used, or a tracer holds us.
    pub fn open(windows: &'static Windows) -> Result<Self, PatchError> {
        let process = Process::open(std::process::id())?;
        Ok(Self { process, windows, rooms: Rooms::default(), placed: BTreeMap::new(), soft: BTreeSet::new() })
    }
    /// Our process.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }
    /// Whether this is a copy that a fork made: its descriptors lead to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.pid() != std::process::id()
    }
    /// In a forked child: goes on with memory of its own, which holds what the parent's held.
    ///
    /// # Errors
    /// As [`Own::open`].
    pub fn disinherit(&mut self) -> Result<(), PatchError> {
        self.process = Process::open(std::process::id())?;
        Ok(())
    }
    /// O1 to O6. Addresses are distinct. `tell` learns of traps, by the index of their word, each with where its copy lies (0: none), before they are written.
    ///
    /// # Errors
    /// Nothing was changed, or what was changed was undone.
    pub fn add(
        &mut self,
        words: &[Word],
        tell: &mut dyn FnMut(&[(usize, u64)]),
    ) -> Result<Added, PatchError> {
        self.alone()?;
        let maps = self.process.maps()?;
        let because = no_traps(&self.process, false, &mut || {
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        })?;
        let mut added = Added::default();
        let mut told = Vec::with_capacity(words.len());
        for (index, word) in words.iter().enumerate() {
            let found = match because {
                Some(because) => Err(Why::NeedsTraps { addr: word.at, because }),
                None => match self.compare(&maps, word)? {
                    Some(why) => Err(why),
                    None => self.displace(word)?,
                },
            };
            match found {
                Ok(copy) => told.push((index, copy)),
                Err(why) => added.refused.push((index, why)),
            }
        }
        tell(&told);
        let sites = told.iter().map(|&(index, _)| (index, words[index].site()));
        added.sites = sites.collect();
        let all: Vec<OwnSite> = added.sites.iter().map(|site| site.1).collect();
        if let Err(error) = self.write(&maps, &all) {
            self.take_out(&all)?;
            return Err(error);
        }
        Ok(added)
    }
    /// Takes sites out. Those that hold anything but our trap are left alone; how many that were is the answer.
    ///
    /// # Errors
    /// When memory cannot be reached at all.
    pub fn take_out(&mut self, sites: &[OwnSite]) -> Result<usize, PatchError> {
        let maps = self.process.maps()?;
        let mut left = 0;
        for returns in [false, true] {
            let mut words = Words::new();
            for site in sites.iter().filter(|site| (site.entry.kind == Kind::Exit) == returns) {
                let at = site.entry.addr;
                self.soft.remove(&at.0);
                let Some(old) = self.placed.remove(&at.0) else { continue };
                match self.word(at) {
                    Some(BRK) => drop(words.insert(at.0, old)),
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
    /// S1: these are planned anew. Their traps stay meanwhile.
    ///
    /// # Errors
    /// None here.
    pub fn soften(&mut self, sites: &[OwnSite], _: &[RemoteAddr]) -> Result<(), PatchError> {
        let placed = sites.iter().map(|site| site.entry.addr.0).filter(|at| self.placed.contains_key(at));
        self.soft.extend(placed);
        Ok(())
    }
    /// S3: takes away the traps that nobody placed anew, and that are none of `stay`.
    ///
    /// # Errors
    /// When memory cannot be reached at all.
    pub fn harden(&mut self, stay: impl Fn(u64) -> bool) -> Result<(), PatchError> {
        let soft = std::mem::take(&mut self.soft);
        let over = soft.into_iter().filter(|at| !stay(*at));
        let over: Vec<OwnSite> = over
            .filter_map(|at| Some(site(RemoteAddr(at), *self.placed.get(&at)?, PatchRole::Entry)))
            .collect();
        self.take_out(&over).map(drop)
    }
    /// Puts sites back that were taken out, with the copies that they had. For each, whether it is in place; one whose word is not the file's any more is
    /// not, nor one where another stands.
    ///
    /// # Errors
    /// When another writer came meanwhile, or memory cannot be reached. No site is in place then.
    pub fn put_back(&mut self, sites: &[OwnSite]) -> Result<Vec<bool>, PatchError> {
        self.alone()?;
        let maps = self.process.maps()?;
        let fits = |site: &OwnSite| {
            let at = site.entry.addr;
            let is_free = !self.placed.contains_key(&at.0) || self.soft.contains(&at.0);
            is_free && self.original(at) == Some(old(site))
        };
        let fit: Vec<bool> = sites.iter().map(fits).collect();
        let back: Vec<OwnSite> = sites.iter().zip(&fit).filter(|one| *one.1).map(|one| *one.0).collect();
        if let Err(error) = self.write(&maps, &back) {
            self.take_out(&back)?;
            return Err(error);
        }
        Ok(fit)
    }
    /// Whether all of these hold our traps now. A library that was unloaded, and loaded there again, holds the file's words.
    #[must_use]
    pub fn holds(&self, sites: &[OwnSite]) -> bool {
        sites.iter().all(|site| self.word(site.entry.addr) == Some(BRK))
    }
    /// Sites that went away with their mapping.
    pub fn forget(&mut self, sites: &[OwnSite]) {
        for site in sites {
            self.placed.remove(&site.entry.addr.0);
            self.soft.remove(&site.entry.addr.0);
        }
    }
    /// O4 to O6, returns before entries.
    fn write(&mut self, maps: &[Mapping], sites: &[OwnSite]) -> Result<(), PatchError> {
        for returns in [true, false] {
            let mut words = Words::new();
            for site in sites.iter().filter(|site| (site.entry.kind == Kind::Exit) == returns) {
                let at = site.entry.addr.0;
                if !self.soft.remove(&at) {
                    words.insert(at, BRK);
                }
                self.placed.insert(at, old(site));
            }
            if !words.is_empty() {
                // Each was found in a file's code a moment ago.
                Pages::new(&self.process, maps).change(&words)?;
            }
        }
        Ok(())
    }
    /// O1: what is in the way of a word.
    fn compare(&mut self, maps: &[Mapping], word: &Word) -> Result<Option<Why>, PatchError> {
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
        if present != BRK {
            // Whatever stood here went away with its mapping.
            self.placed.remove(&addr.0);
            self.soft.remove(&addr.0);
        } else if self.soft.contains(&addr.0) && self.placed.get(&addr.0) == Some(&word.old) {
            return Ok(None);
        } else if self.placed.contains_key(&addr.0) {
            return Ok(Some(Why::Held { addr }));
        }
        let differs = Why::Differs { addr, file: word.old.to_le_bytes().to_vec(), found: found.to_vec() };
        Ok((present != word.old).then_some(differs))
    }
    /// O2 and the copy's part of O3.
    fn displace(&mut self, word: &Word) -> Result<Result<u64, Why>, PatchError> {
        let Step::Copy { comes_back } = word.step else { return Ok(Ok(0)) };
        let one = Displaced { at: word.at, word: word.old, options: word.options, comes_back };
        self.rooms.copy((&self.process, self.windows), &one)
    }
    /// What stands somewhere.
    fn word(&self, at: RemoteAddr) -> Option<u32> {
        let mut word = [0; 4];
        self.process.read(at, &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }
    /// The same, as if soft traps were not there.
    fn original(&self, at: RemoteAddr) -> Option<u32> {
        match self.word(at)? {
            BRK if self.soft.contains(&at.0) => self.placed.get(&at.0).copied(),
            word => Some(word),
        }
    }
    /// No tracer holds us: two who put `brk` into the same code would take each other's for theirs.
    fn alone(&self) -> Result<(), PatchError> {
        let (pid, tracer) = (self.process.pid(), self.process.status_of_caller()?.tracer);
        if tracer == 0 {
            return Ok(());
        }
        let comm = std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        Err(PatchError::InUse { pid, tracer, comm: comm.trim().to_owned() })
    }
}

impl Word {
    fn site(&self) -> OwnSite {
        site(self.at, self.old, self.role)
    }
}

fn site(addr: RemoteAddr, old: u32, role: PatchRole) -> OwnSite {
    let bytes = |word: u32| {
        let mut bytes = [0; MAX_PATCH];
        bytes[..4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    let kind = if role == PatchRole::ExitRet { Kind::Exit } else { Kind::Entry };
    OwnSite {
        role,
        tactic: Tactic::Trap,
        entry: Entry { addr, len: 4, kind, old: bytes(old), new: bytes(BRK) },
    }
}

/// The file's word.
fn old(site: &OwnSite) -> u32 {
    let [a, b, c, d, ..] = site.entry.old;
    u32::from_le_bytes([a, b, c, d])
}
