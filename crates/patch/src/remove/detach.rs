//! Takes patches out again: steps R1 to R6 of `protocol`, for the session that made them and for a later one.
//!
//! In: a process, and the segments that it maps. Out: text, actions and semaphores as they were, in one batch
//! for each process; a report of what was left alone. Every step looks before it acts, so all of it may be
//! repeated (SAFE-3, SAFE-4).
//! Does not: wait for a blocked call, or read counters.

use std::time::{Duration, Instant};

use trapline_record::control::{State, at};
use trapline_record::journal::{Entry, Kind};
use trapline_record::pages;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{
    Batch, BatchOptions, FileId, Process, RemoteCaller, RemoteOptions, TargetError, users_of,
};

use crate::attached::{Attached, resume};
use crate::error::PatchError;
use crate::install::map::SERVED;
use crate::memory::find::{FoundSegment, check_free, find_segments, segment_status};
use crate::memory::semaphore;
use crate::memory::words::Words;
use crate::native::traps;
use crate::remove::free::free;
use crate::request::{DetachReport, NotRestored, Options, Restored, Untouched};
use crate::returns::trampolines::{disarm, trampolines_of};
use crate::returns::unwinder::take_back;
use crate::space::staged::any_staged;
use crate::space::write::{Direction, Outcome, change};
use crate::space::{Running, SpaceError, Still};
use crate::threads::quiesce::quiesce;
use crate::threads::still::move_out;

/// How long a detach waits for another tracer to release the process.
const HELD_BY_ANOTHER: Duration = Duration::from_secs(5);

/// Upper bound of the CPUs for which Linux may be built on this processor: a block with more tables is
/// broken.
const MOST_TABLES: u64 = 8192;

/// One segment that is to be taken out of one process.
struct Removal<'a> {
    /// Its words, as mapped by this process.
    words: Words<'a>,
    found: FoundSegment,
    entries: Vec<Entry>,
}

impl Removal<'_> {
    /// Whether the program had a handler of its own for SIGTRAP when we came (PATCH-15).
    fn is_trap_the_programs(&self) -> bool {
        let served = &SERVED[0];
        self.found.block.get(at::HANDLES) & served.bit != 0 && self.found.block.action(served.old).handler > 1
    }
    /// Whether the words show this process' state. A child shares them with its parent, and until the parent
    /// is gone they show the parent's.
    fn is_owned_by(&self, process: &Process) -> bool {
        let owner = self.found.owner();
        owner == process.pid() || !trapline_tracee::runs(owner)
    }
}

impl Attached {
    /// Takes out all patches, of the process and of its children that still map the segments. Counts can be
    /// read until the segments are dropped.
    pub fn detach(&mut self, process: &Process, options: &Options) -> DetachReport {
        let own = self.memfds();
        let mut report = DetachReport::default();
        if own.is_empty() {
            return report;
        }
        let way = if self.is_unfinished { Direction::Recover } else { Direction::Remove };
        match clean(process, &own, options, way) {
            Ok(restored) => report.restored.push(restored),
            Err(error) if error.is_gone() => report.gone = true,
            Err(why) => report.untouched.push(Untouched { pid: process.pid(), why }),
        }
        children(process.pid(), &own, options, &mut report);
        if report.untouched.is_empty() {
            self.guards.clear();
            self.installed = None;
        }
        report
    }
}

/// Cleans up what dead tracers left in a process and in its children, from its memory alone.
///
/// # Errors
/// If a living tracer is at work there, or the process cannot be traced. Nothing is changed then.
pub fn recover(process: &Process, options: &Options) -> Result<DetachReport, PatchError> {
    let found = find_segments(process)?;
    check_free(process.pid(), &found, &[], true)?;
    // A child's text may hold patches that its parent no longer has: the words are shared, the text is not.
    let mut files = Vec::new();
    for segment in &found {
        if segment.state() != Some(State::Removed) || segment_status(process, segment)?.in_place > 0 {
            files.push(segment.memfd);
        }
    }
    let mut report = DetachReport::default();
    if files.is_empty() {
        return Ok(report);
    }
    report.restored.push(clean(process, &files, options, Direction::Recover)?);
    children(process.pid(), &files, options, &mut report);
    Ok(report)
}

