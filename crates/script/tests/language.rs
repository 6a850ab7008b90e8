//! What statements, expressions and functions mean.

mod common;

use common::{errors, output, run_with};
use trapline_script::{Options, Style};

/// Each script writes what stands behind it.
fn all(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        let script = format!("begin {{ {script} }}");
        assert_eq!(output(&script), *expected, "{script}");
    }
}

#[test]
fn integers_have_their_types_and_wrap() {
    all(&[
        ("print((uint8)300);", "44"),
        ("print((int8)200);", "-56"),
        ("$x = (uint32)5 - (uint32)6; print($x);", "-1"),
        ("print((uint64)1 + (uint64)2);", "3"),
        ("$x = 5; print(sizeof($x)); $x = 300;", "2"),
        ("$x = 5; $x = (uint64)6; print(sizeof($x));", "8"),
        ("print(18446744073709551615);", "18446744073709551615"),
        ("print(-9223372036854775808);", "-9223372036854775808"),
        ("$x = 9223372036854775807; $x++; print($x);", "-9223372036854775808"),
        ("$a = -7; print(($a / 2, $a % 2, $a >> 60, 1 << 5));", "(-3, -1, 15, 32)"),
        ("$a = (uint64)18446744073709551615; print(($a > 1, $a / 2));", "(true, 9223372036854775807)"),
        ("$a = -1; print(($a < 0, $a < (uint32)5, !$a, ~$a));", "(true, true, false, 0)"),
        ("print((1 + 2 * 3 - 4 / 2, 7 & 3 | 8 ^ 1));", "(5, 11)"),
        ("print((1 < 2 && 3 > 4 || 5 == 5, 1 ? 2 : 3, 0 ?: 4));", "(true, 2, 4)"),
    ]);
}

#[test]
fn floating_point_fields_take_their_room() {
    let script = "struct S { char a; double d; int x; float f[2]; };
                  begin { print((sizeof(struct S), offsetof(struct S, x), offsetof(struct S, f))); }";
    assert_eq!(output(script), "(32, 16, 20)");
    let wrong = errors("struct S { float a; }; struct T { struct S s; struct U u; }; begin { }");
    assert!(wrong.contains("incomplete type 'struct U'"), "{wrong}");
}

#[test]
fn division_by_zero_is_one_with_a_warning() {
    let script = "begin { @z = 0; print((10 / @z, 10 % @z)); }";
    let ran = run_with(script, &Options::default(), Style::default());
    assert!(ran.output.starts_with("(1, 1)\n"), "{}", ran.output);
    assert_eq!(ran.errors.matches("WARNING: Divide or modulo by 0 detected").count(), 2, "{}", ran.errors);
    assert!(ran.errors.starts_with("stdin:1:24-31: WARNING"), "{}", ran.errors);
}

#[test]
fn control_flow_goes_where_it_should() {
    all(&[
        ("for ($i : 1..4) { if ($i == 2) { continue; } print($i); }", "1\n3"),
        ("for ($i : 5..2) { print($i); }", ""),
        ("$i = 0; while ($i < 9) { $i++; if ($i == 3) { break; } } print($i);", "3"),
        ("$a = 1; unroll (5) { $a = $a * 2; } print($a);", "32"),
        ("if (0) { print(1); } else if (1) { print(2); } else { print(3); }", "2"),
        ("print(1); return; ", "1"),
        (
            "for ($i : 0..3) { for ($j : 0..3) { if ($j == 1) { break; } print(($i, $j)); } }",
            "(0, 0)\n(1, 0)\n(2, 0)",
        ),
        ("$x = { let $y = 4; $y + 1 }; print($x);", "5"),
        ("if (1) { $x = 1; } if (1) { let $x; if ($x) { $x = 5; } print($x); }", "0"),
        ("let $x: uint16 = 70; print((sizeof($x), $x));", "(2, 70)"),
    ]);
}

#[test]
fn maps_hold_values_by_their_keys() {
    all(&[
        ("@a[1] = 2; @a[1]++; print(@a[1]); delete(@a, 1); print(len(@a));", "3\n0"),
        ("@a[1, \"x\"] = 5; if (has_key(@a, (1, \"x\"))) { print(\"yes\"); } clear(@a);", "yes"),
        ("@a[3] = 1; @a[1] = 2; for ($kv : @a) { print($kv); } clear(@a);", "(3, 1)\n(1, 2)"),
        ("@a[1] = 1; for ($kv : @a) { @a[2] = 2; delete(@a, 1); } print(len(@a)); clear(@a);", "1"),
        ("@a[1] = 7; if (find(@a, 1, $v)) { print($v); } print(find(@a, 2, $v)); clear(@a);", "7\nfalse"),
        (
            "let $z; @a[$z, 1] = 1; @a[@none, 1] += 2; @a[0, 1] += 3; print(@a); @none = 0; $z = 0; clear(@a); clear(@none);",
            "@a[0, 1]: 6",
        ),
        ("@x += 5; @x -= 7; print(@x); clear(@x);", "@x: -2"),
        ("print(delete(@a, 1)); @a[1] = 1; print(delete(@a[1]));", "false\ntrue"),
    ]);
}

