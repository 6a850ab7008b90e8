//! Unwinders in a process, and whether return trampolines can be registered with all of them.
//!
//! In: the process' files. Out: the address of `__register_frame` in each file that has an unwinder, and code
//! that calls neither allocator nor loader with a lock held; or a reason why return trampolines would break
//! unwinding there. Does not: call anything.
//!
//! # At the entry point
//!
//! A program that was started under trace waits at its entry point ([`Process::entry_wait`]). An unwinder can
//! be called there if
//! - glibc's loader led there. It has relocated all files, set up TLS and the C library, and run the
//!   constructors of libraries, which allocate and throw like any code (`_dl_start_user` calls `_dl_init`
//!   before it jumps to the entry point). Its locks are free again; and
//! - the program has no allocator of its own, whose constructors have not run.
//!
//! musl's loader leaves constructors to `__libc_start_main`, behind the entry point: an allocator of a
//! library may not be ready. A static program has no loader: its own relocations (IRELATIVE) and its TLS come
//! in `__libc_start_main` too, and a call of any function of its C library would crash it.

use std::ops::Range;

use trapline_image::Image;
use trapline_patch::Unwinder;
use trapline_record::RemoteAddr;
use trapline_record::addr::Bias;
use trapline_record::control::MAX_UNWINDERS;
use trapline_tracee::{Mapping, Process};

use crate::files::Files;
use crate::modules::{Module, mapped};

/// What a process' files show about unwinding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Unwinding {
    /// All unwinders there are.
    pub(crate) unwinders: Vec<Unwinder>,
    /// Code of the program itself, unless it has an allocator of its own; and the code in which it waits at its
    /// entry point, where the C library is ready.
    pub(crate) own_code: Vec<Range<u64>>,
    /// A library is glibc's, whose loader runs constructors before the entry point.
    has_glibc: bool,
    /// The program is static, so it loads no unwinder later.
    pub(crate) is_static: bool,
    /// A file calls one of [`LOADS`].
    pub(crate) may_load: bool,
    /// The program is Go's: its return addresses are left alone; the plan refuses them.
    pub(crate) go: bool,
    /// An unwinder that must not be called yet, since its own addresses may not be relocated.
    pub(crate) loading: Option<String>,
}

/// Why return addresses are left alone where [`Unwinding::can_register`] returns false.
const MAY_LOAD: &str = "it may load an unwinder later, which would not be informed of them in time (--ret=stack takes that risk)";

impl Unwinding {
    /// All unwinders of a process in which return addresses may be replaced without the user asking for it.
    ///
    /// # Errors
    /// Why they may not be replaced.
    pub(crate) fn of_auto(process: &Process, files: &mut Files) -> Result<Self, String> {
        let found = unwinding_now(process, files)?;
        match found.can_register() {
            true => Ok(found),
            false if found.go => Err("Go moves its stacks and must know every return address".to_owned()),
            false => Err(MAY_LOAD.to_owned()),
        }
    }
    /// Adds what one file shows.
    ///
    /// # Errors
    /// Why return addresses cannot be replaced in a process that has it.
    fn add(&mut self, module: &Module, defined: &Defined<'_>, maps: &[Mapping]) -> Result<(), String> {
        let &Module { ref file, bias, is_program, .. } = module;
        let (image, path) = (&file.image, &file.path);
        self.may_load |= image.imported().any(|name| LOADS.contains(&name.raw));
        if image.is_go() {
            return Err(format!("{path} is Go's, which moves its stacks and must know every return address"));
        }
        if let Some((runtime, _)) = FRAME_WALKERS.iter().find(|(_, names)| defined.has(names)) {
            return Err(format!("{path} has {runtime}, which must know every return address"));
        }
        if defined.has(&UNWINDS) {
            if !is_program && !is_relocated(maps, image, bias) {
                self.loading = Some(path.clone());
            }
            self.unwinders.push(registered_by(defined, bias).ok_or_else(|| {
                format!("{path} has an unwinder of its own that takes no frame information at run time")
            })?);
        }
        self.has_glibc |= !is_program && defined.has(&[GLIBC]);
        if is_program {
            self.is_static = image.is_static();
            if !defined.has(&ALLOCATES) && !image.is_static() {
                let ranges = image.text_ranges().iter();
                self.own_code
                    .extend(ranges.map(|&(start, len)| bias.live(start).0..bias.live(start + len).0));
            }
        }
        Ok(())
    }
    /// Whether replaced return addresses can be registered with all unwinders. Either there are some that
    /// can be called, or there is none now and none comes later.
    const fn can_register(&self) -> bool {
        !self.go && (!self.unwinders.is_empty() || self.is_static || !self.may_load)
    }
}

