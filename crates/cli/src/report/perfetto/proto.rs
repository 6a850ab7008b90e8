//! The messages of a Perfetto trace that a timeline uses. Field numbers are those of Perfetto's
//! `trace_packet.proto`, `track_descriptor.proto`, `track_event.proto` and `debug_annotation.proto`
//! (<https://perfetto.dev/docs/reference/synthetic-track-event>).
//!
//! Does not: decide what is written.

use prost::{Message, Oneof};

/// A file is any number of these messages, one after the other.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(super) packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(super) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    /// Bit 0: forget what was interned before. Bit 1: this packet uses interned data.
    #[prost(uint32, tag = "13")]
    pub(super) sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(super) uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(int64, tag = "2")]
    pub(super) tid: i64,
    #[prost(string, optional, tag = "5")]
    pub(super) thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", tag = "9")]
    pub(super) r#type: i32,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(super) track_uuid: u64,
}

/// The effect of an event on its track.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub(super) name_iid: u64,
    #[prost(oneof = "Shown", tags = "2, 3, 4, 5, 6, 7")]
    pub(super) value: Option<Shown>,
}

/// An annotation's value.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Shown {
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    #[prost(int64, tag = "4")]
    Signed(i64),
    #[prost(double, tag = "5")]
    Double(f64),
    #[prost(string, tag = "6")]
    Text(String),
    #[prost(uint64, tag = "7")]
    Pointer(u64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<Interned>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
}
