//! Operands of both processors: those that compilers write, those that only look like them, and any text.

use super::{
    Extend, MARK_ARGUMENTS, Machine, MarkArgument, MarkClass, MarkIndex, MarkPlace, NoPlace, mark_arguments,
};
use proptest::prelude::*;

fn one(text: &str, machine: Machine) -> (i8, MarkPlace) {
    let all = mark_arguments(text, machine);
    assert_eq!(all.len(), 1, "{text}");
    let MarkArgument { bytes, class, place } = all[0].clone();
    let is_float = class == MarkClass::Float;
    let is_fit = |place: &MarkPlace| {
        matches!(
            place,
            MarkPlace::Vector(_)
                | MarkPlace::Memory { .. }
                | MarkPlace::Symbol { .. }
                | MarkPlace::Unknown(_)
        )
    };
    assert!(!is_float || is_fit(&place), "{text}");
    (if class == MarkClass::Signed { -(bytes as i8) } else { bytes as i8 }, place)
}

fn memory(base: u8, index: Option<(u8, u8)>, offset: i32) -> MarkPlace {
    let index = index.map(|(register, scale)| MarkIndex { register, scale, extend: Extend::Whole });
    MarkPlace::Memory { base, index, offset }
}

fn indexed(base: u8, register: u8, scale: u8, extend: Extend) -> MarkPlace {
    MarkPlace::Memory { base, index: Some(MarkIndex { register, scale, extend }), offset: 0 }
}

fn at(name: &str, offset: i64) -> MarkPlace {
    MarkPlace::Symbol { name: name.to_owned(), offset }
}

