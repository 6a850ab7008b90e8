//! VAL-1: arguments of USDT probes, in every form that compilers give them. Judges are gdb, which stops at the same
//! places of the same run, the kernel's own bpftrace, and the program's arithmetic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trapline_tests::running::Running;
use trapline_tests::tracing::{Report, once, unchanged};
use trapline_tests::victims::{self, Variant};
use trapline_tests::{debugger, or_skip, text};

const TIMES: u64 = 40;

/// Probes with integers alone, and how many arguments each has.
const INTEGERS: [(&str, usize); 6] =
    [("widths", 6), ("statics", 4), ("tables", 3), ("twelve", 12), ("both", 2), ("leaf", 2)];
const FLOATS: &str = "usdt:operands:operands:floats";

fn builds() -> Result<Vec<PathBuf>, String> {
    let gcc = [Variant::O0, Variant::Plain, Variant::O3, Variant::NonPie, Variant::Framed];
    let mut all =
        gcc.into_iter().map(|variant| victims::c("operands", variant)).collect::<Result<Vec<_>, _>>()?;
    // clang has all of them in memory.
    all.extend(victims::clang("operands"));
    Ok(all)
}

/// Values by probe, in the order of the hits.
type Seen = BTreeMap<String, Vec<Vec<i128>>>;

/// Prints the arguments of the USDT probe where gdb stopped; `?` for those that it cannot read.
const REPORT: &str = r#"python
def report(name, count):
    def one(nth):
        try:
            return str(int(gdb.parse_and_eval("(long)$_probe_arg%d" % nth)))
        except gdb.error:
            return "?"
    print("hit", name, *[one(nth) for nth in range(count)])
end
"#;

/// The same, where some values cannot be read.
type SeenInPart = BTreeMap<String, Vec<Vec<Option<i128>>>>;

/// What gdb finds where it stops: the values that it can read.
fn by_gdb(path: &Path) -> Result<SeenInPart, String> {
    debugger::ready()?;
    let input = std::env::temp_dir().join(format!("trapline-operands-{}", std::process::id()));
    std::fs::write(&input, format!("run {TIMES}\nquit\n")).map_err(|error| error.to_string())?;
    let mut script = REPORT.to_owned();
    for (name, count) in INTEGERS {
        script += &format!(
            "break -probe-stap operands:{name}\ncommands\nsilent\npython report(\"{name}\", {count})\ncontinue\nend\n"
        );
    }
    script += &format!("run < {}\n", input.display());
    let file = input.with_extension("gdb");
    std::fs::write(&file, script).map_err(|error| error.to_string())?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set pagination off", "-ex", "set breakpoint pending off"]);
    let output = gdb.arg("-x").arg(&file).arg(path).output().map_err(|error| format!("no gdb: {error}"))?;
    std::fs::remove_file(&file).ok();
    std::fs::remove_file(&input).ok();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut seen = SeenInPart::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("hit ")) {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        seen.entry(name).or_default().push(words.map(|word| word.parse().ok()).collect());
    }
    if seen.is_empty() {
        return Err(format!("gdb finds no USDT probe: {text}{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(seen)
}

/// What the program passes in round `n`.
fn passed(name: &str, n: u64) -> Vec<i128> {
    let i = n as i64;
    let counter = i * 7 - 20;
    let table = |k: i64| if k & 1 == 1 { -(i * 100 + k) } else { i * 100 + k };
    let all = match name {
        "widths" => vec![
            i64::from((i - 9) as i8),
            i64::from((250 + i) as u8),
            i64::from((-300 * i) as i16),
            i64::from((65000 + i) as u16),
            -i,
            i64::from((i - 3) as u32),
        ],
        "statics" => vec![i64::from((i - 5) as i8), 40000, counter, i << 40 | i],
        "tables" => vec![table(i & 7), table((i & 7) + 2), -i],
        "twelve" => vec![i, -i, i * i, 4, 5, 6 - i, i - 70, -i, 2 * i, -3 * i, -12, counter],
        "both" if (i - 4) & 1 == 1 => vec![i - 4, i << 33],
        "both" => vec![i << 33, counter],
        _ => vec![i * 1000 + 3, i * 1000],
    };
    all.into_iter().map(i128::from).collect()
}

/// Runs the victim under a verb. Its checksum must be that of a run without us.
fn reported(victim: &mut Running, verb: &str, words: &[&str]) -> Report {
    unchanged(victim, verb, words, TIMES)
}

fn values(call: &Value) -> Vec<&Value> {
    call["args"].as_array().expect("arguments").iter().map(|one| &one["value"]).collect()
}

fn number(value: &Value) -> i128 {
    let int = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    int.unwrap_or_else(|| panic!("no number: {value}"))
}

fn name_of(call: &Value) -> &str {
    call["probe"].as_str().and_then(|probe| probe.rsplit(':').next()).expect("a name")
}

/// All integers are those of the debugger, in one run over all of them.
#[test]
fn each_operand_is_what_a_debugger_finds() {
    for path in or_skip!(builds()) {
        let expected = or_skip!(by_gdb(&path));
        let mut victim = Running::start(&path, &[]);
        let before = text::signals(victim.pid());
        let report = reported(&mut victim, "trace", &["usdt:operands:operands:*"]);
        let mut seen = Seen::new();
        for call in
            report.calls().into_iter().filter(|call| INTEGERS.iter().any(|(name, _)| *name == name_of(call)))
        {
            let all = values(call).into_iter().map(number).collect();
            seen.entry(name_of(call).to_owned()).or_default().push(all);
        }
        let mut compared = 0;
        for (name, _) in INTEGERS {
            let own: Vec<Vec<i128>> = (0..TIMES).map(|n| passed(name, n)).collect();
            assert_eq!(seen[name], own, "{}: {name}: {}", path.display(), report.errors);
            for (ours, theirs) in seen[name].iter().zip(&expected[name]) {
                for (one, other) in ours.iter().zip(theirs).filter_map(|(one, other)| Some((one, (*other)?)))
                {
                    assert_eq!(*one, other, "{}: {name}: gdb", path.display());
                    compared += 1;
                }
            }
        }
        // gdb has no addresses for what is in variables of the file.
        assert!(compared > 20 * TIMES, "gdb reads only {compared}");
        text::assert_clean(victim.pid(), &before);
    }
}

#[test]
fn floats_are_those_of_the_program() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        for probe in [FLOATS.to_owned(), format!("{FLOATS}(float x, double y, double share, long n)")] {
            let report = reported(&mut victim, "trace", &[&probe]);
            let all = report.calls();
            assert_eq!(all.len() as u64, TIMES, "{}", report.errors);
            for (n, call) in (0..).zip(all) {
                let of = f64::from(n);
                let expected = [f64::from(n as f32 * 0.5 - 1.0), of / 3.0, 0.25, of];
                let seen: Vec<f64> =
                    values(call).iter().map(|value| value.as_f64().expect("a float")).collect();
                assert_eq!(seen, expected, "{}: {call}", path.display());
            }
        }
    }
}

