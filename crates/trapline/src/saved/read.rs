//! Reads a file's blocks into calls, round by round.
//!
//! In: untrusted bytes (SAV-1). Out: [`Call`]s in the order in which a session would have reported them;
//! where the file ends. Does not: open files, or print.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use super::blocks::Blocks;
use super::frame::{Get, Kind, VERSION};
use super::pack::{MOST, unpack};
use super::tables::{Loss, Round, Table, get_losses, get_names};
use crate::calls::{Call, in_order};
use crate::decode::{Clock, Decoder};
use crate::filter::Filter;
use crate::pairing::unpaired_notice;
use crate::quick::Quick;
use crate::report::Site;

/// Possible sizes of a ring slot in bytes: powers of two between these.
const SLOT_BYTES: std::ops::RangeInclusive<u32> = 64..=MOST as u32;
/// Most processes of a file.
const MOST_PROCESSES: usize = 1 << 16;

/// Why a file cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It is not a recording.
    #[error("it is no recording of trapline's: those are written by `trapline trace -o FILE.trapline`")]
    Foreign,
    /// It has another version.
    #[error("it is a recording of version {0}, and this trapline reads version {VERSION}")]
    Version(u32),
    /// It ends before its first block does.
    #[error(
        "it ends at byte {0} without its end mark, before it says what it is of, as when its tracer is killed"
    )]
    Cut(u64),
    /// It holds words of compact rings ([`Recorded`](crate::recorded::Recorded)), not calls with arguments.
    #[error("it was made by trapline record; show it with trapline replay, report, graph or dump")]
    Compact,
    /// It holds calls with arguments, not words of compact rings.
    #[error("it was made by trapline trace; show it with trapline trace --from")]
    NotCompact,
    /// It has bytes that no session writes.
    #[error("it is damaged: the block at byte {at} {what}; what stands before it is reported")]
    Damaged {
        /// Offset of the block.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system's error.
    #[error(transparent)]
    Read(#[from] std::io::Error),
}

/// How far was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// One round.
    Round {
        /// It is the last round, and no calls come after it.
        last: bool,
    },
    /// The whole file, with the note that the saving program put at its end.
    End(Vec<u8>),
    /// All that there is: the file ends at this byte, without an `End` block.
    Cut(u64),
}

/// A process in the file.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    name: String,
    decoder: Decoder,
    names: Quick<u32, Option<String>>,
    losses: Vec<Loss>,
}

/// Selects the filter for a site's calls.
type Choose<'a> = dyn Fn(&Site) -> Option<Arc<Filter>> + 'a;

/// The same; `None` if all calls pass.
struct Chooser<'a>(Option<Box<Choose<'a>>>);

impl std::fmt::Debug for Chooser<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_tuple("Chooser").field(&self.0.is_some()).finish()
    }
}

/// A recording that is being read.
#[derive(Debug)]
pub struct Saved<'a, R> {
    blocks: Blocks<R>,
    chooser: Chooser<'a>,
    began: Duration,
    note: Vec<u8>,
    clock: Clock,
    processes: Vec<Process>,
    /// There were slots since the last round.
    pending: bool,
    reported_last: bool,
}

