//! Finds programs of the distribution that tests trace.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first of these files that exists.
///
/// # Errors
/// None exists.
pub fn find(paths: &[&str]) -> Result<PathBuf, String> {
    let found = paths.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_path_buf).ok_or_else(|| format!("{} is not installed", paths.join(" or ")))
}

/// Copies a program that is to be run. Another process writes the copy. If this process wrote it, a child
/// that another test starts meanwhile would hold the file open for writing until its exec, and the copy could
/// not be run (ETXTBSY).
///
/// # Errors
/// What `cp` prints.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let output = Command::new("cp").arg("--").args([from, to]).output()?;
    let output_text = || io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned());
    if output.status.success() { Ok(()) } else { Err(output_text()) }
}

/// A redis-server of our own: a copy of the package's binary, under the name that makes it a server. With the
/// copy, the file, and with it every probe's name, is called redis-server.
///
/// # Errors
/// It is not installed.
pub fn redis_server() -> Result<PathBuf, String> {
    let from = find(&["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"])?;
    let dir = crate::target_dir().join("victims");
    let to = dir.join("redis-server");
    if !to.exists() {
        let temporary = dir.join(format!(".redis-server.{}", std::process::id()));
        std::fs::create_dir_all(&dir)
            .and_then(|()| copy(&from, &temporary))
            .and_then(|()| std::fs::rename(&temporary, &to))
            .map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(to)
}

/// Debian's python3.11: not position-independent, and stripped.
///
/// # Errors
/// It is not installed.
pub fn python() -> Result<PathBuf, String> {
    find(&["/usr/bin/python3.11"])
}

/// A copy of a program that no other test runs. The kernel puts a uprobe into every process that maps the
/// file, and removes the breakpoint without checking whether another tool has patched there.
#[derive(Debug)]
pub struct Own(PathBuf);

impl Own {
    /// Copies this program, under its name and the purpose of the copy. Removed when dropped.
    ///
    /// # Panics
    /// If it cannot be copied.
    #[must_use]
    pub fn of(program: &Path, for_what: &str) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let to = std::env::temp_dir().join(format!("trapline-{name}-{for_what}-{}", std::process::id()));
        copy(program, &to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        Self(to)
    }
}

impl std::ops::Deref for Own {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}
