//! The programs that end-to-end tests run, from the distribution where they are missing.
//!
//! Nothing is installed unless something is missing, we may (root, or sudo without a password), and `TRAPLINE_APT` is
//! not `0`. Whatever stays missing is said loudly here, and again by each test that then skips itself.

use std::path::Path;
use std::process::Command;

/// Any of these files present means that the package is not needed.
struct Need {
    files: &'static [&'static str],
    package: &'static str,
}

const NEEDS: &[Need] = &[
    Need { files: &["/usr/bin/gcc"], package: "gcc" },
    Need { files: &["/usr/bin/g++"], package: "g++" },
    Need { files: &["/usr/lib/x86_64-linux-gnu/libc.a"], package: "libc6-dev" },
    Need { files: &["/usr/local/go/bin/go", "/usr/bin/go"], package: "golang-go" },
    Need { files: &["/usr/bin/musl-gcc"], package: "musl-tools" },
    Need { files: &["/usr/bin/git"], package: "git" },
    Need { files: &["/usr/bin/sqlite3"], package: "sqlite3" },
    // Holds the server too, under the name redis-check-rdb: it looks at its own name. No service is started that way.
    Need { files: &["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"], package: "redis-tools" },
    Need { files: &["/usr/bin/redis-benchmark"], package: "redis-tools" },
    Need { files: &["/usr/bin/python3.11"], package: "python3.11" },
    // Shows every store of a stub.
    Need { files: &["/usr/bin/valgrind"], package: "valgrind" },
    Need { files: &["/usr/lib/python3.11/test/test_grammar.py"], package: "libpython3.11-testsuite" },
];

/// Installs what is missing, as far as that is allowed.
pub(crate) fn ensure() {
    let missing = missing();
    if missing.is_empty() {
        return;
    }
    println!("missing packages: {}", missing.join(" "));
    match apt_prefix() {
        Some(prefix) => install(&prefix, &missing),
        None => println!("not permitted to install packages (not root, no sudo, or TRAPLINE_APT=0)"),
    }
    for package in self::missing() {
        println!("LOUD SKIP: package {package} is missing; tests that need it skip themselves");
    }
}

fn missing() -> Vec<&'static str> {
    let absent = |need: &&Need| !need.files.iter().any(|file| Path::new(file).exists());
    let mut packages: Vec<_> = NEEDS.iter().filter(absent).map(|need| need.package).collect();
    packages.dedup();
    packages
}

/// The words before `apt-get`, if we may run it at all.
fn apt_prefix() -> Option<Vec<&'static str>> {
    if std::env::var_os("TRAPLINE_APT").is_some_and(|v| v == "0") || !Path::new("/usr/bin/apt-get").exists() {
        return None;
    }
    let output = Command::new("id").arg("-u").output().ok()?;
    if output.stdout.trim_ascii() == b"0" {
        return Some(vec!["env"]);
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).output().ok()?;
    sudo.status.success().then(|| vec!["sudo", "-n", "env"])
}

fn install(prefix: &[&str], packages: &[&str]) {
    let apt = |args: &[&str]| {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]).args(args);
        command.status().is_ok_and(|status| status.success())
    };
    let get = || packages.iter().filter(|p| !apt(&["install", "-y", "--no-install-recommends", p])).count();
    if get() > 0 && apt(&["update"]) {
        get();
    }
}
