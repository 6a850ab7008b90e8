//! Calls that are kept in their stack words' places. The code that gates inline is executed as it is, beside
//! `dispatch`'s own entries and exits. The engine has one place, so all stack words and all probes share it.

use std::ffi::c_void;
use std::sync::Mutex;

use trapline_insn::x86_64::Gpr;
use trapline_runtime::consumer::{Consumer, Flags, Hit, Verdict};
use trapline_runtime::native::Regs;
use trapline_runtime::probe::Probe;
use trapline_runtime::x86_64::general::WITH_STATE;
use trapline_runtime::x86_64::general::inlined::InlinedPath;

use crate::support::{ORIGINAL, SITE, add, calling, engine_of, enter, leave, probe, regs};

/// Plays the gate: code before an inlined fast path, in its room, and behind it.
fn glued(piece: InlinedPath, before: &[u8], done: &[u8], behind: &[u8]) -> usize {
    let (room, len) = piece.room;
    assert!(done.len() <= len);
    let pad = before.len().next_multiple_of(64) - before.len();
    let head = [&vec![0x90; pad], before, &piece.text[..room]].concat();
    let all = [&head, done, &vec![0xcc; len - done.len()], &piece.text[room + len..], behind].concat();
    // SAFETY: a new mapping, which is never unmapped, and contains nothing else.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at =
            libc::mmap(std::ptr::null_mut(), all.len(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().copy_from_nonoverlapping(all.as_ptr(), all.len());
        assert_eq!(libc::mprotect(at, all.len(), libc::PROT_READ | libc::PROT_EXEC), 0);
        at as usize
    }
}

const SP_AT: u8 = (std::mem::offset_of!(Regs, gpr) + Gpr::Rsp as usize * 8) as u8;

type Begin = extern "C" fn(*const Probe, u64, u64) -> u64;
type End = extern "C" fn(*const Probe, *mut Regs) -> u64;

/// The inlined fast paths as functions of the C ABI.
struct Native {
    begin: Begin,
    end: End,
}

impl Native {
    fn new() -> Self {
        // xor eax, eax; ret, and mov eax, 1; ret. The arguments are in the registers that the code expects.
        let begin = glued(InlinedPath::begin(), &[], &[0x31, 0xc0, 0xc3], &[0xb8, 1, 0, 0, 0, 0xc3]);
        let kept = [0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]; // push rbx, rbp, r12 to r15
        let back = [0x48, 0x89, 0xec, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]; // mov rsp, rbp; pop them; ret
        // mov rbp, rsp; mov r12, rdi; lea rbx, [rsi - 8]; mov rcx, the stack pointer in `Regs`; and rsp, -16
        let ready = [
            0x48, 0x89, 0xe5, 0x49, 0x89, 0xfc, 0x48, 0x8d, 0x5e, 0xf8, 0x48, 0x8b, 0x4e, SP_AT, 0x48, 0x83,
            0xe4, 0xf0,
        ];
        let done = [[0x31, 0xc0].as_slice(), &back].concat();
        let end = glued(InlinedPath::end(), &[kept.as_slice(), &ready].concat(), &done, &back);
        // SAFETY: the code above.
        unsafe {
            let begin = std::mem::transmute::<usize, Begin>(begin);
            Self { begin, end: std::mem::transmute::<usize, End>(end) }
        }
    }
    /// K2: whether the call is kept in its place.
    fn begins(&self, probe: &Probe, site: u64, sp: u64) -> bool {
        (self.begin)(probe, site, sp) == 0
    }
    /// L1: whether the place kept this call.
    fn ends(&self, probe: &Probe, sp: u64) -> bool {
        let answer = (self.end)(probe, &mut regs(sp));
        assert!([ORIGINAL, WITH_STATE].contains(&answer), "{answer}");
        answer == ORIGINAL
    }
}

/// Returns that were reported: the address that was hit, the stack pointer.
type ReportedReturns = Mutex<Vec<(u64, u64)>>;

unsafe extern "C" fn tell(data: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: `data` is a leaked `ReportedReturns`; `hit` is this hit, and so are its registers.
    let (reported, hit, regs) = unsafe { (&*data.cast::<ReportedReturns>(), &*hit, &*(*hit).regs) };
    reported.lock().expect("no thread panics").push((hit.site, regs.sp()));
    Verdict::CONTINUE
}

/// Makes a probe's calls be kept in place, and adds a consumer that waits for them.
fn waits(probe: &Probe) -> &'static ReportedReturns {
    let reported: &'static ReportedReturns = Box::leak(Box::default());
    let (data, flags) = (std::ptr::from_ref(reported).cast_mut().cast(), Flags::GENERAL_REGS_ONLY);
    add(probe, Consumer { entry: None, ret: Some(tell), filter: None, data, flags });
    reported
}

fn taken(reported: &ReportedReturns) -> Vec<(u64, u64)> {
    std::mem::take(&mut *reported.lock().expect("no thread panics"))
}

/// A call that has an instance; the first one binds its place (K1).
fn call(probe: &Probe, sp: u64) {
    assert_eq!(enter(probe, &mut regs(sp)), ORIGINAL);
    assert_eq!(leave(probe, &mut regs(sp)), ORIGINAL);
}

const SP: u64 = 0x7000;

