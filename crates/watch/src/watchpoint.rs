//! The interface for libraries: `Watchpoint::on(pid).write(addr, 8).count()`, and events as an iterator.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_tracee::Process;

use crate::error::WatchError;
use crate::watching::{Event, NoMap, Options, Point, Tally, Target, Watching};
use trapline_tracee::perf::{Access, Breakpoint};

/// Time between two looks at the rings.
const ROUND: Duration = Duration::from_millis(10);

/// Which process is watched: all its threads, present and future.
///
/// ```no_run
/// use std::time::Duration;
/// use trapline_watch::Watchpoint;
///
/// # fn main() -> Result<(), trapline_watch::WatchError> {
/// let mut counter = Watchpoint::on(1234).write(0x5555_5555_8010, 8).count()?;
/// std::thread::sleep(Duration::from_secs(1));
/// println!("{} writes", counter.value());
/// for event in Watchpoint::on(1234).write(0x5555_5555_8010, 8).events()?.within(Duration::from_secs(1)) {
///     println!("{} at {}: {:?}", event.comm, event.ip, event.change);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Watchpoint {
    pid: u32,
}

/// A watchpoint with its place, not yet armed.
#[derive(Clone, Copy, Debug)]
pub struct Armable {
    pid: u32,
    at: Breakpoint,
    options: Options,
}

/// Counts accesses.
#[derive(Debug)]
pub struct Counter {
    watching: Watching,
    /// Number of the events handed out and of those that the kernel dropped.
    seen: u64,
}

/// Accesses, one by one, as an iterator.
#[derive(Debug)]
pub struct Events {
    watching: Option<Watching>,
    ready: VecDeque<Event>,
    until: Option<Instant>,
    tally: Tally,
}

impl Watchpoint {
    /// Watches this process.
    #[must_use]
    pub const fn on(pid: u32) -> Self {
        Self { pid }
    }
    const fn at(self, addr: u64, len: u8, access: Access) -> Armable {
        let at = Breakpoint { addr: RemoteAddr(addr), len, access };
        Armable { pid: self.pid, at, options: Options::new() }
    }
    /// Stores to 1, 2, 4 or 8 bytes, aligned to their length.
    #[must_use]
    pub const fn write(self, addr: u64, len: u8) -> Armable {
        self.at(addr, len, Access::Write)
    }
    /// Loads and stores.
    #[must_use]
    pub const fn read_write(self, addr: u64, len: u8) -> Armable {
        self.at(addr, len, Access::ReadWrite)
    }
    /// Executions of the instruction at an address.
    #[must_use]
    pub const fn execute(self, addr: u64) -> Armable {
        self.at(addr, 1, Access::Execute)
    }
}

impl Armable {
    /// Also watches forked children.
    #[must_use]
    pub const fn forks(mut self) -> Self {
        self.options.forks = true;
        self
    }
    /// Also records call chains.
    #[must_use]
    pub const fn stack(mut self) -> Self {
        self.options.stack = true;
        self
    }
    fn start(self, values: bool) -> Result<Watching, WatchError> {
        let point = Point { at: self.at, label: self.at.addr.to_string() };
        let target = Target { process: Process::open(self.pid)?, points: vec![point] };
        let options = Options { values, ..self.options };
        Watching::start(vec![target], options, Box::new(NoMap), &mut |_| {})
    }
    /// Counts accesses from now on.
    ///
    /// # Errors
    /// [`WatchError`]; then nothing is armed.
    pub fn count(self) -> Result<Counter, WatchError> {
        Ok(Counter { watching: self.start(false)?, seen: 0 })
    }
    /// Hands out accesses from now on, in order of time.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn events(self) -> Result<Events, WatchError> {
        let watching = Some(self.start(true)?);
        Ok(Events { watching, ready: VecDeque::new(), until: None, tally: Tally::default() })
    }
}

impl Counter {
    /// The number of accesses so far, including those that the kernel counted without keeping a sample. Must
    /// be called a few times a second, so that the rings do not fill.
    pub fn value(&mut self) -> u64 {
        // Twice: events are handed out one round late.
        for _ in 0..2 {
            self.seen += self.watching.poll(Duration::ZERO).len() as u64;
        }
        self.seen + self.watching.tally().lost
    }
    /// Disarms and returns the last count.
    #[must_use]
    pub fn stop(self) -> u64 {
        let (rest, tally) = self.watching.finish();
        self.seen + rest.len() as u64 + tally.lost
    }
}

impl Events {
    /// Ends after this time.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.until = Some(Instant::now() + time);
        self
    }
    /// What was not seen; complete once the iterator has ended.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.watching.as_ref().map_or_else(|| self.tally.clone(), Watching::tally)
    }
    /// Disarms. What is left is handed out, then the iterator ends.
    pub fn stop(&mut self) {
        if let Some(watching) = self.watching.take() {
            let (rest, tally) = watching.finish();
            self.ready.extend(rest);
            self.tally = tally;
        }
    }
}

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next access; ends when the process has ended, or the time is over.
    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let watching = self.watching.as_mut()?;
            if self.until.is_some_and(|until| Instant::now() >= until) || !watching.is_alive() {
                self.stop();
            } else {
                self.ready.extend(watching.poll(ROUND));
            }
        }
    }
}