impl<'a, R: Read> Saved<'a, R> {
    /// Reads the file's head and first block.
    ///
    /// # Errors
    /// If it is not a recording, or has another version.
    pub fn open(from: R) -> Result<Self, SavedError> {
        let (blocks, begin) = Blocks::open(from)?;
        Ok(Self {
            blocks,
            chooser: Chooser(None),
            began: begin.began,
            note: begin.note,
            clock: begin.clock,
            processes: Vec::new(),
            pending: false,
            reported_last: false,
        })
    }
    /// Reports only calls that pass the filter for their site; see [`Filter::by_reader`].
    #[must_use]
    pub fn choose(self, choose: impl Fn(&Site) -> Option<Arc<Filter>> + 'a) -> Self {
        Self { chooser: Chooser(Some(Box::new(choose))), ..self }
    }
    /// Note that the saving program put at the begin.
    pub fn note(&self) -> &[u8] {
        &self.note
    }
    /// Time at which the recording began, since 1970.
    pub const fn began(&self) -> Duration {
        self.began
    }
    /// Reads on to the end of a round, and reports the calls that it ended.
    ///
    /// # Errors
    /// If the file cannot be read, or not further.
    pub fn each_call(&mut self, each: &mut dyn FnMut(&Call)) -> Result<Step, SavedError> {
        loop {
            let Some(kind) = self.blocks.next()? else {
                if self.reported_last || !self.pending && self.processes.is_empty() {
                    return Ok(Step::Cut(self.blocks.at.1));
                }
                // The round that was going on, with calls that had not ended then.
                let processes = u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
                self.report(Round { clock: self.clock, processes, until: None }, each);
                return Ok(Step::Round { last: true });
            };
            if self.reported_last && kind != Kind::End {
                return Err(self.blocks.damaged("stands behind the last round"));
            }
            match kind {
                Kind::Begin => return Err(self.blocks.damaged("is a second begin")),
                Kind::Probes => self.probes()?,
                Kind::Slots => self.slots()?,
                Kind::Names => self.names()?,
                Kind::Losses => self.losses()?,
                Kind::Round => {
                    let round =
                        Round::get(&self.blocks.block).ok_or_else(|| self.blocks.damaged("is no round"))?;
                    self.clock = round.clock;
                    self.report(round, each);
                    return Ok(Step::Round { last: round.until.is_none() });
                }
                Kind::End => return self.blocks.end().map(Step::End),
                Kind::Words | Kind::TakenOut => return Err(SavedError::Compact),
            }
        }
    }
    /// The same calls as a list, in the order in which they ended; those of the last round excepted.
    ///
    /// # Errors
    /// As [`Self::each_call`].
    pub fn calls(&mut self) -> Result<(Vec<Call>, Step), SavedError> {
        let mut calls = Vec::new();
        let step = self.each_call(&mut |call| calls.push(call.clone()))?;
        if step == (Step::Round { last: false }) {
            in_order(&mut calls);
        }
        Ok((calls, step))
    }
    /// Name of a call's thread when its first record was saved.
    pub fn thread_name(&self, call: &Call) -> Option<String> {
        let process = self.processes.iter().find(|process| process.pid == call.pid)?;
        process.names.get(&call.tid).cloned().flatten()
    }
    /// Pids of processes, with their names.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &str)> {
        self.processes.iter().map(|process| (process.pid, process.name.as_str()))
    }
    /// Number of entries read so far, and of dropped records as far as they are noted.
    pub fn counted(&self) -> (u64, u64) {
        let lost = self.processes.iter().flat_map(|process| &process.losses).map(|loss| loss.records);
        let read = self.processes.iter().map(|process| process.decoder.read.sum());
        (read.fold(0, u64::wrapping_add), lost.fold(0, u64::wrapping_add))
    }
    /// Number of calls that did not pass the filter.
    pub fn left_out(&self) -> u64 {
        let each = self.processes.iter().map(|process| process.decoder.left_out.sum());
        each.fold(0, u64::wrapping_add)
    }
    /// Dropped records of a process, as far as they are noted; `process` is its index in [`Self::processes`].
    pub fn losses_of(&self, process: usize) -> &[Loss] {
        self.processes.get(process).map_or(&[], |process| &process.losses)
    }
    /// Notices that only reading brought up, which a session would have reported at its end.
    pub fn notices(&self) -> Vec<String> {
        let each = self.processes.iter();
        each.filter_map(|process| unpaired_notice(process.pid, process.decoder.pairing.unpaired)).collect()
    }
    fn report(&mut self, round: Round, each: &mut dyn FnMut(&Call)) {
        (self.pending, self.reported_last) = (false, round.until.is_none());
        let mut calls = Vec::new();
        for process in &mut self.processes {
            let Process { pid, decoder, names, .. } = process;
            let names = |tid| names.get(&tid).cloned().flatten();
            // As in sessions: calls of several processes are put in order.
            let mut report = |call: Call| match round.processes {
                1 => each(&call),
                _ => calls.push(call),
            };
            decoder.report(*pid, round.clock, round.until, &names, &mut report);
        }
        if round.until.is_some() {
            in_order(&mut calls);
        }
        calls.iter().for_each(each);
    }
    fn process(&mut self, number: Option<u32>) -> Option<&mut Process> {
        self.processes.get_mut(usize::try_from(number?).ok()?)
    }
    fn probes(&mut self) -> Result<(), SavedError> {
        let mut table =
            Table::get(&self.blocks.block).ok_or_else(|| self.blocks.damaged("is no table of probes"))?;
        let number = table.process as usize;
        if number > self.processes.len() || number >= MOST_PROCESSES {
            return Err(self.blocks.damaged("is of a process that was left out"));
        }
        if number == self.processes.len() {
            self.processes.push(Process::default());
        }
        if let Chooser(Some(choose)) = &self.chooser {
            table.probes.each_mut(|known| known.late = choose(&known.site));
        }
        let process = &mut self.processes[number];
        (process.pid, process.name) = (table.pid, table.name);
        process.decoder.probes = table.probes;
        process.decoder.pairing.exits_name_no_thread = table.exits_name_no_thread;
        Ok(())
    }
    fn slots(&mut self) -> Result<(), SavedError> {
        let block = std::mem::take(&mut self.blocks.block);
        let mut get = Get(&block);
        let head = [get.u32(), get.u32(), get.u32(), get.u32()];
        let mut take = || {
            let [process, Some(segment), Some(_), Some(slot)] = head else { return None };
            let usable = SLOT_BYTES.contains(&slot) && slot.is_power_of_two();
            let process = self.process(process).filter(|_| usable)?;
            process.decoder.take(segment as usize, slot as usize, &unpack(get.0, slot as usize)?);
            Some(())
        };
        let taken = take();
        (self.blocks.block, self.pending) = (block, true);
        taken.ok_or_else(|| self.blocks.damaged("holds no slots"))
    }
    fn names(&mut self) -> Result<(), SavedError> {
        let names = get_names(&self.blocks.block).ok_or_else(|| self.blocks.damaged("holds no names"))?;
        let known = self.process(Some(names.0)).map(|process| process.names.extend(names.1));
        known.ok_or_else(|| self.blocks.damaged("names threads of no process"))
    }
    fn losses(&mut self) -> Result<(), SavedError> {
        let losses = get_losses(&self.blocks.block).ok_or_else(|| self.blocks.damaged("holds no losses"))?;
        let known = self.process(Some(losses.0)).map(|process| process.losses = losses.1);
        known.ok_or_else(|| self.blocks.damaged("is of losses of no process"))
    }
}
