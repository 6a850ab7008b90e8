//! What programs that were compiled before rely on: `abi/libtrapline.so.0.txt` lists it, and all of it still holds.
//!
//! A line is the version that brought something, and what: a function with its types, a constant, a field with its place
//! and its size, the least size of a structure. A line may be added, never changed or removed: that takes another
//! library name (`build.rs`), and an empty list. The C compiler says the places; the header says the rest.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const WRITE: &str = "TRAPLINE_WRITE_ABI";

fn list() -> PathBuf {
    Path::new(CRATE).join("abi/libtrapline.so.0.txt")
}

/// The header without comments, conditions and what C++ needs.
fn code() -> String {
    let text = std::fs::read_to_string(Path::new(CRATE).join("include/trapline.h")).expect("the header");
    let (_, text) = text.split_once("#include <stdint.h>").expect("includes");
    let kept = |line: &&str| !line.trim_start().starts_with("//") && !line.starts_with("extern \"C\"");
    text.lines().filter(kept).collect::<Vec<_>>().join("\n")
}

fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `#define NAME NUMBER`, and `NAME = NUMBER,` in enumerations.
fn constants(code: &str) -> Vec<String> {
    let of = |line: &str| {
        let pair = match line.trim().strip_prefix("#define ") {
            Some(rest) => rest.split_once(' '),
            None => line.trim().strip_suffix(',').and_then(|rest| rest.split_once(" = ")),
        };
        let (name, value) = pair.filter(|(name, _)| name.starts_with("TRAPLINE_"))?;
        value.parse::<i64>().ok().map(|value| format!("constant {name} = {value}"))
    };
    code.lines().filter_map(of).collect()
}

/// Functions, and types of functions: whatever ends in `);`.
fn functions(code: &str) -> Vec<String> {
    let plain: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    let statements = plain.join("\n");
    let of = |text: &str| {
        let text = single_spaced(text.rsplit(['}', '{']).next()?);
        text.ends_with(')').then(|| format!("function {text}"))
    };
    statements.split(';').filter_map(of).collect()
}

/// Structures with their fields: name and type.
fn structures(code: &str) -> Vec<(String, Vec<(String, String)>)> {
    let of = |part: &str| {
        let (name, rest) = part.split_once(" {")?;
        let (body, _) = rest.split_once("\n}")?;
        let field = |line: &str| {
            let line = line.trim().strip_suffix(';')?;
            let at = line.rfind([' ', '*'])? + 1;
            Some((line[at..].to_owned(), single_spaced(&line[..at])))
        };
        Some((name.to_owned(), body.lines().filter_map(field).collect()))
    };
    code.split("typedef struct ").skip(1).filter_map(of).collect()
}

/// Places and sizes, as the C compiler has them.
fn places(structures: &[(String, Vec<(String, String)>)]) -> Vec<String> {
    let mut source = "#include <stdio.h>\n#include <trapline.h>\nint main(void) {\n".to_owned();
    for (name, fields) in structures {
        writeln!(source, "printf(\"size {name} %zu\\n\", sizeof(struct {name}));").expect("memory");
        for (field, kind) in fields {
            let (at, size) = (
                format!("offsetof(struct {name}, {field})"),
                format!("sizeof(((struct {name} *)0)->{field})"),
            );
            writeln!(source, "printf(\"field {name}.{field}: {kind} at %zu, %zu bytes\\n\", {at}, {size});")
                .expect("memory");
        }
    }
    source.push_str("return 0;\n}\n");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join("abi-places.c"), folder.join("abi-places"));
    std::fs::write(&file, source).expect("written");
    let built = Command::new("cc")
        .arg("-I")
        .arg(Path::new(CRATE).join("include"))
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = Command::new(&program).output().expect("it runs").stdout;
    String::from_utf8(output).expect("text").lines().map(ToOwned::to_owned).collect()
}

/// All that the header promises now.
fn present() -> Vec<String> {
    let code = code();
    let structures = structures(&code);
    assert!(structures.len() > 6, "{structures:?}");
    [functions(&code), constants(&code), places(&structures)].concat()
}

/// Whether what was kept still holds. A structure may have grown.
fn holds(kept: &str, present: &BTreeSet<&str>) -> bool {
    let size = |line: &str| {
        let (name, bytes) = line.strip_prefix("size ")?.split_once(' ')?;
        Some((name.to_owned(), bytes.parse::<usize>().ok()?))
    };
    match size(kept) {
        None => present.contains(kept),
        Some((name, least)) => {
            present.iter().filter_map(|line| size(line)).any(|(other, bytes)| other == name && bytes >= least)
        }
    }
}

#[test]
fn what_was_promised_still_holds() {
    let present = present();
    let text = std::fs::read_to_string(list()).unwrap_or_default();
    let kept: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(' ')).map(|(_, what)| what).collect();
    let now: BTreeSet<&str> = present.iter().map(String::as_str).collect();
    let broken: Vec<&&str> = kept.iter().filter(|what| !holds(what, &now)).collect();
    assert!(
        broken.is_empty(),
        "programs that rely on this break; it takes another library name: {broken:#?}"
    );
    let known: BTreeSet<&str> = kept.iter().copied().collect();
    let new: Vec<&String> = present.iter().filter(|what| !known.contains(what.as_str())).collect();
    if std::env::var_os(WRITE).is_some() {
        let lines = new.iter().map(|what| format!("{} {what}\n", env!("CARGO_PKG_VERSION")));
        std::fs::write(list(), text.clone() + &lines.collect::<String>()).expect("written");
        return;
    }
    assert!(new.is_empty(), "{WRITE}=1 adds to the list: {new:#?}");
}

#[test]
fn a_change_is_noticed() {
    let now = BTreeSet::from(["size s 24", "field s.a: int at 8, 4 bytes", "constant TRAPLINE_X = 1"]);
    for kept in ["size s 24", "size s 16", "constant TRAPLINE_X = 1"] {
        assert!(holds(kept, &now), "{kept}");
    }
    for broken in ["size s 32", "size t 8", "field s.a: int at 4, 4 bytes", "constant TRAPLINE_X = 2"] {
        assert!(!holds(broken, &now), "{broken}");
    }
}
