//! LOSS-1 and SAFE-4 from the command line: exact counts, durations, USDT probes, and a target that is as
//! before.

mod common;

use common::native::SITES_OF_ONE_PROBE;
use common::{Tracer, Victim, copy_of_program, field, program, run, text};

const ROUNDS: u64 = 30_000;

#[test]
fn counts_agree_with_the_victims_own() {
    let mut victim = Victim::start();
    let before = victim.text();
    let tracer =
        Tracer::start(&["count", "-p", &victim.pid(), "plain", "nested", "uretprobe:plain", "recursive"]);
    assert_ne!(victim.text(), before, "nothing was patched");
    let [plain, nested, _] = victim.rounds(ROUNDS);
    assert_eq!((plain, nested), (2 * ROUNDS, ROUNDS));
    let (status, last, output_text) = tracer.end("-INT");
    assert_eq!(status, Some(0), "{output_text}");
    let hits: Vec<u64> =
        last["probes"].as_array().unwrap().iter().map(|p| p["hits"].as_u64().unwrap()).collect();
    assert_eq!(hits, [plain, nested, plain, ROUNDS / 10 * 5], "{last}");
    assert!(last["refused"].as_array().unwrap().is_empty(), "{last}");
    assert_eq!(victim.text(), before, "text was not restored");
    assert!(output_text.contains("4 matched, 4 probed"), "{output_text}");
    assert_eq!(victim.rounds(10)[0], 20);
}

#[test]
fn durations_pair_up() {
    let mut victim = Victim::start();
    let tracer = Tracer::start(&["lat", "-p", &victim.pid(), "plain", "nested", "main"]);
    let [plain, nested, _] = victim.rounds(ROUNDS);
    let (status, last, output_text) = tracer.end("-TERM");
    assert_eq!(status, Some(0), "{output_text}");
    assert_eq!(
        (field(&last, ":plain", "calls"), field(&last, ":nested", "calls")),
        (plain, nested),
        "{last}"
    );
    for probe in last["probes"].as_array().unwrap() {
        let rows = probe["log2_ns"].as_array().unwrap();
        let sum: u64 = rows.iter().map(|row| row[2].as_u64().unwrap()).sum();
        assert_eq!(sum, probe["calls"].as_u64().unwrap());
        assert_eq!((probe["in_flight"].as_u64(), probe["unpaired"].as_u64()), (Some(0), Some(0)));
    }
    assert!(field(&last, ":nested", "total_ns") > field(&last, ":plain", "total_ns") / 2);
}

#[test]
fn recursion_can_be_timed_by_its_outermost_call() {
    let mut victim = Victim::start();
    let tracer = Tracer::start(&["lat", "--outermost", "-p", &victim.pid(), "recursive"]);
    victim.rounds(1000);
    let (_, last, output_text) = tracer.end("-INT");
    assert_eq!(field(&last, ":recursive", "calls"), 100, "{output_text}");
}

#[test]
fn a_marker_is_counted_and_its_semaphore_raised_and_lowered() {
    let mut victim = Victim::start();
    assert_eq!(victim.rounds(50)[2], 0);
    let probe = format!("usdt:{}:sample:tick", program().display());
    let tracer = Tracer::start(&["count", "-p", &victim.pid(), &probe]);
    assert_eq!(victim.rounds(50)[2], 50, "the semaphore is not raised");
    let (status, last, output_text) = tracer.end("-HUP");
    assert_eq!(status, Some(0), "{output_text}");
    assert_eq!(field(&last, ":sample:tick", "hits"), 50, "{last}");
    assert_eq!(victim.rounds(50)[2], 0, "the semaphore was not lowered");
}

#[test]
fn hits_split_by_cpu_add_up() {
    let mut victim = Victim::start();
    let tracer = Tracer::start(&["count", "--by", "cpu", "-p", &victim.pid(), "plain"]);
    let [plain, ..] = victim.rounds(ROUNDS);
    let (_, last, _) = tracer.end("-INT");
    let cpus = last["probes"][0]["cpus"].as_array().unwrap();
    assert_eq!(cpus.iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), plain);
}

#[test]
fn a_launched_command_is_probed_from_its_start_and_its_status_is_ours() {
    let program = program().display().to_string();
    for (how, status) in [("0", 0), ("7", 7), ("kill", 128 + 15)] {
        let output = run(&["count", "--json", "plain", "_start", "--", &program, "5000", how]);
        let output_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{output_text}");
        assert!(output.stdout.is_empty(), "standard output is the command's own");
        let last = output_text.lines().last().expect("an object");
        let last: serde_json::Value = serde_json::from_str(last).expect("only JSON on a shared stream");
        assert_eq!((field(&last, ":plain", "hits"), field(&last, ":_start", "hits")), (5000, 1));
    }
}

