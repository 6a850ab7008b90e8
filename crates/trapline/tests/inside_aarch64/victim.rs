//! The library: compiled once, loaded as often as needed, each copy a file of its own. And what tests share.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

use trapline::inside::{Consumer, Registration, Request, Tactic, Verdict, register_all};
use trapline_image::{Bytes, Image, NoDebugFiles};
use trapline_record::FileOffset;

/// A loaded copy.
pub(crate) struct Victim {
    pub(crate) path: PathBuf,
    /// How its sites are to be reached.
    pub(crate) form: Tactic,
    image: Image,
    handle: *mut c_void,
}

// SAFETY: a handle of dlopen belongs to the process.
unsafe impl Send for Victim {}
// SAFETY: as above; dlsym may be called by any thread.
unsafe impl Sync for Victim {}

/// Path of the compiled library, in a system that has no compiler (`cargo xtask arm64-system`).
const VARIABLE: &str = "TRAPLINE_INSIDE_VICTIM";

/// Compiled by the compiler that linked this program: it runs beside the emulator, not in it.
fn compiled() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os(VARIABLE) {
            return path.into();
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inside_aarch64/victim.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inside-{}.so", std::process::id()));
        let mut cc = Command::new("aarch64-linux-gnu-gcc");
        cc.args(["-O1", "-g0", "-shared", "-fPIC", "-fexceptions", "-w", "-Wl,-Bsymbolic"])
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

fn loading() -> RwLockReadGuard<'static, ()> {
    LOADER.read().unwrap_or_else(PoisonError::into_inner)
}

impl Victim {
    /// A file that was never loaded. A forked child continues its parent's count, so its pid is in the name
    /// too.
    pub(crate) fn file() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = compiled().with_extension(format!("{}-{number}.so", std::process::id()));
        std::fs::copy(compiled(), &path).expect("copied");
        path
    }
    pub(crate) fn load() -> Self {
        Self::load_file(Self::file())
    }
    /// Runs a test in both forms, each with a copy that was never probed.
    pub(crate) fn in_both_forms(test: impl Fn(&Self)) {
        for form in [Tactic::Jump, Tactic::Trap] {
            let mut victim = Self::load();
            victim.form = form;
            test(&victim);
        }
    }
    pub(crate) fn load_file(path: PathBuf) -> Self {
        fault::install();
        // The stack that the standard library gave this thread has room for one signal's frame, and for no
        // handler's after it.
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: this thread's handlers run on its own stack from now on.
        assert_eq!(unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) }, 0);
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let guard = loading();
        // SAFETY: the library's constructor calls a function of its own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        drop(guard);
        assert!(!handle.is_null());
        let bytes = std::fs::read(&path).expect("readable");
        let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).expect("an ELF file");
        Self { path, form: Tactic::Jump, image, handle }
    }
    pub(crate) fn address(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name");
        // SAFETY: the handle is open.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at as u64
    }
    /// A function of one to two numbers.
    pub(crate) fn function(&self, name: &str) -> extern "C" fn(u64, u64) -> u64 {
        // SAFETY: all functions called this way take at most two numbers and return one.
        unsafe { std::mem::transmute(self.address(name) as *const ()) }
    }
    pub(crate) fn floats(&self, name: &str) -> extern "C" fn(f64, f64) -> f64 {
        // SAFETY: `scale` is one.
        unsafe { std::mem::transmute(self.address(name) as *const ()) }
    }
    /// Offset of a function or variable in the file, by the address at which the loader put the first
    /// segment.
    pub(crate) fn offset(&self, name: &str) -> u64 {
        let pattern = name.parse().expect("a pattern");
        let found = self.image.select(&pattern, "victim").expect(name);
        let function = self.image.function(found[0].function);
        self.image.offset_of(function.start).expect("in a segment").0
    }
    /// The same for data.
    pub(crate) fn offset_of_data(&self, name: &str) -> u64 {
        let add = self.image.svma_of(FileOffset(self.offset("add"))).expect("code");
        let at = add.0.wrapping_add(self.address(name)).wrapping_sub(self.address("add"));
        self.image.offset_of(trapline_record::Svma(at)).expect("in a segment").0
    }
    /// A request in the form of this copy.
    pub(crate) fn request(&self, offset: u64, consumer: Consumer) -> Request {
        let request = Request::new(&self.path, offset, consumer);
        if self.form == Tactic::Trap { request.by_trap() } else { request }
    }
    pub(crate) fn register_at(&self, offset: u64, consumer: Consumer) -> Registration {
        let mut one = register_all([self.request(offset, consumer)]).expect("registered");
        one.pop().expect("one")
    }
    pub(crate) fn register(&self, name: &str, consumer: Consumer) -> Registration {
        self.register_at(self.offset(name), consumer)
    }
    /// Words of the code as they are now, from the first function to the last.
    pub(crate) fn text(&self) -> Vec<u32> {
        let (low, high) = (self.address("pushes"), self.address("far_b") + 16);
        // SAFETY: between functions of one section.
        unsafe { std::slice::from_raw_parts(low as *const u32, (high - low) as usize / 4).to_vec() }
    }
    /// Mappings of its code as the system reports them, page by page, in however many lines: address, rights,
    /// offset.
    pub(crate) fn maps(&self) -> Vec<(u64, String, u64)> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let is_code = |line: &&str| line.contains("r-x") && line.ends_with(self.path.to_str().expect("text"));
        maps.lines()
            .filter(is_code)
            .flat_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let (start, end) = words[0].split_once('-').expect("a range");
                let (start, rights, offset) = (number(start), words[1].to_owned(), number(words[2]));
                (start..number(end))
                    .step_by(4096)
                    .map(move |page| (page, rights.clone(), page - start + offset))
            })
            .collect()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _guard = loading();
        // SAFETY: opened by `load_file`; tests that drop a victim call nothing of it afterwards.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// A word for a handler to use: tests run side by side, so each has its own.
