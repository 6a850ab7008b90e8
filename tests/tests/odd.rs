//! Processes with an unusual thread: it has ended, it belongs to the kernel, it cannot be stopped, or its
//! name is no text.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use trapline_tests::running::{Printed, Running};
use trapline_tests::tracing::{Report, Tracing, binary, once};
use trapline_tests::{or_skip, programs, skip, text, victims};

/// Attaches, lets the program do `meanwhile` and some work, detaches. Returns the report, and what the work
/// printed.
fn attached(verb: &str, victim: &mut Running, meanwhile: &str, times: u64) -> (Report, Printed) {
    let pid = victim.pid().to_string();
    let tracing = Tracing::start(verb, &["-p", &pid, "work"]).unwrap_or_else(|report| {
        panic!("{verb} does not attach: {} {}", report.status, report.errors);
    });
    if !meanwhile.is_empty() {
        victim.send(meanwhile);
        while !is_zombie(victim.pid()) {
            std::thread::yield_now();
        }
    }
    let reported = victim.run(times);
    (tracing.stop(), reported)
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).expect("it runs");
    String::from_utf8_lossy(&stat).contains(") Z ")
}

/// Whether all executable memory is as in its file. `TID` shows the memory where the main thread does not.
fn is_clean(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let tid = tids.filter(|&tid: &u32| tid != pid).last().expect("another thread");
    text::differences(tid).is_empty()
}

fn sound(verb: &str, kind: &str, meanwhile: &str) {
    let path = or_skip!(victims::plain("odd"));
    let mut victim = Running::start(&path, &[kind]);
    let (report, reported) = attached(verb, &mut victim, meanwhile, 1000);
    assert!(report.status.success(), "{verb} {kind}: {}", report.errors);
    assert_eq!(reported["sum"], 1_499_500, "{verb} {kind}");
    if verb == "count" {
        assert_eq!((report.hits("work"), report.number("missed")), (1000, 0), "{kind}: {}", report.errors);
    }
    if verb == "trace" {
        assert_eq!(report.calls_of("work").len(), 1000, "{kind}: {}", report.errors);
    }
    assert!(is_clean(victim.pid()), "{verb} {kind}: patches stay: {}", report.errors);
}

#[test]
fn a_process_lives_on_when_its_main_thread_has_ended() {
    for verb in ["count", "lat", "trace"] {
        sound(verb, "leader", "");
    }
}

#[test]
fn a_process_lives_on_when_its_main_thread_ends_while_it_is_traced() {
    for verb in ["count", "lat", "trace"] {
        sound(verb, "plain", "leave");
    }
}

#[test]
fn threads_of_the_kernel_make_no_calls_for_us() {
    let path = or_skip!(victims::plain("odd"));
    let mut probe = Command::new(&path);
    let tried = probe.arg("uring").stdin(std::process::Stdio::null()).output().expect("it runs");
    if !tried.status.success() {
        skip!("{}", String::from_utf8_lossy(&tried.stdout));
    }
    for verb in ["count", "lat"] {
        sound(verb, "uring", "");
    }
}

#[test]
fn a_thread_that_waits_for_the_child_of_its_vfork_delays_no_other() {
    for verb in ["count", "lat"] {
        sound(verb, "vfork", "");
    }
}

#[test]
fn a_process_with_a_name_that_is_no_text_is_one_like_others() {
    for verb in ["count", "lat"] {
        sound(verb, "name", "");
    }
}

/// A path and a process' name with bytes that are no text, as they are typed.
#[test]
fn names_that_are_no_text_can_be_typed() {
    let path = or_skip!(victims::plain("odd"));
    let odd = path.with_file_name(OsStr::from_bytes(b"na\xefve"));
    programs::copy(&path, &odd).expect("a copy");
    let mut victim = Running::start(&odd, &["name"]);
    let pid = victim.pid().to_string();
    let probe = [odd.as_os_str().as_bytes(), b":work"].concat();
    for words in [[&b"-p"[..], pid.as_bytes(), &probe], [b"-n", b"a na\xc3\xafve nam\xc3", b"work"]] {
        let words = words.map(OsStr::from_bytes);
        let mut command = Command::new(binary());
        let output = command.args(["count", "-d", "0.1", "--json"]).args(words).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.contains("1 matched, 1 probed"), "{words:?}: {errors}");
    }
    assert_eq!(victim.run(1000)["sum"], 1_499_500);
    std::fs::remove_file(odd).expect("ours");
}

