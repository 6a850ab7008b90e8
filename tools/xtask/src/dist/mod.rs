//! What users get: static binaries, Python wheels and Debian packages, in `target/packages`.
//!
//! In: flags. Out: binaries and wheels of both processors, packages of this one, and `SHA256SUMS`. With `--twice`, each
//! binary is built again from a copy of the sources in another folder, and has to be the same. With `--try`, the results
//! are run in a folder that holds nothing else, and in fresh Debians. With `--smoke`, only this machine's binary is made,
//! and run in an empty folder and a minimal Debian; and the C examples are compiled with the packages for C. CI does that
//! after its build; it has no time for the rest.

mod binary;
mod chroot;
mod control;
mod deb;
mod docs;
mod library;
mod rpm;
mod tried;
mod wheel;

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
    /// Make this machine's binary alone, and run it.
    smoke: bool,
}

fn asked(args: &[String]) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--twice" => asked.twice = true,
            "--try" => asked.tried = true,
            "--smoke" => asked.smoke = true,
            "--machine" => {
                let name = args.next().context("--machine x86_64 or aarch64")?;
                asked.machine = Some(binary::Machine::named(name)?);
            }
            other => bail!("expected --machine NAME, --twice, --try or --smoke, got `{other}`"),
        }
    }
    Ok(asked)
}

/// Runs the step.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let asked = asked(args)?;
    if asked.smoke {
        return smoke();
    }
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
        outcome.add(wheel::make(machine, &file, &folder));
        if asked.tried && machine != binary::Machine::HOST {
            outcome.add(tried::emulated(machine.name(), &file));
        }
        if asked.twice {
            outcome.add(binary::same_elsewhere(machine, &file)?);
        }
    }
    if asked.machine.is_none_or(|only| only == binary::Machine::HOST) {
        let made = packaged(&folder, &mut outcome)?;
        outcome.add(deb::lint(&made));
        if asked.tried {
            let file = folder.join(binary::Machine::HOST.file_name());
            outcome.add(tried::binary(&file));
            outcome.add(tried::minimal(&file));
            outcome.add(tried::packages(&made));
            outcome.add(tried::libraries(&made, &folder));
        }
    }
    sums(&folder)?;
    Ok(outcome)
}

/// This machine's binary, run where nothing else is, and the packages for C, unpacked.
fn smoke() -> Result<Outcome> {
    if let Err(why) = binary::toolchain(binary::Machine::HOST) {
        let why = format!("dist: the static binary: {why}");
        println!("LOUD SKIP: {why}");
        return Ok(Outcome { skipped: vec![why], ..Outcome::default() });
    }
    let built = binary::build(binary::Machine::HOST, &tree::root(), &tree::target()?)?;
    let mut outcome = binary::check(binary::Machine::HOST, &built)?;
    outcome.add(tried::binary(&built));
    outcome.add(tried::minimal(&built));
    // The library that the tests are linked with: building it alone would build what it needs once more.
    let library = tree::target()?.join("release/deps");
    let folder = tree::target()?.join("smoke");
    std::fs::create_dir_all(&folder).context("target/smoke")?;
    let packages = library::of(&library, &folder)?.map(|package| deb::make(&package, &folder));
    outcome.add(tried::unpacked(&packages.into_iter().collect::<Result<Vec<_>>>()?, &built));
    Ok(outcome)
}

/// Makes the packages of this machine's processor. Paths, in the order in which they have to be installed.
fn packaged(folder: &Path, outcome: &mut Outcome) -> Result<Vec<PathBuf>> {
    let binary = folder.join(binary::Machine::HOST.file_name());
    let staged = folder.join("staged");
    let command = docs::command(&binary, &staged.join("trapline"))?;
    let mut made = vec![deb::make(&command, folder)?];
    outcome.add(rpm::make(&command, folder));
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
        let all = Asked { machine: Some(Machine::Aarch64), twice: true, tried: true, smoke: false };
        assert_eq!(of(&["--try", "--machine", "aarch64", "--twice"]).ok(), Some(all));
        assert!(of(&["--smoke"]).is_ok_and(|asked| asked.smoke));
        assert!(
            of(&["--machine", "sparc"]).is_err() && of(&["--machine"]).is_err() && of(&["--all"]).is_err()
        );
    }
}
