//! What the kernel reported of mappings and was not looked at yet, and what looks found.
//!
//! In: records of the process' own mappings; what looks found. Out: ranges that are to be looked at; counts.
//! Invariants: LRN-4 a range that was reported stays here until its file was settled by maps that were read
//! after the report. Does not: look (`probes`), or decide when (`thread`).

use std::collections::HashSet;
use std::time::Duration;

use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::perf::{MappingRecord, MappingRings, monotonic_ns};

use super::{NO_FILE, Noticed, calls, thread};
use crate::inside::mapped_files::Changed;
use crate::inside::site_request::Load;

/// Reports of mappings.
#[derive(Debug, Default)]
pub(in crate::inside) struct Notices {
    /// Process to which the rings and the thread belong; 0 before there are any.
    pid: u32,
    rings: Option<MappingRings>,
    /// The rings have records of data mappings too.
    reads_data: bool,
    /// Reported ranges that were not looked at yet.
    pending: Vec<Changed>,
    records: Vec<MappingRecord>,
    /// Records were dropped since the last look.
    lost: bool,
    /// A look is going on for which a call asked.
    asked: bool,
    tally: Noticed,
    /// Mappings at the last look, of files that were registered then.
    loads: HashSet<Load>,
    files: HashSet<FileId>,
}

impl Notices {
    /// Whether this process reads them already; a forked child does not.
    pub(in crate::inside) fn have_begun(&self) -> bool {
        self.pid == std::process::id()
    }
    /// Begins in this process, with the kernel's records if they are wanted and there are any. Returns whether
    /// there are, and whether they come from every thread.
    pub(in crate::inside) fn begin(&mut self, records: bool) -> Option<bool> {
        if let Some(rings) = self.rings.take() {
            rings.leave();
        }
        self.reads_data = false;
        if records {
            self.rings = MappingRings::open(false).ok();
        }
        self.pid = std::process::id();
        self.rings.as_ref().map(MappingRings::is_complete)
    }
    /// No thread reads records after all.
    pub(in crate::inside) fn close(&mut self) {
        self.rings = None;
    }
    /// Whether there are records.
    pub(in crate::inside) const fn have_records(&self) -> bool {
        self.rings.is_some()
    }
    /// Descriptors that T1 polls.
    pub(in crate::inside) fn descriptors(&self) -> Vec<i32> {
        self.rings.as_ref().map(MappingRings::descriptors).unwrap_or_default()
    }
    /// What was counted so far.
    pub(in crate::inside) const fn tally(&self) -> Noticed {
        self.tally
    }
    /// T4: takes the records, before maps are read.
    pub(in crate::inside) fn drain(&mut self) {
        let Some(rings) = self.rings.as_ref().filter(|_| self.have_begun()) else { return };
        let (records, pending, files) = (&mut self.records, &mut self.pending, &self.files);
        let lost = rings.drain(|one| {
            // Data matters where a semaphore may be in it.
            let may_have_semaphore = one.write && one.file.is_some_and(|file| files.contains(&file));
            if !one.exec && !may_have_semaphore {
                return;
            }
            pending.push(Changed { start: one.start, end: one.end, file: one.file.unwrap_or(NO_FILE) });
            records.push(one);
        });
        self.tally.lost += lost;
        self.lost |= lost > 0;
    }
    /// Switches records of data mappings on or off. Returns true if they are on from now, so that what was
    /// mapped before must be looked for.
    pub(in crate::inside) fn read_data(&mut self, wanted: bool) -> bool {
        calls::read_data(wanted);
        if self.reads_data == wanted || self.rings.is_none() {
            return false;
        }
        // If no more events can be opened, the next look tries again.
        let Ok(rings) = MappingRings::open(wanted) else { return false };
        // The new rings record already; the last records of the old ones are taken too.
        self.drain();
        (self.rings, self.reads_data) = (Some(rings), wanted);
        thread::look_up();
        wanted
    }
    /// Takes the mappings of registered files that a look found. `files`: those that are registered now.
    pub(in crate::inside) fn saw(&mut self, found: &[(Load, RemoteAddr)], files: &HashSet<FileId>) {
        let new =
            found.iter().filter(|(load, _)| !self.loads.contains(load) && self.files.contains(&load.file));
        for (_, at) in new {
            let was_recorded = self.records.iter().any(|one| one.exec && one.start <= *at && *at < one.end);
            let count = match (was_recorded, self.asked) {
                (true, _) => &mut self.tally.by_record,
                (false, true) => &mut self.tally.by_call,
                (false, false) => &mut self.tally.by_look,
            };
            *count += 1;
        }
        self.loads = found.iter().map(|(load, _)| *load).collect();
        self.files.clone_from(files);
    }
    /// All that is requested in these files was just patched where the maps show them, so earlier notices
    /// about them are dropped. Otherwise the thread that looks would find the same again, and keep the lock
    /// from the next caller.
    pub(in crate::inside) fn knows(&mut self, files: &HashSet<FileId>) {
        self.pending.retain(|one| !files.contains(&one.file));
    }
    /// Notes that a mapping turned out to be another one at the same place.
    pub(in crate::inside) fn is_another(&mut self, load: &Load) {
        self.loads.remove(load);
    }
    /// Drops reports for which `matters` is false.
    pub(in crate::inside) fn retain(&mut self, matters: impl Fn(&Changed) -> bool) {
        self.pending.retain(matters);
    }
    /// Adds what differs between the maps and what was known of them.
    pub(in crate::inside) fn add(&mut self, changed: Vec<Changed>) {
        self.pending.extend(changed);
    }
    /// Takes all reports, for a look at them.
    pub(in crate::inside) fn take(&mut self) -> Vec<Changed> {
        std::mem::take(&mut self.pending)
    }
    /// Whether there is nothing to look at.
    pub(in crate::inside) const fn are_none(&self) -> bool {
        self.pending.is_empty() && !self.lost
    }
    /// Whether the kernel dropped records, so that everything must be looked at.
    pub(in crate::inside) const fn are_lost(&self) -> bool {
        self.lost
    }
    /// None of the records led to a look.
    pub(in crate::inside) fn drop_records(&mut self) {
        self.records.clear();
    }
    /// Begins a look. `asked`: a call asked for it.
    pub(in crate::inside) const fn begin_look(&mut self, asked: bool) {
        self.asked = asked;
    }
    /// Ends a look.
    pub(in crate::inside) fn end_look(&mut self, failed: bool) {
        self.tally.failed += u64::from(failed);
        self.asked = false;
        self.looked();
    }
    /// Begins a look at everything: what was reported until now is in the maps that it reads. What is reported
    /// later stays for the next look.
    pub(in crate::inside) fn begin_look_at_all(&mut self) {
        self.drain();
        self.pending.clear();
        self.lost = false;
    }
    /// Notes that a look is over. Records that it took out itself, and did not look at, stay in `pending`;
    /// the ring does not announce them again, so the bell does.
    pub(in crate::inside) fn looked(&mut self) {
        let pending = &self.pending;
        let is_pending = |at| pending.iter().any(|one: &Changed| one.start <= at && at < one.end);
        let (stay, over): (Vec<_>, Vec<_>) = self.records.drain(..).partition(|one| is_pending(one.start));
        let ours = over.iter().filter(|one| one.file.is_some_and(|file| self.files.contains(&file)));
        if let Some(first) = ours.map(|one| one.time_ns).min() {
            let took = Duration::from_nanos(monotonic_ns().saturating_sub(first));
            self.tally.longest = self.tally.longest.max(took);
        }
        self.records = stay;
        if !self.pending.is_empty() || self.lost {
            thread::look_up();
        }
    }
}
