//! ARR-1, ARR-2, ARR-3, AMG-1: `--all`, processes of later.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary};
use trapline_tests::{bpf, or_skip, oracle, programs, victims};

/// Starts the tracer, and waits until the kernel has its marks.
fn waiting(args: &[&str]) -> Result<Tracing, String> {
    let mut tracing = Tracing::spawn("count", &[&["--all"], args].concat());
    let begun = Instant::now();
    let has_mark = |pid: u32| {
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        infos
            .filter_map(|info| std::fs::read_to_string(info.path()).ok())
            .any(|text| text.contains("fanotify ino:"))
    };
    while !has_mark(tracing.pid()) {
        if tracing.output_text().contains("CAP_SYS_ADMIN") {
            return Err("the kernel grants no permission events".to_owned());
        }
        assert!(tracing.is_running(), "it ended: {}", tracing.output_text());
        assert!(begun.elapsed() < Duration::from_secs(20), "no marks: {}", tracing.output_text());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(tracing)
}

/// A copy of its own for each test, since all processes of a file count.
fn copy_of(path: &Path, name: &str) -> PathBuf {
    let copy = path.with_file_name(format!("{name}-{}", std::process::id()));
    programs::copy(path, &copy).expect("a copy");
    copy
}

/// Judges: the program, and the kernel's uprobe at a function that is called as often in the same run.
#[test]
fn programs_of_later_are_probed_before_their_first_instruction() {
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-counted");
    let probe = format!("{}:leaf", path.display());
    let tracing = or_skip!(waiting(&[&probe]));
    let kernel = bpf::counting(&path, oracle::offsets(&path, &["twin"])[0], 0, false);
    let status = Command::new(&path).args(["3", "30"]).stdout(Stdio::null()).status().expect("it runs");
    let report = tracing.stop();
    assert!(status.success(), "{status}: {}", report.errors);
    assert_eq!(report.hits("leaf"), 3 * 30 * 3, "{}", report.errors);
    match kernel {
        Ok(kernel) => assert_eq!(kernel.runs(), 3 * 30 * 3, "{}", report.errors),
        Err(why) => println!("SKIPPED the kernel's count: {why}"),
    }
    std::fs::remove_file(&path).expect("ours");
}

/// The library is opened by the loader of a program that is not wanted itself.
#[test]
fn libraries_of_programs_of_later_are_probed_before_their_constructors() {
    let path = or_skip!(victims::with_library("early", &[]));
    let library = path.with_file_name("early_library.so");
    let tracing = or_skip!(waiting(&[&format!("{}:early", library.display())]));
    for _ in 0..10 {
        assert!(Command::new(&path).status().expect("it runs").success());
        // Who only reads the file is not waited for.
        assert!(std::fs::read(&library).is_ok());
    }
    let report = tracing.stop();
    assert_eq!(report.hits("early"), 10 * (7 + 3), "{}", report.errors);
    assert!(!report.errors.contains("not probed"), "{}", report.errors);
}

/// ARR-3: the kernel denies an opening if the tracer has no descriptor for its event. With each limit the tracer comes
/// to its end elsewhere.
#[test]
fn programs_start_as_ever_when_the_tracer_has_no_descriptors_left() {
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-short");
    let script = "ulimit -Sn $2; ulimit -Hn $2; exec \"$0\" count --all -q -d 1.5 \"$1:leaf\"";
    for limit in ["25", "30", "35", "46", "54", "60"] {
        let mut short = Command::new("bash");
        short.args(["-c", script]).arg(binary()).arg(&path).arg(limit);
        let mut short = short.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bash starts");
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(200));
            let mut tree = Command::new(&path);
            tree.args(["3", "6"]);
            let status = Running::spawn(tree).finish();
            assert!(status.success(), "{limit} descriptors: {status}");
        }
        short.wait().expect("ours");
    }
    std::fs::remove_file(&path).expect("ours");
}

