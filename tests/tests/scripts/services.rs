//! Scripts about databases and shells: PostgreSQL, MariaDB and bash. The judges are the servers' own logs of
//! statements, and what is typed.

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::scripts::Copies;
use trapline_tests::servers::{MariaDb, Postgres, shell};
use trapline_tests::twins::{Both, Started};

const POSTGRES: &[(&str, &str)] = &[("postgres", "/usr/lib/postgresql/15/bin/postgres")];
const MARIADB: &[(&str, &str)] = &[("mariadbd", "/usr/sbin/mariadbd")];
const BASH: &[(&str, &str)] = &[("bash", "/usr/bin/bash")];
/// Longer than any query.
const HOUR: &str = "3600000";

/// A client's process of a server that logs statements.
fn postgres(copies: Option<&Copies>) -> Started {
    let copy = copies.and_then(|copies| copies.get("postgres"));
    let server = Postgres::start("-c log_statement=all", copy).expect("it is installed");
    let (running, pid) = server.client();
    Started { running, pid, kept: vec![Box::new(server)] }
}

/// A client of a server.
fn mariadb(copies: Option<&Copies>) -> Started {
    let copy = copies.and_then(|copies| copies.get("mariadbd"));
    let server = MariaDb::start(copy).expect("it is installed");
    let mut running = server.client();
    running.send("select 'ready';");
    assert_eq!(running.line(), "ready");
    Started { running, pid: server.pid(), kept: vec![Box::new(server)] }
}

/// Two quick queries, and one of 60 ms.
fn ask(both: &mut Both, slow: &str, last: &str) {
    for query in ["select 7", slow, last] {
        both.run(&format!("{query}; select 'done';"));
    }
}

fn ask_postgres(mut both: Both) -> Both {
    ask(&mut both, "select pg_sleep(0.06)", "select count(*) from pg_class");
    both
}

fn ask_mariadb(mut both: Both) -> Both {
    ask(&mut both, "select sleep(0.06)", "select count(*) from mysql.user");
    both
}

/// The statements of a log, behind the one that asked for the process.
fn logged(log: &str) -> Vec<String> {
    let statement = |line: &str| line.split_once("statement: ").map(|(_, text)| text.to_owned());
    log.lines().filter_map(statement).skip_while(|text| text.contains("pg_backend_pid")).collect()
}

fn log(both: &Both) -> String {
    both.kept::<Postgres>().expect("a server").log()
}

#[test]
fn dbslower() {
    or_skip!(Postgres::installed());
    let both = ask_postgres(Both::start("dbslower", &["0"], POSTGRES, postgres));
    let statements = logged(&log(&both));
    let twice = both.stop();
    assert_eq!(statements.len(), 6);
    assert_eq!(twice.ours.words_from(2), statements);
    let micros = |line: &String| line.split_whitespace().nth(1).and_then(|ms| ms.parse::<f64>().ok());
    let slow = twice.ours.lines.iter().find(|line| line.contains("pg_sleep")).expect("a line");
    assert!(micros(slow) >= Some(60.0), "{slow}");
    or_skip!(twice.equal(|ran| ran.words_from(2)));
}

#[test]
fn dbslower_leaves_out_what_is_faster() {
    or_skip!(Postgres::installed());
    let above =
        |millis: &str| ask_postgres(Both::alone("dbslower", &[millis.to_owned()], postgres(None))).stop();
    let slow = above("50");
    assert!(slow.ours.words_from(2).contains(&"select pg_sleep(0.06);".to_owned()), "{:?}", slow.ours.lines);
    let none = above(HOUR);
    assert_eq!(none.ours.lines.len(), 1, "{:?}", none.ours.lines);
}

