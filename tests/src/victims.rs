//! Builds each of the programs of `tests/victims` once, into `target/victims/VARIANT/`.
//!
//! Input: a name and a variant. Output: the program's path, or why it cannot be built here (a missing
//! compiler).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::native;

/// How a C victim is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// `-O2`, position-independent, dynamic: as distributions build.
    Plain,
    /// `-O0`.
    O0,
    /// `-O3 -fomit-frame-pointer`.
    O3,
    /// `-fcf-protection=full`: every function begins with endbr64.
    Cet,
    /// A fixed address.
    NonPie,
    /// Static glibc.
    Static,
    /// Static musl.
    Musl,
    /// Without symbols but the dynamic ones.
    Stripped,
    /// Frame pointers in all functions. Not one of [`VARIANTS`].
    Framed,
    /// Types as BTF, without DWARF.
    Btf,
    /// Debug information split off into files beside it.
    Split,
}

/// The variants that tests go through.
pub const VARIANTS: [Variant; 8] = [
    Variant::Plain,
    Variant::O0,
    Variant::O3,
    Variant::Cet,
    Variant::NonPie,
    Variant::Static,
    Variant::Musl,
    Variant::Stripped,
];

impl Variant {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["-O2", "-fPIE", "-pie"],
            Self::O0 => &["-O0", "-fPIE", "-pie"],
            Self::O3 => &["-O3", "-fomit-frame-pointer", "-fPIE", "-pie"],
            Self::Cet => &["-O2", "-fcf-protection=full", "-fPIE", "-pie"],
            Self::NonPie => &["-O2", "-fno-pie", "-no-pie"],
            Self::Static => &["-O2", "-static"],
            Self::Musl => &["-O2", "-static", "-fno-pie", "-no-pie"],
            Self::Stripped => &["-O2", "-fPIE", "-pie", "-s"],
            Self::Split => &["-O2", "-fPIE", "-pie", "-gsplit-dwarf"],
            Self::Btf => &["-O2", "-fPIE", "-pie", "-gbtf", "-Wl,--strip-debug"],
            Self::Framed => &[
                "-O2",
                "-fno-omit-frame-pointer",
                "-mno-omit-leaf-frame-pointer",
                "-fno-optimize-sibling-calls",
                "-fPIE",
                "-pie",
            ],
        }
    }
}

/// What C victims include.
const HEADERS: [&str; 5] = ["victim.h", "marks.h", "changes.h", "changes_x86_64.h", "changes_aarch64.h"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("victims")
}

/// The folder of a variant, created if it is missing.
fn folder(name: &str) -> Result<PathBuf, String> {
    let dir = crate::target_dir().join("victims").join(name);
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

fn newest(files: &[PathBuf]) -> Option<std::time::SystemTime> {
    files.iter().filter_map(|file| file.metadata().and_then(|meta| meta.modified()).ok()).max()
}

/// Runs `compile` with a temporary output path, unless `output` is newer than its sources. Tests run side by
/// side. So only one of them compiles, and it moves the result into place by a rename; no file is replaced
/// under a running victim.
fn cached(
    output: PathBuf,
    from: &[PathBuf],
    compile: impl FnOnce(&Path) -> Command,
) -> Result<PathBuf, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = output.metadata().and_then(|meta| meta.modified()).ok();
    if made.is_some() && made >= newest(from) {
        return Ok(output);
    }
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let temporary = output.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut command = compile(&temporary);
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| format!("{program} does not run: {error}"))?;
    assert!(done.status.success(), "{program} on {name}: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&temporary, &output).map_err(|error| format!("{}: {error}", output.display()))?;
    Ok(output)
}

/// A C victim, together with an assembly file of the same name if there is one.
///
/// # Errors
/// The compiler is missing.
///
/// # Panics
/// If the compiler is there and does not accept the victim.
pub fn c(name: &str, variant: Variant) -> Result<PathBuf, String> {
    let output = folder(&format!("{variant:?}"))?.join(name);
    let source = sources();
    let mut files = vec![source.join(format!("{name}.c"))];
    files.extend(Some(source.join(format!("{name}.S"))).filter(|asm| asm.exists()));
    let mut watched = files.clone();
    watched.extend(HEADERS.map(|header| source.join(header)));
    cached(output, &watched, |to| {
        let mut command = Command::new(if variant == Variant::Musl { "musl-gcc" } else { "gcc" });
        command.args(["-g", "-D_GNU_SOURCE"]).args(variant.flags()).args(&files).arg("-o").arg(to);
        command.args(["-lpthread", "-ldl"]);
        command
    })
}

