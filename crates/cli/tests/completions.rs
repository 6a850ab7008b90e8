//! Completion of command lines by real shells: what a user gets who presses TAB.
//!
//! bash is asked twice: by its completion function, with the variables that bash sets, and on a pseudo-terminal. zsh and
//! fish are asked on one if they are there.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::terminal::Terminal;
use common::{Victim, run, text};

/// The folder of the command, for `PATH`.
fn path() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_trapline")).parent().expect("a folder").display().to_string();
    format!("{folder}:{}", std::env::var("PATH").expect("text"))
}

/// Calls bash's completion function with the variables that bash sets, for the line $1, of which $2 is replaced.
const BASH: &str = r#"
source <(trapline completions bash)
compopt() { :; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_trapline trapline "$2" ""
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
"#;

/// What bash's function offers for a line, of which it replaces `word`. It must write nothing.
fn bash(line: &str, word: &str) -> Vec<String> {
    let mut bash = Command::new("bash");
    let output = bash.args(["--norc", "-c", BASH, "bash", line, word]).env("PATH", path()).output();
    let output = output.expect("bash runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_is_offered_verbs_options_processes_files_and_functions() {
    let victim = Victim::start();
    for (line, word, wanted) in [
        ("trapline cou".to_owned(), "cou", "count"),
        ("trapline count --pi".to_owned(), "--pi", "--pid"),
        ("trapline lat --ret=ex".to_owned(), "ex", "exits"),
        (format!("trapline count -p {}", &victim.pid()[..1]), &victim.pid()[..1], &victim.pid()),
        (format!("trapline trace -p {} --tid ", victim.pid()), "", &victim.pid()),
        ("trapline count --uid ro".to_owned(), "ro", "root"),
        ("trapline count -n trapline-vict".to_owned(), "trapline-vict", "trapline-victim"),
        ("trapline count lib".to_owned(), "lib", "libc:"),
        ("trapline count trapline-v".to_owned(), "trapline-v", "trapline-victim:"),
        ("trapline count libc:mallo".to_owned(), "mallo", "malloc"),
        ("trapline count libc:".to_owned(), "", "free"),
        ("trapline count uretprobe:libc:mallo".to_owned(), "mallo", "malloc"),
        ("trapline count usdt:trapline-victim:".to_owned(), "", "sample:tick"),
        ("trapline count trapline-victim:nes".to_owned(), "nes", "nested"),
        (format!("trapline count -p {} nes", victim.pid()), "nes", "nested"),
        ("trapline count /usr/bin/bas".to_owned(), "/usr/bin/bas", "/usr/bin/bash:"),
        ("trapline count /usr/bin/bash:readlin".to_owned(), "readlin", "readline"),
    ] {
        let offered = bash(&line, word);
        assert!(offered.iter().any(|one| one == wanted), "{line}: {offered:?}");
    }
    assert_eq!(bash("trapline count nothing:", ""), [""; 0]);
}

/// Types a line on a shell's terminal, presses TAB, and waits for what becomes of it.
fn typed(terminal: &mut Terminal, line: &str, becomes: &str) {
    // Ctrl-U removes what was typed before.
    terminal.press(&format!("\x15{line}\t"));
    // Below the line a shell may show what else begins so.
    let is_it = |line: &str| line.trim_end().ends_with(becomes);
    terminal.wait_for(becomes, |terminal| terminal.contents().lines().any(is_it));
}

fn shell(program: &str, args: &[&str], load: &str) -> Option<Terminal> {
    if !Path::new(program).exists() {
        println!("{program} is not installed");
        return None;
    }
    let path = path();
    let environment = [("PATH", path.as_str()), ("PS1", "$ ")];
    let mut terminal = Terminal::run_with(Path::new(program), args, &environment);
    terminal.press(&format!("{load}; printf 'is-%d\\n' 42\n"));
    terminal.wait_for_text("is-42");
    Some(terminal)
}

/// Lines, and what TAB makes of them in any shell.
const LINES: [(&str, &str); 6] = [
    ("trapline cou", "trapline count"),
    ("trapline count libc:malloc_usab", "count libc:malloc_usable_size"),
    ("trapline count 'libc:malloc_usab", "count 'libc:malloc_usable_size'"),
    ("trapline count uretprobe:libc:malloc_usab", "count uretprobe:libc:malloc_usable_size"),
    ("trapline lat --ret=exi", "trapline lat --ret=exits"),
    ("trapline count -o /etc/passw", "trapline count -o /etc/passwd"),
];

#[test]
fn bash_completes_on_a_terminal() {
    let mut bash =
        shell("/bin/bash", &["--norc", "-i"], "source <(trapline completions bash)").expect("bash");
    LINES.iter().for_each(|(line, becomes)| typed(&mut bash, line, becomes));
    bash.press("\x15exit\n");
    assert!(bash.status().is_some());
}

#[test]
fn zsh_completes_on_a_terminal() {
    let load = "autoload -U compinit; compinit -u -D; source <(trapline completions zsh)";
    let Some(mut zsh) = shell("/usr/bin/zsh", &["-f", "-i"], load) else { return };
    LINES.iter().for_each(|(line, becomes)| typed(&mut zsh, line, becomes));
}

#[test]
fn fish_completes_on_a_terminal() {
    let Some(mut fish) = shell(
        "/usr/bin/fish",
        &["--no-config", "-i"],
        "set -g fish_autosuggestion_enabled 0; trapline completions fish | source",
    ) else {
        return;
    };
    LINES.iter().for_each(|(line, becomes)| typed(&mut fish, line, becomes));
}

#[test]
fn candidates_come_quickly_and_are_not_too_many() {
    let begun = Instant::now();
    let output = run(&["complete", "zsh", "--", "count", "libc:"]);
    // In 0.03 s where nothing else runs.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let lines = text(&output.stdout).lines().count();
    assert!((1000..=2001).contains(&lines), "{lines}");
}

#[test]
fn nothing_is_said_about_what_makes_no_sense() {
    for words in [
        &["count", "/nowhere/at/all:"][..],
        &["nonsense", "x"],
        &["count", "-p", "0", "f"],
        &["--", ""],
        &["\u{1}"],
    ] {
        let output = run(&[&["complete", "fish", "--"], words].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", text(&output.stderr));
    }
}
