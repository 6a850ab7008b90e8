//! Without `-p`: every process that maps a file is traced, also while such processes begin and end all the
//! time. The file is this test's own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use trapline_tests::skip;
use trapline_tests::tracing::once;

const LIBRARY: &str = "int mine_work(int x) { return x + 1; }";
const LONG: &str =
    "#include <unistd.h>\nint mine_work(int);\nint main(void) { for (;;) { mine_work(1); usleep(1000); } }";
const SHORT: &str = "#include <unistd.h>\nint mine_work(int);
int main(void) { for (int i = 0; i < 100; i++) mine_work(i); usleep(40000); return 0; }";

/// A folder of our own for compiled files.
struct Folder(PathBuf);

impl Folder {
    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
        let (code, out) = (self.0.join(format!("{name}.c")), self.0.join(name));
        std::fs::write(&code, source).expect("a temporary file");
        let built = Command::new("gcc").arg("-O2").arg("-o").arg(&out).arg(&code).args(flags).output();
        let built = built.map_err(|error| format!("gcc does not run: {error}"))?;
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Ok(out)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn start(program: &Path) -> Child {
    Command::new(program).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts")
}

/// Starts and ends users of the library until `stop` is set.
fn come_and_go(program: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut some: Vec<Child> = (0..8).map(|_| start(program)).collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
        some.iter_mut().for_each(|one| drop(one.wait()));
    }
}

#[test]
fn a_process_that_ends_meanwhile_is_left_out() {
    let folder = Folder(std::env::temp_dir().join(format!("trapline-systemwide-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a temporary folder");
    let library = match folder.compile("libmine.so", LIBRARY, &["-shared", "-fPIC"]) {
        Ok(library) => library,
        Err(why) => skip!("{why}"),
    };
    let place = folder.0.display().to_string();
    let flags = ["-L", &place, "-lmine", &format!("-Wl,-rpath,{place}")];
    let long = folder.compile("long", LONG, &flags).expect("gcc is there");
    let short = folder.compile("short", SHORT, &flags).expect("gcc is there");
    let mut user = start(&long);
    let maps = format!("/proc/{}/maps", user.id());
    while !std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libmine.so")) {
        assert!(user.try_wait().is_ok_and(|ended| ended.is_none()), "it ended");
        std::thread::yield_now();
    }
    let stop = AtomicBool::new(false);
    let runs: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| come_and_go(&short, &stop));
        let probe = format!("{}:mine_work", library.display());
        let runs = (0..4).map(|_| once(&["count", "--json", "-d", "0.5", &probe])).collect();
        stop.store(true, Ordering::Relaxed);
        runs
    });
    let pid = user.id();
    user.kill().and_then(|()| user.wait()).expect("ours");
    for run in runs {
        let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{errors}");
        assert!(
            out.contains(&format!("\"pid\":{pid},")),
            "the one that stayed was not counted: {out}{errors}"
        );
    }
}
