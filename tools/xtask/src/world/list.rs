//! The list of packages: names, and jobs for their programs.
//!
//! In: the list's text. Out: packages with their jobs. Does not: know which programs a package holds (`programs`).
//!
//! A line is `PACKAGE` or `PACKAGE: PROGRAM ARGUMENTS…`. The second form may stand several times, and adds a job to the
//! package. Words are separated by blanks; single quotes keep blanks together. A last word `<FILE` gives the job its
//! standard input. Jobs run in a folder that holds the files of [`super::sandbox::SAMPLES`].

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Where the lists stand, below the repository's root.
pub(super) const LISTS: &str = "tools/xtask/world";

/// A package of the distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    /// As the distribution calls it.
    pub(super) name: String,
    /// Jobs of its own, beside `--version` and `--help`.
    pub(super) jobs: Vec<Job>,
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Job {
    /// The program's name, without a folder.
    pub(super) program: String,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    /// A sample file that it reads from standard input.
    pub(super) input: Option<String>,
}

/// Reads the list. Packages are in the order of their first line.
pub(super) fn parse(text: &str) -> Result<Vec<Package>> {
    let mut packages: Vec<Package> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, job) = match line.split_once(": ") {
            Some((name, words)) => (name, Some(job(words).with_context(|| format!("line {}", number + 1))?)),
            None => (line, None),
        };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
            bail!("line {}: `{name}` is no package's name", number + 1);
        }
        match packages.iter_mut().find(|package| package.name == name) {
            Some(package) => package.jobs.extend(job),
            None => packages.push(Package { name: name.to_string(), jobs: job.into_iter().collect() }),
        }
    }
    Ok(packages)
}

fn job(text: &str) -> Result<Job> {
    let mut words = words(text)?;
    let input = words.last().and_then(|word| word.strip_prefix('<')).map(ToString::to_string);
    if input.is_some() {
        words.pop();
    }
    let mut words = words.into_iter();
    let program = words.next().context("a job without a program")?;
    Ok(Job { program, arguments: words.collect(), input })
}

fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for char in text.chars() {
        match char {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            char if char.is_whitespace() && !quoted => words.extend(word.take()),
            char => word.get_or_insert_default().push(char),
        }
    }
    if quoted {
        bail!("a quote is not closed in `{text}`");
    }
    words.extend(word);
    Ok(words)
}

/// Less free space than this ends the installation.
const SPARE_BYTES: u64 = 8 << 30;

/// Packages of one call of apt-get.
const BATCH: usize = 16;

/// Installs those that are missing. A batch that fails is tried again one by one: a package that the distribution no
/// longer has, or that would remove another one, costs that one alone.
pub(super) fn install(packages: &[Package]) {
    let Some(_guard) = NoServices::new() else {
        println!("LOUD SKIP: world installs nothing: {POLICY} cannot be written, so services would start");
        return;
    };
    apt(&["update"]);
    let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    for batch in names.chunks(BATCH) {
        if free_bytes().is_some_and(|free| free < SPARE_BYTES) {
            println!("LOUD SKIP: world installs no more: less than {} GiB are free", SPARE_BYTES >> 30);
            return;
        }
        let missing: Vec<&str> = batch.iter().copied().filter(|name| !installed(name)).collect();
        if missing.is_empty() || get(&missing) {
            continue;
        }
        for name in missing {
            if !get(&[name]) {
                println!("LOUD SKIP: package {name} cannot be installed");
            }
        }
    }
}

fn get(names: &[&str]) -> bool {
    let done = apt(&[&["install", "-y", "--no-install-recommends", "--no-remove"], names].concat());
    apt(&["clean"]);
    done
}

fn apt(words: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What the distribution's packages ask before they start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While it lives, packages start no services. A policy that was there already stays, and is trusted to say the same.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn new() -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if std::path::Path::new(POLICY).exists() {
            return Some(Self { ours: false });
        }
        // 101: what was asked for is forbidden by policy.
        std::fs::write(POLICY, "#!/bin/sh\nexit 101\n").ok()?;
        std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755)).ok()?;
        Some(Self { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            std::fs::remove_file(POLICY).ok();
        }
    }
}

/// Of the file system that programs are installed on, as df(1) shows it.
fn free_bytes() -> Option<u64> {
    let output = Command::new("df").args(["--output=avail", "-B1", "/usr"]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]).output();
    query.is_ok_and(|output| output.stdout.ends_with(b"ok installed"))
}

/// The same in another order: any first part of it is spread evenly over the whole list, and is the same each time.
pub(super) fn evenly<T>(all: Vec<T>) -> Vec<T> {
    // A stride without a common divisor visits each index once; near the golden section it spreads them.
    let len = all.len();
    if len < 3 {
        return all;
    }
    let mut stride = len * 618 / 1000;
    while greatest_common_divisor(stride, len) != 1 {
        stride += 1;
    }
    let mut all: Vec<Option<T>> = all.into_iter().map(Some).collect();
    (0..len).filter_map(|step| all[step * stride % len].take()).collect()
}

const fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::{evenly, parse};

    #[test]
    fn packages_have_the_jobs_of_all_their_lines() {
        let text =
            "# a comment\ncoreutils\n\ngawk: gawk 'BEGIN { print 1 }' <words.txt\ncoreutils: sort -n\n";
        let packages = parse(text).expect("a list");
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].jobs[0].arguments, ["-n"]);
        let job = &packages[1].jobs[0];
        assert_eq!((job.program.as_str(), job.input.as_deref()), ("gawk", Some("words.txt")));
        assert_eq!(job.arguments, ["BEGIN { print 1 }"]);
    }

    #[test]
    fn a_list_that_cannot_be_read_names_the_line() {
        let error = |text| format!("{:#}", parse(text).expect_err("no list"));
        assert!(error("a\nb: x 'y\n").starts_with("line 2: a quote is not closed"));
        assert!(error("no package").starts_with("line 1: `no package`"));
    }

    #[test]
    fn another_order_has_each_once_and_spreads_them() {
        for len in [0, 1, 2, 3, 10, 97, 1000] {
            let mut order = evenly((0..len).collect::<Vec<usize>>());
            let first = order[..len.min(10)].to_vec();
            order.sort_unstable();
            assert_eq!(order, (0..len).collect::<Vec<_>>());
            assert!(len < 100 || first.iter().any(|&index| index > len / 2));
        }
    }

    #[test]
    fn the_list_of_this_repository_is_read() {
        let packages = parse(include_str!("../../world/packages.txt")).expect("the list");
        assert!(packages.len() > 200, "{} packages", packages.len());
    }
}
