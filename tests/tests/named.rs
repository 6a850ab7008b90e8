//! VAL-1: a name with several meanings leads to the right one, and a value comes from where the compiler put
//! it. It is never another function's, another class's, or whatever a register happens to hold.

use serde_json::{Value, json};
use trapline_tests::running::Running;
use trapline_tests::tracing::{self, Report, Tracing, once, until_enough};
use trapline_tests::{or_skip, victims};

const TIMES: u64 = 5;

fn traced(victim: &mut Running, verb: &str, words: &[&str]) -> Report {
    tracing::traced(victim, verb, words, TIMES).0
}

fn of_type<'a>(report: &'a Report, kind: &str) -> Vec<&'a Value> {
    report.objects.iter().filter(|one| one["type"] == kind).collect()
}

/// clang removes a parameter. The others are read from the registers that their locations name, and the
/// removed value is unknown.
#[test]
fn removed_parameters_are_unknown_and_the_others_are_right() {
    let path = or_skip!(victims::clang("removed"));
    let mut victim = Running::start(&path, &[]);
    let report = traced(&mut victim, "trace", &["put"]);
    let calls = of_type(&report, "call");
    assert_eq!(calls.len() as u64, TIMES);
    for call in calls {
        let values: Vec<&Value> =
            call["args"].as_array().expect("arguments").iter().map(|one| &one["value"]).collect();
        assert_eq!(values, [&Value::Null, &json!("alice"), &json!(5)], "{call}");
        assert_eq!(call["ret"], Value::Null, "{call}");
    }
}

/// The type of the value is the same in each form of a probe.
#[test]
fn the_value_has_its_type_in_every_form() {
    let path = or_skip!(victims::plain("values"));
    let mut victim = Running::start(&path, &[]);
    let mut values = |probe: &str| -> Vec<Value> {
        let report = traced(&mut victim, "trace", &[probe]);
        of_type(&report, "call").iter().map(|call| json!([call["ret"], call["ret_name"]])).collect()
    };
    for func in ["handle", "scale", "next_mode"] {
        let expected = values(func);
        assert!(!expected.is_empty() && expected[0][0] != Value::Null, "{func}");
        assert_eq!(values(&format!("ur:values:{func}")), expected, "{func}");
        assert_eq!(values(&format!("{func}(arg0)")), expected, "{func}");
    }
}

/// If there are overloads, types in brackets select one.
#[test]
fn one_overload_is_traced() {
    let path = or_skip!(victims::cpp("overloads"));
    let mut victim = Running::start(&path, &[]);
    let report = traced(&mut victim, "trace", &["Cart::add(int)"]);
    let calls = of_type(&report, "call");
    assert_eq!(calls.len() as u64, TIMES, "{}", report.errors);
    for call in &calls {
        let names: Vec<&Value> =
            call["args"].as_array().expect("arguments").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, [&json!("this"), &json!("id")]);
        assert_eq!(call["args"][1]["value"], json!(7));
    }
    let report = traced(&mut victim, "stack", &["Cart::add(int)"]);
    let stacks = report.objects.iter().filter(|one| one["type"] == "stack");
    assert_eq!(stacks.filter_map(|one| one["hits"].as_u64()).sum::<u64>(), TIMES);
}

