//! Reports for people and programs. In: a session's values. Out: text. Does not: know processes, or where
//! text goes.

pub(crate) mod calls;
pub(crate) mod code_names;
pub(crate) mod count;
pub(crate) mod csv;
mod digits;
pub(crate) mod format;
pub(crate) mod graph;
pub(crate) mod hist;
pub(crate) mod histogram;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod lat;
pub(crate) mod list;
pub(crate) mod list_json;
pub(crate) mod number;
pub(crate) mod perfetto;
pub(crate) mod recorded;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod site;
pub(crate) mod stacks;
pub(crate) mod summary;
mod sums;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod visible;
pub(crate) mod watch;
pub(crate) mod workload;

use trapline::{ProcessReport, Summary};

/// Turns the reports of a run into text, one after the other.
pub(crate) trait Renderer {
    /// Renders one process. `live` is true while the run goes on, false at its end. `time` is the time of
    /// day, if requested.
    fn report(&mut self, report: &ProcessReport, live: bool, time: Option<&str>) -> String;
    /// The text behind the last report, when everything is detached.
    fn end(&mut self, _: &Summary) -> String {
        String::new()
    }
}

impl<F: FnMut(&ProcessReport, bool, Option<&str>) -> String> Renderer for F {
    fn report(&mut self, report: &ProcessReport, live: bool, time: Option<&str>) -> String {
        self(report, live, time)
    }
}
