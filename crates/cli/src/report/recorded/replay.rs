//! Calls as they happened, in the form of `uftrace replay`.
//!
//! In: calls as they begin and end, in the order of time. Out: a line for each of both; one line for a call without calls
//! within it. Does not: know files.

use std::io::Write;

use trapline::calls::CallEnd;
use trapline::recorded::{Begun, Ended, Function, Process, Thread, Ticks, Visit};

use super::{Names, Text};
use crate::report::number::duration;

/// The lines of `replay`.
#[derive(Debug)]
pub(crate) struct Replay {
    depth: usize,
    tid: Option<u32>,
    names: Names,
    threads: Vec<u32>,
    /// By thread: a call that has begun, and whose line is not written yet.
    waiting: Vec<Option<Begun>>,
    ticks: Ticks,
    lines: Vec<u8>,
}

impl Replay {
    pub(crate) fn new(depth: usize, tid: Option<u32>) -> Self {
        let ticks = Ticks { start: 0, ns: 1.0 };
        let (names, threads) = (Names::default(), Vec::new());
        Self { depth, tid, names, threads, waiting: Vec::new(), ticks, lines: Vec::new() }
    }
    fn is_shown(&self, call: &Begun) -> bool {
        call.depth < self.depth && self.tid.is_none_or(|tid| self.threads.get(call.thread) == Some(&tid))
    }
    fn line(&mut self, time: &str, call: &Begun, before: &str, after: &str) {
        let (tid, name) =
            (self.threads.get(call.thread).copied().unwrap_or(0), self.names.get(call.function));
        let indent = 2 * call.depth;
        // Writing into memory does not fail.
        drop(writeln!(self.lines, "{time:>10} [{tid:>7}] | {:indent$}{before}{name}{after}", ""));
    }
    /// Writes the line of the call that has begun last: it has calls within it.
    fn open(&mut self, thread: usize) {
        if let Some(call) = self.waiting.get_mut(thread).and_then(Option::take) {
            self.line("", &call, "", "() {");
        }
    }
}

impl Visit for Replay {
    fn function(&mut self, function: &Function) {
        self.names.add(function);
    }
    fn thread(&mut self, thread: Thread, _: &Process) {
        self.threads.push(thread.tid);
        self.waiting.push(None);
    }
    fn clock(&mut self, ticks: Ticks) {
        self.ticks = ticks;
    }
    fn begun(&mut self, call: &Begun) {
        if self.is_shown(call) {
            self.open(call.thread);
            self.waiting[call.thread] = Some(*call);
        }
    }
    fn ended(&mut self, ended: &Ended) {
        let call = &ended.call;
        if !self.is_shown(call) {
            return;
        }
        let time = match ended.how {
            CallEnd::Unfinished | CallEnd::Entered => String::new(),
            CallEnd::Returned | CallEnd::TailCall => {
                let at = |tick| self.ticks.since_begin(tick);
                duration(at(ended.end).saturating_sub(at(call.begin)))
            }
        };
        match self.waiting[call.thread].take() {
            Some(_) => self.line(&time, call, "", "();"),
            None => self.line(&time, call, "} /* ", " */"),
        }
    }
}

impl Text for Replay {
    fn head(&self) -> &'static str {
        "# duration       tid     function\n"
    }
    fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }
    fn end(&mut self, _: Ticks) {}
}
