//! PRO-5: split debug information says what the same compiler says in one file. Both are compiled here from one source.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{run, scratch};
use trapline_image::{Bytes, DebugFile, DebugFiles, Image, Pattern, SourceLine, SplitFiles};

const MAIN: &str = r"
#include <stddef.h>
enum mode { OFF, FAST, SAFE = 7 };
struct node { struct node *next; enum mode mode; unsigned few : 3; const char *name; };
struct node global = { 0, FAST, 2, 0 };
int other(struct node *of, double by);
static __attribute__((noinline)) long handle(struct node *request, short many, const char *text) {
    return request->mode + many + (text ? text[0] : 0);
}
__attribute__((noinline)) double scale(float x, enum mode mode, struct node *const of) { return x * mode + of->few; }
int main(int argc, char **argv) {
    return handle(&global, argc, argv[0]) + scale(argc, SAFE, &global) + other(&global, argc);
}
";
const OTHER: &str = r"
struct leaf { char tag; long value; };
struct node { struct node *next; int mode; struct leaf leaf; };
__attribute__((noinline)) static int inner(struct leaf *leaf) { return leaf->value; }
__attribute__((noinline)) int other(struct node *of, double by) { return inner(&of->leaf) + by; }
";

/// Files of a folder, or of none.
#[derive(Debug)]
struct Folder {
    package: Option<PathBuf>,
    units: Option<PathBuf>,
}

impl SplitFiles for Folder {
    fn package(&self) -> Option<Bytes> {
        std::fs::read(self.package.as_ref()?).ok().map(Bytes::from)
    }
    fn unit(&self, folder: &str, name: &str) -> Option<Bytes> {
        assert!(Path::new(folder).is_absolute(), "{folder}");
        let file = Path::new(name).file_name().expect("a name");
        std::fs::read(self.units.as_ref()?.join(file)).ok().map(Bytes::from)
    }
}

struct Found(Arc<Folder>);

impl DebugFiles for Found {
    fn find(&mut self, _: &DebugFile) -> Option<Bytes> {
        None
    }
    fn split(&self) -> Option<Arc<dyn SplitFiles>> {
        Some(self.0.clone())
    }
}

/// Compiles both units in a folder of their own, with these flags; returns the folder and the program.
fn compiled(name: &str, compiler: &str, flags: &[&str]) -> (PathBuf, PathBuf) {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let objects = [("main", MAIN), ("other", OTHER)].map(|(unit, source)| {
        let (input, object) = (folder.join(format!("{unit}.c")), folder.join(format!("{unit}.o")));
        std::fs::write(&input, source).expect("source");
        let mut command = Command::new(compiler);
        command.args(flags).args(["-O1", "-c"]).arg(input).arg("-o").arg(&object).current_dir(&folder);
        assert!(command.status().expect("a compiler").success(), "{command:?}");
        object
    });
    let program = folder.join("program");
    let paths = objects.each_ref().map(|object| object.to_str().expect("UTF-8"));
    run(compiler, &[paths[0], paths[1], "-o", program.to_str().expect("UTF-8")]);
    (folder, program)
}

/// What an image says: prototypes, shapes of parameters, lines, fields, variables.
fn said(program: &Path, files: Folder) -> Vec<String> {
    let bytes = std::fs::read(program).expect("a program");
    let image = Image::parse(bytes, &mut Found(Arc::new(files))).expect("an image");
    let debug = image.debug_info().expect("DWARF");
    let mut said = Vec::new();
    for name in ["main", "handle", "scale", "other", "inner"] {
        let function = image.functions().iter().find(|one| image.display_name(one, "x") == name);
        let at = function.unwrap_or_else(|| panic!("{name}")).start;
        let line = debug.line(at).map(|line| (line.line, line.file.rsplit('/').next().map(str::to_owned)));
        said.push(format!("{name} {:?} {:?}", debug.prototype(at), line));
        said.push(format!("{:?} {:?}", debug.parameter_shapes(at), debug.record_shape("leaf", at)));
        said.push(format!(
            "{:?}",
            ["request->next->mode", "of->leaf.value", "leaf->tag"].map(|path| debug.field(at, path))
        ));
    }
    let variable = debug.variables("global.mode").map(|all| all.len());
    said.push(format!("{variable:?}"));
    let line = SourceLine { file: "other.c".to_owned(), line: 4, column: None };
    said.push(format!("{:?}", image.select(&Pattern::Line(line), "program").map(|found| found.len())));
    said
}

