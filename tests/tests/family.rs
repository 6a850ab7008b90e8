//! LOSS-1, LOSS-2: fork, exec and dlopen while traced, and how the process ends.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use trapline_tests::counted::{counted, tactic};
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, Tracing, binary};
use trapline_tests::{or_skip, text, victims};

const CHILDREN: u64 = 30;

#[test]
fn forked_children_count_into_the_same_table() {
    let path = or_skip!(victims::plain("family"));
    let seen = counted(&path, &["fork"], &["child_work", "parent_work"], CHILDREN);
    assert_eq!(seen.reported["failed"], 0);
    assert_eq!(seen.report.hits("child_work"), CHILDREN * 10);
    println!("{}", seen.report.errors);
}

#[test]
fn a_child_that_execs_is_clean() {
    for how in ["exec", "vfork"] {
        let path = or_skip!(victims::plain("family"));
        let mut victim = Running::start(&path, &[how]);
        let pid = victim.pid().to_string();
        let tracing = Tracing::start("count", &["-p", &pid, "child_work", "parent_work"]).expect("attaches");
        let reported = victim.run(CHILDREN);
        let report = tracing.stop();
        assert_eq!(reported["failed"], 0, "{how}");
        assert_eq!(report.hits("parent_work"), CHILDREN, "{how}");
        assert_eq!(report.hits("child_work"), 0, "{how}: an exec'd child is not followed without -f");
        assert_eq!(text::differences(victim.pid()), [""; 0]);
    }
}

#[test]
fn following_exec() {
    let path = or_skip!(victims::plain("family"));
    let mut victim = Running::start(&path, &["exec"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:*_work", path.display());
    let tracing = Tracing::start("count", &["-f", "-p", &pid, &probe]).expect("attaches");
    let reported = victim.run(CHILDREN);
    let report = tracing.stop();
    assert_eq!(reported["failed"], 0);
    assert_eq!(report.hits("parent_work"), CHILDREN, "{}", report.errors);
    assert_eq!(report.hits("child_work"), CHILDREN * 10, "{}", report.errors);
}

#[test]
fn calls_that_children_are_in_are_counted() {
    let path = or_skip!(victims::plain("family"));
    for follow in [&[][..], &["-f"]] {
        let mut victim = Running::start(&path, &["inside"]);
        let pid = victim.pid().to_string();
        let probes = format!("{}:/child_inside|parent_work/", path.display());
        let tracing = Tracing::start("lat", &[follow, &["-p", &pid, &probes]].concat()).expect("attaches");
        assert_eq!(victim.run(3)["failed"], 0);
        let report = tracing.stop();
        assert_eq!(report.field("child_inside", "in_flight"), 3, "{follow:?}: {}", report.errors);
        assert_eq!(report.field("child_inside", "calls"), 0, "{follow:?}: none has returned");
        assert_eq!(report.field("parent_work", "in_flight"), 0, "{follow:?}");
        assert_eq!(report.field("parent_work", "calls"), 3, "{follow:?}");
        assert!(victim.finish().success());
    }
}

/// A call was in flight at the last report before the process' end, and has ended since. It counts once.
#[test]
fn calls_that_end_before_the_process_are_not_in_flight_too() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["2", "held"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("lat", &["-p", &pid, "calls"]).expect("attaches");
    victim.begin(1000);
    tracing.wait_for("\"in_flight\":2");
    victim.send("on");
    assert_eq!(victim.reported()["wrong"], 0);
    assert!(victim.finish().success());
    let report = tracing.end();
    assert_eq!(report.field("calls", "calls"), 2, "{}", report.errors);
    assert_eq!(report.field("calls", "in_flight"), 0, "{}", report.errors);
}

/// A forked child inherits jumps, but not the kernel's probes. The report must say that its hits at the
/// latter are not seen.
#[test]
fn what_only_the_kernel_probes_is_reported_not_to_count_children() {
    let path = or_skip!(victims::plain("family"));
    for follow in [&[][..], &["-f"]] {
        let mut victim = Running::start(&path, &["fork"]);
        let pid = victim.pid().to_string();
        let probes = format!("{}:/tight_.*|child_work/", path.display());
        let tracing = Tracing::start("count", &[follow, &["--kernel-uprobes", "-p", &pid, &probes]].concat())
            .expect("attaches");
        assert_eq!(victim.run(3)["failed"], 0);
        let report = tracing.stop();
        assert_eq!(report.hits("child_work"), 30, "{}", report.errors);
        assert!(report.errors.contains(", 3 forked children counted with their parent"), "{}", report.errors);
        let (kernel, others): (Vec<&str>, Vec<&str>) = ["tight_one", "tight_two", "tight_three"]
            .into_iter()
            .partition(|name| tactic(&report, name) == "kernel");
        others.iter().for_each(|name| assert_eq!(report.hits(name), 30, "{name}: {}", report.errors));
        if kernel.is_empty() {
            return println!("SKIP: no place takes a probe of the kernel's here");
        }
        let reported =
            "in process PID alone: hits of its 3 forked children there are not seen".replace("PID", &pid);
        kernel.iter().for_each(|name| assert_eq!(report.hits(name), 0, "{name}: {}", report.errors));
        assert!(report.errors.contains(&reported), "{}", report.errors);
        assert!(victim.finish().success());
    }
}

/// Children forked before the attach have none of our patches, and must not be reported as counted.
#[test]
fn children_forked_before_are_not_reported_to_count() {
    let path = or_skip!(victims::plain("family"));
    let mut victim = Running::start(&path, &["inside"]);
    assert_eq!(victim.run(3)["failed"], 0);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "parent_work"]).expect("attaches");
    assert_eq!(victim.run(1)["failed"], 0);
    let report = tracing.stop();
    assert!(report.errors.contains(", 1 forked child counted with"), "{}", report.errors);
    assert!(victim.finish().success());
}

