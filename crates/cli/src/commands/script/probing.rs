//! Probes of programs: a session that records hits, and which blocks each of them runs.
//!
//! In: a program's attach points. Out: hits with their blocks, in the order in which they happened. What an attach point
//! means is asked of the session's own search, one by one, so a hit is known by file and offset. Does not: run blocks.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use trapline::calls::CallEnd;
use trapline::{Call, Finished, Interrupt, Interrupts, ProbeSpec, Session, Target};
use trapline_script::{Hit, Probe, Program};

use super::stop::{Stop, said};

/// Bytes of a CPU's ring: room for what comes while blocks are interpreted.
const RING: u32 = 16 << 20;

/// A block that runs at a place.
#[derive(Debug, Clone)]
struct Place {
    block: usize,
    /// The entry, or the return.
    at_return: bool,
    sort: &'static str,
    /// As `probe` gives it.
    name: String,
    func: String,
}

/// Where blocks run: by file and offset.
type Places = HashMap<(PathBuf, u64), Vec<Place>>;

/// A hit, and a block that it runs.
pub(super) type Event = (usize, Hit);

/// A session for a script.
#[derive(Debug)]
pub(super) struct Probing {
    session: Session,
    places: Places,
    /// The session's start by the boot clock.
    start: u64,
    /// How many places are probed.
    pub(super) attached: usize,
}

/// The session and the text of one attach point.
fn spec(probe: &Probe) -> Option<(String, bool)> {
    match probe {
        Probe::Uprobe(file, function) => Some((format!("uprobe:{file}:{function}"), false)),
        Probe::Uretprobe(file, function) => Some((format!("uprobe:{file}:{function}"), true)),
        Probe::Usdt(file, provider, name) if provider.is_empty() => {
            Some((format!("usdt:{file}:{name}"), false))
        }
        Probe::Usdt(file, provider, name) => Some((format!("usdt:{file}:{provider}:{name}"), false)),
        _ => None,
    }
}

/// A file's own path.
fn real(path: &str) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path))
}

impl Probing {
    /// Attaches a program's probes; `None` if it has none of programs. `now` is the boot clock.
    pub(super) fn start(
        program: &Program,
        pid: Option<u32>,
        command: Option<&[String]>,
        now: &mut dyn FnMut() -> u64,
    ) -> Result<Option<Self>, Stop> {
        let mut specs: Vec<String> = Vec::new();
        let mut places = Places::new();
        let (mut args, mut texts, mut returns) = (0, 0u8, false);
        for (index, block) in program.blocks.iter().enumerate() {
            for probe in &block.probes {
                let Some((text, at_return)) = spec(probe) else { continue };
                let found = find(&text, probe, index, at_return, &mut places, program)?;
                if found && !specs.contains(&text) {
                    specs.push(text);
                }
                returns |= at_return;
                args = args.max(block.needs.args);
                block.needs.texts.iter().for_each(|argument| texts |= 1 << argument);
            }
        }
        if specs.is_empty() {
            return Ok(None);
        }
        let parsed: Result<Vec<ProbeSpec>, _> = specs.iter().map(|text| text.parse()).collect();
        let parsed = parsed.map_err(|error| said(error.to_string()))?;
        let masks = vec![texts; parsed.len()];
        let builder = Session::builder().target(target(pid, command)).probes(parsed);
        let builder = builder.texts(masks.clone()).ended_texts(masks).ring(RING);
        let mut session = builder.record(args, returns).map_err(|error| said(error.to_string()))?;
        session.announce_entries();
        let start = now().saturating_sub(nanos(session.since_start()));
        let attached = places.values().map(Vec::len).sum();
        Ok(Some(Self { session, places, start, attached }))
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
            let places = places_of(&self.places, call);
            if places.is_empty() {
                continue;
            }
            let name = self.session.thread_name(call).unwrap_or_default();
            events.extend(places.into_iter().map(|place| event(place, call, name.clone(), self.start)));
        }
        events
    }
    /// Detaches; the hits that were left, and the end of the session.
    pub(super) fn end(self) -> (Vec<Event>, Finished) {
        let Self { session, places, start, .. } = self;
        let finished = session.detach();
        let mut events = Vec::new();
        for call in &finished.calls {
            let name = finished.names.get(&(call.pid, call.tid)).cloned().unwrap_or_default();
            let here = places_of(&places, call).into_iter();
            events.extend(here.map(|place| event(place, call, name.clone(), start)));
        }
        (events, finished)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The processes that are probed.
fn target(pid: Option<u32>, command: Option<&[String]>) -> Target {
    match (pid, command) {
        (_, Some(words)) => Target::Launch(words.iter().map(OsString::from).collect()),
        (Some(pid), None) => Target::Running { pids: vec![pid], names: Vec::new() },
        (None, None) => Target::Any,
    }
}

/// Notes the places that an attach point means; whether there are any. `missing_probes` says whether it must have some.
fn find(
    text: &str,
    probe: &Probe,
    block: usize,
    at_return: bool,
    places: &mut Places,
    program: &Program,
) -> Result<bool, Stop> {
    let listing = Session::builder()
        .probe(text)
        .map_err(|error| said(format!("{probe}: {error}")))?
        .list(false)
        .map(|listing| listing.listed);
    let listed = match listing {
        Ok(listed) if !listed.is_empty() => listed,
        other => {
            let reason = other.err().map_or_else(|| "nothing matches".to_owned(), |error| error.to_string());
            return match program.config.missing_probes.as_str() {
                "error" => Err(said(format!("No matches for {probe}: {reason}"))),
                "warn" => {
                    super::stop::say(&format!("WARNING: No matches for {probe}: {reason}\n"));
                    Ok(false)
                }
                _ => Ok(false),
            };
        }
    };
    for one in listed {
        let prefix = match probe {
            Probe::Usdt(..) => one.probe.clone(),
            Probe::Uprobe(file, _) | Probe::Uretprobe(file, _) => {
                format!("{}:{file}:{}", probe.sort(), one.function)
            }
            _ => probe.to_string(),
        };
        let place = Place { block, at_return, sort: probe.sort(), name: prefix, func: one.function };
        places.entry((real(&one.file), one.offset)).or_default().push(place);
    }
    Ok(true)
}

/// The places whose blocks a call runs now.
fn places_of<'a>(places: &'a Places, call: &Call) -> Vec<&'a Place> {
    let at_return = match call.how {
        CallEnd::Entered => false,
        CallEnd::Returned | CallEnd::TailCall => true,
        CallEnd::Unfinished => return Vec::new(),
    };
    let key = (real(&call.site.file), call.site.offset);
    places.get(&key).into_iter().flatten().filter(|place| place.at_return == at_return).collect()
}

fn event(place: &Place, call: &Call, comm: String, start: u64) -> Event {
    let at = call.at + if place.at_return { call.took.unwrap_or_default() } else { Duration::ZERO };
    let texts = call.texts.iter().map(|text| (text.argument, text.bytes.clone())).collect();
    let hit = Hit {
        probe: place.name.clone(),
        sort: place.sort,
        func: place.func.clone(),
        pid: call.pid,
        tid: call.tid,
        comm: comm.into_bytes(),
        nsecs: Some(start + nanos(at)),
        args: call.arguments.to_vec(),
        texts,
        retval: call.returned.unwrap_or(0),
        stack: Vec::new(),
    };
    (place.block, hit)
}
