//! The programs that end-to-end tests run, from the distribution where they are missing.
//!
//! Nothing is installed unless something is missing, we may (root, or sudo without a password), and `TRAPLINE_APT` is
//! not `0`. Whatever stays missing is reported here, and again by each test that then skips itself.

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
    Need { files: &["/usr/bin/clang++"], package: "clang" },
    Need { files: &["/usr/lib/x86_64-linux-gnu/libc.a"], package: "libc6-dev" },
    Need { files: &["/usr/local/go/bin/go", "/usr/bin/go"], package: "golang-go" },
    Need { files: &["/usr/bin/musl-gcc"], package: "musl-tools" },
    Need { files: &["/usr/bin/git"], package: "git" },
    Need { files: &["/usr/bin/sqlite3"], package: "sqlite3" },
    // Holds the server too, under the name redis-check-rdb: it looks at its own name. No service is started that way.
    Need { files: &["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"], package: "redis-tools" },
    Need { files: &["/usr/bin/redis-benchmark"], package: "redis-tools" },
    // Builds redis from its source package.
    Need { files: &["/usr/bin/dpkg-source"], package: "dpkg-dev" },
    Need { files: &["/usr/bin/make"], package: "make" },
    Need { files: &["/usr/bin/pkg-config"], package: "pkg-config" },
    Need { files: &["/usr/bin/python3.11"], package: "python3.11" },
    // Interpreters with packages of their own, for the Python package's tests among others.
    Need { files: &["/usr/bin/python3"], package: "python3" },
    Need { files: &["/usr/lib/python3.11/ensurepip/__init__.py"], package: "python3-venv" },
    // What the scripts of `scripts` look at, and the kernel's tool for the same scripts.
    Need { files: &["/usr/bin/bpftrace"], package: "bpftrace" },
    Need { files: &["/usr/bin/ruby3.1"], package: "ruby3.1" },
    Need { files: &["/usr/bin/php8.2"], package: "php8.2-cli" },
    Need { files: &["/usr/sbin/mariadbd"], package: "mariadb-server-core" },
    Need { files: &["/usr/bin/mariadb"], package: "mariadb-client-core" },
    Need { files: &["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"], package: "libjemalloc2" },
    Need { files: &["/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"], package: "libtcmalloc-minimal4" },
    // A runtime that finds its frames by their return addresses.
    Need { files: &["/usr/bin/luajit"], package: "luajit" },
    // Debug information in other forms.
    Need { files: &["/usr/bin/dwz"], package: "dwz" },
    Need { files: &["/usr/bin/ld.lld"], package: "lld" },
    // Other tracers, which hold the program or us.
    Need { files: &["/usr/bin/gdb"], package: "gdb" },
    Need { files: &["/usr/bin/strace"], package: "strace" },
    // Shows every store of a stub.
    Need { files: &["/usr/bin/valgrind"], package: "valgrind" },
    // Shows the pages of -o FILE.html.
    Need { files: &["/usr/bin/chromium", "/usr/bin/google-chrome"], package: "chromium" },
    // Reads what --serve offers.
    Need {
        files: &["/usr/lib/python3/dist-packages/prometheus_client/parser.py"],
        package: "python3-prometheus-client",
    },
    Need { files: &["/usr/lib/python3.11/test/test_grammar.py"], package: "libpython3.11-testsuite" },
    Need { files: &["/usr/bin/mmdebstrap"], package: "mmdebstrap" },
    Need { files: &["/usr/bin/zsh"], package: "zsh" },
    Need { files: &["/usr/bin/fish"], package: "fish" },
    Need { files: &["/usr/bin/uftrace"], package: "uftrace" },
    // A container as its users start one.
    Need { files: &["/usr/bin/podman"], package: "podman" },
    Need { files: &["/usr/sbin/runc", "/usr/bin/runc"], package: "runc" },
];

