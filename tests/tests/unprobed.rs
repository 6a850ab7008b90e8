//! LOSS-2, SAFE-5: what was requested but is not probed is reported, and a launched command keeps its exit
//! status.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use trapline_tests::tracing::{binary, errors, once};
use trapline_tests::{or_skip, victims};

/// Too little address space for our code, but enough for the victim.
const LIMIT: &str = "ulimit -v 2800";

fn family() -> Result<(PathBuf, String), String> {
    let path = victims::plain("family")?;
    let probe = format!("{}:*_work", path.display());
    Ok((path, probe))
}

/// A followed command runs a program, and the batch for that fails: alone, and beside one that is probed.
#[test]
fn a_followed_program_with_probes_that_fail_is_reported() {
    let (path, probe) = or_skip!(family());
    let alone = format!("{LIMIT}; {} once; exit 5", path.display());
    let beside = format!("{} once; {alone}", path.display());
    for (script, probed) in [(alone, false), (beside, true)] {
        for verb in ["lat", "trace", "graph", "stack"] {
            let mut args = vec![verb, "-f"];
            args.extend(["family:child_work"].iter().filter(|_| verb == "graph"));
            let output = once(&[&args[..], &[&probe, "--", "sh", "-c", &script]].concat());
            let output_text = errors(&output);
            assert_eq!(output.status.code(), Some(5), "{verb}: the command's own status; {output_text}");
            let line =
                output_text.lines().find(|line| line.starts_with("not probed: family (")).unwrap_or("");
            assert!(line.contains("Cannot allocate memory"), "{verb}: {output_text}");
            assert!(
                !output_text.contains("no program that was run has"),
                "{verb}: it was run, and has it; {output_text}"
            );
            assert_eq!(output_text.contains("nothing could be probed: "), !probed, "{verb}: {output_text}");
        }
    }
}

#[test]
fn json_lists_each_process_that_is_not_probed() {
    let (path, probe) = or_skip!(family());
    let script = format!("{LIMIT}; {0} once; {0} once; exit 6", path.display());
    let output = once(&["lat", "-f", "--json", &probe, "--", "sh", "-c", &script]);
    let output_text = errors(&output);
    assert_eq!(output.status.code(), Some(6), "{output_text}");
    let objects: Vec<serde_json::Value> =
        output_text.lines().map(|line| serde_json::from_str(line).expect("nothing but JSON")).collect();
    let unprobed: Vec<_> = objects.iter().filter(|object| object["type"] == "unprobed").collect();
    assert_eq!(unprobed.len(), 2, "{output_text}");
    for one in unprobed {
        assert_eq!(one["name"], "family", "{output_text}");
        let sites = objects.iter().find(|object| object["type"] == "lat" && object["pid"] == one["pid"]);
        let refused = sites.expect("it is reported")["refused"].as_array().expect("a list").clone();
        assert_eq!(refused.len(), 2, "{output_text}");
        assert!(refused.iter().all(|site| site["reason"] == one["reason"]), "{output_text}");
    }
}

/// The command itself is that program, by an exec of its own.
#[test]
fn a_launched_program_runs_unprobed_where_its_probes_fail() {
    let (path, probe) = or_skip!(family());
    let script = format!("{LIMIT}; exec {} once", path.display());
    let output = once(&["lat", "-f", &probe, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(errors(&output).contains("nothing could be probed"), "{}", errors(&output));
}

#[test]
fn a_launched_command_keeps_its_status_where_nothing_is_found() {
    let script = "echo it ran; exit 7";
    let output = once(&["count", "-f", "libnothere:f*", "--", "sh", "-c", script]);
    let text = errors(&output);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"it ran\n"[..]), "{text}");
    assert!(text.contains("trapline: nothing to probe: no program that was run has libnothere:f*"), "{text}");
    // The status of a command that a signal ended is kept, too.
    let output = once(&["count", "-f", "libnothere:f*", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.code(), Some(128 + 15), "{}", errors(&output));
    // Without -f, an unknown library is taken for a mistake, and the command is not run.
    let output = once(&["count", "libnothere:f*", "--", "sh", "-c", script]);
    let text = errors(&output);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b""[..]), "{text}");
    assert!(text.contains("the command was not run; --wait waits for"), "{text}");
}

