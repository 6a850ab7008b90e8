//! Which loads of a record a block's expressions become.

use trapline_script::{Needs, Options, Read, Root, Source, compile};

const STRUCTS: &str = "struct in { char a; int32_t b; }; struct s { int64_t x; struct s *next; struct in in; \
                       char name[12]; char *text; int32_t list[40]; unsigned low : 3, high : 7; };\n";

fn needs(block: &str) -> Needs {
    let script = format!("{STRUCTS}{block}");
    let options = Options { registers: vec!["ax".to_owned()], ..Options::default() };
    let compiled = compile(Source::new("stdin", script.as_bytes()), &options);
    compiled.unwrap_or_else(|errors| panic!("{block}\n{errors}")).program.blocks.remove(0).needs
}

/// `arg0+8 +16:4`: a root, the offsets, the bytes.
fn shown(read: &Read) -> String {
    let root = match &read.root {
        Root::Argument(nth) => format!("arg{nth}"),
        Root::Register(name) => name.to_string(),
        Root::Variable(variable) => format!("{}@{:#x}", variable.name, variable.at),
    };
    let steps: String = read.offsets.iter().map(|step| format!("{step:+} ")).collect();
    format!("{root}{}:{}", steps.trim_end(), read.bytes)
}

fn reads(body: &str) -> Vec<String> {
    let needs = needs(&format!("uprobe:/f:g {{ {body} }}"));
    let mut all: Vec<String> = needs.reads.iter().map(shown).collect();
    all.extend(needs.texts.iter().map(|nth| format!("text{nth}")));
    all
}

#[test]
fn expressions_become_loads_with_constant_steps() {
    let cases: &[(&str, &[&str])] = &[
        ("@ = *(int32 *)arg1;", &["arg1+0:4"]),
        ("@ = ((uint8 *)arg0)[3];", &["arg0+3:1"]),
        ("@ = *((uint16 *)arg0 - 1);", &["arg0-2:2"]),
        ("@ = *(uint64 *)(arg2 + 24);", &["arg2+24:8"]),
        ("@ = ((struct s *)arg0)->next->in.b;", &["arg0+8:8", "arg0+8 +20:4"]),
        ("$p = (struct s *)arg0; @ = $p->x; @b = $p->in.b;", &["arg0+0:24"]),
        ("$n = ((struct s *)arg0)->next; @ = $n->next->x;", &["arg0+8:8", "arg0+8 +8:8", "arg0+8 +8 +0:8"]),
        (
            "@ = *((struct s *)arg0)->next;",
            &["arg0+8:8", "arg0+8 +0:64", "arg0+8 +64:64", "arg0+8 +128:64", "arg0+8 +192:24"],
        ),
        ("@ = ((struct s *)arg0)->in;", &["arg0+16:8"]),
        ("@ = ((struct s *)arg0)->list[39];", &["arg0+204:4"]),
        ("@ = ((struct s *)arg0)->high;", &["arg0+208:4"]),
        ("@ = str(((struct s *)arg0)->text);", &["arg0+40:8", "arg0+40 +0:64"]),
        ("@ = ((struct s *)arg0)->name;", &["arg0+24:12"]),
        ("@ = str(arg0);", &["text0"]),
        ("$p = arg3; @ = str($p);", &["text3"]),
        ("@ = str(arg0, 10);", &["arg0+0:10"]),
        ("@ = str(arg0, 100);", &["arg0+0:64", "arg0+64:36"]),
        ("@ = buf(arg1, 16);", &["arg1+0:16"]),
        ("@ = buf(arg1, arg2);", &["text1"]),
        ("@ = arg8;", &["arg8:8"]),
        ("@ = *(int32 *)arg8;", &["arg8:8", "arg8+0:4"]),
        ("@ = *(int32 *)reg(\"ax\");", &["ax:8", "ax+0:4"]),
        ("$p = (struct s *)(arg0 ? arg1 : arg2); @ = $p->x;", &["arg1+0:8", "arg2+0:8"]),
        ("$p = (struct s *)arg0; $q = $p; @ = $q->x;", &["arg0+0:8"]),
        ("@p = (struct s *)arg0; @ = @p->x;", &["arg0+0:8"]),
        ("$i = 2; @ = ((int32 *)arg0)[$i];", &["arg0+8:4"]),
        (
            "$s = *(struct s *)arg0; @ = $s.next->x;",
            &["arg0+0:64", "arg0+64:64", "arg0+128:64", "arg0+192:24", "arg0+8 +0:8"],
        ),
        ("@ = **(int64 **)arg0;", &["arg0+0:8", "arg0+0 +0:8"]),
        ("@ = ((struct s *)0)->x;", &[]),
        ("$x = (uint64)7; @ = *(uint64 *)(&$x);", &[]),
        ("@ = sizeof(*(struct s *)arg0);", &[]),
        ("@ = macaddr((uint8 *)arg0);", &["arg0+0:6"]),
        ("@ = strncmp((int8 *)arg0, \"x\", 1);", &["text0"]),
    ];
    for (body, expected) in cases {
        let mut sorted: Vec<String> = expected.iter().map(|one| (*one).to_owned()).collect();
        let mut found = reads(body);
        sorted.sort();
        found.sort();
        assert_eq!(found, sorted, "{body}");
    }
}

