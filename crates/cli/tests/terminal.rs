//! `top` on a pseudo-terminal: what it shows, and that terminal and target are as before, whatever ends it
//! (TOP-1, END-1).

mod common;
#[path = "../src/top/screen.rs"]
#[allow(dead_code, reason = "the test opens and draws; it asks for nothing")]
mod screen;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use common::terminal::{Terminal, modes, resize, size};
use common::{Victim, program, text};

/// Runs `top` on a new terminal.
fn run_top(args: &[&str]) -> Terminal {
    Terminal::run(Path::new(env!("CARGO_BIN_EXE_trapline")), &[&["top", "-i", "50ms"], args].concat())
}

/// Starts `top` on a victim, and waits until its table is shown.
fn shown(args: &[&str]) -> (Victim, Vec<u8>, Terminal) {
    let victim = Victim::start();
    let before = victim.text();
    let mut terminal = run_top(&[&["-p", &victim.pid()], args].concat());
    terminal.wait_for_text("q quit");
    assert!(terminal.is_taken() && modes(&terminal.slave) != terminal.modes, "raw, on the other screen");
    assert_ne!(victim.text(), before, "nothing was patched");
    (victim, before, terminal)
}

#[test]
fn hits_are_shown_and_q_ends_it() {
    let (mut victim, before, mut terminal) = shown(&["plain", "nested", "main"]);
    let [plain, nested, _] = victim.rounds(1000);
    terminal.wait_for("all hits", |terminal| {
        let contents = terminal.contents();
        let row = |hits: u64, name: &str| {
            contents.lines().any(|line| {
                line.contains(&format!(" {hits} ").replacen("000 ", ",000 ", 1)) && line.ends_with(name)
            })
        };
        row(plain, "plain") && row(nested, "nested")
    });
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    assert_eq!(victim.text(), before, "text was not restored");
    terminal.wait_for_text("2,000  plain");
    terminal.wait_for_text("hits: 3,000 recorded");
    assert_eq!(victim.rounds(10)[0], 20);
}

#[test]
fn whatever_ends_it_gives_terminal_and_target_back() {
    for end in ["Ctrl-C", "-TERM", "-HUP", "-INT", "the target"] {
        let (mut victim, before, mut terminal) = shown(&["--lat", "plain"]);
        victim.rounds(100);
        match end {
            "Ctrl-C" => terminal.press("\x03"),
            "the target" => victim.finish(),
            signal => terminal.signal(signal),
        }
        assert_eq!(terminal.end(), Some(0), "{end}:\n{}", terminal.contents());
        terminal.wait_for_text("hits: 200 recorded");
        if end != "the target" {
            assert_eq!(victim.text(), before, "{end}: text was not restored");
        }
    }
}

#[test]
fn a_terminal_that_is_gone_ends_it() {
    let (victim, before, mut terminal) = shown(&["plain"]);
    // The thread that reads has the terminal open too, until the table is drawn next.
    terminal.gone.store(true, Ordering::Relaxed);
    terminal.slave = File::open("/dev/null").expect("there");
    terminal.master = None;
    assert_eq!(terminal.status(), Some(0));
    assert_eq!(victim.text(), before, "text was not restored");
}

#[test]
fn keys_choose_and_another_size_is_drawn() {
    let (mut victim, _, mut terminal) = shown(&["plain", "nested", "recursive"]);
    victim.rounds(50);
    terminal.press("/nest");
    terminal.wait_for("the filter", |terminal| {
        let contents = terminal.contents();
        contents.contains("/nest_") && contents.contains("1 function of 3") && !contents.contains("  plain")
    });
    terminal.press("\r");
    terminal.wait_for_text("filter nest");
    terminal.press("/\x1b>");
    terminal.wait_for_text("▼HITS ");
    let (rows, columns) = size(10, 60);
    terminal.emulator.lock().expect("no panic").screen_mut().set_size(rows, columns);
    resize(terminal.master.as_ref().expect("there"), (rows, columns));
    terminal.wait_for("the keys in the last line", |terminal| {
        let contents = terminal.contents();
        contents.lines().count() == usize::from(rows.get())
            && contents.lines().last().is_some_and(|line| line.starts_with("<> sort"))
    });
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_real_program_is_shown_while_it_works() {
    let python = Path::new("/usr/bin/python3.11");
    if !python.exists() {
        println!("SKIP: /usr/bin/python3.11 is not installed");
        return;
    }
    let script = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: sys.stdout.write(f'{len(line)}\\n'); sys.stdout.flush()";
    let mut python = Victim::start_by(Command::new(python).args(["-c", script]));
    let mut terminal = run_top(&["--lat", "-p", &python.pid(), "--sort", "total", "libc:write", "libc:read"]);
    terminal.wait_for_text("q quit");
    for _ in 0..7 {
        assert_eq!(python.say("12345"), "6");
    }
    terminal.wait_for("seven calls of write", |terminal| {
        let contents = terminal.contents();
        let row = contents.lines().find(|line| line.ends_with(":write")).unwrap_or_default();
        row.split_whitespace().nth(1) == Some("7")
    });
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    assert_eq!(python.say("1"), "2");
}

#[test]
fn a_launched_command_keeps_its_terminal() {
    let victim = program().display().to_string();
    let mut terminal = Terminal::run(
        Path::new(env!("CARGO_BIN_EXE_trapline")),
        &["top", "plain", "--", &victim, "5000", "7"],
    );
    assert_eq!(terminal.end(), Some(7));
    terminal.wait_for_text("5,000  plain");
}

#[test]
fn lines_where_there_is_no_terminal() {
    let victim = program().display().to_string();
    let output = common::run(&["top", "--lat", "plain", "--", &victim, "5000"]);
    let output_text = text(&output.stderr);
    assert!(
        output_text.contains("CALLS/S  CALLS ")
            && output_text.contains("  plain\n1 function, 0 without a call"),
        "{output_text}"
    );
    let output = common::run(&["top", "--sort", "p99", "-p", "1", "plain"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let me = std::env::current_exe().expect("a path");
    let args = ["--exact", "the_one_that_panics", "--ignored", "--nocapture"];
    let mut terminal = Terminal::run(&me, &args);
    assert_eq!(terminal.end(), Some(101));
    terminal.wait_for_text("on purpose");
    let left = terminal.contents();
    assert!(
        left.contains("on purpose") && !left.contains("was here"),
        "the message is on the terminal's own screen:\n{left}"
    );
}

/// Not a test of its own: the one above runs it on a terminal.
#[test]
#[ignore = "run by the other tests"]
fn the_one_that_panics() {
    assert!(screen::is_there() && !screen::is_ascii());
    let mut screen = screen::Screen::open().expect("a terminal");
    screen
        .draw(|frame| {
            frame.buffer_mut().set_string(0, 0, "was here", ratatui::style::Style::new());
        })
        .expect("drawn");
    panic!("on purpose");
}
