//! Entries and exits of a thread as calls within calls.
//!
//! In: records of a thread, in the order of time. Out: calls as they begin and end. An exit belongs to the innermost call of
//! its function that began at the same place on the stack, as far as a record holds that place; what began inside it and has
//! not ended was left by a longjmp or an exception, or its exit was lost. A library's function that is recorded because the
//! program imports it is called by the program, if the call that it is directly within is not such a one. Its other calls are known
//! here, so that exits find theirs, but not visited; their time counts as that of the call that they are within.
//! Invariant: REC-3. Does not: know names.

use std::sync::Arc;

use trapline_record::calls::CallRecord;
use trapline_record::ring::RecordKind;

use super::{Function, Process, Thread, Ticks};
use crate::calls::{Call, CallEnd};

/// Most calls within calls of a thread. What is deeper counts as ended at once.
const DEEPEST: usize = 1 << 20;
/// Most calls that an exit looks through for its own.
const FARTHEST: usize = 1 << 16;

/// A call that began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begun {
    /// Index of its thread.
    pub thread: usize,
    /// Index of its function.
    pub function: usize,
    /// Number of calls that it is within.
    pub depth: usize,
    /// Tick of its entry.
    pub begin: u64,
    /// Its arguments and, once it has ended, what it returned; if they were recorded.
    pub values: Option<Arc<Call>>,
}

/// A call that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The call.
    pub call: Begun,
    /// Tick of its end; for an unfinished call, the last one at which it was there.
    pub end: u64,
    /// Ticks in calls within it.
    pub within: u64,
    /// How it ended.
    pub how: CallEnd,
    /// It is within no call of the same function.
    pub is_outermost: bool,
}

/// What is done with calls. Functions and threads are announced before their first call, in the order of their indices.
pub trait Visit {
    /// A function of a process.
    fn function(&mut self, _: &Function) {}
    /// A thread of a process.
    fn thread(&mut self, _: Thread, _: &Process) {}
    /// The clock, as exactly as it is known by now.
    fn clock(&mut self, _: Ticks) {}
    /// A call is about to begin that shows its callers: these functions, the outermost first.
    fn callers(&mut self, _: &Begun, _: &[usize]) {}
    /// A call began.
    fn begun(&mut self, call: &Begun);
    /// A call ended. All that are within it have ended before.
    fn ended(&mut self, call: &Ended);
}

/// A record of a thread.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) record: CallRecord,
    /// The function's exits are recorded.
    pub(super) ends: bool,
    /// It is a library's, which the program imports.
    pub(super) is_libcall: bool,
    /// An entry's values.
    pub(super) call: Option<Arc<Call>>,
    /// A return's value.
    pub(super) returned: Option<u64>,
}

#[derive(Clone, Debug)]
struct Frame {
    function: u32,
    place: u8,
    is_outermost: bool,
    begin: u64,
    within: u64,
    values: Option<Arc<Call>>,
    is_libcall: bool,
    /// It is visited.
    is_visited: bool,
}

/// A thread's calls that have not ended.
#[derive(Debug, Default)]
pub(super) struct Stack {
    frames: Vec<Frame>,
    /// Number of such calls, by function.
    open: Vec<u32>,
    /// Number of them that are visited.
    depth: usize,
    /// Tick of the last record.
    last: u64,
}

impl Stack {
    /// Takes a record of this thread. Returns false for an exit of a call that was not seen to begin.
    pub(super) fn take(
        &mut self,
        (thread, function): (usize, usize),
        taken: Taken,
        visit: &mut dyn Visit,
    ) -> bool {
        let Taken { record, returned, .. } = taken;
        self.last = self.last.max(record.ticks);
        if record.kind == RecordKind::Entry {
            self.begin((thread, function), taken, visit);
            return true;
        }
        let how = if record.kind == RecordKind::Return { CallEnd::Returned } else { CallEnd::TailCall };
        let is_its = |frame: &Frame| (frame.function as usize, frame.place) == (function, record.place);
        let found = match self.frames.last() {
            Some(last) if is_its(last) => Some(self.frames.len() - 1),
            _ if self.open.get(function).is_none_or(|open| *open == 0) => None,
            _ => {
                let near = self.frames.len().saturating_sub(FARTHEST);
                self.frames[near..].iter().rposition(is_its).map(|nth| near + nth)
            }
        };
        let Some(nth) = found else { return false };
        while self.frames.len() > nth + 1 {
            self.end(thread, record.ticks, CallEnd::Unfinished, visit);
        }
        if let Some(call) = self.frames.last_mut().and_then(|frame| frame.values.as_mut()) {
            Arc::make_mut(call).returned = returned;
        }
        self.end(thread, record.ticks, how, visit);
        true
    }
    fn begin(&mut self, (thread, function): (usize, usize), taken: Taken, visit: &mut dyn Visit) {
        let Taken { record, ends, is_libcall, call: values, .. } = taken;
        if self.open.len() <= function {
            self.open.resize(function + 1, 0);
        }
        let is_visited = !(is_libcall && self.frames.last().is_some_and(|outer| outer.is_libcall));
        let call = Begun { thread, function, depth: self.depth, begin: record.ticks, values };
        if is_visited {
            visit.begun(&call);
        }
        let is_outermost = self.open[function] == 0;
        if !ends || self.frames.len() >= DEEPEST {
            let how = if ends { CallEnd::Unfinished } else { CallEnd::Entered };
            let end = call.begin;
            if is_visited {
                visit.ended(&Ended { call, end, within: 0, how, is_outermost });
            }
            return;
        }
        self.open[function] += 1;
        let (function, place) = (function as u32, record.place);
        let Begun { begin, values, .. } = call;
        self.depth += usize::from(is_visited);
        self.frames.push(Frame {
            function,
            place,
            is_outermost,
            begin,
            within: 0,
            values,
            is_libcall,
            is_visited,
        });
    }
    /// Some functions are recorded no longer from a tick on: the innermost calls end there, as far as they are such functions' and
    /// no other call began within them.
    pub(super) fn take_out(
        &mut self,
        thread: usize,
        at: u64,
        is_out: impl Fn(usize) -> bool,
        visit: &mut dyn Visit,
    ) {
        while self.frames.last().is_some_and(|frame| is_out(frame.function as usize)) {
            self.end(thread, at, CallEnd::Unfinished, visit);
        }
    }
    /// Ends the innermost call.
    fn end(&mut self, thread: usize, at: u64, how: CallEnd, visit: &mut dyn Visit) {
        let Some(frame) = self.frames.pop() else { return };
        let Frame { function, is_outermost, begin, within, values, is_visited, .. } = frame;
        let (function, end) = (function as usize, at.max(begin));
        if let Some(open) = self.open.get_mut(function) {
            *open = open.saturating_sub(1);
        }
        self.depth -= usize::from(is_visited);
        if let Some(outer) = self.frames.last_mut() {
            // What is within a call that is not visited is within the one that it is in.
            outer.within += if is_visited { end - begin } else { within };
        }
        if !is_visited {
            return;
        }
        let call = Begun { thread, function, depth: self.depth, begin, values };
        visit.ended(&Ended { call, end, within, how, is_outermost });
    }
    /// Ends all calls: the recording is over.
    pub(super) fn finish(&mut self, thread: usize, visit: &mut dyn Visit) {
        while !self.frames.is_empty() {
            self.end(thread, self.last, CallEnd::Unfinished, visit);
        }
    }
}
