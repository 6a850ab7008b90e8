//! Probes of programs: a session that records hits, and lets those run blocks that can.
//!
//! In: a program's attach points. Out: hits with their blocks, in the order in which they happened; what the target's
//! maps hold. Does not: run blocks.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trapline::calls::{KeptPointer, KeptText};
use trapline::filter::Filter;
use trapline::report::Refused;
use trapline::stacks::Unwinding;
use trapline::system::Everyone;
use trapline::{Among, Call, Finished, Interrupt, Interrupts, ProbeSpec, Session, Target};
use trapline_script::native::{Native, Processes};
use trapline_script::{Machine, Probe, Program};

use super::found::Found;
use super::frames::Frames;
use super::host::UNNAMED;
use super::own;
use super::places::{Event, Places, event, nanos, spec};
use super::ran::Ran;
use super::recorded::Recorded;
use super::said::Line;
use super::stop::{Stop, said};
use crate::args::command::Script;

/// Bytes of a CPU's ring: room for what comes while blocks are interpreted.
const RING: u32 = 16 << 20;

/// Arguments of a function that are in every record.
const IN_REGISTERS: u16 = 6;

/// Bytes of a stack that are copied, where it is found by the tables that serve exceptions.
const COPIED: u32 = 8192;

/// A session for a script.
#[derive(Debug)]
pub(super) struct Probing {
    session: Session,
    places: Places,
    /// The blocks that hits run.
    pub(super) ran: Ran,
    /// The session's start by the boot clock.
    start: u64,
    /// The process that was launched, and the name that its main thread begins with.
    launched: Option<(u32, String)>,
    /// How many places are probed, and what is not probed.
    pub(super) attached: usize,
    pub(super) refused: Arc<Vec<Refused>>,
    /// Hits whose blocks did not run, because a value that they ask for is not known.
    pub(super) unknown: u64,
}

/// What a program asks of its hits.
#[derive(Default)]
struct Asked {
    specs: Vec<Spec>,
    /// Bit `n`: argument `n`.
    args: u16,
}

/// Arguments that the record of a probe holds as such, as bits.
const fn arguments_of(probe: &Probe) -> u16 {
    match probe {
        Probe::Usdt(..) => u16::MAX,
        _ => (1 << IN_REGISTERS) - 1,
    }
}

/// A probe of the session, and which of its ends run blocks.
struct Spec {
    text: String,
    at_entry: bool,
    at_return: bool,
    /// Bytes of the text that its return is asked for.
    returned_text: u16,
    /// What blocks at its entry need of memory.
    recorded: Recorded,
    /// Bit `n`: argument `n` is read as a text.
    texts: u16,
}

impl Asked {
    /// Notes the places of all blocks that are interpreted.
    fn of(program: &Program, found: &Found, ran: &Ran, places: &mut Places) -> Self {
        let mut asked = Self::default();
        let recorded = program.blocks.iter().enumerate().filter(|(index, _)| !ran.runs(*index));
        for (index, block) in recorded {
            for probe in found.probes(index) {
                let Some((text, at_return)) = spec(probe) else { continue };
                let nth = asked.place_of(&text);
                if places.find(found.listed(&text), (probe, nth), index, program) {
                    let spec = asked.spec(text);
                    block.needs.texts.iter().for_each(|argument| spec.texts |= 1 << argument);
                    spec.at_entry |= !at_return;
                    spec.at_return |= at_return;
                    spec.returned_text = spec.returned_text.max(block.needs.returned_text);
                    if matches!(probe, Probe::Uprobe(..)) {
                        spec.recorded.add(&block.needs.reads);
                    }
                }
                asked.args |= block.needs.args & arguments_of(probe);
            }
        }
        places.record(asked.specs.iter().map(|spec| spec.recorded.clone()).collect());
        asked
    }
    /// Where a probe is, or will be.
    fn place_of(&self, text: &str) -> usize {
        self.specs.iter().position(|spec| spec.text == text).unwrap_or(self.specs.len())
    }
    fn spec(&mut self, text: String) -> &mut Spec {
        let at = self.place_of(&text);
        if at == self.specs.len() {
            let recorded = Recorded::default();
            self.specs.push(Spec {
                text,
                at_entry: false,
                at_return: false,
                returned_text: 0,
                recorded,
                texts: 0,
            });
        }
        &mut self.specs[at]
    }
    /// How stacks are recorded, if any block asks for one. The probed function is a frame that is known.
    fn unwinding(&self, program: &Program, ran: &Ran) -> Option<Unwinding> {
        let read = || program.blocks.iter().enumerate().filter(|(index, _)| !ran.runs(*index));
        let frames = read().map(|(_, block)| block.needs.stack).max().unwrap_or(0);
        let unwound = read().any(|(_, block)| block.needs.unwound);
        (frames > 0 && !self.specs.is_empty()).then(|| match unwound {
            true => Unwinding::Copied(COPIED),
            false => Unwinding::FramePointers(frames.saturating_sub(1).max(1)),
        })
    }
    /// How many arguments records hold.
    fn arguments(&self) -> u8 {
        (u16::BITS - self.args.leading_zeros()) as u8
    }
    /// For each probe, what its records hold besides arguments.
    fn filters(&self, places: &Places) -> Result<Vec<Filter>, Stop> {
        let mut filters = self.keeps()?;
        for ((filter, recorded), spec) in filters.iter_mut().zip(places.recorded()).zip(&self.specs) {
            let fields = recorded.fields().map_err(|why| said(format!("{}: {why}", spec.text)))?;
            *filter = std::mem::take(filter).reads(fields);
        }
        Ok(filters)
    }
    /// For each probe, the text that is read at the return. The entry's record waits for the return then, so a block
    /// of the entry would run too late.
    fn keeps(&self) -> Result<Vec<Filter>, Stop> {
        let keep = |spec: &Spec| {
            let (pointer, bytes) = (KeptPointer::Returned, spec.returned_text);
            match (bytes, spec.at_entry) {
                (0, _) => Ok(Filter::default()),
                (_, true) => Err(said(format!(
                    "{}: str(retval) is recorded only where no block runs at the entry of the same function",
                    spec.text
                ))),
                _ => Ok(Filter::default().keeps(vec![KeptText { pointer, at_return: true, bytes }])),
            }
        };
        self.specs.iter().map(keep).collect()
    }
}

