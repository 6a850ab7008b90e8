//! `hist`: how often an argument, a value returned, or what is computed of them, had which value.
//!
//! Invariants: RUN-1 as for `count`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use trapline::filter::{Facts, Sort, fields};
use trapline::{Builder, By, Call, Part, ProcessReport, Session, Site, Tallied, Whose, time_of_day};

use super::stage::{self, Stage};
use super::{Failure, Outcome, trace};
use crate::args::hist::{Gather, Hist, Of};
use crate::output::{OutputError, say};
use crate::report::calls::means;
use crate::report::format::Format;
use crate::report::hist::{self, Sums};
use crate::report::text;

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);
/// Most values that are told apart here, in one table.
const MOST: usize = 65_536;

/// Runs it.
pub(crate) fn run(args: &Hist) -> Result<Outcome, Failure> {
    let run = &args.run;
    if run.dry_run {
        return super::list::show(&trace::builder(run), false, &run.sink);
    }
    let start = |builder: Builder| {
        let builder = builder.by(args.by).filters(args.filters.clone());
        match &args.gather {
            Gather::InTarget { exits } => builder.tally(*exits),
            Gather::Here { returns, texts, floats, .. } => {
                builder.texts(texts.clone()).floats(floats.clone()).record(6, *returns)
            }
        }
    };
    let (mut stage, mut session) = stage::begin(run, start)?;
    if let (true, Gather::Here { .. }) = (stage.talkative, &args.gather) {
        say("trapline: each call is recorded, and added up here (docs/hist.md says what the target adds up)");
    }
    let mut table = Table { args, here: Here::new(args) };
    let followed = table.follow(&mut session, &mut stage);
    let finished = session.detach();
    table.here.add(&finished.calls, |call| finished.names.get(&(call.pid, call.tid)).cloned());
    let told = followed.and_then(|()| {
        let tallied = finished.tallies.clone();
        stage.output.print(&table.render(&finished.reports, tallied, false))?;
        stage.summary(&finished)
    });
    stage.end(finished, told)
}

/// What is shown, and where it comes from.
struct Table<'a> {
    args: &'a Hist,
    here: Here<'a>,
}

impl Table<'_> {
    /// Until something ends the run.
    fn follow(
        &mut self,
        session: &mut Session,
        Stage { interrupts, output, .. }: &mut Stage,
    ) -> Result<(), OutputError> {
        let run = &self.args.run;
        let end = run.duration.map(|duration| Instant::now() + duration);
        let mut next = run.interval.map(|interval| Instant::now() + interval);
        // Who asks for threads' names is told of new ones as often as records are read.
        let by_name = self.args.by == Some(By::ThreadName) || self.args.named;
        let tick = match self.args.gather {
            Gather::InTarget { .. } if !run.follow && !by_name => trace::TICK,
            _ => ROUND,
        };
        loop {
            if let Gather::Here { .. } = self.args.gather {
                let calls = session.calls();
                self.here.add(&calls, |call| session.thread_name(call));
            }
            if let (Some(due), Some(interval)) = (next, run.interval)
                && Instant::now() >= due
            {
                next = Some(Instant::now() + interval);
                // Tables learn names, of which the report tells what was left out.
                let tallied = session.tallies();
                let reports = session.report();
                output.print(&self.render(&reports, tallied, true))?;
            }
            let now = Instant::now();
            let left = [end, next].into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
            let wait = left.unwrap_or(tick).clamp(Duration::from_millis(1), tick);
            if end.is_some_and(|end| now >= end) || interrupts.wait(wait).is_some() || !session.poll() {
                return Ok(());
            }
        }
    }
    fn render(&self, reports: &[ProcessReport], tallied: Vec<Tallied>, live: bool) -> String {
        let (args, time) = (self.args, self.args.run.timestamps.then(time_of_day));
        let sums = match args.gather {
            Gather::InTarget { .. } => Sums { tallied, texts: None },
            Gather::Here { .. } => self.here.sums(),
        };
        let one = |report: &ProcessReport| match args.run.sink.format {
            Format::Json => hist::object(args, &sums, report, time.as_deref()),
            _ => {
                let head = time.as_ref().map_or_else(String::new, |time| format!("\n{time}"));
                let gap = if live || time.is_some() { "\n" } else { "" };
                head + gap + &hist::text(args, &sums, report)
            }
        };
        reports.iter().map(one).collect()
    }
}