#[test]
fn operands_of_x86_64() {
    for (text, bytes, place) in [
        ("4@%edi", 4, MarkPlace::Register(7)),
        ("-1@%sil", -1, MarkPlace::Register(6)),
        ("2@%r15w", 2, MarkPlace::Register(15)),
        ("8@%r8", 8, MarkPlace::Register(8)),
        ("8@$5", 8, MarkPlace::Constant(5)),
        ("-4@$-17", -4, MarkPlace::Constant(-17)),
        ("8@$0x10", 8, MarkPlace::Constant(16)),
        ("8@-24(%rbp)", 8, memory(5, None, -24)),
        ("4@(%rax)", 4, memory(0, None, 0)),
        ("8@8(%rsp)", 8, memory(4, None, 8)),
        ("8@16(%rax,%r12,8)", 8, memory(0, Some((12, 3)), 16)),
        ("4@counter(%rip)", 4, at("counter", 0)),
        ("4@table+12(%rip)", 4, at("table", 12)),
        ("4@12+table(%rip)", 4, at("table", 12)),
        ("4@x.0-4(%rip)", 4, at("x.0", -4)),
        ("8f@%xmm0", 8, MarkPlace::Vector(0)),
        ("4f@%xmm15", 4, MarkPlace::Vector(15)),
        ("8f@-8(%rbp)", 8, memory(5, None, -8)),
        ("-8f@scale(%rip)", 8, at("scale", 0)),
        ("4@counter", 4, at("counter", 0)),
        ("8@$table+8", 8, MarkPlace::Address { name: "table".to_owned(), offset: 8 }),
        // These only look like valid operands.
        ("1@%ah", 1, MarkPlace::Unknown(NoPlace::SecondByte)),
        ("8@%xmm0", 8, MarkPlace::Unknown(NoPlace::Class)),
        ("8f@%rax", 8, MarkPlace::Unknown(NoPlace::Class)),
        ("8f@$5", 8, MarkPlace::Unknown(NoPlace::Class)),
        ("2f@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
        ("16f@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
        ("16@%xmm0", 8, MarkPlace::Unknown(NoPlace::Size)),
        ("8f@%xmm16", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8f@%xmm01", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8f@%ymm0", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("4@%fs:-4", 4, MarkPlace::Unknown(NoPlace::ThreadLocal)),
        ("4@own@tpoff(%rax)", 4, MarkPlace::Unknown(NoPlace::ThreadLocal)),
        ("8@8(%rax,%rsp,1)", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@8(%rax,%rbx,3)", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@8(%eax)", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@*%rax", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@%r16", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@99999999999(%rax)", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("%edi", 8, MarkPlace::Unknown(NoPlace::Form)),
    ] {
        assert_eq!(one(text, Machine::X86_64), (bytes, place), "{text}");
    }
}

#[test]
fn operands_of_arm64() {
    for (text, bytes, place) in [
        ("4@w0", 4, MarkPlace::Register(0)),
        ("-8@x30", -8, MarkPlace::Register(30)),
        ("8@sp", 8, MarkPlace::Register(31)),
        ("8@[sp, 24]", 8, memory(31, None, 24)),
        ("8@[x29, #-16]", 8, memory(29, None, -16)),
        ("4@[x1]", 4, memory(1, None, 0)),
        ("-4@5", -4, MarkPlace::Constant(5)),
        ("4@wzr", 4, MarkPlace::Constant(0)),
        ("8@[x1, x2]", 8, indexed(1, 2, 0, Extend::Whole)),
        ("8@[x0, x1, lsl #3]", 8, indexed(0, 1, 3, Extend::Whole)),
        ("8@[sp, x1, lsl 2]", 8, indexed(31, 1, 2, Extend::Whole)),
        ("4@[x0, w1, sxtw 2]", 4, indexed(0, 1, 2, Extend::Signed)),
        ("4@[x0, w1, uxtw]", 4, indexed(0, 1, 0, Extend::Unsigned)),
        ("8f@d0", 8, MarkPlace::Vector(0)),
        ("4f@s31", 4, MarkPlace::Vector(31)),
        ("8f@v1", 8, MarkPlace::Vector(1)),
        ("8f@[sp, 8]", 8, memory(31, None, 8)),
        // These only look like valid operands.
        ("8@d0", 8, MarkPlace::Unknown(NoPlace::Class)),
        ("8f@x0", 8, MarkPlace::Unknown(NoPlace::Class)),
        ("8f@d32", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("16@q0", 8, MarkPlace::Unknown(NoPlace::Size)),
        ("8@x31", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@[x0, w1]", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@[x0, x1, lsl #4]", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@[x0, x1, ror #2]", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("8@[x0, 8]!", 8, MarkPlace::Unknown(NoPlace::Form)),
        ("4@[x0, #:lo12:counter]", 4, MarkPlace::Unknown(NoPlace::Form)),
        ("8@[sp, x1, lsl 2, 8]", 8, MarkPlace::Unknown(NoPlace::Form)),
    ] {
        assert_eq!(one(text, Machine::Aarch64), (bytes, place), "{text}");
    }
}

#[test]
fn what_cannot_be_read_keeps_its_number() {
    let all = mark_arguments("4@%edi what 8@[sp, 8] 8@$1", Machine::X86_64);
    let known: Vec<bool> = all.iter().map(|one| !matches!(one.place, MarkPlace::Unknown(_))).collect();
    assert_eq!(known, [true, false, false, true]);
    assert_eq!(mark_arguments(" ", Machine::X86_64), []);
    assert_eq!(mark_arguments("8@[sp, 8] 4@w1", Machine::Aarch64).len(), 2);
}

proptest! {
    #[test]
    fn any_text_is_read(text in "[-$%@()\\[\\],+ 0-9a-z.:]{0,60}") {
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let all = mark_arguments(&text, machine);
            prop_assert!(all.len() <= MARK_ARGUMENTS);
            for one in all {
                prop_assert!(matches!(one.bytes, 1 | 2 | 4 | 8));
                match one.place {
                    MarkPlace::Register(nth) => prop_assert!(nth < 32),
                    MarkPlace::Vector(nth) => prop_assert!(nth < 32 && one.class == MarkClass::Float),
                    MarkPlace::Memory { base, index, .. } => {
                        let most = if machine == Machine::X86_64 { 16 } else { 31 };
                        prop_assert!(base < 32 && index.is_none_or(|one| one.register < most && one.scale < 4));
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read(size in prop::sample::select(vec![-8i8, -4, -2, -1, 1, 2, 4, 8]), nth in 8u8..16, index in 9u8..16, scale in 0u8..4, offset: i32, constant: i64) {
        let name = |n: u8| format!("%r{n}");
        let all = [
            (name(nth), MarkPlace::Register(nth)),
            (format!("${constant}"), MarkPlace::Constant(constant)),
            (format!("{offset}({})", name(nth)), memory(nth, None, offset)),
            (format!("{offset}({},{},{})", name(nth), name(index), 1 << scale), memory(nth, Some((index, scale)), offset)),
        ];
        let text: Vec<String> = all.iter().map(|(operand, _)| format!("{size}@{operand}")).collect();
        let read = mark_arguments(&text.join(" "), Machine::X86_64);
        prop_assert_eq!(read.len(), all.len());
        for (read, (_, place)) in read.into_iter().zip(all) {
            let class = if size < 0 { MarkClass::Signed } else { MarkClass::Unsigned };
            prop_assert_eq!(read, MarkArgument { bytes: size.unsigned_abs(), class, place });
        }
    }
}
