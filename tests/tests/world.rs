//! Programs as they exist in the world: with threads that the C library did not create, Go from its first
//! instruction, runtimes that walk frames. Names that contain terminal control sequences, and executables
//! without a path. Each behaves as without us, and the counts are what it did.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary, once};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{native, or_skip, programs, skip, text};

const TIMES: u64 = 100_000;
const ROUNDS: u64 = 8;
/// Sum of 3n + 1, for two threads.
const SUM: u64 = 2 * (3 * (TIMES * (TIMES - 1) / 2) + TIMES);

fn bare(kind: &str, env: &[(&str, &str)]) -> Result<Running, String> {
    let mut command = Command::new(victims::plain("bare")?);
    command.arg(kind).envs(env.iter().copied());
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    Ok(victim)
}

/// The program is counted and timed exactly; it adds up what it did.
fn exact(kind: &str, env: &[(&str, &str)]) {
    is_exact(or_skip!(bare(kind, env)), kind, ROUNDS);
}

fn is_exact(mut victim: Running, kind: &str, rounds: u64) {
    // The C library installs signals of its own when it creates its first thread.
    victim.run(1);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for verb in ["count", "lat"] {
        let tracing = Tracing::start(verb, &["-p", &pid, "work"])
            .unwrap_or_else(|report| panic!("{kind}: {verb}: {}", report.errors));
        // Threads that live for a millisecond.
        for _ in 0..rounds {
            let reported = victim.run(TIMES);
            assert_eq!((reported["work"], reported["sum"]), (2 * TIMES, SUM), "{kind}: {verb}");
        }
        let report = tracing.stop();
        assert!(report.status.success(), "{kind}: {}", report.errors);
        let hits = report.field("work", if verb == "lat" { "calls" } else { "hits" });
        let (missed, expected) = (report.number("missed"), 2 * TIMES * rounds);
        assert_eq!(hits + missed, expected, "{kind}: {verb}: {}", report.errors);
        assert!(verb == "lat" || missed == 0, "{kind}: {}", report.errors);
    }
    text::assert_clean(victim.pid(), &before);
}

#[test]
fn threads_that_share_a_thread_pointer() {
    exact("clone", &[]);
    exact("clone-early", &[]);
}

/// The program imports nothing by which that could be seen.
#[test]
fn threads_that_share_a_thread_pointer_by_a_call_of_the_programs_own() {
    let path = or_skip!(victims::plain("own_clone"));
    for kind in ["clone", "clone-early"] {
        is_exact(Running::start(&path, &[kind]), kind, 40 * ROUNDS);
    }
}

/// The C library lies in the program itself, and calls `clone` for its own threads too. Where such a thread
/// counts by an rseq area that is not its own, it loses hits only when it is moved in the middle.
#[test]
fn threads_that_share_a_thread_pointer_in_a_static_program() {
    let path = or_skip!(victims::c("bare", Variant::Static));
    for kind in ["clone", "clone-early"] {
        is_exact(Running::start(&path, &[kind]), kind, 40 * ROUNDS);
    }
}

#[test]
fn threads_that_set_their_own_thread_pointer() {
    if !native::HAS_ARCH_PRCTL {
        skip!("no thread sets its own pointer by arch_prctl here");
    }
    exact("fs", &[]);
    exact("fs-early", &[]);
}

#[test]
fn threads_with_rseq_areas_of_their_own() {
    exact("areas", &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]);
    exact("clone", &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]);
}

/// The loader of a position-independent Go program gives the first thread an rseq area, which Go then leaves
/// unused.
#[test]
fn position_independent_go() {
    let mut victim = Running::start(&or_skip!(victims::go_pie("arguments")), &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for (verb, words) in
        [("count", &["main.mixed"][..]), ("lat", &["main.mixed"]), ("count", &["--strict", "main.mixed"])]
    {
        let words: Vec<&str> = ["-p", &pid].into_iter().chain(words.iter().copied()).collect();
        let tracing = Tracing::start(verb, &words).unwrap_or_else(|report| panic!("{}", report.errors));
        let reported = victim.run(500);
        let report = tracing.stop();
        assert_eq!(reported["wrong"], 0);
        let field = if verb == "lat" { "calls" } else { "hits" };
        let seen = report.field("main.mixed", field) + report.number("missed");
        assert_eq!(seen, reported["main.mixed"], "{verb}: {}", report.errors);
    }
    text::assert_clean(victim.pid(), &before);
}

/// Runs a command with this input.
fn with_input(command: &mut Command, input: &str) -> Output {
    use std::io::Write as _;
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).ok();
    child.wait_with_output().expect("it ends")
}

