//! Calls as a timeline for ui.perfetto.dev: processes and threads as tracks, calls as slices, arguments and value as annotations.
//!
//! In: calls as they end. Out: packets of Perfetto's trace format. What did not end is a slice without an end where nothing ends behind
//! it, and else a mark at its begin, for its end would be taken from another slice. Packets are in the order in which calls end; readers
//! sort them by time. Does not: write.

mod lanes;
mod proto;

use std::collections::HashMap;

use prost::Message;
use trapline::{Call, How, ProbeSpec};

use self::lanes::Lanes;
use self::proto::{
    DebugAnnotation, EventType, Interned, InternedData, ProcessDescriptor, Shown, ThreadDescriptor, Trace,
    TracePacket, TrackDescriptor, TrackEvent,
};
use super::calls::{Signatures, nanos, value_type};
use super::text;
use crate::args::types::{Signature, Type, Value};

const INTERNS: u32 = 2;
const FORGETS: u32 = 1;

/// A timeline as far as it was told.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    signatures: Signatures<'a>,
    begun: bool,
    uuids: u64,
    processes: HashMap<u32, u64>,
    threads: HashMap<(u32, u32), Thread>,
    events: Names,
    arguments: Names,
}

/// A thread's tracks.
#[derive(Debug, Default)]
struct Thread {
    lanes: Lanes,
    tracks: Vec<u64>,
}

/// Names told once, and then by number.
#[derive(Debug, Default)]
struct Names(HashMap<String, u64>);

impl Names {
    /// A name's number; what is new is put into `new`.
    fn number(&mut self, name: &str, new: &mut Vec<Interned>) -> u64 {
        if let Some(&iid) = self.0.get(name) {
            return iid;
        }
        let iid = self.0.len() as u64 + 1;
        self.0.insert(name.to_owned(), iid);
        new.push(Interned { iid, name: name.to_owned() });
        iid
    }
}

