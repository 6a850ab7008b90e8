//! `hist`, as typed and as ready values: the value, how it is sorted, and where it is aggregated.
//!
//! In: what was typed. Out: a [`Hist`], or what is wrong. Does not: trace.

use clap::Args;
use trapline::filter::{Filter, Known, Sort, Tree};
use trapline::probes::ProbeKind;
use trapline::{By, ProbeSpec};

use super::aggregation::{Aggregation, Split, Value, aggregation, shown, values};
use super::command::{Lat, Run, Shape};
use super::ends::{Ends, TypedEnds};
use super::error::UsageError;
use super::fields::Fields;
use super::filters::{self, FilterOptions};
use super::prototype::{Look, complete, split};
use super::ready::is_function;
use super::sink::LINES;
use super::typed::{Common, TypedBy};
use super::types::Type;
use super::units::{self, Linear};

/// Most rows of `--top`, if not said otherwise.
const TOP: &str = "10";

/// `hist`, as typed.
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct TypedHist {
    /// Of what: an argument's name, ret, dur, or an expression of them; see docs/guide/filters.md
    #[arg(value_name = "EXPR", required = true, allow_hyphen_values = true)]
    pub(crate) expression: String,
    /// Probes, for example 'libc:read(int fd, ptr buf, size_t n) -> ssize_t'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Equal steps instead of powers of two
    #[arg(long, value_name = "MIN:MAX:STEP", conflicts_with = "top", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// The N values that were seen most (10)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = TOP,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Histogram")]
    pub(crate) top: Option<u32>,
    /// One for each thread (tid), thread name (comm) or CPU (cpu), or for each value of an argument, text or expression
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, help_heading = "Histogram")]
    pub(crate) by: Option<String>,
    /// Only calls for which EXPR holds; see docs/guide/filters.md
    #[arg(long = "if", value_name = "EXPR", allow_hyphen_values = true, help_heading = "Calls")]
    pub(crate) filter: Option<String>,
    /// Only this thread (may be given more than once)
    #[arg(long = "tid", value_name = "TID", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Calls")]
    pub(crate) tids: Vec<u32>,
    /// Only threads of this name (may be given more than once)
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    /// Of the calls that pass, one in N on each CPU
    #[arg(long, value_name = "1/N", help_heading = "Calls")]
    pub(crate) sample: Option<String>,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

const HELP: &str = "\
The target adds up, in tables for each CPU: arguments at the entry, fields and str too, or ret and dur at the exit, and what is computed of all these; one by another too (--by).
What a buf holds, and one str by another, is recorded call by call, as trace does, and added up here. docs/guide/hist.md says which is which.
  trapline hist n 'libc:read(int fd, ptr buf, size_t n)'
  trapline hist ret --linear 0:4096:256 --if 'ret >= 0' 'libc:read() -> ssize_t'
  trapline hist path --top=20 'libc:openat(int fd, str path)'
  trapline hist n --by fd 'libc:read(int fd, ptr buf, size_t n)'
  trapline hist dur --by path 'libc:openat(int fd, str path, int flags)'";

/// `hist`, ready.
#[derive(Debug)]
pub(crate) struct Hist {
    pub(crate) run: Run,
    /// As typed.
    pub(crate) expression: String,
    pub(crate) sort: Sort,
    /// So many rows.
    pub(crate) top: Option<u32>,
    pub(crate) by: Option<By>,
    /// By what calls say themselves.
    pub(crate) key: Option<ByKey>,
    /// Threads are chosen by name.
    pub(crate) named: bool,
    /// Whether the value is taken for an unsigned one.
    pub(crate) unsigned: bool,
    /// Probe by probe: where the value is one argument or the value returned, how that is shown.
    pub(crate) shown: Vec<(ProbeSpec, Option<Type>)>,
    /// Which calls, probe by probe.
    pub(crate) filters: Vec<Filter>,
    pub(crate) aggregation: Aggregation,
    /// How the ends of calls are seen, where they are waited for.
    pub(crate) ends: Ends,
}

/// By what values are told apart.
#[derive(Debug)]
pub(crate) struct ByKey {
    /// As typed.
    pub(crate) text: String,
    /// Whether it is taken for an unsigned number.
    pub(crate) unsigned: bool,
    /// It is what an argument points to.
    pub(crate) texts: bool,
    /// Probe by probe: how it is shown, where it is no more than an argument or the value returned.
    pub(crate) shown: Vec<(ProbeSpec, Option<Type>)>,
}