/// A C victim for arm64, dynamic or static.
///
/// # Errors
/// See [`c`].
pub fn c_for_arm64(name: &str, variant: Variant) -> Result<PathBuf, String> {
    let output = folder(&format!("Arm64{variant:?}"))?.join(name);
    let own = format!("{name}.c");
    let files: Vec<PathBuf> = [&*own].into_iter().chain(HEADERS).map(|file| sources().join(file)).collect();
    cached(output, &files, |to| {
        let mut command = Command::new("aarch64-linux-gnu-gcc");
        command.args(["-g", "-D_GNU_SOURCE"]).args(variant.flags()).arg(&files[0]).arg("-o").arg(to);
        command
    })
}

/// A C victim in the plain variant.
///
/// # Errors
/// See [`c`].
pub fn plain(name: &str) -> Result<PathBuf, String> {
    if name == "family" {
        shared("plugin")?;
    }
    c(name, Variant::Plain)
}

/// A C victim compiled by clang, at `-O2`.
///
/// # Errors
/// See [`c`].
pub fn clang(name: &str) -> Result<PathBuf, String> {
    let files = [sources().join(format!("{name}.c")), sources().join("victim.h")];
    cached(folder("Clang")?.join(name), &files, |to| {
        let mut command = Command::new("clang");
        command.args(["-O2", "-g", "-D_GNU_SOURCE"]).arg(&files[0]).arg("-o").arg(to);
        command
    })
}

/// A C victim, by this compiler and with these flags.
///
/// # Errors
/// See [`c`].
pub fn c_by(name: &str, compiler: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let source = sources().join(format!("{name}.c"));
    let folder = folder(&format!("{compiler}{}", flags.concat().replace('/', "_")))?;
    cached(folder.join(name), std::slice::from_ref(&source), |to| {
        let mut command = Command::new(compiler);
        command.arg("-g").args(flags).arg(&source).arg("-o").arg(to);
        command
    })
}

/// A shared library, beside the plain victims.
///
/// # Errors
/// See [`c`].
pub fn shared(name: &str) -> Result<PathBuf, String> {
    let source = sources().join(format!("{name}.c"));
    cached(folder("Plain")?.join(format!("{name}.so")), std::slice::from_ref(&source), |to| {
        let mut command = Command::new("gcc");
        command.args(["-O2", "-g", "-shared", "-fPIC"]).arg(&source).arg("-o").arg(to);
        command
    })
}

/// A program of the plain variant that is linked with a library of its own: `NAME_library.so`, beside it.
///
/// # Errors
/// See [`c`].
pub fn with_library(name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let library = shared(&format!("{name}_library"))?;
    let folder = library.parent().unwrap_or_else(|| Path::new("."));
    let files = [sources().join(format!("{name}.c")), sources().join("victim.h")];
    cached(folder.join(format!("{name}{}", flags.concat())), &files, |to| {
        let mut command = Command::new("gcc");
        command.args(["-O2", "-g"]).args(flags).arg(&files[0]).arg("-o").arg(to).arg(&library);
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
        command
    })
}

/// A C++ victim.
///
/// # Errors
/// See [`c`].
pub fn cpp(name: &str) -> Result<PathBuf, String> {
    let files = [sources().join(format!("{name}.cpp")), sources().join("victim.h")];
    cached(folder("Plain")?.join(name), &files, |to| {
        let mut command = Command::new("g++");
        command.args(["-O2", "-g"]).arg(&files[0]).arg("-o").arg(to);
        command
    })
}

/// A C++ victim, by this compiler and with these flags.
///
/// # Errors
/// See [`c`].
pub fn cpp_by(name: &str, compiler: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let files = [sources().join(format!("{name}.cpp")), sources().join("victim.h")];
    cached(folder(&format!("{compiler}{}", flags.concat()))?.join(name), &files, |to| {
        let mut command = Command::new(compiler);
        command.arg("-g").args(flags).arg(&files[0]).arg("-o").arg(to);
        command
    })
}

