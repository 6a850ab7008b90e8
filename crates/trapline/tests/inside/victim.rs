//! The library: compiled once, loaded as often as needed, each copy a file of its own.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use trapline_image::{Bytes, Image, NoDebugFiles};
use trapline_record::{FileOffset, Svma};

/// A loaded copy.
pub(crate) struct Victim {
    pub(crate) path: PathBuf,
    image: Image,
    handle: *mut c_void,
}

// SAFETY: a handle of dlopen belongs to the process.
unsafe impl Send for Victim {}
// SAFETY: as above; dlsym may be called by any thread.
unsafe impl Sync for Victim {}

fn compiled() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inside/victim.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inside-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-g0", "-shared", "-fPIC", "-w", "-fcf-protection=none"])
            .arg(format!("-Wl,--version-script={}", source.with_extension("map").display()))
            .arg(source)
            .arg("-o")
            .arg(&out);
        assert!(cc.status().expect("a C compiler").success());
        out
    })
}

/// Readers hold this while the loader is at work. A test that forks holds it alone: the child would otherwise
/// have another thread's library half loaded.
static LOADER: RwLock<()> = RwLock::new(());

/// While this is held, no thread loads or unloads.
pub(crate) fn no_loading() -> RwLockWriteGuard<'static, ()> {
    LOADER.write().unwrap_or_else(PoisonError::into_inner)
}

fn loading() -> RwLockReadGuard<'static, ()> {
    LOADER.read().unwrap_or_else(PoisonError::into_inner)
}

/// Copies to a file of its own. A forked child continues its parent's count, so its pid is in the name too.
pub(crate) fn copy(compiled: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = compiled.with_extension(format!("{}-{number}.so", std::process::id()));
    std::fs::copy(compiled, &path).expect("copied");
    path
}

impl Victim {
    /// A file that was never loaded.
    pub(crate) fn file() -> PathBuf {
        copy(compiled())
    }
    pub(crate) fn load() -> Self {
        Self::load_file(Self::file())
    }
    pub(crate) fn load_file(path: PathBuf) -> Self {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let guard = loading();
        // SAFETY: the library's constructor calls a function of its own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        drop(guard);
        assert!(!handle.is_null());
        let bytes = std::fs::read(&path).expect("readable");
        let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).expect("an ELF file");
        Self { path, image, handle }
    }
    pub(crate) fn address(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: the handle is open.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at as u64
    }
    /// First bytes of a function as they are now.
    pub(crate) fn bytes(&self, name: &str) -> [u8; 16] {
        // SAFETY: code of the library; its handle is open.
        unsafe { (self.address(name) as *const [u8; 16]).read_volatile() }
    }
    /// A version of a function.
    pub(crate) fn version(&self, name: &str, version: &str) -> extern "C" fn(u64) -> u64 {
        let [name, version] = [name, version].map(|text| CString::new(text).expect("a name"));
        // SAFETY: the handle is open.
        let at = unsafe { libc::dlvsym(self.handle, name.as_ptr(), version.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        // SAFETY: all functions called this way take one number and return one.
        unsafe { std::mem::transmute(at) }
    }
    /// A function of one to two numbers.
    pub(crate) fn function(&self, name: &str) -> extern "C" fn(u64, u64) -> u64 {
        // SAFETY: all functions called this way take at most two numbers and return one.
        unsafe { std::mem::transmute(self.address(name)) }
    }
    pub(crate) fn floats(&self, name: &str) -> extern "C" fn(f64, f64) -> f64 {
        // SAFETY: `scale` is one.
        unsafe { std::mem::transmute(self.address(name)) }
    }
    /// Offset of a function in the file.
    pub(crate) fn offset(&self, name: &str) -> u64 {
        let pattern = name.parse().expect("a pattern");
        let found = self.image.select(&pattern, "victim").expect(name);
        let function = self.image.function(found[0].function);
        self.image.offset_of(function.start).expect("in a segment").0
    }
    /// Offset of an address in the file.
    pub(crate) fn offset_of_address(&self, at: u64) -> u64 {
        let bias = self.address("add") - self.image.svma_of(FileOffset(self.offset("add"))).expect("code").0;
        self.image.offset_of(Svma(at - bias)).expect("in a segment").0
    }
    /// The code as it is now, from the first function to the last.
    pub(crate) fn text(&self) -> Vec<u8> {
        let names = ["add", "twice", "red", "scale", "fib", "tiny", "after", "tail"];
        let all = names.map(|name| self.address(name));
        let (low, high) = all.iter().fold((u64::MAX, 0), |(low, high), &at| (low.min(at), high.max(at + 16)));
        // SAFETY: between functions of one section.
        unsafe { std::slice::from_raw_parts(low as *const u8, (high - low) as usize).to_vec() }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _guard = loading();
        // SAFETY: opened by `load_file`; tests that drop a victim call nothing of it afterwards.
        unsafe { libc::dlclose(self.handle) };
    }
}
