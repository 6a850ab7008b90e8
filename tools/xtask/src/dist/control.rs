//! Texts of a Debian package: control, changelog, copyright.
//!
//! In: names, sizes, the licences of the repository. Out: texts. Does not: read or write files.

/// A package that is to be made of the files in a folder.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) section: &'static str,
    /// Other packages, as `Depends:` has them.
    pub(super) depends: Option<String>,
    /// Packages that it gains from.
    pub(super) suggests: Option<String>,
    /// One line, without a full stop.
    pub(super) summary: &'static str,
    /// Lines of the description.
    pub(super) description: &'static str,
    /// Files beside `control`: name and text.
    pub(super) control_files: Vec<(&'static str, String)>,
    /// Its files, as they are to be installed below `/`.
    pub(super) root: std::path::PathBuf,
}

/// Debian's name of the processor that packages are made for.
pub(super) const ARCHITECTURE: &str = "amd64";
/// Debian's name of its folder of libraries.
pub(super) const MULTIARCH: &str = "x86_64-linux-gnu";
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// No person: the project's name, at a domain that is reserved for names without a mailbox.
const MAINTAINER: &str = "The Trapline developers <trapline@example.org>";

/// The `control` file. `kibibytes`: the size of its files when they are installed.
pub(super) fn control(package: &Package, kibibytes: u64) -> String {
    let mut text = format!(
        "Package: {}\nVersion: {VERSION}\nArchitecture: {ARCHITECTURE}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kibibytes}\n",
        package.name
    );
    let mut field = |name: &str, value: Option<&str>| {
        text.extend(value.map(|value| format!("{name}: {value}\n")));
    };
    field("Depends", package.depends.as_deref());
    field("Suggests", package.suggests.as_deref());
    field("Section", Some(package.section));
    field("Priority", Some("optional"));
    text.push_str(&format!("Description: {}\n", package.summary));
    for line in package.description.lines() {
        text.push_str(&format!(" {}\n", if line.is_empty() { "." } else { line }));
    }
    text
}

/// Debian's own list of changes; the project's stands beside it.
pub(super) fn changelog(name: &str, date: &str) -> String {
    format!(
        "{name} ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n -- {MAINTAINER}  {date}\n"
    )
}

/// The licences, in the form that programs can read.
pub(super) fn copyright(mit: &str) -> String {
    let indented: Vec<String> = mit
        .lines()
        .skip_while(|line| !line.starts_with("Permission"))
        .map(|line| if line.trim().is_empty() { " .".to_owned() } else { format!(" {line}") })
        .collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: Trapline\n\n\
         Files: *\n\
         Copyright: 2026 The Trapline developers\n\
         License: Expat or Apache-2.0\n\n\
         License: Expat\n{}\n\n\
         License: Apache-2.0\n On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.\n",
        indented.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::{Package, changelog, control, copyright};

    #[test]
    fn fields_that_say_nothing_are_left_out() {
        let package = Package {
            name: "x",
            section: "devel",
            depends: Some("libc6 (>= 2.36)".to_owned()),
            suggests: None,
            summary: "does a thing",
            description: "First.\n\nSecond.",
            control_files: Vec::new(),
            root: "/".into(),
        };
        let text = control(&package, 7);
        assert!(
            text.starts_with("Package: x\nVersion: ") && text.contains("\nInstalled-Size: 7\nDepends: libc6")
        );
        assert!(!text.contains("Suggests"));
        assert!(text.ends_with("Description: does a thing\n First.\n .\n Second.\n"), "{text}");
    }

    #[test]
    fn licences_have_no_empty_line() {
        let text = copyright("MIT License\n\nCopyright (c)\n\nPermission is\n\nTHE SOFTWARE\n");
        assert!(text.contains("License: Expat\n Permission is\n .\n THE SOFTWARE\n"), "{text}");
        assert!(
            changelog("x", "Mon, 01 Jan 2024 00:00:00 +0000")
                .ends_with("  Mon, 01 Jan 2024 00:00:00 +0000\n")
        );
    }
}
