//! What the target does not run; and programs that load libraries, fork, or lose their tracer. Judges are the program's own count
//! of its calls, and what the tracer says.

use std::process::{Command, Stdio};
use std::time::Duration;

use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::tracing::binary;
use trapline_tests::victims::{self, Variant};

use super::{IN_TARGET, NOTIFY, TIMES, at, attached, beside, in_target, ours};

#[test]
fn what_the_target_cannot_run_is_said_and_interpreted() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    for (script, why) in [
        ("uprobe:FILE:step { @a[arg1, comm] = arg0; }", "comm in the key of a map of plain values"),
        ("uretprobe:FILE:step { @a[str(retval)] = count(); }", "such a text"),
        (
            "uprobe:FILE:step { @a[str(arg0)] = arg1; }",
            "a text of the program in the key of a map of plain values",
        ),
        ("uprobe:FILE:step { @p[1] = (arg0, arg1); $p = @p[1]; @c[$p.0, 1] = count(); }", "a value of type"),
        (
            "uprobe:FILE:step { @c[arg1, 1] = count(); if (arg1 == 9) { print(1); } }",
            "such a function or value",
        ),
        (
            "uprobe:FILE:step { @c[arg1 / arg2, 1] = count(); }",
            "a division or shift by what is no positive constant",
        ),
        (
            "uprobe:FILE:step { @s[tid] = arg0; } interval:s:100 { clear(@s); }",
            "is changed by a block of the tracer before the end",
        ),
        (
            "uprobe:FILE:step { @c[tid] = arg0; } uprobe:FILE:st* { @d[arg1, 2] = count(); }",
            "a function is meant by two attach points",
        ),
    ] {
        let ran = ours(&mut victim, &at(script, &path), &[], 1);
        let said = ran.messages.lines().find(|line| line.starts_with("Interpreted: "));
        assert!(said.is_some_and(|line| line.contains(why)), "{script}\n{}", ran.messages);
    }
}

#[test]
fn a_tracers_block_clears_what_was_added_up_so_far() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let script = "uprobe:FILE:step { @c[arg1 & 7, 1] = count(); @began[tid] = nsecs; }
        interval:ms:20 { clear(@c); } end { @left = (int64)has_key(@c, (2, 1)); clear(@began); }";
    let mut command = Command::new(binary());
    command.args(["run", "-v", "-f", "json", "-p", &victim.pid().to_string(), "-e", &at(script, &path)]);
    let ran = beside(&mut victim, command, 1);
    assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
    let all = 200 + 2 * 2;
    let left = ran.maps["@c"]["2,1"].as_u64().unwrap_or(0);
    assert!(left <= all, "{left} of {all}");
    assert_eq!(ran.maps.get("@began"), None);
}

/// A library that is loaded later has maps of its own: what its hits add is added up, what they would assign is refused.
#[test]
fn a_library_that_is_loaded_later_adds_and_does_not_assign() {
    let plugin = or_skip!(victims::shared("plugin"));
    let path = or_skip!(victims::plain("family"));
    let file = |script: &str| at(script, &path).replace("PLUGIN", &plugin.display().to_string());
    let script = file(
        "uprobe:FILE:parent_work { @p[1, 2] = count(); } uprobe:PLUGIN:plugin_work { @c[1, 2] = count(); }",
    );
    let mut victim = Running::start(&path, &["dlopen"]);
    let ran = ours(&mut victim, &script, &[], 3);
    assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
    let added = ran.maps["@c"]["1,2"].as_u64().unwrap_or(0);
    assert!((30..=60).contains(&added), "{added}: {}", ran.messages);
    let script = file("uprobe:FILE:parent_work { @s[tid] = 1; } uprobe:PLUGIN:plugin_work { @s[tid] = 2; }");
    // The victim waits for a patch in the library, which never comes. When the tracer has looked is not seen from outside.
    let told = [200, 1_000, 5_000, 20_000].into_iter().any(|wait| {
        let mut victim = Running::start(&path, &["dlopen"]);
        let mut command = Command::new(binary());
        command.args(["run", "-p", &victim.pid().to_string(), "-e", &script]).env(NOTIFY, "1");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        attached(&mut child);
        victim.send("run 1");
        std::thread::sleep(Duration::from_millis(wait));
        drop(victim);
        let output = child.wait_with_output().expect("it ends with its process");
        String::from_utf8_lossy(&output.stderr).contains("its module was loaded later")
    });
    assert!(told);
}

#[test]
fn forked_children_add_to_their_parents_maps() {
    let path = or_skip!(victims::plain("family"));
    let mut victim = Running::start(&path, &["fork"]);
    let script = at("uprobe:FILE:child_work { @c[arg0, 1] = count(); }", &path);
    let maps = in_target(&mut victim, &script);
    let all: u64 =
        maps["@c"].as_object().expect("a map").values().map(|count| count.as_u64().expect("a number")).sum();
    assert_eq!(all, 10 * TIMES);
}

/// Each child has one thread, so its number is the process'.
#[test]
fn forked_children_have_numbers_of_their_own() {
    let path = or_skip!(victims::plain("family"));
    for (more, said) in [(&[][..], false), (&["--interpret"], false), (&[], true)] {
        let mut victim = Running::start(&path, &["inside"]);
        let count = "uprobe:FILE:child_inside { @[pid, tid] = count(); }";
        // Values and a stack: the hit says it.
        let line = "uprobe:FILE:child_inside { printf(\"%d %d %d %s\", pid, tid, arg0, ustack(1)); @[pid, tid] = count(); }";
        let script = at(if said { line } else { count }, &path);
        let ran = ours(&mut victim, &script, more, TIMES);
        let rows = ran.maps["@"].as_object().expect("a map");
        assert_eq!(rows.len() as u64, TIMES, "{more:?} {}", ran.messages);
        assert!(
            rows.iter().all(|(key, count)| {
                key.split_once(',').is_some_and(|(pid, tid)| pid == tid) && *count == 1
            })
        );
        assert_eq!(ran.said.len() as u64, if said { TIMES } else { 0 });
        let is_child = |line: &String| {
            let mut numbers = line.split(' ');
            numbers.next() == numbers.next()
        };
        assert!(ran.said.iter().all(is_child), "{:?}", ran.said);
    }
}

/// SAFE-3: the tracer is killed while hits run programs; the target runs on, and can be probed again.
#[test]
fn a_tracer_that_is_killed_leaves_the_target_running() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let script = at("uprobe:FILE:step { @s[tid] = nsecs; @c[arg1 & 7, tid] = count(); }", &path);
    for _ in 0..5 {
        let mut command = Command::new(binary());
        command.args(["run", "-p", &victim.pid().to_string(), "-e", &script]).env(NOTIFY, "1");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        attached(&mut child);
        victim.send("run 50");
        std::thread::sleep(Duration::from_millis(5));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(victim.line().contains("rounds="));
        let detached = trapline_tests::tracing::once(&["detach", "-p", &victim.pid().to_string()]);
        assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
        let maps = in_target(&mut victim, &at("uprobe:FILE:step { @c[arg1 & 7, 1] = count(); }", &path));
        assert_eq!(maps["@c"].as_object().map(|map| map.len()), Some(5));
    }
}
