//! `hist`, checked and converted: the value, how it is sorted, and where it is aggregated.
//!
//! In: typed words, debug information. Out: a [`Hist`], or the [`Lat`] that it is the same as, or what is
//! wrong. Does not: trace.

use trapline::ProbeSpec;
use trapline::filter::{Known, Sort, Tree};
use trapline::probes::ProbeKind;

use super::aggregation::{Split, Value, aggregation, shown, values};
use super::error::UsageError;
use super::fields::Fields;
use super::filters;
use super::prototype::{Look, complete, refuse_kept, split};
use super::run::{ends, is_function};
use super::units;
use crate::args::command::{Command, HistogramStyle, Lat, Linear};
use crate::args::hist::{ByKey, Columns, Hist};
use crate::args::sink::LINES;
use crate::args::typed::{TypedBy, TypedHist};

/// Checks and converts.
pub(super) fn hist(typed: TypedHist, look: Look<'_>) -> Result<Command, UsageError> {
    let columns = columns(&typed);
    let (mut run, signatures) = split(&typed.probes, typed.common, LINES, look)?;
    let has_values = |probe: &&ProbeSpec| is_function(probe) || probe.kind == ProbeKind::Usdt;
    if let Some(wrong) = run.probes.iter().find(|probe| !has_values(probe)) {
        return Err(UsageError::HistNotAFunction(wrong.text.clone()));
    }
    let linear = typed.linear.as_deref().map(units::linear).transpose();
    let linear = linear.map_err(|why| UsageError::Unit { option: "--linear", why })?;
    let by = typed.by.as_deref().and_then(TypedBy::named).map(TypedBy::ready);
    let probes = complete(&mut run, signatures, look)?;
    refuse_kept(&probes)?;
    let expression = typed.expression;
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::used(one.as_ref())).collect();
    let key = typed.by.as_deref().filter(|_| by.is_none());
    let keys = key.map(|key| self::values(&probes, ("--by", key), &fields)).transpose()?;
    let values = values(&probes, ("EXPR", &expression), &fields)?;
    let named = !typed.comms.is_empty();
    let filter_options = filters::options(typed.filter, typed.comms)?;
    let filters = filters::filters(&probes, true, &filter_options, &fields)?;
    drop(fields);
    let ends = ends(&typed.ends)?;
    let is_duration = |value: &Value| matches!(value, Value::Tree(Tree::Known(Known::Took)));
    if filters.is_empty()
        && typed.by.is_none()
        && typed.top.is_none()
        && columns.is_none()
        && values.iter().all(is_duration)
    {
        let shape = HistogramStyle { linear, ..HistogramStyle::default() };
        return Ok(Command::Lat(Lat { run, per_function: true, outermost: false, ends, shape }));
    }
    let any_text = values.iter().any(|value| matches!(value, Value::Text(_)));
    let sort = match (linear, typed.top.is_some() || any_text) {
        _ if columns.is_some() && any_text => {
            return Err(UsageError::Conflict(
                "--sum, --min, --max, --avg and --stats are for numbers, and this is a text",
            ));
        }
        _ if columns.is_some() => Sort::Sums,
        (Some(_), true) => return Err(UsageError::Conflict("--linear is for numbers, and this is a text")),
        (Some(Linear { min, max, step }), _) => Sort::Linear {
            min: i64::try_from(min).unwrap_or(i64::MAX),
            step,
            count: u32::try_from((max - min).div_ceil(step)).unwrap_or(u32::MAX),
        },
        (None, true) => Sort::Each,
        (None, false) => Sort::Log2,
    };
    let unsigned = values.iter().filter_map(Value::tree).any(Tree::is_unsigned);
    let key = keys.as_ref().zip(typed.by).map(|(keys, text)| ByKey {
        text,
        unsigned: keys.iter().filter_map(Value::tree).any(Tree::is_unsigned),
        texts: keys.iter().any(|key| matches!(key, Value::Text(_))),
        shown: shown(&probes, keys),
    });
    let shown = shown(&probes, &values);
    let top = typed.top.or((sort == Sort::Each).then_some(10));
    let (filters, aggregation) = aggregation(&probes, values, sort, Split { by, named, keys }, filters)?;
    if typed.ends.any() && !aggregation.waits() {
        return Err(UsageError::Conflict(
            "--ret and --maxactive are for ret and dur: this is known when the function is entered",
        ));
    }
    Ok(Command::Hist(Box::new(Hist {
        run,
        expression,
        sort,
        top,
        columns,
        by,
        key,
        named,
        unsigned,
        shown,
        filters,
        aggregation,
        ends,
    })))
}