#[test]
fn aggregations_add_up() {
    all(&[
        ("@ = count(); @ = count();", "@: 2"),
        ("@ = sum(10); @ = sum(-3);", "@: 7"),
        ("@ = avg(10); @ = avg(21);", "@: 15"),
        ("@ = min(3); @ = min(-4); @ = min(9);", "@: -4"),
        ("@ = max(3); @ = max(40); @ = max(9);", "@: 40"),
        ("@ = stats(2); @ = stats(4);", "@: { .count = 2, .average = 3, .total = 6 }"),
        ("@c = count(); if (@c == 1) { print(@c + 1); } clear(@c);", "2"),
        ("@a[1] = count(); @a[2] = count(); @a[2] = count(); print(@a, 1); clear(@a);", "@a[2]: 2"),
        ("@a[1] = sum(100); print(@a, 0, 10); clear(@a);", "@a[1]: 10"),
        ("@ = { let $x = 4; avg($x) };", "@: 4"),
    ]);
}

#[test]
fn macros_are_put_in_without_mixing_names() {
    let cases = [
        ("macro inc($x) { $x += 1; } begin { $a = 1; inc($a); print($a); }", "2"),
        ("macro two(x) { x + x } begin { $y = 1; print(two({ $y += 1; $y })); }", "5"),
        ("macro f(x) { let $y = x + 1; $y } begin { $y = 10; print((f($y), $y)); }", "(11, 10)"),
        ("macro set(@m, v) { @m[v] = v; } begin { set(@q, 3); }", "@q[3]: 3"),
        ("macro one() { 1 } begin { print(one + one()); }", "2"),
        ("macro a(x) { x } macro b(x) { a(x) + a(a(x)) } begin { print(b(2)); }", "4"),
        ("macro size(t) { sizeof(t*) + sizeof(t) } begin { print(size(typeof(uint16))); }", "10"),
    ];
    for (script, expected) in cases {
        assert_eq!(output(script), expected, "{script}");
    }
}

#[test]
fn structures_are_read_from_memory() {
    let cases = [
        (
            "struct S { char a; int b; } begin { $p = (struct S *)0x1000; print(($p.b, $p->a)); }",
            "(117835012, \0)",
        ),
        ("struct S { short a:4, b:8; } begin { print(*(struct S *)0x1001); }", "{ .a = 1, .b = 32 }"),
        ("struct S { uint8_t x[3]; } begin { print(((struct S *)0x1002).x); }", "[2,3,4]"),
        (
            "struct A { int a; struct { int b; } c; } begin { print((sizeof(struct A), offsetof(struct A, c.b))); }",
            "(8, 4)",
        ),
        ("union U { int a; char b[8]; } begin { print(sizeof(union U)); }", "8"),
        ("begin { $p = (uint16 *)0x1004; print((*$p, *($p + 1), $p[2])); }", "(1284, 1798, 2312)"),
        ("begin { $a = (1, \"hey\"); print(*(&$a)); }", "(1, hey)"),
        ("begin { print(((int8[8])12345)[1]); print((uint32)pton(\"1.2.3.4\")); }", "48\n67305985"),
        (
            "enum E { A = 3, B } begin { $e = B; print(($e, A + 0, (enum E)3)); printf(\"%s %d\", A, A); }",
            "(B, 3, A)\nA 3",
        ),
        ("#define N 5\nbegin { print(N * 2); }", "10"),
    ];
    for (script, expected) in cases {
        assert_eq!(output(script), expected.replace('\0', "0"), "{script}");
    }
}

#[test]
fn texts_are_compared_cut_and_searched() {
    all(&[
        ("print((\"a\" == \"a\", \"a\" == \"ab\", \"\" == \"\"));", "(true, false, true)"),
        ("print((strncmp(\"hello\", \"hell\", 4), strncmp(\"a\", \"b\", 1)));", "(0, 1)"),
        (
            "print((strcontains(\"hello\", \"ell\"), strstr(\"hello\", \"l\"), strlen(\"abc\")));",
            "(true, 2, 3)",
        ),
        ("print(str(\"hello\", 3)); print(str_concat(\"a\", \"b\"));", "he\nab"),
        ("$x = \"ab\"; $x = \"a longer one\"; print(($x, sizeof($x)));", "(a longer one, 13)"),
        ("printf(\"%r|%rx\", buf(\"a\\n\", 2), buf(\"a\", 1));", "a\\x0a|\\x61"),
    ]);
}

