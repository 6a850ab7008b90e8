//! HIT-5: what hits say, values and stacks in one line. Judges are maps that the same hits add up, and the program's own count.

use std::collections::BTreeMap;
use std::process::Command;

use trapline_tests::debugger::printed;
use trapline_tests::or_skip;
use trapline_tests::running::Running;
use trapline_tests::tracing::binary;
use trapline_tests::victims::{self, Variant};

use super::{IN_TARGET, TIMES, at, beside, beside_stopped, ours};

/// How often each line was said: its numbers, and the addresses of its stack.
type Lines = BTreeMap<(String, Vec<String>), u64>;

fn addresses<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// `printf("%d %d:%s", …, ustack(raw))`
fn said(lines: &[String]) -> Lines {
    let mut all = Lines::new();
    for line in lines {
        let (numbers, stack) = line.split_once(':').expect("numbers and a stack");
        *all.entry((numbers.to_owned(), addresses(stack.lines()))).or_default() += 1;
    }
    all
}

/// A map with the same numbers and the same stack as its key.
fn added(map: &serde_json::Value) -> Lines {
    let entries = map.as_object().into_iter().flatten();
    let entry = |(key, count): (&String, &serde_json::Value)| {
        let mut parts = key.splitn(3, ',');
        let numbers = format!("{} {}", parts.next().expect("one"), parts.next().expect("another"));
        ((numbers, addresses(parts.next().unwrap_or_default().lines())), count.as_u64().expect("a number"))
    };
    entries.map(entry).collect()
}

#[test]
fn lines_with_values_and_stacks_are_what_the_same_hits_add_up() {
    let path = or_skip!(victims::c("stacks", Variant::Framed));
    let mut victim = Running::start(&path, &[]);
    for (probe, value) in [("uprobe", "arg0"), ("uretprobe", "retval")] {
        let script = format!(
            "{probe}:FILE:probed {{ printf(\"%d %lld:%s\", tid, {value}, ustack(raw, 20)); @[tid, {value}, ustack(raw, 20)] = count(); }}"
        );
        let ran = ours(&mut victim, &at(&script, &path), &[], TIMES);
        assert!(ran.messages.contains("Run in the target: "), "{}", ran.messages);
        assert!(!ran.messages.contains("WARNING"), "{}", ran.messages);
        let (said, added) = (said(&ran.said), added(&ran.maps["@"]));
        assert!(added.len() > 20 && added.keys().any(|(_, stack)| stack.len() >= 20), "{}", added.len());
        assert_eq!(said, added, "{probe}");
    }
}

/// Lines of one thread are in the order of its hits, and those of one hit in the order of the script.
#[test]
fn lines_of_a_thread_are_in_its_order() {
    let path = or_skip!(victims::c("stacks", Variant::Framed));
    let mut victim = Running::start(&path, &[]);
    let script = at(
        "uprobe:FILE:probed { @n[tid]++; printf(\"%d %d:%s\", tid, @n[tid] * 3, ustack(raw, 1));
           if (arg0 & 1) { unroll(2) { @n[tid]++; printf(\"%d %d:%s\", tid, @n[tid] * 3, ustack(raw, 1)); } } }",
        &path,
    );
    let ran = ours(&mut victim, &script, &[], TIMES);
    assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &ran.said {
        let (tid, number) = line.split(':').next().and_then(|own| own.split_once(' ')).expect("numbers");
        let (last, number) = (last.entry(tid).or_default(), number.parse::<u64>().expect("a number"));
        assert_eq!(*last + 3, number, "{tid}");
        *last = number;
    }
    assert!(last.len() == 2 && last.values().all(|number| *number > 300), "{last:?}");
}

/// More lines than there is room for, from eight threads, while the tracer is stopped.
#[test]
fn lines_that_find_no_room_are_counted() {
    let path = or_skip!(victims::c("keys", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let script = at("uprobe:FILE:probed { printf(\"%d %d:%s\", arg0, arg1, ustack(raw, 1)); }", &path);
    let mut command = Command::new(binary());
    command.args(["run", "-v", "-f", "json", "-p", &victim.pid().to_string(), "-e", &script]);
    let ran = beside_stopped(&mut victim, command, 20_000);
    assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
    let lost = ran.messages.split("Total lost event count: ").nth(1).expect("more than there is room for");
    let lost: u64 = lost.lines().next().and_then(|number| number.parse().ok()).expect("a number");
    assert_eq!(ran.said.len() as u64 + lost, ran.printed["probed"]);
    assert!(ran.said.len() > 4096, "{}", ran.said.len());
    for line in &ran.said {
        let numbers = line.split(':').next().expect("numbers");
        let (one, other) = numbers.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        assert_eq!(number(other), number(one) * 3, "{line}");
    }
}

/// `uaddr` is where gdb finds the variable, and what lies there is what the program put there.
#[test]
fn variables_of_the_probed_file_are_where_gdb_finds_them() {
    let path = or_skip!(victims::cpp("variables"));
    let input = format!("run {TIMES}\n");
    let names =
        ["counter", "stock::deep::left", "shop.sold", "(long)items[1].id", "(long)&shop - (long)&banner"];
    let gdb = or_skip!(printed(&path, "*sell", &names.map(str::to_owned), &input));
    let script = at(
        "uprobe:FILE:_Z4selli { printf(\"%d, %d, %d, %d, %d\\n\", *uaddr(\"_ZL7counter\"), (int8)*uaddr(\"_ZN5stock4deep4leftE\"),
           *(int64 *)uaddr(\"shop\"), *(int32 *)((uint64)uaddr(\"_ZL5items\") + 24), (int64)uaddr(\"shop\") - (int64)uaddr(\"banner\")); }",
        &path,
    );
    let mut victim = Running::start(&path, &[]);
    let ran = ours(&mut victim, &script, &[], TIMES);
    // gdb shows a character as a number, and then itself.
    let plain = |one: &String| one.split(" '").next().unwrap_or_default().to_owned();
    let theirs: Vec<String> =
        gdb.iter().map(|hit| hit.iter().map(plain).collect::<Vec<_>>().join(", ")).collect();
    let said: Vec<String> = ran.said.iter().flat_map(|one| one.lines()).map(str::to_owned).collect();
    assert_eq!(said, theirs, "{}", ran.messages);
}

/// A line with values and a stack, and the end of the script: it is written once, however many hits there are behind.
#[test]
fn exit_is_said_and_ends_the_script() {
    let path = or_skip!(victims::c("rounds", Variant::Plain));
    let script = at(
        "uprobe:FILE:step /(arg1 & 7) == 3/ { printf(\"%d%s\\n\", arg1 & 7, ustack(raw)); exit(); printf(\"not\"); }
         end { printf(\"end\\n\"); }",
        &path,
    );
    for times in [1, 300] {
        let mut victim = Running::start(&path, &[]);
        let mut command = Command::new(binary());
        command.args(["run", "-v", "-f", "json", "-p", &victim.pid().to_string(), "-e", &script]);
        let ran = beside(&mut victim, command, times);
        assert!(ran.messages.contains(IN_TARGET), "{}", ran.messages);
        let text = ran.said.concat();
        assert_eq!((text.matches("3\n").count(), text.matches("not").count()), (1, 0), "{text}");
        assert!(text.ends_with("end\n"), "{text}");
    }
}
