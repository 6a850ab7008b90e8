//! Facts that the program changes while patches rely on them: the thread that is about to change one waits
//! until those patches are out.
//!
//! In: a process with patches, and facts (`record::control::fact`). Out: which facts threads ask for; patches
//! that rely on them taken out, here and in forked children; threads released. Invariants: HOLD-1, HOLD-2
//! (`plan`'s `stub/hold.rs`); HOLD-3 the tracer sets a fact's bit in `CLOSED` only if nothing of the process
//! relies on it, or if taking it out failed, which is reported. The thread must not wait for what cannot be
//! done.
//! Does not: know where calls are held, or see others; the session chooses those places, and looks for the
//! effects of others (`trapline`'s `traced/held.rs`).
//!
//! # Protocol
//!
//! What takes part: *C*, the thread that is about to call `sigaction`, `prctl` or `syscall`, or to execute a
//! system call of the program's own; *T*, the tracer; *O*, other threads. Words of the control block: `ASKED`,
//! `CLOSED`; `ALIVE`, which T changes some times a second, so that C takes all its turns anew (HOLD-1).
//!
//! | step | by | what | if T dies right after |
//! |---|---|---|---|
//! | H0 | T | before a batch's first site is written: `CLOSED` = all facts | detach, or `recover`, sets all bits |
//! | | | on which nothing relies (H0 of each later batch writes it anew) | |
//! | H1 | C | looks at its arguments; passes if they change no fact, or a closed one | – |
//! | H2 | C | sets the fact's bit in `ASKED` | C waits its turns, closes the fact itself (HOLD-2), |
//! | | | | goes on as without H; no later call waits |
//! | H3 | T | sees the bit at its next poll; | as H2; the journal names the sites, |
//! | | | all threads stop; those at boundaries are moved out; | `recover` finds them restored |
//! | | | sites that rely on the fact get the file's bytes; threads go on | |
//! | H4 | T | does the same in children that map the segment; | as H2 |
//! | | | what another tactic reaches is probed anew as if the fact had changed already | |
//! | H5 | T | sets the bit in `CLOSED` | C goes on |
//! | H6 | C | goes on: the displaced instructions, the system call | – |
//!
//! At H3, what is taken out differs by fact:
//!
//! | fact | relied on by | taken out |
//! |---|---|---|
//! | `FAULTS` | copies that may fault: | probes with such a copy |
//! | | there is no handler, or the handlers are known whose entries are patched | |
//! | `FILTER` | texts, fields, thread numbers by a call | all |
//! | `CLOCK` | times | all; return addresses are put back too |
//! | `TRAPS` | guards, if our handler serves traps | probes with a boundary |
//! | | | at which a saved context stands (PATCH-9), or to which a handler of faults may return; |
//! | | | the threads that stand at boundaries are moved out first |
//!
//! A thread that sets a handler of faults may go on although `FAULTS` stays relied on, once the handler's entry is
//! patched (docs/design/faults.md, D13). So C draws a ticket from `ASKERS` behind H2. T reads `ASKERS` before `ASKED`,
//! and writes what it read to `PASSED`; C goes on if its ticket is not greater. So a thread of a forked child, or one that
//! gets no CPU, passes later as well. C sets its bit in `ASKED` once more whenever it sees that T lives: T clears the
//! bit at D13, also that of a thread whose ticket is greater, and then changes `ALIVE`.
//!
//! After `TRAPS` has changed, later batches and the removal run as in a program that owns SIGTRAP: with all
//! threads stopped, and without windows into which a saved context points. `ASKED` tells this to a tracer that
//! cleans up.
//!
//! # Interleavings
//!
//! - *O hits a site between H2 and H3*: the fact still holds.
//! - *O is inside a stub or copy at H3, and still there after H6*: it was stopped there, or waits for a page
//!   there. A copied instruction that faults then meets C's handler with the copy's address. A text that is
//!   copied then is subject to the filter, if that is for all threads (TSYNC). Both take a fault, or a call,
//!   of O that lasts from H3 to H6, some milliseconds. Stated, not solved. The right to read the clock is C's
//!   alone, and C is in no such stub.
//! - *C stands in a signal handler that interrupted a stub of its own*: as O, until it returns there.
//! - *Two threads ask*: for different facts, T sees both bits or one after the other; for one fact, both wait
//!   for one bit.
//! - *A signal comes while C waits*: its handler runs, and hits as any; C waits on when it returns. A handler
//!   that never returns leaves a bit set in `ASKED`, which does no harm.
//! - *C's turns are over between H3 and H5*: it goes on while sites are being taken out. T sees that C closed
//!   the bit itself, and reports it.
//! - *A forked child asks*: the words are shared. T closes in both; closing in the parent alone would do the
//!   child no good, hence H4.
//! - *A child of vfork asks*: it is C, on its parent's memory; its action is its own, so T closes for
//!   nothing. Its parent cannot be stopped before C goes on, so C waits its turns in vain: T waits for the parent meanwhile, and does not change `ALIVE`.
//! - *C passed H1 before the site was published*: T's survey was earlier, and the change is later: it is
//!   found like a call that is not held.
//! - *C asks for `TRAPS` while T's batch publishes*: C waits until the batch is over, since T answers behind
//!   it. C's turns may be over before that: then guards of that batch trap into C's handler. Stated, not
//!   solved.
//! - *A context is saved at a boundary between H3 and H6*: a thread is there only if a context that stood there
//!   came back, and H3 has taken out each window into which one points. The context of a stack that is not
//!   private writable memory is not seen, as in PATCH-9.
//! - *C stands before its system call, and a signal's handler makes the same change*: both wait for one bit.
//! - *C jumps to its system call from elsewhere, past the place where it is held*: as a call that is not held.
//! - *Detaching*: all bits of `CLOSED` are set when the sites hold the file's bytes, before it waits for
//!   threads in our code.
//! - *exec*: the new program has no patches. *The process ends, or C is killed*: no thread waits.
//! - *The tracer is stopped, or at work for long*: as if it had died, except for what it finds later.
//! - *Many processes ask at a time*: T serves one after the other, and changes `ALIVE` in all of them in between. So all
//!   wait for as long as T comes nearer, and none gives up.
//! - *T lives, and never answers*: it cannot be. Each poll answers what was asked, by H5 also if H3 failed.

