//! Calls as lines, rows, objects or a timeline: what `trace` shows of a session, and `trace --from` of a
//! recording.
//!
//! In: a [`Source`] of calls. Out: what is written of them, as many as were asked for. Does not: know where
//! calls come from, or end a run.

use trapline::{Call, ProbeSpec, Session};

use crate::args::types::Signature;
use crate::output::{Output, OutputError};
use crate::report::calls::Shown;
use crate::report::format::Format;
use crate::report::perfetto::Timeline;

/// A source of calls.
pub(crate) trait Source {
    /// Calls `each` for the calls that ended, one by one; returns the number of records.
    fn each(&mut self, each: &mut dyn FnMut(&Call)) -> usize;
    /// The calls that ended, together, in the order in which they ended.
    fn calls(&mut self) -> Vec<Call>;
    /// Whether no call ends after these.
    fn is_last(&self) -> bool {
        false
    }
    /// The name of a call's thread.
    fn name(&mut self, call: &Call) -> Option<String>;
}

impl Source for Session {
    fn each(&mut self, each: &mut dyn FnMut(&Call)) -> usize {
        self.each_call(each)
    }
    fn calls(&mut self) -> Vec<Call> {
        Self::calls(self)
    }
    fn name(&mut self, call: &Call) -> Option<String> {
        self.thread_name(call)
    }
}

/// What calls are turned into.
#[derive(Debug)]
enum Picture<'a> {
    Lines(Shown<'a>),
    Timeline(Timeline<'a>),
    /// Nothing: the records themselves are written.
    Records,
}

/// The number of lines that may still be printed, and their form.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    shown: Picture<'a>,
    /// Number of lines that may still be printed.
    pub(crate) left: u64,
    /// Lines that are not written yet; empty between rounds.
    buffer: Vec<u8>,
}

/// Bytes that are written at once. So many need few system calls, and are still in the cache.
const AT_ONCE: usize = 1 << 18;
impl<'a> Report<'a> {
    pub(crate) fn new(
        probes: &'a [(ProbeSpec, Option<Signature>)],
        format: Format,
        timestamps: bool,
        max: Option<u64>,
    ) -> Self {
        let shown = match format {
            Format::Perfetto => Picture::Timeline(Timeline::new(probes)),
            Format::Saved => Picture::Records,
            format => Picture::Lines(Shown::new(probes, format, timestamps)),
        };
        Self { shown, left: max.unwrap_or(u64::MAX), buffer: Vec::new() }
    }
    /// Whether values point to functions.
    pub(crate) fn names_code(&self) -> bool {
        matches!(&self.shown, Picture::Lines(lines) if lines.names_code())
    }
    /// Takes the code of processes that a session has noted so far.
    pub(crate) fn take_code(&mut self, session: &mut Session) {
        if let Picture::Lines(lines) = &mut self.shown {
            lines.take_code(session.take_code());
        }
    }
    /// Prints what was recorded since the last round; returns the number of records.
    pub(crate) fn round(
        &mut self,
        source: &mut dyn Source,
        output: &mut Output,
    ) -> Result<usize, OutputError> {
        let Self { shown: Picture::Lines(lines), left, buffer } = self else {
            let calls = source.calls();
            let last = source.is_last();
            let mut name = |call: &Call| source.name(call);
            return self.print(&calls, last, &mut name, output).map(|()| calls.len());
        };
        let mut written = Ok(());
        let taken = source.each(&mut |call| {
            if *left == 0 || written.is_err() {
                return;
            }
            *left -= 1;
            lines.line(call, buffer);
            if buffer.len() >= AT_ONCE {
                written = output.bytes(buffer);
                buffer.clear();
            }
        });
        if !buffer.is_empty() {
            written = written.and_then(|()| output.bytes(buffer));
            buffer.clear();
        }
        written.map(|()| taken)
    }
    /// Prints the calls of a round; `last` is true if no more follow. `name` returns the name of a call's
    /// thread.
    pub(crate) fn print(
        &mut self,
        calls: &[Call],
        last: bool,
        name: &mut dyn FnMut(&Call) -> Option<String>,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let calls = &calls[..calls.len().min(most)];
        self.left -= calls.len() as u64;
        let written = match &mut self.shown {
            Picture::Lines(lines) => {
                let mut out = std::mem::take(&mut self.buffer);
                calls.iter().for_each(|call| lines.line(call, &mut out));
                out
            }
            Picture::Timeline(timeline) => timeline.calls(calls, last, name),
            Picture::Records => Vec::new(),
        };
        if written.is_empty() { Ok(()) } else { output.bytes(&written) }
    }
    /// Writes the names of processes, for a timeline, which has them at its end.
    pub(crate) fn names<'n>(
        &mut self,
        names: impl Iterator<Item = (u32, &'n str)>,
        output: &mut Output,
    ) -> Result<(), OutputError> {
        let Picture::Timeline(timeline) = &mut self.shown else { return Ok(()) };
        output.bytes(&timeline.names(names))
    }
}