#[test]
fn dbstat() {
    or_skip!(Postgres::installed());
    let both = ask_postgres(Both::start("dbstat", &[], POSTGRES, postgres));
    let statements = logged(&log(&both)).len() as u64;
    let twice = both.stop();
    assert_eq!(twice.ours.totals("@query_us")[0].1, statements);
    let counts = |maps: &serde_json::Value| {
        ["parse", "plan", "execute"].map(|phase| maps["@phase_us"][phase]["count"].as_u64().unwrap_or(0))
    };
    // A branch leads behind the end of planning's probe. Where no jump that allows for it finds room, the probe is refused.
    let refused = twice.ours.messages.contains("refused: 1 branch-in; usdt:")
        && twice.ours.messages.contains("query__plan__done");
    let planned = if refused { 0 } else { statements };
    assert_eq!(counts(&twice.ours.maps), [statements, planned, statements], "{}", twice.ours.messages);
    let slow = twice.ours.maps["@phase_us"]["execute"]["total"].as_u64();
    assert!(slow >= Some(60_000), "{}", twice.ours.maps);
    if refused {
        trapline_tests::skip!("a probe was refused, so the kernel's bpftrace sees more");
    }
    or_skip!(twice.equal(|ran| (ran.totals("@query_us"), counts(&ran.maps))));
}

#[test]
fn mysqld_qslower() {
    or_skip!(MariaDb::installed());
    let both = ask_mariadb(Both::start("mysqld_qslower", &["0"], MARIADB, mariadb));
    let log = both.kept::<MariaDb>().expect("a server").log();
    let twice = both.stop();
    let statement = |line: &str| line.split_once("Query\t").map(|(_, text)| text.to_owned());
    let statements: Vec<String> = log.lines().filter_map(statement).collect();
    let ready = statements.iter().position(|text| text.contains("ready")).expect("the first one");
    assert_eq!(twice.ours.words_from(2), statements[ready + 1..]);
    assert_eq!(twice.ours.lines.len(), 7);
    or_skip!(twice.equal(|ran| ran.words_from(2)));
}

#[test]
fn mysqld_qslower_leaves_out_what_is_faster() {
    or_skip!(MariaDb::installed());
    let above =
        |millis: &str| ask_mariadb(Both::alone("mysqld_qslower", &[millis.to_owned()], mariadb(None))).stop();
    let slow = above("50");
    assert!(slow.ours.words_from(2).contains(&"select sleep(0.06)".to_owned()), "{:?}", slow.ours.lines);
    let none = above(HOUR);
    assert_eq!(none.ours.lines.len(), 1, "{:?}", none.ours.lines);
}

#[test]
fn bashreadline() {
    drop(or_skip!(shell(std::path::Path::new("/usr/bin/bash"))));
    let start = |copies: Option<&Copies>| {
        let bash = copies.and_then(|copies| copies.get("bash")).unwrap_or("/usr/bin/bash".as_ref());
        let (running, pid) = shell(bash).expect("it started before");
        Started { running, pid, kept: Vec::new() }
    };
    let mut both = Both::start("bashreadline", &[], BASH, start);
    // It waits for the first line in a call that had begun before.
    for line in ["echo done", "true  # a second line;echo done", "echo a b; echo done"] {
        both.run(&line.replace(';', "\n"));
    }
    let twice = both.stop();
    let typed = ["true # a second line", "echo done", "echo a b", " echo done"].map(str::trim);
    assert!(twice.ours.words_from(1).ends_with(&typed.map(str::to_owned)), "{:?}", twice.ours.lines);
    or_skip!(twice.equal(|ran| ran.words_from(1).into_iter().rev().take(4).collect::<Vec<_>>()));
}

#[test]
fn a_request_of_http_is_counted_by_its_path() {
    let path = or_skip!(trapline_tests::victims::go("http"));
    let running = trapline_tests::running::Running::start(&path, &[]);
    let mut both = Both::alone("gohttp", &[path.display().to_string()], running);
    let printed = both.victims(50);
    assert_eq!((printed["main.handle"], printed["wrong"]), (50, 0));
    assert_eq!(both.stop().ours.maps["@requests"], json!({ "GET,/": 50 }));
}