/// Cleans up other processes that map the same memory: children forked while patches were in place. They may
/// fork meanwhile, so the search is repeated until it finds no new one.
fn children(pid: u32, files: &[FileId], options: &Options, report: &mut DetachReport) {
    let mut seen = vec![pid];
    loop {
        let mut users: Vec<u32> = files.iter().flat_map(|&file| users_of(file)).collect();
        users.sort_unstable();
        users.dedup();
        users.retain(|user| !seen.contains(user));
        if users.is_empty() {
            return;
        }
        for user in users {
            seen.push(user);
            match Process::open(user)
                .map_err(PatchError::from)
                .and_then(|p| clean(&p, files, options, Direction::Recover))
            {
                Ok(restored) => report.restored.push(restored),
                Err(error) if error.is_gone() => {}
                Err(why) => report.untouched.push(Untouched { pid: user, why }),
            }
        }
    }
}

/// Steps R1 to R6 for one process.
fn clean(
    process: &Process,
    files: &[FileId],
    options: &Options,
    way: Direction,
) -> Result<Restored, PatchError> {
    let start = Instant::now();
    let mut restored = loop {
        let run = |batch: &mut Batch<'_>| clean_in(batch, files, options, way);
        match Batch::run(process, BatchOptions { hold_children: false }, run) {
            // Another tracer holds the process for the moment of a batch; ours must come out all the same.
            Err(TargetError::AlreadyTraced { .. } | TargetError::Denied { .. })
                if start.elapsed() < HELD_BY_ANOTHER =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other??,
        }
    };
    restored.pid = process.pid();
    restored.total = start.elapsed();
    Ok(restored)
}

fn clean_in(
    batch: &mut Batch<'_>,
    files: &[FileId],
    options: &Options,
    way: Direction,
) -> Result<Restored, PatchError> {
    let process = batch.process();
    let removals = removals(process, files)?;
    let entries: Vec<Entry> = removals.iter().flat_map(|r| r.entries.iter().copied()).collect();
    let mut guards = Vec::new();
    for removal in &removals {
        guards.extend(removal.found.block.guards(process, removal.found.control)?);
        if removal.is_owned_by(process) {
            removal.words.set(at::STATE, State::Removing as u64)?;
        }
    }
    guards.sort_unstable();
    let guard = |addr| resume(&guards, addr);
    let remote = RemoteOptions { patience: options.patience, ..RemoteOptions::default() };
    let mut restored = Restored { semaphores: lower(process, &removals), ..Restored::default() };

    let barred = barred(batch, &remote, &guard)?;
    let clock = Instant::now();
    let mut outcomes = Vec::new();
    // No handler serves a trap there, and a trap would be left if we died between two steps.
    let unserved = removals.iter().all(|r| r.found.block.get(at::HANDLES) == 0);
    let still = options.strict || barred.is_some() || removals.iter().any(Removal::is_trap_the_programs);
    let result = if still || !traps::NEEDED || (unserved && !crate::space::cpu::proven().words) {
        let mut stopped = batch.stop_all(&guard)?;
        move_out(process, &mut stopped, &guard)?;
        let result = change(&mut Still { process }, &entries, way, &mut outcomes);
        stopped.resume()?;
        result
    } else {
        if any_staged(&entries) {
            quiesce(batch, &guard)?;
            keep_actions(batch, &removals, &remote, &guard)?;
        }
        let mut space = Running { batch, guard: &guard, remote: &remote };
        change(&mut space, &entries, way, &mut outcomes)
    };
    result.map_err(SpaceError::into_error)?;
    // No patch relies on any fact now: threads that wait in our code go on (`hold`).
    for removal in &removals {
        removal.words.set(at::CLOSED, u64::MAX)?;
    }
    tally(&entries, &outcomes, &mut restored);
    forget_pages(process, &removals)?;
    restored.restore = clock.elapsed();

    let clock = Instant::now();
    quiesce(batch, &guard)?;
    restored.quiesce = clock.elapsed();
    let trampolines: Vec<Trampolines> =
        removals.iter().filter_map(|r| trampolines_of(&r.found.block)).collect();
    let done = disarm(batch, &trampolines, &guard)?;
    restored.returns = done.restored;
    // If some call is still to come home through its return trampoline, unwinders keep what they were given
    // (UNW-1).
    if barred.is_none() {
        let of_this_process = removals.iter().filter(|r| r.found.owner() == process.pid() && done.left == 0);
        for removal in of_this_process {
            take_back(batch, &removal.found.block, &removal.words, &guard)?;
        }
        actions(batch, &removals, &remote, &guard, &mut restored)?;
    }
    for removal in removals.iter().filter(|r| r.is_owned_by(process)) {
        removal.words.set(at::STATE, State::Removed as u64)?;
    }
    if barred.is_none() && (options.free || options.strict) {
        let found: Vec<FoundSegment> = removals.into_iter().map(|r| r.found).collect();
        let freed = free(batch, &found, &guard, &remote)?;
        (restored.unmapped, restored.stays_mapped) = (freed.unmapped, freed.stays);
    } else {
        restored.stays_mapped = removals.iter().map(|r| r.found.mapped()).sum();
    }
    restored.barred = barred;
    restored.batch = batch.report();
    Ok(restored)
}

