//! SAFE-1 on real programs: redis under its benchmark, sqlite from a stripped library, git under `-c`, Go's
//! net/http. They are counted, timed, and traced call by call.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trapline_tests::counted::functions;
use trapline_tests::programs::{find, redis_server};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing};
use trapline_tests::{or_skip, setting, text, victims};

/// Prints how many of the functions were patched, and asserts the least percentage.
fn share(what: &str, report: &Report, least_percent: f64) {
    let (patched, refused) = (report.probes().count(), report.refused().len());
    let hit = report.probes().filter(|probe| probe["hits"].as_u64() > Some(0)).count();
    let percent = 100.0 * patched as f64 / (patched + refused) as f64;
    println!(
        "{what}: {patched} functions patched ({percent:.2} %), {hit} of them hit, {} hits",
        report.total_hits()
    );
    for (probe, why) in report.refused().iter().take(5) {
        println!("  refused {probe}: {why}");
    }
    assert!(percent > least_percent, "{what}: {percent:.2} %");
    assert!(report.total_hits() > 0);
    assert_eq!(report.number("missed"), 0, "{what}");
}

/// Starts a server of our own on a free port, and waits until it answers.
fn redis(path: &Path) -> (Running, u16) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let mut command = Command::new(path);
    let port_word = port.to_string();
    command.args([
        "--port",
        &port_word,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        "/tmp",
    ]);
    let server = Running::spawn(command);
    let begun = Instant::now();
    while ping(port).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(120), "redis does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    (server, port)
}

fn ping(port: u16) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    if &answer == b"+PONG\r\n" { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

fn benchmark(port: u16) -> String {
    let [port, requests] =
        [u64::from(port), setting("TRAPLINE_REDIS_REQUESTS", 50_000)].map(|n| n.to_string());
    let args = ["-q", "-P", "16", "-n", &requests, "-t", "set,get,lpush,hset,zadd", "-p", &port];
    let output = Command::new("redis-benchmark").args(args).output().expect("redis-benchmark runs");
    let output_text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    assert!(output.status.success() && !output_text.contains("Error"), "{output_text}");
    output_text
        .lines()
        .filter(|line| line.contains("requests per second"))
        .map(|line| format!("  {line}\n"))
        .collect()
}

#[test]
fn redis_with_every_function_probed_under_its_benchmark() {
    let path = or_skip!(redis_server());
    or_skip!(find(&["/usr/bin/redis-benchmark"]));
    let (server, port) = redis(&path);
    let before = text::signals(server.pid());
    let pid = server.pid().to_string();
    let bare = benchmark(port);
    let tracing =
        Tracing::start("count", &["--kernel-uprobes", "-p", &pid, &format!("{}:*", path.display())])
            .expect("attaches");
    let traced = benchmark(port);
    ping(port).expect("redis answers while traced");
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    share("redis-server", &report, 99.0);
    println!("without:\n{bare}with:\n{traced}");
    text::assert_clean(server.pid(), &before);
    benchmark(port);
}

#[test]
fn redis_timed_under_its_benchmark() {
    let path = or_skip!(redis_server());
    or_skip!(find(&["/usr/bin/redis-benchmark"]));
    let (server, port) = redis(&path);
    let pid = server.pid().to_string();
    let tracing = Tracing::start("lat", &["-p", &pid, &format!("{}:*", path.display())]).expect("attaches");
    benchmark(port);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
    let calls: u64 = report.probes().filter_map(|probe| probe["calls"].as_u64()).sum();
    println!(
        "{} functions timed, {calls} calls, {} refused",
        report.probes().count(),
        report.refused().len()
    );
    assert!(calls > 1_000_000);
    assert_eq!(text::differences(server.pid()), [""; 0]);
    ping(port).expect("redis answers afterwards");
}

/// Number of commands that redis has run, by its own account. The question itself is not counted yet.
fn commands(port: u16) -> u64 {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("redis listens"));
    stream.get_mut().write_all(b"INFO stats\r\n").expect("redis reads");
    let mut lines = stream.lines().map(|line| line.expect("redis answers"));
    let number = lines.find_map(|line| line.strip_prefix("total_commands_processed:")?.trim().parse().ok());
    number.expect("redis says it")
}

