//! A timeline in the JSON that chrome://tracing and ui.perfetto.dev read: an event for each call.
//!
//! In: calls as they end. Out: one object with a list of complete events (`"ph":"X"`), times in microseconds with three
//! decimals; arguments and values as its `args`. Does not: know files.

use std::io::Write;

use trapline::ProbeSpec;
use trapline::recorded::{Begun, Ended, Function, Process, Thread, Ticks, Visit};

use super::{Text, Types};
use crate::args::types::Signature;
use crate::report::calls::members;

/// The timeline of `dump --chrome`.
#[derive(Debug)]
pub(crate) struct Chrome<'a> {
    types: Types<'a>,
    /// Names as JSON, with quotes.
    names: Vec<String>,
    /// Process and thread.
    threads: Vec<(u32, u32)>,
    processes: Vec<(u32, String)>,
    ticks: Ticks,
    is_first: bool,
    lines: Vec<u8>,
}

impl<'a> Chrome<'a> {
    pub(crate) fn new(signatures: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        let ticks = Ticks { start: 0, ns: 1.0 };
        let (names, threads, processes) = (Vec::new(), Vec::new(), Vec::new());
        let types = Types::new(signatures);
        Self { types, names, threads, processes, ticks, is_first: true, lines: Vec::new() }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Chrome<'_> {
    fn comma(&mut self) {
        if !std::mem::replace(&mut self.is_first, false) {
            self.lines.extend_from_slice(b",\n");
        }
    }
}

impl Visit for Chrome<'_> {
    fn function(&mut self, function: &Function) {
        self.names.push(quoted(&function.site.label));
        self.types.add(function);
    }
    fn thread(&mut self, thread: Thread, process: &Process) {
        self.threads.push((process.pid, thread.tid));
        if !self.processes.iter().any(|(pid, _)| *pid == process.pid) {
            self.processes.push((process.pid, quoted(&process.name)));
        }
    }
    fn clock(&mut self, ticks: Ticks) {
        self.ticks = ticks;
    }
    fn begun(&mut self, _: &Begun) {}
    fn ended(&mut self, ended: &Ended) {
        self.comma();
        let at = |tick| self.ticks.since_begin(tick);
        let (begin, end) = (at(ended.call.begin), at(ended.end));
        let took = end.saturating_sub(begin);
        let (pid, tid) = self.threads.get(ended.call.thread).copied().unwrap_or_default();
        let name = self.names.get(ended.call.function).map_or("\"?\"", String::as_str);
        let values = ended.call.values.as_ref();
        let args = values.and_then(|values| members(values, self.types.of(ended.call.function)));
        let args = args.map_or_else(String::new, |args| format!(",\"args\":{{{args}}}"));
        // Writing into memory does not fail.
        drop(write!(
            self.lines,
            "{{\"ph\":\"X\",\"ts\":{}.{:03},\"dur\":{}.{:03},\"pid\":{pid},\"tid\":{tid},\"name\":{name}{args}}}",
            begin / 1000,
            begin % 1000,
            took / 1000,
            took % 1000
        ));
    }
}

impl Text for Chrome<'_> {
    fn head(&self) -> String {
        "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_owned()
    }
    fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }
    fn end(&mut self, _: Ticks) {
        for (pid, name) in std::mem::take(&mut self.processes) {
            self.comma();
            drop(write!(
                self.lines,
                "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":{name}}}}}"
            ));
        }
        self.lines.extend_from_slice(b"\n]}\n");
    }
}
