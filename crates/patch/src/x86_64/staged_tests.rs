//! Windows that change in steps: what a thread sees of them, whatever part it sees, and whenever.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind};

use crate::space::LINE;
use crate::space::change::{Direction, Outcome};
use crate::space::fake::{Did, Fake};
use crate::space::write::change;

const BASE: u64 = 0x1000;
/// A jump with a displacement that traps wherever an instruction may start.
const JUMP: [u8; 8] = [0xe9, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0, 0];

/// Text with every byte its own position, so that a misplaced byte shows.
fn text() -> Vec<u8> {
    (0..8192u32).map(|i| (i % 199 + 1) as u8).collect()
}

fn fake(words: bool) -> Fake {
    Fake { words, ..Fake::new(BASE, text()) }
}

/// A window of an instruction of `cut` bytes, and one of `5 - cut`.
fn entry(at: u64, cut: usize) -> Entry {
    let from = (at - BASE) as usize;
    let mut old = [0; 8];
    old[..5].copy_from_slice(&text()[from..from + 5]);
    Entry { addr: RemoteAddr(at), len: 5, kind: EntryKind::Entry, starts: 1 << cut & 0b11110, old, new: JUMP }
}

fn done(fake: &mut Fake, entries: &[Entry], way: Direction) {
    let mut outcomes = Vec::new();
    change(fake, entries, way, &mut outcomes).expect("alive");
    assert!(outcomes.iter().all(|o| *o == Outcome::Done), "{outcomes:?}");
}

#[test]
fn each_step_is_one_write_to_a_page_and_a_sync() {
    let all = [2 * LINE - 2, 3 * LINE - 3, 4096 + 9].map(|at| entry(BASE + at, 1));
    let mut fake = fake(false);
    done(&mut fake, &all, Direction::Publish);
    let steps: Vec<Did> = fake.log.iter().copied().filter(|d| *d != Did::Serve).collect();
    let step = [Did::Write(BASE + 2 * LINE - 8), Did::Write(BASE + 4096 + 8), Did::Sync];
    assert_eq!(steps, [&step[..], &step, &step[..2]].concat());
    fake.log.clear();
    done(&mut fake, &all, Direction::Remove);
    let steps: Vec<Did> = fake.log.iter().copied().filter(|d| *d != Did::Serve).collect();
    assert_eq!(steps, [step, step, step].concat());
}

#[test]
fn one_line_is_written_at_once_where_words_are_seen_whole() {
    let all = [entry(BASE + 3, 1), entry(BASE + LINE - 3, 1)];
    let mut fake = fake(true);
    done(&mut fake, &all, Direction::Publish);
    let [first, ..] = fake.log[..] else { panic!("nothing was done") };
    assert_eq!((first, fake.parts.len()), (Did::Write(BASE + 3), 3));
}

/// PATCH-3: what any CPU may see of an entry before a sync, and of its exit.
#[test]
fn an_entry_leads_nowhere_unless_its_exit_is_in_place() {
    let (head, exit) = (BASE + 8, BASE + LINE - 2);
    let all = [entry(head, 1), Entry { kind: EntryKind::Exit, ..entry(exit, 1) }];
    let mut fake = fake(false);
    done(&mut fake, &all, Direction::Publish);
    let syncs = |fake: &Fake| fake.log.iter().filter(|did| **did == Did::Sync).count();
    assert_eq!(syncs(&fake), 3, "four rounds");
    done(&mut fake, &all, Direction::Remove);
    assert_eq!(syncs(&fake), 3 + 4);
    let is_old = |text: &[u8], at: u64| text[(at - BASE) as usize] == self::text()[(at - BASE) as usize];
    for (nth, (before, after)) in fake.parts.iter().enumerate() {
        let entry_leads = [before, after].iter().any(|text| !is_old(text, head));
        let exit_lacks = [before, after].iter().any(|text| is_old(text, exit));
        assert!(!(entry_leads && exit_lacks), "write {nth}");
    }
}

