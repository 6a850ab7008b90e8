//! The meaning of the typed words: checked and converted, with no more strings to parse. In:
//! [`super::typed`]. Out: plain values. Does not: look at any process or file.

use std::ffi::OsString;
use std::time::Duration;

use trapline::filter::Filter;
use trapline::probes::{Pattern, ProbeKind};
use trapline::watch::Expr;
use trapline::{ProbeSpec, Returns, Target};

use super::command::{Calls, Count, Demo, Lat, List, Pids, Recording, Run, Shape, TimeUnit, Watch};
use super::error::UsageError;
use super::fields::Fields;
use super::filters;
use super::graph;
use super::hist;
use super::otlp;
use super::prototype::{Look, complete, split};
use super::serve;

use super::sink::{CALLS, LINES, READ, REPORTS, Sink};
use super::stack;
use super::top;
use super::typed::{self, TypedBy, TypedReturns, TypedTarget, Verb};
use super::units;
use super::words::split_words;
use crate::report::format::Format;

/// A whole command line, ready to run.
#[derive(Debug)]
pub(crate) enum Ready {
    /// `count`
    Count(Count),
    /// `lat`
    Lat(Lat),
    /// `hist`
    Hist(Box<hist::Hist>),
    /// `graph`
    Graph(graph::Graph),
    /// `trace`
    Calls(Calls),
    /// `trace --from`
    Recording(Recording),
    /// `stack`
    Stack(stack::Stacks),
    /// `top`
    Top(top::Top),
    /// `watch`
    Watch(Watch),
    /// `list`
    List(List),
    /// `status`
    Status(Pids),
    /// `detach`
    Detach(Pids),
    /// `demo`
    Demo(Demo),
}

/// Makes a command line ready. `look` returns the debug information of functions without a typed signature.
pub(crate) fn ready(verb: Verb, look: Look<'_>) -> Result<Ready, UsageError> {
    Ok(match verb {
        Verb::Count(typed) => Ready::Count(count(typed)?),
        Verb::Lat(typed) => Ready::Lat(lat(typed)?),
        Verb::Hist(typed) => match hist::hist(typed, look)? {
            hist::Either::Hist(hist) => Ready::Hist(hist),
            hist::Either::Lat(lat) => Ready::Lat(*lat),
        },
        Verb::Trace(typed::Trace { from: Some(file), filter, tids, comms, max, common, .. }) => {
            let sink = Sink::new(common.json, common.output, common.quiet, READ)?;
            let filter_options = filters::FilterOptions { condition: filter, tids, comms, sample: None };
            Ready::Recording(Recording { file, sink, filter_options, max })
        }
        Verb::Trace(typed) => Ready::Calls(calls(typed, look)?),
        Verb::Graph(typed) => Ready::Graph(graph::graph(typed, look)?),
        Verb::Stack(typed) => Ready::Stack(stack::stack(typed, look)?),
        Verb::Top(typed) => Ready::Top(top::top(typed)?),
        Verb::Watch(typed) => Ready::Watch(watch(typed)?),
        Verb::List(typed) => Ready::List(list(typed)?),
        Verb::Status(typed) => Ready::Status(pids(typed)?),
        Verb::Detach(typed) => Ready::Detach(pids(typed)?),
        Verb::Demo(typed) => {
            Ready::Demo(Demo { duration: positive("--duration", &typed.duration)?, keep: typed.keep })
        }
    })
}

fn count(typed: typed::Count) -> Result<Count, UsageError> {
    let by = typed.by.map(TypedBy::ready);
    let (serve, otlp) = (serve::address(&typed.serve)?, otlp::collector(typed.serve.otlp.as_deref())?);
    Ok(Count { run: Run { serve, otlp, ..run(&typed.probes, typed.common, REPORTS)? }, by })
}

