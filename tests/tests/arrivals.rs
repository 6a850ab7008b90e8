//! ARR-1, ARR-2, ARR-3, AMG-1: `--all`, processes of later.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trapline_tests::arriving::{Group, waiting};
use trapline_tests::running::Running;
use trapline_tests::tracing::binary;
use trapline_tests::{bpf, or_skip, oracle, programs, setting, victims};

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