/// What cross-building for arm64 and emulating it takes. Debian's own newer compiler, because its library for arm64 is a
/// package too; that brings arm64's C library, which the emulated programs load. (The C library of
/// `libc6-arm64-cross` hangs in `pthread_create` under this emulator; it only serves the linker.)
const ARM64: &[Need] = &[
    Need { files: &["/usr/bin/rustc"], package: "rustc-web" },
    Need { files: &["/usr/lib/rustlib/aarch64-unknown-linux-gnu"], package: "libstd-rust-web-dev:arm64" },
    Need { files: &["/lib/ld-linux-aarch64.so.1"], package: "libc6:arm64" },
    Need { files: &["/usr/bin/aarch64-linux-gnu-gcc"], package: "gcc-aarch64-linux-gnu" },
    Need { files: &["/usr/aarch64-linux-gnu/lib/crt1.o"], package: "libc6-dev-arm64-cross" },
    Need { files: &["/usr/bin/qemu-aarch64-static"], package: "qemu-user-static" },
];

/// What emulating a whole machine takes besides.
const ARM64_SYSTEM: &[Need] = &[
    Need { files: &["/usr/bin/qemu-system-aarch64"], package: "qemu-system-arm" },
    Need { files: &["/usr/bin/dpkg-deb"], package: "dpkg" },
];

/// What `dist` takes besides a compiler.
const DIST: &[Need] = &[
    Need { files: &["/usr/bin/aarch64-linux-gnu-gcc"], package: "gcc-aarch64-linux-gnu" },
    Need { files: &["/usr/bin/dpkg-deb"], package: "dpkg" },
    Need { files: &["/usr/bin/lintian"], package: "lintian" },
    Need { files: &["/usr/bin/mmdebstrap"], package: "mmdebstrap" },
    Need { files: &["/usr/bin/rpmbuild"], package: "rpm" },
    Need { files: &["/usr/bin/qemu-aarch64-static"], package: "qemu-user-static" },
];

/// What pictures show, and what draws a page.
const PICTURES: &[Need] = &[
    Need { files: &["/usr/bin/gcc"], package: "gcc" },
    Need { files: &["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"], package: "redis-tools" },
    Need { files: &["/usr/bin/redis-benchmark"], package: "redis-tools" },
    Need { files: &["/usr/bin/chromium", "/usr/bin/google-chrome"], package: "chromium" },
    // A page's own font would depend on the machine.
    Need { files: &["/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"], package: "fonts-dejavu-core" },
];

/// Installs what the tests of this machine lack, as far as that is allowed.
pub(crate) fn ensure() {
    for package in ensure_all(NEEDS, &[]) {
        println!("LOUD SKIP: package {package} is missing; tests that need it skip themselves");
    }
}

/// The same for the tests of arm64. Gives the packages that are still missing.
pub(crate) fn ensure_arm64() -> Vec<&'static str> {
    ensure_all(ARM64, &["arm64"])
}

/// The same for a whole machine of arm64.
pub(crate) fn ensure_arm64_system() -> Vec<&'static str> {
    [ensure_arm64(), ensure_all(ARM64_SYSTEM, &["arm64"])].concat()
}

/// The same for what users install. Gives the packages that are still missing.
pub(crate) fn ensure_dist() -> Vec<&'static str> {
    ensure_all(DIST, &[])
}

/// The same for the pictures of the documents.
pub(crate) fn ensure_pictures() -> Vec<&'static str> {
    ensure_all(PICTURES, &[])
}

fn ensure_all(needs: &[Need], foreign: &[&str]) -> Vec<&'static str> {
    let absent = missing(needs);
    if absent.is_empty() {
        return absent;
    }
    println!("missing packages: {}", absent.join(" "));
    match apt_prefix() {
        Some(prefix) => {
            for architecture in foreign {
                run(&prefix, &["dpkg", "--add-architecture", architecture]);
            }
            install(&prefix, &absent);
        }
        None => println!("not permitted to install packages (not root, no sudo, or TRAPLINE_APT=0)"),
    }
    missing(needs)
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let absent = |need: &&Need| !need.files.iter().any(|file| Path::new(file).exists());
    let mut packages: Vec<_> = needs.iter().filter(absent).map(|need| need.package).collect();
    packages.dedup();
    packages
}

/// Whether this succeeds, with what it takes to be root before it.
fn run(prefix: &[&str], words: &[&str]) -> bool {
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).args(words);
    command.status().is_ok_and(|status| status.success())
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
    let apt =
        |args: &[&str]| run(prefix, &[&["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"], args].concat());
    let get = || packages.iter().filter(|p| !apt(&["install", "-y", "--no-install-recommends", p])).count();
    if get() > 0 && apt(&["update"]) {
        get();
    }
}
