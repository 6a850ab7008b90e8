//! Probe specifications, selection, demangling, USDT probes and branch targets.

mod common;

use common::{LIBC, LIBSTDCXX, PYTHON, compile, image, present, run};
use trapline_image::{Image, NoMatch, Pattern, ProbeKind, ProbeSpec, Selected, SpecError};
use trapline_record::Svma;

fn select(image: &Image, pattern: &str) -> Result<Vec<Selected>, NoMatch> {
    image.select(&pattern.parse().expect(pattern), "prog")
}

#[test]
fn specifications_are_bpftraces() {
    for (text, kind, file, provider, func) in [
        ("uprobe:/bin/bash:readline", ProbeKind::Entry, Some("/bin/bash"), None, "readline"),
        ("u:libc:malloc+4", ProbeKind::Entry, Some("libc"), None, "malloc+0x4"),
        ("ur:libc:malloc", ProbeKind::Return, Some("libc"), None, "malloc"),
        ("r:libc:malloc", ProbeKind::Return, Some("libc"), None, "malloc"),
        ("p:libc:malloc", ProbeKind::Entry, Some("libc"), None, "malloc"),
        ("malloc", ProbeKind::Entry, None, None, "malloc"),
        ("libssl:SSL_*", ProbeKind::Entry, Some("libssl"), None, "SSL_*"),
        ("ns::f", ProbeKind::Entry, None, None, "ns::f"),
        ("libfoo:ns::f", ProbeKind::Entry, Some("libfoo"), None, "ns::f"),
        ("libfoo:::f", ProbeKind::Entry, Some("libfoo"), None, "::f"),
        ("uretprobe:./prog:a::b::c", ProbeKind::Return, Some("./prog"), None, "a::b::c"),
        ("/usr/bin/x:0x401230", ProbeKind::Entry, Some("/usr/bin/x"), None, "0x401230"),
        ("libc:memcpy@GLIBC_2.14", ProbeKind::Entry, Some("libc"), None, "memcpy@GLIBC_2.14"),
        ("libc:memcpy@@", ProbeKind::Entry, Some("libc"), None, "memcpy@@"),
        ("/a:b/", ProbeKind::Entry, None, None, "/a:b/"),
        ("libc:/^mem:?/", ProbeKind::Entry, Some("libc"), None, "/^mem:?/"),
        ("uprobe:/lib/x.so:/a:b/", ProbeKind::Entry, Some("/lib/x.so"), None, "/a:b/"),
        ("usdt:/lib/x.so:libc:setjmp", ProbeKind::Usdt, Some("/lib/x.so"), Some("libc"), "setjmp"),
        ("U:libc:*:mem*", ProbeKind::Usdt, Some("libc"), Some("*"), "mem*"),
        ("usdt:libc:setjmp", ProbeKind::Usdt, Some("libc"), None, "setjmp"),
        ("x:operator+", ProbeKind::Entry, Some("x"), None, "operator+"),
        ("/lib/x.so:ns::operator/", ProbeKind::Entry, Some("/lib/x.so"), None, "ns::operator/"),
        ("ur:/usr/bin/git:git+0x4d1", ProbeKind::Return, Some("/usr/bin/git"), None, "git+0x4d1"),
        ("main.(*T).Run", ProbeKind::Entry, None, None, "main.(*T).Run"),
    ] {
        let spec: ProbeSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let provider_text = spec.provider.as_ref().map(Pattern::to_string);
        let got = (spec.kind, spec.file.as_deref(), provider_text.as_deref(), spec.func.to_string());
        assert_eq!(got, (kind, file, provider, func.to_owned()), "{text}");
        let again: ProbeSpec = spec.to_string().parse().expect("its own text");
        assert_eq!(again.to_string(), spec.to_string());
    }
}

#[test]
fn wrong_specifications_say_why() {
    let fails = |text: &str| text.parse::<ProbeSpec>().expect_err(text);
    assert!(matches!(fails(""), SpecError::NoFunction(_)));
    assert!(matches!(fails("uprobe:libc:"), SpecError::NoFunction(_)));
    assert_eq!(fails("kprobe:do_nanosleep"), SpecError::Kind { kind: "kprobe".into() });
    assert!(matches!(fails("libc:/(/"), SpecError::Regex { .. }));
    assert_eq!(fails("libc:0xzz"), SpecError::Number("0xzz".into()));
    assert!(matches!(fails("ur:libc:malloc+4"), SpecError::Offset(_)));
    assert!(matches!(fails("libc:SSL_*+4"), SpecError::Offset(_)));
    assert!(matches!(fails("usdt:a:b:c:d"), SpecError::Parts(_)));
}

