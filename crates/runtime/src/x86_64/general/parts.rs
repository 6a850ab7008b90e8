//! Steps that entries, exits and the code of return trampolines share, as text for `naked_asm`, and the
//! layouts that they rely on.
//!
//! In: registers by name. Out: instructions. Each step says where it jumps to when it cannot be taken.
//! Does not: run.
//!
//! [`general`](super) explains the `.p2align` before jumps, calls and returns.
//!
//! A pool's steps are between the labels 72 and 73 of a restartable sequence; label 77 is its descriptor, and
//! 74 is where the kernel continues it after an abort ([`sequence`]).
//!
//! ```text
//!   own_line       thread = fs:0;  line = lines + (((thread · SPREAD) >> (SPREAD_SHIFT - LINE_SHIFT)) & mask)
//!   hint_place     at = places + (((sp · HINT_SPREAD) >> PLACE_SHIFT) & place_mask)
//!   own_magazine   [area + 8] = descriptor;  magazine = magazines + stride · [area + 4], the CPU
//!   put            [magazine] = [magazine] << BITS | number                    number: of an instance, + 1
//!   an instance    ends at objects + number · OBJECT
//!   sealed         turn = (turn + 1) mod 2^TURN_BITS
//!                  [rsp] = [line + active] = rsp << (TURN_BITS - FRAME_ALIGN) | turn
//!   leave          [line + active] = [rsp] mod 2^TURN_BITS
//! ```

use crate::consumer::Hit;
use crate::engine::GROUP_LEN;
use crate::epoch::Line;
use crate::instances::Instance;

/// Answer: nothing was done; call `dispatch::entry` with the extended state saved.
pub const WITH_STATE: u64 = 3;

/// Stack frame:
///
/// ```text
///   rsp                 the seal: its address names the frame; one word unused
///   rsp + HIT    16     the hit, 24 bytes
///   rsp + SP     40     the program's stack pointer
///   rsp + KEPT   48     what else is kept of a call, 32 bytes; one word unused
///   rsp + ROOM   88     return address
/// ```
pub(super) const HIT: usize = 16;
pub(super) const SP: usize = HIT + size_of::<Hit>();
pub(super) const KEPT: usize = SP + 8;
/// Length of the frame in bytes: with the return address, a multiple of 16.
pub(super) const ROOM: usize = 88;
/// Logarithm of a line's length.
pub(super) const LINE_SHIFT: u32 = size_of::<Line>().trailing_zeros();
/// Offsets in `struct rseq` of the CPU and of the pointer to the sequence in progress.
pub(super) const AREA_CPU: usize = 4;
pub(super) const AREA_SEQUENCE: usize = 8;
/// Length of an instance in bytes. Magazines and hints contain an instance's number + 1, so that times this
/// length leads to the instance's end.
pub(super) const OBJECT: usize = size_of::<Instance>();
const _: () = assert!(KEPT + 4 * 8 <= ROOM && size_of::<Line>() == 128 && GROUP_LEN.is_power_of_two());