pub(crate) fn word() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

/// Counts entries.
pub(crate) fn counting(word: &'static AtomicU64) -> Consumer {
    Consumer::entry(move |_| {
        word.fetch_add(1, Relaxed);
        Verdict::Continue
    })
}

/// The same, for returns.
pub(crate) fn counting_returns(word: &'static AtomicU64) -> Consumer {
    Consumer::returns(move |_| {
        word.fetch_add(1, Relaxed);
    })
}

/// Runs `body` in a forked child; returns its exit status.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: libc's fork leaves the child's allocator usable; the child leaves by _exit.
    unsafe {
        let guard = LOADER.write().unwrap_or_else(PoisonError::into_inner);
        let pid = libc::fork();
        drop(guard);
        if pid == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "signal {}", libc::WTERMSIG(status));
        libc::WEXITSTATUS(status)
    }
}

/// A SIGSEGV handler of the program's, installed before anything was probed.
pub(crate) mod fault {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::{Mutex, MutexGuard, Once, PoisonError};

    /// Where a fault is expected, and what x0 must be then; where it was, and at which address.
    static EXPECTED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static SEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

    /// Expects a fault; one test at a time.
    pub(crate) fn expected(at: u64, x0: u64) -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        [at, x0].into_iter().zip(&EXPECTED).for_each(|(value, word)| word.store(value, Relaxed));
        guard
    }
    pub(crate) fn seen() -> [u64; 2] {
        [0, 1].map(|n: usize| SEEN[n].load(Relaxed))
    }
    /// Called before the first probe, since a handler that is set later stands alone, without the engine's in
    /// front.
    pub(crate) fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: an action with a handler that accesses words of this test, and its own context.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
            }
        });
    }
    extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's own structures.
        unsafe {
            let context = &mut *context.cast::<libc::ucontext_t>();
            let machine = &mut context.uc_mcontext;
            SEEN[0].store(machine.pc, Relaxed);
            SEEN[1].store((*info).si_addr() as u64, Relaxed);
            if machine.pc != EXPECTED[0].swap(0, Relaxed) {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                return;
            }
            machine.regs[0] = EXPECTED[1].load(Relaxed);
        }
    }
}