fn lat(typed: typed::Lat) -> Result<Lat, UsageError> {
    let unit = match (typed.microseconds, typed.milliseconds) {
        (true, _) => TimeUnit::Micros,
        (_, true) => TimeUnit::Millis,
        _ => TimeUnit::Nanos,
    };
    let linear = typed.linear.as_deref().map(units::linear).transpose();
    let min = typed.min.as_deref().map(units::time).transpose();
    let shape = Shape {
        unit,
        linear: linear.map_err(|why| UsageError::Unit { option: "--linear", why })?,
        min_ns: min.map_err(|why| UsageError::Unit { option: "--min", why })?.map_or(0, nanos),
    };
    let (serve, otlp) = (serve::address(&typed.serve)?, otlp::collector(typed.serve.otlp.as_deref())?);
    let run = Run { serve, otlp, ..run(&typed.probes, typed.common, REPORTS)? };
    if let Some(wrong) = run.probes.iter().find(|probe| !is_function(probe)) {
        return Err(UsageError::NotAFunction(wrong.text.clone()));
    }
    let ends = typed.ends.ready()?;
    if typed.outermost && ends.returns == Returns::Stack {
        return Err(UsageError::OutermostByStack);
    }
    Ok(Lat { run, per_function: typed.per_function, outermost: typed.outermost, ends, shape })
}

fn calls(typed: typed::Trace, look: Look<'_>) -> Result<Calls, UsageError> {
    let (mut run, signatures) = split(&typed.probes, typed.common, CALLS, look)?;
    let probes = complete(&mut run, signatures, look)?;
    let returns = !typed.entry_only;
    let filter_options = filters::FilterOptions {
        condition: typed.filter,
        tids: typed.tids,
        comms: typed.comms,
        sample: typed.sample.as_deref().map(filters::sample).transpose()?,
    };
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    let filters = filters::filters(&probes, returns, &filter_options, &fields)?;
    drop(fields);
    if run.sink.format == Format::Saved {
        kept_as_they_are(&run, typed.max, &filters)?;
    }
    let ends = typed.ends.ready()?;
    Ok(Calls { run, probes, filters, returns, ends, max: typed.max })
}

/// Refuses options that a recording cannot have. It holds what the target recorded, and calls are paired when
/// it is read.
fn kept_as_they_are(run: &Run, max: Option<u64>, filters: &[Filter]) -> Result<(), UsageError> {
    let wrong = if filters.iter().any(Filter::is_late) {
        "-o FILE.trapline records what the target decides; ask of ret, dur and --comm when it is read: trapline trace --from FILE"
    } else if max.is_some() {
        "--max counts calls, which are put together when FILE.trapline is read: trapline trace --from FILE --max N"
    } else if run.timestamps {
        "-T is the time of printing, and nothing is printed into FILE.trapline"
    } else {
        return Ok(());
    };
    Err(UsageError::Conflict(wrong))
}

fn watch(typed: typed::Watch) -> Result<Watch, UsageError> {
    let place = |text: &String| text.parse().map_err(|why| UsageError::Place { text: text.clone(), why });
    let places = typed.places.iter().map(place).collect::<Result<_, _>>()?;
    let forks = typed.target.follow;
    let target = target(typed.target)?;
    if target == Target::Any {
        return Err(UsageError::Conflict(
            "watch needs a process: give one with -p or -n, or start a command with -c or behind --",
        ));
    }
    let sink = Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?;
    Ok(Watch {
        places,
        target,
        forks,
        count: typed.count,
        filter: typed.filter.map(|text| expr("--if", text)).transpose()?,
        until: typed.until.map(|text| expr("--until", text)).transpose()?,
        stack: typed.stack,
        rotate: typed.rotate.as_deref().map(|text| positive("--rotate", text)).transpose()?,
        interval: typed.interval.as_deref().map(|text| positive("--interval", text)).transpose()?,
        duration: typed.duration.as_deref().map(|text| positive("--duration", text)).transpose()?,
        timestamps: typed.timestamps,
        sink,
    })
}

fn expr(option: &'static str, text: String) -> Result<Expr, UsageError> {
    text.parse().map_err(|why| UsageError::Expr { option, text, why })
}

