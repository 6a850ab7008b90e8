//! Probes of programs: a session that records hits, and counts those that the target counts by itself.
//!
//! In: a program's attach points. Out: hits with their blocks, in the order in which they happened; what was counted.
//! Does not: run blocks.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trapline::calls::{KeptPointer, KeptText};
use trapline::filter::Filter;
use trapline::report::Refused;
use trapline::{By, Call, Finished, Interrupt, Interrupts, ProbeSpec, Session, Target};
use trapline_script::{Block, Machine, Probe, Program};

use super::found::Found;
use super::places::{Event, Places, event, nanos, spec};
use super::ran::Ran;
use super::stop::{Stop, said};
use super::tallied::Tallying;

/// Bytes of a CPU's ring: room for what comes while blocks are interpreted.
const RING: u32 = 16 << 20;

/// Tables have 2 to the power of this many rows: twice as many as a map has keys.
const ROWS: u8 = 13;

/// Stands for a name that is not known.
const UNNAMED: &str = "?";

/// A session for a script.
#[derive(Debug)]
pub(super) struct Probing {
    session: Session,
    places: Places,
    pub(super) tallying: Tallying,
    /// The blocks that hits run, or why they do not.
    pub(super) ran: Result<Ran, String>,
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
    /// Bit `n`: argument `n`; and those that are read as texts.
    args: u16,
    texts: u16,
}

/// A probe of the session, and which of its ends run blocks.
struct Spec {
    text: String,
    at_entry: bool,
    at_return: bool,
    /// Bytes of the text that its return is asked for.
    returned_text: u16,
}

