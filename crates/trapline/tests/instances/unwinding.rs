//! Unwinders walk through frames with replaced return addresses: C++ exceptions, Rust panics, backtrace(),
//! with libgcc and with a second unwinder that is loaded later.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use trapline::inside::{Consumer, Tally};
use trapline_tests::alone;
use trapline_tests::debugger::{self, Frame, names};

use crate::victim::{self, Victim};
use crate::{How, Seen, probe};

const TRAMPOLINES: u64 = trapline::inside::TRAMPOLINES as u64;

/// The C++ library, in a copy of its own.
fn library() -> Option<Victim> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compiled = PATH.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instances/unwinding.cpp");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unwinding-{}.so", std::process::id()));
        let mut cc = Command::new("c++");
        cc.args(["-O2", "-g0", "-shared", "-fPIC", "-fno-optimize-sibling-calls"])
            .arg(source)
            .arg("-o")
            .arg(&out);
        cc.status().is_ok_and(|status| status.success()).then_some(out)
    });
    let Some(compiled) = compiled else {
        println!("SKIP: no C++ compiler");
        return None;
    };
    Some(Victim::load_file(victim::copy(compiled)))
}

/// More throws than there are return trampolines, through two armed frames each, from two places at one stack
/// word: trampolines of calls that were left are reused.
#[test]
fn exceptions_go_through_and_trampolines_are_had_again() {
    for how in [How::Trampoline, How::TrampolineByTrap] {
        let Some(victim) = library() else { return };
        let caught =
            |n: u64, unwound: &mut u64| victim.function("caught")(n, std::ptr::from_mut(unwound) as u64);
        let expected = |n: u64| [n, n + 1].map(|n| if n % 4 == 3 { n + 2 } else { n }).iter().sum::<u64>();
        let seen = ["caught", "through", "thrower"].map(|name| (name, Seen::new()));
        let probes = seen.map(|(name, seen)| probe(&victim, name, seen.session(), how));
        let mut unwound = 0;
        (0..TRAMPOLINES).for_each(|n| assert_eq!(caught(n, &mut unwound), expected(n)));
        assert_eq!(unwound, 2 * TRAMPOLINES);
        let half = TRAMPOLINES / 2;
        seen[0].1.expect(TRAMPOLINES, TRAMPOLINES);
        seen[1].1.expect(2 * TRAMPOLINES, half);
        seen[2].1.expect(2 * TRAMPOLINES, half);
        assert!(probes.iter().all(|probe| probe.counts().missed() == 0), "{:?}", probes.map(|p| p.counts()));
        drop(probes);
        (0..100).for_each(|n| assert_eq!(caught(n, &mut unwound), expected(n)));
    }
}

#[test]
fn backtraces_are_what_they_were() {
    let Some(victim) = library() else { return };
    const MOST: usize = 200;
    let walk = || {
        let mut frames = [0_u64; MOST];
        let len = victim.function("walker")(frames.as_mut_ptr() as u64, MOST as u64);
        frames[..len as usize].to_vec()
    };
    // The addresses in this closure depend on its caller, so there is only one call of it.
    let mut bare = Vec::new();
    for armed in [false, true] {
        let seen = [Seen::new(), Seen::new()];
        let probes = armed.then(|| {
            let probe = |name, seen: Seen| probe(&victim, name, seen.session(), How::Trampoline);
            [probe("walker", seen[0]), probe("walked", seen[1])]
        });
        let frames = walk();
        if let Some(probes) = probes {
            seen.into_iter().for_each(|seen| seen.expect(1, 1));
            let trampolines = trampolines();
            let (ours, theirs): (Vec<u64>, Vec<u64>) = frames.iter().partition(|at| trampolines.contains(at));
            assert_eq!(ours.len(), 2, "{frames:x?}");
            // What an unwinder looks up is the same, except for the difference between the address after a
            // call and the byte before it.
            let near = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= 1;
            assert_eq!(theirs.len(), bare.len(), "{theirs:x?} {bare:x?}");
            assert!(theirs.iter().zip(&bare).skip(1).all(near), "{theirs:x?} {bare:x?}");
            drop(probes);
        } else {
            bare = frames;
        }
    }
}