/// Part of the program's file is mapped a second time. Its functions are probed in both places. Those that only the first
/// place has are not looked for in the second: nothing is said of them, and no memory is taken for them.
#[test]
fn functions_of_a_file_that_is_mapped_twice_are_probed_where_they_are() {
    let path = or_skip!(victims::plain("twofold"));
    for verb in ["count", "lat"] {
        let mut victim = Running::start(&path, &[]);
        let pid = victim.pid().to_string();
        let tracing = Tracing::start(verb, &["-p", &pid, "work", "other"]).unwrap_or_else(|report| {
            panic!("{verb} does not attach: {} {}", report.status, report.errors);
        });
        let reported = victim.run(1000);
        let report = tracing.stop();
        assert!(report.status.success() && report.refused().is_empty(), "{verb}: {}", report.errors);
        let field = if verb == "lat" { "calls" } else { "hits" };
        for func in ["work", "other"] {
            assert_eq!(report.field(func, field), reported[func], "{verb} {func}: {}", report.errors);
        }
        assert!(!report.errors.contains("in one mapping"), "{verb}: {}", report.errors);
        assert!(text::differences(victim.pid()).is_empty(), "{verb}: patches stay: {}", report.errors);
    }
    let victim = Running::start(&path, &[]);
    let listed = once(&["list", "--json", "-p", &victim.pid().to_string(), "work", "other"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    let of = |func: &str| text.matches(&format!("twofold:{func}\"")).count();
    assert_eq!((of("work"), of("other")), (2, 1), "{text}");
}

/// A control group that can freeze its members. Thawed and removed when dropped.
struct Freezer(std::path::PathBuf);

impl Freezer {
    fn new(name: &str) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let at = fields.next()?;
            (fields.next()? == "cgroup2").then(|| at.to_owned())
        });
        let mount = mount.ok_or("no cgroup2 is mounted")?;
        let group = std::path::Path::new(&mount).join(format!("trapline-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        Ok(Self(group))
    }
    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    fn freeze(&self, pid: u32) {
        self.write("cgroup.procs", &pid.to_string());
        self.write("cgroup.freeze", "1");
        while !std::fs::read_to_string(self.0.join("cgroup.events")).expect("ours").contains("frozen 1") {
            std::thread::yield_now();
        }
    }
    fn thaw(&self) {
        self.write("cgroup.freeze", "0");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        std::fs::write(self.0.join("cgroup.freeze"), "0").ok();
        // The group is empty when its processes are gone; they are killed by then.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_frozen_process_is_reported_and_not_waited_for() {
    let path = or_skip!(victims::plain("odd"));
    let freezer = or_skip!(Freezer::new("before"));
    let mut victim = Running::start(&path, &["plain"]);
    freezer.freeze(victim.pid());
    let pid = victim.pid().to_string();
    let begun = std::time::Instant::now();
    let output_text = match Tracing::start("count", &["-p", &pid, "work"]) {
        Ok(_) => panic!("a frozen process makes no calls"),
        Err(report) => report.errors,
    };
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(output_text.contains("frozen") && output_text.contains("thaw"), "{output_text}");
    freezer.thaw();
    let (report, reported) = attached("count", &mut victim, "", 1000);
    assert_eq!((report.hits("work"), reported["sum"]), (1000, 1_499_500), "{}", report.errors);
    assert!(is_clean(victim.pid()), "{}", report.errors);
}

/// What can only be freed by calls in the process stays until it is thawed. The remedy that the message names
/// then works.
#[test]
fn a_process_that_is_frozen_while_it_is_traced_can_be_cleaned_up_when_it_is_thawed() {
    let path = or_skip!(victims::plain("odd"));
    let freezer = or_skip!(Freezer::new("meanwhile"));
    let mut victim = Running::start(&path, &["plain"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-p", &pid, "work"]).expect("attaches");
    victim.run(10);
    freezer.freeze(victim.pid());
    let begun = std::time::Instant::now();
    let report = tracing.stop();
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}: {}", begun.elapsed(), report.errors);
    let remedy = format!("trapline detach -p {pid}");
    assert!(report.errors.contains("frozen") && report.errors.contains(&remedy), "{}", report.errors);
    freezer.thaw();
    assert_eq!(victim.run(1000)["sum"], 1_499_500);
    let cleaned = trapline_tests::tracing::once(&["detach", "-p", &pid]);
    assert!(cleaned.status.success(), "{}", String::from_utf8_lossy(&cleaned.stderr));
    assert!(is_clean(victim.pid()), "{}", String::from_utf8_lossy(&cleaned.stdout));
    assert_eq!(victim.run(1000)["sum"], 1_499_500);
}

/// A followed process is traced by the tracer already. It can be looked at all the same.
#[test]
fn a_followed_process_can_be_looked_at() {
    let path = or_skip!(victims::plain("odd"));
    let mut victim = Running::start(&path, &["plain"]);
    let pid = victim.pid().to_string();
    let tracing = Tracing::start("count", &["-f", "-p", &pid, "work"]).expect("attaches");
    let looked = trapline_tests::tracing::once(&["status", "-p", &pid]);
    let output_text = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(output_text.contains("armed"), "{output_text}{}", String::from_utf8_lossy(&looked.stderr));
    victim.run(10);
    assert_eq!(tracing.stop().hits("work"), 10);
}
