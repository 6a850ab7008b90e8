//! What is wrong with a script is said with its place, a mark, and what to do.

mod common;

use common::errors;
use trapline_script::{Options, Source, compile};

#[test]
fn an_error_has_place_line_mark_and_hint() {
    let expected = "\
stdin:1:9-20: ERROR: Unknown function: 'pritnf'
begin { pritnf(\"x\"); }
        ~~~~~~~~~~~
HINT: Did you mean printf?
";
    assert_eq!(errors("begin { pritnf(\"x\"); }"), expected);
}

#[test]
fn every_wrong_script_gets_its_message() {
    for (script, message) in [
        ("struct S { struct float x; }; begin { }", "field has incomplete type 'struct float'"),
        ("struct S { struct double x[2]; }; begin { }", "field has incomplete type 'struct double'"),
        ("struct S { struct nosuch x[2]; }; begin { }", "field has incomplete type 'struct nosuch'"),
        ("begin { print(1", "syntax error, unexpected end of file, expected ')'"),
        ("begin { @x = \"abc; }", "syntax error, unterminated string"),
        ("begin { $x = ; }", "syntax error, unexpected ;, expected expression"),
        ("begin { 1 = 2; }", "invalid assignment target"),
        ("begin { $t = (1, 2); $t.0 = 3; }", "Tuples and records are immutable"),
        ("begin { ++5; }", "increment/decrement requires a variable or map"),
        ("begin { print($x); }", "Undefined or undeclared variable: $x"),
        ("begin { print(@x); }", "Undefined map: @x"),
        ("begin { print(nosuch); }", "Unknown identifier: 'nosuch'"),
        (
            "begin { @a = 1; @a = \"x\"; }",
            "trying to assign value of type 'string[2]' when map already has a type 'int8'",
        ),
        ("begin { $a = 1; $a = (1, 2); }", "when variable already has a type 'int8'"),
        (
            "begin { @a[1] = 1; @a[\"x\"] = 1; }",
            "Argument mismatch for @a: trying to access with arguments: 'string[2]'",
        ),
        ("begin { @a = count(); @a = sum(1); }", "Type mismatch for @a"),
        ("begin { @a[1] = 1; @a = 1; }", "previously used with explicit keys"),
        ("begin { $x = hist(1); }", "cannot be assigned to a variable"),
        ("begin { let $x; let $x; }", "Variable shadowing is not allowed"),
        ("begin { let $x: uint8 = 300; }", "does not fit into the type 'uint8'"),
        ("begin { break; }", "break statement outside of a loop"),
        ("begin { unroll (101) { } }", "unroll maximum value is 100"),
        ("begin { printf(\"%d\"); }", "not enough arguments for format string (0 supplied, 1 expected)"),
        ("begin { printf(\"%d\", \"x\"); }", "unsupported format specifier for type 'string[2]': d"),
        ("begin { printf(1); }", "printf() expects a string literal"),
        ("begin { @ = lhist(1, 10, 5, 1); }", "lhist() min must be less than max"),
        ("begin { @ = hist(1, 9); }", "hist: bits 9 must be 0..5"),
        ("begin { print((1, 2).5); }", "Invalid tuple index: 5. Found 2 elements in tuple."),
        ("struct S { int a; } begin { print(((struct S *)0).b); }", "does not contain a field named 'b'"),
        ("begin { print(*(struct S *)0); }", "Unknown struct/union: 'struct S'"),
        ("struct S { struct T t; } begin { }", "field has incomplete type 'struct T'"),
        ("begin { if (\"x\") { } }", "Invalid condition: string[2]"),
        ("begin { print(\"a\" + 1); }", "Type mismatch for '+'"),
        ("begin { $a = 1 ? 2 : \"x\"; }", "Branches must return the same type"),
        ("begin { system(\"ls\"); }", "system() is unsafe. To use you need the --unsafe flag"),
        ("begin { print(arg0); }", "The arg0 builtin can only be used with uprobe or usdt probes"),
        ("begin { print(kstack); }", "kstack is not supported"),
        ("begin { count(1); }", "count() requires 0 arguments (1 provided)"),
        ("config = { nosuch = 1 } begin { }", "nosuch: not a known configuration option"),
        ("config = { max_strlen = x } begin { }", "expecting a number, got x"),
        ("k:vfs_read { }", "kprobe probes are not supported"),
        ("begin { } struct S { int a; }", "C definitions must appear before probes"),
        ("let @a = tree(5); begin { @a[1] = 1; }", "Invalid bpf map type: tree"),
        ("macro m(x) { m(x) } begin { m(1); }", "Recursive macro call detected: m"),
        ("macro m(@x) { @y = 1; } begin { m(@z); @z = 1; }", "Unhygienic access to map: @y"),
        ("macro m($x) { $x } begin { m(1); }", "Mismatched macro argument"),
        ("macro m(x) { x } begin { m(1, 2); }", "wrong number of arguments: expected 1, got 2"),
    ] {
        let text = errors(script);
        assert!(text.contains(message), "{script}\n{text}");
        let (first, line) = (text.lines().next().unwrap_or_default(), text.lines().nth(1));
        assert!(first.starts_with("stdin:1:") && first.contains(": ERROR: "), "{text}");
        assert_eq!(line, Some(script), "{text}");
    }
}

#[test]
fn an_error_in_a_macro_says_where_it_was_called() {
    let script = "macro m(x) { x + \"a\" } begin { print(m(1)); }";
    let expected = format!(
        "stdin:1:14-21: ERROR: Type mismatch for '+': comparing int8 with string[2]\n{script}\n{}{}\nstdin:1:38-42: ERROR: expanded from\n{script}\n{}{}\n",
        " ".repeat(13),
        "~".repeat(7),
        " ".repeat(37),
        "~".repeat(4)
    );
    assert_eq!(errors(script), expected);
}

#[test]
fn what_follows_from_an_error_is_not_said() {
    let text = errors("begin { print(kaddr(\"x\")); }");
    assert_eq!(text.matches("ERROR").count(), 1, "{text}");
}

#[test]
fn parameters_that_nothing_asks_for_are_named() {
    let options = Options { named: vec!["bb=1".to_owned()], ..Options::default() };
    let script = Source::new("stdin", b"begin { print(getopt(\"aa\", 10)); }");
    let text = compile(script, &options).expect_err("an unknown parameter");
    let expected =
        "ERROR: unexpected program command line options: --bb\nHINT: expected program options: --aa\n";
    assert_eq!(text, expected);
}