#[test]
fn programs_that_a_command_executes_are_followed() {
    let program = program().display().to_string();
    let script = format!("{program} 100; {program} 200; exec {program} 300 4");
    let probe = format!("{program}:plain");
    let output = run(&["count", "-f", "--json", "-i", "10s", &probe, "--", "sh", "-c", &script]);
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{output_text}");
    let objects =
        output_text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let mut hits: Vec<u64> = objects.map(|object| field(&object, ":plain", "hits")).collect();
    hits.sort_unstable();
    assert_eq!(hits, [100, 200, 300], "{output_text}");
}

#[test]
fn all_processes_of_a_name_are_traced() {
    let link = program().with_file_name(format!("tl-two-{}", std::process::id()));
    std::os::unix::fs::symlink(program(), &link).unwrap();
    let mut victims = [Victim::start_as(&link), Victim::start_as(&link)];
    let other = Victim::start();
    let before = other.text();
    let tracer = Tracer::start(&["count", "-n", link.file_name().unwrap().to_str().unwrap(), "plain"]);
    assert_eq!(other.text(), before, "a process of another name was patched");
    let hits: u64 = victims.iter_mut().zip([100, 200]).map(|(victim, rounds)| victim.rounds(rounds)[0]).sum();
    let (status, last, output_text) = tracer.end("-INT");
    assert_eq!(status, Some(0), "{output_text}");
    assert!(field(&last, ":plain", "hits") < hits, "an object for each process");
    assert!(
        output_text.contains("2 matched, 2 probed") && output_text.contains("; 2 processes"),
        "{output_text}"
    );
    assert!(output_text.contains(&format!("hits: {hits} recorded")), "{output_text}");
    std::fs::remove_file(&link).unwrap();
}

#[test]
fn a_program_in_another_mount_namespace_is_found_by_its_path_there() {
    let spot = program().with_file_name(format!("tl-spot-{}", std::process::id()));
    let copy = spot.with_extension("copy");
    std::fs::write(&spot, "another file at the same path").unwrap();
    copy_of_program(&copy);
    let script = "mount --bind \"$1\" \"$2\" && exec \"$2\"";
    let shell = ["-m", "sh", "-c", script, "sh"];
    let mut command = std::process::Command::new("unshare");
    let command = command.args(shell).args([&copy, &spot]);
    let may = std::process::Command::new("unshare").args(["-m", "true"]).output();
    if may.is_ok_and(|output| output.status.success()) {
        let mut victim = Victim::start_by(command);
        let (pid, file) = (victim.pid(), spot.display().to_string());
        let tracer = Tracer::start(&["count", "-p", &pid, &format!("{file}:plain")]);
        let [plain, ..] = victim.rounds(50);
        let (status, last, output_text) = tracer.end("-INT");
        assert_eq!((status, field(&last, ":plain", "hits")), (Some(0), plain), "{output_text}");
        let probe = last["probes"][0]["probe"].as_str().unwrap();
        assert_eq!(probe, format!("uprobe:{file}:plain"), "the path as the process sees it");
        assert!(!output_text.contains("replaced on disk"), "{output_text}");
    } else {
        eprintln!("SKIP: a mount namespace of its own takes root and unshare");
    }
    std::fs::remove_file(&copy).unwrap();
    std::fs::remove_file(&spot).unwrap();
}

#[test]
fn following_a_command_in_which_nothing_is_ever_probed_gives_its_status() {
    let output = run(&["count", "-f", "no_such_function_anywhere", "--", "sh", "-c", "true; exit 5"]);
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{output_text}");
    assert!(
        output_text.contains("trapline: nothing to probe: ") && output_text.contains("no_such_function"),
        "{output_text}"
    );
}

#[test]
fn no_memory_stays_behind() {
    let mut victim = Victim::start();
    let tracer = Tracer::start(&["lat", "-p", &victim.pid(), "plain", "main"]);
    victim.rounds(100);
    let (_, last, output_text) = tracer.end("-INT");
    assert_eq!(field(&last, ":plain", "calls"), 200);
    assert!(output_text.contains("; all given back"), "{output_text}");
}

#[test]
fn what_was_counted_is_printed_when_the_target_ends() {
    let mut victim = Victim::start();
    let tracer = Tracer::start(&["count", "-p", &victim.pid(), "plain"]);
    let [plain, ..] = victim.rounds(777);
    victim.finish();
    let (status, last, output_text) = tracer.wait();
    assert_eq!(status, Some(0), "{output_text}");
    assert_eq!(field(&last, ":plain", "hits"), plain);
}