/// `naked_asm` with the constants that the steps name.
macro_rules! general_asm {
    ($($all:tt)*) => {
        core::arch::naked_asm!(
            // Mentions every constant, since not every function uses every step.
            "# {engine} {row} {words} {consumers} {only_returns} {arms} {removal} {instances} {mask} {lines} {places} {place_mask} {rseq} {trampolines} {owner} {active}",
            "# {turns} {frame} {spread} {shift} {hint_spread} {hint_shift} {place_shift} {bound} {keeps} {kept_site} {hint_bits} {no_consumer} {magazines} {stride} {cpus} {objects} {count} {word}",
            "# {limit} {bits} {sequence} {cpu} {object} {object_shift} {sp} {site} {thread} {calls} {len} {session_id} {entry} {ret} {session} {returns} {data}",
            "# {rip} {rsp} {hit} {hit_regs} {hit_site} {hit_cookie} {own} {kept} {room} {elsewhere} {other_stack} {with_state}",
            $($all)*
            engine = const core::mem::offset_of!($crate::probe::Probe, engine),
            row = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, row),
            words = const core::mem::offset_of!($crate::probe::Probe, words),
            consumers = const core::mem::offset_of!($crate::probe::Probe, consumers) + core::mem::offset_of!($crate::probe::Consumers, list),
            only_returns = const core::mem::offset_of!($crate::probe::Probe, consumers) + core::mem::offset_of!($crate::probe::Consumers, only_returns),
            arms = const core::mem::offset_of!($crate::probe::Probe, consumers) + core::mem::offset_of!($crate::probe::Consumers, arms),
            removal = const core::mem::offset_of!($crate::probe::Probe, removal),
            instances = const core::mem::offset_of!($crate::probe::Probe, instances),
            mask = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, mask),
            lines = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, lines),
            places = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, places),
            place_mask = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, place_mask),
            bound = const core::mem::offset_of!($crate::instances::KeptPlace, bound),
            keeps = const core::mem::offset_of!($crate::instances::KeptPlace, keeps),
            kept_site = const core::mem::offset_of!($crate::instances::KeptPlace, site),
            place_shift = const $crate::instances::kept_place::PLACE_SHIFT,
            rseq = const core::mem::offset_of!($crate::engine::Engine, raw) + core::mem::offset_of!($crate::engine::Raw, rseq),
            trampolines = const core::mem::offset_of!($crate::engine::Engine, trampolines),
            owner = const core::mem::offset_of!($crate::epoch::Line, owner),
            active = const core::mem::offset_of!($crate::epoch::Line, active),
            turns = const 1_u64 << $crate::epoch::TURN_BITS,
            frame = const $crate::epoch::TURN_BITS - $crate::epoch::FRAME_ALIGN,
            spread = const $crate::epoch::SPREAD,
            shift = const $crate::epoch::SPREAD_SHIFT - super::parts::LINE_SHIFT,
            hint_spread = const $crate::instances::hints::HINT_SPREAD,
            hint_shift = const $crate::instances::hints::HINT_SHIFT,
            hint_bits = const $crate::instances::hints::NUMBER_BITS,
            no_consumer = const $crate::instances::hints::NO_CONSUMER,
            magazines = const core::mem::offset_of!($crate::instances::of_probe::Pool, raw) + core::mem::offset_of!($crate::pool::Raw, magazines),
            stride = const core::mem::offset_of!($crate::instances::of_probe::Pool, raw) + core::mem::offset_of!($crate::pool::Raw, stride),
            cpus = const core::mem::offset_of!($crate::instances::of_probe::Pool, raw) + core::mem::offset_of!($crate::pool::Raw, cpus),
            objects = const core::mem::offset_of!($crate::instances::of_probe::Pool, raw) + core::mem::offset_of!($crate::pool::Raw, objects),
            count = const core::mem::offset_of!($crate::instances::of_probe::Pool, raw) + core::mem::offset_of!($crate::pool::Raw, count),
            word = const core::mem::offset_of!($crate::pool::magazine::Magazine, word),
            limit = const core::mem::offset_of!($crate::pool::magazine::Magazine, limit),
            bits = const $crate::pool::magazine::BITS,
            sequence = const super::parts::AREA_SEQUENCE,
            cpu = const super::parts::AREA_CPU,
            object = const super::parts::OBJECT,
            object_shift = const super::parts::OBJECT.trailing_zeros(),
            sp = const core::mem::offset_of!($crate::instances::Instance, sp),
            site = const core::mem::offset_of!($crate::instances::Instance, site),
            thread = const core::mem::offset_of!($crate::instances::Instance, thread),
            calls = const core::mem::offset_of!($crate::instances::Instance, calls),
            len = const core::mem::offset_of!($crate::instances::Instance, len),
            session_id = const core::mem::offset_of!($crate::instances::Instance, sessions),
            entry = const core::mem::offset_of!($crate::probe::List, alone) + core::mem::offset_of!($crate::probe::Alone, entry),
            ret = const core::mem::offset_of!($crate::probe::List, alone) + core::mem::offset_of!($crate::probe::Alone, ret),
            session = const core::mem::offset_of!($crate::probe::List, alone) + core::mem::offset_of!($crate::probe::Alone, session),
            returns = const core::mem::offset_of!($crate::probe::List, alone) + core::mem::offset_of!($crate::probe::Alone, returns),
            data = const core::mem::offset_of!($crate::probe::List, alone) + core::mem::offset_of!($crate::probe::Alone, data),
            rip = const core::mem::offset_of!(trapline_insn::x86_64::Regs, rip),
            rsp = const core::mem::offset_of!(trapline_insn::x86_64::Regs, gpr) + trapline_insn::x86_64::Gpr::Rsp as usize * 8,
            hit = const super::parts::HIT,
            hit_regs = const super::parts::HIT + core::mem::offset_of!($crate::consumer::Hit, regs),
            hit_site = const super::parts::HIT + core::mem::offset_of!($crate::consumer::Hit, site),
            hit_cookie = const super::parts::HIT + core::mem::offset_of!($crate::consumer::Hit, cookie),
            own = const super::parts::SP,
            kept = const super::parts::KEPT,
            room = const super::parts::ROOM,
            elsewhere = const $crate::dispatch::GoOn::Elsewhere as u64,
            other_stack = const $crate::dispatch::GoOn::OtherStack as u64,
            with_state = const super::parts::WITH_STATE,
        )
    };
}

