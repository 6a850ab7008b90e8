//! The words that are to be patched, with the actions there.
//!
//! In: nothing; the planner makes these values. Out: plain values, by address.

use std::collections::BTreeMap;

use trapline_insn::aarch64::Options;
use trapline_record::Svma;

use super::action::SiteAction;
use crate::plan::PatchRole;

/// A word at its live address, among the words of its function.
#[derive(Clone, Copy, Debug)]
pub struct PatchedWord<'a> {
    /// All words of its function, or as many of them as there are.
    pub words: &'a [u32],
    /// Address of the first of these words.
    pub start: u64,
    /// Index of the word to be patched.
    pub index: usize,
    /// What its copy may use there.
    pub options: Options,
}

/// A word that is to be patched, at its stated address, with the actions there.
#[derive(Clone, Debug)]
pub(super) struct PatchedSite {
    /// All words of its function, or those around it.
    pub(super) words: Vec<u32>,
    pub(super) start: Svma,
    pub(super) index: usize,
    pub(super) role: PatchRole,
    /// The actions there, in order, each with the index of its request.
    pub(super) actions: Vec<(u32, SiteAction)>,
}

impl PatchedSite {
    pub(super) fn at(&self) -> Svma {
        self.start + 4 * self.index as u64
    }
}

pub(super) type Sites = BTreeMap<Svma, PatchedSite>;

/// Adds what a request needs; several actions at one word are kept in the order in which they run.
pub(super) fn add(sites: &mut Sites, request: u32, found: Vec<(PatchedSite, SiteAction)>) {
    for (site, action) in found {
        let known = sites.entry(site.at()).or_insert_with(|| site.clone());
        if site.role == PatchRole::Entry {
            known.role = PatchRole::Entry;
        }
        known.actions.push((request, action));
        known.actions.sort_by_key(|one| one.1.rank());
    }
}