impl Probing {
    /// Attaches a program's probes; `None` if it has none of programs. `now` is the boot clock.
    pub(super) fn start(
        program: &Program,
        pid: Option<u32>,
        (frames, args): (Frames, &Script),
        now: &mut dyn FnMut() -> u64,
    ) -> Result<Option<Self>, Stop> {
        let found = Found::of(program, pid, &args.debug_folders)?;
        let command = args.command.as_deref();
        let (mut places, mut ran) =
            (Places::new(frames), Ran::of(program, &found, (args.interpret, processes(pid, command))));
        program.fits_records(|block| ran.why_read(block)).map_err(Stop::Said)?;
        let asked = Asked::of(program, &found, &ran, &mut places);
        let unwinding = asked.unwinding(program, &ran);
        let (mut filters, masks) =
            (asked.filters(&places)?, asked.specs.iter().map(|spec| spec.texts).collect::<Vec<_>>());
        let actions = ran.add_to(program, &mut filters);
        let recorded = asked.specs.iter().map(|spec| spec.text.as_str());
        let parsed: Result<Vec<ProbeSpec>, _> = recorded.chain(ran.specs()).map(str::parse).collect();
        let parsed = parsed.map_err(|error| said(error.to_string()))?;
        if parsed.is_empty() {
            return Ok(None);
        }
        let builder =
            Session::builder().target(target(pid, command, &args.among)).probes(parsed).filters(filters);
        let builder = builder.texts(masks.clone()).ended_texts(masks).ring(RING).returns(args.returns);
        let builder = builder.actions(actions).maps(ran.tables()).names(ran.namer());
        let builder = builder.debug_folders(&args.debug_folders);
        let builder = builder.follow_threads(true);
        let (args, returns) = (asked.arguments(), asked.specs.iter().any(|spec| spec.at_return));
        let session = match unwinding {
            Some(unwinding) => builder.stacks(unwinding, false),
            None => builder.record(args, returns),
        };
        let mut session = session.map_err(|error| said(error.without_advice().to_string()))?;
        session.announce_entries();
        let start = now().saturating_sub(nanos(session.since_start()));
        let refused =
            session.totals().first().map_or_else(Arc::default, |report| Arc::clone(&report.refused));
        let attached = places.count(&refused) + ran.count(&refused);
        let (launched, unknown) = (None, 0);
        let mut probing = Self { session, places, ran, start, launched, attached, refused, unknown };
        probing.launched = command.and_then(|words| Some((probing.pid(), first_name(words.first()?))));
        Ok(Some(probing))
    }
    /// What the session has to say.
    pub(super) fn notices(&mut self) -> Vec<String> {
        self.session.take_notices()
    }
    /// The process that is probed, if it is one.
    pub(super) fn pid(&mut self) -> u32 {
        self.session.totals().first().map_or(0, |report| report.pid)
    }
    /// Names of all processes, if all may be probed.
    pub(super) fn everyone(&self) -> Option<Everyone> {
        self.session.everyone()
    }
    /// The boot clock, as records have it.
    pub(super) fn now(&self) -> u64 {
        self.start + nanos(self.session.since_start())
    }
    /// Waits; what has come, and whether a target is left.
    pub(super) fn wait(&self, interrupts: &Interrupts, at_most: Duration) -> Option<Interrupt> {
        self.session.wait(interrupts, at_most)
    }
    /// Whether a target is left to probe.
    pub(super) fn poll(&mut self) -> bool {
        self.session.poll()
    }
    /// The hits since the last time.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let (calls, frames) = (self.session.calls(), self.places.frames.clone());
        let mut events = Vec::new();
        for call in &calls {
            let (places, unknown) = self.places.of(call);
            self.unknown += unknown;
            if places.is_empty() {
                continue;
            }
            let name = name_of(call, self.session.thread_name(call), self.launched.as_ref());
            let (start, pid) = (self.start, self.session.process_of(call).unwrap_or(call.pid));
            let of = |place| event(place, call, &frames, (pid, name.clone()), start);
            events.extend(places.into_iter().map(of));
        }
        events
    }
    /// Gives maps what the target has added up and assigned so far. Returns what hits said since the last time.
    pub(super) fn settle(&mut self, machine: &mut Machine) -> Vec<Line> {
        match self.ran.is_empty() {
            true => Vec::new(),
            false => self.ran.settle(machine, &self.session.maps(), &self.places.frames),
        }
    }
    /// Detaches, and ends the command that was launched.
    pub(super) fn abandon(mut self) {
        let pid = self.pid();
        own::end_launched(&mut self.session.detach(), pid);
    }
    /// Detaches, gives maps what the target has added up and assigned, and has what hits said `written`. Returns the hits that
    /// were left, how many had unknown values in all, how much of what hits said is lost, and the end of the session.
    pub(super) fn end(
        self,
        machine: &mut Machine,
        mut written: impl FnMut(&Native, &mut Machine, Vec<Line>),
    ) -> (Vec<Event>, [u64; 2], Finished) {
        let Self { session, mut places, ran, start, launched, mut unknown, .. } = self;
        let finished = session.detach();
        let (said, lost) = (ran.settle(machine, &finished.maps, &places.frames), ran.lost(&finished.maps));
        written(ran.native(), machine, said);
        unknown += finished.maps.iter().map(|one| one.unseen).sum::<u64>();
        let frames = places.frames.clone();
        let mut events = Vec::new();
        for call in &finished.calls {
            let name = finished.names.get(&(call.pid, call.tid)).cloned();
            let name = name_of(call, name, launched.as_ref());
            let (here, more) = places.of(call);
            unknown += more;
            let pid = finished.processes.get(&(call.pid, call.tid)).copied().unwrap_or(call.pid);
            let of = |place| event(place, call, &frames, (pid, name.clone()), start);
            events.extend(here.into_iter().map(of));
        }
        (events, [unknown, lost], finished)
    }
}

