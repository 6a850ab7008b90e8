//! Which calls of a recording are shown: `--filter`, `--notrace`, `--caller`, `--depth`, `--time-filter`, `--tid` and
//! `--trigger`.
//!
//! In: calls as they begin and end, in the order of time of each thread. Out: those that are shown, in the same order, with the
//! depth that they have among each other. docs/design/recording.md has when each is decided. Invariant: SEL-1 a call that is
//! shown begins once and ends once, within the shown calls that it was within; memory is that of calls that have not ended.
//! Does not: know files, or how calls are shown.

mod met;

use trapline::recorded::{Begun, Ended, Function, Process, Thread, Ticks, Visit};
use trapline::{ProbeSpec, Site};

use self::met::Met;
use super::Text;
use crate::args::command::record::Selection;
use crate::report::site::nearness;

impl Selection {
    fn roles(&self, site: &Site) -> Roles {
        let is_in = |list: &[ProbeSpec]| list.iter().any(|spec| nearness(spec, site).is_some());
        let triggers = || self.triggers.iter().filter(|one| nearness(&one.function, site).is_some());
        Roles {
            depth: triggers().find_map(|one| one.depth),
            shows: triggers().find_map(|one| one.shows),
            backtrace: triggers().any(|one| one.backtrace),
            begins: is_in(&self.only),
            stops: is_in(&self.without),
            is_wanted: self.callers_of.is_empty() || is_in(&self.callers_of),
        }
    }
}

/// What a function is for a selection.
#[derive(Debug, Clone, Copy, Default)]
struct Roles {
    /// It is of `only`.
    begins: bool,
    /// It is of `without`.
    stops: bool,
    /// It is of `callers_of`, or that is empty.
    is_wanted: bool,
    /// So many levels are left from its call on.
    depth: Option<usize>,
    /// From its call on, calls are shown, or are not; of all threads.
    shows: Option<bool>,
    /// Its callers are shown before it.
    backtrace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Hidden,
    Waits,
    Shown,
}

/// A call that has not ended.
#[derive(Debug)]
struct Frame {
    /// With its depth among shown calls.
    call: Begun,
    state: State,
    roles: Roles,
    /// It is within no call of its function that may be shown.
    is_outermost: bool,
    /// If it is shown, all that it is within is.
    shows_callers: bool,
    /// Levels that were left before it.
    left: usize,
    /// Ticks of long calls directly within it.
    within: u64,
}

/// A thread's calls that have not ended.
#[derive(Debug)]
struct Calls {
    is_chosen: bool,
    frames: Vec<Frame>,
    /// Number of frames that are known to be long: they are the first ones.
    long: usize,
    /// Number of frames that are not hidden; of those of `only`, and of those of `without`.
    visible: usize,
    begun: usize,
    stopped: usize,
    /// Levels that are left.
    left: usize,
    /// Number of frames that are not hidden, by function.
    open: Vec<u32>,
}

/// Hands on the calls of a selection.
#[derive(Debug)]
pub(crate) struct Selected<'a, T> {
    selection: Selection,
    to: &'a mut T,
    roles: Vec<Roles>,
    threads: Vec<Calls>,
    /// Least duration in ticks.
    least: u64,
    /// Calls that begin now may be shown.
    shows: bool,
    met: Met,
}

impl<'a, T> Selected<'a, T> {
    pub(crate) fn new(selection: Selection, to: &'a mut T) -> Self {
        let met = Met::new(&selection);
        Self { selection, to, roles: Vec::new(), threads: Vec::new(), least: 0, shows: true, met }
    }
    /// Why nothing was shown, if that is so.
    pub(crate) fn unmet(&self) -> Vec<String> {
        self.met.unmet(&self.selection)
    }
}