#[test]
fn listing_and_dry_runs_change_nothing() {
    let victim = Victim::start();
    let (before, pid) = (victim.text(), victim.pid());
    let file = format!("{}:*", program().display());
    for args in [&["list", &file][..], &["list", "-p", &pid, "*"], &["count", "--dry-run", "-p", &pid, "*"]] {
        let output = run(args);
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        let row = table.lines().find(|line| line.contains(" nested ")).expect("a row for nested");
        assert!(row.contains("jump") && row.contains("0x"), "{row}");
    }
    assert_eq!(victim.text(), before);
    let status = run(&["status", "-p", &pid]);
    assert!(text(&status.stdout).contains("no probes of ours"));
    assert_eq!(run(&["detach", "-p", &pid]).status.code(), Some(0));
}

/// Waits until a program has mapped its libraries and sleeps in its own loop.
fn settled(pid: u32) {
    for _ in 0..4800 {
        let wchan = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        // read, select, epoll_wait
        if ["0 ", "23 ", "232 ", "281 "].iter().any(|call| wchan.starts_with(call)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    panic!("process {pid} does not settle");
}

/// A child that does not outlive its test, however the test ends.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_listing_shows_the_tactics_that_an_attach_gives() {
    // redis catches SIGSEGV, and is a server if it is called by that name. python is large and not
    // position-independent.
    let redis = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];
    let redis = redis.into_iter().find(|path| std::path::Path::new(path).exists());
    let programs: [(&str, &[&str]); 2] = [
        (
            redis.unwrap_or("/usr/bin/redis-server"),
            &["--port", "0", "--unixsocket", "tl-redis.sock", "--save", ""],
        ),
        ("/usr/bin/python3", &["-c", "import sys; sys.stdin.read()"]),
    ];
    let each =
        programs.iter().flat_map(|&(program, args)| [(program, args, "count"), (program, args, "lat")]);
    for (program, args, verb) in each {
        if !std::path::Path::new(program).exists() {
            eprintln!("SKIP: {program} is not installed");
            continue;
        }
        let mut command = std::process::Command::new(program);
        if Some(program) == redis {
            std::os::unix::process::CommandExt::arg0(&mut command, "redis-server");
        }
        let command = command.args(args).current_dir(env!("CARGO_TARGET_TMPDIR"));
        let piped = std::process::Stdio::piped;
        let child = Ended(command.stdin(piped()).stdout(piped()).spawn().unwrap());
        settled(child.0.id());
        let (pid, all) = (child.0.id().to_string(), format!("{program}:*"));
        let tactics = |objects: Vec<serde_json::Value>| {
            let one = |row: serde_json::Value| {
                let tactic = row["tactic"].as_str().unwrap_or("refused").to_owned();
                (row["probe"].as_str().unwrap().to_owned(), tactic)
            };
            objects.into_iter().map(one).collect::<std::collections::BTreeMap<_, _>>()
        };
        let lat: &[&str] = if verb == "lat" { &["--lat"] } else { &[] };
        let output = run(&[&["list", "-q", "--json", "-p", &pid, &all], lat].concat());
        let rows = text(&output.stdout);
        let listed = tactics(rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect());
        let output = run(&[verb, "-q", "--json", "-d", "0.05", "-p", &pid, &all]);
        assert!(!output.stdout.is_empty(), "{program} {verb}: {}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let each = |name: &str| report[name].as_array().unwrap().clone();
        let attached = tactics([each("probes"), each("refused")].concat());
        assert!(listed.len() > 1000 && listed.len() == attached.len(), "{program} {verb}");
        let differ: Vec<_> = listed.iter().filter(|(probe, tactic)| attached[*probe] != **tactic).collect();
        assert!(differ.is_empty(), "{program} {verb}: {} differ: {:?}", differ.len(), differ.first());
    }
}

/// The signal is pending when the tracer starts, and the target's code is never changed.
#[test]
fn an_interrupt_before_the_attach_leaves_the_target_alone() {
    const PENDING: &str = "import os, signal, sys\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
        os.kill(os.getpid(), signal.SIGINT)\n\
        os.execv(sys.argv[1], sys.argv[1:])";
    let victim = Victim::start();
    let before = victim.text();
    let words = ["count", "-p", &victim.pid(), "plain"];
    let output = std::process::Command::new("python3")
        .args(["-c", PENDING])
        .arg(env!("CARGO_BIN_EXE_trapline"))
        .args(words)
        .output();
    let output = output.expect("python3");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains(&format!("interrupted before anything was changed in process {}", victim.pid())),
        "{errors}"
    );
    assert!(victim.text() == before, "its code was changed");
}

