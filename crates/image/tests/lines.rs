//! The code of source lines. The judge is binutils' objdump, which writes the whole table.

mod common;

use common::{compile, image, run};
use trapline_image::{Image, NoMatch, ProbeSpec};
use trapline_record::Svma;

const SOURCE: &str = "\
static volatile int sink;
static inline __attribute__((always_inline)) void put(int n) {
    sink = n;
}
__attribute__((noinline)) int turns(int n) {
    for (int i = 0; i < n; i++)
        sink += i;

    return sink;
}
__attribute__((noinline)) void twice(int n) {
    put(n); put(n + 1);
}
int main(int argc, char **argv) {
    (void)argv;
    put(argc);
    twice(argc);
    return turns(argc);
}
";

/// The addresses that a line means.
fn code(image: &Image, place: &str) -> Result<Vec<Svma>, NoMatch> {
    let spec: ProbeSpec = format!("uprobe:prog@{place}").parse().expect(place);
    assert_eq!(spec.file.as_deref(), Some("prog"));
    let found = image.select(&spec.func, "prog")?;
    Ok(found.iter().map(|one| image.function(one.function).start + one.offset).collect())
}

#[test]
fn each_function_with_code_of_a_line_has_its_first() {
    for (version, flags) in [("4", ["-g", "-gdwarf-4", "-O1"]), ("5", ["-g", "-gdwarf-5", "-O0"])] {
        let path = compile("gcc", &format!("lines{version}"), SOURCE, &flags);
        let image = image(&path);
        let name = format!("lines{version}.c");
        let table = run("objdump", &["--dwarf=decodedline", &path]);
        for (line, functions) in [(3, 2), (5, 1), (7, 1), (9, 1), (17, 1)] {
            let found =
                code(&image, &format!("{name}:{line}")).unwrap_or_else(|why| panic!("{line}: {why:?}"));
            assert_eq!(found.len(), functions, "DWARF {version}, line {line}: {found:?}");
            for at in found {
                let is_row = |row: &str| {
                    let words: Vec<&str> = row.split_whitespace().collect();
                    words.get(1..3) == Some(&[line.to_string().as_str(), at.to_string().as_str()])
                };
                assert!(table.lines().any(is_row), "{line} {at}: {table}");
            }
        }
        let start = |name: &str| {
            let found = image.select(&name.parse().expect(name), "prog").expect(name);
            image.function(found[0].function).start
        };
        assert_eq!(code(&image, &format!("{name}:5")), Ok(vec![start("turns")]), "a function's first line");
    }
}

#[test]
fn a_line_without_code_names_those_beside_it() {
    let path = compile("gcc", "beside", SOURCE, &["-g", "-O0"]);
    let known = image(&path);
    let miss = code(&known, "beside.c:8").expect_err("an empty line");
    assert_eq!(miss.nearest, ["beside.c:7", "beside.c:9"]);
    assert!(code(&known, "beside.c:12:13").is_ok_and(|one| one.len() == 1), "with its column");
    assert!(code(&known, "beside.c:12:400").is_err());
    assert!(code(&known, "side.c:7").is_err(), "the end of a name is another name");
    let bare = compile("gcc", "bare_lines", SOURCE, &["-O0"]);
    assert!(code(&image(&bare), "bare_lines.c:7").expect_err("no debug information").no_lines);
}

#[test]
fn only_entries_can_be_lines() {
    for text in ["uretprobe:prog@a.c:5", "usdt:prog@a.c:5"] {
        assert!(text.parse::<ProbeSpec>().is_err(), "{text}");
    }
    // A folder may have such a name, and a function is no number.
    let other: ProbeSpec = "uprobe:/opt/a@2/prog:f".parse().expect("a path");
    assert_eq!(other.file.as_deref(), Some("/opt/a@2/prog"));
    let line: ProbeSpec = "prog@src/a.c:5:2".parse().expect("a line");
    assert_eq!(
        (line.to_string().as_str(), line.means("uprobe:prog@src/a.c:5:2")),
        ("uprobe:prog@src/a.c:5:2", true)
    );
}
