//! Files of /proc and /sys, each read in as few system calls as possible.
//!
//! In: a path. Out: the file's bytes. These files state no size, so `std::fs::read` asks for it in vain, and then
//! begins with reads of 32 bytes. A start of a traced program reads some hundred of them. Does not: parse.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::spare;

/// Longer than most of these files: they are read by two calls, of which the second finds the end.
const USUAL: usize = 4096;

/// All bytes of a file.
///
/// # Errors
/// When it cannot be opened or read; ESRCH if the thread is gone.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    spare::with(|| {
        let mut bytes = Vec::with_capacity(USUAL);
        // What limits the length also hides the file's own, which is 0.
        File::open(&path)?.take(u64::MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// The same as text; what is not UTF-8 becomes U+FFFD.
///
/// # Errors
/// As [`read`].
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = read(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_read_as_a_whole_whatever_its_length() {
        // Some ten kilobytes, in records that do not fit the first buffer.
        let many = std::fs::read_to_string("/proc/self/mountinfo").expect("it is there");
        assert_eq!(super::text("/proc/self/mountinfo").expect("it is there"), many);
        assert_eq!(super::read("/proc/self/comm").ok(), std::fs::read("/proc/self/comm").ok());
        assert!(super::read("/proc/self/nothing").is_err());
        let maps = super::text("/proc/self/smaps").expect("it is there");
        assert!(maps.len() > 2 * super::USUAL && maps.contains("[vdso]"), "{}", maps.len());
    }
}
