//! `count`, `lat` and `stack` as one page that loads nothing else: a table, a histogram, a picture over time,
//! and a flame graph.
//!
//! In: the reports of a run, one after the other; stacks, at its end. Out: the page. It holds the same
//! objects that `--json` prints last. For each function that changed it also holds the value at each sample.
//! The script in the page draws from these alone. Invariants: HTM-1 no text of a traced program is
//! interpreted as markup; HTM-2 a run of any length has at most [`SAMPLES`] samples: when there are more,
//! neighbours are merged.

mod flame;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use trapline::{ProcessReport, Site, Summary};

use self::flame::Flame;
use super::stacks::Shown;
use super::{Renderer, json, summary};

/// Limit for the columns of a picture over time.
const SAMPLES: usize = 240;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page while its data is collected.
#[derive(Debug)]
pub(crate) struct Html {
    verb: &'static str,
    timed: bool,
    command: String,
    processes: Vec<Process>,
    flame: Option<Flame>,
}

/// One process, while it runs one program.
#[derive(Debug)]
struct Process {
    last: ProcessReport,
    samples: Vec<Sample>,
    /// The value of each site at its last sample.
    now: HashMap<FlameKey, u64>,
}

/// A site: its probe and its offset.
type FlameKey = (String, u64);

/// The sites that had changed since the previous sample.
#[derive(Debug)]
struct Sample {
    seconds: f64,
    set: BTreeMap<FlameKey, Value>,
}

#[derive(Serialize)]
struct Data<'a> {
    verb: &'a str,
    timed: bool,
    command: &'a str,
    summary: &'a str,
    processes: Vec<ProcessData<'a>>,
    #[serde(flatten)]
    flame: Option<&'a Flame>,
}

#[derive(Serialize)]
struct ProcessData<'a> {
    pid: u32,
    name: &'a str,
    last: Value,
    samples: Vec<SampleData<'a>>,
}

#[derive(Serialize)]
struct SampleData<'a> {
    t: f64,
    /// Index among the probes of `last`; then hits, or rows of durations, since the attach.
    set: Vec<(usize, &'a Value)>,
}

impl Html {
    /// Makes the page of a verb with counts or with durations; `command` is the command line.
    pub(crate) const fn new(verb: &'static str, timed: bool, command: String) -> Self {
        Self { verb, timed, command, processes: Vec::new(), flame: None }
    }
    /// Adds the stacks.
    pub(crate) fn stacks(&mut self, shown: &mut Shown<'_>) {
        self.flame = Some(Flame::new(shown));
    }
    fn page(&self, summary: &str) -> String {
        let processes = self.processes.iter().filter_map(|process| process.data(self.timed)).collect();
        let data = Data {
            verb: self.verb,
            timed: self.timed,
            command: &self.command,
            summary: summary.trim(),
            processes,
            flame: self.flame.as_ref(),
        };
        // A string of JSON can do without this character, so no string can end the script.
        let data = json::line(&data).replace('<', "\\u003c");
        // The data is inserted last, because it may contain anything.
        PAGE.replace("{{css}}", STYLE).replace("{{js}}", SCRIPT).replace("{{data}}", data.trim_end())
    }
}

impl Renderer for Html {
    fn report(&mut self, report: &ProcessReport, _: bool, _: Option<&str>) -> String {
        let timed = self.timed;
        let same = |process: &&mut Process| process.last.nth == report.nth;
        match self.processes.iter_mut().find(same) {
            Some(process) => process.feed(report, timed),
            None => {
                let mut process = Process { last: report.clone(), samples: Vec::new(), now: HashMap::new() };
                process.feed(report, timed);
                self.processes.push(process);
            }
        }
        String::new()
    }
    fn end(&mut self, finished: &Summary) -> String {
        self.page(&summary::text(finished))
    }
}

/// Sites, with what is counted there and how it is drawn.
fn sites(report: &ProcessReport, timed: bool) -> impl Iterator<Item = (&Arc<Site>, u64, Value)> {
    let counts = report.counts.iter().filter(move |_| !timed);
    let counts = counts.map(|count| (&count.site, count.hits, Value::from(count.hits)));
    let times = report.times.iter().filter(move |_| timed).filter_map(|times| {
        let rows = times.histogram.log2(1).into_iter().filter(|row| row.2 > 0);
        let rows: Vec<Value> = rows.map(|(low, high, calls)| Value::from(vec![low, high, calls])).collect();
        Some((times.site.as_ref()?, times.calls, Value::from(rows)))
    });
    counts.chain(times)
}

fn key(site: &Site) -> FlameKey {
    (site.probe.clone(), site.offset)
}

impl Process {
    fn feed(&mut self, report: &ProcessReport, timed: bool) {
        let mut set = BTreeMap::new();
        for (site, count, value) in sites(report, timed) {
            let key = key(site);
            if self.now.get(&key).copied().unwrap_or(0) != count {
                self.now.insert(key.clone(), count);
                set.insert(key, value);
            }
        }
        self.samples.push(Sample { seconds: report.seconds, set });
        self.last = report.clone();
        if self.samples.len() > SAMPLES {
            self.samples = halved(std::mem::take(&mut self.samples));
        }
    }
    fn data(&self, timed: bool) -> Option<ProcessData<'_>> {
        let last = if timed { json::lat(&self.last, None) } else { json::count(&self.last, None, None) };
        let places: HashMap<FlameKey, usize> = match timed {
            true => {
                self.last.times.iter().filter_map(|times| times.site.as_deref()).map(key).zip(0..).collect()
            }
            false => self.last.counts.iter().map(|count| key(&count.site)).zip(0..).collect(),
        };
        let samples = self.samples.iter().map(|sample| SampleData {
            t: (sample.seconds * 1e6).round() / 1e6,
            set: sample.set.iter().filter_map(|(key, value)| Some((*places.get(key)?, value))).collect(),
        });
        let last = serde_json::from_str(&last).ok()?;
        Some(ProcessData { pid: self.last.pid, name: &self.last.name, last, samples: samples.collect() })
    }
}

