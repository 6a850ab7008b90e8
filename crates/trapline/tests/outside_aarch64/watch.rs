//! `trapline watch` as a user types it: as many accesses as the victim makes, each with its function and the
//! value that it leaves.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use crate::command::VARIABLE;
use crate::victim::{THREADS, TURNS, Victim};

const TIMES: u64 = 100;

/// A running command; it is ended when this is dropped.
struct Watch {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Watch {
    /// `None` if the command's path is not known, which is printed.
    fn start(victim: &Victim, places: &[&str]) -> Option<Self> {
        let Some(command) = std::env::var_os(VARIABLE) else {
            println!("SKIP {VARIABLE} does not say where the command is");
            return None;
        };
        let mut child = Command::new(command)
            .args(["watch", "-p", &victim.pid().to_string(), "--json"])
            .args(places)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("it talks");
        let watch = Self { child, lines };
        if first.is_empty() {
            let (_, output_text) = watch.end();
            panic!("it is armed when it says what it watches: {output_text}");
        }
        println!("{first}");
        Some(watch)
    }
    /// Interrupts it; returns its lines, and its standard error.
    fn end(self) -> (Vec<String>, String) {
        // SAFETY: this process' own child, not waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.rest()
    }
    /// The same for a command that has ended by itself.
    fn rest(mut self) -> (Vec<String>, String) {
        let mut output_text = String::new();
        let reported = self.lines.by_ref().lines().map(|line| line.expect("text")).collect();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut output_text).expect("text");
        assert!(self.child.wait().expect("ours").success(), "{output_text}");
        (reported, output_text)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A member of a JSON object, as text.
fn member<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {line}"));
    rest.split([',', '}']).next().unwrap_or(rest).trim_matches('"')
}

fn number(line: &str, name: &str) -> u64 {
    member(line, name).parse().unwrap_or_else(|_| panic!("{name} in {line}"))
}

/// Accesses of a place, in order.
fn of<'a>(reported: &'a [String], place: &str) -> Vec<&'a str> {
    let is = |line: &&str| member(line, "type") == "watch" && member(line, "place") == place;
    reported.iter().map(String::as_str).filter(is).collect()
}

/// Checks that nothing was lost, and that as many accesses were reported as the program made.
fn check_last(reported: &[String], accesses: u64) {
    let last = reported.last().expect("a summary");
    println!("{last}");
    assert_eq!(member(last, "type"), "watch_summary");
    let counted = ["accesses", "lost", "malformed"].map(|name| number(last, name));
    assert_eq!(counted, [accesses, 0, 0], "{last}");
}

/// Threads one after the other: each value is what was stored, and the value before it is known too.
#[test]
fn every_store_is_reported_with_function_and_value() {
    let Some(mut victim) = Victim::start() else { return };
    let stores: [(&[&str], &[&str], u64); 2] = [
        (
            &["watched_plain", "watched_pair+0:8", "watched_byte+3:1"],
            &["store_plain", "store_pair", "store_byte"],
            0,
        ),
        (&["watched_pair+8:8"], &["store_pair"], 1000),
    ];
    for (places, functions, more) in stores {
        let Some(watch) = Watch::start(&victim, places) else { return };
        for name in functions {
            assert_eq!(victim.call(&format!("{TURNS}{name}"), TIMES), TIMES * THREADS);
        }
        let (reported, _) = watch.end();
        check_last(&reported, places.len() as u64 * TIMES * THREADS);
        for (place, function) in places.iter().zip(functions) {
            check_stores(&of(&reported, place), function, more);
        }
    }
}

/// Checks the values 0 to `TIMES`, and so much more, once for each thread.
fn check_stores(all: &[&str], function: &str, more: u64) {
    assert_eq!(all.len() as u64, TIMES * THREADS, "{function}");
    let mut before = None;
    for (line, value) in all.iter().zip((0..THREADS).flat_map(|_| 0..TIMES)) {
        assert_eq!((member(line, "kind"), member(line, "exact")), ("write", "true"), "{line}");
        assert!(member(line, "function").contains(function), "{line}");
        assert_eq!((member(line, "before_exact"), number(line, "after")), ("true", value + more), "{line}");
        assert!(before.is_none_or(|before| before == number(line, "before")), "{line}");
        before = Some(value + more);
    }
}

