//! `--otlp`: what a collector receives, read by OpenTelemetry's own schema, is what the victim did. A
//! collector that is not there ends the run before it begins.
#![cfg(feature = "otlp")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::scratch::Scratch;
use common::{Tracer, Victim, run, text};
use serde_json::Value;

/// A collector on a port of its own.
struct Collector {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// A request that it received.
#[derive(Clone)]
struct Request {
    asked: String,
    kind: String,
    body: Vec<u8>,
}

impl Collector {
    /// Accepts the first `good` requests, and refuses all others.
    fn start(good: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = request(&stream) else { continue };
                let mut all = kept.lock().expect("no panic");
                all.push(request);
                let status = if all.len() <= good { "200 OK" } else { "503 Service Unavailable" };
                let head =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nbusy\n");
                drop((&stream).write_all(head.as_bytes()));
            }
        });
        Self { url, requests }
    }
    fn bodies(&self) -> Vec<Vec<u8>> {
        let requests = self.requests.lock().expect("no panic").clone();
        for Request { asked, kind, .. } in &requests {
            assert_eq!([asked, kind], ["POST /v1/metrics HTTP/1.1", "application/x-protobuf"]);
        }
        requests.into_iter().map(|request| request.body).collect()
    }
}

/// Reads one request; `None` if it is incomplete.
fn request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut kind, mut line) = (0, String::new(), String::new());
    reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
    let asked = line.trim_end().to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a number"),
            "content-type" => value.clone_into(&mut kind),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { asked, kind, body })
}

/// The data points of each request, as the schema's own library reads them. `None`, with a printed line, if
/// that library is missing.
fn points(bodies: &[Vec<u8>], name: &str) -> Option<Vec<Vec<Value>>> {
    let Some(python) = std::env::var_os("TRAPLINE_PERFETTO_PYTHON").map(PathBuf::from) else {
        println!("SKIP: no OpenTelemetry schema (TRAPLINE_PERFETTO_PYTHON; cargo xtask test makes one)");
        return None;
    };
    let write = |(nth, body): (usize, &Vec<u8>)| {
        let file = Scratch::new(&format!("{name}-{nth}.otlp"));
        std::fs::write(&file.0, body).expect("written");
        file
    };
    let files: Vec<Scratch> = bodies.iter().enumerate().map(write).collect();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/otlp.py");
    let output = Command::new(python).arg(script).args(files.iter().map(Scratch::name)).output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |line: &str| serde_json::from_str::<Vec<Value>>(line).expect("JSON");
    Some(text(&output.stdout).lines().map(read).collect())
}

/// A point with this metric's name and this function's name.
fn point<'a>(points: &'a [Value], name: &str, function: &str) -> Option<&'a Value> {
    points.iter().find(|point| point["name"] == name && point["labels"]["function"] == function)
}

const ROUNDS: u64 = 3_000;

#[test]
fn a_collector_gets_what_was_counted() {
    let mut victim = Victim::start();
    let (collector, pid) = (Collector::start(usize::MAX), victim.pid());
    let tracer =
        Tracer::start(&["count", "-p", &pid, "--otlp", &collector.url, "plain", "nested", "uretprobe:plain"]);
    let [plain, nested, _] = victim.rounds(ROUNDS);
    let (status, _, output_text) = tracer.end("-INT");
    assert_eq!(status, Some(0), "{output_text}");
    let bodies = collector.bodies();
    assert!(bodies.len() >= 2 && bodies[0].is_empty(), "first it is asked whether it is there");
    let Some(all) = points(&bodies[1..], "count") else { return };
    let (mut before, number) = (0, pid.parse::<u32>().expect("a number"));
    for points in &all {
        let hits = point(points, "trapline.hits", "nested").expect("counted");
        assert!(hits["monotonic"] == true && hits["labels"]["pid"] == number, "{hits}");
        assert!(hits["value"].as_u64() >= Some(before), "{hits} after {before}");
        assert_eq!(hits["from"], all[0][0]["from"], "from the start on");
        before = hits["value"].as_u64().expect("a number");
    }
    let last = all.last().expect("one");
    assert_eq!(before, nested);
    let hits = last.iter().filter(|point| point["name"] == "trapline.hits");
    assert_eq!(hits.map(|point| point["value"].as_u64().expect("a number")).sum::<u64>(), 2 * plain + nested);
    let traced = last.iter().find(|point| point["name"] == "trapline.process_traced").expect("reported");
    assert_eq!((&traced["kind"], &traced["labels"]["process"]), (&"gauge".into(), &"trapline-victim".into()));
}