/// Function of LLVM's libunwind, which takes frame information in another form.
const LLVM: &str = "__unw_init_local";
/// Functions that only a file with an unwinder has: libgcc's lookup of frame information, and LLVM's
/// initialization. `_Unwind_Backtrace` and the like do not show it: libc has functions of these names that
/// load libgcc_s.
const UNWINDS: [&str; 2] = ["_Unwind_Find_FDE", LLVM];
/// Functions that load an unwinder, or any library, at run time.
const LOADS: [&str; 8] = [
    "pthread_cancel",
    "pthread_exit",
    "thrd_exit",
    "backtrace",
    "dlopen",
    "dlmopen",
    "_Unwind_Backtrace",
    "_Unwind_ForcedUnwind",
];
/// Runtimes that look up return addresses of their own code in tables of their own: for garbage collection,
/// for exceptions, or to discard code. An address that they do not know ends the process. Each is recognized
/// by functions that its files have and that nothing else defines. Where a version is noted, the names were
/// found in the symbols of that version's files (Debian 12; for GHC and OCaml, in programs that they made).
/// The others are as their documentation has them.
const FRAME_WALKERS: [(&str, &[&str]); 13] = [
    // Node 20.20.
    ("V8", &["Builtins_InterpreterEntryTrampoline", "_ZN2v87Isolate5EnterEv", "_ZN2v87Isolate7DisposeEv"]),
    // WebKitGTK's libjavascriptcoregtk 4.1.
    ("JavaScriptCore", &["JSEvaluateScript", "JSGlobalContextCreate"]),
    // libmozjs 102. The second name is of versions with C names, and was not verified.
    ("SpiderMonkey", &["_Z13JS_NewContextjP9JSRuntime", "JS_NewContext"]),
    // OpenJDK 17's libjvm.
    ("the Java virtual machine", &["JNI_CreateJavaVM"]),
    // GHC 9.0.
    ("GHC's runtime", &["hs_init_ghc", "hs_main"]),
    // OCaml 4.13, native code.
    ("OCaml's runtime", &["caml_startup_exn", "caml_main", "caml_call_gc"]),
    // 2.1: program and library. The second name is local in both, and stripped from them.
    ("LuaJIT", &["luaJIT_setmode", "lj_vm_call"]),
    // ERTS 13.1.
    ("Erlang's runtime", &["erl_start", "erts_alloc_init"]),
    // 6.8, in the program `mono-sgen`.
    ("Mono", &["mono_jit_init", "mono_jit_exec"]),
    // Not verified: libcoreclr's functions for hosts.
    (".NET's runtime", &["coreclr_initialize", "coreclr_execute_assembly"]),
    // 2.2.
    ("SBCL", &["call_into_lisp"]),
    // 7.3, libpypy3.9-c.
    ("PyPy", &["pypy_main_startup", "rpython_startup_code"]),
    // 9.5.
    ("Chez Scheme", &["Sscheme_init"]),
];
/// Functions that a program with an allocator of its own defines.
const ALLOCATES: [&str; 4] = ["malloc", "free", "_Znwm", "_ZdlPv"];
/// A function that only glibc has.
const GLIBC: &str = "gnu_get_libc_version";

