//! Functions against binutils, against Go's own tools, and against the same file before it was stripped.

mod common;

use common::{GIT, LIBC, LIBSTDCXX, PYTHON, compile, image, present, readelf_fdes, readelf_functions, run};
use std::collections::{BTreeMap, BTreeSet};
use trapline_image::{
    Bytes, Convention, DebugFile, DebugFiles, Function, FunctionIndex, FunctionKind, Image, NoDebugFiles,
    Source,
};
use trapline_record::Svma;

const PIECES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
volatile int sink;
__attribute__((cold, noinline)) static void rare(int x) { printf("%d rare\n", x); fflush(stdout); sink++; }
__attribute__((noinline)) static int twice(int x) { sink += x; return 2 * x + sink; }
__attribute__((noinline)) static int work(int n) {
    int a[64]; for (int i = 0; i < 64; i++) a[i] = twice(n + i);
    if (__builtin_expect(a[n & 63] == 12345, 0)) { rare(a[0]); sink += n; rare(n); }
    return a[n & 7] + twice(a[3]);
}
__attribute__((noinline)) int also(int n) { return work(n) - 1; }
int also_known_as(int n) __attribute__((alias("also")));
int main(int argc, char **argv) { return also(argc) + twice(argc); }
"#;

/// IMG-2 on any image.
fn check_order(image: &Image, path: &str) {
    for pair in image.functions().windows(2) {
        assert!(pair[0].end() <= pair[1].start, "{path}: {:?} runs into {:?}", pair[0], pair[1]);
    }
    assert!(image.functions().iter().all(|f| f.len > 0), "{path}: empty function");
}

#[test]
fn every_function_symbol_is_a_function_with_its_name_and_length() {
    let built = compile("gcc", "pieces", PIECES, &["-O2"]);
    let library = "/root/.pyenv/versions/3.11.7/lib/libpython3.11.so.1.0";
    for path in present(&[&built, LIBC, LIBSTDCXX, GIT, PYTHON, library]) {
        let image = image(path);
        check_order(&image, path);
        let by_start: BTreeMap<u64, &Function> = image.functions().iter().map(|f| (f.start.0, f)).collect();
        let symbols = readelf_functions(path);
        let starts: BTreeSet<u64> = symbols.iter().map(|s| s.start).collect();
        for symbol in &symbols {
            if symbol.name.contains(".cold") {
                let owner = image.function_at(Svma(symbol.start)).map(|index| image.function(index));
                let held = owner.is_some_and(|f| {
                    f.cold
                        .iter()
                        .any(|&(at, len)| at.0 == symbol.start && (len == symbol.size || symbol.size == 0))
                });
                assert!(held, "{path}: {symbol:?} belongs to {owner:?}");
                continue;
            }
            let function = by_start.get(&symbol.start).unwrap_or_else(|| panic!("{path}: lost {symbol:?}"));
            let named = image.names(function).any(|name| {
                let versioned =
                    name.version.map(|v| format!("{}@{}{v}", name.raw, if name.default { "@" } else { "" }));
                versioned.as_deref() == Some(&symbol.name) || name.raw == symbol.name
            });
            assert!(named, "{path}: {symbol:?} is called {:?}", image.names(function).collect::<Vec<_>>());
            assert!(!symbol.ifunc || function.kind == FunctionKind::Ifunc, "{path}: {symbol:?}");
            let room = starts.range(symbol.start + 1..).next().map_or(u64::MAX, |next| next - symbol.start);
            let same =
                symbols.iter().filter(|s| s.start == symbol.start && s.size != 0).map(|s| s.size.min(room));
            if symbol.size != 0 {
                let sizes: Vec<u64> = same.collect();
                assert!(sizes.contains(&function.len), "{path}: {symbol:?} has {:#x} bytes", function.len);
            }
        }
        // Untyped symbols count where an unwind entry begins.
        let fdes = readelf_fdes(path);
        let known = |f: &&Function| matches!(f.source, Source::Symtab | Source::Dynsym);
        for function in image.functions().iter().filter(known) {
            let labelled = fdes.contains_key(&function.start.0);
            assert!(starts.contains(&function.start.0) || labelled, "{path}: {function:?} is no symbol's");
        }
    }
}