#[test]
fn a_collector_gets_durations_as_a_histogram() {
    let mut victim = Victim::start();
    let (collector, pid) = (Collector::start(usize::MAX), victim.pid());
    let tracer = Tracer::start(&["lat", "-p", &pid, "--otlp", &collector.url, "plain", "main"]);
    let [plain, ..] = victim.rounds(ROUNDS);
    let (status, last, output_text) = tracer.end("-INT");
    assert_eq!(status, Some(0), "{output_text}");
    let bodies = collector.bodies();
    let Some(all) = points(&bodies[bodies.len() - 1..], "lat") else { return };
    let durations = point(&all[0], "trapline.call_duration", "plain").expect("timed");
    let buckets: Vec<u64> = durations["buckets"]
        .as_array()
        .expect("buckets")
        .iter()
        .map(|n| n.as_u64().expect("calls"))
        .collect();
    assert_eq!((durations["count"].as_u64(), buckets.iter().sum()), (Some(plain), plain), "{durations}");
    assert_eq!((&durations["unit"], durations["bounds"].as_array().map(Vec::len)), (&"s".into(), Some(29)));
    assert_eq!(buckets.len(), 30);
    let sum = common::field(&last, ":plain", "total_ns") as f64 / 1e9;
    assert!((durations["sum"].as_f64().expect("seconds") - sum).abs() < 1e-12, "{durations} {sum}");
    assert!(point(&all[0], "trapline.call_duration", "main").is_none(), "no call ended, no histogram");
}

#[test]
fn without_a_collector_nothing_begins() {
    let victim = Victim::start();
    let (before, pid) = (victim.text(), victim.pid());
    let busy = Collector::start(0);
    for (url, code, words) in [
        // A port that no program gets.
        ("http://127.0.0.1:1".to_owned(), 1, "cannot send metrics to http://127.0.0.1:1/v1/metrics: "),
        (busy.url.clone(), 1, "it answered 503 Service Unavailable busy"),
        ("localhost:4318".to_owned(), 2, "`localhost:4318` is no address of a collector"),
        ("https://localhost".to_owned(), 2, "only http is spoken"),
    ] {
        let output = run(&["count", "-p", &pid, "--otlp", &url, "plain"]);
        let output_text = text(&output.stderr);
        assert_eq!((output.status.code(), output_text.lines().count()), (Some(code), 1), "{output_text}");
        assert!(output_text.contains(words), "{output_text}");
    }
    assert_eq!(victim.text(), before);
}

#[test]
fn a_collector_that_goes_away_is_reported_once() {
    let mut victim = Victim::start();
    let (collector, pid) = (Collector::start(1), victim.pid());
    let tracer = Tracer::start(&["count", "-p", &pid, "--otlp", &collector.url, "plain"]);
    let mut calls = 0;
    let begun = Instant::now();
    while collector.bodies().len() < 4 {
        calls += victim.rounds(10)[0];
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is sent any more");
    }
    let (status, last, output_text) = tracer.end("-INT");
    assert_eq!(status, Some(1), "the last ones were lost: {output_text}");
    assert_eq!(common::field(&last, ":plain", "hits"), calls, "counting went on");
    let reported = |words: &str| output_text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (reported("metrics did not get to"), reported("the last metrics did not get to")),
        (2, 1),
        "{output_text}"
    );
}
