//! The files of a system that runs a few programs and stops: an archive as the kernel unpacks it ("newc",
//! initramfs-buffer-format in its documentation).
//!
//! In: files. Out: the archive's bytes. Does not: compress them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// What programs for arm64 load, as the distribution installs it beside our own libraries.
const LIBRARIES: [&str; 4] = [
    "lib/ld-linux-aarch64.so.1",
    "lib/aarch64-linux-gnu/libc.so.6",
    "lib/aarch64-linux-gnu/libm.so.6",
    "lib/aarch64-linux-gnu/libgcc_s.so.1",
];
const FOLDERS: [&str; 8] = ["bin", "dev", "lib", "lib/aarch64-linux-gnu", "proc", "sys", "tests", "tmp"];

/// An archive under construction.
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    files: u32,
}

impl Initramfs {
    /// With a shell and the libraries.
    pub(super) fn new(shell: &Path) -> Result<Self> {
        let mut image = Self { bytes: Vec::new(), files: 0 };
        FOLDERS.iter().for_each(|name| image.entry(name, 0o040_755, &[]));
        image.file("bin/busybox", 0o755, &read(shell)?);
        ["sh", "mount", "echo", "uname", "poweroff"]
            .iter()
            .for_each(|name| image.entry(&format!("bin/{name}"), 0o120_777, b"busybox"));
        for library in LIBRARIES {
            image.file(library, 0o755, &read(&Path::new("/").join(library))?);
        }
        Ok(image)
    }
    /// Adds a file.
    pub(super) fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.entry(name, 0o100_000 | mode, bytes);
    }
    /// The archive; its first program runs the lines of `script` and stops the machine.
    pub(super) fn finish(mut self, script: &str) -> Vec<u8> {
        let init = format!(
            "#!/bin/sh\nmount -t devtmpfs d /dev\nmount -t proc p /proc\nmount -t sysfs s /sys\nmount -t tracefs t /sys/kernel/tracing\n\
             uname -a\n{script}poweroff -f\n"
        );
        self.file("init", 0o755, init.as_bytes());
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.files += 1;
        let (size, name_len) = (bytes.len() as u32, name.len() as u32 + 1);
        // Number, mode, owner, group, links, time, size, device twice in two parts, bytes of the name, no checksum.
        let fields = [self.files, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(bytes);
        self.pad();
    }
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::Initramfs;

    #[test]
    fn entries_are_aligned_and_say_their_lengths() {
        let mut image = Initramfs { bytes: Vec::new(), files: 0 };
        image.file("a", 0o755, b"12345");
        let head = String::from_utf8(image.bytes[..112].to_vec()).expect("text");
        assert_eq!(&head[..22], "07070100000001000081ed");
        assert_eq!((&head[54..62], &head[94..102], &head[110..111]), ("00000005", "00000002", "a"));
        assert_eq!((&image.bytes[112..117], image.bytes.len()), (&b"12345"[..], 120));
    }
}
