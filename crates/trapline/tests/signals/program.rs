//! The program's own handlers, and its library.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Once, OnceLock};

use trapline::inside::{Consumer, Registration, Request, Tactic, Verdict, register_all};
use trapline_image::{Bytes, Image, NoDebugFiles};
use trapline_record::Svma;

/// What a handler saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) signal: i32,
    pub(crate) rip: u64,
    pub(crate) addr: u64,
}

thread_local! {
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
    /// Bytes to skip at the fault of a division.
    static SKIP: Cell<u64> = const { Cell::new(0) };
}
/// The address of two bytes to watch. `SENT` counts the signals that were sent, and `AT_WATCHED` those of
/// them that arrived at one of these bytes, or right behind them.
pub(crate) static WATCHED: AtomicU64 = AtomicU64::new(0);
pub(crate) static AT_WATCHED: AtomicU64 = AtomicU64::new(0);
pub(crate) static SENT: AtomicU64 = AtomicU64::new(0);

/// Runs the closure. Returns what a handler saw of a fault meanwhile.
pub(crate) fn seen(skip: u64, run: impl FnOnce()) -> Option<Seen> {
    SEEN.set(None);
    SKIP.set(skip);
    run();
    SEEN.take()
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: installed with SA_SIGINFO, so the kernel passes this signal's own information and context.
    unsafe {
        let rip = &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        let (at, addr) = ((*rip).cast_unsigned(), (*info).si_addr() as u64);
        if (*info).si_code <= 0 {
            SENT.fetch_add(1, Relaxed);
            let watched = WATCHED.load(Relaxed);
            AT_WATCHED.fetch_add(u64::from((watched..=watched + 2).contains(&at)), Relaxed);
            return;
        }
        SEEN.set(Some(Seen { signal, rip: at, addr }));
        match signal {
            libc::SIGSEGV => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let page = (addr & !0xFFF) as *mut c_void;
                let got = libc::mmap(page, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                assert_eq!(got, page);
            }
            _ => *rip += SKIP.get().cast_signed(),
        }
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGTRAP] {
            // SAFETY: the handler has the type that the flags ask for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
            }
        }
    });
}

/// A loaded copy of the library, from a file of its own.
pub(crate) struct Library {
    path: PathBuf,
    handle: *mut c_void,
    image: Image,
}

// SAFETY: a handle of dlopen belongs to the process.
unsafe impl Send for Library {}
// SAFETY: as above; dlsym may be called by any thread.
unsafe impl Sync for Library {}

fn compiled() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signals/victim.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("signals-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-g0", "-shared", "-fPIC"]).arg(source).arg("-o").arg(&out);
        assert!(cc.status().expect("a C compiler").success());
        out
    })
}

impl Library {
    pub(crate) fn load() -> Self {
        install();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = compiled().with_extension(format!("{}.so", NEXT.fetch_add(1, Relaxed)));
        std::fs::copy(compiled(), &path).expect("copied");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the library has no constructors, and stays loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let bytes = std::fs::read(&path).expect("readable");
        let image = Image::parse(Bytes::from(bytes), &mut NoDebugFiles).expect("an ELF file");
        Self { path, handle, image }
    }
    /// Address of a name, or of a place some bytes behind it: `name+3`.
    pub(crate) fn address(&self, name: &str) -> u64 {
        let (name, by) = name.split_once('+').unwrap_or((name, "0"));
        let by: u64 = by.parse().expect("a number");
        let name = CString::new(name).expect("a name");
        // SAFETY: the handle is open.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at as u64 + by
    }
    /// Offset of a name in the file.
    fn offset(&self, name: &str) -> u64 {
        let found = self.image.select(&"load".parse().expect("a pattern"), "victim").expect("load");
        let base = self.address("load") - self.image.function(found[0].function).start.0;
        self.image.offset_of(Svma(self.address(name) - base)).expect("in a segment").0
    }
    /// Calls a function of two words.
    pub(crate) fn call(&self, name: &str, a: u64, b: u64) -> u64 {
        call(self.address(name), a, b)
    }
    /// Registers a consumer at a name.
    pub(crate) fn probe(&self, name: &str, by_trap: bool, consumer: Consumer) -> Registration {
        let request = Request { by_trap, ..Request::new(&self.path, self.offset(name), consumer) };
        register_all([request]).expect("registered").pop().expect("one")
    }
    /// Registers a consumer that does nothing, and checks that it is reached by jump or by trap as requested.
    pub(crate) fn quiet(&self, name: &str, by_trap: bool) -> Registration {
        let probe = self.probe(name, by_trap, Consumer::entry(|_| Verdict::Continue));
        assert_eq!(probe.sites(), [if by_trap { Tactic::Trap } else { Tactic::Jump }], "{name}");
        probe
    }
}

pub(crate) fn call(at: u64, a: u64, b: u64) -> u64 {
    // SAFETY: tests call functions of this type.
    let function: extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(at as *const ()) };
    function(a, b)
}

/// An address where nothing is mapped, on a page of its own.
pub(crate) fn nowhere() -> u64 {
    // SAFETY: a page of our own, unmapped at once. Others map from the top downwards, and this page is
    // requested far below.
    unsafe {
        static NEXT: AtomicU64 = AtomicU64::new(0x10_0000_0000);
        let at = NEXT.fetch_add(0x10_0000, Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let page = libc::mmap(at as *mut c_void, 4096, libc::PROT_NONE, flags, -1, 0);
        assert_eq!(page as u64, at);
        libc::munmap(page, 4096);
        at
    }
}