#[test]
fn a_library_that_comes_and_goes() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let mut victim = Running::start(&path, &["dlopen"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:plugin_work", plugin.display());
    let tracing = Tracing::start("count", &["-p", &pid, &probe, "parent_work"]).expect("attaches");
    let reported = victim.run(3);
    let report = tracing.stop();
    assert_eq!(reported["failed"], 0, "{}", report.errors);
    assert_eq!(report.hits("parent_work"), 3);
    assert!(report.errors.contains("sites: 2 matched, 2 probed"), "{}", report.errors);
    // The library makes ten calls at once after dlopen, and ten more when its entry is patched.
    assert_eq!(report.hits("plugin_work"), 3 * 20, "{}", report.errors);
    assert_eq!(report.totals()[0]["late"], Value::Null, "{}", report.errors);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
}

/// The report's entry for the only library that came late.
fn late(report: &Report) -> Value {
    let totals = report.totals();
    let all = totals[0]["late"].as_array().unwrap_or_else(|| panic!("nothing is late: {}", report.errors));
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

/// LOAD-3: loads that last as long as ten calls. Judge: the program, which makes them.
#[test]
fn no_call_of_a_short_load_is_missed() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let mut victim = Running::start(&path, &["reload"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:plugin_work", plugin.display());
    let tracing = Tracing::start("count", &["-p", &pid, &probe, "parent_work"]).expect("attaches");
    assert_eq!(victim.run(50)["failed"], 0);
    let report = tracing.stop();
    assert_eq!((report.hits("parent_work"), report.hits("plugin_work")), (50, 500), "{}", report.errors);
    assert_eq!(report.totals()[0]["late"], Value::Null, "{}", report.errors);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    assert!(victim.finish().success());
}

/// A function of four bytes gets a jump that ends in the bytes behind it, and so leads to a place of its own. A region of
/// the program's own that was placed before must not lie in the way.
#[test]
fn a_short_function_of_a_library_of_later_is_probed_beside_the_program() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let probe = format!("{}:plugin_short", plugin.display());
    for others in [&[][..], &["parent_work"], &["parent_work", "libc:getenv"]] {
        for _ in 0..3 {
            let mut victim = Running::start(&path, &["reload"]);
            let pid = victim.pid().to_string();
            let words = [&["-p", &pid, "--wait", &probe], others].concat();
            let tracing = Tracing::start("count", &words).expect("attaches");
            assert_eq!(victim.run(4)["failed"], 0);
            let report = tracing.stop();
            assert_eq!(report.hits("plugin_short"), 40, "{others:?}: {}", report.errors);
            assert!(victim.finish().success());
        }
    }
}

/// Where a probed library was, another file is mapped when the patches are taken out. No other tool was at work.
#[test]
fn what_lies_where_a_library_was_is_nobodys_change() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let mut victim = Running::start(&path, &["covered"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:plugin_work", plugin.display());
    let tracing = Tracing::start("count", &["-p", &pid, &probe, "parent_work"]).expect("attaches");
    assert_eq!(victim.run(1)["failed"], 0);
    let report = tracing.stop();
    assert_eq!(report.hits("plugin_work"), 10, "{}", report.errors);
    assert!(!report.errors.contains("another tool"), "{}", report.errors);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
    assert!(victim.finish().success());
}

/// LOAD-2: a thread waits for a stopped tracer some seconds at most, once; what was not seen then is told. When the
/// tracer goes on, threads wait again.
#[test]
fn a_load_that_a_stopped_tracer_missed_is_reported() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let mut victim = Running::start(&path, &["reload"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:plugin_work", plugin.display());
    let mut tracing = Tracing::start("count", &["-p", &pid, &probe, "parent_work"]).expect("attaches");
    assert_eq!(victim.run(1)["failed"], 0);
    tracing.signal(libc::SIGSTOP);
    until("the tracer stops", || tracing.is_stopped());
    assert_eq!(victim.run(3)["failed"], 0);
    let before = tracing.waits();
    tracing.signal(libc::SIGCONT);
    // Loads of this time come before the tracer has looked, or after.
    let mut meanwhile = 0;
    until("the tracer looks", || {
        assert_eq!(victim.run(1)["failed"], 0);
        meanwhile += 1;
        tracing.waits() > before + 20
    });
    assert_eq!(victim.run(5)["failed"], 0);
    let report = tracing.stop();
    let late = late(&report);
    let missed =
        late["loads"].as_u64().zip(late["passed"].as_u64()).map_or(0, |(loads, passed)| loads + passed);
    assert!((3..=3 + meanwhile).contains(&missed), "{meanwhile} {late}");
    let seen = (1 + 3 + meanwhile + 5 - missed) * 10;
    assert!((seen..seen + 10).contains(&report.hits("plugin_work")), "{late}: {}", report.errors);
    assert_eq!(text::differences(victim.pid()), [""; 0]);
}

/// The library is not mapped when tracing begins, and nothing else is probed.
#[test]
fn a_library_is_waited_for() {
    let path = or_skip!(victims::plain("family"));
    let plugin = or_skip!(victims::shared("plugin"));
    let mut victim = Running::start(&path, &["dlopen"]);
    let pid = victim.pid().to_string();
    let probe = format!("{}:plugin_work", plugin.display());
    let Err(report) = Tracing::start("count", &["-p", &pid, &probe]) else { panic!("nothing to probe") };
    assert_eq!(report.status.code(), Some(3), "{}", report.errors);
    assert!(report.errors.contains("--wait waits for libraries"), "{}", report.errors);
    for option in ["-f", "--wait"] {
        let tracing = Tracing::start("count", &[option, "-p", &pid, &probe]).expect("attaches");
        assert_eq!(victim.run(3)["failed"], 0);
        let report = tracing.stop();
        assert_eq!(report.hits("plugin_work"), 60, "{option}: {}", report.errors);
        assert_eq!(report.totals()[0]["late"], Value::Null, "{option}: {}", report.errors);
    }
}

#[test]
fn the_target_exits_while_traced() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("count", &["-p", &pid, "leaf"]).expect("attaches");
    let reported = victim.run(1000);
    victim.finish();
    let report = tracing.end();
    assert_eq!(report.hits("leaf"), reported["leaf"], "results are still printed; {}", report.errors);
    assert_eq!(report.status.code(), Some(0), "{}", report.errors);
}

/// The tracer follows all threads of the command, which is its own child. What it does not take of their ends stays in
/// the command as zombies, and in the end no thread can be created.
#[test]
fn threads_of_a_followed_command_are_gone_when_they_end() {
    const THREADS: u64 = 400;
    let path = or_skip!(victims::plain("brief"));
    let mut command = Command::new(binary());
    command.args(["count", "-q", "-f", &format!("{}:work", path.display()), "--"]).arg(&path);
    let mut tracer = Running::spawn(command);
    assert_eq!(tracer.line(), "ready");
    assert_eq!(tracer.run(THREADS)["work"], THREADS);
    let tasks = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let children = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("children")).unwrap_or_default().trim().to_owned()
    };
    let found: Vec<String> = tasks(tracer.pid()).flatten().map(|task| children(&task)).collect();
    let victim: u32 = found.concat().parse().unwrap_or_else(|_| panic!("one child: {found:?}"));
    until("only its main thread is left", || tasks(victim).count() == 1);
    assert!(tracer.finish().success());
}

#[test]
fn the_target_is_killed_while_traced() {
    let path = or_skip!(victims::plain("threads"));
    let mut victim = Running::start(&path, &["4", "endless"]);
    let pid = victim.pid().to_string();
    let mut tracing = Tracing::start("count", &["-p", &pid, "shared"]).expect("attaches");
    let begun = victim.run(0)["rounds"];
    victim.run_until(100_000, |now| now["rounds"] > begun + 4);
    drop(victim);
    let report = tracing.end();
    assert!(report.hits("shared") > 0, "{}", report.errors);
    assert_eq!(report.status.code(), Some(1), "{}", report.errors);
    assert!(report.errors.contains("was ended by signal 9 (SIGKILL)"), "{}", report.errors);
}

/// A process that is killed loses its memory first, and ends as a whole later. The tracer looks often at a
/// process whose maps are empty, and which has neither ended nor executed another program.
#[test]
fn a_target_without_memory_is_waited_for() {
    let mut dying = or_skip!(Dying::start());
    let mut tracing = dying.traced();
    dying.kill();
    let before = tracing.objects().len();
    until("the tracer has reported five times more", || {
        assert!(tracing.is_running(), "the tracer ended: {}", tracing.output_text());
        tracing.objects().len() >= before + 5
    });
    dying.let_end();
    let report = tracing.end();
    assert_eq!(report.hits("parent_work"), 1, "{}", report.errors);
    assert_eq!(report.status.code(), Some(1), "{}", report.errors);
    assert_eq!(only_note(&report), dying.note("was ended by signal 9 (SIGKILL) while it was probed"));
}

/// The same where the tracer is to end meanwhile: it does not take the process to have exited.
#[test]
fn a_target_without_memory_is_waited_for_at_detach() {
    let mut dying = or_skip!(Dying::start());
    let mut tracing = dying.traced();
    dying.kill();
    tracing.signal(libc::SIGINT);
    until("the tracer's run is over", || tracing.has_taken_interrupt());
    // From here on the tracer detaches, and waits for nothing that takes several looks but the end of the target.
    let begun = tracing.waits();
    until("the tracer waits for the end", || tracing.waits() >= begun + 20);
    dying.let_end();
    let report = tracing.end();
    assert_eq!(report.hits("parent_work"), 1, "{}", report.errors);
    assert_eq!(only_note(&report), dying.note("was ended by signal 9 (SIGKILL) while it was probed"));
    assert_eq!(report.status.code(), Some(1), "{}", report.errors);
}

/// The wait has a bound, and the report does not claim to know what nobody can know then.
#[test]
fn a_target_that_loses_its_memory_and_does_not_end_is_reported() {
    let mut dying = or_skip!(Dying::start());
    let tracing = dying.traced();
    dying.kill();
    let report = tracing.stop();
    dying.let_end();
    assert_eq!(report.hits("parent_work"), 1, "{}", report.errors);
    let text = "has lost its memory, and 2 s later it had not ended: how it ended is not known";
    assert_eq!(only_note(&report), dying.note(text));
}

/// A process that was killed, has lost its memory, and cannot end. The first process of a PID namespace waits
/// until no other one is left there. Here this test traces one that is dead, and does not take note of that.
struct Dying {
    victim: Running,
    target: u32,
    child: u32,
}

impl Dying {
    fn start() -> Result<Self, String> {
        let path = victims::plain("family")?;
        let namespace = ["--pid", "--fork", "--kill-child"];
        let mut tried = Command::new("unshare");
        if !tried.args(namespace).arg("true").status().is_ok_and(|status| status.success()) {
            return Err("no PID namespace can be made here".to_owned());
        }
        let mut command = Command::new("unshare");
        command.args(namespace).arg(&path).arg("inside");
        let victim = Running::spawn(command);
        assert_eq!(victim.line(), "ready");
        let target = only_child(victim.pid());
        Ok(Self { victim, target, child: 0 })
    }
    /// It is traced, and has a child.
    fn traced(&mut self) -> Tracing {
        let pid = self.target.to_string();
        let tracing = Tracing::start("count", &["-p", &pid, "parent_work"]).expect("attaches");
        assert_eq!(self.victim.run(1)["failed"], 0);
        self.child = only_child(self.target);
        tracing
    }
    /// Returns when its memory is gone.
    fn kill(&self) {
        let signal = |pid: u32, signal: i32| {
            // SAFETY: kill takes plain numbers, here of processes that this test has started.
            assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
        };
        let child = self.child.cast_signed();
        // SAFETY: the request uses neither address nor data.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, child, 0_usize, 0_usize) }, 0);
        // What would take note of its end stands still meanwhile.
        signal(self.victim.pid(), libc::SIGSTOP);
        signal(self.target, libc::SIGKILL);
        let maps = format!("/proc/{}/maps", self.target);
        let maps = || std::fs::read_to_string(&maps).expect("it has not ended");
        until("its memory is gone", || maps().is_empty());
    }
    /// Takes note of its child's end. By the thread that called [`Self::kill`].
    fn let_end(&self) {
        let child = self.child.cast_signed();
        // SAFETY: waits for a tracee of this thread, and asks for no status.
        let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(waited, child);
    }
    /// A notice about it.
    fn note(&self, text: &str) -> String {
        format!("note: process {} (family) {text}", self.target)
    }
}

/// The only notice of a report.
fn only_note(report: &Report) -> String {
    let notes: Vec<&str> = report.errors.lines().filter(|line| line.starts_with("note: ")).collect();
    let [note] = notes[..] else { panic!("{}", report.errors) };
    note.to_owned()
}

/// The only child of a process with one thread.
fn only_child(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    children.trim().parse().unwrap_or_else(|_| panic!("one child: {children}"))
}

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