/// Runs a short benchmark while these probes' calls are traced. Also returns how many commands redis itself
/// counted meanwhile, the first question left out.
fn traced_redis(server: &Running, port: u16, probes: &[String]) -> (Report, u64) {
    let pid = server.pid().to_string();
    let words: Vec<&str> = ["-p", &pid].into_iter().chain(probes.iter().map(String::as_str)).collect();
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let first = commands(port);
    let output = Command::new("redis-benchmark")
        .args(["-q", "-P", "16", "-n", "8000", "-t", "set,get,lpush,hset,zadd", "-p", &port.to_string()])
        .output()
        .expect("redis-benchmark runs");
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !output_text.contains("Error"), "{output_text}");
    let last = commands(port);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    (report, last - first)
}

/// Arguments, texts, values and durations of a server under load. Its own count of commands decides: each is
/// reported, or missed.
#[test]
fn redis_traced_under_its_benchmark() {
    let path = or_skip!(redis_server());
    or_skip!(find(&["/usr/bin/redis-benchmark"]));
    let (server, port) = redis(&path);
    let (before, file) = (text::signals(server.pid()), path.display());
    let (report, run) = traced_redis(&server, port, &[format!("{file}:call(ptr c, int flags)")]);
    let reported = report.hits("call");
    // Neither question was counted when it was answered. The first one was counted by the time of the second.
    assert_eq!(reported + report.number("missed"), run + 1, "{}", report.errors);
    assert_eq!(report.calls_of("call").len() as u64, reported);
    assert!(reported > 1000 && run > 40_000, "{reported} of {run}");
    let more = [
        format!("{file}:setCommand(ptr c) -> void"),
        format!("{file}:createStringObject(buf(len=len) text, size_t len) -> ptr"),
    ];
    let (report, _) = traced_redis(&server, port, &more);
    let sets =
        report.calls_of("setCommand").into_iter().filter(|call| call["dur_ns"].as_u64() > Some(0)).count()
            as u64;
    let texts =
        report.calls_of("createStringObject").into_iter().filter(|call| call["args"][0]["value"].is_string());
    assert!(sets > 0 && sets + report.number("missed") >= 8000, "{sets}");
    assert!(texts.count() > 0, "{}", report.errors);
    ping(port).expect("redis answers afterwards");
    text::assert_clean(server.pid(), &before);
    assert!(benchmark(port).lines().count() >= 5);
}

/// Runs a command without us and under `trapline count -c`, and compares everything that it prints.
fn same_under_c(words: &[&str], dir: &Path, probe: &str) -> Report {
    let bare = Command::new(words[0]).args(&words[1..]).current_dir(dir).output().expect("the command runs");
    assert!(bare.status.success(), "{}", String::from_utf8_lossy(&bare.stderr));
    let json = std::env::temp_dir().join(format!("trapline-c-{}-{}", std::process::id(), words.len()));
    let mut command = Command::new(trapline_tests::tracing::binary());
    command.args(["count", "--json", "-f", "-o"]).arg(&json).arg(probe).arg("--").args(words);
    let traced = command.current_dir(dir).stdin(Stdio::null()).output().expect("trapline runs");
    let errors = String::from_utf8_lossy(&traced.stderr).into_owned();
    assert_eq!(traced.status.code(), bare.status.code(), "{errors}");
    assert_eq!(
        String::from_utf8_lossy(&traced.stdout),
        String::from_utf8_lossy(&bare.stdout),
        "the command's standard output is its own; {errors}"
    );
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    std::fs::remove_file(&json).ok();
    let objects = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Report { status: traced.status, errors, objects }
}

