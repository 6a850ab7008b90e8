//! How texts look on a terminal: no colours where nobody wants them, and no wider than it is.

mod common;

use std::path::Path;
use std::process::Command;

use common::Victim;
use common::scratch::Scratch;
use common::terminal::{Size, Terminal, size};

/// Runs the command on a terminal.
fn on_terminal(args: &[&str], environment: &[(&str, &str)], size: Size) -> Terminal {
    let environment = [&[("TRAPLINE_PAGER", ""), ("NO_COLOR", "")], environment].concat();
    Terminal::run_sized(Path::new(env!("CARGO_BIN_EXE_trapline")), args, &environment, size)
}

/// Whether a cell of the screen has a colour, or letters unlike the others.
fn is_coloured(terminal: &Terminal, also_letters: bool) -> bool {
    let emulator = terminal.emulator.lock().expect("no panic");
    let (rows, columns) = emulator.screen().size();
    let (rows, columns) = (rows.get(), columns.get());
    let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    cells.filter_map(|(row, column)| emulator.screen().cell(row, column)).any(|cell| {
        let plain = vt100::Color::Default;
        let has_letters = cell.bold() || cell.underline() || cell.inverse() || cell.dim();
        cell.fgcolor() != plain || cell.bgcolor() != plain || also_letters && has_letters
    })
}

#[test]
fn help_and_errors_have_colours_only_where_they_are_wanted() {
    for args in [&["count", "-h"][..], &["count", "--nonsense"]] {
        for (environment, wanted) in [
            (&[][..], true),
            (&[("NO_COLOR", "1")], false),
            (&[("TERM", "dumb")], false),
            (&[("TERM", "dumb"), ("CI", "true")], false),
        ] {
            let mut terminal = on_terminal(args, environment, size(100, 100));
            terminal.wait_for_text("Usage: ");
            assert!(terminal.status().is_some());
            terminal.wait_for_text("--help");
            assert_eq!(is_coloured(&terminal, true), wanted, "{args:?} {environment:?}");
        }
    }
}

#[test]
fn a_paged_help_has_no_colours_where_nobody_wants_them() {
    for (no_colour, wanted) in [("", true), ("1", false)] {
        let pager = [("TRAPLINE_PAGER", "head -n 20"), ("NO_COLOR", no_colour)];
        let mut terminal = on_terminal(&["count", "--help"], &pager, size(24, 100));
        assert_eq!(terminal.status(), Some(0));
        terminal.wait_for_text("Usage: ");
        assert_eq!(is_coloured(&terminal, true), wanted, "{no_colour}");
    }
}

#[test]
fn top_uses_no_colours() {
    let victim = Victim::start();
    let args = ["top", "-i", "50ms", "-p", &victim.pid(), "plain"];
    for no_colour in ["", "1"] {
        let mut terminal = on_terminal(&args, &[("NO_COLOR", no_colour)], size(24, 100));
        terminal.wait_for_text("q quit");
        assert!(!is_coloured(&terminal, false), "{no_colour}");
        terminal.press("q");
        assert_eq!(terminal.end(), Some(0));
    }
}

/// The rows of a text that is shown on a terminal with so many columns; rows that go on below it count as one.
fn rows(args: &[&str], columns: u16) -> Vec<String> {
    let mut terminal = on_terminal(args, &[], size(500, columns));
    assert_eq!(terminal.status(), Some(0));
    terminal.wait_for("the end", |terminal| terminal.contents().contains("sites: ") || args.contains(&"-h"));
    terminal.contents().lines().map(str::to_owned).collect()
}

#[test]
fn helps_follow_the_width_of_the_terminal() {
    for columns in [60, 100] {
        let help = rows(&["count", "-h"], columns);
        let widest = help.iter().map(|row| row.chars().count()).max().expect("rows");
        assert!(
            widest <= usize::from(columns) && widest > usize::from(columns) - 15,
            "{widest} of {columns}"
        );
    }
}

#[test]
fn one_long_name_does_not_make_all_rows_of_a_list_long() {
    let (source, library) = (Scratch::new("names.c"), Scratch::new("names.so"));
    let long = "long_name_".repeat(15);
    std::fs::write(&source.0, format!("int {long}(void) {{ return 1; }}\nint first(void) {{ return 2; }}\n"))
        .expect("written");
    let built =
        Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o", library.name(), source.name()]).status();
    assert!(built.expect("a C compiler").success());
    let columns = u16::try_from(library.name().len()).expect("short") + 60;
    let probe = |name: &str| format!("{}:{name}", library.name());
    let rows = rows(&["list", &probe("long_name_*"), &probe("first")], columns);
    let width = |name: &str| {
        rows.iter().find(|row| row.contains(&format!("{name} "))).expect("listed").chars().count()
    };
    assert!(width(&long) > columns.into() && width(" first") <= columns.into(), "{rows:#?}");
}
