//! Commands that cargo runs for us, and the numbers in a step's arguments.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::outcome::Outcome;

/// Runs cargo with these arguments, with its output shown; in CI without a line for each crate.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<Outcome> {
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
pub(crate) fn cargo_path() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// The number after `name`, or `default`.
pub(crate) fn flag(args: &[String], name: &str, default: u64) -> Result<u64> {
    match args {
        [] => Ok(default),
        [given, value] if given == name => value.parse().with_context(|| format!("{name} {value}")),
        _ => bail!("expected `{name} N`, got `{}`", args.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::flag;

    #[test]
    fn flags_are_checked() {
        let args = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(flag(&[], "--n", 7).ok(), Some(7));
        assert_eq!(flag(&args(&["--n", "3"]), "--n", 7).ok(), Some(3));
        assert!(flag(&args(&["--n", "x"]), "--n", 7).is_err());
        assert!(flag(&args(&["--m", "3"]), "--n", 7).is_err());
    }
}