/// The descriptor of a pool's sequence, from four labels: its own, start, end, and where the kernel continues
/// after an abort.
macro_rules! sequence {
    ($its:literal, $start:literal, $end:literal, $left:literal) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"; .balign 32; ", $its, ": .long 0, 0; .quad ", $start, "f, ", $end, "f - ", $start, "f, ", $left,
            "f; .popsection"
        )
    };
}

/// Where the kernel continues after an abort; jumps on to `to`.
macro_rules! left {
    ($left:literal, $to:literal) => {
        concat!(
            // An instruction that is never executed (ud1). It contains the signature, which the kernel
            // requires there.
            ".pushsection .text.trapline_rseq_abort, \"ax\"; .byte 0x0f, 0xb9, 0x3d; .long 0x53053053; ",
            $left, ": jmp ", $to, "; .popsection"
        )
    };
}

/// D1: finds the line of the thread, if it is at its first place; else jumps to 9. `thread` = thread pointer,
/// `line` = its line. `form` is an assembler prefix for the comparison with the owner.
macro_rules! own_line {
    ($engine:literal, $line:literal, $thread:literal) => {
        own_line!($engine, $line, $thread, "")
    };
    ($engine:literal, $line:literal, $thread:literal, $form:literal) => {
        concat!(
            "mov ", $thread, ", fs:0; imul ", $line, ", ", $thread, ", {spread}; shr ", $line, ", {shift}; ",
            "and ", $line, ", [", $engine, " + {mask}]; add ", $line, ", [", $engine, " + {lines}]; ",
            ".p2align 5,,13; ", $form, "cmp [", $line, " + {owner}], ", $thread, "; jne 9f"
        )
    };
}

/// `at` = the place of the stack pointer `sp`; the hint is its first word.
macro_rules! hint_place {
    ($engine:literal, $sp:literal, $at:literal) => {
        concat!(
            "imul ", $at, ", ", $sp, ", {hint_spread}; shr ", $at, ", {place_shift}; ", "and ", $at, ", [", $engine, " + {place_mask}]; add ", $at,
            ", [", $engine, " + {places}]"
        )
    };
}

/// `magazine` = the one of the CPU where this runs, in a sequence that begins here; jumps to `none` if there
/// is none. `low` is the low half of the register `magazine`.
macro_rules! own_magazine {
    ($pool:literal, $area:literal, $magazine:literal, $low:literal, $its:literal, $start:literal, $none:literal) => {
        concat!(
            "lea ", $magazine, ", [rip + ", $its, "b]; mov [", $area, " + {sequence}], ", $magazine, "; ",
            $start, ": mov ", $low, ", [", $area, " + {cpu}]; .p2align 5,,13; cmp ", $magazine, ", [", $pool, " + {cpus}]; jae ", $none, "; ",
            "imul ", $magazine, ", [", $pool, " + {stride}]; add ", $magazine, ", [", $pool, " + {magazines}]"
        )
    };
}

