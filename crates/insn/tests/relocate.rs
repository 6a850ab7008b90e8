//! Hand-written windows, relocated.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use trapline_insn::x86_64::{
    Immovable, Insn, Options, RelocateError, Relocated, decode_one, may_displace, relocate, relocate_bytes,
    relocate_with, sweep,
};

const FROM: u64 = 0x7F00_0000_1000;
const TO: u64 = 0x7F00_1000_0000;

fn moved(bytes: &[u8]) -> Relocated {
    relocate_bytes(bytes, FROM, TO, Options::default()).unwrap_or_else(|e| panic!("{bytes:02x?}: {e}"))
}

fn refused(bytes: &[u8]) -> Immovable {
    refused_at(bytes, TO, Options::default())
}

fn refused_at(bytes: &[u8], to: u64, options: Options) -> Immovable {
    match relocate_bytes(bytes, FROM, to, options) {
        Err(RelocateError::Immovable { why, .. }) => why,
        other => panic!("{bytes:02x?}: {other:?}"),
    }
}

/// Instructions of the copy.
fn copies(relocated: &Relocated) -> Vec<Insn> {
    sweep(&relocated.bytes, TO).collect()
}

#[test]
fn plain_instructions_are_copied_with_their_offsets() {
    let bytes = [0x55, 0x48, 0x89, 0xE5, 0x41, 0x57];
    let relocated = moved(&bytes);
    assert_eq!(relocated.bytes, bytes);
    assert_eq!(relocated.offsets, [(0, 0), (1, 1), (4, 4)]);
    assert!(relocated.falls_through);
    assert_eq!(relocated.next, FROM + 6);
}

#[test]
fn rip_relative_operands_name_the_same_address() {
    for bytes in [
        &[0x48, 0x8D, 0x05, 0x10, 0x20, 0x30, 0x00][..],
        &[0xC7, 0x05, 0x10, 0, 0, 0, 1, 2, 3, 4],
        &[0xFF, 0x25, 0x10, 0, 0, 0],
    ] {
        let old = decode_one(bytes, FROM).expect("bytes");
        let new = copies(&moved(bytes))[0];
        assert_eq!((new.ip_rel(), new.len), (old.ip_rel(), old.len));
    }
}

#[test]
fn short_branches_are_widened() {
    for (bytes, len) in [(&[0xEB, 0x40][..], 5), (&[0x7F, 0x40], 6), (&[0x0F, 0x8F, 0x40, 0, 0, 0], 6)] {
        let old = decode_one(bytes, FROM).expect("bytes");
        let new = copies(&moved(bytes))[0];
        assert_eq!((new.flow(), new.len), (old.flow(), len), "{bytes:02x?}");
    }
    assert_eq!(moved(&[0x7F, 0x40]).bytes[..2], [0x0F, 0x8F]);
}

#[test]
fn loops_go_over_a_short_jump() {
    for opcode in 0xE0..=0xE3 {
        let new = copies(&moved(&[opcode, 0x30]));
        assert_eq!(new[0].flow().target(), Some(new[2].addr));
        assert_eq!(new[1].flow().target(), Some(new[2].end()));
        assert_eq!(new[2].flow().target(), Some(FROM + 0x32));
    }
    assert_eq!(moved(&[0x67, 0xE3, 0x30]).bytes[..3], [0x67, 0xE3, 2]);
}

#[test]
fn branches_inside_the_window_go_to_copies_and_to_its_head_go_to_the_head() {
    // 0: nop; 1: jmp +1 → 4; 3: nop; 4: jmp → 1; 6: jmp → 0
    let relocated = moved(&[0x90, 0xEB, 0x01, 0x90, 0xEB, 0xFB, 0xEB, 0xF8]);
    let copy = |old: u8| relocated.offsets.iter().find(|o| o.0 == old).map(|o| TO + u64::from(o.1));
    let targets: Vec<_> = copies(&relocated).iter().filter_map(|i| i.flow().target()).collect();
    assert_eq!(targets, [copy(4).expect("4"), copy(1).expect("1"), FROM]);
    assert!(!relocated.falls_through);
    let into = relocate_bytes(&[0x90, 0xEB, 0xFF], FROM, TO, Options::default());
    assert_eq!(into, Err(RelocateError::IntoInstruction { addr: FROM + 1, target: FROM + 2 }));
}

#[test]
fn calls_push_the_original_return_address() {
    let relocated = moved(&[0x90, 0xE8, 0x10, 0, 0, 0]);
    let new = copies(&relocated);
    assert_eq!(new.last().and_then(|i| i.flow().target()), Some(FROM + 0x16));
    assert!(!relocated.falls_through);
    assert_eq!(relocated.bytes[9..13], (FROM as u32 + 6).to_le_bytes());
    assert_eq!(relocated.bytes[17..21], ((FROM >> 32) as u32).to_le_bytes());
    let low = relocate_bytes(&[0xE8, 0, 0, 0, 0], 0x40_1000, 0x41_0000, Options::default()).expect("moves");
    assert_eq!(low.bytes[..5], [0x68, 0x05, 0x10, 0x40, 0]);
}