/// A value of another kind or width than the note says is no number at all.
#[test]
fn what_is_of_another_kind_is_unknown() {
    let path = or_skip!(victims::c("operands", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let report =
        reported(&mut victim, "trace", &[&format!("{FLOATS}(double x, int y, float share, double n)")]);
    let all = report.calls();
    assert_eq!(all.len() as u64, TIMES, "{}", report.errors);
    assert!(all.iter().all(|call| values(call).iter().all(|value| value.is_null())), "{}", all[0]);
    for condition in ["x < 1e9 || x >= 1e9", "y == y", "share == share", "n == n"] {
        let probe = format!("{FLOATS}(double x, int y, float share, double n)");
        assert_eq!(
            reported(&mut victim, "trace", &["--if", condition, &probe]).calls().len(),
            0,
            "{condition}"
        );
    }
}

/// Conditions, sums and stacks by arguments of any number and kind.
#[test]
fn conditions_know_every_argument() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        let twelve = "usdt:operands:operands:twelve(long a, long b, long c, long d, long e, long f, int g, short h, long i, long j, long k, int l)";
        let floats = &format!("{FLOATS}(float x, double y, double share, long n)");
        let passing = |holds: fn(i64) -> bool| (0..TIMES as i64).filter(|n| holds(*n)).count();
        for (condition, probe, passes) in [
            ("g == -65", twelve, 1),
            ("h < -30 && k == -12", twelve, 9),
            ("i > 10 && j < 0 && l > 100", twelve, passing(|n| n > 5 && n * 7 - 20 > 100)),
            ("arg6 < 0 && arg11 < 0", "usdt:operands:operands:twelve", 3),
            ("x < 0.5", floats, 3),
            ("y > 10 && x <= 14.5", floats, 1),
            ("share == 0.25 && n % 4 == 1", floats, 10),
            ("arg0 == -1", FLOATS, 1),
        ] {
            let report = reported(&mut victim, "trace", &["--if", condition, probe]);
            let shown = path.display();
            assert_eq!(report.calls().len(), passes, "{shown}: {condition}: {}", report.errors);
        }
        let report = reported(&mut victim, "hist", &["g % 2", twelve, "--top=9"]);
        let sums = report.objects.iter().rfind(|one| one["type"] == "hist").expect("a histogram").to_string();
        assert!(sums.contains("[0,20],[-1,20]"), "{sums}");
    }
}

