//! A profile for pprof: the messages of google/pprof's proto/profile.proto that stacks need, compressed.
//!
//! In: stacks. Out: the bytes of a `.pb.gz`. Every text is an index into one table; the table's first entry
//! is empty. A location is an address of a file; it has a line for each function that was inlined there,
//! innermost first. Locations are identified by file and offset, so one that was mapped twice is one
//! location. Field numbers are the format's.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use trapline::stacks::{Function, StackSum};

use super::Shown;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<FunctionRow>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct FunctionRow {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The tables with numbered entries, from 1 on.
#[derive(Debug, Default)]
struct Numbers {
    texts: HashMap<String, i64>,
    mappings: HashMap<String, u64>,
    functions: HashMap<(String, Option<String>), u64>,
    /// Keyed by mapping, address, and the first function's name.
    locations: HashMap<(u64, u64, String), u64>,
}

/// The bytes of the file.
pub(crate) fn encode(shown: &mut Shown<'_>) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    to.write_all(&profile(shown).encode_to_vec()).ok();
    to.finish().unwrap_or_default()
}

fn profile(shown: &mut Shown<'_>) -> Profile {
    let (mut profile, mut numbers) = (Profile::default(), Numbers::default());
    text(&mut profile, &mut numbers, "");
    let mut kinds = vec![("calls", "count")];
    kinds.extend(shown.time.then_some(("time", "nanoseconds")));
    for (kind, unit) in kinds {
        let kind = text(&mut profile, &mut numbers, kind);
        let unit = text(&mut profile, &mut numbers, unit);
        profile.sample_type.push(ValueType { kind, unit });
        profile.default_sample_type = kind;
    }
    let stacks = shown.stacks;
    for stack in stacks {
        let frames = shown.frames(stack);
        let sample = sample(&mut profile, &mut numbers, stack, &frames, shown.time);
        profile.sample.push(sample);
    }
    profile
}

fn sample(
    profile: &mut Profile,
    numbers: &mut Numbers,
    stack: &StackSum,
    frames: &[Arc<[Function]>],
    time: bool,
) -> Sample {
    let each = stack.frames.iter().zip(frames);
    let location_id = each
        .map(|(frame, functions)| {
            let offset = frame.place.as_ref().map_or(frame.address, |(_, offset)| *offset);
            // For functions without a name, pprof itself looks one byte before a return address. These have
            // names.
            location(profile, numbers, offset, functions)
        })
        .collect();
    let nanos = i64::try_from(stack.time.as_nanos()).unwrap_or(i64::MAX);
    let calls = i64::try_from(stack.calls).unwrap_or(i64::MAX);
    let value = std::iter::once(calls).chain(time.then_some(nanos)).collect();
    let process = Label {
        key: text(profile, numbers, "process"),
        text: text(profile, numbers, &stack.process),
        num: 0,
    };
    let pid = Label { key: text(profile, numbers, "pid"), text: 0, num: stack.pid.into() };
    Sample { location_id, value, label: vec![process, pid] }
}

fn location(profile: &mut Profile, numbers: &mut Numbers, address: u64, functions: &[Function]) -> u64 {
    let mapping_id =
        functions.first().and_then(|f| f.module.as_deref()).map_or(0, |m| mapping(profile, numbers, m));
    let first = functions.first().map_or_else(String::new, |function| function.name.clone());
    let next = numbers.locations.len() as u64 + 1;
    let id = *numbers.locations.entry((mapping_id, address, first)).or_insert(next);
    if id == next {
        let line = |f: &Function| Line {
            function_id: function(profile, numbers, f),
            line: f.line.as_ref().map_or(0, |(_, line)| i64::from(*line)),
        };
        let line = functions.iter().map(line).collect();
        profile.location.push(Location { id, mapping_id, address, line });
    }
    id
}

fn mapping(profile: &mut Profile, numbers: &mut Numbers, path: &str) -> u64 {
    let next = numbers.mappings.len() as u64 + 1;
    let id = *numbers.mappings.entry(path.to_owned()).or_insert(next);
    if id == next {
        let filename = text(profile, numbers, path);
        profile.mapping.push(Mapping { id, filename, has_functions: true });
    }
    id
}

fn function(profile: &mut Profile, numbers: &mut Numbers, f: &Function) -> u64 {
    let file = f.line.as_ref().map(|(file, _)| file.clone());
    let next = numbers.functions.len() as u64 + 1;
    let id = *numbers.functions.entry((f.name.clone(), file.clone())).or_insert(next);
    if id == next {
        let name = text(profile, numbers, &f.name);
        let filename = file.map_or(0, |file| text(profile, numbers, &file));
        profile.function.push(FunctionRow { id, name, system_name: name, filename });
    }
    id
}

/// A text's index in the table.
fn text(profile: &mut Profile, numbers: &mut Numbers, text: &str) -> i64 {
    let next = profile.string_table.len() as i64;
    let id = *numbers.texts.entry(text.to_owned()).or_insert(next);
    if id == next {
        profile.string_table.push(text.to_owned());
    }
    id
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use prost::Message as _;

    use super::super::Shown;
    use super::super::tests::sample;
    use super::Profile;

    #[test]
    fn every_number_leads_somewhere() {
        let stacks = sample();
        let mut bytes = Vec::new();
        let file = super::encode(&mut Shown::new(&stacks, true));
        GzDecoder::new(&*file).read_to_end(&mut bytes).expect("compressed");
        let profile = Profile::decode(&*bytes).expect("a profile");
        let text = |n: i64| profile.string_table[n as usize].as_str();
        assert_eq!(profile.string_table[0], "");
        let kinds: Vec<_> = profile.sample_type.iter().map(|t| (text(t.kind), text(t.unit))).collect();
        assert_eq!(kinds, [("calls", "count"), ("time", "nanoseconds")]);
        assert_eq!(text(profile.default_sample_type), "time");
        let names = |ids: &[u64]| -> Vec<&str> {
            let location = |id: &u64| profile.location.iter().find(|one| one.id == *id).expect("a location");
            let function = |id: u64| profile.function.iter().find(|one| one.id == id).expect("a function");
            ids.iter().map(|id| text(function(location(id).line[0].function_id).name)).collect()
        };
        let samples: Vec<_> =
            profile.sample.iter().map(|s| (names(&s.location_id), s.value.clone())).collect();
        assert_eq!(
            samples,
            [(vec!["f", "[0x20]", "[0x30]"], vec![3, 3000]), (vec!["f", "[0x40]"], vec![1, 1000])]
        );
        assert_eq!((profile.location.len(), profile.function.len()), (4, 4), "each once");
        let label = &profile.sample[0].label;
        assert_eq!(
            (text(label[0].key), text(label[0].text), label[1].num),
            ("process", "x;y", i64::from(u32::MAX))
        );
    }
}
