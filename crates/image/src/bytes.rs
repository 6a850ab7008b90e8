//! The bytes of a file, owned by the code that read or mapped them, and the interface through which debug
//! files are found.
//!
//! In: anything that can provide a slice. Out: cheap clones of it.
//! Does not: open files; the caller's [`DebugFiles`] does that.

use std::fmt;
use std::sync::Arc;

/// A file's bytes behind a shared owner: a `Vec`, an `Arc<[u8]>`, a memory map.
#[derive(Clone)]
pub struct Bytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Bytes {
    /// Takes any owner. The slice that it provides must stay the same for as long as the owner lives. If it
    /// changes, names and ranges that are read later are wrong, but nothing worse happens.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(owner))
    }
    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl From<Arc<[u8]>> for Bytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.get().len())
    }
}

/// A separate debug file to which an image refers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DebugFile {
    /// The build id, as in `/usr/lib/debug/.build-id/ab/cdef….debug`; empty when the file has none.
    pub build_id: Vec<u8>,
    /// File name and CRC-32 from `.gnu_debuglink`, to be looked for beside the file, in `.debug/` and under
    /// `/usr/lib/debug`.
    pub link: Option<(String, u32)>,
}

impl DebugFile {
    /// `ab/cdef….debug`, below a `.build-id` directory; `None` without a build id.
    #[must_use]
    pub fn build_id_path(&self) -> Option<String> {
        let (first, rest) = self.build_id.split_first()?;
        let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
        Some(format!("{first:02x}/{rest}.debug"))
    }
}

/// Finds separate debug files for an image. The image ignores a file with another build id.
pub trait DebugFiles {
    /// The debug file's bytes, or `None` when there is none.
    fn find(&mut self, request: &DebugFile) -> Option<Bytes>;
    /// A way to what is split off from the image's debug information, for when it is read; `None` if it is not looked for.
    fn split(&self) -> Option<Arc<dyn SplitFiles>> {
        None
    }
}

/// Finds files with debug information that is split off from an image's. The image ignores a file of another build.
pub trait SplitFiles: fmt::Debug + Send + Sync {
    /// The file that packs all units (`.dwp`).
    fn package(&self) -> Option<Bytes>;
    /// The file of one unit (`.dwo`): its name, and the folder in which the compiler ran.
    fn unit(&self, folder: &str, name: &str) -> Option<Bytes>;
    /// The file that the image's debug information shares with that of others (`dwz -m`): its name, as the debug file has
    /// it, and its build id. A relative name is meant from the folder of the debug file.
    fn shared(&self, name: &str, build_id: &[u8]) -> Option<Bytes>;
}

/// Never finds a debug file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDebugFiles;

impl DebugFiles for NoDebugFiles {
    fn find(&mut self, _: &DebugFile) -> Option<Bytes> {
        None
    }
}