/// The kernel lets go whoever waits, and parked programs go on by themselves.
#[test]
fn programs_go_on_when_the_tracer_dies_while_they_start() {
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-killed");
    let probe = format!("{}:leaf", path.display());
    for round in 0..6 {
        let mut tracing = or_skip!(waiting(&[&probe]));
        let mut tree = Command::new(&path);
        let mut tree = tree.args(["3", "8"]).stdout(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(15 * round));
        tracing.signal(libc::SIGKILL);
        let begun = Instant::now();
        let status = tree.wait().expect("ours");
        assert!(status.success(), "round {round}: {status}");
        assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: {:?}", begun.elapsed());
    }
    std::fs::remove_file(&path).expect("ours");
}

/// A control group that is removed at the end. Processes that are in it must have ended.
struct Group(PathBuf);

impl Group {
    /// One below the first hierarchy in which we may make one.
    fn new(name: &str) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("our own");
        let at = |line: &str| Some(line.split(' ').nth(1)?.to_owned()).filter(|_| line.contains(" cgroup2 "));
        let at = mounts.lines().find_map(at).ok_or("no control groups of version 2 are mounted")?;
        let group = Path::new(&at).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        Ok(Self(group))
    }
    /// Runs a command in it.
    fn run(&self, command: &Path, args: &str) -> std::process::ExitStatus {
        let script =
            format!("echo 0 > {}/cgroup.procs && exec {} {args}", self.0.display(), command.display());
        Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status().expect("sh starts")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("it is empty");
    }
}

/// AMG-1: its neighbour runs the same file. Judge: the kernel, whose uprobe counts both, at a function that is called as
/// often.
#[test]
fn only_processes_of_a_control_group_or_container_are_traced() {
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-grouped");
    let probe = format!("{}:leaf", path.display());
    let inside = or_skip!(Group::new(&format!("trapline-{ID}")));
    let outside = or_skip!(Group::new("trapline-outside"));
    for (option, value) in
        [("--cgroup", inside.0.display().to_string()), ("--container", ID[..12].to_owned())]
    {
        let tracing = or_skip!(waiting(&[option, &value, &probe]));
        let kernel = bpf::counting(&path, oracle::offsets(&path, &["twin"])[0], 0, false);
        assert!(inside.run(&path, "2 6").success());
        assert!(outside.run(&path, "2 9").success());
        let report = tracing.stop();
        assert_eq!(report.hits("leaf"), 2 * 6 * 3, "{option}: {}", report.errors);
        match kernel {
            Ok(kernel) => assert_eq!(kernel.runs(), 2 * (6 + 9) * 3, "{option}: {}", report.errors),
            Err(why) => println!("SKIPPED the kernel's count: {why}"),
        }
    }
    std::fs::remove_file(&path).expect("ours");
}

/// Those that descend from a process, and those of a user.
#[test]
fn only_processes_below_one_or_of_a_user_are_traced() {
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-below");
    let probe = format!("{}:leaf", path.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; exec \"$0\" 2 5"]).arg(&path);
    let mut shell = Running::spawn(shell);
    let tracing = or_skip!(waiting(&["--tree", &shell.pid().to_string(), "--uid", "root", &probe]));
    let other = Command::new(&path).args(["2", "7"]).stdout(Stdio::null()).status().expect("it runs");
    shell.send("go");
    assert_eq!(shell.line(), "failed=0");
    assert!(other.success() && shell.finish().success());
    let report = tracing.stop();
    assert_eq!(report.hits("leaf"), 2 * 5 * 3, "{}", report.errors);
    let nobody = or_skip!(waiting(&["--uid", "nobody", &probe]));
    assert!(Command::new(&path).args(["1", "3"]).stdout(Stdio::null()).status().expect("it runs").success());
    let report = nobody.stop();
    assert_eq!(report.total_hits(), 0, "{}", report.errors);
    std::fs::remove_file(&path).expect("ours");
}
