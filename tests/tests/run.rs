//! `run`: scripts on real programs, and the command around them: options, signals, exit statuses.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use trapline_tests::programs;
use trapline_tests::running::Running;
use trapline_tests::script::Script;
use trapline_tests::tracing::{binary, errors, once, out};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{or_skip, text};

const TIMES: u64 = 20;

fn run(args: &[&str]) -> Output {
    once(&[&["run"], args].concat())
}

#[test]
fn exit_statuses() {
    for (args, status) in [
        (&["-e", "begin { }"][..], 0),
        (&["-e", "begin { exit(69); }"], 69),
        (&["-e", "begin { nosuch(); }"], 1),
        (&["-e", "k:vfs_read { }"], 1),
        (&["-f", "jsonx", "-e", "begin { }"], 1),
        (&["no-such-file.bt"], 1),
        (&["-p", "111a1", "-e", "begin { }"], 1),
        (&["-e", "begin { print(getopt(\"a\", 1)); }", "--", "--b"], 1),
        (&["-e", "uprobe:/no/such/file:f { }"], 1),
        (&["--nonsense"], 2),
        (&["-c", "unclosed 'quote", "-e", "begin { }"], 2),
        (&["--dry-run", "-e", "begin { exit(5); }"], 0),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}\n{}", errors(&output));
        assert!(!errors(&output).contains("panicked"), "{}", errors(&output));
    }
}

#[test]
fn what_is_wrong_is_said_in_the_form_of_bpftrace() {
    for (args, message) in [
        (
            &["no-such-file.bt"][..],
            "ERROR: failed to open file 'no-such-file.bt': No such file or directory\n",
        ),
        (
            &["-f", "x", "-e", "begin{}"],
            "ERROR: Invalid output format \"x\"\nValid formats: 'text', 'json'\n",
        ),
        (&["-p", "a1", "-e", "begin{}"], "ERROR: Failed to parse pid: invalid integer: a1\n"),
        (&["-p", "5000000", "-e", "begin{}"], "ERROR: Pid out of range: 5000000\n"),
        (
            &["-e", "begin { $x = @y }"],
            "stdin:1:14-16: ERROR: Undefined map: @y\nbegin { $x = @y }\n             ~~\n",
        ),
    ] {
        let output = run(args);
        assert_eq!((errors(&output).as_str(), out(&output).as_str()), (message, ""), "{args:?}");
    }
}

#[test]
fn begin_comes_first_and_maps_come_last() {
    let output = run(&["-e", "end { print(\"end\"); } begin { print(\"begin\"); @a[1] = 2; }"]);
    assert_eq!(out(&output), "begin\nend\n\n\n@a[1]: 2\n");
    assert_eq!(errors(&output), "Attached 2 probes\n");
    let output = run(&["-q", "-f", "json", "-e", "begin { @a[1] = 2; }"]);
    assert_eq!(out(&output), "{\"type\": \"map\", \"data\": {\"@a\": {\"1\": 2}}}\n");
    assert_eq!(errors(&output), "");
}