/// If one instruction stores to two places, the kernel reports one; nothing wrong is reported about the
/// other.
#[test]
fn a_place_beside_is_doubted() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(watch) = Watch::start(&victim, &["watched_pair+0:8", "watched_pair+8:8"]) else { return };
    assert_eq!(victim.call(&format!("{TURNS}store_pair"), TIMES), TIMES * THREADS);
    let (reported, output_text) = watch.end();
    assert!(
        output_text.contains("watched_pair+0:8 and watched_pair+8:8 lie close together"),
        "{output_text}"
    );
    check_last(&reported, TIMES * THREADS);
    for (place, more) in [("watched_pair+0:8", 0), ("watched_pair+8:8", 1000)] {
        let last = |line: &&str| assert!(number(line, "after") - more < TIMES, "{line}");
        of(&reported, place).iter().for_each(last);
    }
}

/// Threads at the same time, by one instruction that adds: each access counts once. The value after one is
/// not certain while the other thread may be about to add.
#[test]
fn as_many_are_reported_as_threads_make() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(watch) = Watch::start(&victim, &["watched_added"]) else { return };
    assert_eq!(victim.call("store_added", TIMES), TIMES * THREADS);
    let (reported, _) = watch.end();
    check_last(&reported, TIMES * THREADS);
    let all = of(&reported, "watched_added");
    assert_eq!(all.len() as u64, TIMES * THREADS);
    for line in &all {
        assert!(member(line, "function").contains("store_added"), "{line}");
    }
    // The last value of all is read when everything is over.
    let exact = all.iter().filter(|line| member(line, "exact") == "true");
    println!("{} of {} exact", exact.clone().count(), all.len());
    exact.for_each(|line| assert_eq!(number(line, "after"), number(line, "before") + 1, "{line}"));
}

/// One thread alone, and then another one, when the first has ended: additions are exact from the first one
/// on.
#[test]
fn additions_of_one_thread_are_exact() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(watch) = Watch::start(&victim, &["watched_added"]) else { return };
    assert_eq!(victim.call(&format!("{TURNS}store_added"), TIMES), TIMES * THREADS);
    let (reported, _) = watch.end();
    check_last(&reported, TIMES * THREADS);
    for (line, value) in of(&reported, "watched_added").into_iter().zip(1..) {
        assert_eq!((member(line, "exact"), number(line, "after")), ("true", value), "{line}");
    }
}

#[test]
fn loads_and_executions_are_reported() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(watch) = Watch::start(&victim, &["watched_byte+3:1:rw", "store_byte:x"]) else { return };
    assert_eq!(victim.call(&format!("{TURNS}store_byte"), TIMES), TIMES * THREADS);
    let (reported, _) = watch.end();
    check_last(&reported, 3 * TIMES * THREADS);
    let kinds = |place: &str, kind: &str| {
        of(&reported, place).into_iter().filter(|line| member(line, "kind") == kind).count() as u64
    };
    for (place, kind) in
        [("watched_byte+3:1:rw", "write"), ("watched_byte+3:1:rw", "read"), ("store_byte:x", "execute")]
    {
        assert_eq!(kinds(place, kind), TIMES * THREADS, "{place} {kind}");
    }
}

/// A breakpoint makes an exclusive store fail for ever. Watching ends by itself, reports the reason, and the
/// program goes on.
#[test]
fn a_target_that_cannot_go_on_is_released() {
    let Some(mut victim) = Victim::start() else { return };
    let Some(watch) = Watch::start(&victim, &["watched_exclusive"]) else { return };
    assert_eq!(victim.call("store_exclusive", TIMES), TIMES * THREADS, "it goes on");
    let (_, output_text) = watch.rest();
    println!("{output_text}");
    assert!(
        output_text.contains("watching has ended: ") && output_text.contains("store_exclusive"),
        "{output_text}"
    );
}
