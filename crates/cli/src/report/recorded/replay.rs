//! Calls as they happened, in the form of `uftrace replay`.
//!
//! In: calls as they begin and end, in the order of time. Out: a line for each of both; one line for a call without calls
//! within it. Does not: know files.

use std::io::Write;

use trapline::ProbeSpec;
use trapline::calls::CallEnd;
use trapline::recorded::{Begun, Ended, Function, Process, Thread, Ticks, Visit};

use super::{Names, Text, Types};
use crate::args::command::record::Fields;
use crate::args::types::{Signature, Type};
use crate::report::calls::{arguments, returned_value, value_type};
use crate::report::digits::padded;

/// The lines of `replay`.
#[derive(Debug)]
pub(crate) struct Replay<'a> {
    fields: Fields,
    names: Names,
    types: Types<'a>,
    threads: Vec<u32>,
    /// By thread: a call that has begun, and whose line is not written yet.
    waiting: Vec<Option<Begun>>,
    ticks: Ticks,
    lines: Vec<u8>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(fields: Fields, signatures: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        let ticks = Ticks { start: 0, ns: 1.0 };
        let (names, threads) = (Names::default(), Vec::new());
        let types = Types::new(signatures);
        Self { fields, names, types, threads, waiting: Vec::new(), ticks, lines: Vec::new() }
    }
    /// What stands before a call: those fields that are asked for. `took`: nanoseconds, or a text in their place.
    fn head(&mut self, at: u64, took: Result<u64, &[u8; 10]>, thread: usize) {
        let (lines, fields) = (&mut self.lines, self.fields);
        if fields.elapsed {
            let ns = self.ticks.since_begin(at);
            padded(lines, ns / 1_000_000_000, 5, b' ');
            lines.push(b'.');
            padded(lines, ns % 1_000_000_000, 9, b'0');
            lines.push(b' ');
        }
        if fields.duration {
            match took {
                Ok(ns) => push_duration(lines, ns),
                Err(text) => lines.extend_from_slice(text),
            }
            lines.push(b' ');
        }
        if fields.tid {
            lines.push(b'[');
            padded(lines, self.threads.get(thread).copied().unwrap_or(0).into(), 7, b' ');
            lines.extend_from_slice(b"] ");
        }
        if fields != Fields::NONE {
            lines.extend_from_slice(b"| ");
        }
    }
    /// A line of what happened at a tick: `{elapsed:>15} {took:>10} [{tid:>7}] | {indent}{call}`, with those fields that are asked
    /// for. `part`: which part of the call it is.
    fn line(&mut self, at: u64, took: Option<u64>, call: &Begun, part: Part) {
        self.head(at, took.ok_or(&[b' '; 10]), call.thread);
        let lines = &mut self.lines;
        lines.resize(lines.len() + 2 * call.depth, b' ');
        let name = self.names.get(call.function).as_bytes();
        let signature = self.types.of(call.function);
        let value = |lines: &mut Vec<u8>, how| {
            let Some(values) = call.values.as_ref().filter(|_| has_value(signature)) else { return };
            match how {
                CallEnd::TailCall => lines.extend_from_slice(b" = ? (tail call)"),
                CallEnd::Returned => returned_value(lines, values, values.returned, signature),
                CallEnd::Unfinished | CallEnd::Entered => {}
            }
        };
        if let Part::Begin | Part::Whole(_) = part {
            lines.extend_from_slice(name);
            match &call.values {
                Some(values) => arguments(lines, values, signature, &mut None),
                None => lines.extend_from_slice(b"()"),
            }
        }
        match part {
            Part::Begin => lines.extend_from_slice(b" {"),
            Part::Whole(how) => {
                value(lines, how);
                lines.push(b';');
            }
            Part::End(how) => {
                lines.push(b'}');
                let bare = lines.len();
                value(lines, how);
                if lines.len() > bare {
                    lines.push(b';');
                }
                lines.extend_from_slice(b" /* ");
                lines.extend_from_slice(name);
                lines.extend_from_slice(b" */");
            }
        }
        lines.push(b'\n');
    }
    /// Writes the line of the call that has begun last: it has calls within it.
    fn open(&mut self, thread: usize) {
        if let Some(call) = self.waiting.get_mut(thread).and_then(Option::take) {
            self.line(call.begin, None, &call, Part::Begin);
        }
    }
}