/// The tracer's limit of file sizes also applies to memory that it shares. The limit is raised, or a message
/// says so; neither process dies of it.
#[test]
fn a_limit_of_file_sizes_ends_neither_process() {
    let (path, probe) = or_skip!(family());
    let is_root = std::fs::metadata("/proc/self").expect("ourselves").uid() == 0;
    // Root may go beyond the hard limit, unless that capability is taken away.
    let hard =
        if is_root { "ulimit -f 1; exec setpriv --bounding-set=-sys_resource" } else { "ulimit -f 1; exec" };
    for (limited, probed) in [("ulimit -Sf 1; exec", true), (hard, false)] {
        for verb in ["count", "lat", "trace", "stack"] {
            let inner = format!("ulimit -f; {} once; exit 7", path.display());
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{limited} \"$@\""), "sh"]).arg(binary());
            let output = command.args([verb, "-f", &probe, "--", "sh", "-c", &inner]).output().expect("runs");
            let output_text = errors(&output);
            assert_eq!(output.status.code(), Some(7), "{verb}: the command's own status; {output_text}");
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(printed.lines().any(|line| line == "1"), "{verb}: its limit stays; {printed}");
            assert_eq!(output_text.contains("not probed: family ("), !probed, "{verb}: {output_text}");
            assert_eq!(
                output_text.contains("limit of file sizes (ulimit -f) is 512 bytes"),
                !probed,
                "{verb}: {output_text}"
            );
        }
    }
}

/// The loader ends the command, as it does where a library is missing.
#[test]
fn a_command_that_ends_before_its_first_instruction_keeps_its_status() {
    let output = once(&["count", "-f", "main", "--", "/bin/sh", "/dev/null"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let lib = std::env::temp_dir().join(format!("trapline-no-library-{}", std::process::id()));
    let (source, program) = (lib.with_extension("c"), lib.with_extension("out"));
    std::fs::write(&source, "int gone(void) { return 1; } int main(void) { return gone(); }").expect("ours");
    let library = lib.with_extension("so");
    let gcc = |args: &[&std::ffi::OsStr]| {
        std::process::Command::new("gcc").args(args).status().is_ok_and(|status| status.success())
    };
    let built =
        gcc(&["-shared".as_ref(), "-fPIC".as_ref(), source.as_ref(), "-o".as_ref(), library.as_ref()]) && {
            std::fs::write(&source, "int gone(void); int main(void) { return gone(); }").expect("ours");
            gcc(&[source.as_ref(), library.as_ref(), "-o".as_ref(), program.as_ref()])
        };
    std::fs::remove_file(&library).ok();
    let output = built.then(|| once(&["count", "main", "--", program.to_str().expect("a path")]));
    [&source, &program].iter().for_each(|file| drop(std::fs::remove_file(file)));
    let Some(output) = output else { return println!("SKIP: no gcc") };
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(127), "as the loader says it; {text}");
    assert!(text.contains("ended before its first instruction"), "{text}");
}

/// strace traces us, and so the program too. We cannot hold the program then.
#[test]
fn a_program_that_another_tracer_holds_runs_and_is_reported() {
    let (path, probe) = or_skip!(family());
    or_skip!(strace());
    for verb in ["count", "lat", "trace"] {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null"]).arg(binary()).args([verb, &probe, "--", "sh", "-c"]);
        let output = command.arg(format!("{} once; echo it ran; exit 4", path.display())).output();
        let output = output.expect("strace starts");
        let output_text = errors(&output);
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(4), &b"it ran\n"[..]),
            "{verb}: {output_text}"
        );
        assert!(output_text.contains("traces trapline and all that it starts"), "{verb}: {output_text}");
    }
}

/// A program that traces others could not do so if we followed it and its children.
#[test]
fn a_program_that_traces_others_is_not_followed() {
    let (path, probe) = or_skip!(family());
    or_skip!(strace());
    let script = format!("strace -o /dev/null {0} once && {0} once; exit 3", path.display());
    let output = once(&["count", "-f", &probe, "--", "sh", "-c", &script]);
    let output_text = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{output_text}");
    assert!(output_text.contains("is not followed, nor are its children: it calls ptrace"), "{output_text}");
    assert_eq!(
        output_text.matches("10 hits in").count(),
        1,
        "the one that strace runs is left alone: {output_text}"
    );
}

fn strace() -> Result<(), String> {
    let version = Command::new("strace").arg("--version").output();
    version.map(drop).map_err(|error| format!("no strace: {error}"))
}