/// Looks at all files of a process.
///
/// # Errors
/// Why nothing can be registered with some unwinder.
pub(crate) fn unwinding(process: &Process, files: &mut Files) -> Result<Unwinding, String> {
    let maps = process.maps().map_err(|error| error.to_string())?;
    let mut out = Unwinding::default();
    let mut stripped = None;
    let all = mapped(process, &maps);
    files.open_all(process, &all);
    for one in all {
        let module = one.open(process, files)?;
        let image = &module.file.image;
        if module.is_program && image.is_go() {
            // Nothing can be registered with Go's runtime.
            return Ok(Unwinding { go: true, ..out });
        }
        let defined = Defined::of(image);
        out.add(&module, &defined, &maps)?;
        if module.is_program && !defined.has(&["main", "_start"]) {
            stripped = Some(module.file.path.clone());
        }
    }
    // The program's own code is named if it is dynamic and has no allocator.
    if out.has_glibc && !out.own_code.is_empty() {
        out.own_code.extend(process.entry_wait().cloned());
    }
    match stripped {
        Some(path) if out.unwinders.is_empty() => {
            Err(format!("{path} has no symbols that would show whether it has an unwinder of its own"))
        }
        _ if out.unwinders.len() as u64 > MAX_UNWINDERS => Err(format!(
            "{} unwinders are mapped, at most {MAX_UNWINDERS} can be informed",
            out.unwinders.len()
        )),
        _ => Ok(out),
    }
}

/// The same as [`unwinding`], for a process in which all unwinders can be called at once.
///
/// # Errors
/// Why they cannot be; also if the loader is at work on one, which must not be called before its addresses
/// are right.
pub(crate) fn unwinding_now(process: &Process, files: &mut Files) -> Result<Unwinding, String> {
    match unwinding(process, files)? {
        Unwinding { loading: Some(path), .. } => {
            Err(format!("{path}, which has an unwinder, is just being loaded; try again"))
        }
        found => Ok(found),
    }
}

/// Whether the loader has finished a library's relocations. It then has made those pages read-only that it
/// alone writes (`PT_GNU_RELRO`, from the beginning of the data), and has left the other data writable.
/// Before it maps the data, none of it is writable. For a library without such pages this never becomes true.
fn is_relocated(maps: &[Mapping], image: &Image, bias: Bias) -> bool {
    const PF_W: u32 = 2;
    let Some(data) = image.loads().iter().find(|load| load.flags & PF_W != 0) else { return true };
    let is_writable = |at| maps.iter().any(|map| map.contains(bias.live(at)) && map.perms.write);
    !is_writable(data.svma) && is_writable(data.svma + data.memsz.saturating_sub(1))
}

fn registered_by(defined: &Defined<'_>, bias: Bias) -> Option<Unwinder> {
    let live = |name| defined.at(name).map(|at| bias.live(at));
    let unwinder: (RemoteAddr, RemoteAddr) = (live("__register_frame")?, live("__deregister_frame")?);
    (!defined.has(&[LLVM])).then_some(Unwinder { register: unwinder.0, take_back: unwinder.1 })
}

/// Functions of a file that have one of the names that matter here.
struct Defined<'a>(Vec<(&'a str, trapline_record::Svma)>);

impl<'a> Defined<'a> {
    fn of(image: &'a Image) -> Self {
        let matters = |name: &str| {
            UNWINDS.contains(&name)
                || ALLOCATES.contains(&name)
                || FRAME_WALKERS.iter().any(|(_, names)| names.contains(&name))
                || ["main", "_start", "__register_frame", "__deregister_frame", GLIBC].contains(&name)
        };
        let named = image.functions().iter().flat_map(|function| {
            image.names(function).filter(|name| matters(name.raw)).map(|name| (name.raw, function.start))
        });
        Self(named.collect())
    }
    fn at(&self, name: &str) -> Option<trapline_record::Svma> {
        self.0.iter().find(|one| one.0 == name).map(|one| one.1)
    }
    fn has(&self, names: &[&str]) -> bool {
        self.0.iter().any(|one| names.contains(&one.0))
    }
}
