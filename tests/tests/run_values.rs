//! `run`: values behind pointers. The judge is the program, which prints them itself.

use std::process::Output;

use trapline_tests::or_skip;
use trapline_tests::tracing::{errors, once, out};
use trapline_tests::victims;

/// The structures of `pointers.c`, as a script declares them.
const STRUCTS: &str = "
struct inner { uint16_t code; char *name; int32_t grid[2][3]; };
struct node { int64_t id; struct node *next; struct inner in; char tag[8]; uint8_t bytes[100];
  unsigned low : 3, high : 5; int color; struct inner *far; };
";

fn run(path: &str, script: &str) -> Output {
    once(&["run", "-q", "-c", path, "-e", script])
}

/// The lines of the program, and those of a script, which begin with `@`.
fn both(path: &str, script: &str) -> (Vec<String>, Vec<String>) {
    let output = run(path, script);
    assert!(output.status.success() && errors(&output).is_empty(), "{}{}", out(&output), errors(&output));
    let all = out(&output);
    let lines = all.lines().filter(|line| !line.is_empty());
    let (script, program): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with('@'));
    let owned =
        |lines: Vec<&str>| lines.into_iter().map(|line| line.trim_start_matches('@').to_owned()).collect();
    (owned(program), owned(script))
}

/// Every second line of the program: those of `look`, or those of `many`.
fn of(program: &[String], many: bool) -> Vec<String> {
    program.iter().skip(usize::from(many)).step_by(2).cloned().collect()
}

#[test]
fn fields_behind_pointers_are_what_the_program_prints() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "{STRUCTS} uprobe:{path}:look {{
           $n = (struct node *)arg0; $in = $n->next->in; $numbers = (int32 *)arg3;
           printf(\"@%d %d %u %s %d %d %s %u %u %s %d %d %d\\n\", $n->id, $n->next->next->id, $n->in.code,
             str($in.name), ((struct node *)arg0)->in.grid[1][2], $n->bytes[99], $n->tag, $n->low, $n->high,
             str(arg1), arg2 == 0 ? $numbers[0] : arg2 == 1 ? *($numbers + 1) : $numbers[2],
             (*(struct node **)arg4)->id, $n->far->grid[0][1]); }}"
    );
    let (program, script) = both(&path, &script);
    assert_eq!(program.len(), 6);
    assert_eq!(script, of(&program, false));
}

#[test]
fn arguments_on_the_stack_and_registers_are_what_was_passed() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let register = if std::env::consts::ARCH == "x86_64" { "di" } else { "r0" };
    let script = format!(
        "{STRUCTS} uprobe:{path}:many {{
           if (reg(\"{register}\") == arg0 && arg0 == 1) {{
             printf(\"@%d %s %d\\n\", arg6, str(arg7), ((struct node *)arg8)->id); }} }}"
    );
    let (program, script) = both(&path, &script);
    assert_eq!(script, of(&program, true));
}

#[test]
fn structures_and_arrays_are_read_as_a_whole() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "{STRUCTS} uprobe:{path}:look /((struct node *)arg0)->in.code == 60000/ {{
           $n = (struct node *)arg0; @grid[$n->far->grid] = count(); @far = *$n->far;
           @sum = sum($n->bytes[99]); @[$n->tag] = count(); @tail[buf($n->bytes + 96, 4)] = count(); }}"
    );
    let script = script.replace("$n->bytes + 96", "(uint8 *)arg0 + 8 + 8 + 40 + 8 + 96");
    let output = run(&path, &script);
    let text = out(&output);
    for line in [
        "@grid[[[1,2,3],[4,5,6]]]: 3",
        "@sum: 600",
        "@[12345678]: 3",
        ".grid = [[1,2,3],[4,5,6]] }",
        "@tail[\\x00\\x00\\x00\\xc8]: 3",
    ] {
        assert!(text.contains(line), "{line}: {text}{}", errors(&output));
    }
}

#[test]
fn what_cannot_be_read_is_zero_and_told_if_asked() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "{STRUCTS} uprobe:{path}:edge {{ @text = str(arg0); @bytes = ((uint8 *)arg0)[4]; @word = *(uint64 *)arg0;
           @none = ((struct node *)arg1)->next->id; @far = ((struct node *)arg1)->in.code; }}"
    );
    let quiet = run(&path, &script);
    assert!(errors(&quiet).is_empty(), "{}", errors(&quiet));
    for line in ["@text: brink", "@bytes: 107", "@word: 0", "@none: 0", "@far: 0"] {
        assert!(out(&quiet).lines().any(|one| one == line), "{line}: {}", out(&quiet));
    }
    let told = once(&["run", "-k", "-q", "-c", &path, "-e", &script]);
    let errors = errors(&told);
    // The word, the pointer and what it leads to, the field: each of three times.
    assert_eq!(errors.matches("WARNING: Bad address").count(), 12, "{errors}");
    assert!(errors.contains("helper: probe_read_user, retcode: -14"), "{errors}");
}

