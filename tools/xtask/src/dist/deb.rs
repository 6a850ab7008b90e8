//! Makes a Debian package of staged files, by `dpkg-deb`, and has `lintian` look at it.
//!
//! In: a [`Package`], with its files in a folder. Out: the path of the package. Invariant: the same files make the same
//! package, byte by byte; all files have the time of the last commit. Does not: decide what is in it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::control::{ARCHITECTURE, Package, VERSION, changelog, control, copyright};
use super::{epoch, printed};
use crate::outcome::Outcome;
use crate::tree;

/// Makes the package.
pub(super) fn make(package: &Package, folder: &Path) -> Result<PathBuf> {
    let docs = package.root.join("usr/share/doc").join(package.name);
    put(
        &docs.join("copyright"),
        copyright(&fs::read_to_string(tree::root().join("LICENSE-MIT"))?).as_bytes(),
        0o644,
    )?;
    let date = printed(Command::new("date").args(["-u", "-R", "-d", &format!("@{}", epoch()?)]))?;
    put_zipped(&docs.join("changelog"), changelog(package.name, date.trim()).as_bytes())?;
    let files = files(&package.root)?;
    let bytes: u64 = files.iter().map(|file| fs::symlink_metadata(file).map_or(0, |data| data.len())).sum();
    let control_folder = package.root.join("DEBIAN");
    put(&control_folder.join("control"), control(package, bytes.div_ceil(1024)).as_bytes(), 0o644)?;
    put(&control_folder.join("md5sums"), sums(&package.root, &files)?.as_bytes(), 0o644)?;
    for (name, text) in &package.control_files {
        put(&control_folder.join(name), text.as_bytes(), 0o644)?;
    }
    let file = folder.join(format!("{}_{VERSION}_{ARCHITECTURE}.deb", package.name));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", epoch()?.to_string()).args(["--root-owner-group", "-Zxz", "--build"]);
    printed(build.arg(&package.root).arg(&file))?;
    Ok(file)
}

/// All files and links below a folder, in order of their paths. Every folder becomes readable by all.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The sums of all files that are no links, as `dpkg --verify` reads them.
fn sums(root: &Path, files: &[PathBuf]) -> Result<String> {
    let plain = files.iter().filter(|file| !file.is_symlink());
    let names =
        plain.map(|file| file.strip_prefix(root).map(Path::to_owned)).collect::<Result<Vec<_>, _>>()?;
    printed(Command::new("md5sum").current_dir(root).args(names))
}

/// Writes a file, with all folders above it.
pub(super) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, bytes)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    write().with_context(|| path.display().to_string())
}

/// Writes a compressed file, with `.gz` behind its name.
pub(super) fn put_zipped(path: &Path, bytes: &[u8]) -> Result<()> {
    put(path, bytes, 0o644)?;
    printed(Command::new("gzip").args(["-9", "-n", "-f"]).arg(path)).map(drop)
}

/// What `lintian` says of the packages: each tag is an error.
pub(super) fn lint(packages: &[PathBuf]) -> Outcome {
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]).args(packages);
    match command.status() {
        Ok(status) => Outcome::single(status.success()),
        Err(error) => {
            let why = format!("dist: lintian, which looks at packages: {error}");
            println!("LOUD SKIP: {why}");
            Outcome { skipped: vec![why], ..Outcome::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{files, put, put_zipped, sums};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn staged_files_have_sums_and_rights() {
        let root = std::env::temp_dir().join(format!("trapline-deb-{}", std::process::id()));
        put(&root.join("usr/bin/x"), b"one", 0o755).expect("written");
        put_zipped(&root.join("usr/share/y"), b"two").expect("written");
        std::os::unix::fs::symlink("x", root.join("usr/bin/z")).expect("linked");
        let found = files(&root).expect("read");
        let names: Vec<_> =
            found.iter().map(|file| file.strip_prefix(&root).expect("below").display().to_string()).collect();
        let mode = std::fs::metadata(root.join("usr/bin/x")).expect("there").permissions().mode();
        let text = sums(&root, &found).expect("summed");
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(names, ["usr/bin/x", "usr/bin/z", "usr/share/y.gz"]);
        assert_eq!(mode & 0o777, 0o755);
        // A link has no sum. The sum of `one` is known.
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("f97c5d29941bfb1b2fdab0874906ab82  usr/bin/x\n"), "{text}");
    }
}
