//! Threads of different PID namespaces that share maps (SHR-1, SHR-2). Judges are what the victim says of its children, and
//! the indices that these pass.

use std::collections::BTreeSet;

use trapline_tests::running::Running;
use trapline_tests::victims;
use trapline_tests::{or_skip, running};

use super::{IN_TARGET, at, ours};

const CHILDREN: u64 = 6;
/// The children, and the program that makes them: it hits before they are made, so it has a number that they must not have.
const ALL: u64 = CHILDREN + 1;
/// The state of a thread, between two of its calls; and what its key is.
const SCRIPT: &str = "uprobe:FILE:begin_work { @s[tid] = arg0; @c[pid, tid, arg0] = count(); }
    uprobe:FILE:end_work { @met[@s[tid], arg0] = count(); }";

fn may_unshare(path: &std::path::Path) -> bool {
    let printed: running::Printed = Running::start(path, &["clone"]).run(1);
    let may = printed["failed"] == 0;
    if !may {
        eprintln!("SKIP: a PID namespace of its own takes root");
    }
    may
}

#[test]
fn threads_of_other_namespaces_have_entries_of_their_own_and_the_tracers_numbers() {
    let path = or_skip!(victims::plain("namespaces"));
    if !may_unshare(&path) {
        return;
    }
    for how in ["fork", "unshare", "clone", "setns"] {
        let mut victim = Running::start(&path, &[how]);
        let ran = ours(&mut victim, &at(SCRIPT, &path), &[], CHILDREN);
        assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
        assert_eq!(ran.printed["failed"], 0);
        let keys = |map: &str| -> BTreeSet<String> {
            ran.maps[map].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        let met: BTreeSet<String> = (0..ALL).map(|nth| format!("{nth},{nth}")).collect();
        assert_eq!(keys("@met"), met, "{how}: {}", ran.messages);
        let known = (0..ALL).map(|nth| {
            let pid = ran.printed[&format!("pid{nth}")];
            format!("{pid},{pid},{nth}")
        });
        assert_eq!(keys("@c"), known.collect(), "{how}: {}", ran.messages);
        assert_eq!(keys("@s").len() as u64, ALL, "{how}: {}", ran.messages);
        let told = ran.messages.contains("and another PID namespace");
        assert_eq!(told, how != "fork", "{how}: {}", ran.messages);
    }
}

/// What ended before it was found is said to be unknown, and has no other thread's number.
#[test]
fn threads_of_other_namespaces_that_ended_early_are_left_out_with_a_word() {
    let path = or_skip!(victims::plain("namespaces"));
    if !may_unshare(&path) {
        return;
    }
    let mut victim = Running::start(&path, &["gone"]);
    let ran = ours(&mut victim, &at(SCRIPT, &path), &[], CHILDREN);
    assert_eq!(ran.printed["failed"], 0);
    let met = ran.maps["@met"].as_object().expect("a map");
    assert!(met.keys().all(|key| key.split_once(',').is_some_and(|(one, other)| one == other)), "{met:?}");
    assert_eq!(met.len() as u64, ALL, "{met:?}");
    let known = ran.maps.get("@c").and_then(|map| map.as_object()).map_or(0, |map| map.len() as u64);
    let pids: BTreeSet<u64> = (0..ALL).map(|nth| ran.printed[&format!("pid{nth}")]).collect();
    let named = ran.maps.get("@c").and_then(|map| map.as_object()).into_iter().flatten();
    let is_one = |key: &str| {
        key.split(',').next().and_then(|pid| pid.parse().ok()).is_some_and(|pid| pids.contains(&pid))
    };
    assert!(named.map(|(key, _)| key).all(|key| is_one(key)), "{:?}", ran.maps["@c"]);
    let is_told = ran.messages.contains("not known which thread");
    assert_eq!(is_told, known < ALL, "{known}: {}", ran.messages);
}