#[test]
fn indirect_calls_become_indirect_jumps() {
    let tail = |bytes: &[u8]| moved(bytes).bytes[20..].to_vec();
    assert_eq!(tail(&[0xFF, 0xD0]), [0xFF, 0xE0]);
    assert_eq!(tail(&[0x41, 0xFF, 0xD4]), [0x41, 0xFF, 0xE4], "r12 is not rsp");
    assert_eq!(tail(&[0xFF, 0x50, 0x18]), [0xFF, 0x60, 0x18]);
    assert_eq!(tail(&[0x41, 0xFF, 0x14, 0x24]), [0x41, 0xFF, 0x24, 0x24], "[r12] is not [rsp]");
    assert_eq!(tail(&[0xFF, 0x14, 0x24]), [0xFF, 0xA4, 0x24, 8, 0, 0, 0]);
    assert_eq!(tail(&[0xFF, 0x54, 0x24, 0x78]), [0xFF, 0xA4, 0x24, 0x80, 0, 0, 0]);
    let slot = [0xFF, 0x15, 0x10, 0, 0, 0];
    let new = *copies(&moved(&slot)).last().expect("a jump");
    assert_eq!(new.ip_rel(), Some(FROM + 0x16));
    assert_eq!(refused(&[0xFF, 0xD4]), Immovable::CallByStack);
    assert_eq!(refused(&[0xFF, 0x54, 0x24, 0xF8]), Immovable::CallByStack);
    assert_eq!(refused(&[0xFF, 0x14, 0xC4]), Immovable::CallByStack);
}

#[test]
fn what_cannot_move_says_why() {
    let cases: &[(&[u8], Immovable)] = &[
        (&[0xD5, 0x10], Immovable::Invalid),
        (&[0xC7, 0xF8, 0, 0, 0, 0], Immovable::Xbegin),
        (&[0xCB], Immovable::Far),
        (&[0xFF, 0x2D, 0, 0, 0, 0], Immovable::Far),
        (&[0xCC], Immovable::Trap),
        (&[0x0F, 0x0B], Immovable::Trap),
        (&[0x66, 0xE9, 0, 0, 0, 0], Immovable::OperandSize),
        (&[0x67, 0x8B, 0x05, 0, 0, 0, 0], Immovable::EipRelative),
        (&[0xE8, 0, 0, 0, 0, 0x90], Immovable::NotLast),
        (&[0x0F, 0x05, 0x90], Immovable::NotLast),
        (&[0xCD, 0x80, 0x90], Immovable::NotLast),
    ];
    for (bytes, why) in cases {
        assert_eq!(refused(bytes), *why, "{bytes:02x?}");
    }
    assert_eq!(moved(&[0x0F, 0x05]).bytes, [0x0F, 0x05]);
    let shadow_stack = Options { shadow_stack: true };
    assert_eq!(refused_at(&[0xFF, 0xD0], TO, shadow_stack), Immovable::ShadowStack);
    let far = FROM + (3 << 30);
    for bytes in [&[0xEB, 0][..], &[0x74, 0], &[0xE8, 0, 0, 0, 0], &[0xE3, 0], &[0x8B, 0x05, 0, 0, 0, 0]] {
        let why = refused_at(bytes, far, Options::default());
        assert!(matches!(why, Immovable::OutOfReach { .. }), "{bytes:02x?}: {why}");
    }
    let xbegin = decode_one(&[0xC7, 0xF8, 0, 0, 0, 0], FROM).expect("bytes");
    assert_eq!(may_displace(&xbegin), Err(Immovable::Xbegin));
}

#[test]
fn reach_is_two_gibibytes_to_the_byte() {
    let jump = |to: u64| relocate_bytes(&[0xE9, 0, 0, 0, 0], FROM, to, Options::default()).is_ok();
    assert!(jump(FROM + (1 << 31)) && !jump(FROM + (1 << 31) + 1));
    assert!(jump(FROM - (1 << 31) + 1) && !jump(FROM - (1 << 31)));
}

#[test]
fn instructions_of_other_bytes_are_not_believed() {
    let bytes = [0x55, 0x48, 0x89, 0xE5];
    let insns: Vec<Insn> = sweep(&bytes, FROM).collect();
    let mismatch = |insns: &[Insn], bytes: &[u8]| {
        matches!(relocate(insns, bytes, TO), Err(RelocateError::Mismatch { .. }))
    };
    assert!(mismatch(&insns, &bytes[..3]));
    assert!(mismatch(&insns[1..], &bytes));
    assert!(mismatch(&[insns[1], insns[0]], &bytes));
    assert!(mismatch(&[], &[]));
    assert!(mismatch(&sweep(&[0x90; 300], FROM).collect::<Vec<_>>(), &[0x90; 300]));
}

proptest! {
    #[test]
    fn any_bytes_are_moved_or_refused(bytes in any::<Vec<u8>>(), from: u64, by: i32, shadow_stack: bool) {
        let to = from.wrapping_add_signed(i64::from(by));
        let insns: Vec<Insn> = sweep(&bytes, from).collect();
        prop_assert_eq!(insns.iter().map(|i| usize::from(i.len)).sum::<usize>(), bytes.len());
        // The longest prefix that can be relocated, so that most cases reach the emitter.
        for n in (1..=insns.len().min(12)).rev() {
            let len: usize = insns[..n].iter().map(|i| usize::from(i.len)).sum();
            if let Ok(moved) = relocate_with(&insns[..n], &bytes[..len], to, Options { shadow_stack }) {
                prop_assert_eq!(moved.offsets.len(), n);
                prop_assert!(moved.bytes.len() >= n);
                break;
            }
        }
    }

    #[test]
    fn mixed_up_instructions_never_panic(bytes in any::<Vec<u8>>(), other in any::<Vec<u8>>(), from: u64) {
        let insns: Vec<Insn> = sweep(&bytes, from).collect();
        let _moved = relocate(&insns, &other, from);
        let _dead = trapline_insn::x86_64::flags_dead_after(&insns, &other);
        let _gprs = trapline_insn::x86_64::overwritten_gprs(&insns, &other);
    }
}