use std::collections::HashSet;
use std::time::Duration;

use trapline_plan::Patch;
use trapline_record::RemoteAddr;
use trapline_record::control::{at, fact};
use trapline_record::journal::{Entry, EntryKind};
use trapline_record::trampolines::Trampolines;
use trapline_record::view::View;
use trapline_tracee::{Batch, BatchOptions, Process, RemoteOptions};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::delivery::{FIRST, handlers_of, handles};
use crate::memory::segment::Segment;
use crate::remove::part::{children, out};
use crate::request::Options;
use crate::returns::trampolines::disarm;
use crate::threads::still::{move_out, saved_contexts};

/// Patches that were taken out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Closed {
    /// Probes that have lost a patch: the index of the segment, and the probe's number in it.
    pub probes: HashSet<(usize, u32)>,
    /// Number of patches that hold other bytes than ours, or could not be written.
    pub left: usize,
}

/// Threads that ask, as far as they have drawn a ticket: the last one in each segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Askers(pub(crate) Vec<u64>);

/// How often all threads are stopped to find none in our code.
const LOOKS: u32 = 50;
/// After so many, a thread in our code waits for another fact or with another ticket, if there is one. A thread that has slept through
/// all of them waits its turns, and is found by the bit that it closes.
const LEAST_LOOKS: u32 = 5;