/// What is added up here, from records.
struct Here<'a> {
    args: &'a Hist,
    sites: BTreeMap<(u32, String), Added>,
    texts: Vec<String>,
    numbers: HashMap<String, u64>,
    /// What threads are called that are told apart by number.
    names: HashMap<(u32, u32), Option<String>>,
}

struct Added {
    site: std::sync::Arc<Site>,
    parts: BTreeMap<Key, BTreeMap<u64, u64>>,
    values: usize,
    overflow: u64,
    unseen: u64,
}

/// Thread or name, as far as they are told apart.
type Key = (Option<u32>, Option<String>);

impl<'a> Here<'a> {
    fn new(args: &'a Hist) -> Self {
        let (sites, names) = (BTreeMap::new(), HashMap::new());
        Self { args, sites, texts: Vec::new(), numbers: HashMap::new(), names }
    }
    /// One round of calls; `name` knows what their threads are called now.
    fn add(&mut self, calls: &[Call], mut name: impl FnMut(&Call) -> Option<String>) {
        let Gather::Here { of, .. } = &self.args.gather else { return };
        let mut names = HashMap::new();
        for call in calls {
            let Some((_, of)) = of.iter().find(|(spec, _)| means(spec, &call.site)) else { continue };
            let key = match self.args.by {
                None => (None, None),
                Some(by) => {
                    let thread = (call.pid, call.tid);
                    let known = names.entry(thread).or_insert_with(|| name(call));
                    match by {
                        By::Thread => {
                            self.names.insert(thread, known.clone());
                            (Some(call.tid), None)
                        }
                        _ => (None, known.clone()),
                    }
                }
            };
            let value = self.value(call, of);
            let added = self.sites.entry((call.pid, call.site.probe.clone())).or_insert_with(|| Added {
                site: call.site.clone(),
                parts: BTreeMap::new(),
                values: 0,
                overflow: 0,
                unseen: 0,
            });
            let Some(value) = value else {
                added.unseen += 1;
                continue;
            };
            let part = added.parts.entry(key).or_default();
            if added.values == MOST && !part.contains_key(&value) {
                added.overflow += 1;
                continue;
            }
            *part.entry(value).or_insert_with(|| {
                added.values += 1;
                0
            }) += 1;
        }
    }
    /// The cell, or the value; `None` if it is not known.
    fn value(&mut self, call: &Call, of: &Of) -> Option<u64> {
        match of {
            Of::Number(tally) => {
                let facts = Facts {
                    arguments: call.arguments,
                    floats: call.floats,
                    fields: fields(call),
                    tid: call.tid,
                    returned: call.returned,
                    took_ns: call.took.map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
                };
                tally.value.evaluate(&facts).map(|value| tally.key(value))
            }
            Of::Text(parameter) => {
                let read = text::read(call, parameter).filter(|read| !read.is_nothing())?;
                let text = String::from_utf8_lossy(read.bytes).into_owned();
                if let Some(&number) = self.numbers.get(&text) {
                    return Some(number);
                }
                let number = self.texts.len() as u64;
                // What is not kept has no number that is in use.
                if self.texts.len() < 2 * MOST {
                    self.texts.push(text.clone());
                    self.numbers.insert(text, number);
                }
                Some(number)
            }
        }
    }
    fn sums(&self) -> Sums {
        let tallied = self.sites.iter().map(|((pid, _), added)| Tallied {
            pid: *pid,
            site: added.site.clone(),
            parts: added
                .parts
                .iter()
                .map(|((tid, comm), hits)| Part {
                    whose: self.args.by.map(|_| match tid {
                        Some(tid) => {
                            let comm = self.names.get(&(*pid, *tid)).cloned().flatten();
                            Whose::Thread { tid: *tid, comm }
                        }
                        None => Whose::Name { comm: comm.clone(), threads: 0 },
                    }),
                    hits: hits.clone(),
                })
                .collect(),
            texts: BTreeMap::new(),
            overflow: added.overflow,
            unseen: added.unseen,
            filtered: 0,
            unnamed: 0,
        });
        let Gather::Here { of, .. } = &self.args.gather else { return Sums::default() };
        let are_texts = self.args.sort == Sort::Each && of.iter().any(|(_, of)| matches!(of, Of::Text(_)));
        Sums { tallied: tallied.collect(), texts: are_texts.then(|| self.texts.clone()) }
    }
}