/// Part of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It begins, and has calls within it.
    Begin,
    /// All of it.
    Whole(CallEnd),
    /// It ends.
    End(CallEnd),
}

/// Whether calls of a function return something.
fn has_value(signature: Option<&Signature>) -> bool {
    *value_type(signature) != Type::Void
}

/// A duration in ten characters, in the unit that leaves one to three digits before the point.
fn push_duration(lines: &mut Vec<u8>, ns: u64) {
    let (width, unit, thousandths) = match ns {
        0..1_000 => {
            padded(lines, ns, 7, b' ');
            return lines.extend_from_slice(b" ns");
        }
        1_000..1_000_000 => (3, " us", ns),
        1_000_000..1_000_000_000 => (3, " ms", (ns + 500) / 1_000),
        _ => (4, " s", (ns + 500_000) / 1_000_000),
    };
    padded(lines, thousandths / 1_000, width, b' ');
    lines.push(b'.');
    padded(lines, thousandths % 1_000, 3, b'0');
    lines.extend_from_slice(unit.as_bytes());
}

impl Visit for Replay<'_> {
    fn function(&mut self, function: &Function) {
        self.names.add(function);
        self.types.add(function);
    }
    fn thread(&mut self, thread: Thread, _: &Process) {
        self.threads.push(thread.tid);
        self.waiting.push(None);
    }
    fn clock(&mut self, ticks: Ticks) {
        self.ticks = ticks;
    }
    fn callers(&mut self, call: &Begun, functions: &[usize]) {
        self.open(call.thread);
        for (nth, function) in functions.iter().enumerate() {
            self.head(call.begin, Err(b" backtrace"), call.thread);
            let name = self.names.get(*function);
            // Writing into memory does not fail.
            let space = if self.fields == Fields::NONE { " " } else { "" };
            drop(writeln!(self.lines, "{space}/* [{nth:2}] {name} */"));
        }
    }
    fn begun(&mut self, call: &Begun) {
        self.open(call.thread);
        self.waiting[call.thread] = Some(call.clone());
    }
    fn ended(&mut self, ended: &Ended) {
        let call = &ended.call;
        let took = match ended.how {
            CallEnd::Unfinished | CallEnd::Entered => None,
            CallEnd::Returned | CallEnd::TailCall => {
                Some(self.ticks.nanos(ended.end.saturating_sub(call.begin)))
            }
        };
        match self.waiting[call.thread].take() {
            Some(_) => self.line(call.begin, took, call, Part::Whole(ended.how)),
            None => self.line(ended.end, took, call, Part::End(ended.how)),
        }
    }
}

impl Text for Replay<'_> {
    fn head(&self) -> String {
        let Fields { elapsed, duration, tid } = self.fields;
        if self.fields == Fields::NONE {
            return String::new();
        }
        let parts = [(elapsed, "     elapsed    "), (duration, " duration  "), (tid, "     tid     ")];
        let parts: String =
            parts.into_iter().filter_map(|(is_shown, part)| is_shown.then_some(part)).collect();
        format!("#{}function\n", &parts)
    }
    fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }
    fn end(&mut self, _: Ticks) {}
}

#[cfg(test)]
mod tests {
    use super::push_duration;

    #[test]
    fn durations_take_ten_characters() {
        for (ns, text) in [
            (0, "      0 ns"),
            (999, "    999 ns"),
            (1_000, "  1.000 us"),
            (57_194, " 57.194 us"),
            (999_999, "999.999 us"),
            (1_234_567, "  1.235 ms"),
            (62_790_000, " 62.790 ms"),
            (2_763_000_400, "   2.763 s"),
            (12_345_678_900_000, "12345.679 s"),
        ] {
            let mut out = Vec::new();
            push_duration(&mut out, ns);
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }
}
