//! Frames of stacks: numbered, so that maps can have them in their keys, and named when they are written.
//!
//! In: frames of hits. Out: numbers; lines as bpftrace writes them. Invariant: two frames have one number if they are
//! the same place in the same process. Does not: unwind.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use trapline::stacks::{CodeAt, Frame, Function, HitStack, Symbols};
use trapline_script::StackMode;

/// What tells frames apart: the process, the address, the file that was mapped there and the offset in it.
type Key = (u32, u64, usize, u64);

/// Frames by their numbers; copies are the same table.
#[derive(Debug, Clone, Default)]
pub(super) struct Frames(Rc<RefCell<Table>>);

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Key, u64>,
    all: Vec<(u32, Frame)>,
    symbols: Symbols,
    code: CodeAt,
}

impl Frames {
    /// The numbers of a stack's frames, the probed function's first.
    pub(super) fn numbers(&self, pid: u32, stack: &HitStack) -> Vec<u64> {
        let mut table = self.0.borrow_mut();
        let frames = std::iter::once(&stack.here).chain(stack.callers.iter());
        frames.map(|frame| table.number(pid, frame)).collect()
    }
    /// Notes what a process has mapped: it may end before its addresses are looked up.
    pub(super) fn look(&self, pid: u32) {
        // No code is there; what matters is that the process is looked at.
        drop(self.0.borrow_mut().code.frame(pid, 0));
    }
    /// The address at which a process has a place of a file.
    pub(super) fn address(&self, pid: u32, path: &str, offset: u64) -> Option<u64> {
        self.0.borrow_mut().code.address(pid, path, offset)
    }
    /// The name of what is at an address; without one, the address.
    pub(super) fn symbol(&self, pid: u32, address: u64) -> String {
        let mut table = self.0.borrow_mut();
        let frame = table.code.frame(pid, address);
        let functions = frame.map(|frame| table.symbols.of(pid, &frame));
        let outer = functions.as_ref().and_then(|functions| functions.iter().rev().find(|one| one.named));
        outer.map_or_else(|| format!("{address:#x}"), |function| function.name.clone())
    }
    /// A stack as text. With `lines`, functions that were inlined and source lines are shown.
    pub(super) fn text(&self, numbers: &[u64], mode: StackMode, lines: bool) -> Vec<u8> {
        let mut table = self.0.borrow_mut();
        let mut out = "\n".to_owned();
        for number in numbers {
            let frame = usize::try_from(*number).ok().and_then(|number| table.all.get(number).cloned());
            let Some((pid, frame)) = frame else { continue };
            let address = frame.address;
            // A text cannot fail to be written to.
            if mode == StackMode::Raw {
                let _ = writeln!(out, "{address:x}");
                continue;
            }
            if mode == StackMode::BuildId {
                let _ = match table.symbols.build_id(&frame) {
                    Some((id, offset)) => writeln!(out, "{} {offset:#x}", hex(id)),
                    None => writeln!(out, "{address:#x}"),
                };
                continue;
            }
            let functions = table.symbols.of(pid, &frame);
            for function in functions.iter().filter(|function| lines || !function.inlined) {
                let line = match mode {
                    StackMode::Perf => format!("\t{address:x} {}", perf(function, &frame)),
                    _ => format!("        {}", name(function, &frame, lines)),
                };
                out.push_str(&line);
                out.push('\n');
            }
        }
        out.into_bytes()
    }
}

impl Table {
    fn number(&mut self, pid: u32, frame: &Frame) -> u64 {
        let (file, offset) =
            frame.place.as_ref().map_or((0, 0), |(file, offset)| (Arc::as_ptr(file).addr(), *offset));
        let next = self.all.len() as u64;
        *self.numbers.entry((pid, frame.address, file, offset)).or_insert_with(|| {
            self.all.push((pid, frame.clone()));
            next
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `name+4`; a place without a name is its address.
fn placed(function: &Function, frame: &Frame) -> String {
    match function.named {
        true => format!("{}+{}", function.name, function.offset + u64::from(frame.is_return)),
        false => format!("{:#x}", frame.address),
    }
}

fn name(function: &Function, frame: &Frame, lines: bool) -> String {
    let line = match &function.line {
        Some((file, line)) if lines => format!("@{file}:{line}"),
        _ => String::new(),
    };
    match function.inlined {
        true => format!("[inlined] {}{line}", function.name),
        false => placed(function, frame) + &line,
    }
}

fn perf(function: &Function, frame: &Frame) -> String {
    match (&function.module, function.inlined) {
        (_, true) => format!("{} (inlined)", function.name),
        (Some(module), false) => format!("{} ({module})", placed(function, frame)),
        (None, false) => placed(function, frame),
    }
}