/// What is said without the files: nothing of functions and types; lines stay.
fn is_nothing(said: &[String]) -> bool {
    let of_functions = said.iter().filter(|one| one.contains("other.c") || one.contains("main.c"));
    of_functions.clone().count() == 5 && of_functions.clone().all(|one| one.contains("None Some"))
}

#[test]
fn split_debug_information_says_what_whole_one_says() {
    let mut compared = 0;
    for (compiler, version) in [("gcc", "5"), ("gcc", "4"), ("clang", "5"), ("clang", "4")] {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("SKIP: {compiler} is not on this machine");
            continue;
        }
        let dwarf = format!("-gdwarf-{version}");
        let flags = ["-g", &*dwarf];
        let name = format!("{compiler}-{version}");
        let (_, whole) = compiled(&format!("whole-{name}"), compiler, &flags);
        let whole = said(&whole, Folder { package: None, units: None });
        assert!(whole.iter().all(|one| !one.starts_with("handle None")), "{whole:#?}");
        let split = [&flags[..], &["-gsplit-dwarf"]].concat();
        let (folder, program) = compiled(&format!("split-{name}"), compiler, &split);
        let units = Folder { package: None, units: Some(folder.clone()) };
        assert_eq!(said(&program, units), whole, "{name}");
        let nothing = said(&program, Folder { package: None, units: None });
        assert!(is_nothing(&nothing), "{name}: {nothing:#?}");
        // Files of other units have other ids (PRO-5).
        let swapped = folder.join("swapped");
        std::fs::create_dir_all(&swapped).expect("a folder");
        std::fs::copy(folder.join("main.dwo"), swapped.join("other.dwo")).expect("a file");
        std::fs::copy(folder.join("other.dwo"), swapped.join("main.dwo")).expect("a file");
        let wrong = said(&program, Folder { package: None, units: Some(swapped) });
        assert!(is_nothing(&wrong), "{name}: {wrong:#?}");
        // binutils packs DWARF 5 into files that nobody reads, gdb neither.
        let tools: &[&str] = if version == "4" { &["dwp", "llvm-dwp"] } else { &["llvm-dwp"] };
        for tool in tools {
            let package = folder.join(format!("{tool}.dwp"));
            let mut command = Command::new(tool);
            let objects = ["main.dwo", "other.dwo"].map(|unit| folder.join(unit));
            let made = command.args(objects).arg("-o").arg(&package).current_dir(&folder).output();
            match made {
                Ok(made) if made.status.success() => {
                    let packed = Folder { package: Some(package), units: None };
                    assert_eq!(said(&program, packed), whole, "{name} {tool}");
                    compared += 1;
                }
                other => eprintln!("SKIP: {tool} with {name}: {other:?}"),
            }
        }
    }
    assert!(compared > 0 || Command::new("llvm-dwp").output().is_err(), "no package was compared");
}

/// A hostile file in place of a unit or a package ends in nothing, not in a panic.
#[test]
fn broken_files_say_nothing() {
    let (folder, program) = compiled("broken", "gcc", &["-g", "-gsplit-dwarf"]);
    let intact = std::fs::read(folder.join("main.dwo")).expect("a file");
    let broken = folder.join("broken");
    std::fs::create_dir_all(&broken).expect("a folder");
    for step in 0..200 {
        let mut bytes = intact.clone();
        let len = bytes.len();
        match step % 4 {
            0 => bytes.truncate(len * step / 200),
            _ => (0..8).for_each(|nth| bytes[(step * 7919 + nth * 104_729) % len] ^= 1 << (step % 8)),
        }
        std::fs::write(broken.join("main.dwo"), &bytes).expect("room");
        drop(said(&program, Folder { package: None, units: Some(broken.clone()) }));
        let package = Some(broken.join("main.dwo"));
        drop(said(&program, Folder { package, units: None }));
    }
}