/// The same for calls that were entered from within their trampolines, as calls are when a consumer waits
/// only for returns and the trampoline is bound; and exceptions out of such calls. In a process of its own: at
/// most half of all trampolines are bound, and calls of other tests may have them.
#[test]
fn unwinders_walk_through_calls_that_were_entered_from_their_trampolines() {
    alone(
        "unwinding::unwinders_walk_through_calls_that_were_entered_from_their_trampolines",
        entered_from_them,
    );
}

#[allow(ffi_unwind_calls, reason = "that is what is tested")]
fn entered_from_them() {
    extern "C-unwind" fn panics(x: u64) -> u64 {
        std::panic::resume_unwind(Box::new(x))
    }
    extern "C-unwind" fn adds(x: u64) -> u64 {
        x + 1
    }
    let Some(victim) = library() else { return };
    let returns = crate::word();
    let waits = || {
        Consumer::returns(|_| {
            returns.fetch_add(1, SeqCst);
        })
    };
    let walk = || {
        let mut frames = [0_u64; 200];
        let len = victim.function("walker")(frames.as_mut_ptr() as u64, frames.len() as u64);
        frames[..len as usize].to_vec()
    };
    let walked = |times: u64| (0..times).fold(Vec::new(), |_, _| walk());
    let (mut bare, mut ways) = (Vec::new(), Vec::new());
    for (armed, times) in [(false, 1), (true, 1), (true, 2), (true, 3)] {
        let probe = armed.then(|| probe(&victim, "walker", waits(), How::TrampolineGeneral));
        let frames = walked(times);
        if let Some(probe) = probe {
            let trampolines = trampolines();
            let (ours, theirs): (Vec<u64>, Vec<u64>) = frames.iter().partition(|at| trampolines.contains(at));
            ways.extend(ours.iter().map(|at| (at - trampolines.start) % trapline_record::trampolines::CODE));
            let near = |(a, b): (&u64, &u64)| a.abs_diff(*b) <= 1;
            assert!(
                theirs.len() == bare.len() && theirs.iter().zip(&bare).skip(1).all(near),
                "{theirs:x?} {bare:x?}"
            );
            assert_eq!(returns.swap(0, SeqCst), times);
            probe.unregister().expect("unregistered");
        } else {
            bare = frames;
        }
    }
    let paired = |at: &&u64| **at + 1 >= trapline_record::trampolines::PAIRED;
    assert_eq!(ways.len(), 3);
    assert!(ways.iter().filter(paired).count() >= 1, "none was entered from its return trampoline: {ways:?}");

    let victim = Victim::load();
    let probe = probe(&victim, "with", waits(), How::TrampolineGeneral);
    // SAFETY: `with` is such a function, and has unwind tables.
    let with: extern "C-unwind" fn(extern "C-unwind" fn(u64) -> u64, u64) -> u64 =
        unsafe { std::mem::transmute(victim.address("with")) };
    for n in 0..1000 {
        let caught = std::panic::catch_unwind(|| with(if n % 3 == 2 { panics } else { adds }, n));
        match caught {
            Ok(value) => assert_eq!((n % 3 == 2, value), (false, n + 2)),
            Err(thrown) => assert_eq!((n % 3 == 2, thrown.downcast_ref()), (true, Some(&n))),
        }
    }
    assert_eq!(returns.load(SeqCst), 667);
    assert_eq!(probe.counts(), Tally { hits: 1000, unreturned: 333, ..Tally::default() });
}

/// Range of this process' return trampolines.
fn trampolines() -> std::ops::Range<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let line = maps.lines().find(|line| line.contains("trapline-slots")).expect("mapped");
    let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
    number(start)..number(end)
}

#[test]
#[allow(ffi_unwind_calls, reason = "that is what is tested")]
fn panics_go_through() {
    extern "C-unwind" fn panics(x: u64) -> u64 {
        std::panic::resume_unwind(Box::new(x))
    }
    for how in [How::Trampoline, How::TrampolineByTrap] {
        let victim = Victim::load();
        let seen = Seen::new();
        let probe = probe(&victim, "with", seen.session().maxactive(2), how);
        // SAFETY: `with` is such a function, and has unwind tables.
        let with: extern "C-unwind" fn(extern "C-unwind" fn(u64) -> u64, u64) -> u64 =
            unsafe { std::mem::transmute(victim.address("with")) };
        for n in 0..1000 {
            let thrown = std::panic::catch_unwind(|| with(panics, n)).expect_err("it panics");
            assert_eq!(thrown.downcast_ref(), Some(&n));
        }
        seen.expect(1000, 0);
        assert_eq!(probe.counts(), Tally { hits: 1000, unreturned: 999, ..Tally::default() });
    }
}