#[test]
fn nameless_functions_are_the_unwind_entries_that_no_symbol_covers() {
    for path in present(&[LIBC, LIBSTDCXX, GIT, PYTHON]) {
        let image = image(path);
        let fdes = readelf_fdes(path);
        let made: Vec<(u64, u64)> = common::readelf_sections(path)
            .into_iter()
            .filter(|(name, ..)| name.starts_with(".plt") || name == ".init" || name == ".fini")
            .map(|(_, start, len)| (start, start + len))
            .collect();
        let pieces: BTreeMap<u64, u64> = image.fragments().iter().map(|&(at, len)| (at.0, len)).collect();
        let mut nameless = 0;
        for (&start, &(end, as_called)) in &fdes {
            if made.iter().any(|&(from, to)| start >= from && start < to) {
                assert!(!pieces.contains_key(&start), "{path}: PLT {start:#x} is no piece");
                continue;
            }
            let function = image.function_at(Svma(start)).map(|index| image.function(index));
            match function {
                Some(f) if f.names.is_empty() => {
                    assert_eq!((f.start.0, f.end().0, true), (start, end, as_called), "{path}");
                    nameless += 1;
                }
                Some(_) => {}
                None => {
                    assert!(!as_called, "{path}: lost the function at {start:#x}");
                    assert_eq!(pieces.get(&start), Some(&(end - start)), "{path}: piece at {start:#x}");
                }
            }
        }
        let all = image.functions().iter().filter(|f| f.names.is_empty()).count();
        assert_eq!(nameless, all, "{path}: nameless functions that are no unwind entry");
        assert!(nameless > 100, "{path}: {nameless}");
    }
}

#[test]
fn a_stripped_program_has_the_functions_and_pieces_it_had_before() {
    let path = compile("gcc", "pieces_full", PIECES, &["-O2"]);
    let stripped = format!("{path}.stripped");
    run("strip", &["-o", &stripped, &path]);
    let (full, stripped) = (image(&path), image(&stripped));
    for name in ["twice", "work", "also", "main"] {
        let index = full.select(&name.parse().expect("pattern"), "x").expect(name)[0].function;
        let function = full.function(index);
        let found = stripped.function_at(function.start).map(|index| stripped.function(index)).expect(name);
        assert_eq!(
            (found.start, found.len, found.source),
            (function.start, function.len, Source::Fde),
            "{name}"
        );
    }
    let work = full.function(full.select(&"work".parse().expect("pattern"), "x").expect("work")[0].function);
    assert_eq!(work.cold.len(), 1, "{work:?}");
    assert!(stripped.fragments().contains(&work.cold[0]), "{:?}", stripped.fragments());
    let also = full.select(&"also_known_as".parse().expect("pattern"), "x").expect("alias")[0].function;
    assert_eq!(full.function(also).names.len(), 2, "aliases are one function");
}

/// Answers every request with the same file, and keeps the requests.
struct Only(Vec<u8>, Vec<DebugFile>);

impl DebugFiles for Only {
    fn find(&mut self, request: &DebugFile) -> Option<Bytes> {
        self.1.push(request.clone());
        Some(Bytes::from(self.0.clone()))
    }
}