/// A static C++ victim.
///
/// # Errors
/// See [`c`].
pub fn cpp_static(name: &str) -> Result<PathBuf, String> {
    let files = [sources().join(format!("{name}.cpp")), sources().join("victim.h")];
    cached(folder("Static")?.join(name), &files, |to| {
        let mut command = Command::new("g++");
        command.args(["-O2", "-g", "-static"]).arg(&files[0]).arg("-o").arg(to);
        command
    })
}

/// A Rust victim.
///
/// # Errors
/// See [`c`].
pub fn rust(name: &str) -> Result<PathBuf, String> {
    let source = sources().join(format!("{name}.rs"));
    cached(folder("Plain")?.join(name), std::slice::from_ref(&source), |to| {
        let mut command = Command::new("rustc");
        command.args(["-O", "-g", "--edition", "2024", "--crate-name", name]).arg(&source).arg("-o").arg(to);
        command
    })
}

/// A static Rust victim.
///
/// # Errors
/// See [`c`].
pub fn rust_static(name: &str) -> Result<PathBuf, String> {
    let source = sources().join(format!("{name}.rs"));
    cached(folder("Static")?.join(name), std::slice::from_ref(&source), |to| {
        let mut command = Command::new("rustc");
        command.args(["-O", "-g", "--edition", "2024", "-C", "target-feature=+crt-static"]);
        command.args(["--crate-name", name]).arg(&source).arg("-o").arg(to);
        command
    })
}

/// A Go victim, static.
///
/// # Errors
/// See [`c`].
pub fn go(name: &str) -> Result<PathBuf, String> {
    go_linked(name, "Plain", ["0", ""])
}

/// The same without optimization.
///
/// # Errors
/// See [`c`].
pub fn go_unoptimized(name: &str) -> Result<PathBuf, String> {
    go_built(&["-gcflags=all=-N -l"], native::GO, name, "GoUnoptimized", ["0", ""])
}

/// A Go victim by Go 1.19, which says less of its functions.
///
/// # Errors
/// See [`go_of`].
pub fn go_before_1_22(name: &str) -> Result<PathBuf, String> {
    go_of(BEFORE_1_22, &[], name)
}

/// A Go victim, static, by a certain version of Go, such as `1.17.13`. The toolchain is a module, which `go` brings here.
///
/// # Errors
/// See [`c`]; if the toolchain cannot be had.
pub fn go_of(version: &str, mode: &[&str], name: &str) -> Result<PathBuf, String> {
    let root = go_toolchain(version)?;
    let source = sources().join(format!("{name}.go"));
    let to = folder(&format!("Go{version}{}", mode.concat()))?.join(name);
    cached(to, std::slice::from_ref(&source), |to| {
        let mut command = Command::new(root.join("bin/go"));
        command
            .env("GOROOT", &root)
            .env("CGO_ENABLED", "0")
            .env("GO111MODULE", "off")
            .env("GOTOOLCHAIN", "local");
        command.env("GOENV", "off").arg("build").args(mode).arg("-o").arg(to).arg(&source);
        command
    })
}

/// Root folder of a toolchain. Modules keep no execute bits, so those are set here, as `go` does.
fn go_toolchain(version: &str) -> Result<PathBuf, String> {
    let module = format!("golang.org/toolchain@v0.0.1-go{version}.linux-{}", native::GO);
    let output = Command::new(newest_go()).args(["mod", "download", "-json", &module]).output();
    let output = output.map_err(|error| format!("no Go: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let folder = said.lines().find_map(|line| line.trim().strip_prefix("\"Dir\": \"")?.split('"').next());
    let folder = PathBuf::from(folder.ok_or_else(|| format!("Go {version} cannot be had: {}", said.trim()))?);
    let tools = folder.join(format!("pkg/tool/linux_{}", native::GO));
    for programs in [folder.join("bin"), tools] {
        for program in std::fs::read_dir(&programs)
            .map_err(|error| format!("{}: {error}", programs.display()))?
            .flatten()
        {
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(program.path(), executable).map_err(|error| error.to_string())?;
        }
    }
    Ok(folder)
}

fn newest_go() -> &'static str {
    if Path::new("/usr/local/go/bin/go").exists() { "/usr/local/go/bin/go" } else { "go" }
}

/// A Go victim that has one location for each parameter, wherever it is within the function.
///
/// # Errors
/// See [`c`].
pub fn go_without_lists(name: &str) -> Result<PathBuf, String> {
    go_built(&[WITHOUT_LISTS], native::GO, name, "GoUnlisted", ["0", ""])
}