#[test]
fn what_a_returned_pointer_leads_to_is_read_at_the_return() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "{STRUCTS} uretprobe:{path}:give {{ $n = (struct node *)retval; @id[$n->id, $n->in.code] = $n->bytes[99]; }}"
    );
    let text = out(&run(&path, &script));
    for line in ["@id[0, 60000]: 200", "@id[101, 60001]: 201", "@id[202, 60002]: 202"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn an_address_from_another_hit_is_not_recorded_and_told() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "{STRUCTS} uprobe:{path}:many {{ @p = (struct node *)arg8; }}
         uprobe:{path}:edge {{ if (arg0 == 0) {{ @p = (struct node *)arg0; }} @n = @p->id; }}"
    );
    let output = run(&path, &script);
    let told = errors(&output);
    assert_eq!(
        told.matches("WARNING: Memory at this address was not recorded at the hit.").count(),
        3,
        "{told}"
    );
    assert!(out(&output).contains("@n: 0"), "{}", out(&output));
}

#[test]
fn a_load_that_no_record_can_hold_is_an_error_that_says_why() {
    let path = or_skip!(victims::plain("pointers")).display().to_string();
    for (body, why) in [
        ("uprobe:P:look { @ = ((int32 *)arg3)[arg2]; }", "the distance is known only when the block runs"),
        ("uprobe:P:look { @ = *(int32 *)(arg3 * 2); }", "the address is computed"),
        (
            "uprobe:P:look { $p = (struct node *)arg0; while ($p) { $p = $p->next; } }",
            "the address changes while the block runs",
        ),
        ("uprobe:P:look { @ = *(int32 *)0x123456; }", "its address is a number of the script"),
        (
            "uprobe:P:look { @ = @p->id; } uprobe:P:many { @p = (struct node *)arg8; }",
            "another block put the address into the map",
        ),
        ("uretprobe:P:give { @ = ((struct node *)retval)->next->id; }", "the first 4096 bytes are recorded"),
        ("usdt:P:x { @ = *(int32 *)(arg0 + 61); }", "the first 64 bytes are recorded"),
    ] {
        let script = format!("{STRUCTS} {}", body.replace("P:", &format!("{path}:")));
        let output = run(&path, &script);
        let told = errors(&output);
        assert!(told.contains("what is behind a pointer of the program is not recorded"), "{body}: {told}");
        assert!(told.contains("HINT: ") && told.contains(why), "{body}: {told}");
        assert_eq!(output.status.code(), Some(1), "{body}");
    }
}

#[test]
fn what_a_probe_reads_is_kept_though_the_program_overwrites_it() {
    let path = or_skip!(victims::plain("adjacent")).display().to_string();
    for entry in ["", "uprobe:FILE:marked { @calls = count(); }"] {
        let script =
            "usdt:FILE:adjacent:first { print(arg0); } usdt:FILE:adjacent:second { print((arg0, arg1)); } ";
        let output = run(&path, &format!("{entry}{script}").replace("FILE", &path));
        let text = out(&output);
        let seen: Vec<&str> = text.lines().filter(|line| line.len() > 2 && !line.starts_with('@')).collect();
        assert_eq!(
            seen,
            ["100", "(1100, 100)", "101", "(1101, 101)", "102", "(1102, 102)"],
            "{text}{}",
            errors(&output)
        );
    }
}

/// The program whose functions have frame pointers.
fn nested() -> Result<String, String> {
    let flags = ["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    Ok(victims::c_by("nested", "gcc", &flags)?.display().to_string())
}

#[test]
fn args_have_the_names_and_types_of_debug_information() {
    let path = or_skip!(nested());
    let script = format!(
        "uprobe:{path}:innermost {{ print(args.flag); print(args->extra->tally->count);
           @pair = args.extra->pair.right; @cast = ((struct extra *)arg0)->tally->count;
           @whole = args; $t = args; @again = $t.flag; }}"
    );
    let text = out(&run(&path, &script));
    for line in ["200", "77", "@pair: -4", "@cast: 77", "@again: 200"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    assert!(text.contains("@whole: { .extra = 0x") && text.contains(", .flag = 200, .call = 0x"), "{text}");
    let pointers = or_skip!(victims::plain("pointers")).display().to_string();
    let script = format!(
        "uprobe:{pointers}:look {{ @id[args.node->next->id] = count(); @tag = args.node->tag; @color = args.node->color;
           @low = (args.node->low, args.node->high); @far = *args.node->far; }} "
    );
    let text = out(&run(&pointers, &script));
    for line in ["@id[1]: 1", "@id[101]: 1", "@id[201]: 1", "@tag: 12345678", "@color: 6", "@low: (5, 19)"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
}