#[test]
fn a_second_tracer_reports_the_first() {
    let victim = Victim::start();
    let tracer = Tracer::start(&["count", "-p", &victim.pid(), "plain"]);
    let second = run(&["count", "-p", &victim.pid(), "nested"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another trapline"), "{}", text(&second.stderr));
    let status = text(&run(&["status", "-p", &victim.pid()]).stdout);
    let sites = SITES_OF_ONE_PROBE;
    let in_place = format!("{sites} of {sites} site{} in place", if sites == 1 { "" } else { "s" });
    let reported = status.contains("armed by trapline") && status.contains(&in_place);
    assert!(reported, "{status}");
    assert_eq!(run(&["detach", "-p", &victim.pid()]).status.code(), Some(1), "its tracer lives");
    // The first one has the victim's segment in its own memory.
    let of_tracer = run(&["count", "-d", "0.05", "-p", &tracer.pid(), "libc:malloc"]);
    let expected = format!("is a trapline, which traces process {}", victim.pid());
    assert!(text(&of_tracer.stderr).contains(&expected), "{}", text(&of_tracer.stderr));
    tracer.end("-INT");
}

#[test]
fn the_demo_runs_and_cleans_up() {
    let output = run(&["demo", "-d", "200ms"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in ["hits in", "Function = lookup", "avg = ", "cost of a hit", "trapline lat", "kernel uprobe"] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
}

#[test]
fn a_program_is_known_by_the_link_that_it_was_started_through() {
    let link = program().with_file_name(format!("tl-link-{}", std::process::id()));
    std::os::unix::fs::symlink(program(), &link).unwrap();
    let name = link.file_name().unwrap().to_str().unwrap().to_owned();
    let mut victim = Victim::start_as(&link);
    let pid = victim.pid();
    let mut one = |args: &[&str], file: &str| {
        let tracer = Tracer::start(&[&["count"], args].concat());
        let [plain, ..] = victim.rounds(100);
        let (status, last, output_text) = tracer.end("-INT");
        assert_eq!((status, field(&last, ":plain", "hits")), (Some(0), plain), "{output_text}");
        let probe = last["probes"][0]["probe"].as_str().unwrap();
        assert_eq!(probe, format!("uprobe:{file}:plain"), "named as the user names it");
        assert_eq!(last["probes"][0]["file"].as_str(), program().to_str(), "the file itself");
    };
    let path = link.display().to_string();
    let real = program().display().to_string();
    one(&["-p", &pid, &format!("{name}:plain")], &path);
    one(&["-p", &pid, &format!("{path}:plain")], &path);
    one(&["-p", &pid, "trapline-victim:plain"], &real);
    one(&["-p", &pid, "plain"], &path);
    one(&["-n", &name, "plain"], &path);
    std::fs::remove_file(&link).unwrap();
}

/// The tree of a launched victim's `main`.
fn graph(words: &[&str]) -> (String, String) {
    let program = program().display().to_string();
    let output = run(&[&["graph"], words, &["--", &program, "500"]].concat());
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    (text(&output.stdout) + &output_text, output_text)
}

#[test]
fn a_call_tree_has_what_was_called_below() {
    let (_, output_text) = graph(&["--json", "main", "plain", "nested"]);
    let object = output_text.lines().rev().find(|line| line.contains("\"type\":\"graph\"")).expect("a tree");
    let object: serde_json::Value = serde_json::from_str(object).expect("JSON");
    let tree = &object["trees"][0];
    assert_eq!((&tree["function"], &tree["calls"]), (&"main".into(), &1.into()), "{object}");
    let [plain] = &tree["below"].as_array().expect("below")[..] else { panic!("{object}") };
    assert_eq!((&plain["function"], &plain["calls"]), (&"plain".into(), &500.into()));
    let ns = |tree: &serde_json::Value, field: &str| tree[field].as_u64().expect("nanoseconds");
    assert_eq!(ns(tree, "total_ns"), ns(tree, "self_ns") + ns(plain, "total_ns"));
    let (shown, _) = graph(&["main", "plain"]);
    assert!(shown.contains(" : (1) main\n") && shown.contains(" : `-(500) plain\n"), "{shown}");
    let (shown, _) = graph(&["--each", "main", "plain"]);
    assert_eq!(shown.matches("|   plain();\n").count(), 500, "{shown}");
    assert!(shown.contains("| main() {\n") && shown.contains("| } /* main */\n"), "{shown}");
}
