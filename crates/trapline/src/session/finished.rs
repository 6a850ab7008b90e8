//! What a session returns at its end.
//!
//! In: nothing. Out: [`Finished`], a plain value. Does not: count; `session` fills it.

use std::collections::HashMap;

use super::command::Running;
use crate::aggregation::Tallied;
use crate::calls::Call;
use crate::error::Error;
use crate::maps::MapContents;
use crate::report::{ProcessReport, Thinned};
use crate::stacks::StackSum;
use crate::summary::Summary;

/// What a session returns at its end: [`Session::detach`](super::Session::detach).
#[derive(Debug)]
pub struct Finished {
    /// The last report of each process, counted after the last patch was out.
    pub reports: Vec<ProcessReport>,
    /// Totals of the whole session.
    pub summary: Summary,
    /// The launched command, if there was one.
    pub command: Option<Running>,
    /// Calls that were recorded and not reported yet, including calls that had not ended.
    pub calls: Vec<Call>,
    /// Thread names for [`calls`](Self::calls), by process and thread. A thread that ended before its name
    /// was read is not in it.
    pub names: HashMap<(u32, u32), String>,
    /// The processes of their threads, in the same way: the one that was probed, or a child that it forked.
    pub processes: HashMap<(u32, u32), u32>,
    /// Bytes that were recorded and not saved yet, if saving was begun. [`saved::end`](crate::saved::end)
    /// must follow them in the file.
    pub saved: Vec<u8>,
    /// Functions that were taken out of a recording while it ran, in this order.
    pub thinned: Vec<Thinned>,
    /// Aggregations; see [`Session::tallies`](super::Session::tallies).
    pub tallies: Vec<Tallied>,
    /// What hits' programs left in maps; see [`Session::maps`](super::Session::maps).
    pub maps: Vec<MapContents>,
    /// Callers, by process, most calls first; filled if [`Builder::stacks`](crate::Builder::stacks) asked
    /// for them.
    pub stacks: Vec<StackSum>,
    /// Why nothing was ever probed, if that is so: [`Error::NoMatch`] or [`Error::AllRefused`].
    pub nothing: Option<Error>,
}
