//! Metrics sent to a collector, by OTLP over HTTP.
//!
//! A thread sends one request at a time. The run's loop hands it the next one when that is due and the last
//! one is done. In: an address; reports, when one is due. Out: requests. Invariants:
//! - PSH-1 the collector has answered before any process is touched;
//! - PSH-2 the loop never waits for the collector, except at the end, and then no longer than two
//!   [`PATIENCE`];
//! - PSH-3 what was not sent is reported.
//!
//! Does not: send again, since all is cumulative.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use trapline::ProcessReport;
use ureq::Agent;

use super::otlp::{Period, request};
use crate::args::otlp::Collector;
use crate::output::print_line;

/// Limit for the wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit for the part of an answer that is shown, in bytes.
const SHOWN: u64 = 200;

/// Why the collector did not get the metrics.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    /// It could not be reached at the start.
    #[error(
        "cannot send metrics to {collector}: {why}; start a collector there, or name another with --otlp"
    )]
    Unreachable {
        /// The collector.
        collector: Collector,
        /// The reason.
        why: String,
    },
    /// The last metrics, which include all others, did not get there.
    #[error("the last metrics did not get to {collector}: {why}")]
    Lost {
        /// The collector.
        collector: Collector,
        /// The reason.
        why: String,
    },
    /// No thread could be started.
    #[error("cannot send metrics: {0}")]
    Thread(#[from] std::io::Error),
}

/// Sends the requests that it is handed.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Collector,
    every: Duration,
    next: Instant,
    /// Begin of the session, in nanoseconds since 1970.
    start: u64,
    to: SyncSender<Vec<u8>>,
    sender: JoinHandle<Result<(), String>>,
}

impl Exporter {
    /// Checks that the collector is there, and starts the thread that sends.
    pub(crate) fn open(collector: &Collector, every: Duration) -> Result<Self, PushError> {
        let start = now();
        let client = Client::new(collector.to_string());
        let ask = request(&[], Period { start, now: start });
        let unreachable = |why| PushError::Unreachable { collector: collector.clone(), why };
        client.post(&ask).map_err(unreachable)?;
        // Capacity 0: a request is handed over only when it is going to be sent.
        let (to, requests) = sync_channel(0);
        let work = move || client.work(&requests);
        let sender = std::thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        Ok(Self { collector: collector.clone(), every, next: Instant::now() + every, start, to, sender })
    }
    /// Sends, if it is time. If the last request is not done yet, it tries again a moment later.
    pub(crate) fn send(&mut self, reports: impl FnOnce() -> Vec<ProcessReport>) {
        if Instant::now() < self.next {
            return;
        }
        let period = Period { start: self.start, now: now() };
        if let Ok(()) | Err(TrySendError::Disconnected(_)) = self.to.try_send(request(&reports(), period)) {
            self.next = Instant::now() + self.every;
        }
    }
    /// Sends the last metrics.
    pub(crate) fn finish(self, reports: &[ProcessReport]) -> Result<(), PushError> {
        let last = request(reports, Period { start: self.start, now: now() });
        let sent = self.to.send(last).map_err(|_| "the sender has ended".to_owned());
        drop(self.to);
        let done = self.sender.join().unwrap_or_else(|_| Err("the sender has ended".to_owned()));
        sent.and(done).map_err(|why| PushError::Lost { collector: self.collector, why })
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

struct Client {
    agent: Agent,
    url: String,
}

impl Client {
    fn new(url: String) -> Self {
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        // A collector is nearby, and no proxy is to see what goes there.
        Self { agent: config.proxy(None).build().new_agent(), url }
    }
    /// Sends one request; the error is the reason why it failed.
    fn post(&self, body: &[u8]) -> Result<(), String> {
        let post = self.agent.post(&self.url).header("Content-Type", "application/x-protobuf");
        let mut answer = post.send(body).map_err(|error| error.to_string())?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let text = answer.body_mut().with_config().limit(SHOWN).lossy_utf8(true).read_to_string();
        let text = text.unwrap_or_default();
        let printable = |c: &char| !c.is_control();
        let line: String = text.lines().next().unwrap_or_default().chars().filter(printable).collect();
        Err(format!("it answered {status} {line}").trim_end().to_owned())
    }
    /// Sends until no more requests come; returns how the last one went.
    fn work(&self, requests: &Receiver<Vec<u8>>) -> Result<(), String> {
        let mut last = Ok(());
        for body in requests {
            let sent = self.post(&body);
            // One message for each time that the collector goes away.
            if let (Ok(()), Err(why)) = (&last, &sent) {
                print_line(&format!("trapline: metrics did not get to {}: {why}; trying on", self.url));
            }
            last = sent;
        }
        last
    }
}
