//! The meaning of the typed words: checked and converted, with no more options to check.
//!
//! In: [`typed`](super::typed) words; a function that reads debug information. Out: a
//! [`Command`](super::command), or one sentence about what is wrong. Does not: look at any process or file by
//! itself, apart from [`threads`].

mod aggregation;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod filters;
mod graph;
mod hist;
mod lat;
mod noted;
mod once;
mod overloads;
pub(crate) mod prototype;
pub(crate) mod record;
mod run;
mod script;
mod selection;
pub(crate) mod signature;
mod stack;
pub(crate) mod threads;
mod top;
mod trace;
pub(crate) mod trigger;
mod units;
mod watch;
pub(crate) mod words;

use super::command::Command;
use super::typed::Verb;
use error::UsageError;
use prototype::Look;

/// Makes a command line ready. `look` returns the debug information of functions without a typed signature.
pub(crate) fn ready(verb: Verb, look: Look<'_>) -> Result<Command, UsageError> {
    match verb {
        Verb::Count(typed) => lat::count(typed).map(Command::Count),
        Verb::Lat(typed) => lat::lat(typed).map(Command::Lat),
        Verb::Hist(typed) => hist::hist(typed, look),
        Verb::Trace(typed) => trace::trace(typed, look),
        Verb::Graph(typed) => graph::graph(typed, look),
        Verb::Record(typed) => record::record(typed, look).map(Command::Record),
        Verb::Replay(typed) => record::replay(typed).map(Command::Recorded),
        Verb::Report(typed) => record::report(typed).map(Command::Recorded),
        Verb::Diff(typed) => record::diff(typed).map(Command::Diff),
        Verb::Info(typed) => Ok(Command::Info(typed.dir, typed.json)),
        Verb::Dump(typed) => record::dump(typed).map(Command::Recorded),
        Verb::Stack(typed) => stack::stack(typed, look).map(Command::Stack),
        Verb::Top(typed) => top::top(typed).map(Command::Top),
        Verb::Watch(typed) => watch::watch(typed).map(Command::Watch),
        Verb::Run(typed) => script::script(typed).map(Command::Script),
        Verb::List(typed) => once::list(typed).map(Command::List),
        Verb::Status(typed) => once::pids(typed.of, !typed.pager.no_pager).map(Command::Status),
        Verb::Detach(typed) => once::pids(typed, false).map(Command::Detach),
        Verb::Demo(typed) => once::demo(&typed).map(Command::Demo),
        Verb::Doctor(typed) => once::doctor(typed).map(Command::Doctor),
        Verb::Completions(typed) => Ok(Command::Completions(typed.shell)),
        Verb::Complete(typed) => Ok(Command::Complete(typed.shell, typed.words)),
        Verb::Man(typed) => Ok(Command::Man(typed.directory)),
    }
}

#[cfg(test)]
mod tests {
    use super::ready;
    use super::words::split_words;
    use crate::args::command::{Command, TimeUnit};
    use crate::args::typed::Typed;
    use clap::{CommandFactory, Parser};
    use trapline::Target;

    fn parse(line: &str) -> Result<Command, String> {
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
        let Ok(Command::Count(count)) = parse("trapline count -q malloc free -- ls -l") else { panic!() };
        assert_eq!(count.run.probes.len(), 2);
        assert!(matches!(count.run.target, Target::Launch(words) if words == ["ls", "-l"]));
    }

    #[test]
    fn watch_takes_places_and_conditions() {
        let line = "trapline watch -f --rotate --if 'value > 10' libx:table+8:4:rw server.count -- ls -l";
        let Ok(Command::Watch(watch)) = parse(line) else { panic!() };
        assert_eq!((watch.places.len(), watch.forks), (2, true));
        assert_eq!(watch.rotate, Some(std::time::Duration::from_millis(100)));
        assert!(matches!(watch.target, Target::Launch(words) if words == ["ls", "-l"]));
    }

    #[test]
    fn units_exclude_each_other() {
        let Ok(Command::Lat(lat)) = parse("trapline lat -u -F -p 1 -p 2 --min 1ms malloc") else { panic!() };
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
