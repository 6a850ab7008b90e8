//! VAL-1: variables at lines inside functions are what a debugger shows at the same instructions, or unknown. Judge: gdb,
//! which stops at the same lines of the same program with the same input.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trapline_tests::tracing::{binary, errors, once};
use trapline_tests::{or_skip, victims};

/// Lines by their marks, and what is asked for there.
const PLACES: [(&str, &[&str]); 3] = [
    (
        "/* loop */",
        &[
            "at->id",
            "at->kind",
            "at->name",
            "at->next->name",
            "at->few[2]",
            "weight",
            "part",
            "sum",
            "limit",
            "rate",
            "total",
        ],
    ),
    ("/* inlined */", &["of", "doubled", "total"]),
    ("/* stack */", &["a", "f", "g", "text", "c"]),
];
const INPUT: &str = "5\n-3\n11\n";

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/locals.c")
}

/// The line with a mark.
fn line(mark: &str) -> usize {
    let text = std::fs::read_to_string(source()).expect("the source");
    text.lines().position(|line| line.contains(mark)).expect("the mark") + 1
}

/// Runs a command with the program's input. Returns what it printed.
fn run(mut command: Command) -> String {
    let input = std::env::temp_dir().join(format!("trapline-locals-{}", std::process::id()));
    std::fs::write(&input, INPUT).expect("room");
    let output =
        command.stdin(std::fs::File::open(&input).expect("the input")).stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What gdb shows: at each stop the offset in the function, and the values.
fn by_gdb(program: &Path, line: usize, names: &[&str]) -> Vec<(u64, Vec<Value>)> {
    let script = std::env::temp_dir().join(format!("trapline-locals-{}.py", std::process::id()));
    let text = format!(
        r#"
import gdb, json
def shown(name):
    try:
        value = gdb.parse_and_eval(name)
        kind = value.type.strip_typedefs()
        if value.is_optimized_out:
            return None
        if kind.code == gdb.TYPE_CODE_PTR and kind.target().unqualified().name == "char":
            return value.string() if int(value) else None
        return float(value) if kind.code == gdb.TYPE_CODE_FLT else int(value)
    except gdb.error:
        return None
class Here(gdb.Breakpoint):
    def stop(self):
        frame = gdb.newest_frame()
        while frame.type() == gdb.INLINE_FRAME:
            frame = frame.older()
        offset = frame.pc() - frame.function().value().address.__int__()
        print("HERE " + json.dumps([offset, [shown(name) for name in {names:?}]]))
        return False
Here("locals.c:{line}")
"#
    );
    std::fs::write(&script, text).expect("room");
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-x"]).arg(&script).args(["-ex", "run", "--args"]).arg(program);
    let printed = run(command);
    let here = printed.lines().filter_map(|line| line.split_once("HERE ").map(|(_, json)| json.to_owned()));
    here.map(|json| serde_json::from_str(&json).expect("JSON")).collect()
}

/// The same, as `trace` shows it; `None` if it says that one of the variables is not there.
fn by_trace(program: &Path, line: usize, names: &[&str]) -> Option<Vec<(u64, Vec<Value>)>> {
    let out = std::env::temp_dir().join(format!("trapline-locals-{}.json", std::process::id()));
    let mut command = Command::new(binary());
    command.args(["trace", "--json", "-q", "-o"]).arg(&out);
    command
        .arg(format!("{}@locals.c:{line}({})", program.display(), names.join(", ")))
        .arg("--")
        .arg(program);
    let mut plan = Command::new(command.get_program());
    let plan = plan.args(command.get_args()).stdin(Stdio::null()).output().expect("trapline starts");
    if errors(&plan).contains("there is no variable") {
        return None;
    }
    run(command);
    let text = std::fs::read_to_string(&out).expect("calls");
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let offset = |call: &Value| {
        let probe = call["probe"].as_str().expect("a probe");
        probe.rsplit_once('+').map_or(0, |(_, offset)| offset.parse().expect("an offset"))
    };
    let values = |call: &Value| {
        let all = call["args"].as_array().expect("values").iter();
        all.map(|one| one["value"].clone()).collect()
    };
    Some(objects.filter(|one| one["type"] == "call").map(|call| (offset(&call), values(&call))).collect())
}

#[test]
fn variables_are_what_a_debugger_shows() {
    let mut compared = (0, 0);
    for (compiler, flags) in [
        ("gcc", &["-O0"][..]),
        ("gcc", &["-O2"]),
        ("gcc", &["-O3", "-fno-omit-frame-pointer"]),
        ("gcc", &["-O2", "-flto", "-gdwarf-4"]),
        ("clang", &["-O0"]),
        ("clang", &["-O2"]),
    ] {
        let program = or_skip!(victims::c_by("locals", compiler, flags));
        for (mark, names) in PLACES {
            let line = line(mark);
            let what = format!("{compiler} {flags:?} {mark}");
            let theirs = by_gdb(&program, line, names);
            let Some(ours) = by_trace(&program, line, names) else {
                // The instructions of an inlined function may stand outside of what is noted as its code.
                assert!(
                    theirs.iter().any(|(_, values)| values.contains(&Value::Null)),
                    "{what}: {theirs:#?}"
                );
                continue;
            };
            let places = |all: &[(u64, Vec<Value>)]| all.iter().map(|(at, _)| *at).collect::<BTreeSet<u64>>();
            // gdb may choose fewer of a line's instructions.
            let both: BTreeSet<u64> = places(&theirs).intersection(&places(&ours)).copied().collect();
            let only = |all: &[(u64, Vec<Value>)]| -> Vec<(u64, Vec<Value>)> {
                all.iter().filter(|(at, _)| both.contains(at)).cloned().collect()
            };
            let (theirs, ours) = (only(&theirs), only(&ours));
            assert!(!ours.is_empty(), "{what}: no instruction in common");
            assert_eq!(ours.len(), theirs.len(), "{what}: {ours:#?} {theirs:#?}");
            for ((_, ours), (_, theirs)) in ours.iter().zip(&theirs) {
                for ((name, our), their) in names.iter().zip(ours).zip(theirs) {
                    compared.0 += 1;
                    let is_unknown = our.is_null() && !their.is_null();
                    compared.1 += u32::from(is_unknown);
                    if is_unknown {
                        println!("{what}: {name} is {their} in gdb");
                    }
                    assert!(our.is_null() || our == their, "{what}: {name} is {our} here, {their} in gdb");
                }
            }
        }
    }
    println!("{} values, {} unknown here alone", compared.0, compared.1);
    assert!(compared.0 > 100 && compared.1 * 10 < compared.0, "{compared:?}");
}

#[test]
fn what_is_not_there_is_said() {
    let program = or_skip!(victims::c_by("locals", "gcc", &["-O2"]));
    let here = line("/* loop */");
    for (line, words, wanted) in [
        (1, "weight", "no place is found there whose variables could be named"),
        (here, "wieght", "no variable `wieght`; did you mean weight?"),
        (here, "at->idd", "`at` has no field `idd`"),
        (here, "int weight", "is inside a function, where registers hold other values than its arguments"),
    ] {
        let probe = format!("{}@locals.c:{line}({words})", program.display());
        let output = once(&["trace", &probe, "--", &program.display().to_string()]);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains(wanted), "{}", errors(&output));
    }
}

