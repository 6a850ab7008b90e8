//! `run`: blocks that only add to maps, run in the target. Judges are the same blocks interpreted by the tracer, and the
//! kernel's bpftrace on the same program: all three leave the same maps.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::script::Script;
use trapline_tests::tracing::{errors, once};
use trapline_tests::{or_skip, skip, victims};

/// Runs a script on the victim, which is called `F` in it.
fn run(victim: &Path, options: &[&str], args: &str, script: &str) -> Output {
    let (file, command) = (victim.display().to_string(), format!("{} {args}", victim.display()));
    let script = script.replace(":F:", &format!(":{file}:"));
    once(&[&["run", "-v", "-c", &command, "-e", &script], options].concat())
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How many blocks ran in the target, and how many were interpreted.
fn sides(output: &Output) -> (usize, usize) {
    let errors = errors(output);
    (errors.matches("Run in the target: ").count(), errors.matches("Interpreted: ").count())
}

/// Both ways; all blocks but `interpreted` run in the target, and the output is the same.
fn same(victim: &Path, args: &str, script: &str, interpreted: usize) -> String {
    let blocks = script.matches("probe:F:").count();
    let counted = run(victim, &[], args, script);
    assert_eq!(sides(&counted), (blocks - interpreted, interpreted), "{script}\n{}", errors(&counted));
    let read = run(victim, &["--interpret"], args, script);
    assert_eq!(sides(&read).0, 0, "{}", errors(&read));
    for output in [&counted, &read] {
        assert!(!errors(output).contains("WARNING"), "{script}\n{}", errors(output));
    }
    assert_eq!(out(&counted), out(&read), "{script}");
    out(&counted)
}

/// Such a function is found at its resolver, and probed where its implementation is.
#[test]
fn blocks_at_functions_that_are_chosen_at_run_time_see_their_hits() {
    let script = "uprobe:libc:strlen { @lengths[arg0 & 0] = count(); } uprobe:libc:memcpy,uprobe:libc:memmove { @copies = count(); } \
                  uretprobe:libc:strchr { @found[retval & 0] = count(); }";
    let run = |options: &[&str]| {
        once(&[&["run", "-v", "-c", "/usr/bin/gcc --version", "-e", script], options].concat())
    };
    let (counted, read) = (run(&[]), run(&["--interpret"]));
    assert_eq!(sides(&read).0, 0, "{}", errors(&read));
    assert_eq!(out(&counted), out(&read), "{}", errors(&read));
    for map in ["@lengths[0]: ", "@copies: ", "@found[0]: "] {
        assert!(out(&read).contains(map), "{map}: {}", out(&read));
    }
}

/// Names of C++ are as long as they like. Two that begin alike are two keys.
#[test]
fn functions_with_long_names_are_keys_of_their_own() {
    let path = or_skip!(victims::cpp("long_names"));
    for options in [&[][..], &["--interpret"]] {
        let mut victim = Running::start(&path, &[]);
        let script =
            format!("uprobe:{}:*called* {{ @[func] = count(); @p[probe] = count() }}", path.display());
        let pid = victim.pid().to_string();
        let tracing = Script::start(&[&["-p", &pid, "-e", &script], options].concat());
        let printed = victim.run(10);
        let lines = tracing.stop();
        for count in [printed["ints"], printed["longs"]] {
            let with = |line: &&String| line.ends_with(&format!("]: {count}"));
            assert_eq!(lines.iter().filter(with).count(), 2, "{lines:?}");
        }
        let mut keys: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once("]: ")?.0)).collect();
        keys.dedup();
        assert_eq!(keys.len(), 4, "{lines:?}");
    }
}