const CPP: &str = r#"
#include <stdexcept>
#include <cstdio>
namespace ns { struct Box { int v; __attribute__((noipa)) int get(char *p, int n) const { return v + n + (p != nullptr); }
  __attribute__((noipa)) Box operator+(const Box &o) const { if (o.v == 77) throw std::runtime_error("x"); return {v + o.v}; } };
  template <class T> __attribute__((noipa)) T twice(T x) { return x + x; } }
static inline __attribute__((always_inline)) int only_inlined(int x) { return x * 3 + 1; }
__attribute__((noipa)) int catcher(int n) { try { ns::Box b = ns::Box{n} + ns::Box{n}; return b.v; } catch (std::exception &e) { return -1; } }
int main(int argc, char **argv) { ns::Box b{argc}; return b.get(*argv, only_inlined(argc)) + ns::twice(argc) + only_inlined(catcher(argc)) + puts("") ; }
"#;

#[test]
fn a_probe_means_the_names_that_it_would_select() {
    for (probe, text, wanted) in [
        ("Cart::add(int)", "uprobe:/tmp/o:Cart::add(int)", true),
        ("Cart::add(int)", "uprobe:/tmp/o:_ZN4Cart3addEi", true),
        ("Cart::add(int)", "uprobe:/tmp/o:_ZN4Cart3addEd", false),
        ("Cart::add( int )", "lib:Cart::add(int)", true),
        ("Cart::put(char*)", "o:Cart::put(char *)", true),
        ("Cart::put(char*)", "o:Cart::put(int)", false),
        ("/Cart::add.int/", "o:Cart::add(int)", true),
        ("Cart::add", "_ZN4Cart3addEi", true),
        ("add", "o:Cart::add", false),
        ("libc:malloc", "uprobe:/usr/lib/libc.so.6:malloc", true),
        ("lib*", "libc:malloc", false),
        ("lib:f+7", "uprobe:/tmp/lib:f+7", true),
        ("lib:f+7", "uprobe:/tmp/lib:f+17", false),
        ("lib:f+7", "uprobe:/tmp/lib:f", false),
        ("lib:f", "uprobe:/tmp/lib:f+7", false),
    ] {
        let spec: ProbeSpec = probe.parse().expect(probe);
        assert_eq!(spec.means(text), wanted, "{probe} {text}");
    }
}

#[test]
fn names_are_selected_as_people_write_them() {
    let path = compile("g++", "boxes", CPP, &["-O2", "-g"]);
    let image = image(&path);
    let raw = "_ZNK2ns3Box3getEPci";
    let one = select(&image, raw).expect("raw");
    for pattern in [
        "ns::Box::get",
        "ns::Box::get(char*, int) const",
        "ns::Box::get(char *,int) const",
        "*Box::get*",
        "/Box::g.t/",
    ] {
        assert_eq!(select(&image, pattern).as_ref(), Ok(&one), "{pattern}");
    }
    assert_eq!(select(&image, "ns::Box::operator+").expect("operator").len(), 1);
    assert_eq!(select(&image, "ns::twice<int>").expect("template").len(), 1);
    let start = image.function(one[0].function).start;
    assert_eq!(select(&image, &format!("{start:#x}")).expect("address"), one);
    let inner = select(&image, &format!("{raw}+3")).expect("offset");
    assert_eq!(inner, [Selected { function: one[0].function, offset: 3 }]);
    assert_eq!(select(&image, &format!("{:#x}", start + 3)).expect("address"), inner);
    let beyond = select(&image, &format!("{raw}+0x10000")).expect_err("beyond");
    assert_eq!(beyond.beyond, Some(image.function(one[0].function).len));
    let miss = select(&image, "ns::Box::gat").expect_err("misspelt");
    assert_eq!(miss.nearest.first().map(String::as_str), Some("ns::Box::get"));
    assert!(select(&image, "puts").expect_err("imported").imported);
    assert_eq!(select(&image, "only_inlined").expect_err("inlined").inlined, 2);
    assert_eq!(select(&image, "no_such_thing").expect_err("nothing").inlined, 0);
}