#[test]
fn a_debug_file_gives_names_back_unless_it_is_of_another_build() {
    let path = compile("gcc", "pieces_debug", PIECES, &["-O2", "-g", "-Wl,--build-id"]);
    let (debug, stripped) = (format!("{path}.debug"), format!("{path}.stripped"));
    run("objcopy", &["--only-keep-debug", &path, &debug]);
    run("objcopy", &["--strip-all", &format!("--add-gnu-debuglink={debug}"), &path, &stripped]);
    let mut files = Only(std::fs::read(&debug).expect("debug file"), Vec::new());
    let bytes = std::fs::read(&stripped).expect("stripped file");
    let image = Image::parse(bytes.clone(), &mut files).expect("image");
    let found = image.select(&"twice".parse().expect("pattern"), "x").expect("twice");
    assert_eq!(image.function(found[0].function).source, Source::DebugFile);
    let (name, _) = files.1[0].link.clone().expect("link");
    assert!(debug.ends_with(&name), "{name}");
    let notes = run("readelf", &["-n", &path]);
    let id: String = files.1[0].build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(notes.contains(&id), "{id} in {notes}");
    let other = compile("gcc", "other_debug", "int main(void) { return 7; }", &["-g", "-Wl,--build-id"]);
    let mut wrong = Only(std::fs::read(other).expect("other"), Vec::new());
    let image = Image::parse(bytes, &mut wrong).expect("image");
    assert!(image.select(&"twice".parse().expect("pattern"), "x").is_err());
}

#[test]
fn packed_symbols_give_names_back() {
    if std::process::Command::new("xz").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no xz on this machine");
        return;
    }
    let path = compile("gcc", "pieces_packed", PIECES, &["-O2"]);
    let (small, stripped) = (format!("{path}.small"), format!("{path}.stripped"));
    for extra in [&["-6"][..], &["-0", "--check=crc32"], &["--block-size=4096"]] {
        run("objcopy", &["--only-keep-debug", &path, &small]);
        run("xz", &[extra, &["-kf", &small]].concat());
        run(
            "objcopy",
            &["--strip-all", &format!("--add-section=.gnu_debugdata={small}.xz"), &path, &stripped],
        );
        let image = image(&stripped);
        let found = image.select(&"twice".parse().expect("pattern"), "x");
        let found = found.unwrap_or_else(|why| panic!("{extra:?}: {why:?}"));
        assert_eq!(image.function(found[0].function).source, Source::DebugData, "{extra:?}");
    }
}

const GO: &str = r#"package main
import ("fmt"; "net/http"; "os")
type T struct{ n int }
//go:noinline
func (t *T) Run(x int) (r int) { defer func() { if recover() != nil { r = -1 } }(); return 100 / (x - t.n) }
//go:noinline
func Gen[V any](v V) string { return fmt.Sprint(v) }
func main() { t := &T{1}; fmt.Println(t.Run(len(os.Args)), Gen(3), http.StatusText(200)) }
"#;

