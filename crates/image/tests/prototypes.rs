//! Parameter and return types of functions, from BTF and from DWARF: one compiler wrote both from the same
//! source.

mod common;

use common::{compile, image};
use trapline_image::{Btf, DebugInfo, ParameterPlace, Prototype, ValueType};

const SOURCE: &str = r"
#include <stdbool.h>
#include <stddef.h>
enum mode { OFF, FAST, SAFE = 7 };
enum wide { FAR = 1LL << 40 };
typedef const volatile char *text;
struct pair { int a, b; };
struct mixed { double d; long n; };
struct floats { float x, y; };
struct big { long v[4]; };
struct tail { short n; char name[14]; };
struct empty {};
struct bits { unsigned a : 3, b : 29; float f; };
union either { double d; long n; };
struct node { struct node *next; union either of; };
typedef struct pair (*maker)(struct pair);
#define F __attribute__((noipa))
F int integers(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f) { return a + b + c + d + e + (int)f; }
F unsigned long many(long a, long b, long c, long d, long e, unsigned long f, long g, long long h) { return a + b + c + d + e + f + g + h; }
F const char *texts(char *a, const char *b, text c, char **d, const unsigned char *e, char f) { return a + (long)b + (long)c + (long)d + (long)e + f; }
F double floats(float a, double b, int c, float d) { return a + b + c + d; }
F long double extended(long double a, int b) { return a + b; }
F __int128 wide(__int128 a, int b) { return a + b; }
F bool modes(enum mode a, bool b, enum wide c) { return a || b || c; }
F struct pair pairs(struct pair a, int b, struct mixed c, struct floats d, double e) { a.a += b + c.n + d.x + e; return a; }
F struct big memory(struct big a, int b) { a.v[0] += b; return a; }
F int odd(struct tail a, struct empty b, struct bits c, union either d, int e) { return a.n + c.a + d.n + e; }
F int full(long a, long b, long c, long d, long e, struct mixed f, struct tail g, int h) { return a + b + c + d + e + f.n + g.n + h; }
F void nodes(struct node *a, maker b, void *c, size_t d) { a->next = c; b((struct pair){ d, d }); }
F int listed(const char *a, ...) { return *a; }
F int nothing(void) { return 1; }
int main(void) {
    struct node n = { 0 };
    return integers(1, 2, 3, 4, 5, 6) + many(1, 2, 3, 4, 5, 6, 7, 8) + !texts(0, 0, 0, 0, 0, 0) + floats(1, 2, 3, 4)
        + extended(1, 2) + (int)wide(1, 2) + modes(FAST, true, FAR)
        + pairs((struct pair){ 0 }, 1, (struct mixed){ 0 }, (struct floats){ 0 }, 1).a + memory((struct big){ 0 }, 1).v[0]
        + odd((struct tail){ 0 }, (struct empty){}, (struct bits){ 0 }, (union either){ 0 }, 1)
        + full(1, 2, 3, 4, 5, (struct mixed){ 0 }, (struct tail){ 0 }, 1) + listed(__FILE__) + nothing() + (nodes(&n, 0, 0, 0), 0);
}
";

const FUNCTIONS: [&str; 14] = [
    "integers", "many", "texts", "floats", "extended", "wide", "modes", "pairs", "memory", "odd", "full",
    "nodes", "listed", "nothing",
];

/// `name`: tests run side by side, each with a file of its own.
fn both(name: &str) -> (trapline_image::Image, DebugInfo, Btf) {
    let image = image(&compile("gcc", name, SOURCE, &["-O2", "-g", "-gbtf", "-w"]));
    let (debug, btf) = (image.debug_info().expect("DWARF"), image.btf().expect("BTF"));
    (image, debug, btf)
}

/// GCC before 13 writes neither the signedness of enumerations nor the names of wide ones into BTF. BTF has no
/// locations, so it does not say where on the stack an argument is.
fn without_news(mut prototype: Prototype) -> Prototype {
    prototype.value_parts = None;
    for parameter in &mut prototype.parameters {
        parameter.parts = None;
        if matches!(parameter.place, ParameterPlace::Stack(_)) {
            parameter.place = ParameterPlace::Elsewhere;
        }
    }
    let values = prototype.parameters.iter_mut().map(|one| &mut one.of).chain([&mut prototype.value]);
    values.for_each(|of| {
        if let ValueType::Enumeration { signed, bytes, names } = of {
            *signed = false;
            names.retain(|_| *bytes < 8);
        }
    });
    prototype
}

#[test]
fn both_say_the_same() {
    let (image, debug, btf) = both("prototypes-both");
    for name in FUNCTIONS {
        let function = image.functions().iter().find(|one| image.display_name(one, "x").contains(name));
        let function = function.unwrap_or_else(|| panic!("{name}"));
        let dwarf = debug.prototype(function.start).unwrap_or_else(|| panic!("{name}"));
        let btf = btf.prototype(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(without_news(btf), without_news(dwarf), "{name}");
    }
}

#[test]
fn prototypes_are_what_the_source_says() {
    let (_, _, btf) = both("prototypes-btf");
    let full = btf.prototype("full").expect("noted");
    let places: Vec<_> = full.parameters.iter().map(|one| (one.name.as_str(), one.place)).collect();
    let general = |n| ParameterPlace::General(n);
    let there = ["a", "b", "c", "d", "e"].into_iter().zip((0..5).map(general));
    // The first structure takes the last two registers. The second finds too few left, and an integer behind
    // it finds none.
    let rest = [
        ("f", ParameterPlace::Elsewhere),
        ("g", ParameterPlace::Elsewhere),
        ("h", ParameterPlace::Elsewhere),
    ];
    assert_eq!(places, there.chain(rest).collect::<Vec<_>>());
    assert_eq!(btf.prototype("texts").expect("noted").value, ValueType::Text);
    assert_eq!(btf.prototype("nodes").expect("noted").value, ValueType::Void);
    assert_eq!(btf.prototype("no_such"), None);
}

/// PRO-2.
#[test]
fn functions_that_share_a_name_must_take_the_same() {
    let one = "static __attribute__((noipa)) int same(int a) { return a; }\n\
               static __attribute__((noipa)) int other(int a) { return a; }\n";
    let second = format!("{one}int second(void) {{ return same(1) + other(2); }}");
    compile("gcc", "prototypes-2.o", &second, &["-O2", "-gbtf", "-c"]);
    let object = common::scratch("prototypes-2.o");
    let main = one.replace("other(int a)", "other(long a)")
        + "int second(void);\nint main(void) { return second() + same(1) + other(2); }";
    let object = object.to_str().expect("UTF-8 path");
    let path = compile("gcc", "prototypes-1", &main, &["-O2", "-gbtf", object]);
    let btf = image(&path).btf().expect("both objects' BTF");
    assert!(btf.prototype("same").is_some() && btf.prototype("other").is_none(), "{btf:?}");
}