#[test]
fn the_target_counts_what_the_interpreter_counts() {
    let victim = or_skip!(victims::plain("added"));
    for (script, interpreted) in [
        ("uprobe:F:work { @ = count(); @k[arg0] = count(); } uprobe:F:leaf { @l[func, arg0] = count() }", 0),
        ("uprobe:F:work { @s[arg0 % 3] = sum(arg1); @a[arg0 % 3] = avg(arg1); @n = count() }", 0),
        (
            "uprobe:F:work { @least[\"x\", arg0] = min((int64)arg2); @most[1, arg0] = max((int64)arg2); @st[arg0] = stats(arg2) }",
            0,
        ),
        (
            "uprobe:F:work /arg0 > 3 && (int64)arg2 < 20/ { @h[arg0] = hist((int64)arg2) } uprobe:F:leaf /arg0/ { @c = count() }",
            0,
        ),
        ("uprobe:F:work { @l = lhist(arg3, 10, 200, 7); @l2[arg0 & 1] = lhist(arg3, 10, 200, 7) }", 0),
        (
            "uprobe:F:work { @l[(uint8)arg3 >> 6] = lhist(arg3 & 0x7f, 10, 200, 7) } uprobe:F:work { @neg[-arg0, probe] = count() }",
            0,
        ),
        ("uretprobe:F:leaf { @r[(int64)retval] = count() } uprobe:F:leaf { @e = hist(arg0) }", 0),
        (
            "uretprobe:F:ends_elsewhere /retval > 2/ { @r = stats(retval); @n[probe] = count() } uretprobe:F:leaf { @ = count() }",
            0,
        ),
        (
            "uretprobe:F:leaf { @h[retval % 3] = hist((int32)retval) } uprobe:F:work { @x = sum(arg1 << 60) }",
            0,
        ),
        // Beside blocks that are interpreted, also at the same site. No names of threads, which may have ended unread.
        (
            "uprobe:F:work { @last[strftime(\"%Y\", 0)] = arg1 } uprobe:F:work { @k[arg0] = count() } uprobe:F:leaf { @m = max(arg0) }",
            1,
        ),
        (
            "uprobe:F:work { @k[arg0] = count() } uretprobe:F:work { @twice = count(); @x[strftime(\"%Y\", 0)] = 1 }",
            1,
        ),
        (
            "uretprobe:F:leaf { @r = count() } uretprobe:F:leaf { @q = hist(retval) } uprobe:F:* { @all[func] = count() }",
            0,
        ),
        (
            "begin { @ = count() } uprobe:F:work { @ = count(); @d[arg0] = count() } end { delete(@d, 3); print(@ > 5); print(len(@d)) }",
            0,
        ),
    ] {
        same(&victim, "400 3", script, interpreted);
    }
}

#[test]
fn random_blocks_leave_the_same_maps_from_either_side() {
    let victim = or_skip!(victims::plain("added"));
    let mut seed = 7_u64;
    let mut one_of = |words: &[&str]| {
        // PCG's multiplier and increment (O'Neill 2014).
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        words[(seed >> 33) as usize % words.len()].to_owned()
    };
    for _ in 0..8 {
        let blocks: String = (0..4)
            .map(|nth| {
                let (function, values): (_, &[&str]) = match one_of(&["work", "leaf"]).as_str() {
                    "work" => (
                        "work",
                        &[
                            "arg0",
                            "arg1",
                            "arg2 * 3 - arg0",
                            "(int8)arg3",
                            "arg3 / 7",
                            "~arg2 >> 5",
                            "(uint16)arg1",
                        ],
                    ),
                    _ => ("leaf", &["arg0", "arg0 - 3", "(uint64)(arg0 - 4)", "arg0 << 61"]),
                };
                let predicate = format!(
                    "({}) {} {}",
                    one_of(values),
                    one_of(&["<", ">=", "!=", "&"]),
                    one_of(&["0", "5", "100"])
                );
                let key = match one_of(&["", "key", "tuple"]).as_str() {
                    "" => String::new(),
                    "key" => format!("[({}) % 17]", one_of(values)),
                    _ => format!("[func, ({}) & 15, \"t\"]", one_of(values)),
                };
                let value = one_of(values);
                let sum = one_of(&[
                    "count()",
                    "sum(V)",
                    "min(V)",
                    "max(V)",
                    "avg(V)",
                    "stats(V)",
                    "hist(V)",
                    "lhist(V, 0, 100, 9)",
                ]);
                let sum = sum.replace('V', &value);
                format!("uprobe:F:{function} /{predicate}/ {{ @m{nth}{key} = {sum}; }} ")
            })
            .collect();
        same(&victim, "200 2", &blocks, 0);
    }
}

