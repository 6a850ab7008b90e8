//! Constants of the system's headers: `#define NAME NUMBER`, for scripts that include them.
//!
//! In: the name of a header. Out: names with numbers. Headers that it includes are read too. Only plain numbers are
//! taken: nothing is computed, and conditions are not evaluated. Does not: know C.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use trapline_script::Source;

/// Where headers are looked for.
const FOLDERS: [&str; 4] =
    ["/usr/include", "/usr/local/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"];

/// The headers that a script includes.
pub(super) fn of_script(source: &Source) -> Vec<String> {
    String::from_utf8_lossy(source.text()).lines().filter_map(included).collect()
}

/// The header that a line includes.
fn included(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?.trim();
    let name = rest.strip_prefix('<').and_then(|rest| rest.split('>').next());
    let name = name.or_else(|| rest.strip_prefix('"').and_then(|rest| rest.split('"').next()));
    name.map(str::to_owned)
}

/// All constants of a header.
pub(super) fn constants(header: &str) -> Result<Vec<(String, i64)>, String> {
    let Some(path) = find(header, None) else {
        return Err(format!("definitions.h:2:10: fatal error: '{header}' file not found\n"));
    };
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    read(&path, &mut seen, &mut found);
    Ok(found)
}

fn find(header: &str, beside: Option<&Path>) -> Option<PathBuf> {
    let beside = beside.and_then(Path::parent).map(|folder| folder.join(header));
    let folders = FOLDERS.iter().map(|folder| Path::new(folder).join(header));
    beside.into_iter().chain(folders).find(|path| path.is_file())
}

fn read(path: &Path, seen: &mut HashSet<PathBuf>, found: &mut Vec<(String, i64)>) {
    /// More headers than any header of the system includes.
    const MOST: usize = 500;
    if seen.len() >= MOST || !seen.insert(path.to_owned()) {
        return;
    }
    let Ok(text) = fs::read(path) else { return };
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some(header) = included(line) {
            if let Some(path) = find(&header, Some(path)) {
                read(&path, seen, found);
            }
        } else if let Some(constant) = defined(line) {
            found.push(constant);
        }
    }
}

/// The constant that a line defines.
fn defined(line: &str) -> Option<(String, i64)> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?;
    let mut words = rest.split_whitespace();
    let (name, value) = (words.next()?, words.next()?);
    let value = value.trim_start_matches('(').trim_end_matches(')');
    let (negative, digits) = value.strip_prefix('-').map_or((false, value), |digits| (true, digits));
    let digits = digits.trim_end_matches(['u', 'U', 'l', 'L']);
    let number = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8).ok()?,
        None => digits.parse().ok()?,
    };
    Some((name.to_owned(), if negative { -number } else { number }))
}

#[cfg(test)]
mod tests {
    use super::{defined, included};

    #[test]
    fn lines_define_numbers_and_include_headers() {
        for (line, value) in [
            ("#define A 5", Some(5)),
            ("# define A (-0x10)  /* text */", Some(-16)),
            ("#define A 010UL", Some(8)),
            ("#define A B", None),
            ("#define A(x) 5", None),
            ("#define A", None),
        ] {
            assert_eq!(
                defined(line).filter(|(name, _)| name == "A").map(|(_, value)| value),
                value,
                "{line}"
            );
        }
        assert_eq!(included("#include <a/b.h>").as_deref(), Some("a/b.h"));
        assert_eq!(included(" # include \"c.h\" // x").as_deref(), Some("c.h"));
        assert_eq!(included("include <a.h>"), None);
    }
}