/// P1, P2: puts the object with this number + 1 into the own magazine; jumps to `none` if there is no room.
/// Overwrites `magazine` and `area`.
macro_rules! put {
    ($pool:literal, $area:literal, $number:literal, $magazine:literal, $low:literal, $its:literal, $start:literal, $end:literal, $none:literal) => {
        concat!(
            own_magazine!($pool, $area, $magazine, $low, $its, $start, $none),
            "; ", "mov ", $area, ", [", $magazine, " + {word}]; .p2align 5,,13; cmp ", $area, ", [", $magazine, " + {limit}]; jae ", $none, "; ",
            "shl ", $area, ", {bits}; add ", $area, ", ", $number, "; mov [", $magazine, " + {word}], ", $area, "; ",
            $end, ":"
        )
    };
}

/// A4 without key and cookies, for the instance that ends at `end`. Stores only values that differ, since a
/// CPU does one store a cycle. These stores are out of line ([`begun_anew`]), since a jump that is taken
/// costs a cycle as well.
macro_rules! begun {
    ($end:literal, $site:literal, $spoilt:literal) => {
        concat!(
            ".p2align 5,,13; cmp [", $end, " + {site} - {object}], ", $site, "; jne 44f; 64: mov ", $spoilt, ", fs:0; ",
            ".p2align 5,,13; cmp [", $end, " + {thread} - {object}], ", $spoilt, "; jne 45f; ",
            "65: cmp qword ptr [", $end, " + {len} - {object}], 0; .p2align 5,,6; jne 46f; ",
            "66: add qword ptr [", $end, " + {calls} - {object}], 1"
        )
    };
}

/// The out-of-line part of [`begun`], with the same arguments.
macro_rules! begun_anew {
    ($end:literal, $site:literal, $spoilt:literal) => {
        concat!(
            "44: mov [", $end, " + {site} - {object}], ", $site, "; jmp 64b; ",
            "45: mov [", $end, " + {thread} - {object}], ", $spoilt, "; jmp 65b; ",
            "46: mov qword ptr [", $end, " + {len} - {object}], 0; jmp 66b"
        )
    };
}

/// R2 with the seal, and `room` bytes of stack; `turn` is from R1. Overwrites `turn` and `word`.
macro_rules! enter {
    ($line:literal, $turn:literal, $low:literal, $word:literal, $room:literal) => {
        concat!("sub rsp, ", $room, "; ", sealed!($line, $turn, $low, $word))
    };
}

/// [`enter`] when there is room on the stack already.
macro_rules! sealed {
    ($line:literal, $turn:literal, $low:literal, $word:literal) => {
        concat!(
            "inc ", $low, "; and ", $low, ", {turns} - 1; mov ", $word, ", rsp; shl ", $word, ", {frame}; ",
            "or ", $word, ", ", $turn, "; mov [rsp], ", $word, "; mov [", $line, " + {active}], ", $word
        )
    };
}

/// R5, with the turn that the seal holds; r13 = line. Overwrites rsi.
macro_rules! leave {
    () => {
        "mov rsi, [rsp]; and esi, {turns} - 1; mov [r13 + {active}], rsi"
    };
}

/// D7: a `GoOn`, decided by comparing the stack pointer and the instruction pointer with the earlier ones.
/// Returns.
///
/// ```text
///   in    r14 = Regs, r12 = earlier rip, r15 = earlier rsp
///   eax   {elsewhere} if rip differs, else {other_stack} if rsp differs, else 0
///   out   rsp += ROOM;  uses rcx, flags
/// ```
macro_rules! go_on {
    () => {
        concat!(
            "xor eax, eax; mov rcx, [r14 + {rip}]; .p2align 5,,9; cmp rcx, r12; jne 52f; .p2align 5,,11; cmp [r14 + {rsp}], r15; jne 51f; ",
            "50: add rsp, {room}; .p2align 5,,1; ret; 51: mov eax, {other_stack}; jmp 50b; 52: mov eax, {elsewhere}; jmp 50b"
        )
    };
}

pub(super) use {
    begun, begun_anew, enter, general_asm, go_on, hint_place, leave, left, own_line, own_magazine, put, sealed,
    sequence,
};