/// A stack is recorded only where an argument in a register decides so; one in memory cannot, and that is said.
#[test]
fn stacks_are_taken_by_arguments_in_registers() {
    let path = or_skip!(victims::c("operands", Variant::Framed));
    let mut victim = Running::start(&path, &[]);
    let report = reported(&mut victim, "stack", &["--if", "arg3 % 4 == 1", FLOATS]);
    let hits: u64 = report
        .objects
        .iter()
        .filter(|one| one["type"] == "stack")
        .filter_map(|one| one["hits"].as_u64())
        .sum();
    assert_eq!(hits, TIMES / 4, "{}", report.errors);
    let of = |report: &Report| {
        let stacks = report.objects.iter().filter(|one| one["type"] == "stack");
        stacks.map(|one| one["frames"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        of(&report),
        of(&reported(&mut victim, "stack", &[FLOATS])),
        "the same stacks as without a condition"
    );
    let pid = victim.pid().to_string();
    let output =
        once(&["stack", "-d", "0.2", "-p", &pid, "--if", "arg2 == 1", "usdt:operands:operands:statics"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("with stacks, only arguments in registers decide"), "{error}");
}

#[test]
fn texts_are_found_through_any_operand() {
    for path in or_skip!(builds()) {
        let mut victim = Running::start(&path, &[]);
        let probe = "usdt:operands:operands:texts(str text, u64 len, str other)";
        let bytes = "usdt:operands:operands:texts(buf(len=len) text, u64 len)";
        let (whole, cut) =
            (reported(&mut victim, "trace", &[probe]), reported(&mut victim, "trace", &[bytes]));
        for (n, (call, part)) in (0..).zip(whole.calls().into_iter().zip(cut.calls())) {
            let (text, len) = (format!("line {n} of many"), n & 7);
            let all = [
                Value::from(text.clone()),
                Value::from(len),
                Value::from(if n & 1 == 1 { "odd" } else { "even" }),
            ];
            assert_eq!(values(call), all.iter().collect::<Vec<_>>(), "{}", path.display());
            assert_eq!(values(part)[0].as_str(), Some(&text[..len]), "{part}");
        }
        assert_eq!((whole.calls().len() as u64, cut.calls().len() as u64), (TIMES, TIMES));
    }
}

/// The kernel's own bpftrace, on the same hits.
#[test]
fn arguments_are_those_of_bpftrace() {
    let path = or_skip!(victims::c("operands", Variant::Plain));
    let mut victim = Running::start(&path, &[]);
    let pid = victim.pid().to_string();
    let at = path.display();
    let script = format!(
        "usdt:{at}:operands:widths {{ printf(\"widths %d %d %d %d %d %d\\n\", arg0, arg1, arg2, arg3, arg4, arg5); }} \
         usdt:{at}:operands:leaf {{ printf(\"leaf %ld %ld\\n\", arg0, arg1); }}"
    );
    let output = std::env::temp_dir().join(format!("trapline-bpftrace-{pid}"));
    let command = format!(
        "mount -t tracefs tracefs /sys/kernel/tracing; exec bpftrace -B none -o {} -p {pid} -e '{script}'",
        output.display()
    );
    let mut bpftrace = or_skip!(
        Command::new("unshare")
            .args(["-m", "bash", "-c", &command])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())
    );
    let read = || std::fs::read_to_string(&output).unwrap_or_default();
    let begun = std::time::Instant::now();
    // It sees nothing until it is attached.
    while !read().contains("leaf") {
        if bpftrace.try_wait().is_ok_and(|ended| ended.is_some()) || begun.elapsed().as_secs() > 30 {
            bpftrace.kill().ok();
            bpftrace.wait().ok();
            println!("skipped: bpftrace does not attach here");
            return;
        }
        victim.run(1);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    victim.run(TIMES);
    drop(victim);
    // It ends with its process, and has written all by then.
    let begun = std::time::Instant::now();
    while bpftrace.try_wait().is_ok_and(|ended| ended.is_none()) {
        assert!(begun.elapsed().as_secs() < 30, "bpftrace does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let last = passed("leaf", TIMES - 1);
    let last = format!("leaf {} {}", last[0], last[1]);
    let theirs = read();
    std::fs::remove_file(&output).ok();
    let theirs: Vec<&str> = theirs.lines().filter(|line| !line.is_empty()).collect();
    let end = theirs.iter().rposition(|line| **line == last).expect("the whole run") + 1;
    let theirs = &theirs[end - 2 * TIMES as usize..end];
    let mut victim = Running::start(&path, &[]);
    let report =
        reported(&mut victim, "trace", &["usdt:operands:operands:widths", "usdt:operands:operands:leaf"]);
    let ours: Vec<String> = report
        .calls()
        .into_iter()
        .map(|call| {
            // bpftrace's `%d` shows 32 bits with a sign.
            let shown = values(call).into_iter().map(|value| match name_of(call) {
                "leaf" => format!(" {}", number(value)),
                _ => format!(" {}", number(value) as i32),
            });
            name_of(call).to_owned() + &shown.collect::<String>()
        })
        .collect();
    assert_eq!(ours, theirs);
}
