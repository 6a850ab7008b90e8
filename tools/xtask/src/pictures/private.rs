//! What a picture may not say of the machine that it was made on.
//!
//! In: a picture's text, or a page's; names. Out: the paths of files and the names that stand in it.
//! Does not: look at paths that are the same on every machine, or read the picture of a page: the page is looked at.

/// Paths that may be shown: those of our own folder, and of what a distribution brings.
const EVERYWHERE: &[&str] =
    &["/tmp/", "/usr/bin/", "/usr/lib/", "/usr/sbin/", "/lib/", "/etc/", "/dev/", "/proc/"];
/// Names that say nothing.
const COMMON: &[&str] = &["", "root", "localhost"];

/// Each path of the machine in a text, and each of these names as a word of its own.
pub(super) fn faults(text: &str, names: &[String]) -> Vec<String> {
    let is_of_path = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    let words = text.split(|c: char| !is_of_path(c));
    let mut faults: Vec<String> =
        words.filter(|word| is_path(word)).map(|path| format!("the path {path}")).collect();
    for name in names.iter().filter(|name| !COMMON.contains(&name.as_str())) {
        let mut words = text.split(|c: char| !(c.is_alphanumeric() || "_-".contains(c)));
        faults.extend(words.any(|word| word == name).then(|| format!("the name {name}")));
    }
    faults.dedup();
    faults
}

/// Whether this is an absolute path of two parts or more, and not the same everywhere.
fn is_path(word: &str) -> bool {
    let parts = word.strip_prefix('/').unwrap_or_default().split('/').collect::<Vec<_>>();
    parts.len() > 1 && !parts[0].is_empty() && !EVERYWHERE.iter().any(|prefix| word.starts_with(prefix))
}

/// The names of this machine and of its user.
pub(super) fn names() -> Vec<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = |variable| std::env::var(variable).unwrap_or_default();
    [host.trim().to_owned(), user("USER"), user("SUDO_USER")].into()
}

#[cfg(test)]
mod tests {
    use super::faults;

    #[test]
    fn paths_and_names_of_a_machine_are_found() {
        let names = ["atlas".to_owned(), "root".to_owned(), String::new()];
        let text = "<text x=\"1\">main at /home/ann/x.c:3 on atlas</text> root /build/x-1/rec";
        let found = ["the path /home/ann/x.c", "the path /build/x-1/rec", "the name atlas"];
        assert_eq!(faults(text, &names), found);
        let fine = "<a href=\"http://www.w3.org/2000/svg\"/>3 / 4 calls/s ./nptl/x.c /tmp/shop.c:27 atlas-1 x/y /z</text>";
        assert_eq!(faults(fine, &names), [""; 0]);
    }

    /// No picture of the repository has a path of the machine that it was made on.
    #[test]
    fn pictures_say_nothing_of_a_machine() {
        let folder = crate::tree::root().join("docs/pictures");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).expect("the pictures") {
            let path = entry.expect("a file").path();
            if path.extension().is_some_and(|end| end == "svg") {
                let text = std::fs::read_to_string(&path).expect("text");
                assert_eq!(faults(&text, &[]), [""; 0], "{}", path.display());
                seen += 1;
            }
        }
        assert!(seen > 3, "{seen} pictures");
    }
}