/// Facts that threads ask to change, and that patches rely on.
pub(crate) fn asked(batches: &Batches) -> u64 {
    let asked = batches.segments.iter().fold(0, |all, segment| all | segment.view().get(at::ASKED));
    // Facts that threads have closed themselves (HOLD-2).
    let closed = batches.segments.iter().fold(0, |all, segment| all | segment.closed());
    (asked | closed & !batches.facts.closed()) & batches.facts.relied_on()
}

/// Step H3, and H4 for what is taken out: from now on these facts count as changed.
pub(crate) fn close(batches: &mut Batches, process: &Process, facts: u64) -> Result<Closed, PatchError> {
    batches.facts.change(facts);
    if facts & fact::FILTER != 0 {
        // WAIT-3
        batches.segments.iter().for_each(Segment::release);
    }
    let caught = if facts & fact::TRAPS != 0 { leave_boundaries(batches, process)? } else { Vec::new() };
    let (entries, probes) = relying(batches, facts, &caught, &[]);
    let mut closed = Closed { probes, left: 0 };
    if entries.is_empty() {
        return Ok(closed);
    }
    closed.left = out(batches, process, &entries)?;
    if let (true, Some(trampolines)) = (facts & fact::CLOCK != 0, batches.trampolines) {
        closed.left += give_back(batches, process, trampolines)?;
    }
    Ok(closed)
}

/// Step D11 of docs/design/faults.md, in place of H3: takes out what relies on `FAULTS`, and what is in place at the
/// entries of these handlers. The fact is not given up: what is probed anew relies on it again.
pub(crate) fn make_way(
    batches: &mut Batches,
    process: &Process,
    handlers: &[u64],
) -> Result<Closed, PatchError> {
    // Handlers that are known already need no other windows.
    let known = handlers.is_empty();
    let (entries, probes) =
        if known { Default::default() } else { relying(batches, fact::FAULTS, &[], handlers) };
    let mut closed = Closed { probes, left: 0 };
    if entries.is_empty() {
        return Ok(closed);
    }
    closed.left = out(batches, process, &entries)?;
    Ok(closed)
}

/// Shows threads that wait that T lives.
pub(crate) fn show_alive(view: View<'_>) {
    view.set(at::ALIVE, view.get(at::ALIVE).wrapping_add(1));
}

/// Step D13: lets the waiting threads go on, here and in forked children, whenever they come to run. True once none of
/// this process is in our code, if the entry of each handler that is set by then is patched. Threads that draw a ticket
/// later wait, and ask anew.
pub(crate) fn let_pass(
    batches: &Batches,
    process: &Process,
    askers: &Askers,
    options: &Options,
) -> Result<bool, PatchError> {
    let remote = RemoteOptions { patience: options.patience, ..RemoteOptions::default() };
    let guard = |addr| batches.resume(addr);
    let in_code = |pc| batches.segments.iter().any(|segment| segment.is_code(pc));
    Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        // All threads are seized by now, so none executes a program unseen.
        for (segment, last) in batches.segments.iter().zip(&askers.0) {
            segment.view().set(at::PASSED, *last);
        }
        for look in 1..=LOOKS {
            std::thread::sleep(Duration::from_millis(1));
            let stopped = batch.stop_all(&guard)?;
            let is_inside = |tid| stopped.regs(tid).is_ok_and(|regs| in_code(regs.pc()));
            // A thread that has passed may wait for another fact by now, or with another ticket.
            let asks = || {
                let mut last = batches.segments.iter().zip(&askers.0);
                last.any(|(segment, last)| segment.view().get(at::ASKERS) != *last)
            };
            let waits = look > LEAST_LOOKS && (asked(batches) & !fact::FAULTS != 0 || asks());
            let passed = waits || !stopped.threads().into_iter().any(is_inside);
            if passed {
                for (view, last) in batches.segments.iter().map(Segment::view).zip(&askers.0) {
                    view.clear_bits(at::ASKED, fact::FAULTS);
                    // A thread that came meanwhile may have noted its handler. It sets its bit once more.
                    if view.get(at::ASKERS) == *last {
                        view.set(at::ASKED_HANDLER, 0);
                    }
                    show_alive(view);
                }
            }
            stopped.resume()?;
            if passed {
                let mut caller = batch.remote(&remote, &guard)?;
                let handlers = handlers_of(batches, &mut caller);
                caller.finish()?;
                return Ok(handlers?.iter().all(|handler| handles(batches, handler.0)));
            }
        }
        Ok::<_, PatchError>(false)
    })?
}

