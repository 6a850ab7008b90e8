//! `--serve`: Prometheus' own client library reads there what the victim did. A port that is taken ends the
//! run before it begins.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use common::{Victim, run, text, trapline};
use serde_json::Value;

/// A tracer that serves.
struct Serving {
    child: Child,
    output_text: BufReader<ChildStderr>,
    url: String,
}

impl Serving {
    /// Starts it; returns when it has attached and has printed its URL.
    fn start(args: &[&str]) -> Self {
        let mut command = trapline();
        command.args(args).args(["--serve", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut output_text = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        output_text.read_line(&mut line).expect("text");
        let url =
            line.trim().strip_prefix("trapline: metrics at ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, output_text, url }
    }
    fn end(mut self) -> String {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        let mut output_text = String::new();
        self.output_text.read_to_string(&mut output_text).expect("text");
        assert_eq!(self.child.wait().expect("ours").code(), Some(0), "{output_text}");
        output_text
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads metrics with Prometheus' own parser.
struct Scraper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Scraper {
    fn start(url: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metrics.py");
        let mut command = Command::new("/usr/bin/python3");
        let mut child = command
            .args([script, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }
    fn scrape(&mut self) -> Value {
        writeln!(self.to).expect("it listens");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("text");
        serde_json::from_str(&line).expect("what it says above")
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether the parser is installed; prints a line if not.
fn parser() -> bool {
    let imports = Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).output();
    let there = imports.is_ok_and(|output| output.status.success());
    if !there {
        println!("SKIP: Prometheus' parser is missing (package python3-prometheus-client)");
    }
    there
}

#[test]
fn counts_grow_while_they_are_scraped_and_end_exact() {
    if !parser() {
        return;
    }
    let mut victim = Victim::start();
    let before = victim.text();
    let json = common::program().with_file_name(format!("{}-scraped.json", std::process::id()));
    let file = json.display().to_string();
    let probes = ["plain", "nested", "uretprobe:plain"];
    let pid = victim.pid();
    let args = [&["count", "-i", "20ms", "-o", &file, "-p", &pid], &probes[..]].concat();
    let serving = Serving::start(&args);
    let mut scraper = Scraper::start(&serving.url);
    assert_eq!(scraper.scrape()["trapline_hits_total plain"], 0.0);
    let mut calls = 0;
    for _ in 0..5 {
        let (plain, grown) = std::thread::scope(|scope| {
            let working = scope.spawn(|| victim.rounds(200_000)[0]);
            let mut grown = Vec::new();
            while !working.is_finished() {
                grown.push(scraper.scrape()["trapline_hits_total nested"].as_f64().expect("a number"));
            }
            (working.join().expect("no panic"), grown)
        });
        calls += plain;
        assert!(grown.is_sorted(), "{grown:?}");
    }
    let last = scraper.scrape();
    assert_eq!(last["trapline_hits_total nested"], calls as f64 / 2.0, "{last}");
    assert_eq!(last["trapline_missed_hits_total"], 0.0, "{last}");
    assert_eq!(last["trapline_process_traced"], 1.0, "{last}");
    let output_text = serving.end();
    assert!(
        output_text.contains(&format!("hits: {} recorded", common_grouped(calls / 2 * 5))),
        "{output_text}"
    );
    assert_eq!(victim.text(), before, "text was not restored");
    let reports = std::fs::read_to_string(&json).expect("written");
    std::fs::remove_file(&json).expect("ours");
    let delta = |line: &str| common::field(&serde_json::from_str(line).expect("JSON"), ":nested", "delta");
    assert_eq!(reports.lines().map(delta).sum::<u64>(), calls / 2, "scrapes end no interval");
}

/// A number as the summary writes it.
fn common_grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

#[test]
fn durations_are_a_histogram_with_all_calls() {
    if !parser() {
        return;
    }
    let mut victim = Victim::start();
    let serving = Serving::start(&["lat", "-p", &victim.pid(), "plain", "main"]);
    let mut scraper = Scraper::start(&serving.url);
    let name = "trapline_call_duration_seconds";
    assert!(scraper.scrape()[format!("{name}_count plain")].is_null(), "no call yet, no histogram");
    let [plain, ..] = victim.rounds(3000);
    let last = scraper.scrape();
    for series in ["count plain", "bucket plain +Inf", "bucket plain 17.179869184"] {
        assert_eq!(last[format!("{name}_{series}")], plain as f64, "{series}: {last}");
    }
    assert!(last[format!("{name}_sum plain")].as_f64().is_some_and(|sum| sum > 0.0 && sum < 60.0), "{last}");
    assert_eq!(last["trapline_calls_in_flight main"], 0.0, "main began before: {last}");
    serving.end();
}

/// The whole answer of a server to a request.
fn asked(url: &str, request: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches("/metrics");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn other_pages_other_methods_and_readers_that_do_not_read() {
    let mut victim = Victim::start();
    let serving = Serving::start(&["count", "-p", &victim.pid(), "plain"]);
    assert!(asked(&serving.url, "GET / HTTP/1.1").starts_with("HTTP/1.1 200"));
    assert!(asked(&serving.url, "GET /x HTTP/1.1").starts_with("HTTP/1.1 404"));
    assert!(asked(&serving.url, "POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
    let head = asked(&serving.url, "HEAD /metrics HTTP/1.1");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    // Clients that ask and do not read disturb neither a client that reads nor the end of the run.
    let address = serving.url.trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
    let mut mute: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    for stream in &mut mute {
        stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3).as_bytes()).expect("sent");
    }
    for _ in 0..4 {
        mute.push(TcpStream::connect(&address).expect("it listens"));
    }
    assert!(asked(&serving.url, "GET /metrics HTTP/1.1").contains("trapline_hits_total{"));
    victim.rounds(10);
    assert!(serving.end().contains("hits: 20 recorded"));
}

#[test]
fn a_port_that_is_taken_stops_it_before_anything_is_touched() {
    let victim = Victim::start();
    let before = victim.text();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let output = run(&["lat", "-p", &victim.pid(), "--serve", &port, "plain"]);
    let output_text = text(&output.stderr);
    assert_eq!((output.status.code(), output_text.lines().count()), (Some(1), 1), "{output_text}");
    assert!(
        output_text.contains(&format!("cannot serve metrics at 127.0.0.1:{port}: Address already in use")),
        "{output_text}"
    );
    assert_eq!(victim.text(), before);
    let status = run(&["status", "-p", &victim.pid()]);
    assert!(text(&status.stdout).contains("no probes of ours"));
}
