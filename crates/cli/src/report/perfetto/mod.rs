//! Calls as a timeline for ui.perfetto.dev: processes and threads as tracks, calls as slices, arguments and
//! value as annotations.
//!
//! In: calls as they end. Out: packets of Perfetto's trace format. A call that did not end becomes a slice
//! without an end if no slice of its lane ends after its begin. Otherwise it becomes an instant mark at its
//! begin, since another slice's end would end it. Packets are written in batches of calls that have ended,
//! and readers sort them by time. Packets of the same time are written as calls nest (`order`). Does not:
//! write files.

mod lanes;
mod order;
mod proto;

use std::collections::HashMap;

use prost::Message;
use trapline::calls::CallEnd;
use trapline::{Call, ProbeSpec};

use self::lanes::Lanes;
use self::order::{Edge, nested};
use self::proto::{
    DebugAnnotation, EventType, Interned, InternedData, ProcessDescriptor, Shown, ThreadDescriptor, Trace,
    TracePacket, TrackDescriptor, TrackEvent,
};
use super::calls::{Signatures, nanos, value_type};
use super::text;
use crate::args::types::{Signature, Type, Value};

const INTERNS: u32 = 2;
const FORGETS: u32 = 1;

/// A timeline, as far as it has been written.
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

/// The tracks of one thread.
#[derive(Debug, Default)]
struct Thread {
    lanes: Lanes,
    tracks: Vec<u64>,
}

/// Names, which are written once and then referred to by number.
#[derive(Debug, Default)]
struct Names(HashMap<String, u64>);

impl Names {
    /// A name's number. A new name is also added to `new`.
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
    /// Writes calls that have ended; with `last` there will be no more. `comm` returns the name of a thread
    /// that is new.
    pub(crate) fn calls(
        &mut self,
        calls: &[Call],
        last: bool,
        mut comm: impl FnMut(&Call) -> Option<String>,
    ) -> Vec<u8> {
        let mut trace = Trace::default();
        let (ended, open): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|call| call.took.is_some());
        let lanes: Vec<usize> = ended.iter().map(|call| self.lane(call)).collect();
        let placed =
            ended.iter().zip(&lanes).map(|(call, &lane)| ((call.pid, call.tid, lane), nanos(call.at)));
        for edge in nested(placed) {
            match edge {
                Edge::Begin(n) => {
                    self.begin(ended[n], lanes[n], EventType::SliceBegin, &mut comm, &mut trace.packet);
                }
                Edge::End(n) => trace.packet.push(self.end(ended[n], lanes[n])),
            }
        }
        for call in open {
            let lanes = self.threads.get(&(call.pid, call.tid)).map(|thread| &thread.lanes);
            let is_over = lanes.is_none_or(|lanes| lanes.is_over(0, nanos(call.at)));
            let runs_on = last && call.how == CallEnd::Unfinished && is_over;
            let kind = if runs_on { EventType::SliceBegin } else { EventType::Instant };
            self.begin(call, 0, kind, &mut comm, &mut trace.packet);
        }
        trace.encode_to_vec()
    }
    /// Writes the names of processes.
    pub(crate) fn names<'n>(&mut self, names: impl Iterator<Item = (u32, &'n str)>) -> Vec<u8> {
        let named = names.filter_map(|(pid, name)| {
            let uuid = *self.processes.get(&pid)?;
            Some(described(process(uuid, pid, Some(name.to_owned()))))
        });
        Trace { packet: named.collect() }.encode_to_vec()
    }
    /// The lane of a call that has ended, among its thread's lanes.
    fn lane(&mut self, call: &Call) -> usize {
        self.threads.entry((call.pid, call.tid)).or_default().lanes.place(nanos(call.at), end_of(call))
    }
    fn begin(
        &mut self,
        call: &Call,
        lane: usize,
        kind: EventType,
        comm: &mut dyn FnMut(&Call) -> Option<String>,
        packets: &mut Vec<TracePacket>,
    ) {
        let known = self.threads.get(&(call.pid, call.tid)).is_some_and(|thread| !thread.tracks.is_empty());
        let name = if known { None } else { comm(call) };
        let track = self.track(call, lane, name, packets);
        let mut interned = InternedData::default();
        let name = self.events.number(&call.site.label, &mut interned.event_names);
        let debug_annotations = self.annotations(call, &mut interned.debug_annotation_names);
        let forgets = if std::mem::replace(&mut self.begun, true) { 0 } else { FORGETS };
        packets.push(TracePacket {
            timestamp: Some(nanos(call.at)),
            track_event: Some(TrackEvent { debug_annotations, name_iid: Some(name), ..event(kind, track) }),
            interned_data: (interned != InternedData::default()).then_some(interned),
            sequence_flags: INTERNS | forgets,
            ..packet()
        });
    }
    /// The end of a call, after its begin has been written.
    fn end(&self, call: &Call, lane: usize) -> TracePacket {
        let track = self.threads[&(call.pid, call.tid)].tracks[lane];
        TracePacket {
            timestamp: Some(end_of(call)),
            track_event: Some(event(EventType::SliceEnd, track)),
            sequence_flags: INTERNS,
            ..packet()
        }
    }
    /// The track of a thread's lane, which is described before its first use.
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
            let whole = signature.filter(|_| matches!(shown, Type::Whole(_)));
            let whole = whole.map(|signature| Shown::Text(signature.show_returned(call, returned)));
            add("return", whole.unwrap_or_else(|| value(shown, returned)));
        }
        match call.how {
            CallEnd::TailCall => add("end", Shown::Text("tail call".to_owned())),
            CallEnd::Unfinished => add("end", Shown::Text("not seen".to_owned())),
            CallEnd::Entered | CallEnd::Returned => {}
        }
        annotations
    }
}

/// A register's value, in its type.
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

/// The end of a call in nanoseconds; its begin if it did not end.
fn end_of(call: &Call) -> u64 {
    nanos(call.at).saturating_add(call.took.map_or(0, nanos))
}

fn event(kind: EventType, track_uuid: u64) -> TrackEvent {
    TrackEvent { debug_annotations: Vec::new(), r#type: kind.into(), name_iid: None, track_uuid }
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
