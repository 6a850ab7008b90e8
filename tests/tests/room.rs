//! Room near a program's code: mappings that earlier sessions left are removed when a later session needs the
//! room.

use std::io::Write as _;
use std::process::{Command, Stdio};

use trapline_tests::running::Running;
use trapline_tests::{or_skip, tracing, victims};

/// Far more sessions than there is room for.
const TIMES: usize = 30;

#[test]
fn a_session_after_many_finds_room() {
    let path = or_skip!(victims::plain("crowded"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let reported = victim.run(100);
    for nth in 0..TIMES {
        // The first two verbs look at the room before they place anything; the third only looks.
        let verb = ["lat", "count", "list"][nth % 3];
        let options: &[&str] = match verb {
            "lat" => &["-q", "-d", "0.01", "-F"],
            "count" => &["-q", "-d", "0.01"],
            _ => &[],
        };
        let words = [&[verb, "-p", &pid], options, &["crowded"]].concat();
        let output = tracing::once(&words);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb}, the {nth}th: {}: {output_text}", output.status);
        if verb == "list" {
            assert!(output_text.contains("1 site: 1 jump"), "the {nth}th: {output_text}");
        }
    }
    assert_eq!(victim.run(100), reported);
}

/// The room for stubs is an upper bound, several times what they need. Where there is less, what fits is probed.
#[test]
fn a_gap_that_is_shorter_than_the_bound_is_enough() {
    let path = or_skip!(victims::plain("crowded"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let tracing = tracing::Tracing::start("count", &["-p", &pid, "crowded:neighbour_*"]).expect("attaches");
    victim.run(100);
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    assert_eq!(report.refused(), []);
    assert!(report.errors.contains("256 matched, 256 probed, 0 refused"), "{}", report.errors);
    assert_eq!(report.total_hits(), 256 * 100, "{}", report.errors);
}

/// Without randomized addresses, as gdb starts programs, libraries lie 128 MiB below the stack. What the stack may still
/// grow to stays free: nothing of ours is in its way.
#[test]
fn the_stack_can_grow_to_its_limit() {
    let path = or_skip!(victims::c_by("deep", "gcc", &["-O1", "-Wl,--no-as-needed,-lm"]));
    for (limit, mebibytes) in [(8_u64, 7_u64), (64, 60)] {
        let mut command = Command::new("prlimit");
        command.arg(format!("--stack={}", limit << 20)).args(["setarch", "-R"]).arg(tracing::binary());
        command
            .args(["count", "deep:descend", "libm:*", "libc:*", "ld-linux-x86-64.so.2:*", "--"])
            .arg(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("prlimit");
        let mut input = child.stdin.take().expect("piped");
        writeln!(input, "run {mebibytes}\nquit").expect("read");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let calls = mebibytes * 256 + 1;
        assert!(output.status.success(), "{}: {errors}", output.status);
        assert!(said.contains(&format!("descend={calls}")), "{said} {errors}");
        assert!(
            said.lines().any(|line| line.contains("descend") && line.contains(&calls.to_string())),
            "{said}"
        );
    }
}

/// Return addresses are not replaced after all, since no thread of the program can inform its unwinder. What
/// was mapped for them is unmapped again, and the control block, which stays, must not name it any more: a
/// later session would unmap whatever lies there by then.
#[test]
fn a_control_block_names_no_memory_that_was_unmapped() {
    use std::os::unix::fs::FileExt as _;
    use trapline_record::control::at;

    let path = or_skip!(victims::cpp("handling"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid();
    let tracing = tracing::Tracing::start("lat", &["-p", &pid.to_string(), "handling:*"]).expect("attaches");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("readable");
    let start =
        |line: &str| u64::from_str_radix(line.split('-').next().unwrap_or(""), 16).expect("an address");
    let blocks: Vec<u64> = maps
        .lines()
        .filter(|line| line.contains("/memfd:trapline") && line.contains(" rw-s 00000000 "))
        .map(start)
        .collect();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).expect("a control block");
        u64::from_le_bytes(bytes)
    };
    println!("{}", tracing.output_text());
    assert!(blocks.len() >= 2, "a segment with return trampolines, and one without: {maps}");
    for block in blocks {
        let named = [
            (word(block + at::TRAMPOLINES_COUNT), word(block + at::TRAMPOLINES_TABLE)),
            (word(block + at::STAMPS_LEN), word(block + at::STAMPS_ADDR)),
        ];
        for (size, address) in named {
            assert!(
                size == 0 || maps.lines().any(|line| start(line) == address),
                "{block:x}: {address:x} is not mapped\n{maps}"
            );
        }
    }
    let report = tracing.stop();
    assert!(report.status.success(), "{}", report.errors);
    assert!(victim.run(10)["worker"] == 10);
}

/// Kilobytes of address space, and of memory.
fn size(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim().trim_end_matches(" kB").parse().expect("kilobytes")
    };
    (field("VmSize:"), field("VmRSS:"))
}

/// However many sessions there are, nothing is left behind, while threads run the probed functions.
#[test]
fn many_sessions_leave_nothing_behind() {
    let cycles = trapline_tests::setting("TRAPLINE_CYCLES", 40);
    for variant in [victims::Variant::Plain, victims::Variant::NonPie] {
        let path = or_skip!(victims::c("threads", variant));
        let mut victim = Running::start(&path, &["1", "endless"]);
        let pid = victim.pid();
        let mut session = |nth: u64| {
            let verb = ["count", "lat", "trace"][nth as usize % 3];
            let words = [verb, "-q", "-d", "0.02", "-p", &pid.to_string(), "threads:*", "libc:*"];
            let output = tracing::once(&words);
            let output_text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{verb}, the {nth}th: {}: {output_text}", output.status);
            let begun = victim.run(0)["rounds"];
            victim.run_until(0, |now| now["rounds"] > begun);
        };
        // The last session's memory may stay if a thread was in it at the end; the next session frees it. So
        // the same three sessions are compared.
        (0..3).for_each(&mut session);
        let before = size(pid);
        (0..cycles.next_multiple_of(3)).for_each(&mut session);
        let after = size(pid);
        assert!(after.0 < before.0 + 2048, "{variant:?}: kB of address space: {before:?}, {after:?}");
        assert!(after.1 < before.1 + 2048, "{variant:?}: kB of memory: {before:?}, {after:?}");
        assert_eq!(victim.run(0)["wrong"], 0);
    }
}
