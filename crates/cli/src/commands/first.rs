//! `trapline` alone: five commands that work now on this machine.
//!
//! In: what the machine permits, the programs that are here, a process that runs. Out: five commands, each of which was
//! planned before it is shown; exit status 1 if nothing can be traced. Does not: change any process.

use std::path::PathBuf;

use trapline::cleanup::patched;
use trapline::system::{busiest, permitted};
use trapline::{Session, Target};

use super::{Failure, Outcome, doctor};
use crate::output::Output;

/// Commands that are shown.
const SHOWN: usize = 5;
/// Programs that end at once, do no harm, and allocate: the first that is here and can be probed is taken.
const PROGRAMS: [&[&str]; 5] =
    [&["ls", "/"], &["git", "--version"], &["python3", "--version"], &["perl", "-v"], &["sh", "-c", ":"]];
const BEGIN: &str = "\
Trapline counts, times and records function calls of running programs.
These commands work here:
";
const END: &str = "
All verbs: trapline --help. What this machine permits, and how to get more: trapline doctor.
";

/// A command line, and what it answers.
#[derive(Debug, PartialEq, Eq)]
struct Suggestion {
    line: String,
    about: String,
}

fn suggestion(line: impl Into<String>, about: impl Into<String>) -> Suggestion {
    Suggestion { line: line.into(), about: about.into() }
}

/// Runs it.
pub(crate) fn run() -> Result<Outcome, Failure> {
    let mut output = Output::Stdout;
    let launch = permitted::launch();
    let attach = permitted::attach();
    let may = |finding: &permitted::Finding| finding.verdict == permitted::Verdict::Yes;
    if !may(&launch) && !may(&attach) {
        output.print("Nothing can be traced here. More: trapline doctor.\n\n")?;
        output.print(&doctor::text(&[launch, attach]))?;
        return Ok(Outcome::Failed);
    }
    let mut all = Vec::new();
    if may(&launch) {
        all.push(suggestion("trapline demo", "tries it on a sample program, and shows what a hit costs"));
    }
    all.extend(may(&attach).then(of_process).flatten());
    if may(&launch) {
        all.extend(of_command());
    }
    all.extend(others());
    output.print(&text(&all[..SHOWN.min(all.len())]))?;
    Ok(Outcome::Done)
}

fn text(shown: &[Suggestion]) -> String {
    let lines = shown.iter().map(|one| format!("\n  {}\n      {}\n", one.line, one.about));
    format!("{BEGIN}{}{END}", lines.collect::<String>())
}

/// Whether a program can be started by its name alone.
fn in_path(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder: PathBuf| folder.join(name).is_file())
}

/// Whether a session would find something to probe.
fn is_there(target: Target, probe: &str) -> bool {
    let builder = Session::builder().target(target).probe(probe);
    let listing = builder.and_then(|builder| builder.list(false));
    listing.is_ok_and(|listing| listing.listed.iter().any(|one| one.tactic.is_ok()))
}

/// A command for the process that has used the most time of those that may be traced.
fn of_process() -> Option<Suggestion> {
    const PROBE: &str = "libc:*alloc*";
    let fits = |pid: &u32| {
        let target = Target::Running { pids: vec![*pid], names: Vec::new() };
        patched(*pid).is_ok_and(|segments| segments.is_empty()) && is_there(target, PROBE)
    };
    let (pid, comm) = busiest().into_iter().find(|(pid, _)| fits(pid))?;
    let about = format!("how often {comm}, which runs here, allocates memory, for two seconds");
    Some(suggestion(format!("trapline count -d 2 -p {pid} '{PROBE}'"), about))
}

/// Commands that start a program of this machine.
fn of_command() -> Vec<Suggestion> {
    let target = |words: &&&[&str]| Target::Launch(words.iter().map(Into::into).collect());
    let fits = |words: &&&[&str]| in_path(words[0]) && is_there(target(words), "libc:malloc");
    let Some(words) = PROGRAMS.iter().find(fits) else { return Vec::new() };
    let (program, line) = (words[0], words.join(" "));
    vec![
        suggestion(
            format!("trapline count 'libc:*alloc*' -- {line}"),
            format!("how often {program} allocates memory"),
        ),
        suggestion(format!("trapline lat libc:malloc -- {line}"), "how long each allocation takes"),
        suggestion(
            format!("trapline trace 'libc:malloc(u64 size) -> hex' -- {line}"),
            "each allocation, with its size",
        ),
        suggestion(
            format!("trapline stack libc:malloc -- {line}"),
            format!("which code of {program} allocates"),
        ),
        suggestion(
            format!("trapline hist size 'libc:malloc(u64 size)' -- {line}"),
            "which sizes are allocated",
        ),
    ]
}

/// Commands that need no program.
fn others() -> [Suggestion; 4] {
    [
        suggestion("trapline doctor", "what this machine permits, and how to get more"),
        suggestion("trapline --help", "all verbs, how probes are written, and examples"),
        suggestion("trapline completions bash", "a completion script for the shell"),
        suggestion("trapline count --help", "a verb's options, with examples"),
    ]
}

#[cfg(test)]
mod tests {
    use super::{SHOWN, of_command, others, suggestion, text};
    use crate::args::ready::ready;
    use crate::args::ready::words::split_words;
    use crate::args::typed::Typed;
    use clap::Parser as _;

    #[test]
    fn a_machine_without_programs_is_shown_as_many() {
        assert!(others().len() + 1 >= SHOWN);
    }

    #[test]
    fn each_suggestion_is_a_valid_command_line() {
        for one in of_command() {
            let typed =
                Typed::try_parse_from(split_words(&one.line).expect("quotes are closed")).expect(&one.line);
            assert!(ready(typed.verb, &|_| Vec::new()).is_ok(), "{}", one.line);
        }
    }

    #[test]
    fn a_command_stands_alone_on_its_line() {
        let shown = text(&[suggestion("trapline demo", "tries it")]);
        assert!(shown.contains("\n\n  trapline demo\n      tries it\n\nAll verbs:"), "{shown}");
    }
}