/// The same by Go 1.19.
///
/// # Errors
/// See [`go_of`].
pub fn go_old_without_lists(name: &str) -> Result<PathBuf, String> {
    go_of(BEFORE_1_22, &[WITHOUT_LISTS], name)
}

const BEFORE_1_22: &str = "1.19.13";
const WITHOUT_LISTS: &str = "-gcflags=-dwarflocationlists=false";

/// A Go victim with threads that the C library creates. It must import something that needs the C library
/// (`os/user`). It has a folder of its own.
///
/// # Errors
/// See [`c`].
pub fn go_with_libc(name: &str) -> Result<PathBuf, String> {
    go_linked(name, "Libc", ["1", ""])
}

/// The same without symbols and debug information.
///
/// # Errors
/// See [`c`].
pub fn go_with_libc_stripped(name: &str) -> Result<PathBuf, String> {
    go_linked(name, "Stripped", ["1", "-s -w"])
}

/// A Go victim for arm64. It needs no library there.
///
/// # Errors
/// See [`c`].
pub fn go_for_arm64(name: &str) -> Result<PathBuf, String> {
    go_for("arm64", name, "Arm64", ["0", ""])
}

/// A Go victim that is static and position-independent.
///
/// # Errors
/// See [`c`].
pub fn go_pie(name: &str) -> Result<PathBuf, String> {
    go_built(&["-buildmode=pie"], native::GO, name, "GoPie", ["0", ""])
}

fn go_linked(name: &str, to: &str, options: [&str; 2]) -> Result<PathBuf, String> {
    go_for(native::GO, name, to, options)
}

fn go_for(processor: &str, name: &str, to: &str, how: [&str; 2]) -> Result<PathBuf, String> {
    go_built(&[], processor, name, to, how)
}

fn go_built(mode: &[&str], processor: &str, name: &str, to: &str, how: [&str; 2]) -> Result<PathBuf, String> {
    go_by(Path::new(newest_go()), mode, processor, name, to, how)
}

fn go_by(
    go: &Path,
    mode: &[&str],
    processor: &str,
    name: &str,
    to: &str,
    [cgo, flags]: [&str; 2],
) -> Result<PathBuf, String> {
    let source = sources().join(format!("{name}.go"));
    cached(folder(to)?.join(name), std::slice::from_ref(&source), |to| {
        let mut command = Command::new(go);
        command
            .env("GOARCH", processor)
            .env("CGO_ENABLED", cgo)
            .env("GOFLAGS", "-mod=mod")
            .current_dir(sources());
        command.arg("build").args(mode).args(["-ldflags", flags, "-o"]).arg(to).arg(&source);
        command
    })
}

/// A program of `count` functions `many_0…`, each called once per `run 1`, in order.
///
/// # Errors
/// See [`c`].
pub fn many(count: u32) -> Result<PathBuf, String> {
    let dir = folder("Plain")?;
    let source = dir.join(format!("many_{count}.c"));
    if !source.exists() {
        std::fs::write(&source, many_source(count)).map_err(|error| error.to_string())?;
    }
    cached(dir.join(format!("many_{count}")), std::slice::from_ref(&source), |to| {
        let mut command = Command::new("gcc");
        command.args(["-O1", "-fPIE", "-pie", "-D_GNU_SOURCE", "-I"]).arg(sources()).arg(&source);
        command.arg("-o").arg(to);
        command
    })
}

fn many_source(count: u32) -> String {
    let mut text = String::from("#include \"victim.h\"\n");
    for i in 0..count {
        let body = match i % 4 {
            0 => format!("x * {i} + 1"),
            1 => format!("(x ^ {i}) - 3"),
            2 => format!("x > {i} ? x + 2 : x + 5"),
            _ => format!("x + {i}"),
        };
        let _ = writeln!(text, "PROBED u64 many_{i}(u64 x) {{ return {body}; }}");
    }
    text += "static u64 (*const all[])(u64) = {\n";
    for i in 0..count {
        let _ = writeln!(text, "many_{i},");
    }
    text += "};\nstatic void run(u64 times) {\n    u64 check = 0;\n    for (u64 t = 0; t < times; t++)\n";
    text += "        for (size_t i = 0; i < sizeof all / sizeof *all; i++) check = all[i](check);\n";
    text += "    TELL(\"each\", times);\n    TELL(\"check\", check);\n}\n";
    text += "int main(void) { return victim_serve(run); }\n";
    text
}
