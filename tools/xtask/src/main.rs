//! What CI runs, and what a person runs at the desk: the same commands.
//!
//! Input: a subcommand. Output: the underlying tools' own lines, then one summary; exit status 1 if any step failed.
//! Does not: hide a tool's output, or count a step that was skipped as passed.
#![forbid(unsafe_code)]

mod ahead;
mod arm64;
mod arm64_system;
mod arrows;
mod descendants;
mod fuzz;
mod ids;
mod models;
mod packages;
mod perfetto;
mod redis;
mod storm;
mod stress;
mod tally;
mod test;
mod unsteady;
mod world;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  ci       everything below, in order, with one summary at the end
  fmt      rustfmt in check mode
  clippy   clippy over all targets, warnings are errors
  doc      documentation, warnings are errors
  arrows   which crate may use which, which may not contain unsafe code, and no circle of more than three files;
           FOLDER…: the circles of these crates, with the names that tie them
  ids      each id of an invariant has one definition, documents that are named exist; --write writes docs/design/invariants.md
  build    everything that tests need
  loom     models of the protocols between threads, in every interleaving [-- libtest's arguments]
  fuzz     hostile bytes through every parser [--seconds N]
  test     what the tests need, then every test, then what was skipped and why [-- libtest's arguments]
  arm64    the portable crates built for arm64, their tests under user-mode emulation [--runs N]
  a64-sweep  each of the 2^32 words of A64 against a second decoder (not part of ci, which looks at every 61st)
  arm64-system  a stock arm64 kernel under full emulation: count, lat, watch and the trap path, beside its own uprobes, with figures [PART…]
           (not part of ci)
  stress   attach and detach under load [--cycles N]
  storm    the in-process engine under AddressSanitizer: its tests, and all of it at once [--seconds N]
  world    programs that are not ours, bare and traced: same output, same status [--install] [--seconds N] [--package NAME]
           [--under VERB] [--in SETTING] [--lanes N] [--log FILE]
           --services CYCLES: services instead, attached to and left while they answer [--package NAME]";

/// What a step came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Outcome {
    passed: u64,
    failed: u64,
    /// Name and reason of each test that did not run.
    skipped: Vec<String>,
    /// Name of each test that failed, and its output.
    failures: Vec<String>,
    /// The same of those that passed when they were run alone; they count as passed.
    unsteady: Vec<String>,
}

impl Outcome {
    fn single(ok: bool) -> Self {
        Self { passed: u64::from(ok), failed: u64::from(!ok), ..Self::default() }
    }
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
    }
    fn closing_line(&self) -> String {
        let unsteady = match self.unsteady.len() {
            0 => String::new(),
            count => format!(" ({count} unsteady)"),
        };
        format!("{} passed{unsteady}, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }
}

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
        "doc" => cargo(
            &["doc", "--workspace", "--no-deps", "--release", "--document-private-items"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
        "arrows" => arrows::run(args),
        "ids" => ids::run(args),
        "loom" => models::run(args),
        "fuzz" => fuzz::run(flag(args, "--seconds", 60)?),
        "build" => test::build(),
        "test" => test::run(args),
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
        _ => bail!("unknown command `{name}`\n\n{HELP}"),
    }
}

/// Steps that only compute: they run beside the tests.
const BESIDE: &[&str] = &["clippy", "doc", "loom"];

/// Every step, whatever the others came to; a table of them at the end.
fn ci() -> Result<Outcome> {
    let steps: [(&str, &[&str]); 10] = [
        ("fmt", &[]),
        ("arrows", &[]),
        ("ids", &[]),
        ("build", &[]),
        ("test", &[]),
        ("fuzz", &["--seconds", "10"]),
        ("stress", &["--cycles", "100"]),
        ("world", &["--seconds", "300"]),
        ("storm", &["--seconds", "10"]),
        ("arm64", &[]),
    ];
    let mut total = Outcome::default();
    let mut table = Vec::new();
    let mut ahead = None;
    for (name, args) in steps {
        println!("\n=== {name}");
        if name == "test" {
            let builds = [storm::build()].into_iter().chain(arm64::build()).chain(models::builds());
            ahead = Some(ahead::Ahead::start(builds.collect(), BESIDE));
        }
        let begun = Instant::now();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let outcome = step(name, &args).unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Outcome::single(false)
        });
        table.push((name, outcome.closing_line(), begun.elapsed()));
        total.add(outcome);
    }
    let begun = Instant::now();
    for (name, text, outcome) in ahead.map(ahead::Ahead::finish).transpose()?.unwrap_or_default() {
        println!("\n=== {name}, beside the tests\n{text}");
        table.push((name, outcome.closing_line(), begun.elapsed()));
        total.add(outcome);
    }
    println!("\n=== summary");
    for (name, line, took) in table {
        println!("{name:8} {line} in {}", seconds(took));
    }
    Ok(total)
}

/// Runs cargo with these arguments, its output shown; without a line for each crate on a machine that nobody watches.
fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<Outcome> {
    println!("cargo {}", args.join(" "));
    let mut command = Command::new(cargo_path());
    command.args(args).envs(env.iter().copied());
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_TERM_QUIET", "true");
    }
    let status = command.status().context("cargo")?;
    Ok(Outcome::single(status.success()))
}

/// The cargo that started us.
fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// The number after `name`, or `default`.
fn flag(args: &[String], name: &str, default: u64) -> Result<u64> {
    match args {
        [] => Ok(default),
        [given, value] if given == name => value.parse().with_context(|| format!("{name} {value}")),
        _ => bail!("expected `{name} N`, got `{}`", args.join(" ")),
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{Outcome, flag};

    #[test]
    fn a_skip_is_not_a_pass() {
        let mut sum = Outcome::single(true);
        sum.add(Outcome { skipped: vec!["stress: no binary".into()], ..Outcome::default() });
        sum.add(Outcome::single(false));
        assert_eq!(sum.closing_line(), "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn flags_are_checked() {
        let args = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(flag(&[], "--n", 7).ok(), Some(7));
        assert_eq!(flag(&args(&["--n", "3"]), "--n", 7).ok(), Some(3));
        assert!(flag(&args(&["--n", "x"]), "--n", 7).is_err());
        assert!(flag(&args(&["--m", "3"]), "--n", 7).is_err());
    }
}
