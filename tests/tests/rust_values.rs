//! VAL-1 for Rust: arguments come from where the compiler says that they are; what it does not say is unknown. Judge: what
//! the program prints of the same calls. The program is launched by its own name, and another of that name is in $PATH.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trapline_tests::tracing::binary;
use trapline_tests::{or_skip, victims};

/// Runs the program with these lines, and with calls of a probe recorded. Returns what it printed of each, and the recorded calls.
fn traced(lines: &[&str], probe: &str) -> Result<(Vec<String>, Vec<Value>), String> {
    let path = victims::rust("given")?;
    let folder =
        std::env::temp_dir().join(format!("trapline-rust-values-{}-{}", std::process::id(), probe.len()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy("/bin/true", folder.join("given")).expect("a program");
    let out = folder.join("out");
    let mut command = Command::new(binary());
    command.args(["trace", "--json", "-q", "-o"]).arg(&out).arg(probe).arg("--").arg(path);
    command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").expect("PATH")));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("trapline starts");
    let mut input = child.stdin.take().expect("piped");
    lines.iter().for_each(|line| writeln!(input, "{line}").expect("read"));
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = std::fs::read_to_string(&out).expect("calls");
    std::fs::remove_dir_all(&folder).expect("removed");
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    Ok((
        printed.lines().skip(1).map(str::to_owned).collect(),
        objects.filter(|one| one["type"] == "call").collect(),
    ))
}

/// Names and values of the nth call of a function, and what it returned.
fn of(calls: &[Value], name: &str, nth: usize) -> (Value, Value) {
    let all: Vec<&Value> = calls
        .iter()
        .filter(|call| {
            call["probe"].as_str().is_some_and(|probe| probe.contains(&format!("{}{name}17h", name.len())))
        })
        .collect();
    let call = all.get(nth).unwrap_or_else(|| panic!("{name} {nth}: {calls:#?}"));
    let arguments = call["args"].as_array().expect("arguments");
    let names =
        arguments.iter().map(|one| (one["name"].as_str().expect("a name").to_owned(), one["value"].clone()));
    (Value::Object(names.collect()), call["ret"].clone())
}

#[test]
fn rust_arguments_are_what_the_program_passed() {
    let lines = ["a", "hello", "größer"];
    let (printed, calls) = or_skip!(traced(&lines, "given:given::*"));
    assert_eq!(printed.len(), lines.len());
    for (nth, line) in printed.iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let [sum, half, many, longer, far, _, below, wide, mode, text] = words[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<i64>().map_or_else(|_| panic!("{line}"), Value::from);
        let length = text.len() as f64 + 0.5;
        let modes = json!(if mode == "Fast" { 7 } else { 0 });
        assert_eq!(
            of(&calls, "numbers", nth),
            (
                json!({ "byte": 200, "below": number(below), "wide": number(wide), "mode": modes }),
                sum.parse::<u64>().map_or(Value::Null, Value::from)
            ),
        );
        assert_eq!(
            of(&calls, "half", nth),
            (
                json!({ "of": length, "letter": 'é' as u32 }),
                half.parse::<f64>().map_or(Value::Null, Value::from)
            )
        );
        assert_eq!(of(&calls, "text", nth), (json!({ "name": text, "times": 3 }), number(many)));
        let is_longer = json!(i32::from(longer == "true"));
        assert_eq!(of(&calls, "bytes", nth), (json!({ "times": 2, "all": text }), is_longer));
        let at = json!({ "x": number(below), "y": 9 });
        assert_eq!(of(&calls, "place", nth), (json!({ "at": at }), number(far)));
        let n = text.len() as u64;
        let returned = |name| of(&calls, name, nth).1;
        assert_eq!(returned("pair"), json!({ "__0": n, "__1": -(n as i64) }));
        assert_eq!(returned("mixed"), json!({ "__0": n as f64 / 2.0, "__1": n }));
        assert_eq!(returned("tiny"), json!({ "one": n, "two": 0x1234, "three": n + 1 }));
        assert_eq!(returned("metres"), json!({ "__0": n as f64 }));
        assert_eq!(returned("slice")["length"], json!(n - 1), "{}", returned("slice"));
        // In which registers the first two are depends on the compiler; the third is not shown yet.
        for name in ["close", "may_be", "wide"] {
            assert_eq!(returned(name), Value::Null, "{name}");
        }
        let shape = if n > 2 { json!({ "Square": { "side": 4 } }) } else { json!({ "Round": 1.5 }) };
        assert_eq!(of(&calls, "shape", nth).0, json!({ "of": shape }));
        let given = of(&calls, "owned", nth).0;
        assert_eq!(given["name"], json!(text));
        assert_eq!(given["of"], if n == 1 { json!("None") } else { json!({ "Some": n }) }, "{given}");
        assert_eq!(given["other"] == json!("None"), n <= 2, "{given}");
        let all = json!({ "len": n * 3, "first": vec![-(n as i64); 8.min(n as usize * 3)] });
        let given = of(&calls, "order", nth).0;
        assert_eq!((&given["by"], &given["all"]), (&json!(text), &all));
    }
}

#[test]
fn fields_are_strings_vectors_and_enumerations() {
    let lines = ["a", "hello", "abc"];
    for (probe, fields) in [
        ("given:given::order(of->name, of->kind, of->tags)", ["name", "kind", "tags"]),
        ("given:given::order(of->text, of->next, of->shape)", ["text", "next", "shape"]),
    ] {
        let (_, calls) = or_skip!(traced(&lines, probe));
        for (nth, line) in lines.iter().enumerate() {
            let given = of(&calls, "order", nth).0;
            let n = line.len();
            for field in fields {
                let value = &given[&format!("of->{field}")];
                let expected = match field {
                    "name" => json!(line),
                    "text" => json!("a text"),
                    "kind" => {
                        if n == 1 {
                            json!("None")
                        } else {
                            json!({ "Some": n })
                        }
                    }
                    "tags" => json!({ "len": n, "first": (0..n).collect::<Vec<_>>() }),
                    "shape" => {
                        if n > 1 {
                            json!({ "Round": n as f64 })
                        } else {
                            json!({ "Square": { "side": 9 } })
                        }
                    }
                    // A box is an address.
                    _ => {
                        assert_eq!(n == 5, *value == json!("None"), "{given}");
                        value.clone()
                    }
                };
                assert_eq!(*value, expected, "{field} of {line}: {given}");
            }
        }
    }
}
