//! WORD-1, LOSS-2 and SAFE-2 for words of compact rings, as far as this machine goes: restartable sequences are run by hand.

use trapline_plan::ThreadId;
use trapline_record::calls::{CallRecord, Found, Reading, WORD};
use trapline_record::ring::RecordKind;

use super::records::{Bench, PROBE, kept, machines, on_cpu};
use super::{LINES, RET, by_hand, changes};

fn take(bench: &mut Bench, readings: &mut [Reading]) -> Vec<CallRecord> {
    let (area, mut tails, mut records) = (bench.rings.area, std::mem::take(&mut bench.tails), Vec::new());
    for (ring, (tail, reading)) in (0..).zip(tails.iter_mut().zip(readings)) {
        let view = bench.view();
        let ahead = area.words_ahead(view, ring, tail).expect("a head that can be");
        let mut bytes = vec![0; ahead as usize * 8];
        area.take_words_of(view, ring, tail, &mut bytes);
        for word in bytes.chunks_exact(8) {
            match reading.next(u64::from_le_bytes(word.try_into().expect("eight")), 0) {
                Found::Record(record) => records.push(record),
                Found::Context => {}
                Found::Nothing => panic!("{word:x?} is nothing"),
            }
        }
    }
    bench.tails = tails;
    records
}

fn ticks() -> u64 {
    let now: u64;
    // SAFETY: the instruction reads a register.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) now) };
    now
}

#[test]
fn word_1_words_say_what_was_there_and_state_is_kept() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_some()) {
        let id = kept();
        let ThreadId::At(_) = id else { panic!("a number that is kept") };
        for kind in [RecordKind::Entry, RecordKind::Return, RecordKind::Tail] {
            let mut bench = Bench::new(machine, 64, WORD, id);
            let code = bench.code(kind, 0, &[RET]);
            let mut readings = vec![Reading::START; bench.tails.len()];
            for (round, cpu) in (0..16).zip([2, 2, 2, 0, 1, 1].into_iter().cycle()) {
                on_cpu(cpu);
                let start = ticks();
                let (before, after) = changes(code, round);
                assert_eq!(after, before, "{machine:?} {kind:?}");
                let [record] = take(&mut bench, &mut readings)[..] else { panic!("one") };
                // SAFETY: the call has no arguments.
                let tid = unsafe { libc::gettid() }.cast_unsigned();
                assert_eq!((record.kind, record.probe, record.tid), (kind, PROBE, tid));
                assert!((start..=ticks()).contains(&record.ticks), "{record:?}");
            }
            assert_eq!(bench.dropped(), 0);
        }
    }
}

#[test]
fn loss_2_what_finds_no_room_is_counted() {
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_some()) {
        for cpu in [2, u32::MAX, 4000] {
            on_cpu(cpu);
            let mut bench = Bench::new(machine, 64, WORD, kept());
            let code = bench.code(RecordKind::Entry, 0, &[RET]);
            let mut readings = vec![Reading::START; bench.tails.len()];
            for flags in 0..16 {
                let (before, after) = changes(code, flags);
                assert_eq!(after, before, "{machine:?} {cpu}");
            }
            let written = take(&mut bench, &mut readings).len() as u64;
            // Of eight words one is a context's, and the last one stays free.
            assert_eq!(written, if cpu == 2 { 6 } else { 0 });
            assert_eq!(bench.dropped(), 16 - written);
            assert!(LINES > 3);
        }
    }
}
