//! AMG-1: programs in containers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trapline_tests::arriving::{Group, furnish, waiting};
use trapline_tests::running::Running;
use trapline_tests::{bpf, or_skip, oracle, victims};

/// Each test looks at all processes, and takes those that another has just begun.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
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
        for other in ["upper", "work", "root"] {
            std::fs::create_dir_all(folder.join(other)).expect("a folder of ours");
        }
        furnish(&lower, app);
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
    let _one = one_at_a_time();
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

/// A container of podman's. Its name, its id and its processes are what podman says.
struct Podman {
    name: String,
    root: PathBuf,
}

impl Podman {
    fn start(app: &Path) -> Result<Self, String> {
        let name = format!("trapline-{}", std::process::id());
        let root = std::env::temp_dir().join(format!("{name}-root"));
        let new = Self { name, root };
        furnish(&new.root, app);
        // What a container may need and this machine lacks: networks, limits above our own.
        let options = ["--detach", "--interactive", "--network", "none", "--ulimit", "nofile=1024:1024"];
        let more = ["--ulimit", "nproc=1000:1000", "--name", &new.name, "--rootfs"];
        let mut run = new.command(&["run"]);
        run.args(options).args(more).arg(&new.root).args(["/bin/sh", "-c", "read line"]);
        let output = run.output().map_err(|error| format!("podman: {error}"))?;
        if !output.status.success() {
            return Err(format!("podman runs no container: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(new)
    }
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"]).args(words);
        command
    }
    fn says(&self, words: &[&str]) -> String {
        let output = self.command(words).output().expect("podman");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        drop(self.command(&["rm", "--force", "--time", "0", &self.name]).output());
        drop(std::fs::remove_dir_all(&self.root));
    }
}

/// Judge: podman.
#[test]
fn a_container_is_found_by_the_name_that_podman_gives_it() {
    let _one = one_at_a_time();
    let path = or_skip!(victims::plain("tree"));
    let podman = or_skip!(Podman::start(&path));
    let tracing = or_skip!(waiting(&["--container", &podman.name, "/bin/app:leaf"]));
    assert_eq!(podman.says(&["exec", &podman.name, "/bin/app", "2", "6"]), "failed=0");
    let report = tracing.stop();
    assert_eq!(report.hits("leaf"), 2 * 6 * 3, "{}", report.errors);
    let id = podman.says(&["inspect", "--format", "{{.Id}}", &podman.name]);
    let labels: Vec<_> = report.totals().iter().map(|total| total["labels"].clone()).collect();
    assert!(!labels.is_empty(), "{}", report.errors);
    for labels in labels {
        assert_eq!(labels, serde_json::json!({"container.id": id, "container.name": podman.name}));
    }
}