/// The name that the kernel gives to the main thread of a program: its file's, cut to 15 bytes.
fn first_name(program: &str) -> String {
    let name = Path::new(program).file_name().unwrap_or_default().as_encoded_bytes();
    String::from_utf8_lossy(&name[..name.len().min(15)]).into_owned()
}

/// A thread's name. One that ended before its name was read has the name that it began with, if that is known.
fn name_of(call: &Call, read: Option<String>, launched: Option<&(u32, String)>) -> String {
    let first =
        || launched.filter(|(pid, _)| (call.pid, call.tid) == (*pid, *pid)).map(|(_, name)| name.clone());
    read.or_else(first).unwrap_or_else(|| UNNAMED.to_owned())
}

/// What is known of the processes that are probed: nothing, if they are found by their files.
fn processes(pid: Option<u32>, command: Option<&[String]>) -> Processes {
    let is_launched = command.is_some();
    let same_tids = is_launched || pid.is_some_and(trapline::system::shares_numbers);
    Processes { one: is_launched || pid.is_some(), same_tids }
}

/// The processes that are probed.
pub(super) fn target(pid: Option<u32>, command: Option<&[String]>, among: &Among) -> Target {
    match (pid, command) {
        (_, Some(words)) => Target::Launch(words.iter().map(OsString::from).collect()),
        (Some(pid), None) => Target::Running { pids: vec![pid], names: Vec::new() },
        (None, None) => Target::All(among.clone()),
    }
}
