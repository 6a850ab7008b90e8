//! Runs `hist` as a user does, and extracts what it reports about one function.
//!
//! In: a victim, words of the command line. Out: the function's entry in the last object, its rows, its
//! numbers. Does not: compare them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::running::Running;
use crate::text;
use crate::tracing::{Report, Tracing};

/// Rounds of a victim's run.
pub const TIMES: u64 = 300;

/// The entry of a function in the last `hist` object.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn last<'a>(report: &'a Report, func: &str) -> &'a Value {
    let last = report.objects.iter().rfind(|object| object["type"] == "hist").expect("a histogram");
    let is = |probe: &&Value| probe["probe"].as_str().is_some_and(|text| text.ends_with(&format!(":{func}")));
    last["probes"].as_array().expect("probes").iter().find(is).expect("the function")
}

/// Hits (last column) by the column before it; all parts together.
///
/// # Panics
/// If there are no rows.
#[must_use]
pub fn rows(probe: &Value) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for row in probe["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .flat_map(|part| part["rows"].as_array().expect("rows"))
    {
        let row = row.as_array().expect("a row");
        let (hits, what) = row.split_last().expect("hits");
        let what: Vec<String> =
            what.iter().map(|edge| edge.as_str().map_or_else(|| edge.to_string(), str::to_owned)).collect();
        let hits = hits.as_u64().expect("a number");
        if hits > 0 {
            *rows.entry(what.join("..")).or_default() += hits;
        }
    }
    rows
}

/// A field that holds a number.
///
/// # Panics
/// If it holds none.
#[must_use]
pub fn number(probe: &Value, field: &str) -> u64 {
    probe[field].as_u64().unwrap_or_else(|| panic!("no {field}: {probe}"))
}

/// What was reported about a function.
#[derive(Debug)]
pub struct Seen {
    /// The function's entry in the report.
    pub probe: Value,
    /// What the victim printed about the traced run.
    pub reported: BTreeMap<String, u64>,
    /// Hits that were missed in its process.
    pub missed: u64,
    /// What was printed on standard error.
    pub errors: String,
}

/// One run of a victim under `hist` with these words.
///
/// # Panics
/// If it fails, or leaves anything behind.
#[must_use]
pub fn seen(victim: &mut Running, func: &str, words: &[&str]) -> Seen {
    let pid = victim.pid().to_string();
    let before = text::signals(victim.pid());
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
    let tracing = Tracing::start("hist", &words).expect("attaches");
    let reported = victim.run(TIMES);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    text::assert_clean(victim.pid(), &before);
    Seen {
        probe: last(&report, func).clone(),
        reported: reported.into_iter().collect(),
        missed: report.objects.last().and_then(|object| object["missed"].as_u64()).expect("missed"),
        errors: report.errors,
    }
}
