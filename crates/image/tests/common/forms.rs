//! Debug information in files of its own, and what an image says with it: for tests that compare forms of it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use trapline_image::{Bytes, DebugFile, DebugFiles, Image, Pattern, SourceLine, SplitFiles};

use super::{run, scratch};

/// No compiler and no linker changes how such functions are called, whatever it knows of their callers.
const KEPT: &str = r#"
#ifdef __clang__
#define NOIPA __attribute__((noinline, optnone))
#else
#define NOIPA __attribute__((noipa))
#endif
#ifdef __cplusplus
#define F extern "C" NOIPA
#else
#define F NOIPA
#endif
"#;
const MAIN: &str = r#"
#include <stddef.h>
#include "kept.h"
enum mode { OFF, FAST, SAFE = 7 };
struct node { struct node *next; enum mode mode; unsigned few : 3; const char *name; };
struct node global = { 0, FAST, 2, 0 };
F int other(struct node *of, double by);
F long handle(struct node *request, short many, const char *text) {
    return request->mode + many + (text ? text[0] : 0);
}
F double scale(float x, enum mode mode, struct node *const of) { return x * mode + of->few; }
int main(int argc, char **argv) {
    return handle(&global, argc, argv[0]) + scale(argc, SAFE, &global) + other(&global, argc);
}
"#;
const OTHER: &str = r#"
#include "kept.h"
struct leaf { char tag; long value; };
struct item { struct item *next; int mode; struct leaf leaf; };
F int inner(struct leaf *leaf) { return leaf->value; }
F int other(struct item *of, double by) { return inner(&of->leaf) + by; }
"#;

/// Files of a folder, or of none.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    pub(crate) package: Option<PathBuf>,
    pub(crate) units: Option<PathBuf>,
    pub(crate) shared: Option<PathBuf>,
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
    fn shared(&self, name: &str, build_id: &[u8]) -> Option<Bytes> {
        assert!(!name.is_empty() && build_id.len() == 20, "{name} {build_id:?}");
        std::fs::read(self.shared.as_ref()?).ok().map(Bytes::from)
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
pub(crate) fn compiled(name: &str, compiler: &str, flags: &[&str]) -> (PathBuf, PathBuf) {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("kept.h"), KEPT).expect("a header");
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
    run(compiler, &[flags, &["-O1", paths[0], paths[1], "-o", program.to_str().expect("UTF-8")]].concat());
    (folder, program)
}

/// What an image says: prototypes, shapes of parameters, lines, fields, variables.
pub(crate) fn said(program: &Path, files: Folder) -> Vec<String> {
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
    let line = SourceLine { file: "other.c".to_owned(), line: 5, column: None };
    said.push(format!("{:?}", image.select(&Pattern::Line(line), "program").map(|found| found.len())));
    said
}
