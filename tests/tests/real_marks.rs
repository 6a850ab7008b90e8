//! VAL-1 on real programs: what queries PostgreSQL runs, by its own USDT probe; which functions Python returns from;
//! what line bash's readline returned.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use trapline_tests::or_skip;
use trapline_tests::servers::{Postgres, shell, until};
use trapline_tests::tracing::Tracing;

fn argument(call: &Value, nth: usize) -> Option<&str> {
    call["args"][nth]["value"].as_str()
}

#[test]
fn readline_shows_the_line_that_was_typed() {
    // It waits for its first line in a call that nobody saw begin.
    let (mut shell, pid) = or_skip!(shell(Path::new("/usr/bin/bash")));
    let pid = pid.to_string();
    let tracing =
        Tracing::start("trace", &["-p", &pid, "bash:readline(str prompt) -> str[200]"]).expect("attaches");
    let long = format!("true {}", "long ".repeat(30));
    for line in ["true first", "true  # second line", long.trim(), "true last"] {
        shell.send(line);
    }
    until("the last line is not seen", || tracing.objects().iter().any(|one| one["ret"] == "true last"));
    let report = tracing.stop();
    let lines: Vec<&str> = report.calls().iter().filter_map(|call| call["ret"].as_str()).collect();
    // The first one answers the call that had begun before.
    assert_eq!(lines, ["true  # second line", long.trim(), "true last"], "{}", report.errors);
}

/// As many queries as PostgreSQL itself counts, with the same texts.
#[test]
fn postgres_runs_the_queries_that_it_says() {
    const TRANSACTIONS: usize = 200;
    let server = or_skip!(Postgres::start("-c shared_preload_libraries=pg_stat_statements", None));
    let dir = server.folder().display();
    server.sql("create extension pg_stat_statements");
    server.run(&format!("pgbench -h {dir} -U postgres -i -q postgres")).expect("tables");
    let pid = server.pid().to_string();
    let probe = "usdt:postgres:query__start(str query)";
    let tracing = Tracing::start("trace", &["-f", "-p", &pid, probe]).expect("attaches");
    server.sql("select pg_stat_statements_reset()");
    server
        .run(&format!("pgbench -h {dir} -U postgres -n -S -c 2 -t {} postgres", TRANSACTIONS / 2))
        .expect("runs");
    let counted = server.sql("select calls from pg_stat_statements where query like 'SELECT abalance%'");
    let report = tracing.stop();
    let queries: Vec<&str> = report.calls().iter().filter_map(|call| argument(call, 0)).collect();
    let is_select = |query: &&&str| query.starts_with("SELECT abalance FROM pgbench_accounts WHERE aid = ");
    let selects = queries.iter().filter(is_select).count();
    assert_eq!(counted.trim().parse(), Ok(selects), "{}", report.errors);
    assert_eq!((selects, report.number("missed")), (TRANSACTIONS, 0), "{}", report.errors);
    assert!(queries.contains(&"select pg_stat_statements_reset()"), "{queries:?}");
}

/// Python's own probes name what it returns from. (3.11 passes no probe of entries for calls from Python to Python.)
#[test]
fn python_returns_from_the_functions_that_it_names() {
    let python = "/usr/bin/python3.11";
    let has_marks = Command::new("readelf").args(["-n", python]).output();
    let has_marks =
        has_marks.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("function__return"));
    or_skip!(if has_marks { Ok(()) } else { Err("no python3.11 with USDT probes".to_owned()) });
    let script = "def inner(n):\n return n\ndef outer(n):\n return inner(n) + 1\ninput()\nfor n in range(20): outer(n)\ninput()";
    let mut child = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("python starts");
    let pid = child.id().to_string();
    let waits =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "));
    until("python does not wait", waits);
    let probe = "usdt:python3.11:function__return(str file, str function, int line)";
    let tracing = Tracing::start("trace", &["-p", &pid, probe]).expect("attaches");
    child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
    until("not all calls are seen", || {
        tracing.objects().iter().filter(|one| argument(one, 0) == Some("<string>")).count() >= 40
    });
    let report = tracing.stop();
    let seen: Vec<(Option<&str>, Option<&str>, Option<i64>)> = report
        .calls()
        .into_iter()
        .map(|call| (argument(call, 0), argument(call, 1), call["args"][2]["value"].as_i64()))
        .filter(|one| one.0 == Some("<string>"))
        .collect();
    let expected: Vec<_> = (0..20)
        .flat_map(|_| {
            [(Some("<string>"), Some("inner"), Some(2)), (Some("<string>"), Some("outer"), Some(4))]
        })
        .collect();
    assert_eq!(seen, expected, "{}", report.errors);
    child.kill().ok();
    child.wait().ok();
}
