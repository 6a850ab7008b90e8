//! Keys that hold names, texts and threads; arguments of USDT probes. Judges are the same blocks interpreted by the tracer, and
//! the program's own count.

use serde_json::json;
use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::victims::{self, Variant};

use super::{IN_TARGET, TIMES, at, ours};

/// A name in a key is one key, at entries and returns, and at several functions.
#[test]
fn names_in_keys_of_plain_values_mean_the_same_at_all_probes() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let one = "uprobe:FILE:step, uprobe:FILE:round_of { @at[tid, func] = arg0 + 100; @sort[probetype] = 1; }
        uretprobe:FILE:step, uretprobe:FILE:round_of /@at[tid, func]/ { @n[func] = count(); delete(@at[tid, func]); }";
    // One attach point with both functions; names in values, and those of probes.
    let other = "uprobe:FILE:/^(step|round_of)$/ { @at[tid, func] = arg0 + 100; @sort[probetype] = 1; @last[probe] = (func, 7); }
        uretprobe:FILE:/^(step|round_of)$/ /@at[tid, func]/ { @n[func] = count(); delete(@at[tid, func]); }";
    for script in [one, other] {
        for more in [&[][..], &["--interpret"]] {
            let ran = ours(&mut victim, &at(script, &path), more, TIMES);
            assert_eq!(ran.messages.contains("Interpreted: "), !more.is_empty(), "{}", ran.messages);
            let rounds = ran.printed["rounds"];
            assert_eq!(ran.maps["@n"], json!({ "step": 5 * rounds, "round_of": rounds }), "{}", ran.messages);
            assert_eq!((&ran.maps["@sort"], ran.maps.get("@at")), (&json!({ "uprobe": 1 }), None));
            if script == other {
                let name = |function: &str| format!("uprobe:{}:{function}", path.display());
                let last = json!({ name("step"): ["step", 7], name("round_of"): ["round_of", 7] });
                assert_eq!(ran.maps["@last"], last);
            }
        }
    }
}

/// Texts of functions' arguments: at the end of memory, behind pointers that lead nowhere, long ones. (At -1 the interpreter
/// has memory of its own, and `buf` shows that.)
#[test]
fn texts_in_keys_are_those_of_the_interpreter() {
    let path = or_skip!(victims::c("strings", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    for script in [
        "uprobe:FILE:say { @[str(arg0), arg1] = count(); @s[str(arg0)] = sum(arg1); }",
        "uprobe:FILE:say /(int64)arg0 != -1/ { @[str(arg0, 3)] = count(); @b[buf(arg0, arg1)] = count(); @c[buf(arg0, 2), func] = max(arg1); }",
        "uprobe:FILE:both { @[str(arg1), str(arg3), arg5] = count(); @last[tid] = str(arg3); @h[str(arg1)] = hist(arg0); }",
    ] {
        let [native, read] =
            [&[][..], &["--interpret"]].map(|more| ours(&mut victim, &at(script, &path), more, TIMES));
        assert!(native.messages.contains(IN_TARGET), "{script}\n{}", native.messages);
        assert!(!native.messages.contains("Interpreted: "), "{script}\n{}", native.messages);
        assert_eq!(native.maps, read.maps, "{script}");
        assert!(native.maps["@"].as_object().is_some_and(|keys| !keys.is_empty()), "{}", native.maps);
    }
}

/// More threads than a map has entries: each notes its time under its number and ends.
#[test]
fn maps_of_threads_hold_those_that_come_and_go() {
    const THREADS: u64 = 50_000;
    let path = or_skip!(victims::c("brief", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let script = "uprobe:FILE:work { @began[tid] = nsecs; @calls[tid] = arg0 + 1; }
        uretprobe:FILE:work /@began[tid]/ {
            @took = count(); @us = hist((nsecs - @began[tid]) / 1000); @sum = sum(@calls[tid]);
            delete(@began[tid]); delete(@calls[tid]);
        }";
    let ran = ours(&mut victim, &at(script, &path), &[], THREADS);
    assert_eq!((ran.printed["work"], ran.printed["wrong"]), (THREADS, 0));
    assert!(!ran.messages.contains("Interpreted: ") && !ran.messages.contains("WARNING"), "{}", ran.messages);
    assert_eq!(ran.maps["@took"], json!(THREADS), "{}", ran.messages);
    assert_eq!(ran.maps["@sum"], json!(THREADS * (THREADS + 1) / 2));
    let in_histogram: u64 = ran.maps["@us"]
        .as_array()
        .expect("a histogram")
        .iter()
        .map(|one| one["count"].as_u64().unwrap_or(0))
        .sum();
    assert_eq!((in_histogram, ran.maps.get("@began"), ran.maps.get("@calls")), (THREADS, None, None));
}

/// Operands in registers and parts of them, in memory, on the stack, in tables; numbers, texts, buffers; and several places of
/// one probe with operands of different kinds.
#[test]
fn usdt_probes_run_blocks_in_the_target() {
    let path = or_skip!(victims::c("operands", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let probe = |name: &str| format!("usdt:{}:operands:{name}", path.display());
    for (script, map) in [
        (
            probe("widths") + " { @[arg0, arg1, arg2, arg3, arg4, arg5] = count(); @n = sum((int64)arg2); }",
            "@",
        ),
        (
            probe("statics") + " /(int64)arg0 < 0/ { @[arg0, arg1] = sum(arg2); @x[arg1 & 3] = max(arg3); }",
            "@",
        ),
        (probe("tables") + " { @[arg2] = (arg0, arg1); }", "@"),
        (probe("twelve") + " { @[arg6, arg7, arg11] = sum(arg8 + arg9 + arg10); @h = hist(arg2); }", "@h"),
        (probe("both") + " { @[arg0, arg1, probe] = count(); }", "@"),
        (
            probe("texts") + " { @[str(arg0), str(arg2), arg1] = count(); @b[buf(arg0, arg1)] = count(); }",
            "@b",
        ),
        (probe("texts") + " { @[str(arg0, 7), buf(arg2, 3)] = count(); @z[str(arg1)] = count(); }", "@z"),
        (
            probe("leaf")
                + " { @s[tid] = arg1; @t[tid] = arg0; } "
                + &probe("texts")
                + " /@s[tid]/ { @[@s[tid]] = count(); delete(@s[tid]); }",
            "@",
        ),
    ] {
        let native = ours(&mut victim, &script, &[], TIMES);
        let read = ours(&mut victim, &script, &["--interpret"], TIMES);
        assert!(native.messages.contains("Run in the target: usdt:"), "{script}\n{}", native.messages);
        assert!(!native.messages.contains("Interpreted: "), "{script}\n{}", native.messages);
        assert!(read.messages.contains("Interpreted: usdt:"), "{script}\n{}", read.messages);
        assert_eq!(native.maps, read.maps, "{script}");
        let has_any = native.maps[map].as_object().is_some_and(|keys| !keys.is_empty());
        assert!(has_any || native.maps[map].is_array(), "{script}: {}", native.maps);
    }
}
