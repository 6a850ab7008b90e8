//! ARR-1, ARR-2, ARR-3, AMG-1: `--all`, processes of later, also in containers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary};
use trapline_tests::{bpf, or_skip, oracle, programs, setting, victims};

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

/// The kernel lets go whoever waits, and parked programs go on by themselves. Each program counts its own calls, and
/// fails if the code that it runs is neither the file's nor whole.
#[test]
fn programs_go_on_when_the_tracer_dies_while_they_start() {
    const STARTS: usize = 50;
    let path = copy_of(&or_skip!(victims::plain("tree")), "tree-killed");
    let (program, own) = (format!("{}:*", path.display()), std::process::id().to_string());
    for round in 0..setting("TRAPLINE_KILLS", 6) {
        // Programs are held at their exec, or while their loader opens the library.
        let probe = if round % 2 == 0 { &program } else { "libc:getenv" };
        let mut tracing = or_skip!(waiting(&["--tree", &own, probe]));
        let start =
            || Command::new(&path).args(["1", "1"]).stdout(Stdio::null()).status().expect("it starts");
        let begun = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..STARTS).map(|_| scope.spawn(start)).collect();
            std::thread::sleep(Duration::from_millis(25 * (round % 16)));
            tracing.signal(libc::SIGKILL);
            let begun = Instant::now();
            for started in starts {
                let status = started.join().expect("it starts");
                assert!(status.success(), "round {round}: {status}");
            }
            begun
        });
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

/// A container: a root of its own on overlayfs with its own C library, mounts, processes, and a control group that has
/// its id in its name. Its first process waits for a line, runs `/bin/app 2 6`, and so on.
struct Container {
    first: Running,
    folder: PathBuf,
    lower: PathBuf,
    /// Dropped last, when no process is in it.
    _group: Group,
}

impl Container {
    /// `app`: the program that is `/bin/app` in there.
    fn new(id: &str, app: &Path) -> Result<Self, String> {
        let group = Group::new(&format!("trapline-{id}"))?;
        let folder = std::env::temp_dir().join(format!("trapline-container-{id}-{}", std::process::id()));
        let lower = folder.join("lower");
        for inside in ["bin", "lib", "lib64", "proc", "old"] {
            std::fs::create_dir_all(lower.join(inside)).expect("a folder of ours");
        }
        for other in ["upper", "work", "root"] {
            std::fs::create_dir_all(folder.join(other)).expect("a folder of ours");
        }
        programs::copy(app, &lower.join("bin/app")).expect("a copy");
        programs::copy(Path::new("/bin/sh"), &lower.join("bin/sh")).expect("a copy");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our own");
        let paths: std::collections::BTreeSet<&str> =
            maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
        for path in paths.into_iter().filter(|path| path.contains("/libc.so") || path.contains("/ld-")) {
            let path = Path::new(path);
            let name = path.file_name().expect("a file");
            let into = if name.to_string_lossy().starts_with("ld-") { "lib64" } else { "lib" };
            programs::copy(path, &lower.join(into).join(name)).expect("a copy");
        }
        const MOUNT: &str = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work root";
        let tried =
            Command::new("unshare").args(["--mount", "sh", "-c", MOUNT]).current_dir(&folder).output();
        let tried = tried.map_err(|error| format!("unshare: {error}"))?;
        if !tried.status.success() {
            return Err(format!(
                "no overlay can be mounted here: {}",
                String::from_utf8_lossy(&tried.stderr)
            ));
        }
        let script = format!(
            "echo 0 > {}/cgroup.procs && cd {} && exec unshare --mount --pid --fork sh -c '{MOUNT} && cd root && \
             mount -t proc proc proc && pivot_root . old && \
             exec /bin/sh -c \"echo ready; while read line; do /bin/app 2 6; done\"'",
            group.0.display(),
            folder.display(),
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        let first = Running::spawn(shell);
        assert_eq!(first.line(), "ready");
        Ok(Self { first, folder, lower, _group: group })
    }
    /// Runs its program to its end.
    fn run(&mut self) {
        self.first.send("go");
        assert_eq!(self.first.line(), "failed=0");
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.first.finish();
        std::fs::remove_dir_all(&self.folder).expect("ours");
    }
}

/// Two containers and their neighbour run programs of one name later, of three files. Judge: the kernel's uprobe at a
/// function that is called as often, in the file of the container that is meant.
#[test]
fn programs_of_containers_are_told_apart_and_their_neighbour_is_left_alone() {
    let path = or_skip!(victims::plain("tree"));
    let other = or_skip!(victims::c_by("tree", "gcc", &["-O0"]));
    let places = |path: &Path| oracle::offsets(path, &["leaf", "twin"]);
    assert_ne!(places(&path), places(&other), "the files differ where it matters");
    let mut one = or_skip!(Container::new(&"a1".repeat(32), &path));
    let mut two = or_skip!(Container::new(&"b2".repeat(32), &other));
    let hits = 2 * 6 * 3;
    for (probe, container) in [("/bin/app:leaf", "a1"), ("app:leaf", "a1"), ("/bin/app:leaf", "b2")] {
        let tracing = or_skip!(waiting(&["--container", &container.repeat(32), probe]));
        let (file, found) = if container == "a1" { (&one.lower, &path) } else { (&two.lower, &other) };
        let kernel = bpf::counting(&file.join("bin/app"), places(found)[1], 0, false);
        one.run();
        two.run();
        assert!(
            Command::new(&path).args(["2", "6"]).stdout(Stdio::null()).status().expect("it runs").success()
        );
        let report = tracing.stop();
        assert_eq!(report.hits("leaf"), hits, "{probe} {container}: {}", report.errors);
        match kernel {
            Ok(kernel) => assert_eq!(kernel.runs(), hits, "{probe} {container}"),
            Err(why) => println!("SKIPPED the kernel's count: {why}"),
        }
    }
    let tracing = or_skip!(waiting(&["/bin/app:leaf"]));
    one.run();
    two.run();
    let report = tracing.stop();
    let offsets: std::collections::BTreeSet<u64> =
        report.probes().filter_map(|probe| probe["offset"].as_u64()).collect();
    assert_eq!(report.hits("leaf"), 2 * hits, "{}", report.errors);
    assert_eq!(offsets, [places(&path)[0], places(&other)[0]].into(), "{}", report.errors);
}
