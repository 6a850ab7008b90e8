//! VAL-1 on real programs: what queries PostgreSQL runs, by its own USDT probe; which functions Python returns from;
//! what line bash's readline returned.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trapline_tests::or_skip;
use trapline_tests::tracing::Tracing;

const PATIENCE: Duration = Duration::from_secs(60);

fn argument(call: &Value, nth: usize) -> Option<&str> {
    call["args"][nth]["value"].as_str()
}

/// Waits for a condition.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A shell in a terminal of its own.
struct Shell(Child);

impl Shell {
    fn start() -> Result<Self, String> {
        let mut command = Command::new("script");
        command.args(["-qfc", "exec bash --norc -i", "/dev/null"]).env("PS1", "$ ");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(|error| format!("no script(1): {error}"))
    }
    fn bash(&self) -> Option<u32> {
        let is_bash = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "bash")
        };
        children(self.0.id()).into_iter().find(is_bash)
    }
    fn type_line(&mut self, line: &str) {
        let stdin = self.0.stdin.as_mut().expect("piped");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("it reads");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn readline_shows_the_line_that_was_typed() {
    let mut shell = or_skip!(Shell::start());
    until("bash does not start", || shell.bash().is_some());
    let pid = shell.bash().expect("it was there").to_string();
    // It waits for its first line in a call that nobody saw begin.
    let waits =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "));
    until("bash does not wait", waits);
    let tracing =
        Tracing::start("trace", &["-p", &pid, "bash:readline(str prompt) -> str[200]"]).expect("attaches");
    let long = format!("true {}", "long ".repeat(30));
    for line in ["true first", "true  # second line", long.trim(), "true last"] {
        shell.type_line(line);
    }
    until("the last line is not seen", || tracing.objects().iter().any(|one| one["ret"] == "true last"));
    let report = tracing.stop();
    let lines: Vec<&str> = report.calls().iter().filter_map(|call| call["ret"].as_str()).collect();
    // The first one answers the call that had begun before.
    assert_eq!(lines, ["true  # second line", long.trim(), "true last"], "{}", report.errors);
}

/// A PostgreSQL server of its own, that nobody else uses.
struct Postgres {
    dir: PathBuf,
    bin: PathBuf,
}

impl Postgres {
    fn start() -> Result<Self, String> {
        let bin = Path::new("/usr/lib/postgresql/15/bin").to_path_buf();
        if !bin.join("initdb").exists() || !bin.join("pgbench").exists() {
            return Err("no PostgreSQL 15".to_owned());
        }
        let dir = std::env::temp_dir().join(format!("trapline-postgres-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
        let one = Self { dir, bin };
        let dir = one.dir.display();
        // The server does not run as root.
        let owned = Command::new("chown").arg("nobody").arg(&one.dir).status();
        owned.map_err(|error| error.to_string())?;
        let settings =
            "-c listen_addresses= -c shared_buffers=16MB -c shared_preload_libraries=pg_stat_statements";
        let script = format!(
            "initdb -D {dir}/data -A trust -U postgres && \
             pg_ctl -D {dir}/data -l {dir}/log -o '-k {dir} {settings}' -w start"
        );
        one.run(&script)?;
        Ok(one)
    }
    fn run(&self, script: &str) -> Result<String, String> {
        let script = format!("export PATH={}:$PATH; cd /; {script}", self.bin.display());
        let output =
            Command::new("su").args(["-s", "/bin/sh", "nobody", "-c", &script]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(text),
            false => Err(format!("{script}: {text}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
    fn sql(&self, text: &str) -> String {
        let dir = self.dir.display();
        self.run(&format!("psql -h {dir} -U postgres postgres -qAtc \"{text}\"")).expect("an answer")
    }
    fn pid(&self) -> u32 {
        let file = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).expect("it runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("a number")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.run(&format!("pg_ctl -D {}/data -m fast stop", self.dir.display())).ok();
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

/// As many queries as PostgreSQL itself counts, with the same texts.
#[test]
fn postgres_runs_the_queries_that_it_says() {
    const TRANSACTIONS: usize = 200;
    let server = or_skip!(Postgres::start());
    let dir = server.dir.display();
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