#[test]
fn predicates_and_macros_are_lowered_too() {
    assert_eq!(needs("uprobe:/f:g /((struct s *)arg0)->x == 3/ { }").reads.len(), 1);
    assert_eq!(needs("macro x(p) { ((struct s *)p)->x } uprobe:/f:g { print(x(arg1)); }").reads.len(), 1);
    let own = needs("begin { print(*(int32 *)arg); } uprobe:/f:g { }".replace("arg", "0x1000").as_str());
    assert_eq!(own, Needs::default(), "a block that is at no hit has no record");
}

#[test]
fn returns_and_marks_hold_the_first_bytes() {
    let at_return = |body: &str| needs(&format!("uretprobe:/f:g {{ {body} }}")).returned_text;
    assert_eq!(at_return("@ = ((struct s *)retval)->list[3];"), 64);
    assert_eq!(at_return("@ = str(retval);"), 1024);
    assert_eq!(at_return("@ = *(uint8 *)(retval + 4095);"), 4096);
    let mark = needs("usdt:/f:g { @ = *(int32 *)(arg7 + 60); @t = str(arg7); @u = str(arg1); }");
    assert_eq!((mark.texts, mark.reads), (vec![7, 1], vec![]));
}

#[test]
fn every_load_is_inside_a_read_of_its_pointer() {
    // Loads of all kinds of places and sizes: each byte of each must be read through the same pointers.
    let sizes = [(1u32, "uint8"), (2, "uint16"), (4, "uint32"), (8, "uint64")];
    let mut random = 7u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    for _ in 0..300 {
        let mut wanted = Vec::new();
        let mut body = String::new();
        for index in 0..1 + next(8) {
            let (size, ty) = sizes[next(4) as usize];
            let at = next(400) as i32 - 100;
            let sign = if at < 0 { '-' } else { '+' };
            body += &format!("@{} = *({ty} *)(arg0 {sign} {}); ", char::from(b'a' + index as u8), at.abs());
            wanted.push((at, at + size as i32));
        }
        let needs = needs(&format!("uprobe:/f:g {{ {body} }}"));
        for read in &needs.reads {
            assert!(read.bytes <= 64 && read.offsets.len() == 1, "{body}");
        }
        for (from, to) in wanted {
            let whole = needs
                .reads
                .iter()
                .any(|read| read.offsets[0] <= from && to <= read.offsets[0] + i32::from(read.bytes));
            assert!(whole, "{body}: {from} to {to} is in none of {:?}", needs.reads);
        }
    }
}

#[test]
fn variables_that_depend_on_themselves_end_the_search() {
    for body in [
        "$t = (arg0, 1); $t = ($t.0, 1); @ = *(int32 *)$t.0;",
        "$t = (arg0, 1); $t = ($t.0, 1); $t = ($t.0, 2); @ = *(int32 *)$t.0;",
        "$p = (struct s *)arg0; $p = $p->next; @ = $p->x;",
        "$s = *(struct s *)arg0; $s = $s; @ = $s.next->x;",
        "@m = *(struct s *)arg0; @m = @m; @ = @m.next->x;",
    ] {
        let script = format!("{STRUCTS}uprobe:/f:g {{ {body} }}");
        let errors = compile(Source::new("stdin", script.as_bytes()), &Options::default()).expect_err(body);
        assert!(errors.contains("is not recorded") && errors.contains("HINT"), "{body}: {errors}");
    }
}