/// Moves threads away from boundaries, as nothing serves a trap there from now on. Returns boundaries to which
/// a saved context may return (PATCH-9), here or in a child.
fn leave_boundaries(batches: &Batches, process: &Process) -> Result<Vec<u64>, PatchError> {
    // A head is not inside a window, though many pointers name it.
    let is_head = |at: u64| batches.held.at(RemoteAddr(at)).is_some();
    let inside: Vec<_> = batches.guards.iter().copied().filter(|guard| !is_head(guard.0)).collect();
    let look = |process: &Process| {
        let guard = |addr| batches.resume(addr);
        Batch::run(process, BatchOptions { hold_children: false }, |batch| {
            let mut stopped = batch.stop_all(&guard)?;
            move_out(process, &mut stopped, &guard)?;
            let caught = saved_contexts(process, &inside)?;
            stopped.resume()?;
            Ok::<_, PatchError>(caught)
        })?
    };
    let mut caught = look(process)?;
    caught.extend(children(batches, process).iter().filter_map(|child| look(child).ok()).flatten());
    Ok(caught)
}

/// Puts back the return addresses of calls that run, since the code to which they would return reads the
/// clock. Returns how many could not be put back.
fn give_back(batches: &Batches, process: &Process, trampolines: Trampolines) -> Result<usize, PatchError> {
    let guard = |addr| batches.resume(addr);
    let done = Batch::run(process, BatchOptions::default(), |batch| disarm(batch, &[trampolines], &guard))??;
    Ok(done.left as usize)
}

/// Sites that rely on these facts, and their probes. `caught`: boundaries at which a trap may still be met. If
/// one site of a probe goes, all go: an entry without its exits would be reported as still running.
///
/// `handlers`: entries of functions; what is in place there counts as well.
fn relying(
    batches: &Batches,
    facts: u64,
    caught: &[u64],
    handlers: &[u64],
) -> (Vec<Entry>, HashSet<(usize, u32)>) {
    let patch_of = |entry: &Entry| {
        let patch = batches.held.at(entry.addr)?;
        Some(patch).filter(|patch| patch.new == entry.new && !batches.facts.only_holds_at(patch.addr.0))
    };
    let (mut entries, mut probes) = (Vec::new(), HashSet::new());
    for (index, segment) in batches.segments.iter().enumerate() {
        let sites = segment.entries.iter().filter(|entry| entry.kind != EntryKind::Semaphore);
        let sites: Vec<_> = sites.filter_map(|entry| Some((entry, patch_of(entry)?))).collect();
        let relies = |patch: &Patch| {
            facts & !(fact::FAULTS | fact::TRAPS) != 0
                || facts & fact::FAULTS != 0 && patch.faults
                || facts & fact::TRAPS != 0 && patch.faults && batches.delivers
                || !handlers.is_empty() && patch.faults_before
                || handlers.iter().any(|at| patch.addr.0.wrapping_sub(*at) < FIRST)
                || caught.iter().any(|at| at.wrapping_sub(patch.addr.0) < patch.len.into())
        };
        let of: HashSet<u32> =
            sites.iter().filter(|(_, patch)| relies(patch)).map(|(_, p)| p.probe).collect();
        entries.extend(sites.iter().filter(|(_, p)| of.contains(&p.probe)).map(|(entry, _)| **entry));
        probes.extend(of.into_iter().map(|probe| (index, probe)));
    }
    (entries, probes)
}