impl Calls {
    fn new(is_chosen: bool, left: usize) -> Self {
        let frames = Vec::new();
        Self { is_chosen, frames, long: 0, visible: 0, begun: 0, stopped: 0, left, open: Vec::new() }
    }
    /// Adds a call.
    fn begin(&mut self, call: &Begun, roles: Roles, (selection, shows): (&Selection, bool)) {
        let left = self.left;
        self.stopped += usize::from(roles.stops);
        self.begun += usize::from(roles.begins);
        if roles.begins {
            self.left = selection.depth;
        }
        self.left = roles.depth.unwrap_or(self.left);
        let is_within = self.stopped == 0 && (selection.only.is_empty() || self.begun > 0);
        let state = if is_within && shows && self.left > 0 { State::Waits } else { State::Hidden };
        if self.open.len() <= call.function {
            self.open.resize(call.function + 1, 0);
        }
        let is_outermost = self.open[call.function] == 0;
        let call = Begun { depth: self.visible, ..call.clone() };
        if state != State::Hidden {
            self.visible += 1;
            self.open[call.function] += 1;
            self.left -= 1;
        }
        let may_show = state != State::Hidden || !selection.callers_of.is_empty();
        let shows_callers = roles.is_wanted && is_within && shows && may_show;
        self.frames.push(Frame { call, state, roles, is_outermost, shows_callers, left, within: 0 });
    }
    /// Notes which calls are long at a tick, and shows what is known to be shown by that.
    fn decide(&mut self, at: u64, least: u64, to: &mut impl Visit) {
        while let Some(frame) = self.frames.get(self.long) {
            if at.saturating_sub(frame.call.begin) < least {
                return;
            }
            self.long += 1;
            if frame.shows_callers {
                self.show(to);
            }
        }
    }
    /// Shows all long calls that wait.
    fn show(&mut self, to: &mut impl Visit) {
        let from = self.frames[..self.long].iter().rposition(|frame| frame.state == State::Shown);
        for nth in from.map_or(0, |nth| nth + 1)..self.long {
            if self.frames[nth].state != State::Waits {
                continue;
            }
            self.frames[nth].state = State::Shown;
            if self.frames[nth].roles.backtrace {
                let callers: Vec<usize> =
                    self.frames[..nth].iter().map(|frame| frame.call.function).collect();
                to.callers(&self.frames[nth].call, &callers);
            }
            to.begun(&self.frames[nth].call);
        }
    }
    /// Ends the innermost call. Returns whether it is shown.
    fn end(&mut self, ended: &Ended, to: &mut impl Visit) -> bool {
        let Some(frame) = self.frames.pop() else { return false };
        let is_long = self.long > self.frames.len();
        self.long = self.long.min(self.frames.len());
        self.left = frame.left;
        self.begun -= usize::from(frame.roles.begins);
        self.stopped -= usize::from(frame.roles.stops);
        if frame.state != State::Hidden {
            self.visible -= 1;
            self.open[frame.call.function] -= 1;
        }
        if is_long && let Some(outer) = self.frames.last_mut() {
            outer.within += ended.end - ended.call.begin;
        }
        let is_shown = frame.state == State::Shown;
        if is_shown {
            let Frame { call, within, is_outermost, .. } = frame;
            let call = Begun { values: ended.call.values.clone(), ..call };
            to.ended(&Ended { call, end: ended.end, within, how: ended.how, is_outermost });
        }
        is_shown
    }
}

impl<T: Visit> Visit for Selected<'_, T> {
    fn function(&mut self, function: &Function) {
        self.roles.push(self.selection.roles(&function.site));
        self.met.function(&self.selection, &function.site);
        self.to.function(function);
    }
    fn thread(&mut self, thread: Thread, process: &Process) {
        let tids = &self.selection.tids;
        let is_chosen = tids.is_empty() || tids.contains(&thread.tid);
        self.met.thread(thread.tid, is_chosen);
        self.threads.push(Calls::new(is_chosen, self.selection.depth));
        self.to.thread(thread, process);
    }
    fn clock(&mut self, ticks: Ticks) {
        // A duration is shown in whole nanoseconds; the least one is that which is shown as such.
        let least = self.selection.least.as_nanos() as f64;
        self.least = if least > 0.0 { ((least - 0.5) / ticks.ns).ceil() as u64 } else { 0 };
        self.met.ticks = ticks;
        self.to.clock(ticks);
    }
    fn begun(&mut self, call: &Begun) {
        let roles = self.roles[call.function];
        self.shows = roles.shows.unwrap_or(self.shows);
        let calls = &mut self.threads[call.thread];
        if !calls.is_chosen {
            return;
        }
        calls.decide(call.begin, self.least, self.to);
        calls.begin(call, roles, (&self.selection, self.shows));
        calls.decide(call.begin, self.least, self.to);
    }
    fn ended(&mut self, ended: &Ended) {
        let calls = &mut self.threads[ended.call.thread];
        if calls.is_chosen {
            calls.decide(ended.end, self.least, self.to);
            self.met.shown |= calls.end(ended, self.to);
            self.met.longest = self.met.longest.max(ended.end - ended.call.begin);
        }
    }
}

impl<T: Text> Text for Selected<'_, T> {
    fn head(&self) -> String {
        self.to.head()
    }
    fn lines(&mut self) -> &mut Vec<u8> {
        self.to.lines()
    }
    fn end(&mut self, ticks: Ticks) {
        self.to.end(ticks);
    }
}

#[cfg(test)]
mod tests;