#[test]
fn a_place_keeps_a_call_until_its_exit() {
    let (native, probe) = (Native::new(), probe(engine_of(4, 1), 0));
    let reported = waits(probe);
    // There is no line yet; then the place is not bound.
    assert!(!native.begins(probe, SITE, SP));
    call(probe, SP);
    assert_eq!(taken(reported), [(SITE, SP)]);
    assert!(!native.ends(probe, SP), "it keeps nothing");
    for site in [SITE, SITE, SITE + 0x100] {
        assert!(native.begins(probe, site, SP) && native.ends(probe, SP) && !native.ends(probe, SP));
        assert_eq!(taken(reported), [(site, SP)], "once");
    }
    // A call that was left: the next call there takes its place, whichever site was hit.
    assert!(
        native.begins(probe, SITE, SP) && native.begins(probe, SITE + 0x200, SP) && native.ends(probe, SP)
    );
    assert_eq!(taken(reported), [(SITE + 0x200, SP)]);
    assert_eq!(probe.counts().hits, 1 + 3 + 2);
    // Through `dispatch`'s exit, as if vectors had to be saved.
    assert!(native.begins(probe, SITE + 0x300, SP));
    (0..2).for_each(|_| assert_eq!(leave(probe, &mut regs(SP)), ORIGINAL));
    assert_eq!(taken(reported), [(SITE + 0x300, SP)], "once");
    // If calls get return trampolines, none is kept in place.
    let arms = |arms| {
        // SAFETY: no call begins meanwhile except the one below, which looks and does nothing.
        unsafe { probe.set_arms(arms) };
    };
    arms(true);
    assert!(!native.begins(probe, SITE, SP));
    arms(false);
    assert!(native.begins(probe, SITE, SP) && native.ends(probe, SP));
}

/// A handler's data, and what it found: whether a call began, and whether one ended.
type Inner<'a> = (&'a Native, &'a Probe, Mutex<[bool; 2]>);

unsafe extern "C" fn calls_inside(data: *mut c_void, _: *mut Hit) -> Verdict {
    // SAFETY: `data` is an `Inner` of the test that waits for this.
    let (native, probe, found) = unsafe { &*data.cast::<Inner<'_>>() };
    *found.lock().expect("no thread panics") = [native.begins(probe, SITE, SP), native.ends(probe, SP)];
    Verdict::CONTINUE
}

/// A handler's own calls count as missed, which the fast path cannot do.
#[test]
fn in_a_hit_nothing_begins_and_nothing_ends() {
    let (native, engine) = (Native::new(), engine_of(4, 1));
    let [probe, outer] = [4, 5].map(|number| probe(engine, number));
    let reported = waits(probe);
    call(probe, SP);
    let inner: Inner<'_> = (&native, probe, Mutex::new([true; 2]));
    add(outer, calling(calls_inside, std::ptr::from_ref(&inner).cast_mut().cast()));
    assert!(native.begins(probe, SITE, SP));
    taken(reported);
    assert_eq!(enter(outer, &mut regs(SP - 64)), ORIGINAL);
    assert_eq!(*inner.2.lock().expect("no thread panics"), [false; 2]);
    assert_eq!(taken(reported), []);
    assert!(native.ends(probe, SP));
    assert_eq!(taken(reported), [(SITE, SP)]);
}

/// Whichever way the other stack word's call takes, it does not disturb the one that is kept, and its own
/// return is reported.
#[test]
fn a_place_is_its_stack_words_alone() {
    let (native, probe) = (Native::new(), probe(engine_of(4, 1), 1));
    let reported = waits(probe);
    call(probe, SP);
    taken(reported);
    for other in [SP - 64, SP + 4096, 0x7f00_0000_0000 | SP] {
        assert!(native.begins(probe, SITE + 0x100, SP));
        assert!(!native.begins(probe, SITE, other), "an entry at another stack word");
        assert_eq!(enter(probe, &mut regs(other)), ORIGINAL);
        assert!(!native.ends(probe, other), "an exit at another stack word");
        assert_eq!(taken(reported), []);
        assert_eq!(leave(probe, &mut regs(other)), ORIGINAL);
        assert_eq!(taken(reported), [(SITE, other)], "by its instance");
        assert!(native.ends(probe, SP), "still kept");
        assert_eq!(taken(reported), [(SITE + 0x100, SP)]);
    }
}

/// Calls of two functions at one stack word (a tail call between them): the inner one finds the place taken,
/// and leaves it.
#[test]
fn a_place_that_keeps_another_probes_call_is_left_alone() {
    let (native, engine) = (Native::new(), engine_of(4, 1));
    let [outer, inner] = [2, 3].map(|number| probe(engine, number));
    let reported = [outer, inner].map(waits);
    call(outer, SP);
    taken(reported[0]);
    for _ in 0..3 {
        assert!(native.begins(outer, SITE + 0x100, SP));
        assert!(!native.begins(inner, SITE + 0x200, SP), "an entry of another probe");
        assert_eq!(enter(inner, &mut regs(SP)), ORIGINAL);
        assert!(!native.ends(inner, SP), "an exit of another probe");
        assert_eq!(reported.map(taken), [vec![], vec![]]);
        assert_eq!(leave(inner, &mut regs(SP)), ORIGINAL);
        assert_eq!(reported.map(taken), [vec![], vec![(SITE, SP)]], "by its instance");
        assert!(native.ends(outer, SP), "still kept");
        assert_eq!(reported.map(taken), [vec![(SITE + 0x100, SP)], vec![]]);
        // Then it is the inner probe's turn.
        assert!(native.begins(inner, SITE + 0x200, SP) && native.ends(inner, SP));
        assert_eq!(reported.map(taken), [vec![], vec![(SITE + 0x200, SP)]]);
    }
}
