//! The committed header is what the sources give, and C and C++ compilers accept it with all warnings on.

use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// In the order in which the header has them.
const SOURCES: [&str; 8] =
    ["error", "inside", "session", "report", "functions", "value", "command", "commands"];

fn generated() -> String {
    let config =
        cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).expect("a configuration");
    let sources = SOURCES.map(|name| Path::new(CRATE).join(format!("src/{name}.rs")));
    let builder = sources.iter().fold(cbindgen::Builder::new().with_config(config), |b, s| b.with_src(s));
    let mut text = Vec::new();
    builder.generate().expect("bindings").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

fn committed() -> PathBuf {
    Path::new(CRATE).join("include/trapline.h")
}

#[test]
fn the_committed_header_is_what_the_sources_give() {
    let generated = generated();
    if std::env::var_os("TRAPLINE_WRITE_HEADER").is_some() {
        std::fs::write(committed(), &generated).expect("written");
    }
    let committed = std::fs::read_to_string(committed()).expect("the header");
    let differs = committed.lines().zip(generated.lines()).find(|(a, b)| a != b);
    assert_eq!(differs, None, "TRAPLINE_WRITE_HEADER=1 cargo test -p trapline-capi --test header writes it");
    assert_eq!(committed.len(), generated.len());
}

#[test]
fn compilers_take_it() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("only-the-header.c");
    std::fs::write(&source, "#include <trapline.h>\n#include <trapline.h>\nextern trapline_error one;\n")
        .expect("written");
    for words in ["cc -x c -std=c11", "c++ -x c++ -std=c++17"] {
        let mut words = words.split(' ');
        let output = Command::new(words.next().expect("a compiler"))
            .args(words)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(Path::new(CRATE).join("include"))
            .arg(&source)
            .output()
            .expect("a compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
