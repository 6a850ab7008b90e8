//! SCR-1: whatever bytes a script has, it compiles, or there is a message with a place. SCR-2: what compiles runs.

mod common;

use std::rc::Rc;

use common::{Known, own};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::{prop_oneof, proptest};
use trapline_script::{Machine, Options, Probe, Source, Style, compile, shown_tree};

/// Pieces of scripts, of which others are put together.
const PIECES: &[&str] = &[
    "begin",
    "end",
    "i:s:1",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "$x",
    "$y",
    "@a",
    "@",
    "1",
    "0x10",
    "-",
    "+",
    "*",
    "/",
    "%",
    "&",
    "&&",
    "=",
    "==",
    "<",
    ">>",
    "++",
    ".0",
    ".f",
    "->",
    "..",
    "?",
    ":",
    "!",
    "\"t\"",
    "\"%d\"",
    "if",
    "else",
    "for",
    "while",
    "unroll",
    "let",
    "macro m(x)",
    "m",
    "print",
    "printf",
    "count",
    "hist",
    "avg",
    "str",
    "len",
    "delete",
    "sizeof",
    "uint8",
    "struct S { int f; }",
    "(struct S *)",
    "(int8[4])",
    "config = {",
    "#define N 5\n",
    "exit",
    "return",
    "break",
    "true",
    "pid",
    "nsecs",
    "$1",
    "$#",
    "/",
    "enum { E = 1 }",
    "E",
    "typeof",
    "_ =",
    "zero",
    "clear",
    "has_key",
    "ustack",
];

/// Compiles and, if it is a script, runs it.
fn hold(bytes: &[u8]) {
    let source = Source::new("stdin", bytes);
    let tree = shown_tree(&source, &[]);
    let compiled = match compile(source, &Options::default()) {
        Ok(compiled) => compiled,
        Err(message) => {
            assert!(message.contains("ERROR: "), "{message}");
            return;
        }
    };
    assert!(tree.is_ok());
    let mut world = Known::default();
    let mut machine = Machine::new(Rc::new(compiled.program), Style::default(), &mut world);
    machine.run_all(
        |probe| matches!(probe, Probe::Begin | Probe::Interval(..) | Probe::End),
        &own(),
        &mut world,
    );
    machine.finish(&mut world);
}

/// A script that uses much of the language.
const WHOLE: &str = r#"
#define N 3
struct S { int a; char b[4]; uint16_t c:5; };
enum E { X = 1, Y };
config = { max_strlen = 64; print_maps_on_exit = true }
let @l = lruhash(2);
macro add(x, $y) { $y += x; $y }
begin {
  let $s: string = "abc"; $t = (1, "two", (3, X)); $r = (p=1, q=$t);
  @a[$t.0, str($1)] = count(); @h[1] = hist(5, 2); @m = lhist(3, 0, 10, 2); @st = stats(-4);
  for ($i : 0..N) { if ($i == 1) { continue; } @l[$i] = $i; unroll (2) { $t.0 == 1 ? print($i) : print($t); } }
  $z = 5; print(add(2, $z)); while ($z > 0) { $z--; if ($z == 2) { break; } }
  printf("%-5d|%s|%05x\n", $z, $r.q.1, sizeof(struct S)); for ($kv : @l) { print(($kv.0, $kv.1)); }
  $p = (struct S *)&$z; print($p.a); @b = buf("xy", 2); delete(@l, 0); clear(@m); zero(@h); print(@a, 5, 2);
}
interval:ms:5 /@st.count > 0/ { exit(); }
end { print((nsecs, comm, probe)); }
"#;

#[test]
fn a_script_that_uses_much_of_the_language_compiles() {
    let text = WHOLE.replace("/@st.count > 0/", "/1/");
    compile(Source::new("stdin", text.as_bytes()), &Options::default()).expect("a script");
    hold(text.as_bytes());
}

#[test]
fn what_is_nested_too_deeply_is_an_error() {
    for (open, close) in [
        ("(", ")"),
        ("{", "}"),
        ("-", ""),
        ("!", ""),
        ("@[", "]"),
        ("1+", "1"),
        ("if (1) {", "}"),
        ("(1,", "1)"),
    ] {
        for count in [10, 100, 150, 20_000] {
            let text = format!("begin {{ print({}1{}); }}", open.repeat(count), close.repeat(count));
            hold(text.as_bytes());
        }
    }
    let chain = format!("begin {{ $x = {}1; }}", "1 + ".repeat(20_000));
    hold(chain.as_bytes());
    let twice: String =
        (1..60).map(|n| format!("macro m{n}(x) {{ m{}(x) + m{}(x) }} ", n - 1, n - 1)).collect();
    hold(format!("macro m0(x) {{ x }} {twice} begin {{ print(m59(1)); }}").as_bytes());
    hold(format!("struct S {{ int{} a; }} begin {{ }}", "*".repeat(20_000)).as_bytes());
    hold(format!("{} begin {{ }}", "struct S { struct { ".repeat(5_000)).as_bytes());
}

proptest! {
    #[test]
    fn any_bytes_are_held(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        hold(&bytes);
    }
    #[test]
    fn any_pieces_are_held(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        hold(pieces.join(" ").as_bytes());
        hold(format!("begin {{ {} }}", pieces.join(" ")).as_bytes());
    }
    #[test]
    fn any_mutation_is_held(changes in prop::collection::vec(mutation(), 1..6)) {
        let mut bytes = WHOLE.as_bytes().to_vec();
        for (at, change) in changes {
            let at = at % bytes.len();
            match change {
                Change::Byte(byte) => bytes[at] = byte,
                Change::Piece(piece) => drop(bytes.splice(at..at, piece.bytes())),
                Change::Cut(length) => drop(bytes.drain(at..bytes.len().min(at + length))),
            }
            if bytes.is_empty() {
                break;
            }
        }
        hold(&bytes);
    }
}

#[derive(Debug, Clone)]
enum Change {
    Byte(u8),
    Piece(&'static str),
    Cut(usize),
}

fn mutation() -> impl Strategy<Value = (usize, Change)> {
    let change = prop_oneof![
        any::<u8>().prop_map(Change::Byte),
        prop::sample::select(PIECES).prop_map(Change::Piece),
        (1usize..30).prop_map(Change::Cut),
        Just(Change::Byte(b'{')),
    ];
    (any::<usize>(), change)
}