pub(super) fn is_function(probe: &ProbeSpec) -> bool {
    let inside = matches!(&probe.func, Pattern::Exact(exact) if exact.offset > 0);
    probe.kind == ProbeKind::Entry && !inside
}

fn list(typed: typed::List) -> Result<List, UsageError> {
    let common = typed.common;
    let target = match (common.pids, common.names) {
        (pids, names) if pids.is_empty() && names.is_empty() => Target::Any,
        (pids, names) => Target::Running { pids, names },
    };
    let sink = Sink::new(common.sink.json, common.sink.output, common.sink.quiet, LINES)?;
    Ok(List {
        probes: probes(&typed.probes)?,
        target,
        timed: typed.lat,
        returns: typed.ret.map(TypedReturns::ready).unwrap_or_default(),
        strict: common.strict,
        faults_are_fatal: common.faults_are_fatal,
        sink,
    })
}

fn pids(typed: typed::Pids) -> Result<Pids, UsageError> {
    let sink = Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?;
    Ok(Pids { pids: typed.pids, sink })
}

pub(super) fn run(texts: &[String], typed: typed::Common, offered: &[Format]) -> Result<Run, UsageError> {
    let sink = Sink::new(typed.json, typed.output, typed.quiet, offered)?;
    let interval = typed.interval.as_deref().map(|text| positive("--interval", text)).transpose()?;
    Ok(Run {
        probes: probes(texts)?,
        follow: typed.target.follow,
        target: target(typed.target)?,
        interval: interval.or(sink.interval()),
        duration: typed.duration.as_deref().map(|text| positive("--duration", text)).transpose()?,
        timestamps: typed.timestamps,
        dry_run: typed.dry_run,
        strict: typed.strict,
        faults_are_fatal: typed.faults_are_fatal,
        sink,
        serve: None,
        otlp: None,
    })
}

fn target(typed: TypedTarget) -> Result<Target, UsageError> {
    let running = !typed.pids.is_empty() || !typed.names.is_empty();
    let words = match typed.command {
        Some(command) => Some(split_words(&command)?.into_iter().map(OsString::from).collect::<Vec<_>>()),
        None if typed.words.is_empty() => None,
        None => Some(typed.words),
    };
    match words {
        Some(_) if running => Err(UsageError::Conflict(
            "a command to launch cannot be combined with -p or -n; trace the running ones in a second trapline",
        )),
        Some(words) if words.is_empty() => Err(UsageError::EmptyCommand),
        Some(words) => Ok(Target::Launch(words)),
        None if running => Ok(Target::Running { pids: typed.pids, names: typed.names }),
        None => Ok(Target::Any),
    }
}

fn probes(texts: &[String]) -> Result<Vec<ProbeSpec>, UsageError> {
    let parse = |text: &String| text.parse().map_err(|why| UsageError::Probe { text: text.clone(), why });
    texts.iter().map(parse).collect()
}

