//! What other tools leave of a patch: int3, and bytes of the file.

use trapline_plan::{Patch, PatchRole, Tactic};
use trapline_record::RemoteAddr;

use crate::foreign::{Sight, lost, sight};

const OLD: [u8; 8] = [0x48, 0x83, 0xEC, 0x18, 0xF0, 0, 0, 0];
const NEW: [u8; 8] = [0xE9, 0xCC, 0xCC, 0xCC, 0x60, 0, 0, 0];

fn patch(len: u8) -> Patch {
    Patch {
        probe: 0,
        request: 0,
        role: PatchRole::Entry,
        tactic: Tactic::Jump,
        addr: RemoteAddr(0x1000),
        len,
        relies: len,
        old: OLD,
        new: NEW,
        head: RemoteAddr(0),
        crosses_line: false,
        starts: 0,
        faults: false,
        faults_before: false,
    }
}

#[test]
fn what_others_leave_is_distinguished() {
    let seen = |present: &[u8]| sight(&patch(present.len() as u8), present);
    assert_eq!(seen(&NEW[..5]), Sight::Whole);
    assert_eq!(seen(&OLD[..5]), Sight::File);
    assert_eq!(seen(&[0xCC, 0xCC, 0xCC, 0xCC, 0x60]), Sight::Covered, "a uprobe on the head");
    assert_eq!(seen(&[0xE9, 0xCC, 0xCC, 0xCC, 0xCC]), Sight::Covered, "a breakpoint on the last byte");
    assert_eq!(seen(&[0x48, 0xCC, 0xCC, 0xCC, 0x60]), Sight::PutBack, "it has gone");
    assert_eq!(seen(&[0xE9, 0xCC, 0xEC, 0xCC, 0x60]), Sight::PutBack, "one inside has gone");
    assert_eq!(seen(&[0x48, 0xCC, 0xCC, 0xCC, 0xCC]), Sight::PutBack, "one has gone, another is there");
    assert_eq!(seen(&[0x90, 0xCC, 0xCC, 0xCC, 0x60]), Sight::Whole, "no tool's byte that we know");
    assert_eq!(seen(&[0x55, 0x48, 0x89, 0xE5, 0x53]), Sight::Whole, "other text");
    assert_eq!(seen(&[0xCC, 0x83, 0xEC, 0x18, 0xF0]), Sight::Whole, "the file's, and a breakpoint: not ours");
}

#[test]
fn only_the_files_bytes_are_written_again() {
    let lost = |present: &[u8]| lost(&patch(present.len() as u8), present).collect::<Vec<_>>();
    assert_eq!(lost(&[0x48, 0xCC, 0xCC, 0xCC, 0x60]), [0]);
    assert_eq!(lost(&[0x48, 0xCC, 0xEC, 0xCC, 0x60]), [0, 2]);
    assert_eq!(lost(&[0xCC, 0xCC, 0xEC, 0xCC, 0x60]), [2], "the int3 is another tool's");
}