/// Merges each two neighbours; the last sample stays the last.
fn halved(samples: Vec<Sample>) -> Vec<Sample> {
    let odd = samples.len() % 2;
    let mut halved: Vec<Sample> = Vec::with_capacity(samples.len() / 2 + 1);
    for (nth, sample) in samples.into_iter().enumerate() {
        match halved.last_mut() {
            Some(before) if (nth + odd) % 2 == 1 => {
                before.seconds = sample.seconds;
                before.set.extend(sample.set);
            }
            _ => halved.push(sample),
        }
    }
    halved
}

#[cfg(test)]
mod tests {
    use super::{Html, SAMPLES};
    use crate::report::samples::{sample, timed};
    use crate::report::stacks::Shown;
    use crate::report::{Renderer as _, json};
    use serde_json::Value;
    use std::sync::Arc;
    use trapline::{ProcessReport, Summary};

    fn data(page: &str) -> Value {
        let rest = page.split("id=\"data\">").nth(1).expect("data");
        serde_json::from_str(rest.split("</script>").next().expect("an end")).expect("JSON")
    }

    #[test]
    fn the_page_holds_the_objects_of_the_json() {
        let mut html = Html::new("lat", true, "trapline lat work".to_owned());
        assert_eq!(html.report(&timed(), true, None), "");
        let page = html.end(&Summary::default());
        let data = data(&page);
        let last: Value = serde_json::from_str(&json::lat(&timed(), None)).expect("JSON");
        assert_eq!(data["processes"][0]["last"], last);
        assert_eq!(data["processes"][0]["samples"][0]["set"][0][1], last["probes"][0]["log2_ns"]);
        assert!(data["summary"].as_str().is_some_and(|text| text.starts_with("sites: 0 matched")));
        assert!(!page.contains("{{"), "all places are filled");
    }

    #[test]
    fn stacks_name_each_function_once() {
        let stacks = crate::report::stacks::tests::sample();
        let mut html = Html::new("stack", false, String::new());
        html.report(&sample(), false, None);
        html.stacks(&mut Shown::new(&stacks, false));
        let data = data(&html.end(&Summary::default()));
        let names = ["f", "[0x20]", "[0x30]", "[0x40]"];
        let functions = names.map(|name| serde_json::json!({ "name": name }));
        assert_eq!(data["functions"], serde_json::json!(functions));
        let stack = |frames: &[u32], hits, cut| {
            let (pid, probe, offset) = (u32::MAX, "uprobe:/bin/x:f", 1);
            serde_json::json!({"pid": pid, "probe": probe, "offset": offset, "value": hits, "cut": cut, "frames": frames})
        };
        assert_eq!(data["stacks"], serde_json::json!([stack(&[2, 1, 0], 3, false), stack(&[3, 0], 1, true)]));
    }

    #[test]
    fn what_a_program_calls_itself_is_no_markup() {
        let evil = "</script><script>alert(1)</script><!--{{js}}";
        let mut report = ProcessReport { name: evil.to_owned(), ..sample() };
        Arc::make_mut(&mut report.counts[0].site).probe = evil.to_owned();
        let mut html = Html::new("count", false, evil.to_owned());
        html.report(&report, false, None);
        let page = html.end(&Summary::default());
        assert_eq!(page.matches("<script").count(), 2, "the page's own");
        assert_eq!(data(&page)["processes"][0]["name"], evil);
    }

    #[test]
    fn a_long_run_has_few_samples_that_add_up() {
        let mut html = Html::new("count", false, String::new());
        let mut report = sample();
        let runs = SAMPLES as u64 * 5 + 3;
        for n in 1..=runs {
            report.counts[0].hits = n;
            report.counts[2].hits = 7;
            report.seconds = n as f64;
            html.report(&report, true, None);
        }
        let data = data(&html.end(&Summary::default()));
        let samples = data["processes"][0]["samples"].as_array().expect("samples");
        assert!((SAMPLES / 2..=SAMPLES).contains(&samples.len()), "{}", samples.len());
        assert_eq!(samples.last().expect("one")["set"], serde_json::json!([[0, runs]]));
        assert_eq!(samples[0]["set"][0], serde_json::json!([2, 7]), "reported once");
        for pair in samples.windows(2) {
            assert!(pair[0]["t"].as_f64() < pair[1]["t"].as_f64());
            assert_eq!(pair[1]["set"][0][1].as_f64(), pair[1]["t"].as_f64(), "the value of its own moment");
        }
    }

    #[test]
    fn a_process_that_runs_another_program_is_another() {
        let mut html = Html::new("count", false, String::new());
        let (first, second) = (sample(), ProcessReport { nth: 1, ..sample() });
        for _ in 0..2 {
            html.report(&first, true, None);
            html.report(&second, true, None);
        }
        assert_eq!(html.processes.len(), 2);
        assert_eq!(html.processes[0].samples.len(), 2);
    }
}