impl<'a> Timeline<'a> {
    pub(crate) fn new(probes: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        Self {
            signatures: Signatures::new(probes),
            begun: false,
            uuids: 0,
            processes: HashMap::new(),
            threads: HashMap::new(),
            events: Names::default(),
            arguments: Names::default(),
        }
    }
    /// Calls that have ended; with `last` there will be no more. `comm` names a thread that was not met before.
    pub(crate) fn calls(
        &mut self,
        calls: &[Call],
        last: bool,
        mut comm: impl FnMut(&Call) -> Option<String>,
    ) -> Vec<u8> {
        let mut trace = Trace::default();
        let (ended, open): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|call| call.took.is_some());
        for call in ended.into_iter().chain(open) {
            self.call(call, last, &mut comm, &mut trace.packet);
        }
        trace.encode_to_vec()
    }
    /// What processes are called.
    pub(crate) fn names<'n>(&mut self, names: impl Iterator<Item = (u32, &'n str)>) -> Vec<u8> {
        let named = names.filter_map(|(pid, name)| {
            let uuid = *self.processes.get(&pid)?;
            Some(described(process(uuid, pid, Some(name.to_owned()))))
        });
        Trace { packet: named.collect() }.encode_to_vec()
    }
    fn call(
        &mut self,
        call: &Call,
        last: bool,
        comm: &mut dyn FnMut(&Call) -> Option<String>,
        packets: &mut Vec<TracePacket>,
    ) {
        let begin = nanos(call.at);
        let end = call.took.map(|took| begin.saturating_add(nanos(took)));
        let known = self.threads.contains_key(&(call.pid, call.tid));
        let thread = self.threads.entry((call.pid, call.tid)).or_default();
        let lane = end.map_or(0, |end| thread.lanes.place(begin, end));
        let runs_on = last && call.how == How::Unfinished && thread.lanes.is_over(lane, begin);
        let name = if known { None } else { comm(call) };
        let track = self.track(call, lane, name, packets);

        let mut interned = InternedData::default();
        let name = self.events.number(&call.site.label, &mut interned.event_names);
        let debug_annotations = self.annotations(call, &mut interned.debug_annotation_names);
        let kind = if end.is_some() || runs_on { EventType::SliceBegin } else { EventType::Instant };
        let event = |kind: EventType| TrackEvent {
            debug_annotations: Vec::new(),
            r#type: kind.into(),
            name_iid: None,
            track_uuid: track,
        };
        let begins = TrackEvent { debug_annotations, name_iid: Some(name), ..event(kind) };
        let forgets = if std::mem::replace(&mut self.begun, true) { 0 } else { FORGETS };
        packets.push(TracePacket {
            timestamp: Some(begin),
            track_event: Some(begins),
            interned_data: (interned != InternedData::default()).then_some(interned),
            sequence_flags: INTERNS | forgets,
            ..packet()
        });
        packets.extend(end.map(|end| TracePacket {
            timestamp: Some(end),
            track_event: Some(event(EventType::SliceEnd)),
            sequence_flags: INTERNS,
            ..packet()
        }));
    }
    /// The track of a thread's lane, described before it is used.
    fn track(
        &mut self,
        call: &Call,
        lane: usize,
        comm: Option<String>,
        packets: &mut Vec<TracePacket>,
    ) -> u64 {
        let mut next = || {
            self.uuids += 1;
            self.uuids
        };
        let parent = *self.processes.entry(call.pid).or_insert_with(|| {
            let uuid = next();
            packets.push(described(process(uuid, call.pid, None)));
            uuid
        });
        let tracks = &mut self.threads.entry((call.pid, call.tid)).or_default().tracks;
        while tracks.len() <= lane {
            let uuid = next();
            let track = TrackDescriptor { uuid, ..TrackDescriptor::default() };
            packets.push(described(match (tracks.first(), call.tid) {
                (None, 0) => TrackDescriptor {
                    name: Some("threads without a number".to_owned()),
                    parent_uuid: Some(parent),
                    ..track
                },
                (None, tid) => {
                    let thread =
                        ThreadDescriptor { pid: int(call.pid), tid: tid.into(), thread_name: comm.clone() };
                    TrackDescriptor { thread: Some(thread), ..track }
                }
                (Some(&first), _) => TrackDescriptor {
                    name: Some(format!("overlapping calls {}", tracks.len())),
                    parent_uuid: Some(first),
                    ..track
                },
            }));
            tracks.push(uuid);
        }
        tracks[lane]
    }
    fn annotations(&mut self, call: &Call, new: &mut Vec<Interned>) -> Vec<DebugAnnotation> {
        let signature = self.signatures.of(&call.site);
        let mut annotations = Vec::new();
        let mut add = |name: &str, value| {
            let name_iid = self.arguments.number(name, new);
            annotations.push(DebugAnnotation { name_iid, value: Some(value) });
        };
        let parameters = signature.map_or(&[][..], |signature| &signature.parameters);
        for (parameter, index) in parameters.iter().zip(0..) {
            let shown = || match parameter.raw(call) {
                Some(raw) => value(&parameter.shown, raw),
                None => Shown::Text(parameter.show(call)),
            };
            let value = text::show(call, parameter).map_or_else(shown, Shown::Text);
            match parameter.name.as_str() {
                "" => add(&format!("arg{index}"), value),
                name => add(name, value),
            }
        }
        let shown = value_type(signature);
        if let Some(returned) = call.returned.filter(|_| *shown != Type::Void) {
            add("return", value(shown, returned));
        }
        match call.how {
            How::TailCall => add("end", Shown::Text("tail call".to_owned())),
            How::Unfinished => add("end", Shown::Text("not seen".to_owned())),
            How::Entered | How::Returned => {}
        }
        annotations
    }
}

/// A register's value, as its type says.
fn value(shown: &Type, raw: u64) -> Shown {
    match (shown, shown.value(raw)) {
        (Type::Bool, Value::Number(number)) => Shown::Bool(number != 0),
        (Type::Signed(_), Value::Number(number)) => Shown::Signed(number as i64),
        (Type::Unsigned(_), Value::Number(number)) => Shown::Unsigned(number as u64),
        (_, Value::Single(real)) => Shown::Double(real.into()),
        (_, Value::Double(real)) => Shown::Double(real),
        (Type::Char | Type::Enum(_), _) => Shown::Text(shown.show(raw)),
        _ => Shown::Pointer(raw),
    }
}

fn packet() -> TracePacket {
    TracePacket { trusted_packet_sequence_id: 1, ..TracePacket::default() }
}

fn described(track: TrackDescriptor) -> TracePacket {
    TracePacket { track_descriptor: Some(track), ..packet() }
}

fn process(uuid: u64, pid: u32, name: Option<String>) -> TrackDescriptor {
    let process = ProcessDescriptor { pid: int(pid), process_name: name };
    TrackDescriptor { uuid, process: Some(process), ..TrackDescriptor::default() }
}

fn int(pid: u32) -> i32 {
    i32::try_from(pid).unwrap_or(i32::MAX)
}