/// Why no thread can make calls for us, if a filter came after us. Then bytes and return addresses are put
/// back all the same, by the tracer alone and with all threads stopped (R3, R4a). What needs a call of the
/// process' own is left: actions (R5), the registration with unwinders, mappings. All of that works on
/// without us.
fn barred(
    batch: &mut Batch<'_>,
    remote: &RemoteOptions,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<Option<String>, TargetError> {
    if batch.process().restricted()?.is_none() {
        return Ok(None);
    }
    match batch.remote(remote, guard) {
        Ok(caller) => caller.finish().map(|_| None),
        Err(TargetError::NoCaller { why, .. }) => Ok(Some(why)),
        Err(error) => Err(error),
    }
}

/// The segments to be taken out, newest first.
fn removals<'a>(process: &'a Process, files: &[FileId]) -> Result<Vec<Removal<'a>>, PatchError> {
    let found = find_segments(process)?.into_iter().filter(|f| files.contains(&f.memfd) && f.block.is_ours());
    found
        .map(|found| {
            let entries = found.block.journal(process, found.control)?;
            let words = Words(process, found.control);
            Ok(Removal { words, found, entries })
        })
        .collect()
}

/// Step R3a: from here on the kernel copies all texts (`plan`'s `stub::text`). The handler's word is cleared
/// first, so that no thread notes a page that is not removed from the tables; then the notes are cleared. A
/// child shares these words with its parent, for which both were cleared already.
fn forget_pages(process: &Process, removals: &[Removal<'_>]) -> Result<(), TargetError> {
    for removal in removals.iter().filter(|removal| removal.is_owned_by(process)) {
        let block = &removal.found.block;
        if block.get(at::FAULT_HANDLER) == 0 {
            continue;
        }
        removal.words.set(at::FAULT_HANDLER, 0)?;
        let tables = block.get(at::PAGES_TABLES).min(MOST_TABLES);
        for table in (0..tables).map(|n| block.get(at::PAGES_OFF) + (n << pages::STRIDE_BITS)) {
            if process.read_u64(removal.found.control + table + pages::FILLED)? != 0 {
                let empty = [0; pages::FILLED as usize];
                removal.words.set(table + pages::FILLED, 0)?;
                process.write_text(removal.found.control + table, &empty)?;
            }
        }
    }
    Ok(())
}

/// Step R2. It applies only to the process in which they were raised: a child has its own copy of the words.
fn lower(process: &Process, removals: &[Removal<'_>]) -> u32 {
    let mut lowered = 0;
    for removal in removals {
        let journal = removal.found.block.get(at::JOURNAL_OFF);
        for (index, entry) in removal.entries.iter().enumerate().filter(|(_, e)| e.kind == Kind::Semaphore) {
            if semaphore::lower(process, entry).unwrap_or(false) {
                lowered += 1;
                if removal.is_owned_by(process) {
                    // So that a second try does not lower it again. A failure means that the process is gone.
                    drop(semaphore::unmark(&removal.words, journal, index, entry));
                }
            }
        }
    }
    lowered
}

fn tally(entries: &[Entry], outcomes: &[Outcome], restored: &mut Restored) {
    for (entry, outcome) in entries.iter().zip(outcomes).filter(|(e, _)| e.kind != Kind::Semaphore) {
        let left = |found| NotRestored { addr: entry.addr, found, len: entry.len };
        match outcome {
            Outcome::Done => restored.sites += 1,
            Outcome::Already => restored.already += 1,
            Outcome::KeptBreakpoint => restored.breakpoints += 1,
            Outcome::Differs { found } => restored.left.push(left(Some(*found))),
            Outcome::Unreachable => restored.left.push(left(None)),
        }
    }
}

/// Step R2a: if a trap is hit while its signal is blocked, the kernel resets the action; the batch puts back
/// the action that is set now.
fn keep_actions(
    batch: &mut Batch<'_>,
    removals: &[Removal<'_>],
    remote: &RemoteOptions,
    guard: &dyn Fn(u64) -> Option<u64>,
) -> Result<(), PatchError> {
    let handles = removals.iter().fold(0, |all, r| all | r.found.block.get(at::HANDLES));
    let mut caller = batch.remote(remote, guard)?;
    let mut present = [None; 2];
    let traps = SERVED.iter().zip(&mut present).filter(|(served, _)| handles & served.bit != 0);
    let asked = traps.map(|(served, present)| {
        *present = Some(caller.sigaction(served.signal, None)?);
        Ok(())
    });
    let asked: Result<(), TargetError> = asked.collect();
    caller.finish()?;
    asked?;
    let [trap, illegal] = present;
    batch.set_trap_handler(trap);
    batch.set_illegal_handler(illegal);
    Ok(())
}

/// Step R5: puts actions back where the handler is still ours.
fn actions(
    batch: &mut Batch<'_>,
    removals: &[Removal<'_>],
    remote: &RemoteOptions,
    guard: &dyn Fn(u64) -> Option<u64>,
    restored: &mut Restored,
) -> Result<(), PatchError> {
    let with_handler: Vec<&Removal<'_>> =
        removals.iter().filter(|r| r.found.block.get(at::HANDLES) != 0).collect();
    if with_handler.is_empty() {
        return Ok(());
    }
    batch.set_trap_handler(None);
    batch.set_illegal_handler(None);
    let mut caller = batch.remote(remote, guard)?;
    let mut result = Ok(());
    for removal in with_handler {
        result = result.and_then(|()| put_back(&mut caller, removal, restored));
    }
    caller.finish()?;
    Ok(result?)
}

fn put_back(
    caller: &mut RemoteCaller<'_, '_>,
    removal: &Removal<'_>,
    restored: &mut Restored,
) -> Result<(), TargetError> {
    let block = &removal.found.block;
    for served in SERVED.iter().filter(|s| block.get(at::HANDLES) & s.bit != 0) {
        let present = caller.sigaction(served.signal, None)?;
        if present.handler == block.get(at::HANDLER) {
            caller.sigaction(served.signal, Some(&block.action(served.old)))?;
            restored.actions += 1;
        } else if present != block.action(served.old) {
            restored.foreign_actions += 1;
        }
    }
    Ok(())
}