#[test]
fn versions_choose_among_namesakes() {
    for path in present(&[LIBC]) {
        let image = image(path);
        let of = |pattern: &str| {
            select(&image, pattern).map(|found| found.iter().map(|s| s.function).collect::<Vec<_>>())
        };
        let (all, new, old) = (of("memcpy"), of("memcpy@@"), of("memcpy@GLIBC_2.2.5"));
        assert_eq!(of("memcpy@@GLIBC_2.14"), new);
        let (all, new, old) = (all.expect("all"), new.expect("default"), old.expect("old"));
        assert_eq!((all.len(), new.len(), old.len()), (2, 1, 1));
        assert_ne!(new, old);
        assert!(of("memcpy@GLIBC_9").is_err());
    }
}

#[test]
fn nameless_functions_are_selected_by_place() {
    for path in present(&[PYTHON]) {
        let image = image(path);
        let all = image.select(&"*".parse().expect("glob"), "python3.11").expect("all");
        assert_eq!(all.len(), image.functions().len());
        let nameless = image.functions().iter().find(|f| f.names.is_empty()).expect("nameless");
        let shown = image.display_name(nameless, "python3.11");
        let found = image.select(&shown.parse().expect("name"), "python3.11").expect("by place");
        assert_eq!((image.function(found[0].function), found[0].offset), (nameless, 0), "{shown}");
        assert!(image.select(&"python*".parse().expect("glob"), "python3.11").is_err());
    }
}

#[test]
fn demangled_as_cxxfilt_does() {
    for path in present(&[LIBSTDCXX]) {
        let image = image(path);
        let mangled: Vec<String> = image
            .functions()
            .iter()
            .filter_map(|f| {
                image.names(f).next().filter(|n| n.raw.starts_with("_Z")).map(|n| n.raw.to_owned())
            })
            .collect();
        let list = common::scratch("mangled.txt");
        std::fs::write(&list, mangled.join("\n")).expect("list");
        let theirs = run("sh", &["-c", &format!("c++filt < {}", list.display())]);
        let ours = image
            .functions()
            .iter()
            .filter(|f| image.names(f).next().is_some_and(|n| n.raw.starts_with("_Z")));
        let ours = ours.map(|f| image.display_name(f, ""));
        // One of the two writes `Ss` out in full.
        let string = "std::basic_string<char,std::char_traits<char>,std::allocator<char>>";
        let plain = |text: &str| {
            text.replace(' ', "").replace(string, "std::string").replace("basic_string(", "string(")
        };
        let differ: Vec<_> = theirs.lines().zip(ours).filter(|(a, b)| plain(a) != plain(b)).collect();
        assert!(mangled.len() > 3000, "{}", mangled.len());
        // The demangling crate misplaces some `&` and `*` of parameters; names before them must agree.
        assert!(differ.len() * 20 <= mangled.len(), "{} of {} differ", differ.len(), mangled.len());
        let name = |text: &str| text.split_once('(').map_or(text, |(name, _)| name).replace(' ', "");
        let wrong: Vec<_> = differ.iter().filter(|(a, b)| name(&plain(a)) != name(&plain(b))).collect();
        assert!(wrong.len() * 50 <= mangled.len(), "{} of {}: {:?}", wrong.len(), mangled.len(), &wrong[..3]);
    }
}

#[test]
fn markers_are_those_that_readelf_lists() {
    for path in present(&[LIBSTDCXX, PYTHON]) {
        let image = image(path);
        let listing = run("readelf", &["-nW", path]);
        let field = |name: &str| -> Vec<String> {
            listing.lines().filter_map(|l| Some(l.split_once(name)?.1.trim().to_owned())).collect()
        };
        let (providers, names, arguments) = (field("Provider:"), field("Name:"), field("Arguments:"));
        let places: Vec<Vec<u64>> = field("Location:")
            .iter()
            .map(|line| {
                line.split(|c: char| c == ',' || c.is_whitespace())
                    .filter_map(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok())
                    .collect()
            })
            .collect();
        assert!(!names.is_empty() && image.usdt().len() == names.len(), "{path}");
        for (index, marker) in image.usdt().iter().enumerate() {
            assert_eq!((&marker.provider, &marker.name), (&providers[index], &names[index]), "{path}");
            assert_eq!(marker.args, arguments[index], "{path}");
            let got = [marker.location.0, marker.base.0, marker.semaphore.map_or(0, |s| s.0)];
            assert_eq!(got[..], places[index][..], "{path}");
            assert_eq!(image.text(marker.location, 1), Some(&[0x90][..]), "{path}: {marker:?}");
        }
    }
}

