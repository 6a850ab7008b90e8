//! Folders that are a root of their own: an empty one with one program, and a fresh Debian.
//!
//! In: files. Out: commands that run with such a folder as `/`, with `/proc` of their own. Invariant: mounts are in a
//! namespace of the command's, so nothing stays mapped or mounted. Does not: touch the machine's own packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::printed;

/// A folder that is removed at the end.
#[derive(Debug)]
pub(super) struct Chroot(PathBuf);

impl Drop for Chroot {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            println!("{} stays: {error}", self.0.display());
        }
    }
}

impl Chroot {
    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("trapline-{name}-{}", std::process::id()))
    }
    /// One with nothing in it but `/proc` and `/tmp`.
    pub(super) fn empty(name: &str) -> Result<Self> {
        let folder = Self::folder(name);
        for name in ["proc", "tmp", "dev"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("dev/null"), "")?;
        Ok(Self(folder))
    }
    /// A fresh Debian of the machine's own release, with essential packages and those that are named here.
    pub(super) fn debian(name: &str, packages: &[&str]) -> Result<Self> {
        let folder = Self::folder(name);
        let release = fs::read_to_string("/etc/os-release")?;
        let suite =
            release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).context("no Debian")?;
        let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
        let sources =
            sources.into_iter().find(|file| Path::new(file).exists()).context("no sources of packages")?;
        let made = Self(folder);
        let mut make = Command::new("mmdebstrap");
        make.arg("--variant=minbase");
        if !packages.is_empty() {
            make.arg(format!("--include={}", packages.join(",")));
        }
        printed(make.arg(suite).arg(&made.0).arg(sources))?;
        Ok(made)
    }
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
    /// Copies a file into it, to the same path or to another one.
    pub(super) fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.0.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a file's path")?)?;
        fs::copy(from, &to).with_context(|| from.display().to_string()).map(drop)
    }
    /// Copies a program of this machine into it, with the libraries that it loads.
    pub(super) fn copy_program(&self, path: &str) -> Result<()> {
        self.copy(Path::new(path), path)?;
        for library in libraries(&printed(Command::new("ldd").arg(path))?) {
            self.copy(Path::new(&library), &library)?;
        }
        Ok(())
    }
    /// Whether a path is there.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.join(path.trim_start_matches('/')).symlink_metadata().is_ok()
    }
    /// Runs a command in it. What it prints on both outputs, if it ends with this status.
    pub(super) fn run(&self, words: &[&str], status: i32) -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--"]).args(["sh", "-c"]);
        command.arg("mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"").arg(&self.0).args(words);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive");
        let output = command.stdin(std::process::Stdio::null()).output().context("unshare")?;
        let both = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&both).into_owned();
        ensure!(output.status.code() == Some(status), "{words:?} ended with {}:\n{text}", output.status);
        Ok(text)
    }
}

/// The paths in what `ldd` prints.
fn libraries(text: &str) -> Vec<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(ToOwned::to_owned);
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::libraries;

    #[test]
    fn libraries_and_the_loader_are_found() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(libraries(text), ["/lib/libc.so.6", "/lib64/ld.so"]);
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}
