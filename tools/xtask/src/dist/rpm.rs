//! The RPM package of the command, from the files that were staged for Debian's.
//!
//! In: a [`Package`], with its files in a folder. Out: `trapline.spec`, and where `rpmbuild` is, the package. Invariant: the
//! same files make the same package, byte by byte. Does not: put Debian's own files in.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::control::{Package, VERSION};
use super::{epoch, printed};
use crate::outcome::Outcome;

/// What Debian alone reads.
const DEBIANS: [&str; 3] = ["/DEBIAN/", "/usr/share/lintian/", "/changelog.gz"];

/// Writes the spec, and makes the package.
pub(super) fn make(package: &Package, folder: &Path) -> Outcome {
    let made = write(package, folder);
    match &made {
        Ok(Some(file)) => println!("{}", file.display()),
        Ok(None) => {
            let why = "dist: the RPM package: no rpmbuild (package rpm); its spec was written".to_owned();
            println!("LOUD SKIP: {why}");
            return Outcome { skipped: vec![why], ..Outcome::default() };
        }
        Err(error) => println!("the RPM package: {error:#}"),
    }
    Outcome::single(made.is_ok())
}

fn write(package: &Package, folder: &Path) -> Result<Option<PathBuf>> {
    let listed = printed(
        Command::new("find")
            .current_dir(&package.root)
            .args([".", "(", "-type", "f", "-o", "-type", "l", ")"]),
    )?;
    let file = folder.join(format!("{}.spec", package.name));
    std::fs::write(&file, spec(package, &files(&listed))).with_context(|| file.display().to_string())?;
    if Command::new("rpmbuild").arg("--version").output().is_err() {
        return Ok(None);
    }
    let top = folder.join("staged/rpm");
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let mut build = Command::new("rpmbuild");
    build.env("SOURCE_DATE_EPOCH", epoch()?.to_string()).args(["-bb", "--quiet", "--target", "x86_64"]);
    build.args(define("_topdir", &top.display().to_string()));
    build.args(define("_rpmdir", &folder.display().to_string()));
    build.args(define("_rpmfilename", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"));
    build.args(define("_buildhost", "trapline")).args(define("use_source_date_epoch_as_buildtime", "1"));
    build.args(define("clamp_mtime_to_source_date_epoch", "1"));
    build.args(define("staged", &package.root.display().to_string()));
    printed(build.arg(&file))?;
    let made = folder.join(format!("{}-{VERSION}-1.x86_64.rpm", package.name));
    let held = printed(Command::new("rpm").args(["-qlp"]).arg(&made))?;
    ensure!(held.lines().any(|line| line == "/usr/bin/trapline"), "it holds no command:\n{held}");
    ensure!(!held.contains("lintian"), "it holds Debian's files:\n{held}");
    Ok(Some(made))
}

/// Paths as they are installed, in their order, without what is Debian's.
fn files(listed: &str) -> Vec<String> {
    let installed = listed.lines().filter_map(|line| line.strip_prefix('.')).filter(|path| !path.is_empty());
    let mut files: Vec<String> = installed
        .filter(|path| !DEBIANS.iter().any(|part| path.contains(part)))
        .map(ToOwned::to_owned)
        .collect();
    files.sort_unstable();
    files
}

/// The spec. The binary is static, so nothing is required of the system.
fn spec(package: &Package, files: &[String]) -> String {
    let Package { name, summary, description, .. } = package;
    let install: String = files
        .iter()
        .map(|file| format!("install -D -p -m {} %{{staged}}{file} %{{buildroot}}{file}\n", mode(file)))
        .collect();
    format!(
        "%global debug_package %{{nil}}\n%global __strip /bin/true\n%global __brp_mangle_shebangs /bin/true\n%global _build_id_links none\n\
         Name: {name}\nVersion: {VERSION}\nRelease: 1\nSummary: {summary}\nLicense: MIT OR Apache-2.0\nAutoReqProv: no\n\n\
         %description\n{description}\n\n%install\n{install}\n%files\n{}\n",
        files.join("\n")
    )
}

fn mode(file: &str) -> &'static str {
    if file.starts_with("/usr/bin/") || file.ends_with(".bt") { "0755" } else { "0644" }
}

#[cfg(test)]
mod tests {
    use super::{Package, files, spec};

    #[test]
    fn the_spec_lists_what_is_installed() {
        let listed = "./usr/bin/trapline\n./DEBIAN/control\n./usr/share/lintian/overrides/trapline\n\
                      ./usr/share/doc/trapline/changelog.gz\n./usr/share/doc/trapline/README.md\n";
        let files = files(listed);
        assert_eq!(files, ["/usr/bin/trapline", "/usr/share/doc/trapline/README.md"]);
        let package = Package {
            name: "trapline",
            section: "devel",
            depends: None,
            suggests: None,
            summary: "one line",
            description: "some\nlines",
            control_files: Vec::new(),
            root: "/nowhere".into(),
        };
        let text = spec(&package, &files);
        assert!(
            text.contains("Summary: one line\n") && text.contains("%description\nsome\nlines\n"),
            "{text}"
        );
        assert!(
            text.contains("-m 0755 %{staged}/usr/bin/trapline %{buildroot}/usr/bin/trapline\n"),
            "{text}"
        );
        assert!(text.ends_with("%files\n/usr/bin/trapline\n/usr/share/doc/trapline/README.md\n"), "{text}");
    }
}