#[test]
fn hot_functions_are_counted_exactly() {
    let victim = or_skip!(victims::plain("added"));
    const TIMES: u64 = 20_000_000;
    let script =
        "uprobe:F:leaf { @ = count(); @by[arg0 % 2] = count(); } uretprobe:F:leaf { @r = sum((int64)retval) }
                  uprobe:F:work { @h = hist(arg3) }";
    let output = run(&victim, &["-q", "-f", "json"], &format!("{TIMES} 1"), script);
    assert!(!errors(&output).contains("lost"), "{}", errors(&output));
    let maps = maps(&out(&output));
    // 0 to 6, again and again.
    let of = |n: u64| TIMES / 7 + u64::from(n < TIMES % 7);
    let odd: u64 = of(1) + of(3) + of(5);
    assert_eq!(maps["@"], json!(TIMES));
    assert_eq!(maps["@by"], json!({ "0": TIMES - odd, "1": odd }));
    assert_eq!(maps["@r"], json!(-((1..7).map(|n| n * of(n)).sum::<u64>() as i64)));
    let hits: u64 =
        maps["@h"].as_array().expect("buckets").iter().map(|row| row["count"].as_u64().unwrap_or(0)).sum();
    assert_eq!(hits, 2 * TIMES);
}

#[test]
fn what_is_shown_meanwhile_adds_up() {
    let victim = or_skip!(victims::plain("added"));
    let script = "uprobe:F:work { @ = count(); @by[tid] = count() } uprobe:F:leaf { @h = hist(arg0) }
        i:ms:1 { @sum += (uint64)@; clear(@); print(@h); clear(@h); @rounds++ } end { @sum += (uint64)@; clear(@); print(@h); clear(@h) }";
    let output = run(&victim, &["-q", "-f", "json"], "2000000 4", script);
    let (mut buckets, mut rounds) = (0, 0);
    let text = out(&output);
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
        for row in line["data"]["@h"].as_array().into_iter().flatten() {
            buckets += row["count"].as_u64().expect("a count");
        }
        rounds += u64::from(line["data"]["@h"].is_array());
    }
    let maps = maps(&text);
    assert_eq!((buckets, &maps["@sum"]), (8_000_000, &json!(16_000_000)));
    assert!(rounds > 1, "{text}");
    let by: Vec<&Value> = maps["@by"].as_object().expect("threads").values().collect();
    assert_eq!(by, [&json!(4_000_000); 4]);
}

#[test]
fn keys_beyond_the_room_of_a_map_are_told() {
    let victim = or_skip!(victims::plain("added"));
    let script = "config = { max_map_keys = 100 } uprobe:F:work { @[arg1] = count() }";
    let output = run(&victim, &["-q"], "1000 1", script);
    assert_eq!(sides(&output), (1, 0), "{}", errors(&output));
    // Beside 0 to -999 there are 1, 2 and 3; the keys that stay have all their hits.
    assert_eq!(out(&output).lines().filter(|line| line.starts_with("@[")).count(), 100);
    let kept: u64 =
        out(&output).lines().filter_map(|line| line.split_once(": ")?.1.parse::<u64>().ok()).sum();
    let told = format!("WARNING: @: {} updates found no room (100 keys)", 2000 - kept);
    assert!(errors(&output).contains(&told), "{told}\n{}", errors(&output));
}

