//! What CI runs, and what a person runs at the desk: the same commands.
//!
//! Input: a subcommand. Output: the underlying tools' own lines, then one summary; exit status 1 if any step failed.
//! Does not: hide a tool's output, or count a step that was skipped as passed.
#![forbid(unsafe_code)]

mod ahead;
mod arm64;
mod arm64_system;
mod arrows;
mod book;
mod browser;
mod cargo;
mod descendants;
mod dist;
mod fuzz;
mod ids;
mod links;
mod models;
mod outcome;
mod packages;
mod perfetto;
mod pictures;
mod prose;
mod python;
mod redis;
mod storm;
mod stress;
mod tally;
mod test;
mod tree;
mod unsteady;
mod values;
mod venv;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use cargo::{cargo, flag};
use outcome::Outcome;

const HELP: &str = "\
cargo xtask COMMAND

  ci       everything below, in order, with one summary at the end
  fmt      rustfmt in check mode
  clippy   clippy over all targets, warnings are errors
  doc      documentation, warnings are errors
  arrows   which crate may use which, which may not contain unsafe code, and no circle of more than three files;
           FOLDER…: the circles of these crates, with the names that tie them
  ids      each id of an invariant has one definition, each promise a test, documents that are named exist; --write writes
           docs/design/invariants.md and docs/promises-tests.md
  prose    how long documents, sentences and cells are
  book     the documents as pages in target/book; errors: what mdBook warns of, dead links, pictures that no page shows,
           and a search that does not find what there is
  build    everything that tests need
  loom     models of the protocols between threads, in every interleaving [-- libtest's arguments]
  fuzz     hostile bytes through every parser [--seconds N]
  programs random programs, what their code does beside what they mean [--seconds N]
  test     what the tests need, then every test, then what was skipped and why [-- libtest's arguments]
  python   the Python package's tests, which `test` runs too [pytest's arguments]
  arm64    the portable crates built for arm64, their tests under user-mode emulation [--runs N]
  pictures the pictures in docs/pictures, of real runs on this machine: terminals, flame graphs, a page [NAME…] (not part of ci)
  a64-sweep  each of the 2^32 words of A64 against a second decoder (not part of ci, which looks at every 61st)
  arm64-system  a stock arm64 kernel under full emulation: count, lat, watch and the trap path, beside its own uprobes, with figures [PART…]
           (not part of ci)
  dist     static binaries, wheels and Debian packages in target/packages [--machine NAME] [--twice: are builds the same?]
           [--try: in an empty folder and in a fresh Debian] [--smoke: this machine's binary alone, tried]
  stress   attach and detach under load [--cycles N]
  values   what `trace` shows of arguments beside what gdb shows of the same calls, in real programs [-v] [NAME…] (not part of ci)
  storm    the in-process engine under AddressSanitizer: its tests, and all of it at once [--seconds N]
  world    programs that are not ours, bare and traced: same output, same status [--install] [--seconds N] [--package NAME]
           [--under VERB] [--in SETTING] [--lanes N] [--log FILE]
           --services CYCLES: services instead, attached to and left while they answer [--package NAME]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        Some((name, rest)) if name == "ci" && rest.is_empty() => ci(),
        Some((name, rest)) => step(name, rest),
        None => Err(anyhow::anyhow!("{HELP}")),
    };
    match result {
        Ok(outcome) => {
            for line in &outcome.skipped {
                println!("skipped: {line}");
            }
            for line in &outcome.unsteady {
                println!("UNSTEADY, failed and then passed alone: {line}");
            }
            for line in &outcome.failures {
                println!("failed: {line}");
            }
            println!("{}", outcome.closing_line());
            ExitCode::from(u8::from(outcome.failed > 0))
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

/// One subcommand.
fn step(name: &str, args: &[String]) -> Result<Outcome> {
    match name {
        "fmt" => cargo(&["fmt", "--all", "--check"], &[]),
        "clippy" => {
            cargo(&["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"], &[])
        }
        "doc" => documentation(),
        "arrows" => arrows::run(args),
        "ids" => ids::run(args),
        "book" => book::run(),
        "prose" => prose::run(),
        "pictures" => pictures::run(args),
        "loom" => models::run(args),
        "fuzz" => fuzz::run(flag(args, "--seconds", 60)?),
        "programs" => fuzz::programs(flag(args, "--seconds", 60)?),
        "build" => test::build(),
        "test" => test::run(args),
        "python" => python::run(args),
        "arm64" => arm64::run(flag(args, "--runs", 100_000)?),
        "arm64-system" => arm64_system::run(args),
        "a64-sweep" => {
            let args = [
                "test",
                "--release",
                "-p",
                "trapline-insn",
                "--test",
                "aarch64",
                "--",
                "words::",
                "--show-output",
            ];
            cargo(&args, &[("TRAPLINE_A64_STRIDE", "1")])
        }
        "stress" => stress::run(flag(args, "--cycles", 2000)?),
        "storm" => storm::run(flag(args, "--seconds", 60)?),
        "world" => world::run(args),
        "values" => values::run(args).map(|()| Outcome::single(true)),
        "dist" => dist::run(args),
        _ => bail!("unknown command `{name}`\n\n{HELP}"),
    }
}

/// The documentation of all crates. The command and the library have one name, so one folder: the command's is written
/// first, and alone. Both at once failed now and then.
fn documentation() -> Result<Outcome> {
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    let command = ["rustdoc", "-p", "trapline-cli", "--bin", "trapline", "--release", "--"];
    let mut outcome = cargo(&[&command[..], &["--document-private-items"]].concat(), &strict)?;
    outcome
        .add(cargo(&["doc", "--workspace", "--no-deps", "--release", "--document-private-items"], &strict)?);
    Ok(outcome)
}

/// Steps that only compute: they run beside the tests.
const BESIDE: &[&str] = &["clippy", "doc", "loom", "book", "programs", "dist --smoke"];
/// The step beside which arm64's tests run: it takes its time, whatever else runs.
const LASTS: &str = "world";

/// Every step, whatever the others came to; a table of them at the end.
fn ci() -> Result<Outcome> {
    let steps: [(&str, &[&str]); 10] = [
        ("fmt", &[]),
        ("arrows", &[]),
        ("ids", &[]),
        ("prose", &[]),
        ("build", &[]),
        ("test", &[]),
        ("fuzz", &["--seconds", "10"]),
        ("stress", &["--cycles", "100"]),
        ("world", &["--seconds", "300"]),
        ("storm", &["--seconds", "10"]),
    ];
    let mut total = Outcome::default();
    let mut table = Vec::new();
    let mut beside = Vec::new();
    for (name, args) in steps {
        println!("\n=== {name}");
        if name == "test" {
            let builds = [storm::build()].into_iter().chain(arm64::build()).chain(models::builds());
            beside.push(ahead::Ahead::start(builds.collect(), BESIDE, 19));
        }
        if name == LASTS {
            beside.push(ahead::Ahead::start(Vec::new(), &["arm64"], 0));
        }
        let begun = Instant::now();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let outcome = step(name, &args).unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Outcome::single(false).named(name, &format!("{error:#}"))
        });
        let outcome = outcome.named(name, "");
        table.push((name, outcome.closing_line(), begun.elapsed()));
        total.add(outcome);
    }
    let begun = Instant::now();
    for ahead in beside {
        for (name, text, outcome) in ahead.finish()? {
            println!("\n=== {name}, beside others\n{text}");
            table.push((name, outcome.closing_line(), begun.elapsed()));
            total.add(outcome.named(name, &text));
        }
    }
    println!("\n=== summary");
    for (name, line, took) in table {
        println!("{name:12} {line} in {}", seconds(took));
    }
    Ok(total)
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}
