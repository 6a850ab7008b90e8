//! What users get: static binaries and Debian packages, in `target/packages`.
//!
//! In: flags. Out: binaries of both processors, packages of this one, and `SHA256SUMS`. With `--twice`, each binary is
//! built again from a copy of the sources in another folder, and has to be the same. With `--try`, the results are run
//! in a folder that holds nothing else, and in a fresh Debian. Does not: run in CI, which has no time for two builds
//! with optimization across crates; CI runs the tests of these files.

mod binary;
mod chroot;
mod control;
mod deb;
mod docs;
mod library;
mod tried;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::outcome::Outcome;
use crate::{packages, tree};

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// One processor only.
    machine: Option<binary::Machine>,
    /// Build again elsewhere, and compare.
    twice: bool,
    /// Run the results.
    tried: bool,
}

fn asked(args: &[String]) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--twice" => asked.twice = true,
            "--try" => asked.tried = true,
            "--machine" => {
                let name = args.next().context("--machine x86_64 or aarch64")?;
                asked.machine = Some(binary::Machine::named(name)?);
            }
            other => bail!("expected --machine NAME, --twice or --try, got `{other}`"),
        }
    }
    Ok(asked)
}

/// Runs the step.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let asked = asked(args)?;
    for package in packages::ensure_dist() {
        println!("LOUD SKIP: package {package} is missing; what needs it fails or is skipped");
    }
    let folder = tree::target()?.join("packages");
    std::fs::create_dir_all(&folder).context("target/packages")?;
    let mut outcome = Outcome::default();
    for machine in binary::MACHINES.into_iter().filter(|one| asked.machine.is_none_or(|only| only == *one)) {
        let built = binary::build(machine, &tree::root(), &tree::target()?)?;
        let file = folder.join(machine.file_name());
        std::fs::copy(&built, &file).with_context(|| file.display().to_string())?;
        outcome.add(binary::check(machine, &file)?);
        if asked.tried && machine != binary::Machine::HOST {
            outcome.add(tried::emulated(machine.name(), &file));
        }
        if asked.twice {
            outcome.add(binary::same_elsewhere(machine, &file)?);
        }
    }
    if asked.machine.is_none_or(|only| only == binary::Machine::HOST) {
        let made = packaged(&folder)?;
        outcome.add(deb::lint(&made));
        if asked.tried {
            outcome.add(tried::binary(&folder.join(binary::Machine::HOST.file_name())));
            outcome.add(tried::packages(&made));
        }
    }
    sums(&folder)?;
    Ok(outcome)
}

/// Makes the packages of this machine's processor. Paths, in the order in which they have to be installed.
fn packaged(folder: &Path) -> Result<Vec<PathBuf>> {
    let binary = folder.join(binary::Machine::HOST.file_name());
    let staged = folder.join("staged");
    let mut made = vec![deb::make(&docs::command(&binary, &staged.join("trapline"))?, folder)?];
    for package in library::packages(&staged)? {
        made.push(deb::make(&package, folder)?);
    }
    std::fs::remove_dir_all(&staged).context("staged files")?;
    Ok(made)
}

/// Writes `SHA256SUMS`, and prints it with the sizes.
fn sums(folder: &Path) -> Result<()> {
    let mut names: Vec<String> = std::fs::read_dir(folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name != "SHA256SUMS")
        .collect();
    names.sort_unstable();
    let text = printed(Command::new("sha256sum").current_dir(folder).args(&names))?;
    for (line, name) in text.lines().zip(&names) {
        println!("{line} ({} bytes)", std::fs::metadata(folder.join(name))?.len());
    }
    std::fs::write(folder.join("SHA256SUMS"), text).context("SHA256SUMS")
}

/// What a command prints, if it succeeds.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{}", command.get_program().display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Seconds of the last commit: the time of every file that is packed, so that packages are the same again.
fn epoch() -> Result<u64> {
    let text = printed(Command::new("git").current_dir(tree::root()).args(["log", "-1", "--format=%ct"]))?;
    text.trim().parse().context("git's time")
}

#[cfg(test)]
mod tests {
    use super::{Asked, asked, binary::Machine};

    #[test]
    fn flags_are_checked() {
        let of = |words: &[&str]| asked(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[]).ok(), Some(Asked::default()));
        let all = Asked { machine: Some(Machine::Aarch64), twice: true, tried: true };
        assert_eq!(of(&["--try", "--machine", "aarch64", "--twice"]).ok(), Some(all));
        assert!(
            of(&["--machine", "sparc"]).is_err() && of(&["--machine"]).is_err() && of(&["--all"]).is_err()
        );
    }
}