/// A signature holds for none of several functions that take different things.
#[test]
fn types_that_no_overload_takes_are_refused() {
    let path = or_skip!(victims::cpp("overloads"));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (verb, option, probe) in [
        ("trace", "-q", "Cart::add(const char *)"),
        ("trace", "-q", "Cart::add(char*)"),
        ("trace", "-q", "Cart::add(long)"),
        ("trace", "-q", "Cart::add(unsigned int)"),
        ("trace", "-q", "Cart::add(long n) -> int"),
        ("hist", "arg0", "Cart::add(float)"),
        ("stack", "--if=n > 3", "Cart::add(long n)"),
    ] {
        let out = once(&[verb, "-d", "10ms", "-p", &pid, option, probe]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let expected = "`Cart::add` is the name of several functions, and each takes something else; write one of \
                        'Cart::add(double)', 'Cart::add(int)', 'Cart::add(int, int)'";
        assert!(!out.status.success() && said.contains(expected), "{verb} {probe}: {said}");
    }
    // Each in another spelling than reports have.
    for (probe, value) in [("Cart::add(signed int)", json!(7)), ("Cart::add( double )", json!(1.5))] {
        let report = traced(&mut victim, "trace", &[probe]);
        let calls = of_type(&report, "call");
        assert_eq!(calls.len() as u64, TIMES, "{probe}: {}", report.errors);
        assert!(calls.iter().all(|call| call["args"][1]["value"] == value), "{probe}: {calls:?}");
    }
}

/// The class in a name decides which variable is meant. Bit-fields are not watched, whatever else has the
/// name.
#[test]
fn what_is_not_the_variable_is_not_watched() {
    let path = or_skip!(victims::cpp("overloads"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    for (name, why) in [
        ("NoSuch::count", "no variable NoSuch::count"),
        (
            "flags.second",
            "flags.second is a bit-field, which shares its bytes with others; watch what holds it",
        ),
    ] {
        let out = once(&["watch", "-p", &pid, "-d", "10ms", name]);
        let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && output_text.contains(why), "{name}: {output_text}");
    }
}

/// Constructors of classes with virtual bases take more arguments than their source says. For a base they are
/// other ones than for a whole object. Reports show the arguments of the source.
#[test]
fn constructors_of_virtual_bases_show_the_arguments_of_the_source() {
    for (compiler, level) in [("g++", "-O0"), ("g++", "-O2"), ("clang++", "-O0"), ("clang++", "-O2")] {
        let path = or_skip!(victims::cpp_by("virtual", compiler, &[level, "-fno-inline"]));
        let mut victim = Running::start(&path, &[]);
        let report = traced(&mut victim, "trace", &["Middle::Middle", "Leaf::Leaf"]);
        let mut seen = Vec::new();
        for call in of_type(&report, "call") {
            let args = call["args"].as_array().expect("arguments");
            let value =
                |name: &str| args.iter().find(|one| one["name"] == name).map(|one| one["value"].clone());
            seen.push((value("a"), value("b"), value("c")));
            assert!(value("__in_chrg").is_none(), "{compiler} {level}: {call}");
        }
        let whole = (Some(json!(3)), Some(json!(55)), None);
        let base = (Some(json!(101)), Some(json!(77)), None);
        let leaf = (None, None, Some(json!(100)));
        for expected in [whole, base, leaf] {
            let count = seen.iter().filter(|one| **one == expected).count() as u64;
            // clang's optimizer replaces none of these arguments by a constant.
            assert!(count == TIMES, "{compiler} {level}: {expected:?} of {seen:?}: {}", report.errors);
        }
        assert_eq!(seen.len() as u64, 3 * TIMES, "{compiler} {level}: {seen:?}");
    }
}

/// Two libraries have a function of one name. Each call is shown by the prototype of its own file, and in a
/// tree each is the function that was asked for.
#[test]
fn functions_of_one_name_in_two_files_have_their_own_prototypes() {
    let [first, second] = ["put_text", "put_double"].map(victims::shared);
    let (first, second) = (or_skip!(first), or_skip!(second));
    let path = or_skip!(victims::plain("two_puts"));
    let mut victim = Running::start(&path, &[first.to_str().unwrap_or(""), second.to_str().unwrap_or("")]);
    for probes in [["put_text:put", "put_double:put"], ["put_double:put", "put_text:put"]] {
        let report = traced(&mut victim, "trace", &probes);
        let calls = of_type(&report, "call");
        assert_eq!(calls.len() as u64, 2 * TIMES, "{}", report.errors);
        for call in calls {
            let args = call["args"].as_array().expect("arguments").iter();
            let args: Vec<(&Value, &Value)> = args.map(|one| (&one["name"], &one["value"])).collect();
            let reported = json!([args, call["ret"]]);
            let expected = match call["probe"].as_str().is_some_and(|probe| probe.contains("put_text")) {
                true => json!([[["text", "alice"], ["n", 7]], 8]),
                false => json!([[["x", 2.5], ["times", 2]], 5.0]),
            };
            assert_eq!(reported, expected, "{probes:?}: {call}");
        }
        // `graph` prints nothing before its end.
        let pid = victim.pid().to_string();
        let mut tracing = Tracing::spawn("graph", &["-p", &pid, "-d", "2", probes[0], probes[1]]);
        while tracing.is_running() {
            victim.run(TIMES);
        }
        let report = tracing.end();
        let graph = &of_type(&report, "graph")[0];
        let trees = graph["trees"].as_array().expect("trees");
        assert_eq!(trees.len(), 1, "{graph}");
        let file = probes[0].split(':').next().unwrap_or_default();
        assert!(trees[0]["function"].as_str().is_some_and(|name| name.contains(file)), "{graph}");
    }
}

/// An address where no call begins has no tree. A signature belongs to a function.
#[test]
fn a_tree_is_of_calls() {
    let path = or_skip!(victims::plain("naps"));
    let victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let list = once(&["list", "--json", "-p", &pid, "handle"]);
    let listed: Value = serde_json::from_slice(&list.stdout).expect("one function");
    let start =
        listed["offset"].as_u64().expect("where it lies in the file, and in memory of a small program");
    let out = once(&["graph", "-p", &pid, "-d", "50ms", &format!("{:#x}", start + 4)]);
    let output_text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && output_text.contains("4 bytes inside handle"), "{output_text}");
    for root in [&format!("{start:#x}"), "handle(int)", "handle(char*)", "handle(int us)"] {
        let has_calls = |report: &Report| {
            of_type(report, "graph")
                .first()
                .is_some_and(|graph| graph["trees"][0]["calls"].as_u64() > Some(0))
        };
        let report = until_enough("graph", &["-p", &pid, root, "slow"], has_calls);
        let graph = &of_type(&report, "graph")[0];
        assert_eq!(graph["trees"][0]["function"], "handle", "{root}: {graph}: {}", report.errors);
    }
}