#[test]
fn what_debug_information_does_not_say_is_an_error() {
    let path = or_skip!(nested());
    for (body, why) in [
        (format!("uprobe:{path}:innermost {{ print(args.flags); }}"), "HINT: Did you mean flag?"),
        (format!("uprobe:{path}:innermost,uprobe:{path}:first {{ print(args); }}"), "have different args"),
        (format!("uretprobe:{path}:innermost {{ print(args.flag); }}"), "only be used with uprobe"),
        (format!("uprobe:{path}:_start {{ print(args.flag); }}"), "are not known"),
        (format!("uprobe:{path}:first {{ print(((struct nothing *)arg0)->x); }}"), "Unknown struct/union"),
    ] {
        let output = run(&path, &body);
        assert!(errors(&output).contains(why), "{body}: {}", errors(&output));
        assert_eq!(output.status.code(), Some(1), "{body}");
    }
}

#[test]
fn stacks_are_where_the_program_returns_to() {
    let path = or_skip!(nested());
    let script = format!(
        "config = {{ show_debug_info = 0 }} uprobe:{path}:innermost {{ print(ustack(raw, 5)); @all[ustack(4)] = count();
           @len = len(ustack(3)); @perf[ustack(perf, 2)] = count(); }}"
    );
    let text = out(&run(&path, &script));
    // The program's lines and the stack's, in any order: each of the four callers is in both.
    let address = |line: &&str| line.len() > 5 && u64::from_str_radix(line, 16).is_ok();
    let mut counts = std::collections::BTreeMap::new();
    text.lines().filter(address).for_each(|line| *counts.entry(line).or_insert(0) += 1);
    let mut all: Vec<i32> = counts.into_values().collect();
    all.sort_unstable();
    assert_eq!(all, [3, 6, 6, 6, 6], "innermost itself, and four callers: {text}");
    let names =
        text.split("@all[\n").nth(1).expect("a map").split("]: 3").next().expect("three hits").to_owned();
    let names: Vec<&str> =
        names.lines().map(|line| line.trim().split('+').next().unwrap_or_default()).collect();
    assert_eq!(names, ["innermost", "third", "second", "first"], "{text}");
    assert!(text.contains("@len: 3\n"), "{text}");
    assert!(text.contains(&format!(" innermost+0 ({path})\n")), "{text}");
}

/// In blocks that are interpreted; others have both (HIT-5).
#[test]
fn an_interpreted_script_has_stacks_or_values() {
    let path = or_skip!(nested());
    for (script, what) in [
        (
            format!("uprobe:{path}:innermost {{ print(ustack); print(strftime(\"%Y\", 0)); print(arg0); }}"),
            "arguments and retval are not recorded",
        ),
        (
            format!(
                "uprobe:{path}:innermost {{ print(ustack); print(strftime(\"%Y\", 0)); }}
                 uretprobe:{path}:first {{ print(strftime(\"%Y\", 0)); }}"
            ),
            "returns are not recorded",
        ),
    ] {
        let output = run(&path, &script);
        assert!(errors(&output).contains(what) && output.status.code() == Some(1), "{}", errors(&output));
    }
}

#[test]
fn probes_are_listed_by_pattern_file_and_process() {
    let path = or_skip!(nested());
    let list = |args: &[&str]| {
        let output = once(&[&["run"], args].concat());
        assert!(output.status.success(), "{}", errors(&output));
        out(&output)
    };
    let folder = path.rsplit_once('/').expect("a folder").0;
    assert_eq!(list(&["-l", &format!("uprobe:{path}:innerm*")]), format!("uprobe:{path}:innermost\n"));
    assert_eq!(
        list(&["-l", &format!("uretprobe:{folder}/nes*:second")]),
        format!("uretprobe:{path}:second\n")
    );
    let verbose = format!(
        "uprobe:{path}:innermost\n    struct extra* extra\n    unsigned char flag\n    void (*)() call\n"
    );
    let verbose = verbose.replace("void (*)() call", "function* call");
    assert_eq!(list(&["-lv", &format!("uprobe:{path}:innermost")]), verbose);
    assert_eq!(list(&["-l", "-v", &format!("uprobe:{path}:innermost")]), verbose);
    let own = list(&["-l", "-p", &std::process::id().to_string(), "uprobe:*"].as_slice()[..3]);
    assert!(own.lines().any(|line| line.starts_with("uprobe:/") && line.contains("run_values")), "{own}");
    assert!(own.lines().any(|line| line == "begin"), "{own}");
}
