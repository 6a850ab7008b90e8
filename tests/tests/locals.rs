//! VAL-1: variables at lines inside functions are what a debugger shows at the same instructions, or unknown. Judge: gdb,
//! which stops at the same lines of the same program with the same input.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

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

/// A file of its own for each use: tests run side by side.
fn place(name: &str) -> PathBuf {
    static USES: AtomicU32 = AtomicU32::new(0);
    let nth = USES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("trapline-locals-{}-{nth}-{name}", std::process::id()))
}

/// The text of a file, which is removed.
fn taken(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a file");
    std::fs::remove_file(path).expect("removed");
    text
}

/// Runs a command with the program's input. Returns what it printed.
fn run(mut command: Command) -> String {
    let input = place("input");
    std::fs::write(&input, INPUT).expect("room");
    let output =
        command.stdin(std::fs::File::open(&input).expect("the input")).stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    std::fs::remove_file(&input).expect("removed");
    assert!(output.status.success(), "{command:?}: {}", errors(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What gdb shows: at each stop the offset in the function, and the values.
fn by_gdb(program: &Path, line: usize, names: &[&str]) -> Vec<(u64, Vec<Value>)> {
    let script = place("gdb.py");
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
    std::fs::remove_file(&script).expect("removed");
    let here = printed.lines().filter_map(|line| line.split_once("HERE ").map(|(_, json)| json.to_owned()));
    here.map(|json| serde_json::from_str(&json).expect("JSON")).collect()
}

/// The same, as `trace` shows it; `None` if it says that one of the variables is not there.
fn by_trace(program: &Path, line: usize, names: &[&str]) -> Option<Vec<(u64, Vec<Value>)>> {
    let out = place("out");
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
    let objects = calls(&out);
    let offset = |call: &Value| {
        let probe = call["probe"].as_str().expect("a probe");
        probe.rsplit_once('+').map_or(0, |(_, offset)| offset.parse().expect("an offset"))
    };
    Some(objects.iter().map(|call| (offset(call), values(call))).collect())
}

/// The calls in a file of JSON, which is removed.
fn calls(out: &Path) -> Vec<Value> {
    let text = taken(out);
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    objects.filter(|one| one["type"] == "call").collect()
}

fn values(call: &Value) -> Vec<Value> {
    call["args"].as_array().expect("values").iter().map(|one| one["value"].clone()).collect()
}

/// The values of each hit of a probe.
fn hits_of(program: &Path, probe: &str) -> Vec<Vec<Value>> {
    let out = place("out");
    let mut command = Command::new(binary());
    command.args(["trace", "--json", "-q", "-o"]).arg(&out).arg(probe).arg("--").arg(program);
    run(command);
    calls(&out).iter().map(values).collect()
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

/// Before a function has put its parameters where their notes say, they are where the caller put them, or unknown. What they
/// are stands in the program's source.
#[test]
fn parameters_are_right_before_they_are_stored() {
    let mut seen = 0;
    for (compiler, flags) in [("gcc", "-O0"), ("gcc", "-O2"), ("clang", "-O0"), ("clang", "-O2")] {
        let program = or_skip!(victims::c_by("locals", compiler, &[flags]));
        let names = ["a", "b", "f", "g", "text"];
        let line = format!("{}@locals.c:{}", program.display(), line("KEPT int many"));
        let first = instructions(&program, "many").into_iter().take(16);
        let inside = first.map(|inside| format!("{}:many+{inside}", program.display()));
        for place in std::iter::once(line).chain(inside) {
            let out = hits_of(&program, &format!("{place}({})", names.join(", ")));
            for (call, given) in out.iter().zip(INPUT.lines()) {
                assert_eq!(call.len(), names.len(), "{place}");
                let id: i64 = given.parse().expect("a number");
                let wanted = [json!(1), json!(2), json!(6), json!(id), json!(given)];
                for (value, wanted) in call.iter().zip(&wanted) {
                    assert!(
                        value.is_null() || value == wanted,
                        "{compiler} {flags} {place}: {call:?} of {given}"
                    );
                    seen += u32::from(!value.is_null());
                }
            }
        }
    }
    assert!(seen > 200, "{seen} values");
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
    let out = place("out");
    let mut command = Command::new(binary());
    command.args(["trace", "--json", "-q", "--if", "at->id > 4 && at->id < 9", "-o"]).arg(&out);
    command
        .arg(format!("{}@locals.c:{line}({})", program.display(), names.join(", ")))
        .arg("--")
        .arg(&program);
    run(command);
    assert_eq!(calls(&out).len() as u64, wanted);
}

/// The instructions of a function behind its first one, by objdump: distances from that.
fn instructions(program: &Path, function: &str) -> Vec<u64> {
    let mut command = Command::new("objdump");
    command.args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")]).arg(program);
    let code = run(command);
    let address = |line: &str| u64::from_str_radix(line.split_once(':')?.0.trim(), 16).ok();
    let lines = code.lines().skip_while(|line| !line.ends_with(&format!("<{function}>:"))).skip(1);
    let all: Vec<u64> = lines.map_while(address).collect();
    assert!(all.len() > 20, "{code}");
    all[1..].iter().map(|at| at - all[0]).collect()
}

/// Registers and memory are read before each instruction of functions with live registers and flags. The program does what it
/// does without.
#[test]
fn the_program_goes_on_as_without_at_each_instruction() {
    for (compiler, flags) in [("gcc", &["-O2"][..]), ("clang", &["-O2"])] {
        let program = or_skip!(victims::c_by("locals", compiler, flags));
        let bare = run(Command::new(&program));
        assert!(bare.lines().count() > 9, "{bare}");
        let mut hits = 0;
        for function in ["work", "many", "main"] {
            for inside in instructions(&program, function) {
                let out = place("out");
                let mut command = Command::new(binary());
                command.args(["trace", "--json", "-q", "-o"]).arg(&out);
                let probe = format!("{}:{function}+{inside}(total, reg(rax), reg(r11))", program.display());
                command.arg(probe).arg("--").arg(&program);
                assert_eq!(run(command), bare, "{compiler}: {function}+{inside}");
                let all: Vec<Vec<Value>> = calls(&out).iter().map(values).collect();
                let are_there = |values: &Vec<Value>| values.len() == 3 && !values.contains(&Value::Null);
                assert!(all.iter().all(are_there), "{all:?}");
                hits += all.len();
            }
        }
        assert!(hits > 400, "{hits} hits");
    }
}

const LIBRARY: &str = r#"
#include <stdio.h>
int replaced = 5, own = 6;
static int hidden = 70;
__attribute__((visibility("hidden"))) int kept = 80;
__attribute__((noinline)) int step(int by) {
    replaced += by; own += by; hidden += by; kept += by;
    printf("%d %d %d\n", replaced, hidden, kept); /* here */
    return replaced;
}
"#;
const PROGRAM: &str = r#"
extern int replaced;
extern int count;
int step(int by);
int bump(void);
int counted;
int main(void) { replaced = 100; counted = step(1) + bump() + count; return counted == 0; /* main */ }
"#;
const ELSEWHERE: &str = "int count = 40; int bump(void) { return ++count; }";
const ANOTHER: &str = "static int count = 7; int unused(void) { return count++; }";

/// A program with a library of its own, which has a copy of one of the library's variables.
fn with_library() -> PathBuf {
    let folder = place("library");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, text) in
        [("own.c", LIBRARY), ("prog.c", PROGRAM), ("elsewhere.c", ELSEWHERE), ("another.c", ANOTHER)]
    {
        std::fs::write(folder.join(name), text).expect("room");
    }
    let gcc = |args: &[&str]| {
        let done = Command::new("gcc").args(["-O1", "-g"]).args(args).current_dir(&folder).status();
        assert!(done.expect("gcc").success(), "{args:?}");
    };
    gcc(&["-fPIC", "-shared", "-o", "libown_variables.so", "own.c"]);
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let sources = ["prog.c", "another.c", "elsewhere.c", "-L.", "-lown_variables", &rpath];
    gcc(&[&["-no-pie", "-o", "prog"][..], &sources].concat());
    folder
}

/// A library's variable may have a copy in the program, which counts. Which one does is not known, so no value is shown. The
/// library is found as the program's loader finds it, and so are the arguments of its functions.
#[test]
fn a_variable_that_the_program_replaces_is_unknown() {
    let folder = with_library();
    let library = folder.join("own.c");
    let text = std::fs::read_to_string(&library).expect("the source");
    let line = text.lines().position(|line| line.contains("/* here */")).expect("the mark") + 1;
    let shown = |probe: &str, words: &[&str]| -> (Vec<Value>, String) {
        let out = folder.join("out");
        let mut command = Command::new(binary());
        command.args(["trace", "--json", "-o"]).arg(&out).arg(probe).args(words);
        let output = command.arg("--").arg(folder.join("prog")).output().expect("trapline starts");
        assert!(output.status.success(), "{}", errors(&output));
        (values(&calls(&out)[0]), errors(&output))
    };
    let (values, said) = shown(&format!("own_variables@own.c:{line}(hidden, kept, replaced, own)"), &[]);
    assert_eq!(values, [json!(71), json!(81), Value::Null, Value::Null], "{said}");
    let (values, _) = shown("own_variables:step", &[]);
    assert_eq!(values, [json!(1)]);
    // A static variable of the same name, in a unit before it, is another one. The line begins where the function does.
    let main = PROGRAM.lines().position(|line| line.contains("/* main */")).expect("the mark") + 1;
    let (values, said) = shown(&format!("prog@prog.c:{main}(count, counted)"), &[]);
    assert_eq!(values, [json!(40), json!(0)], "{said}");
    std::fs::remove_dir_all(&folder).expect("removed");
}
