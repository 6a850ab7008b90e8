//! Manual pages and completion scripts, checked by the programs that read them.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};

use common::{run, text, trapline};

/// A directory of our own; removed with the test.
struct Pages(PathBuf);

impl Drop for Pages {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Pages {
    fn write(name: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let pages = Self(directory.join(format!("{}-{name}", std::process::id())));
        let output = trapline().arg("man").arg(&pages.0).output().expect("trapline runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        pages
    }
    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).expect("written");
        files.map(|file| file.expect("readable").path()).collect()
    }
}

/// Runs a program if there is one.
fn try_run(program: &str, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "").env("MANWIDTH", "80");
    command.output().ok()
}

/// The verbs, as the command lists them.
fn verbs() -> Vec<String> {
    let help = text(&run(&["-h"]).stdout);
    let lines = help.lines().skip_while(|line| *line != "Verbs:").skip(1);
    let verbs = lines.take_while(|line| line.starts_with("  "));
    let verbs = verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help");
    verbs.map(ToOwned::to_owned).collect()
}

#[test]
fn each_verb_has_a_page() {
    let pages = Pages::write("each");
    let verbs = verbs();
    assert!(verbs.iter().any(|verb| verb == "count") && verbs.iter().any(|verb| verb == "man"), "{verbs:?}");
    for verb in &verbs {
        let page = std::fs::read_to_string(pages.0.join(format!("trapline-{verb}.1"))).expect(verb);
        assert!(page.contains(&format!("trapline\\-{verb} \\- ")), "{page}");
    }
    let whole = std::fs::read_to_string(pages.0.join("trapline.1")).expect("the command's own");
    assert!(verbs.iter().all(|verb| whole.contains(&format!("trapline\\-{verb}\\fR(1)"))), "{whole}");
    assert_eq!(pages.files().len(), verbs.len() + 1);
}

#[test]
fn readers_of_manual_pages_find_no_error() {
    let pages = Pages::write("read");
    let mut checked = false;
    for file in pages.files() {
        let name = file.to_str().expect("text");
        if let Some(output) = try_run("man", &["--warnings", "-E", "UTF-8", "-l", "-Tutf8", name]) {
            let (shown, errors) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success() && errors.is_empty(), "{name}: {errors}");
            assert!(shown.contains("0  Done"), "{name}: {shown}");
            checked = true;
        }
        if let Some(output) = try_run("mandoc", &["-T", "lint", "-W", "error", name]) {
            assert!(output.status.success(), "{name}: {}{}", text(&output.stdout), text(&output.stderr));
            checked = true;
        }
    }
    if !checked {
        println!("SKIP: neither man nor mandoc");
    }
}

#[test]
fn shells_can_read_their_completions() {
    for (shell, args) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let output = run(&["completions", shell]);
        let script = text(&output.stdout);
        assert!(output.status.success() && script.contains(&format!(" complete {shell} -- ")), "{shell}");
        let file = common::scratch::Scratch::new(&format!("completions.{shell}"));
        std::fs::write(&file.0, &script).expect("written");
        match try_run(shell, &[args, &[file.name()]].concat()) {
            Some(output) => assert!(output.status.success(), "{shell}: {}", text(&output.stderr)),
            None => println!("{}no {shell}", if shell == "bash" { "SKIP: " } else { "" }),
        }
    }
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let output = run(&["man", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write manual pages to /proc/nowhere"));
}