/// All functions of `main` and of the runtime, from the first instruction on.
#[test]
fn go_under_every_verb_from_its_start() {
    let path = or_skip!(victims::go("arguments"));
    let file = path.to_str().expect("UTF-8");
    let input = "run 20\n";
    let bare = with_input(&mut Command::new(&path), input);
    assert!(bare.status.success());
    let all = format!("{file}:*");
    let (hist, graph) = (format!("{file}:main.m*() -> i64"), format!("{file}:main.work"));
    for words in [
        &["count", &all][..],
        &["lat", &all],
        &["trace", "-q", "-o", "/dev/null", &all],
        &["stack", &all],
        &["hist", "ret", &hist],
        &["graph", &graph],
    ] {
        let mut command = Command::new(binary());
        let output = with_input(command.args(words).arg("--").arg(&path), input);
        let (output_text, reported) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&bare.stdout));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {errors}");
        for line in reported.lines() {
            assert!(
                output_text.contains(line),
                "{words:?}: no {line} in {}: {errors}",
                &output_text[..output_text.len().min(500)]
            );
        }
    }
}

/// V8 and LuaJIT find frames by their return addresses.
#[test]
fn runtimes_that_walk_frames_are_refused_by_name() {
    let script = "let a = {b: 1}, n = 0; for (let i = 0; i < 1e5; i++) n += a.b; console.log('sum', n)";
    let lua = "local n = 0 for i = 1, 1e5 do n = n + (pcall(error, i) and 0 or 1) end print('sum ' .. n)";
    let node = (["/usr/bin/node", "/usr/local/bin/node"], "Builtins_LoadIC*", "V8", script);
    let luajit = (["/usr/bin/luajit"; 2], "*", "LuaJIT", lua);
    for (places, functions, runtime, code) in [node, luajit] {
        let program = or_skip!(programs::find(&places));
        let probe = format!("{}:{functions}", program.display());
        for probe in [&*probe, "libc:*"] {
            let mut command = Command::new(binary());
            command
                .args(["lat", "--ret=stack", "-o", "/dev/null", probe, "--"])
                .arg(&program)
                .args(["-e", code]);
            let output = with_input(&mut command, "");
            let (output_text, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output_text.contains("sum 100000"), "{:?}: {output_text}{errors}", output.status);
            assert!(errors.contains(runtime), "{probe}: {errors}");
        }
    }
}

/// A killed tracer left a segment. The next tracer that is killed leaves another, with the same bytes at one
/// place.
#[test]
fn what_two_dead_tracers_left_is_reported_once() {
    let mut victim = Running::start(&or_skip!(victims::plain("shapes")), &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    for _ in 0..3 {
        let mut tracing = Tracing::start("count", &["-p", &pid, "shapes:*"]).expect("attaches");
        tracing.signal(libc::SIGKILL);
        drop(tracing.end());
        let output = once(&["detach", "-p", &pid]);
        let output_text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output_text.contains("not ours"), "{output_text}");
        assert!(output_text.lines().count() <= 2, "{output_text}");
        text::assert_clean(victim.pid(), &before);
    }
    victim.run(10);
}

/// A copy in the target folder, removed when dropped.
struct Copied(PathBuf);