#[test]
fn usdt_probes_run_in_the_target_with_their_names_and_processes() {
    let path = or_skip!(victims::c("operands", victims::Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let file = path.display();
    let script = format!(
        "usdt:{file}:operands:leaf {{ @[probe, pid] = count(); }} usdt:{file}:operands:leaf {{ @v[arg0] = count() }}"
    );
    let child = Command::new(trapline_tests::tracing::binary())
        .args(["run", "-v", "-f", "json", "-p", &pid, "-e", &script])
        .env("__BPFTRACE_NOTIFY_PROBES_ATTACHED", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("trapline starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("NOTIFY")));
    victim.run(20);
    drop(victim);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(sides(&output), (2, 0), "{}", errors(&output));
    let maps = maps(&rest.join("\n"));
    let hits =
        maps["@v"].as_object().expect("keys").values().map(|hits| hits.as_u64().unwrap_or(0)).sum::<u64>();
    assert!(hits > 0);
    assert_eq!(maps["@"], json!({ format!("usdt:{file}:operands:leaf,{pid}"): hits }));
}

/// The maps in lines of JSON, by name; the last of each.
fn maps(text: &str) -> Value {
    let mut all = json!({});
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        if let Some(maps) = line["data"].as_object().filter(|_| line["type"] != "attached_probes") {
            maps.iter().for_each(|(name, map)| all[name] = map.clone());
        }
    }
    all
}

/// The maps that the kernel's bpftrace leaves.
fn of_bpftrace(victim: &Path, args: &str, script: &str) -> Result<Value, String> {
    let file = victim.display();
    let script = script.replace(":F:", &format!(":{file}:"));
    let command = format!(
        "mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; exec bpftrace -q -f json -c '{file} {args}' -e '{script}'"
    );
    let output = Command::new("unshare").args(["-m", "bash", "-c", &command]).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() && text.contains("\"data\"") {
        true => Ok(maps(&text)),
        false => {
            Err(format!("bpftrace does not run here: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

#[test]
fn maps_are_those_of_bpftrace() {
    // bpftrace sees all processes of a file, so it has one of its own.
    let folder = std::env::temp_dir().join(format!("trapline-run-counted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let victim = folder.join("added");
    std::fs::copy(or_skip!(victims::plain("added")), &victim).expect("copied");
    let args = "250 2";
    let scripts = [
        "uprobe:F:work { @ = count(); }",
        "uprobe:F:work { @[arg0] = count(); }",
        "uprobe:F:work { @[probe, arg0 % 3] = sum(arg3); }",
        "uprobe:F:work { @ = hist(arg3); }",
        "uprobe:F:work { @[arg0 & 1] = hist(arg3); }",
        "uprobe:F:work { @ = lhist(arg3, 10, 200, 10); }",
        "uprobe:F:leaf { @[\"x\", arg0 / 2] = stats(arg0); }",
        "uprobe:F:leaf { @a = avg(arg0); @n = min(arg0); @m = max(arg0); @c = count(); }",
        "uprobe:F:work /arg0 > 3 && arg3 < 100/ { @[arg0] = count(); }",
        "uretprobe:F:leaf { @[(int64)retval] = count(); }",
        "uretprobe:F:ends_elsewhere { @ = hist(retval); }",
        "uretprobe:F:ends_elsewhere /retval != 1/ { @ = count(); }",
        "uprobe:F:leaf { @e[arg0] = count(); } uretprobe:F:leaf { @r = sum(retval & 0xff); }",
        "uprobe:F:work { @s[(arg0 << 3) + 1] = sum(arg3 * 2); } uprobe:F:leaf { @l[arg0 & 4] = count(); }",
    ];
    for script in scripts {
        let theirs = match of_bpftrace(&victim, args, script) {
            Ok(theirs) => theirs,
            Err(why) => skip!("{why}"),
        };
        let ours = run(&victim, &["-q", "-f", "json"], args, script);
        assert_eq!(sides(&ours).1, 0, "{script}\n{}", errors(&ours));
        assert_eq!(maps(&out(&ours)), theirs, "{script}");
    }
    std::fs::remove_dir_all(folder).ok();
}