#[test]
fn sqlite_from_a_stripped_library() {
    let sqlite = or_skip!(find(&["/usr/bin/sqlite3"]));
    let sql = "create table t(a integer primary key, b text, c real);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000)
        insert into t select i, printf('row %d %x', i, i * 7919), i * 1.5 from n;
        create index i on t(b); select count(*), sum(a), max(b), avg(c) from t where b like 'row 1%';
        select group_concat(b) from (select b from t where a % 4999 = 0 order by b desc);
        delete from t where a % 3 = 0; update t set c = c * 2 where a % 5 = 0; vacuum;
        select json_group_array(json_object('a', a, 'c', c)) from t where a < 40; pragma integrity_check;";
    let words = [sqlite.to_str().expect("utf-8"), ":memory:", sql];
    let report = same_under_c(&words, Path::new("/tmp"), "libsqlite3:*");
    share("libsqlite3", &report, 99.0);
}

#[test]
fn git_runs_a_chain_of_commands_under_c() {
    let git = or_skip!(find(&["/usr/bin/git"]));
    let dir = std::env::temp_dir().join(format!("trapline-git-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    let chain = "set -e; rm -rf r; export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=$PWD
        git init -q -b main r; cd r
        for i in 1 2 3; do seq 1 ${i}00 > f$i; git add .; git commit -q -m \"commit $i\"; done
        git checkout -q -b side HEAD~1; echo x >> f1; git commit -q -am side; git checkout -q main
        git merge -q -m merge side; git log --graph --format='%h %s'; git diff --stat HEAD~1; git gc -q; git fsck
        git blame -s f1 | tail -3; git grep -n 77; git status --short";
    let report = same_under_c(&["/bin/sh", "-c", chain], &dir, &format!("{}:*", git.display()));
    std::fs::remove_dir_all(&dir).ok();
    println!("{}", report.errors);
    share("git", &report, 99.0);
}

/// The number of entries of a Go function that `calls` calls may cause. A function with too small a stack
/// grows the stack, and begins anew. The kernel's probe would count the same.
fn began(calls: u64) -> std::ops::RangeInclusive<u64> {
    calls..=calls + calls / 50
}

#[test]
fn a_go_http_server_counted_and_timed() {
    let path = or_skip!(victims::go("http"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    assert_eq!(victim.run(2000)["wrong"], 0);
    let tracing = Tracing::start("count", &["-p", &pid, &format!("{}:*", path.display())]).expect("attaches");
    let reported = victim.run(2000);
    let report = tracing.stop();
    assert_eq!(reported["wrong"], 0, "{}", report.errors);
    // Go packs its functions tightly and owns SIGTRAP, so more of them are refused than elsewhere.
    share("Go net/http", &report, 90.0);
    for (func, calls) in functions(&reported) {
        assert!(began(calls).contains(&report.hits(func)), "{func}: {} of {calls}", report.hits(func));
    }
    let tracing = Tracing::start("lat", &["-p", &pid, "main.handle", "main.growing"]).expect("attaches");
    let reported = victim.run(2000);
    let report = tracing.stop();
    assert_eq!(reported["wrong"], 0, "{}", report.errors);
    assert_eq!(report.field("main.handle", "calls"), 2000, "{}", report.errors);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    assert_eq!(victim.run(2000)["wrong"], 0);
}

/// The same server with each call traced: goroutines, with stacks that grow meanwhile, under load.
#[test]
fn a_go_http_server_traced() {
    let path = or_skip!(victims::go("http"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let words = ["-p", &pid, "main.handle", "main.growing", "net/http.readRequest"];
    let tracing = Tracing::start("trace", &words).expect("attaches");
    let reported = victim.run(2000);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    assert_eq!(reported["wrong"], 0, "{}", report.errors);
    let (missed, handled) = (report.number("missed"), report.calls_of("main.handle").len() as u64);
    let hits = report.hits("main.handle");
    // On a busy machine rings fill up. A hit that finds no room is missed, and counted as that.
    let (least, most) = (*began(2000).start(), *began(2000).end());
    assert!(hits <= most && least <= hits + missed, "{hits}: {}", report.errors);
    assert!(handled <= hits && hits - handled <= missed, "{handled} of {hits} reported, {missed} missed");
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    assert_eq!(victim.run(2000)["wrong"], 0);
}
