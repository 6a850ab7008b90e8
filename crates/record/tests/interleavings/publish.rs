//! PATCH-4, SAFE-3: whatever a published byte leads to exists before it (`patch::protocol`, I6 to I8).
//!
//! Meanwhile: a thread that arrives at the head, and one that traps at an interior boundary. The handler in
//! the target serves that trap, and walks the chain of segments. A later tracer reads what a dead one left.

use loom::sync::Arc;
use loom::thread;
use trapline_record::RemoteAddr;
use trapline_record::control::{State, at};
use trapline_record::journal::{Entry, EntryKind, Journal};

use crate::memory::Memory;

/// Byte offset of the guard table in this model's second segment: one guard, one journal entry, one word of
/// code.
const GUARD_OFF: u64 = at::REGION_COUNT;
const JOURNAL_OFF: u64 = GUARD_OFF + 16;
const CODE: u64 = JOURNAL_OFF + 32;
const LEN: u64 = CODE + 8;
/// Address of the second segment, as the first segment's link gives it.
const SECOND: u64 = 0x7000;
/// Address of the interior boundary, and of the same instruction in the copy.
const GUARD: (u64, u64) = (0x1001, 0x8001);
const ENTRY: Entry = Entry {
    addr: RemoteAddr(0x1000),
    len: 5,
    kind: EntryKind::Entry,
    starts: 0,
    old: [0x55; 8],
    new: [0xe9; 8],
};

/// The site's bytes are one word, since a patch is one write (PATCH-5).
struct Process {
    first: Arc<Memory>,
    second: Arc<Memory>,
    text: Arc<Memory>,
}

impl Process {
    fn new() -> Self {
        let text = Memory::new(8);
        text.view().set(0, u64::from_le_bytes(ENTRY.old));
        Self { first: Memory::new(at::REGION_COUNT), second: Memory::new(LEN), text }
    }
    fn share(&self) -> Self {
        let [first, second, text] = [&self.first, &self.second, &self.text].map(Arc::clone);
        Self { first, second, text }
    }
    fn is_patched(&self) -> bool {
        self.text.view().get(0) == u64::from_le_bytes(ENTRY.new)
    }
    fn journal(&self) -> Journal<'_> {
        Journal::new(self.second.view(), JOURNAL_OFF)
    }
    /// One thread arrives at the head, then one at the interior boundary.
    fn run(&self) {
        if self.is_patched() {
            assert_eq!(self.second.view().get(CODE), 1, "the jump leads to code");
            assert_eq!(self.handle(GUARD.0), Some(GUARD.1), "the trap is served");
        }
    }
    /// What the handler does: searches every segment of the chain.
    fn handle(&self, trapped: u64) -> Option<u64> {
        let mut segment = Some(&self.first);
        while let Some(control) = segment {
            let view = control.view();
            let table = view.get(at::GUARD_OFF);
            for n in 0..view.get(at::GUARD_COUNT) {
                if view.get(table + n * 16) == trapped {
                    return Some(view.get(table + n * 16 + 8));
                }
            }
            segment = (view.get(at::NEXT_SEGMENT) == SECOND).then_some(&self.second);
        }
        None
    }
    /// A later tracer, which must be able to undo everything that it finds.
    fn recover(&self) {
        if self.is_patched() {
            let view = self.second.view();
            assert_eq!(State::from_word(view.get(at::STATE)), Some(State::Armed));
            assert_eq!(view.get(at::JOURNAL_COUNT), 1, "the site is in the journal");
        }
        for n in 0..self.second.view().get(at::JOURNAL_COUNT) {
            assert_eq!(self.journal().get(n), Some(ENTRY), "what is counted is whole");
        }
    }
}

type Step = fn(&Process);
/// `Segment::begin`, `Segment::fill`, `install::attach`.
const STEPS: [Step; 9] = [
    |p| {
        p.second.view().set(at::STATE, State::Building as u64);
        p.second.view().set(at::GUARD_OFF, GUARD_OFF);
    },
    |p| {
        p.second.view().set(CODE, 1);
    },
    |p| {
        p.second.view().set(GUARD_OFF, GUARD.0);
        p.second.view().set(GUARD_OFF + 8, GUARD.1);
    },
    |p| {
        p.second.view().set(at::GUARD_COUNT, 1);
    },
    |p| {
        p.journal().put(0, &ENTRY);
    },
    |p| {
        p.second.view().set(at::JOURNAL_COUNT, 1);
    },
    |p| {
        p.first.view().set(at::NEXT_SEGMENT, SECOND);
    },
    |p| {
        p.second.view().set(at::STATE, State::Armed as u64);
    },
    |p| {
        p.text.view().set(0, u64::from_le_bytes(ENTRY.new));
    },
];

/// Runs the steps, with one of them moved to another position.
fn model(from: usize, to: usize) {
    loom::model(move || {
        let process = Process::new();
        let (target, later) = (process.share(), process.share());
        let threads = [thread::spawn(move || target.run()), thread::spawn(move || later.recover())];
        let mut order: Vec<Step> = STEPS.to_vec();
        let step = order.remove(from);
        order.insert(to, step);
        order.into_iter().for_each(|step| step(&process));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn what_a_patch_leads_to_is_there_before_it() {
    model(0, 0);
}

macro_rules! twins {
    ($($name:ident: $from:literal to $to:literal;)*) => {
        $(#[test]
        #[should_panic]
        fn $name() {
            model($from, $to);
        })*
    };
}
twins! {
    not_if_the_site_is_published_before_its_code: 1 to 8;
    not_if_guards_are_filled_after_the_site: 2 to 8;
    not_if_guards_are_counted_after_the_site: 3 to 8;
    not_if_the_entry_follows_its_count: 4 to 5;
    not_if_the_journal_is_counted_after_the_site: 5 to 8;
    not_if_the_segment_is_linked_after_the_site: 6 to 8;
    not_if_the_state_is_armed_after_the_site: 7 to 8;
}