#[test]
fn the_world_answers_builtins() {
    all(&[
        (
            "print((pid, tid, comm, cpu, username, probe, probetype));",
            "(12, 13, tester, 3, seven, begin, special)",
        ),
        ("print((nsecs, nsecs(monotonic), elapsed));", "(2000, 1000, 0)"),
        ("print(strftime(\"%Y-%m-%d %H:%M:%S\", nsecs));", "1970-01-02 00:00:00"),
        ("time(\"%H\\n\");", "00"),
        (
            "print((strerror(2), signal_name(9), ntop(0x0100007f), usym(16)));",
            "(No such file or directory, Killed, 127.0.0.1, 0x10)",
        ),
        ("cat(\"/%s\", \"there\");", "text"),
        ("print((bswap((uint16)0x1234), is_err(-5), len(ustack)));", "(13330, true, 0)"),
    ]);
}

#[test]
fn parameters_are_numbers_or_texts() {
    let options = Options {
        positional: ["12", "word", "0x10"].map(str::to_owned).to_vec(),
        named: ["n=5", "flag"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let script = "i:s:$1 { printf(\"%d %s %s %d %d %s|\", $1, $2, str($2 + 1), $3, $#, str($9)); \
                  print((getopt(\"n\", 1), getopt(\"flag\"), getopt(\"other\", \"x\"))); }";
    let ran = run_with(script, &options, Style::default());
    assert_eq!(ran.output.trim_end(), "12 word ord 16 3 |(5, true, x)");
}

#[test]
fn exit_ends_at_once_with_its_status() {
    let script = "begin { print(1); exit(7); print(2); } interval:s:1 { print(3); } end { print(4); }";
    let ran = run_with(script, &Options::default(), Style::default());
    assert_eq!(ran.status, Some(7));
    assert!(ran.output.starts_with("1\n4\n"), "{}", ran.output);
    assert!(ran.errors.contains("WARNING: Unreachable statement"), "{}", ran.errors);
}

/// As bpftrace: what the tracer writes or does to maps after `exit()` is left out, until the blocks at `end` run.
#[test]
fn after_exit_blocks_count_but_say_nothing() {
    let script = "begin { @a = 1; @b = 1; exit(); } begin { printf(\"no\\n\"); print(@a); clear(@b); @a = 2; } \
                  end { printf(\"yes\\n\"); exit(); } end { printf(\"late\\n\"); @c = 1; }";
    let ran = run_with(script, &Options::default(), Style::default());
    assert_eq!(ran.output, "yes\n\n\n@a: 2\n@b: 1\n@c: 1\n");
}

#[test]
fn exit_within_an_expression_ends_its_block() {
    let cases = [
        "@ = sum({ exit(); 5 });",
        "@[{ exit(); 5 }] = 1;",
        "@[{ exit(); 5 }] = count();",
        "if ({ exit(); 1 }) { @ = 1; } else { @ = 2; }",
        "@ = { exit(); 1 } + 1;",
        "@x[1] = 3; delete(@x, { exit(); 1 }); @ = 1;",
        "$a = { exit(); 1 }; @ = 1;",
        "@x[{ exit(); 1 }]++;",
    ];
    for script in cases {
        let ran = run_with(&format!("begin {{ {script} }}"), &Options::default(), Style::default());
        let left = if script.contains("delete") { "\n\n@x[1]: 3\n" } else { "\n\n" };
        assert_eq!((ran.output.as_str(), ran.status), (left, Some(0)), "{script} {}", ran.errors);
    }
}

#[test]
fn a_full_map_warns_counts_and_keeps_what_it_has() {
    let script = "let @a = hash(1); begin { @a[1] = 1; @a[2] = 2; @a[3] = 3; }";
    let ran = run_with(script, &Options::default(), Style::default());
    assert!(ran.output.ends_with("\n@a[1]: 1\n"), "{}", ran.output);
    assert_eq!(ran.errors.matches("WARNING: Map full; can't update element").count(), 2, "{}", ran.errors);
    assert!(ran.errors.ends_with("WARNING: @a: 2 updates found no room (1 keys)\n"), "{}", ran.errors);
    let ran = run_with(&script.replace("hash", "lruhash"), &Options::default(), Style::default());
    assert_eq!((ran.output.as_str(), ran.errors.as_str()), ("\n\n@a[3]: 3\n", ""));
}

#[test]
fn a_loop_without_end_is_ended() {
    let ran = run_with(
        "begin { while (1) { while (1) { } } print(\"on\"); }",
        &Options::default(),
        Style::default(),
    );
    assert_eq!(ran.output.trim(), "");
    assert_eq!(ran.errors.matches("The block was ended after 8388608 turns").count(), 1, "{}", ran.errors);
}