#[test]
fn exceptions_land_where_the_compiler_says() {
    let source = common::scratch("pads.cc");
    std::fs::write(&source, CPP).expect("source");
    let (asm, out) = (common::scratch("pads.s"), common::scratch("pads"));
    let [source, asm, out] = [&source, &asm, &out].map(|p| p.to_str().expect("UTF-8"));
    run("g++", &["-O2", "-S", source, "-o", asm]);
    run("g++", &["-Wa,--keep-locals", asm, "-o", out]);
    let text = std::fs::read_to_string(asm).expect("assembly");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // Records of the call-site table: start-base, end-start, landing pad-base (0: none), action.
    let begins = lines.iter().enumerate().filter(|(_, l)| l.starts_with(".LLSDACSB"));
    let tables = begins.map(|(at, _)| lines[at + 1..].iter().take_while(|l| !l.starts_with(".LLSDACSE")));
    let pad =
        |record: &[&&str]| Some(record.get(2)?.strip_prefix(".uleb128 .L")?.split('-').next()?.to_owned());
    let pads: Vec<String> =
        tables.flat_map(|t| t.collect::<Vec<_>>().chunks(4).filter_map(pad).collect::<Vec<_>>()).collect();
    let symbols = run("nm", &[out]);
    let address = |label: &str| {
        let line = symbols.lines().find(|l| l.ends_with(&format!(" .L{label}"))).expect("label");
        u64::from_str_radix(line.split(' ').next().expect("address"), 16).expect("hexadecimal")
    };
    let pads: Vec<u64> = pads.iter().map(|label| address(label)).collect();
    assert!(!pads.is_empty());
    run("strip", &[out]);
    let image = image(out);
    for pad in pads {
        assert!(
            image.code_targets().binary_search(&Svma(pad)).is_ok(),
            "{pad:#x} in {:?}",
            image.code_targets()
        );
    }
}

const POINTERS: &str = r#"
#include <stddef.h>
static int one(void) { return 1; } static int two(void) { return 2; }
int (*const table[])(void) = { one, two };
static int (*pick(void))(void) { return one; }
int chosen(void) __attribute__((ifunc("pick")));
__attribute__((constructor)) static void early(void) { static volatile int n; n++; }
int critical(void) { asm volatile(
  ".pushsection __rseq_cs, \"aw\"\n .balign 32\n 3: .long 0, 0\n .quad 1f, 2f-1f, 4f\n .popsection\n"
  ".pushsection __rseq_cs_ptr_array, \"aw\"\n .quad 3b\n .popsection\n"
  "1: nop\n nop\n nop\n 2: jmp 5f\n .long 0x53053053\n 4: jmp 5f\n 5:\n"); return 0; }
int main(int argc, char **argv) { return table[argc & 1]() + chosen() + critical(); }
"#;

#[test]
fn pointers_to_code_are_found_in_every_kind_of_program() {
    for (name, flags) in [
        ("ptr_pie", &["-O1", "-pie", "-fPIE"][..]),
        ("ptr_exec", &["-O1", "-no-pie", "-fno-pie"]),
        ("ptr_static", &["-O1", "-static", "-no-pie"]),
        ("ptr_relr", &["-O1", "-pie", "-fPIE", "-Wl,-z,pack-relative-relocs"]),
        ("ptr_static_pie", &["-O1", "-static-pie", "-fPIE"]),
    ] {
        let path = compile("gcc", name, POINTERS, flags);
        let full = image(&path);
        let start =
            |function: &str| full.function(select(&full, function).expect(function)[0].function).start;
        let (one, two, early, pick) = (start("one"), start("two"), start("early"), start("pick"));
        let symbols = run("nm", &[&path]);
        run("strip", &["--strip-all", "-R", ".eh_frame", "-R", ".eh_frame_hdr", &path]);
        let bare = image(&path);
        for wanted in [one, two, early, pick, bare.entry()] {
            assert!(bare.code_targets().binary_search(&wanted).is_ok(), "{name}: {wanted} of {symbols}");
        }
        assert_eq!(bare.pointer_words("chosen", pick).len(), 1, "{name}");
        let [section] = bare.rseq_sections() else { panic!("{name}: {:?}", bare.rseq_sections()) };
        assert_eq!((section.len, section.abort - section.start), (3, 9), "{name}");
        assert_eq!(bare.text(section.start, 3), Some(&[0x90; 3][..]), "{name}");
    }
}