impl Drop for Copied {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Terminal control sequences in names of files and functions are escaped, not sent to the terminal.
#[test]
fn orders_in_names_are_not_given() {
    let plain = or_skip!(victims::plain("bare"));
    let name = format!("bare-\x1b[2J\n{}", std::process::id());
    let copied = Copied(plain.with_file_name(name));
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--redefine-sym", "work=wo\x1b[31mr\nk"]).arg(&plain).arg(&copied.0);
    let made = objcopy.output();
    if !made.is_ok_and(|made| made.status.success()) {
        skip!("no objcopy");
    }
    let mut victim = Running::start(&copied.0, &["clone"]);
    let pid = victim.pid().to_string();
    victim.run(1);
    for words in [
        &["count"][..],
        &["lat", "-F"],
        &["trace", "--max", "2"],
        &["stack"],
        &["list"],
        &["count", "--json"],
    ] {
        let mut command = Command::new(binary());
        command.args(words);
        if words[0] != "list" {
            command.args(["-d", "0.5"]);
        }
        let probe = format!("{}:wo*", copied.0.file_name().expect("a name").to_str().expect("UTF-8"));
        command.args(["-p", &pid, &probe]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = command.spawn().expect("it starts");
        for _ in 0..20 {
            victim.run(1);
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        let output = running.wait_with_output().expect("it ends");
        let all = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&all);
        assert!(!all.contains(&0x1b), "{words:?}: {}", all.escape_ascii());
        assert!(!text.lines().any(|line| line == "k" || line.starts_with("k(")), "{words:?}: {text}");
        assert!(output.status.success() && text.contains("wo"), "{words:?}: {text}");
    }
}

/// Two functions of one name are counted separately, and can be distinguished in the report.
#[test]
fn functions_of_one_name_are_distinguished() {
    let mut victim = Running::start(&or_skip!(victims::plain("twins")), &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "twins:same"]).expect("attaches");
    victim.run(TIMES);
    let report = tracing.stop();
    let mut hits: Vec<u64> = report.probes().filter_map(|probe| probe["hits"].as_u64()).collect();
    hits.sort_unstable();
    assert_eq!(hits, [TIMES, 2 * TIMES], "{}", report.errors);
    let output = once(&["list", "-p", &pid, "twins:same"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("same (0x")).collect();
    assert!(lines.len() == 2 && lines[0] != lines[1], "{text}");
}

fn is_counted(mut victim: Running, probe: &str) {
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, probe])
        .unwrap_or_else(|report| panic!("{probe}: {}", report.errors));
    victim.run(TIMES);
    let report = tracing.stop();
    assert_eq!(report.total_hits(), 2 * TIMES, "{}", report.errors);
    assert!(!report.errors.contains("replaced on disk"), "{}", report.errors);
}

#[test]
fn an_executable_in_memory_alone() {
    let path = or_skip!(victims::plain("bare"));
    // SAFETY: the name is a C string that lives through the call.
    let fd = unsafe { libc::memfd_create(c"in memory".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and nothing else owns it.
    let mut file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    std::io::copy(&mut std::fs::File::open(&path).expect("built"), &mut file).expect("copied");
    let mut command = Command::new(format!("/proc/self/fd/{fd}"));
    command.arg("clone");
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    drop(file);
    is_counted(victim, "work");
}

/// Its path leads us to another file, which does not have that function.
#[test]
fn an_executable_under_another_root() {
    let path = or_skip!(victims::c("bare", Variant::Static));
    let root = std::env::temp_dir().join(format!("trapline-root-{}", std::process::id()));
    std::fs::create_dir_all(root.join("bin")).expect("a folder");
    programs::copy(&path, &root.join("bin/sh")).expect("a copy");
    let mut command = Command::new("chroot");
    command.arg(&root).args(["/bin/sh", "clone"]);
    let victim = Running::spawn(command);
    assert_eq!(victim.line(), "ready");
    is_counted(victim, "/bin/sh:work");
    std::fs::remove_dir_all(&root).ok();
}

/// The name ends like that of a deleted file.
#[test]
fn an_executable_that_is_called_deleted() {
    let path = or_skip!(victims::plain("bare"));
    let copied = Copied(path.with_file_name(format!("bare-{} (deleted)", std::process::id())));
    programs::copy(&path, &copied.0).expect("a copy");
    is_counted(Running::start(&copied.0, &["clone"]), "work");
    assert!(Path::new(&copied.0).as_os_str().as_bytes().ends_with(b" (deleted)"));
}

/// The threads of a process in another namespace are reported with the numbers of our namespace everywhere.
#[test]
fn threads_in_another_namespace_have_our_numbers() {
    let path = or_skip!(victims::plain("bare"));
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc"]).arg(&path).arg("none");
    let mut victim = Running::spawn(command);
    let children = format!("/proc/{0}/task/{0}/children", victim.pid());
    if victim.line() != "ready" {
        skip!("no PID namespace");
    }
    let pid = std::fs::read_to_string(children).expect("it runs").trim().to_owned();
    for (words, calls) in [
        (&["--tid", &pid][..], 10),
        (&[][..], 20),
        (&["--if", &format!("tid != {pid}")], 10),
        (&["--tid", &pid, "--if", "x < 4"], 4),
    ] {
        let words: Vec<&str> =
            ["-p", &pid].into_iter().chain(words.iter().copied()).chain(["work(u64 x)"]).collect();
        let tracing = Tracing::start("trace", &words).unwrap_or_else(|report| panic!("{}", report.errors));
        victim.run(10);
        let report = tracing.stop();
        let reported: Vec<u64> = report
            .objects
            .iter()
            .filter_map(|one| one["args"].is_array().then(|| one["tid"].as_u64())?)
            .collect();
        assert_eq!(reported.len(), calls, "{words:?}: {}", report.errors);
        let is_ours = |tid: &&u64| tid.to_string() == pid;
        let ours = reported.iter().filter(is_ours).count();
        let expected = match words.iter().any(|word| word.contains("!=")) {
            true => 0,
            false => calls.min(10),
        };
        assert_eq!(ours, expected, "{words:?}: {reported:?}");
    }
    let tracing = Tracing::start("count", &["-p", &pid, "--by", "tid", "work"]).expect("attaches");
    victim.run(10);
    let report = tracing.stop();
    assert!(report.totals()[0].to_string().contains(&format!("\"tid\":{pid}")), "{:?}", report.totals());
    // The process ends with the namespace's first process.
    victim.send("quit");
    victim.finish();
}

/// A child of vfork runs on its parent's thread for a while, and has a number of its own.
#[test]
fn children_of_vfork_have_their_own_numbers() {
    let path = or_skip!(victims::plain("spawns"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("trace", &["-p", &pid, "work(int pid)"]).expect("attaches");
    let reported = victim.run(5);
    let report = tracing.stop();
    let calls: Vec<(u64, u64)> = report
        .objects
        .iter()
        .filter(|one| one["type"] == "call")
        .filter_map(|one| Some((one["args"][0]["value"].as_u64()?, one["tid"].as_u64()?)))
        .collect();
    assert_eq!(calls.len() as u64, reported["work"], "{}", report.errors);
    assert!(calls.iter().all(|(says, tid)| says == tid), "{calls:?}");
    assert!(calls.iter().any(|&(_, tid)| tid != u64::from(victim.pid())));
}