/// Unwind tables of all that is mapped here, for framehop.
fn framehop() -> UnwinderX86_64<Vec<u8>> {
    let mut unwinder = UnwinderX86_64::new();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, access, "00000000", _, _, path] = words[..] else { continue };
        let Some(data) = std::fs::read(path).ok().filter(|_| access.starts_with('r')) else { continue };
        let Ok(elf) = object::File::parse(&*data) else { continue };
        let start = range.split('-').next().and_then(|at| u64::from_str_radix(at, 16).ok()).expect("a range");
        let end = elf.segments().map(|one| one.address() + one.size()).max().unwrap_or(0);
        let section = |name: &str| elf.section_by_name(name);
        let bytes = |name: &str| section(name).and_then(|one| Some(one.data().ok()?.to_vec()));
        let place = |name: &str| section(name).map(|one| one.address()..one.address() + one.size());
        let sections = ExplicitModuleSectionInfo {
            text_svma: place(".text"),
            eh_frame_svma: place(".eh_frame"),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr_svma: place(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            ..Default::default()
        };
        unwinder.add_module(Module::new(path.into(), start..start + end, start, sections));
    }
    unwinder
}

std::thread_local!(static WALKED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) });

/// Walks its own stack with framehop, which asks for the real return addresses.
extern "C" fn walks(_: u64) -> u64 {
    let (pc, sp, frame): (u64, u64, u64);
    // SAFETY: registers are read.
    unsafe {
        std::arch::asm!("lea {}, [rip]; mov {}, rsp; mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) frame)
    };
    let mut read = |at: u64| {
        // SAFETY: framehop asks for words of this stack, above the stack pointer.
        let word = unsafe { *(at as *const u64) };
        Ok(trapline::inside::returns_to(word).unwrap_or(word))
    };
    let (unwinder, mut cache) = (framehop(), CacheX86_64::new());
    let mut frames = unwinder.iter_frames(pc, UnwindRegsX86_64::new(pc, sp, frame), &mut cache, &mut read);
    let walked = std::iter::from_fn(|| frames.next().ok().flatten()).map(|frame| frame.address()).collect();
    WALKED.with_borrow_mut(|to| *to = walked);
    0
}

#[inline(never)]
fn walked(victim: &Victim) -> Vec<u64> {
    assert_eq!(crate::with(victim)(walks, 1), 1);
    let mut walked = WALKED.take();
    // `walks`, its caller, this function, the test's and more of the harness.
    assert!(walked.len() > 5, "{walked:x?}");
    // The test may call this from several places.
    walked.remove(3);
    walked
}

#[test]
fn framehop_walks_through() {
    let victim = Victim::load();
    let mut bare = Vec::new();
    for armed in [false, true] {
        let seen = Seen::new();
        let probe = armed.then(|| probe(&victim, "with", seen.session(), How::Trampoline));
        let walked = walked(&victim);
        if armed {
            drop(probe);
            seen.expect(1, 1);
            assert_eq!(walked, bare);
        }
        bare = walked;
    }
}

/// A library that looks like one with an unwinder, and stores the unwind information that it is given.
const LATER: &str = "\
const void *given;
const void *_Unwind_Find_FDE(const void *pc, void *bases) { return 0; }
void __register_frame(const void *info) { given = info; }
void __deregister_frame(const void *info) { given = 0; }
";

/// A library that has an unwinder and accepts no unwind information.
const DEAF: &str = "const void *_Unwind_Find_FDE(const void *pc, void *bases) { return 0; }";

fn load_later(code: &str) -> *mut c_void {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("later-{}.{next}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (source, library) = (path.with_extension("c"), path.with_extension("so"));
    std::fs::write(&source, code).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-w", "-Wl,-z,relro,-z,now"]).arg(&source).arg("-o").arg(&library);
    assert!(cc.status().expect("a C compiler").success());
    let name = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: it has no constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    handle
}

/// An unwinder that is loaded while trampolines are in use is set up for them, once the loader is done with it.
/// In a process of its own, as trampolines belong to the process.
#[test]
fn unwinders_that_are_loaded_later() {
    alone("unwinding::unwinders_that_are_loaded_later", || {
        let victim = Victim::load();
        let seen = Seen::new();
        let _probe = probe(&victim, "add", seen.session(), How::Trampoline);
        let handle = load_later(LATER);
        // SAFETY: a word of that library.
        let registered = unsafe { *libc::dlsym(handle, c"given".as_ptr()).cast::<u64>() };
        let registered_in_time = registered != 0;
        // The engine's thread does this soon; here it is done now.
        trapline::inside::rescan().expect("a look");
        // SAFETY: as above.
        let registered = unsafe { *libc::dlsym(handle, c"given".as_ptr()).cast::<u64>() };
        assert!(
            trampolines().contains(&registered),
            "registered: {registered:#x}, in time: {registered_in_time}"
        );
        let call = || assert_eq!(victim.function("add")(2, 1), 7);
        call();
        seen.expect(1, 1);
    });
}

/// An unwinder that cannot be set up closes the trampolines: no more calls are armed while it is there.
#[test]
fn unwinders_that_cannot_be_informed_rule_out_trampolines() {
    /// A single call site, so that its trampoline is bound and found at once.
    #[inline(never)]
    fn call(victim: &Victim) {
        assert_eq!(victim.function("add")(2, 1), 7);
    }
    alone("unwinding::unwinders_that_cannot_be_informed_rule_out_trampolines", || {
        let seen = Seen::new();
        for (consumer, how) in
            [(seen.session(), How::Trampoline), (Consumer::returns(|_| ()), How::TrampolineGeneral)]
        {
            let victim = Victim::load();
            let probe = probe(&victim, "add", consumer, how);
            let expect = |hits, empty| assert_eq!(probe.counts(), Tally { hits, empty, ..Tally::default() });
            (0..4).for_each(|_| call(&victim));
            expect(4, 0);
            let handle = load_later(DEAF);
            trapline::inside::rescan().expect("a look");
            call(&victim);
            expect(4, 1);
            // SAFETY: nothing uses it.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
            trapline::inside::rescan().expect("a look");
            call(&victim);
            expect(5, 1);
        }
    });
}

/// gdb's backtrace of a thread that is blocked below armed calls (`docs/gdb/trapline_return_trampolines.py`).
/// In a process of its own: a gdb that attaches while a thread is at an int3 takes the signal for its own,
/// and threads of other tests hit such instructions.
#[test]
fn gdb_walks_through_trampolines() {
    match debugger::ready() {
        Ok(()) => alone("unwinding::gdb_walks_through_trampolines", walked_by_gdb),
        Err(why) => println!("SKIP: {why}"),
    }
}

fn walked_by_gdb() {
    let victim = Victim::load();
    let [bare, armed] = [false, true].map(|armed| {
        let seen = Seen::new();
        let probe = armed.then(|| probe(&victim, "with", seen.session(), How::Trampoline));
        let frames = blocked_in_a_call(&victim);
        if let Some(probe) = probe {
            seen.expect(1, 1);
            probe.unregister().expect("unregistered");
        }
        frames
    });
    let trampolines = trampolines();
    let (ours, theirs): (Vec<Frame>, Vec<Frame>) =
        armed.iter().cloned().partition(|frame| frame.pc.is_some_and(|pc| trampolines.contains(&pc)));
    assert_eq!(ours.len(), 1, "{armed:#?}");
    // The innermost frames are those of a wait, which may be at another instruction.
    let outer = |frames: &[Frame]| {
        let all = names(frames).into_iter().map(str::to_owned);
        all.skip_while(|name| name != "with").collect::<Vec<_>>()
    };
    assert_eq!(outer(&theirs), outer(&bare));
    assert!(outer(&bare).len() > 3, "{bare:#?}");
}

/// Backtrace of a thread that waits in a function that `with` has called.
fn blocked_in_a_call(victim: &Victim) -> Vec<Frame> {
    static GATE: std::sync::Barrier = std::sync::Barrier::new(2);
    extern "C" fn blocks(x: u64) -> u64 {
        GATE.wait();
        GATE.wait();
        x
    }
    let with = crate::with(victim);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| with(blocks, 4));
        GATE.wait();
        let threads = debugger::backtraces(std::process::id(), true);
        GATE.wait();
        assert_eq!(blocked.join().expect("it returns"), 5);
        let its = threads.expect("gdb").into_iter().find(|frames| names(frames).contains(&"with"));
        its.expect("a thread that is in the call")
    })
}