/// A thread may start an instruction anywhere in a window, at any moment, having seen any of the bytes
/// written since the last sync. It finds a whole old instruction, or a trap, or the whole jump.
#[test]
fn no_part_of_a_write_shows_a_torn_instruction() {
    for (at, cut) in [BASE + LINE - 2, BASE + LINE - 4, BASE + 8, BASE + 4094]
        .into_iter()
        .flat_map(|at| (1..6).map(move |cut| (at, cut)))
    {
        let site = entry(at, cut);
        let mut fake = fake(false);
        done(&mut fake, &[site], Direction::Publish);
        done(&mut fake, &[site], Direction::Remove);
        assert_eq!(fake.bytes, text());
        let from = (at - BASE) as usize;
        for (before, after) in &fake.parts {
            let changed: Vec<usize> = (0..5).filter(|n| before[from + n] != after[from + n]).collect();
            for seen in 0..1u32 << changed.len() {
                let mut window = before[from..from + 5].to_vec();
                for (_, &n) in changed.iter().enumerate().filter(|(bit, _)| seen & 1 << bit != 0) {
                    window[n] = after[from + n];
                }
                check(&window, &site, cut.min(5));
            }
        }
    }
}

fn check(window: &[u8], site: &Entry, cut: usize) {
    let head_whole = window[..cut] == site.old[..cut] || window == &JUMP[..5] || window[0] == 0xcc;
    assert!(head_whole, "cut {cut} at {}: head {window:02x?}", site.addr);
    let inner_whole = cut == 5 || window[cut..] == site.old[cut..5] || window[cut] == 0xcc;
    assert!(inner_whole, "cut {cut} at {}: interior {window:02x?}", site.addr);
}

/// A child that was forked between two steps gets the rest. A later tracer does not take an int3 of ours for
/// another tool's.
#[test]
fn what_was_begun_is_ended_or_undone() {
    let site = [entry(BASE + 8, 2)];
    for steps in 0..6 {
        let mut begun = Fake { dies_at: Some(steps), ..fake(false) };
        drop(change(&mut begun, &site, Direction::Publish, &mut Vec::new()));
        begun.dies_at = None;
        let mut child = begun.clone();
        let mut outcomes = Vec::new();
        change(&mut child, &site, Direction::Complete, &mut outcomes).expect("alive");
        assert_eq!(child.bytes[8..13], JUMP[..5], "{steps} steps: {outcomes:?}");
        change(&mut begun, &site, Direction::Recover, &mut outcomes).expect("alive");
        assert_eq!(begun.bytes, text(), "{steps} steps: {outcomes:?}");
    }
}

#[test]
fn a_breakpoint_put_on_a_finished_patch_survives_its_removal() {
    let site = [entry(BASE + LINE - 2, 1)];
    let mut fake = fake(false);
    done(&mut fake, &site, Direction::Publish);
    fake.bytes[LINE as usize - 2] = 0xcc;
    let mut outcomes = Vec::new();
    change(&mut fake, &site, Direction::Remove, &mut outcomes).expect("alive");
    assert_eq!(outcomes, [Outcome::KeptBreakpoint]);
    let mut request = text();
    request[LINE as usize - 2] = 0xcc;
    assert_eq!(fake.bytes, request);
}

#[test]
fn a_hole_costs_only_the_windows_that_lie_in_it() {
    let all = [BASE + LINE, BASE + 2 * LINE + 3, BASE + 3 * LINE].map(|at| entry(at, 1));
    let mut fake = Fake { hole: Some((BASE + 2 * LINE, BASE + 3 * LINE)), ..fake(false) };
    let mut outcomes = Vec::new();
    change(&mut fake, &all, Direction::Publish, &mut outcomes).expect("alive");
    assert_eq!(outcomes, [Outcome::Done, Outcome::Unreachable, Outcome::Done]);
    assert_eq!(fake.bytes[3 * LINE as usize..3 * LINE as usize + 5], JUMP[..5]);
}