#[test]
fn a_file_with_parameters_writes_to_a_file() {
    let folder = std::env::temp_dir().join(format!("trapline-run-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (script, report) = (folder.join("s.bt"), folder.join("report"));
    let text =
        "#!/usr/bin/trapline run\nbegin { printf(\"%d %s %d\\n\", $1, str($2), getopt(\"n\", 1)); wrong }\n";
    fs::write(&script, text).expect("written");
    let (script, report) = (script.to_str().expect("text"), report.to_str().expect("text"));
    let output = run(&[script]);
    assert!(
        errors(&output).starts_with("s.bt:2:60-65: ERROR: Unknown identifier: 'wrong'\n"),
        "{}",
        errors(&output)
    );
    fs::write(script, text.replace("wrong ", "")).expect("written");
    let output = run(&["-o", report, script, "7", "word", "--", "--n=9"]);
    assert_eq!((out(&output).as_str(), output.status.code()), ("", Some(0)), "{}", errors(&output));
    assert_eq!(fs::read_to_string(report).expect("a report"), "7 word 9\n\n\n");
    // A script that cannot attach leaves the file as it was.
    let output = run(&["-o", report, "-e", "uprobe:/no/such/file:f { }"]);
    assert_eq!((output.status.code(), fs::read_to_string(report).expect("a report").len()), (Some(1), 11));
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn intervals_run_until_exit() {
    let output = run(&[
        "-q",
        "-e",
        "i:ms:5 { @++; if (@ == 3) { printf(\"%s\\n\", probe); exit(); } } i:s:100 { @ = 0; }",
    ]);
    assert_eq!(out(&output), "interval:ms:5\n\n\n@: 3\n");
}

#[test]
fn signals_run_their_block_and_end_the_script() {
    let mut script =
        Script::start(&["-e", "self:signal:SIGUSR1 { print(\"signal\"); } end { print(\"end\"); }"]);
    for _ in 0..2 {
        script.signal("-USR1");
        assert_eq!(script.line(), "signal");
    }
    assert_eq!(script.stop(), ["end", "", ""]);
}

#[test]
fn a_command_ends_the_script_with_itself() {
    let output = run(&[
        "-q",
        "-c",
        "sh -c 'exit 3'",
        "-e",
        "begin { if (cpid > 0) { print(\"child\"); } } i:s:100 { }",
    ]);
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("child\n\n\n", Some(0)),
        "{}",
        errors(&output)
    );
    let output = run(&["-q", "-c", "sleep 100", "-e", "i:ms:1 { exit(2); }"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_reader_that_is_gone_ends_the_script() {
    let mut command = Command::new(binary());
    command.args(["run", "-q", "-e", "i:ms:1 { print(1); }"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("trapline starts");
    drop(child.stdout.take());
    let status = child.wait().expect("it ends");
    assert!(status.signal().is_none() && status.success(), "{status}");
}

#[test]
fn probes_are_listed() {
    let output = run(&["-l", "interval:*"]);
    assert_eq!(out(&output), "interval:hz:\ninterval:ms:\ninterval:s:\ninterval:us:\n");
    let output = run(&["-l", "-e", "i:ms:1 { } begin { } i:ms:2 { }"]);
    assert_eq!(out(&output), "interval:ms:\nbegin\n");
    let path = or_skip!(victims::plain("counter"));
    let file = path.display();
    let output = run(&["-l", &format!("ur:{file}:lea*")]);
    assert_eq!(out(&output), format!("uretprobe:{file}:leaf\n"));
    let output = run(&["-l", "-e", &format!("uprobe:{file}:l* {{ }} end {{ }}")]);
    let mut listed: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    listed.sort();
    assert_eq!(listed, ["end".to_owned(), format!("uprobe:{file}:leaf"), format!("uprobe:{file}:looper")]);
    let output = run(&["-d", "ast", "--dry-run", "-e", "begin { @a = 1 + $1; }"]);
    assert_eq!(out(&output), "Program\n begin\n  =\n   map: @a\n   +\n    1\n    $1\n");
}

#[test]
fn hits_are_counted_as_often_as_they_happened() {
    let mut victim = Running::start(&or_skip!(victims::plain("counter")), &[]);
    let before = text::signals(victim.pid());
    let pid = victim.pid().to_string();
    let script = "uprobe:counter:leaf { @leaf = count(); @[func] = count(); } uprobe:counter:fr* { @[func] = count(); }
        uretprobe:counter:leaf /retval % 3 == 1/ { @thirds = count(); } uprobe:counter:leaf /pid != $1/ { @other = count(); }";
    let path = victims::plain("counter").expect("built");
    let script = script.replace("counter:", &format!("{}:", path.display()));
    let running = Script::start(&["-p", &pid, "-e", &script, &pid]);
    let reported = victim.run(TIMES);
    let rest = running.stop().join("\n");
    let (leaf, framed) = (reported["leaf"], reported["framed"]);
    let rows = |a: (&str, u64), b: (&str, u64)| {
        let (first, second) = if (a.1, a.0) <= (b.1, b.0) { (a, b) } else { (b, a) };
        format!("@[{}]: {}\n@[{}]: {}", first.0, first.1, second.0, second.1)
    };
    let rows = rows(("framed", framed), ("leaf", leaf));
    // A leaf returns x * 3 + 1.
    assert_eq!(rest, format!("\n\n{rows}\n@leaf: {leaf}\n@thirds: {leaf}"));
    text::assert_clean(victim.pid(), &before);
}

/// With a process, a name without a folder means the file that this process maps.
#[test]
fn a_files_name_means_the_file_of_the_process() {
    let folder = std::env::temp_dir().join(format!("trapline-own-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("true");
    programs::copy(&or_skip!(victims::plain("counter")), &path).expect("room");
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let running = Script::start(&["-p", &pid, "-e", "uprobe:true:leaf { @ = count(); }"]);
    let leaf = victim.run(TIMES)["leaf"];
    assert_eq!(running.stop(), ["", "", &format!("@: {leaf}")]);
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn blocks_run_in_the_order_in_which_things_happened() {
    let path = or_skip!(victims::plain("counter"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let file = path.display();
    let script = format!(
        "uprobe:{file}:framed {{ @in[tid] = 1; @start[tid] = nsecs; print(\"in\"); }}
         uprobe:{file}:leaf /@in[tid]/ {{ printf(\"leaf of %s\\n\", comm); }}
         uretprobe:{file}:leaf /@in[tid]/ {{ print(\"leaf returns\"); }}
         uretprobe:{file}:framed {{ print(\"out\"); if (nsecs <= @start[tid]) {{ print(\"backwards\"); }}
                                   delete(@in, tid); delete(@start, tid); }}"
    );
    let running = Script::start(&["-p", &pid, "-e", &script]);
    let framed = victim.run(TIMES)["framed"];
    let rest = running.stop();
    let once = ["in", "leaf of counter", "leaf returns", "out"];
    let expected: Vec<&str> =
        once.iter().copied().cycle().take(4 * framed as usize).chain(["", ""]).collect();
    assert_eq!(rest, expected);
}

#[test]
fn texts_are_those_that_records_hold() {
    let path = or_skip!(victims::plain("strings"));
    let file = path.display();
    let script = format!(
        "uprobe:{file}:say {{ @[str(arg0)] = count(); }} uprobe:{file}:say {{ @n[arg1] = count(); }}
         uprobe:{file}:both /arg5 == 6/ {{ @both[str(arg1), str(arg3, 3), arg0] = count(); }}"
    );
    let mut victim = Running::start(&path, &[]);
    let running = Script::start(&["-q", "-f", "json", "-p", &victim.pid().to_string(), "-e", &script]);
    victim.run(TIMES);
    let maps: Vec<Value> =
        running.stop().iter().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let texts = json!({
        "": 6 * TIMES,
        "hello,\"world\"\n": TIMES,
        "u".repeat(63): TIMES,
        // A record holds 64 bytes; what is longer, or may be, says that it was cut off.
        format!("{}..", "x".repeat(64)): TIMES,
        format!("{}..", "l".repeat(64)): TIMES,
        "gr\u{fc}\u{df}": TIMES,
        "eee": TIMES,
        "e": TIMES,
    });
    assert_eq!(maps[0]["data"]["@"], texts);
    assert_eq!(maps[1]["data"]["@both"], json!({ "one,tw,1": TIMES }));
    assert_eq!(maps[2]["data"]["@n"]["4096"], TIMES);
}

#[test]
fn usdt_probes_run_blocks() {
    let path = or_skip!(victims::c("markers", Variant::NonPie));
    let mut victim = Running::start(&path, &[]);
    let script = format!("usdt:{}:markers:jumped {{ @ = count(); }}", path.display());
    let running = Script::start(&["-p", &victim.pid().to_string(), "-e", &script]);
    let jumped = victim.run(TIMES)["jumped"];
    assert_eq!(running.stop(), ["", "", &format!("@: {jumped}")]);
}

/// The maps that a script leaves at its end, by name.
fn maps(victim: &mut Running, script: &str) -> Value {
    let running = Script::start(&["-q", "-f", "json", "-p", &victim.pid().to_string(), "-e", script]);
    victim.run(TIMES);
    let mut all = json!({});
    for line in running.stop() {
        let line: Value = serde_json::from_str(&line).expect("a line of JSON");
        for (name, map) in line["data"].as_object().expect("maps") {
            all[name] = map.clone();
        }
    }
    all
}

#[test]
fn usdt_probes_have_their_arguments() {
    let path = or_skip!(victims::c("operands", Variant::Plain));
    let file = path.display();
    let script = format!(
        "usdt:{file}:operands:twelve {{ @[arg0, arg1, arg6, arg7, arg11] = count(); }}
         usdt:{file}:operands:texts {{ @texts[str(arg0), arg1, str(arg2)] = count(); }}"
    );
    let seen = maps(&mut Running::start(&path, &[]), &script);
    let (mut numbers, mut texts) = (json!({}), json!({}));
    for n in 0..TIMES as i64 {
        numbers[format!("{n},{},{},{},{}", -n, n - 70, -n, n * 7 - 20)] = json!(1);
        // bpftrace leaves out the spaces of keys.
        texts[format!("line{n}ofmany,{},{}", n & 7, if n & 1 == 1 { "odd" } else { "even" })] = json!(1);
    }
    assert_eq!((&seen["@"], &seen["@texts"]), (&numbers, &texts));
}

#[test]
fn texts_that_functions_return_are_read_at_the_return() {
    let path = or_skip!(victims::plain("kept"));
    let file = path.display();
    let script = format!("uretprobe:{file}:named {{ @[str(retval)] = count(); @null += retval == 0; }}");
    let seen = maps(&mut Running::start(&path, &[]), &script);
    let mut expected = json!({});
    // The victim calls it with 0 to TIMES - 1, and through another function with 1 to TIMES.
    for n in (0..TIMES).chain(1..=TIMES) {
        let name = if n % 5 == 4 { String::new() } else { format!("name{n}") };
        expected[&name] = json!(expected[&name].as_u64().unwrap_or(0) + 1);
    }
    assert_eq!((&seen["@"], &seen["@null"]), (&expected, &expected[""]));
    let both = format!(
        "uprobe:{file}:named {{ print(arg0) }} uretprobe:{file}:named {{ @[str(retval)] = count(); }}"
    );
    let output = run(&["-c", &file.to_string(), "-e", &both]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("str(retval) is recorded only where no block runs at the entry"));
}

#[test]
fn a_command_ends_if_nothing_is_probed() {
    let path = or_skip!(victims::plain("shapes"));
    let script = format!("uprobe:{}:just_ret {{ @ = count(); }}", path.display());
    let mut command = Command::new(binary());
    command.args(["run", "-c", &path.display().to_string(), "-e", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // The victim waits for lines as long as this is open, and holds the other pipes.
    let stdin = child.stdin.take();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(Duration::from_secs(60)).expect("the command ends").expect("output");
    drop(stdin);
    let told = errors(&output);
    assert!(told.contains("No probes to attach") && told.contains("too-short"), "{told}");
}

#[test]
fn what_is_not_probed_is_told_at_once_and_not_counted_as_attached() {
    let path = or_skip!(victims::plain("shapes"));
    let script = format!("uprobe:{0}:just_ret, uprobe:{0}:main {{ @ = count(); }}", path.display());
    let output = run(&["-c", &path.display().to_string(), "-e", &script]);
    let told = errors(&output);
    assert!(told.contains("Attached 1 probe\nWARNING: refused: 1 too-short; "), "{told}");
    assert_eq!(told.matches("WARNING: refused").count(), 1, "told once: {told}");
    let output = run(&["--no-warnings", "-c", &path.display().to_string(), "-e", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(!errors(&output).contains("WARNING"), "{}", errors(&output));
}

#[test]
fn a_launched_program_is_probed_from_its_start() {
    let path = or_skip!(victims::plain("counter"));
    let script = format!("uprobe:{}:main {{ @[comm] = count(); }}", path.display());
    let output = run(&["-q", "-c", &path.display().to_string(), "-e", &script]);
    // Its standard input is closed, so it ends at once, mostly before its name can be read.
    assert!(out(&output).ends_with("@[counter]: 1\n"), "{}{}", out(&output), errors(&output));
}

#[test]
fn what_a_record_does_not_hold_is_an_error_before_anything_is_probed() {
    for (script, what) in [
        (
            "uprobe:/bin/true:main { print(*(int32 *)(arg0 * arg1)); }",
            "what is behind a pointer of the program is not recorded",
        ),
        ("uprobe:/bin/true:main { print(cpu); }", "cpu is not recorded"),
        ("uprobe:/bin/true:main { print(nsecs(tai)); }", "nsecs(tai) is not recorded"),
        (
            "uprobe:/bin/true:main { print(reg(\"nothing\")); }",
            "'nothing' is not a register that is recorded",
        ),
        ("usdt:/bin/true:a:b { print(arg12); }", "Unknown identifier: 'arg12'"),
        (
            "uretprobe:/bin/true:main { print(arg0); }",
            "The arg0 builtin can only be used with uprobe or usdt probes",
        ),
        (
            "uprobe:/bin/true:main { print(retval); }",
            "The retval builtin can only be used with uretprobe probes",
        ),
    ] {
        let output = run(&["-e", script]);
        assert_eq!(output.status.code(), Some(1), "{script}");
        let (errors, places) = (errors(&output), errors(&output).matches("ERROR").count());
        assert!(errors.starts_with("stdin:1:") && errors.contains(what) && places == 1, "{script}\n{errors}");
    }
}