/// A `hist`, or the `lat` that it is the same as.
#[derive(Debug)]
pub(crate) enum Either {
    Hist(Box<Hist>),
    Lat(Box<Lat>),
}

/// Checks and converts.
pub(crate) fn hist(typed: TypedHist, look: Look<'_>) -> Result<Either, UsageError> {
    let (mut run, signatures) = split(&typed.probes, typed.common, LINES, look)?;
    let has_values = |probe: &&ProbeSpec| is_function(probe) || probe.kind == ProbeKind::Usdt;
    if let Some(wrong) = run.probes.iter().find(|probe| !has_values(probe)) {
        return Err(UsageError::HistNotAFunction(wrong.text.clone()));
    }
    let linear = typed.linear.as_deref().map(units::linear).transpose();
    let linear = linear.map_err(|why| UsageError::Unit { option: "--linear", why })?;
    let by = typed.by.as_deref().and_then(TypedBy::named).map(TypedBy::ready);
    let probes = complete(&mut run, signatures, look)?;
    let expression = typed.expression;
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    let key = typed.by.as_deref().filter(|_| by.is_none());
    let keys = key.map(|key| self::values(&probes, ("--by", key), &fields)).transpose()?;
    let values = values(&probes, ("EXPR", &expression), &fields)?;
    let named = !typed.comms.is_empty();
    let filter_options = FilterOptions {
        condition: typed.filter,
        tids: typed.tids,
        comms: typed.comms,
        sample: typed.sample.as_deref().map(filters::sample).transpose()?,
    };
    let filters = filters::filters(&probes, true, &filter_options, &fields)?;
    drop(fields);
    let ends = typed.ends.ready()?;
    let is_duration = |value: &Value| matches!(value, Value::Tree(Tree::Known(Known::Took)));
    if filters.is_empty() && typed.by.is_none() && typed.top.is_none() && values.iter().all(is_duration) {
        let shape = Shape { linear, ..Shape::default() };
        return Ok(Either::Lat(Box::new(Lat { run, per_function: true, outermost: false, ends, shape })));
    }
    let any_text = values.iter().any(|value| matches!(value, Value::Text(_)));
    let sort = match (linear, typed.top.is_some() || any_text) {
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
    Ok(Either::Hist(Box::new(Hist {
        run,
        expression,
        sort,
        top,
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

#[cfg(test)]
mod tests {
    use super::{Aggregation, Either, TypedHist, hist};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        hist: TypedHist,
    }

    fn read(words: &[&str]) -> Result<Either, String> {
        let line = Line::try_parse_from([&["hist"], words].concat()).map_err(|error| error.to_string())?;
        hist(line.hist, &|_| Vec::new()).map_err(|error| error.to_string())
    }

    /// Who adds up.
    fn place(words: &[&str]) -> &'static str {
        match read(words).unwrap_or_else(|error| panic!("{words:?}: {error}")) {
            Either::Lat(_) => "lat",
            Either::Hist(hist) => match hist.aggregation {
                Aggregation::InTarget { exits: false } => "entry",
                Aggregation::InTarget { exits: true } => "exit",
                Aggregation::InReader { returns: false, .. } => "here, entries",
                Aggregation::InReader { .. } => "here",
            },
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
        ] {
            assert_eq!(place(words), wanted, "{words:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (words, says) in [
            (&["m", "f(int n)"][..], "`m` is unknown; did you mean"),
            (&["n +", "f(int n)"], "a value is missing here"),
            (&["n", "f+4"], "hist takes functions"),
            (&["n", "x:y+4"], "hist takes functions"),
            (&["n", "--linear", "1:2", "f(int n)"], "--linear: `1:2` is no range"),
            (&["p", "--linear", "1:9:1", "f(str p)"], "--linear is for numbers"),
            (&["data", "--by=cpu", "f(buf(len=n) data, int n)"], "--by cpu is for what the target adds up"),
            (&["n", "f(what n)"], "`what` is no type"),
            (&["n", "--by", "m", "f(int n)"], "--by, for `f`: `m` is unknown; did you mean"),
            (&["n", "--by", "x", "f(int n, double x)"], "`x` is a float"),
            (&["x", "f(double x)"], "`x` is a float, and hist adds up whole numbers"),
            (&["n", "--sample", "2/3", "f(int n)"], "is no share"),
            (&["n", "--ret=stack", "f(int n)"], "are for ret and dur"),
            (&["n", "-o", "x.csv", "f(int n)"], ".csv is nothing that this command writes"),
        ] {
            let error = read(words).expect_err(words[0]);
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