#[test]
fn stripped_go_programs_keep_their_functions() {
    let go = "/usr/local/go/bin/go";
    if !std::path::Path::new(go).exists() {
        eprintln!("SKIPPED: no Go on this machine");
        return;
    }
    let source = common::scratch("gomain.go").to_str().expect("UTF-8").to_owned();
    std::fs::write(&source, GO).expect("source");
    for mode in ["exe", "pie"] {
        let (full, stripped) = (format!("{source}.{mode}"), format!("{source}.{mode}.stripped"));
        run(go, &["build", "-buildmode", mode, "-o", &full, &source]);
        run(go, &["build", "-buildmode", mode, "-ldflags=-s -w", "-o", &stripped, &source]);
        let (full_image, bare) = (image(&full), image(&stripped));
        check_order(&bare, &stripped);
        assert!(full_image.is_go() && bare.is_go(), "{mode}");
        assert_eq!(full_image.go_g_in_tls(), Some(-8), "{mode}");
        assert!(readelf_functions(&stripped).len() < 20, "{mode}: it is stripped");
        let (mut checked, mut in_registers) = (0, 0);
        // C code that cgo linked in is not in Go's table.
        let packages = ["main.", "fmt.", "os.", "net/http.", "strconv.", "runtime."];
        let of_go = |name: &str| packages.iter().any(|package| name.starts_with(package));
        for symbol in
            readelf_functions(&full).iter().filter(|s| s.size > 0 && of_go(&s.name) && !s.name.contains('['))
        {
            let function = bare.function_at(Svma(symbol.start)).map(|index| bare.function(index));
            let Some(function) = function.filter(|f| f.start.0 == symbol.start) else {
                // Assembly markers share an address with nothing.
                panic!("{mode}: lost {symbol:?}");
            };
            assert_ne!(function.source, Source::Fde, "{mode}: {symbol:?}");
            assert!(
                bare.names(function)
                    .any(|name| name.raw == symbol.name.trim_end_matches(".abi0")
                        || symbol.name.contains("...")),
                "{mode}: {symbol:?}"
            );
            assert!(
                function.len <= symbol.size.next_multiple_of(32) && function.len + 32 > symbol.size,
                "{mode}: {symbol:?} has {}",
                function.len
            );
            let conventions = [&full_image, &bare].map(|image| image.convention_at(function.start));
            if symbol.name.ends_with(".abi0")
                || ["runtime.rt0_go", "runtime.memmove"].contains(&&*symbol.name)
            {
                assert_eq!(conventions, [Convention::Unknown; 2], "{mode}: {symbol:?}");
            }
            checked += 1;
            in_registers += u32::from(conventions == [Convention::Go; 2]);
        }
        assert!(checked > 1500, "{mode}: {checked}");
        assert!(in_registers > checked * 3 / 4, "{mode}: {in_registers} of {checked}");
        let run = bare.select(&"main.(*T).Run".parse().expect("pattern"), "x").expect("method");
        assert_eq!(run.len(), 1, "{mode}: a name before it is a glob");
        let function = bare.function(run[0].function);
        // `Run` recovers: it is resumed at its call of deferreturn, to which no branch leads.
        let text = common::run(
            "objdump",
            &[
                "-d",
                "--no-show-raw-insn",
                &full,
                &format!("--start-address={:#x}", function.start),
                &format!("--stop-address={:#x}", function.end()),
            ],
        );
        let resumed: Vec<u64> = text
            .lines()
            .filter(|l| l.contains("runtime.deferreturn"))
            .filter_map(|l| u64::from_str_radix(l.trim().split_once(':')?.0, 16).ok())
            .collect();
        let known = |at: &u64| bare.code_targets().binary_search(&Svma(*at)).is_ok();
        assert!(resumed.iter().any(known), "{mode}: {resumed:x?}");
    }
}

#[test]
fn facts_of_the_file() {
    let exe = compile("gcc", "facts_exec", PIECES, &["-O1", "-no-pie", "-static"]);
    let pie = compile("gcc", "facts_pie", PIECES, &["-O1"]);
    let (exe, pie) = (image(&exe), image(&pie));
    assert!(exe.is_static() && !pie.is_static());
    assert_eq!((exe.interp(), pie.interp()), (None, Some("/lib64/ld-linux-x86-64.so.2")));
    assert_eq!(pie.needed(), ["libc.so.6"]);
    for path in present(&[LIBC]) {
        let libc = image(path);
        assert_eq!(libc.soname(), Some("libc.so.6"));
        assert!(!libc.is_static());
        let malloc =
            libc.function(libc.select(&"malloc".parse().expect("pattern"), "x").expect("malloc")[0].function);
        let offset = libc.offset_of(malloc.start).expect("loaded");
        assert_eq!(libc.svma_of(offset), Some(malloc.start));
        assert_eq!(libc.text(malloc.start, 4), Some(&libc.bytes()[offset.0 as usize..][..4]));
        assert_eq!(libc.text(malloc.start, u64::MAX), None);
    }
    assert!(Image::parse(Vec::new(), &mut NoDebugFiles).is_err());
}

#[test]
fn what_is_near_is_what_is_there() {
    for path in present(&[LIBC, GIT]) {
        let image = image(path);
        let functions = image.functions();
        let last = functions.len() as u32 - 1;
        for (n, function) in (0..).zip(functions) {
            for at in [function.start - 1, function.start, function.end() - 1, function.end()] {
                let from =
                    [None, Some(0), Some(n), Some(u32::saturating_sub(n, 2)), Some(last), Some(last + 9)];
                for first in from.map(|first| first.map(FunctionIndex)) {
                    assert_eq!(
                        image.function_near(at, first),
                        image.function_at(at),
                        "{path} {at:?} {first:?}"
                    );
                }
            }
        }
    }
}
