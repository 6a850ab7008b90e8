//! /proc/PID/maps as values, and the files behind mappings.
//!
//! Input: the kernel's text. Output: mappings in order of address. A line that cannot be parsed is left out.
//! A text that breaks off is an error. Does not: merge mappings, or interpret paths.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

pub use trapline_record::FileId;
use trapline_record::{FileOffset, RemoteAddr};

/// What may be done with a mapping's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Perms {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// MAP_SHARED.
    pub shared: bool,
}

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// What may be done with its memory.
    pub perms: Perms,
    /// Offset in the file.
    pub offset: FileOffset,
    /// The file, when there is one (inode not 0).
    pub file: Option<FileId>,
    /// The kernel's name for it: a path without " (deleted)", or `[stack]`, or empty. Bytes that are not
    /// UTF-8 become U+FFFD.
    pub path: String,
    /// The same name in its own bytes.
    pub file_path: PathBuf,
    /// True if the kernel notes that the path no longer leads to that file.
    pub deleted: bool,
}

/// The opened file of a mapping.
#[derive(Debug)]
pub struct FileOf {
    /// The very file that is mapped (device and inode compared).
    pub file: File,
    /// The path by which it was opened.
    pub path: PathBuf,
    /// True if the mapped path now names another file, or none: "replaced on disk".
    pub replaced: bool,
}

impl Mapping {
    /// Reads one line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        Self::parse_bytes(line.as_bytes())
    }
    /// Parses one line; its path may hold any bytes.
    pub(crate) fn parse_bytes(line: &[u8]) -> Option<Self> {
        let path = line.splitn(6, |&byte| byte == b' ').nth(5).unwrap_or_default().trim_ascii_start();
        let line = std::str::from_utf8(&line[..line.len() - path.len()]).ok()?;
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let perms = fields.next()?.as_bytes();
        let offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode: u64 = fields.next()?.parse().ok()?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let dev = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
        let deleted = path.ends_with(DELETED.as_bytes());
        let file_path = unescape(path.strip_suffix(DELETED.as_bytes()).unwrap_or(path));
        Some(Self {
            start: RemoteAddr(hex(start)?),
            end: RemoteAddr(hex(end)?),
            perms: Perms {
                read: perms.first() == Some(&b'r'),
                write: perms.get(1) == Some(&b'w'),
                exec: perms.get(2) == Some(&b'x'),
                shared: perms.get(3) == Some(&b's'),
            },
            offset: FileOffset(hex(offset)?),
            file: (inode != 0).then_some(FileId { dev, inode }),
            path: file_path.to_string_lossy().into_owned(),
            file_path,
            deleted,
        })
    }
    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }
    /// Whether its length is 0. The kernel shows no such mapping.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.0 == self.start.0
    }
    /// Whether an address lies inside.
    #[must_use]
    pub const fn contains(&self, addr: RemoteAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }
    /// The kernel's link to the very file that is mapped.
    pub(crate) fn map_files_path(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.start.0, self.end.0).into()
    }
}

/// The words that the kernel appends to a path that no longer leads to the file, or to the name of a file
/// without a path.
pub(crate) const DELETED: &str = " (deleted)";

