//! Compiles the sample program of `demo`, so that the command can run it where no compiler is.
//!
//! In: `src/demo/sample.rs`, and the target. Out: two programs in `OUT_DIR`, compressed. `sample-dynamic` uses the GNU C library, as
//! most programs of users do; `sample-static` uses the target's own, and musl is linked into it. A target without the
//! first has an empty file in its place. Invariant: no path of this machine is in them.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::DeflateEncoder;

const SOURCE: &str = "src/demo/sample.rs";

/// What cargo says to build scripts.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Compiles the sample for one target. What the compiler says, if it fails.
fn compile(target: &str, out: &Path) -> Result<(), String> {
    let folder = variable("CARGO_MANIFEST_DIR").unwrap_or_default();
    let mut rustc = Command::new(variable("RUSTC").ok_or("no RUSTC")?);
    rustc
        .current_dir(&folder)
        .args(["--edition", "2024", "--crate-name", "sample", "--crate-type", "bin", "--target", target])
        .args(["-C", "opt-level=3", "-C", "debuginfo=2", "-C", "panic=abort", "-C", "codegen-units=1"])
        .args(["-C", "link-arg=-Wl,--build-id=none"])
        .arg(format!("--remap-path-prefix={folder}="))
        .arg(format!("--remap-path-prefix={}=", out.parent().unwrap_or(out).display()));
    if let Some(linker) = variable("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let output = rustc.arg("-o").arg(out).arg(SOURCE).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCE}");
    let (target, out) = (variable("TARGET").unwrap_or_default(), variable("OUT_DIR").unwrap_or_default());
    let (dynamic, own) = (Path::new(&out).join("sample-dynamic"), Path::new(&out).join("sample-static"));
    let gnu = target.replace("-musl", "-gnu");
    // Where only the target's own library is, the demo has one program.
    if gnu == target || compile(&gnu, &dynamic).is_err() {
        put(&dynamic, &[]);
    } else {
        compress(&dynamic);
    }
    compile(&target, &own).unwrap_or_else(|error| panic!("{SOURCE} for {target}: {error}"));
    compress(&own);
}

/// Replaces a file by what is left of it without repetitions.
fn compress(path: &Path) {
    let program = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut to = DeflateEncoder::new(Vec::new(), Compression::best());
    let compressed = to.write_all(&program).and_then(|()| to.finish());
    put(path, &compressed.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
