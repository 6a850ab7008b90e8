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
use trapline_script::{Program, Totals};

use super::found::Found;
use super::places::{Event, Places, event, nanos, spec};
use super::stop::{Stop, said};
use super::tallied::{ROWS, Tallying};

/// Bytes of a CPU's ring: room for what comes while blocks are interpreted.
const RING: u32 = 16 << 20;

/// Stands for a name that is not known.
const UNNAMED: &str = "?";

/// A session for a script.
#[derive(Debug)]
pub(super) struct Probing {
    session: Session,
    places: Places,
    pub(super) tallying: Tallying,
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
    fn of(program: &Program, found: &Found, tallying: &Tallying, places: &mut Places) -> Self {
        let mut asked = Self::default();
        let recorded = program.blocks.iter().enumerate().filter(|(index, _)| !tallying.counts(*index));
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
        let (mut places, tallying) = (Places::default(), Tallying::of(program, &found, interpret));
        let asked = Asked::of(program, &found, &tallying, &mut places);
        let (actions, mut filters) = tallying.requests();
        let mut masks = vec![0; filters.len()];
        filters.extend(asked.keeps()?);
        masks.resize(filters.len(), asked.texts);
        let recorded = asked.specs.iter().map(|spec| spec.text.as_str());
        let parsed: Result<Vec<ProbeSpec>, _> = tallying.specs().chain(recorded).map(str::parse).collect();
        let parsed = parsed.map_err(|error| said(error.to_string()))?;
        if parsed.is_empty() {
            return Ok(None);
        }
        let builder = Session::builder().target(target(pid, command)).probes(parsed).filters(filters);
        let builder = builder.texts(masks.clone()).ended_texts(masks).ring(RING);
        let rows = if tallying.has_keys() { ROWS } else { 0 };
        let builder = builder.actions(actions).by(Some(By::Thread)).rows(rows);
        let (args, returns) = (asked.arguments(), asked.specs.iter().any(|spec| spec.at_return));
        let mut session = builder.record(args, returns).map_err(|error| said(error.to_string()))?;
        session.announce_entries();
        let start = now().saturating_sub(nanos(session.since_start()));
        let refused =
            session.totals().first().map_or_else(Arc::default, |report| Arc::clone(&report.refused));
        let attached = (places.count() + tallying.count()).saturating_sub(refused.len());
        let (launched, unknown) = (None, 0);
        let mut probing = Self { session, places, tallying, start, launched, attached, refused, unknown };
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
    /// What the target has counted so far.
    pub(super) fn totals(&mut self) -> Totals {
        let (reports, tallies) = (self.session.totals(), self.session.tallies());
        self.tallying.totals(&reports, &tallies).0
    }
    /// Detaches; the hits that were left, what the target has counted, how many hits had unknown values in all, and the end
    /// of the session.
    pub(super) fn end(self) -> (Vec<Event>, Totals, u64, Finished) {
        let Self { session, mut places, tallying, start, launched, mut unknown, .. } = self;
        let finished = session.detach();
        let (totals, unseen) = tallying.totals(&finished.reports, &finished.tallies);
        unknown += unseen;
        let mut events = Vec::new();
        for call in &finished.calls {
            let name = finished.names.get(&(call.pid, call.tid)).cloned();
            let name = name_of(call, name, launched.as_ref());
            let (here, more) = places.of(call);
            unknown += more;
            events.extend(here.into_iter().map(|place| event(place, call, name.clone(), start)));
        }
        (events, totals, unknown, finished)
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