fn positive(option: &'static str, text: &str) -> Result<Duration, UsageError> {
    units::positive(text).map_err(|why| UsageError::Unit { option, why })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Ready, TimeUnit, ready};
    use crate::args::typed::Typed;
    use crate::args::words::split_words;
    use clap::{CommandFactory, Parser};
    use trapline::Target;

    fn parse(line: &str) -> Result<Ready, String> {
        let words = split_words(line).expect("quotes are closed");
        let typed = Typed::try_parse_from(words).map_err(|e| e.to_string())?;
        ready(typed.verb, &|_| Vec::new()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_declaration_is_consistent() {
        Typed::command().debug_assert();
    }

    #[test]
    fn a_command_follows_two_dashes() {
        let Ok(Ready::Count(count)) = parse("trapline count -q malloc free -- ls -l") else { panic!() };
        assert_eq!(count.run.probes.len(), 2);
        assert!(matches!(count.run.target, Target::Launch(words) if words == ["ls", "-l"]));
    }

    #[test]
    fn watch_takes_places_and_conditions() {
        let line = "trapline watch -f --rotate --if 'value > 10' libx:table+8:4:rw server.count -- ls -l";
        let Ok(Ready::Watch(watch)) = parse(line) else { panic!() };
        assert_eq!((watch.places.len(), watch.forks), (2, true));
        assert_eq!(watch.rotate, Some(std::time::Duration::from_millis(100)));
        assert!(matches!(watch.target, Target::Launch(words) if words == ["ls", "-l"]));
    }

    #[test]
    fn units_exclude_each_other() {
        let Ok(Ready::Lat(lat)) = parse("trapline lat -u -F -p 1 -p 2 --min 1ms malloc") else { panic!() };
        assert_eq!((lat.shape.unit, lat.shape.min_ns), (TimeUnit::Micros, 1_000_000));
        assert!(matches!(lat.run.target, Target::Running { pids, .. } if pids == [1, 2]));
        assert!(parse("trapline lat -u -m malloc").is_err());
    }

    #[test]
    fn each_wrong_word_is_named() {
        for (line, says) in [
            ("trapline count -p 1 -c ls malloc", "cannot be combined"),
            ("trapline count -d 0 -p 1 malloc", "--duration: `0` is no useful time"),
            ("trapline count -i x -p 1 malloc", "--interval: `x` is no time"),
            ("trapline lat --linear 1:2 -p 1 malloc", "--linear: `1:2` is no range"),
            ("trapline lat -p 1 uretprobe:libc:malloc", "lat takes functions"),
            ("trapline count -p 1 /[/", "cannot read probe `/[/`"),
            ("trapline count -c '' malloc", "no command was given"),
            ("trapline stack -p 1 uretprobe:libc:malloc", "cannot take stacks at `uretprobe:libc:malloc`"),
            ("trapline stack --time -p 1 usdt:libc:libc:setjmp", "stack --time takes functions"),
            ("trapline stack --depth 0 -p 1 malloc", "invalid value '0'"),
            ("trapline stack --stack-bytes 1024 -p 1 malloc", "--stack-bytes is for copies"),
            ("trapline stack --unwind dwarf --depth 9 -p 1 malloc", "--depth is for frame pointers"),
            (
                "trapline stack -o x.csv -p 1 malloc",
                "take .json, .html, .folded, .svg, .pb.gz, or any other name",
            ),
            ("trapline stack --json -o x.svg -p 1 malloc", "ask for different formats"),
            ("trapline count -o x.pb.gz -p 1 malloc", ".pb.gz is nothing that this command writes"),
            ("trapline count -p 0 malloc", "invalid value '0'"),
            ("trapline count --serve host -p 1 malloc", "--serve: `host` is no address"),
            ("trapline list -o x.csv malloc", "-o x.csv: .csv is nothing that this command writes"),
            ("trapline count --json -o x.csv -p 1 malloc", "ask for different formats"),
            ("trapline count -o x.trapline -p 1 malloc", ".trapline is nothing that this command writes"),
            ("trapline trace --from x -o y.trapline", ".trapline is nothing that this command writes"),
            ("trapline trace --from x malloc", "cannot be used with"),
            ("trapline trace --from x -p 1", "cannot be used with"),
            ("trapline trace -o x.trapline --max 3 -p 1 malloc", "--max counts calls"),
            ("trapline trace -o x.trapline -T -p 1 malloc", "-T is the time of printing"),
            ("trapline trace -o x.trapline --if 'ret < 0' -p 1 malloc", "ask of ret, dur and --comm when"),
            ("trapline trace -o x.trapline --comm x -p 1 malloc", "ask of ret, dur and --comm when"),
            ("trapline count", "required"),
            ("trapline watch counter", "watch needs a process"),
            ("trapline watch -p 1 counter:r", "cannot watch reads alone"),
            ("trapline watch -p 1 --if 'value >' counter", "--if: cannot read `value >`"),
            ("trapline watch -p 1 --rotate=0 counter", "--rotate: `0` is no useful time"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
