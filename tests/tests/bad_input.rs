//! SAFE-5: what cannot be done is refused in one clear line, with the right exit status, and nothing is left
//! behind.

use std::process::{Command, Output, Stdio};

use trapline_tests::running::Running;
use trapline_tests::tracing::{Tracing, binary, errors, once};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, programs, text};

/// Checks the status, and that the message contains one word of each group.
fn refused(output: &Output, status: i32, words: &[&[&str]]) {
    let text = errors(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    let lower = text.to_lowercase();
    for group in words {
        assert!(group.iter().any(|word| lower.contains(word)), "none of {group:?} in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn usage() {
    for args in
        [&["count"][..], &["count", "-p", "x", "f"], &["nonsense"], &["count", "-p", "1", "-c", "ls", "f"]]
    {
        assert_eq!(once(args).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(once(&["--help"]).status.code(), Some(0));
    assert_eq!(once(&["--version"]).status.code(), Some(0));
}

#[test]
fn no_such_process() {
    refused(
        &once(&["count", "-p", "4194303", "malloc"]),
        1,
        &[&["4194303"], &["no such process", "no process"]],
    );
    refused(&once(&["count", "-n", "no-such-name-here", "malloc"]), 1, &[&["no-such-name-here"]]);
}

#[test]
fn no_such_function_names_the_nearest() {
    let path = or_skip!(victims::plain("counter"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    refused(&once(&["count", "-p", &pid, "factoral"]), 3, &[&["factoral"], &["factorial"]]);
    refused(&once(&["count", "-p", &pid, "uprobe:/no/such/file:f"]), 3, &[&["/no/such/file"]]);
    refused(&once(&["count", "-p", &pid, "usdt:counter:none:such"]), 3, &[&["such"]]);
}

#[test]
fn no_permission_says_what_is_in_the_way() {
    let path = or_skip!(victims::plain("counter"));
    let victim = Running::start(&path, &[]);
    let copy = std::env::temp_dir().join(format!("trapline-nobody-{}", std::process::id()));
    programs::copy(&binary(), &copy).expect("a copy that anybody may run");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]).arg(&copy);
    let output =
        command.args(["count", "-p", &victim.pid().to_string(), "leaf"]).stdin(Stdio::null()).output();
    std::fs::remove_file(&copy).ok();
    let Ok(output) = output else { trapline_tests::skip!("no setpriv") };
    if errors(&output).contains("setpriv: ") {
        trapline_tests::skip!("cannot become another user: {}", errors(&output));
    }
    refused(&output, 1, &[&["cannot trace"], &["uid", "user", "yama", "capab", "dumpable"]]);
}

#[test]
fn already_traced_by_another() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let mut other = Running::spawn({
        let mut command = Command::new("/usr/bin/python3.11");
        // PTRACE_SEIZE is 0x4206.
        let script = "import ctypes,sys\nlibc=ctypes.CDLL(None)\nprint('seized',libc.ptrace(0x4206,int(sys.argv[1]),0,0),flush=True)\nsys.stdin.read()";
        command.args(["-c", script, &victim.pid().to_string()]);
        command
    });
    assert_eq!(other.line(), "seized 0");
    let output = once(&["count", "-p", &victim.pid().to_string(), "leaf"]);
    refused(&output, 1, &[&["traced"], &[&other.pid().to_string()[..]]]);
    other.finish();
    assert!(victim.run(10)["leaf"] > 0);
}

#[test]
fn a_32_bit_target() {
    let dir = std::env::temp_dir();
    let (source, program) = (dir.join("trapline-32.c"), dir.join("trapline-32"));
    // This needs no 32-bit C library: the program calls pause for ever.
    let text = "void _start(void){for(;;){int r;__asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(29));}}";
    std::fs::write(&source, text).expect("a temporary file");
    let built = Command::new("gcc")
        .args(["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie", "-o"])
        .arg(&program)
        .arg(&source)
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        trapline_tests::skip!("gcc -m32 does not work here");
    }
    let target = Running::spawn(Command::new(&program));
    std::thread::sleep(std::time::Duration::from_millis(100));
    refused(&once(&["count", "-p", &target.pid().to_string(), "_start"]), 1, &[&["32-bit", "32 bit"]]);
}

#[test]
fn a_file_that_was_replaced_on_disk() {
    let path = or_skip!(victims::plain("counter"));
    let copy = path.with_file_name(format!("counter-replaced-{}", std::process::id()));
    programs::copy(&path, &copy).expect("a copy");
    let mut victim = Running::start(&copy, &[]);
    std::fs::remove_file(&copy).expect("removed");
    let other = or_skip!(victims::c("counter", Variant::O0));
    programs::copy(&other, &copy).expect("replaced");
    let pid = victim.pid().to_string();
    let output = once(&["count", "-q", "-d", "0.1", "-p", &pid, "leaf"]);
    println!("{}: {}", output.status, errors(&output));
    // Either the mapped file is still reachable and right, or it is refused. It is never patched by the new
    // file's offsets.
    assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{}", errors(&output));
    assert!(victim.run(100)["leaf"] > 0);
    let now = text::differences(victim.pid());
    std::fs::remove_file(&copy).ok();
    assert!(now.iter().all(|line| line.contains("counter-replaced")), "{now:?}");
}

#[test]
fn a_target_that_shrinks_the_shared_memory() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid();
    let tracing = Tracing::start("count", &["-p", &pid.to_string(), "leaf"]).expect("attaches");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let shared = maps.lines().find(|line| line.contains("/memfd:trapline")).expect("the shared memory");
    let range = shared.split_whitespace().next().expect("a range");
    // Shrinks the mapped file, as the target could do itself.
    let open = std::fs::File::options().write(true).open(format!("/proc/{pid}/map_files/{range}"));
    let file = or_skip!(open.map_err(|error| format!("map_files takes CAP_SYS_ADMIN: {error}")));
    let shrunk = file.set_len(0);
    let reported = victim.run(100);
    let report = tracing.stop();
    assert_eq!(report.status.code(), Some(0), "the tracer survives: {}", report.errors);
    assert_eq!(report.hits("leaf"), reported["leaf"]);
    assert_eq!(shrunk.expect_err("the size is sealed").kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(text::differences(pid), [""; 0]);
}

#[test]
fn output_to_a_full_disk_and_to_a_closed_pipe() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let full = once(&["count", "-o", "/dev/full", "-d", "0.2", "-p", &pid, "leaf"]);
    refused(&full, 1, &[&["no space", "full"]]);
    text::assert_clean(victim.pid(), &before);
    let folder = once(&["count", "-o", "/no/such/folder/x", "-d", "0.2", "-p", &pid, "leaf"]);
    refused(&folder, 1, &[&["/no/such/folder/x"]]);
    let closed = Command::new("sh")
        .args([
            "-c",
            &format!("{} count -i 0.05 -d 1 -p {pid} leaf | head -1 > /dev/null", binary().display()),
        ])
        .status();
    assert!(closed.expect("sh runs").success());
    text::assert_clean(victim.pid(), &before);
    assert!(victim.run(10)["leaf"] > 0);
}