/// What is shown of sums and extremes; `None` if a histogram is.
fn columns(typed: &TypedHist) -> Option<Columns> {
    let &TypedHist { sum, min, max, avg, stats, .. } = typed;
    let all = [sum, min, max, avg].map(|one| one || stats);
    let [sum, min, max, avg] = all;
    all.contains(&true).then_some(Columns { sum, min, max, avg })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Command, TypedHist, hist};
    use crate::args::aggregation::Aggregation;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        hist: TypedHist,
    }

    fn read(words: &[&str]) -> Result<Command, String> {
        let line = Line::try_parse_from([&["hist"], words].concat()).map_err(|error| error.to_string())?;
        hist(line.hist, &|_| Vec::new()).map_err(|error| error.to_string())
    }

    /// Where values are aggregated.
    fn place(words: &[&str]) -> &'static str {
        match read(words).unwrap_or_else(|error| panic!("{words:?}: {error}")) {
            Command::Lat(_) => "lat",
            Command::Hist(hist) => match hist.aggregation {
                Aggregation::InTarget { exits: false } => "entry",
                Aggregation::InTarget { exits: true } => "exit",
                Aggregation::InReader { returns: false, .. } => "here, entries",
                Aggregation::InReader { .. } => "here",
            },
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn what_the_target_knows_it_adds_up() {
        const READ: &str = "libc:read(int fd, ptr buf, size_t n) -> ssize_t";
        for (words, wanted) in [
            (&["n", READ][..], "entry"),
            (&["n / 2 + fd", "--by=tid", READ], "entry"),
            (&["fd", "--top=5", READ], "entry"),
            (&["ret", READ], "exit"),
            (&["ret", "--if", "ret >= 0", "--by", "cpu", READ], "exit"),
            (&["n", "--if", "fd > 2", "--sample", "1/10", READ], "entry"),
            (&["dur", READ], "lat"),
            (&["dur", "--if", "fd == 1", READ], "exit"),
            (&["ret", "--if", "fd == 1", READ], "exit"),
            (&["n - ret", "--by=cpu", READ], "exit"),
            (&["dur / 100 + n", "--top", READ], "exit"),
            (&["dur", "--by=tid", "--linear", "0:1000:10", READ], "exit"),
            (&["dur", "--top", "--by=tid", READ], "exit"),
            (&["fd", "--top", "--by", "tid", READ], "entry"),
            (&["ret", "--top", "--by", "comm", READ], "exit"),
            (&["path", "libc:open(str path)"], "entry"),
            (&["path", "--by=cpu", "--if", "flags & 1", "libc:open(str path, int flags)"], "entry"),
            (&["path", "--by=tid", "libc:open(str path)"], "entry"),
            (&["path", "--by=comm", "--if=ret < 0", "libc:open(str path) -> int"], "exit"),
            (&["path", "--if", "ret < 0", "libc:open(str path) -> int"], "exit"),
            (&["data", "f(buf(len=n) data, int n)"], "here, entries"),
            (&["n", "--if", "x < 0.5", "f(double x, int n)"], "entry"),
            (&["ret < 0.5", "f(double x) -> double"], "exit"),
            (&["dur", "--if", "x < 0.5", "f(double x)"], "exit"),
            (&["dur", "--comm", "x", READ], "exit"),
            (&["n", "--comm", "x", READ], "entry"),
            (&["ret", "--comm", "x", "--by=cpu", READ], "exit"),
            (&["path", "--top", "--comm=x", "--comm=y", "--by=comm", "libc:open(str path)"], "entry"),
            (&["data", "--comm=x", "f(buf(len=n) data, int n)"], "here"),
            (&["n", "--by=fd", READ], "entry"),
            (&["dur", "--by=fd", READ], "exit"),
            (&["n", "--by", "ret < 0", READ], "exit"),
            (&["ret", "--by", "ret % 3", READ], "exit"),
            (&["n", "--by=fd", "--if=ret > 0", READ], "exit"),
            (&["path", "--by=flags & 3", "libc:open(str path, int flags)"], "entry"),
            (&["dur", "--by=path", "libc:open(str path)"], "exit"),
            (&["n", "--by=fd", "--comm=x", READ], "here"),
            (&["from", "--by=to", "libc:rename(str from, str to)"], "here, entries"),
            (&["n", "--by=data", "f(buf(len=n) data, int n)"], "here, entries"),
            (&["n", "--by=key", "f(int n, str key)", "g(int n, int key)"], "here, entries"),
            (&["--sum", "n", READ], "entry"),
            (&["--stats", "dur", READ], "exit"),
            (&["--avg", "ret", "--by=tid", READ], "exit"),
            (&["--max", "n", "--by=cpu", "--if=fd > 2", READ], "entry"),
            (&["--min", "dur", "--by=path", "libc:open(str path)"], "exit"),
            (&["--stats", "n - ret", "--by=fd", READ], "exit"),
            (&["--stats", "n", "--by=comm", READ], "here, entries"),
            (&["--stats", "n", "--by=tid", "--comm=x", READ], "here"),
        ] {
            assert_eq!(place(words), wanted, "{words:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        for (words, says) in [
            (&["m", "f(int n)"][..], "`m` is unknown; did you mean"),
            (&["n +", "f(int n)"], "a value is missing here"),
            (&["n", "f+4"], "hist takes functions"),
            (&["n", "x:y+4"], "hist takes functions"),
            (&["n", "--linear", "1:2", "f(int n)"], "--linear: `1:2` is no range"),
            (&["p", "--linear", "1:9:1", "f(str p)"], "--linear is for numbers"),
            (&["p", "f(str[200] p)"], "are for trace"),
            (&["n", "f(int n) -> str"], "are for trace"),
            (&["data", "--by=cpu", "f(buf(len=n) data, int n)"], "--by cpu is for what the target adds up"),
            (&["n", "f(what n)"], "`what` is no type"),
            (&["n", "--by", "m", "f(int n)"], "--by, for `f`: `m` is unknown; did you mean"),
            (&["n", "--by", "x", "f(int n, double x)"], "`x` is a float"),
            (&["x", "f(double x)"], "`x` is a float, and hist adds up whole numbers"),
            (&["n", "--sample", "2/3", "f(int n)"], "is no share"),
            (&["n", "--ret=stack", "f(int n)"], "are for ret and dur"),
            (&["--sum", "p", "f(str p)"], "are for numbers, and this is a text"),
            (&["--sum", "n", "--top", "f(int n)"], "cannot be used with"),
            (&["--stats", "n", "--linear=0:9:1", "f(int n)"], "cannot be used with"),
            (&["--max", "x", "f(double x)"], "`x` is a float"),
            (&["--sum", "n", "--by=cpu", "--comm=x", "f(int n)"], "--by cpu is for what the target adds up"),
            (&["n", "-o", "x.csv", "f(int n)"], ".csv is nothing that this command writes"),
        ] {
            let error = read(words).expect_err(words[0]);
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