#[test]
fn conditions_name_variables() {
    let program = or_skip!(victims::c_by("locals", "gcc", &["-O2"]));
    let names = ["at->id", "at->name"];
    let line = line("/* loop */");
    let all = by_trace(&program, line, &names).expect("they are there");
    let wanted = all.iter().filter(|(_, values)| (5..9).contains(&values[0].as_i64().expect("a number")));
    let wanted = wanted.count() as u64;
    assert!(wanted > 0 && wanted < all.len() as u64, "{all:?}");
    let out = std::env::temp_dir().join(format!("trapline-locals-if-{}.json", std::process::id()));
    let mut command = Command::new(binary());
    command.args(["trace", "--json", "-q", "--if", "at->id > 4 && at->id < 9", "-o"]).arg(&out);
    command
        .arg(format!("{}@locals.c:{line}({})", program.display(), names.join(", ")))
        .arg("--")
        .arg(&program);
    run(command);
    let text = std::fs::read_to_string(&out).expect("calls");
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    assert_eq!(json!(objects.filter(|one| one["type"] == "call").count()), json!(wanted));
}

/// Registers and memory are read before each instruction of a function with live registers and flags. The program does what
/// it does without.
#[test]
fn the_program_goes_on_as_without_at_each_instruction() {
    let program = or_skip!(victims::c_by("locals", "gcc", &["-O2"]));
    let code = run({
        let mut command = Command::new("objdump");
        command.args(["-d", "--no-show-raw-insn", "--disassemble=work"]).arg(&program);
        command
    });
    let address = |line: &str| u64::from_str_radix(line.split_once(':')?.0.trim(), 16).ok();
    let all: Vec<u64> =
        code.lines().skip_while(|line| !line.ends_with("<work>:")).skip(1).map_while(address).collect();
    let bare = run(Command::new(&program));
    assert!(all.len() > 40 && bare.lines().count() > 9, "{code}");
    let mut hits = 0;
    for inside in all[1..].iter().map(|at| at - all[0]) {
        let out = std::env::temp_dir().join(format!("trapline-locals-each-{}.json", std::process::id()));
        let mut command = Command::new(binary());
        command.args(["trace", "--json", "-q", "-o"]).arg(&out);
        let probe = format!("{}:work+{inside}(total, reg(rax), reg(r11))", program.display());
        command.arg(probe).arg("--").arg(&program);
        assert_eq!(run(command), bare, "work+{inside}");
        let text = std::fs::read_to_string(&out).expect("calls");
        let calls = text.lines().filter(|line| line.contains("\"type\":\"call\""));
        hits += calls.inspect(|call| assert!(!call.contains("null"), "{call}")).count();
    }
    assert!(hits > 100, "{hits} hits");
}