impl Asked {
    /// Notes the places of all blocks.
    fn of(
        program: &Program,
        found: &Found,
        is_recorded: &dyn Fn(usize) -> bool,
        places: &mut Places,
    ) -> Self {
        let mut asked = Self::default();
        let recorded = program.blocks.iter().enumerate().filter(|(index, _)| is_recorded(*index));
        for (index, block) in recorded {
            for probe in &block.probes {
                let Some((text, at_return)) = spec(probe) else { continue };
                if places.find(found.listed(&text), probe, index, program) {
                    let spec = asked.spec(text);
                    spec.at_entry |= !at_return;
                    spec.at_return |= at_return;
                    spec.returned_text = spec.returned_text.max(block.needs.returned_text);
                }
                asked.args |= block.needs.args;
                block.needs.texts.iter().for_each(|argument| asked.texts |= 1 << argument);
            }
        }
        asked
    }
    fn spec(&mut self, text: String) -> &mut Spec {
        let found = self.specs.iter().position(|spec| spec.text == text);
        let at = found.unwrap_or_else(|| {
            self.specs.push(Spec { text, at_entry: false, at_return: false, returned_text: 0 });
            self.specs.len() - 1
        });
        &mut self.specs[at]
    }
    /// How many arguments records hold.
    fn arguments(&self) -> u8 {
        (u16::BITS - self.args.leading_zeros()) as u8
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
        command: Option<&[String]>,
        interpret: bool,
        now: &mut dyn FnMut() -> u64,
    ) -> Result<Option<Self>, Stop> {
        let found = Found::of(program)?;
        let (mut places, mut tallying) = (Places::default(), Tallying::of(program, &found, interpret));
        let (mut filters, mut actions) = (Vec::new(), Vec::new());
        let ran = ran(program, &found, &tallying, interpret).and_then(|mut ran| {
            ran.add_to(program, &mut filters, &mut actions)?;
            Ok(ran)
        });
        if ran.is_ok() {
            tallying = Tallying::of(program, &found, true);
        }
        let is_recorded = |block: usize| ran.is_err() && !tallying.counts(block);
        let asked = Asked::of(program, &found, &is_recorded, &mut places);
        let masks = vec![asked.texts; asked.specs.len()];
        if ran.is_err() {
            filters = asked.keeps()?;
            actions = tallying.add_to(&mut filters);
        }
        let recorded = asked.specs.iter().map(|spec| spec.text.as_str());
        let ran_specs = ran.iter().flat_map(Ran::specs);
        let parsed: Result<Vec<ProbeSpec>, _> =
            recorded.chain(tallying.specs()).chain(ran_specs).map(str::parse).collect();
        let parsed = parsed.map_err(|error| said(error.to_string()))?;
        if parsed.is_empty() {
            return Ok(None);
        }
        let builder = Session::builder().target(target(pid, command)).probes(parsed).filters(filters);
        let builder = builder.texts(masks.clone()).ended_texts(masks).ring(RING);
        let builder = builder.actions(actions).by(Some(By::Thread)).rows(ROWS);
        let builder = builder.maps(ran.as_ref().map(Ran::tables).unwrap_or_default());
        let (args, returns) = (asked.arguments(), asked.specs.iter().any(|spec| spec.at_return));
        let mut session = builder.record(args, returns).map_err(|error| said(error.to_string()))?;
        session.announce_entries();
        let start = now().saturating_sub(nanos(session.since_start()));
        let refused =
            session.totals().first().map_or_else(Arc::default, |report| Arc::clone(&report.refused));
        let counted = tallying.count() + ran.as_ref().map_or(0, Ran::count);
        let attached = (places.count() + counted).saturating_sub(refused.len());
        let (launched, unknown) = (None, 0);
        let mut probing =
            Self { session, places, tallying, ran, start, launched, attached, refused, unknown };
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
        let calls = self.session.calls();
        let mut events = Vec::new();
        for call in &calls {
            let (places, unknown) = self.places.of(call);
            self.unknown += unknown;
            if places.is_empty() {
                continue;
            }
            let name = name_of(call, self.session.thread_name(call), self.launched.as_ref());
            events.extend(places.into_iter().map(|place| event(place, call, name.clone(), self.start)));
        }
        events
    }
    /// Gives maps what the target has added up and assigned so far, if it does.
    pub(super) fn settle(&mut self, machine: &mut Machine) {
        match &self.ran {
            Ok(ran) => {
                ran.settle(machine, &self.session.maps());
            }
            Err(_) if self.tallying.count() > 0 => {
                let (reports, tallies) = (self.session.totals(), self.session.tallies());
                machine.settle(self.tallying.totals(&reports, &tallies).0);
            }
            Err(_) => {}
        }
    }
    /// Where blocks of programs run, a line each.
    pub(super) fn lines(&self, program: &Program) -> String {
        match &self.ran {
            Ok(_) => "Run in the target: all blocks\n".to_owned(),
            Err(why) => format!("Not run in the target: {why}\n{}", self.tallying.lines(program)),
        }
    }
    /// Whether a block of our own names what the target counts or assigns.
    pub(super) fn is_awaited(&self, block: usize) -> bool {
        self.ran.is_ok() || self.tallying.is_awaited(block)
    }
    /// Detaches, and gives maps what the target has added up and assigned. Returns the hits that were left, how many had
    /// unknown values in all, and the end of the session.
    pub(super) fn end(self, machine: &mut Machine) -> (Vec<Event>, u64, Finished) {
        let Self { session, mut places, tallying, ran, start, launched, mut unknown, .. } = self;
        let finished = session.detach();
        match &ran {
            Ok(ran) => {
                ran.settle(machine, &finished.maps);
                unknown += finished.maps.iter().map(|one| one.unseen).sum::<u64>();
            }
            Err(_) => {
                let (totals, unseen) = tallying.totals(&finished.reports, &finished.tallies);
                machine.settle(totals);
                unknown += unseen;
            }
        }
        let mut events = Vec::new();
        for call in &finished.calls {
            let name = finished.names.get(&(call.pid, call.tid)).cloned();
            let name = name_of(call, name, launched.as_ref());
            let (here, more) = places.of(call);
            unknown += more;
            events.extend(here.into_iter().map(|place| event(place, call, name.clone(), start)));
        }
        (events, unknown, finished)
    }
}

/// The blocks that hits run in the target: all of programs, unless counting them is enough.
fn ran(program: &Program, found: &Found, tallying: &Tallying, interpret: bool) -> Result<Ran, String> {
    let mut blocks = program.blocks.iter().enumerate();
    let of_programs = |block: &Block| block.probes.iter().any(Probe::is_of_program);
    match () {
        () if interpret => Err("--interpret".to_owned()),
        () if blocks.all(|(nth, block)| !of_programs(block) || tallying.counts(nth)) => {
            Err("they are counted there".to_owned())
        }
        () => Ran::of(program, found),
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

/// The processes that are probed.
fn target(pid: Option<u32>, command: Option<&[String]>) -> Target {
    match (pid, command) {
        (_, Some(words)) => Target::Launch(words.iter().map(OsString::from).collect()),
        (Some(pid), None) => Target::Running { pids: vec![pid], names: Vec::new() },
        (None, None) => Target::Any,
    }
}
