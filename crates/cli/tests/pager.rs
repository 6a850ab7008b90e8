//! Long texts on a terminal: they go through a pager, which may be left early, and elsewhere they do not.

mod common;

use std::path::Path;

use common::scratch::Scratch;
use common::terminal::Terminal;
use common::{run, text, trapline};

/// Runs the command on a terminal.
fn on_terminal(args: &[&str], environment: &[(&str, &str)]) -> Terminal {
    let environment = [&[("PAGER", ""), ("TRAPLINE_PAGER", "")], environment].concat();
    Terminal::run_with(Path::new(env!("CARGO_BIN_EXE_trapline")), args, &environment)
}

/// A program that shows two lines of what it gets, and then waits for a key.
fn pager(name: &str) -> Scratch {
    let file = Scratch::new(name);
    let script = "#!/bin/sh\nhead -n 2\necho left-early\nread key < /dev/tty\n";
    std::fs::write(&file.0, script).expect("written");
    file
}

const LONG: [&str; 2] = ["list", "libc:*"];

#[test]
fn a_long_list_goes_through_the_pager_which_may_be_left_early() {
    let file = pager("pager-list.sh");
    let pager = format!("sh {}", file.name());
    let mut terminal = on_terminal(&LONG, &[("TRAPLINE_PAGER", &pager), ("PAGER", "cat")]);
    terminal.wait_for_text("left-early");
    assert!(terminal.contents().contains("OFFSET"), "{}", terminal.contents());
    terminal.press("\n");
    assert_eq!(terminal.status(), Some(0));
    terminal.wait_for_text(" sites: ");
    assert!(terminal.contents().contains("left-early"), "it was shown twice:\n{}", terminal.contents());
}

#[test]
fn a_pager_ends_before_us_at_ctrl_c() {
    let file = Scratch::new("ignoring.sh");
    std::fs::write(
        &file.0,
        "trap 'echo still-there' INT\necho begun\nhead -n 1\nread key < /dev/tty\nread key < /dev/tty\n",
    )
    .expect("written");
    // Whoever runs tests in the background may ignore Ctrl-C, and a shell keeps it so.
    let program = env!("CARGO_BIN_EXE_trapline");
    let args = [&["--default-signal=INT", program][..], &LONG].concat();
    let pager = format!("bash {}", file.name());
    let mut terminal = Terminal::run_with(Path::new("/usr/bin/env"), &args, &[("TRAPLINE_PAGER", &pager)]);
    terminal.wait_for_text("begun");
    terminal.press("\x03");
    terminal.wait_for_text("still-there");
    assert!(terminal.child.try_wait().expect("ours").is_none(), "we ended first");
    terminal.press("\n\n");
    assert_eq!(terminal.status(), Some(0));
}

#[test]
fn a_long_help_goes_through_the_pager() {
    let file = pager("pager-help.sh");
    let mut terminal =
        on_terminal(&["record", "--help"], &[("TRAPLINE_PAGER", &format!("sh {}", file.name()))]);
    terminal.wait_for_text("left-early");
    terminal.press("\n");
    assert_eq!(terminal.status(), Some(0));
}

#[test]
fn whoever_wants_no_pager_gets_none() {
    let file = pager("pager-none.sh");
    let pager = format!("sh {}", file.name());
    let of = pager.as_str();
    let long = |more: &[&'static str]| [&LONG[..], more].concat();
    for (args, environment) in [
        (long(&["--no-pager"]), vec![("TRAPLINE_PAGER", of)]),
        (long(&["--json"]), vec![("TRAPLINE_PAGER", of)]),
        (long(&[]), vec![("TRAPLINE_PAGER", "cat"), ("PAGER", of)]),
        (long(&[]), vec![("TRAPLINE_PAGER", "/nowhere/pager")]),
        (long(&[]), vec![("TRAPLINE_PAGER", of), ("TERM", "dumb")]),
        (vec!["list", "libc:malloc"], vec![("TRAPLINE_PAGER", of)]),
    ] {
        let mut terminal = on_terminal(&args, &environment);
        terminal.wait_for_text("jump");
        assert_eq!(terminal.status(), Some(0), "{args:?}");
        let contents = terminal.contents();
        assert!(contents.contains("libc") && !contents.contains("left-early"), "{args:?}:\n{contents}");
    }
}

/// What is read from a recording is shown as it is read: a pager that was left early ends that, too.
#[test]
fn what_a_recording_shows_goes_through_the_pager() {
    let folder = Scratch::new("pager.data");
    let recorded = run(&["record", "-o", folder.name(), "libc:*", "--", "ls", "/"]);
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let file = pager("pager-recorded.sh");
    let with = [("TRAPLINE_PAGER", &*format!("sh {}", file.name()))];
    for verb in [&["replay"][..], &["report"], &["diff", "--full", folder.name()]] {
        let args = [verb, &[folder.name()]].concat();
        let mut terminal = on_terminal(&args, &with);
        terminal.wait_for_text("left-early");
        terminal.press("\n");
        assert_eq!(terminal.status(), Some(0), "{args:?}");
        let output = run(&args);
        let lines = text(&output.stdout).lines().count();
        assert!(output.status.success() && lines > 24, "{args:?}: {lines} lines");
        // Neither a text that fits on the screen, nor one for which no pager is wanted.
        let short = ["-F", "nothing-of-this-name"];
        for more in [&short[..], &["--no-pager"]] {
            let mut terminal = on_terminal(&[&args, more].concat(), &with);
            assert_eq!(terminal.status(), Some(0), "{args:?} {more:?}");
            assert!(!terminal.contents().contains("left-early"), "{args:?} {more:?}");
        }
    }
}

#[test]
fn no_terminal_no_pager() {
    let pager = [("TRAPLINE_PAGER", "head -n 1"), ("TERM", "xterm")];
    let output = trapline().args(LONG).envs(pager).output().expect("trapline runs");
    assert!(output.status.success());
    assert!(text(&output.stdout).lines().count() > 1000);
}