/// Undoes the kernel's escape of a newline in a path, `\\012`.
fn unescape(path: &[u8]) -> PathBuf {
    const NEWLINE: &[u8] = b"\\012";
    let (mut out, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some((&first, behind)) = rest.split_first() {
        match rest.strip_prefix(NEWLINE) {
            Some(behind) => {
                out.push(b'\n');
                rest = behind;
            }
            None => {
                out.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// The whole text of an opened `maps` file.
///
/// The file shows the memory that the process had when it was opened. When the process loses that memory while
/// the file is read, the text breaks off anywhere. From then on, the file is empty from its start. So a text is
/// whole if the file is not empty after it was read.
///
/// # Errors
/// ESRCH if the memory is gone: the process is about to end, or it has executed another program.
pub(crate) fn read_whole(mut file: impl Read + Seek) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(1 << 13);
    // As in `procfs`.
    file.by_ref().take(u64::MAX).read_to_end(&mut text)?;
    file.rewind()?;
    if file.read(&mut [0])? == 0 { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(text) }
}

/// All mappings of a maps text.
pub(crate) fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').filter_map(Mapping::parse_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{self, Read, Seek, SeekFrom};
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::{Child, Command};

    use super::{FileId, Mapping, parse, read_whole};
    use crate::living;

    #[test]
    fn a_line_is_read() {
        let line = "7f00-8f00 r-xp 00001000 fd:01 42                         /tmp/a b (deleted)";
        let map = Mapping::parse(line).unwrap();
        assert_eq!((map.start.0, map.end.0, map.offset.0), (0x7f00, 0x8f00, 0x1000));
        assert_eq!(map.file, Some(FileId { dev: libc::makedev(0xfd, 1), inode: 42 }));
        assert_eq!((map.path.as_str(), map.deleted), ("/tmp/a b", true));
        assert!(map.perms.exec && map.perms.read && !map.perms.write && !map.perms.shared);
        let line = b"7f00-8f00 r-xp 00001000 fd:01 42                         /tmp/\xff\\012b";
        let odd = Mapping::parse_bytes(line).unwrap();
        assert_eq!(
            (odd.path.as_str(), odd.file_path.as_os_str().as_bytes()),
            ("/tmp/\u{fffd}\nb", b"/tmp/\xff\nb".as_slice())
        );
        let anon = Mapping::parse("1000-2000 rw-s 00000000 00:00 0 ").unwrap();
        assert_eq!((anon.file, anon.path.as_str()), (None, ""));
        assert!(anon.perms.shared);
        assert_eq!(Mapping::parse("nonsense"), None);
    }

    /// The maps of a child, read in small pieces. The child is killed after the second one.
    struct Ending {
        file: File,
        child: Child,
        kills: bool,
        /// What was read from its start on.
        text: Vec<u8>,
        reads: usize,
    }

    impl Ending {
        fn new(kills: bool) -> Self {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let maps = format!("/proc/{}/maps", child.id());
            // At first the new program has no more than a stack. In an emulator, which makes a fork of a vfork, `spawn`
            // returns before exec: the child still has this program's memory then, with a C library of its own.
            let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|bytes| bytes == part);
            while !std::fs::read(&maps).is_ok_and(|text| has(&text, b"/sleep\n") && has(&text, b"libc.")) {
                std::thread::yield_now();
            }
            let file = File::open(maps).unwrap();
            Self { file, child, kills, text: Vec::new(), reads: 0 }
        }
    }

    impl Read for Ending {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let most = to.len().min(64);
            let count = self.file.read(&mut to[..most])?;
            self.text.extend_from_slice(&to[..count]);
            self.reads += 1;
            if self.kills && self.reads == 2 {
                self.child.kill()?;
                // It stays in /proc as a zombie.
                while !living::stat(self.child.id())?.has_ended() {
                    std::thread::yield_now();
                }
            }
            Ok(count)
        }
    }

    impl Seek for Ending {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.file.seek(to)
        }
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            drop((self.child.kill(), self.child.wait()));
        }
    }

    /// The process loses its memory while its maps are read. What the kernel shows then looks like the maps of
    /// a process without a stack, and without whatever else comes late in them.
    #[test]
    fn a_text_that_breaks_off_is_none() {
        let mut lives = Ending::new(false);
        let text = read_whole(&mut lives).unwrap();
        assert!(parse(&text).iter().any(|one| one.path == "[stack]"));
        let mut ends = Ending::new(true);
        let error = read_whole(&mut ends).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        let broken = parse(&ends.text);
        assert!(!broken.is_empty() && broken.iter().all(|one| one.path != "[stack]"), "{broken:?}");
    }
}
