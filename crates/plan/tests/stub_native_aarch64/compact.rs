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

/// Texts are as long as they are, or say why they are not there; state is kept.
#[test]
fn word_1_texts_are_as_long_as_they_are() {
    use trapline_plan::Unwind;
    use trapline_plan::aarch64::stub::{Code as _, Traced, trace};
    use trapline_record::calls::{Behind, FAILED};
    let texts: [&[u8]; 3] = [b"", b"a text", b"a text with more bytes than one word has"];
    // SAFETY: there are no vectors, so nothing is read or written.
    let tried =
        unsafe { libc::process_vm_readv(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    let missing = tried == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS);
    if missing {
        println!("SKIP what is read: the emulator does not have process_vm_readv");
    }
    for machine in machines(by_hand).into_iter().filter(|machine| machine.rseq.is_some()) {
        on_cpu(1);
        let mut bench = Bench::new(machine, 1024, WORD, kept());
        bench.rings.area.most = 40 * WORD;
        let traced = Traced { texts: 0b111, ended: 0b111, ..bench.traced(Unwind::None) };
        let pending = trace(bench.room.next(), traced, RecordKind::Entry, 3);
        let code = bench.room.put(&pending.finish(&[RET], None).expect("in reach"));
        let mut whole = [[0_u8; 64]; 3];
        for (whole, text) in whole.iter_mut().zip(texts) {
            whole[..text.len()].copy_from_slice(text);
            whole[text.len() + 1..].fill(b'x');
        }
        for shift in 0..3 {
            let nth = |n: usize| (n + shift) % 3;
            let at: [u64; 3] = std::array::from_fn(|n| whole[nth(n)].as_ptr() as u64);
            // SAFETY: a function of this type that returns its first argument.
            let function: extern "C" fn(u64, u64, u64) -> u64 =
                unsafe { std::mem::transmute(code as *const ()) };
            assert_eq!(function(at[0], at[1], at[2]), at[0]);
            let (area, mut tails) = (bench.rings.area, std::mem::take(&mut bench.tails));
            let ahead = area.words_ahead(bench.view(), 1, &mut tails[1]).expect("a head that can be");
            let mut bytes = vec![0; ahead as usize * 8];
            area.take_words_of(bench.view(), 1, &mut tails[1], &mut bytes);
            bench.tails = tails;
            // Behind a context, if it is the first record, and the record itself.
            let from = if shift == 0 { 2 } else { 1 };
            let words = &bytes.as_chunks::<8>().0[from..];
            let values: Vec<u64> = words[..3].iter().map(|word| u64::from_le_bytes(*word)).collect();
            assert_eq!(values, at);
            let mut rest = &words[3..];
            for n in 0..3 {
                let len = Behind { fixed: 0, texts: 1 }.len(rest).expect("a text");
                let (text, behind) = rest.split_at(len);
                rest = behind;
                let (text, expected) = (text.concat(), texts[nth(n)]);
                if missing {
                    assert_eq!((len, u64::from(text[0])), (1, FAILED));
                    assert_eq!(text[1..5], (-libc::ENOSYS).to_le_bytes());
                } else {
                    assert_eq!((usize::from(text[0]), &text[1..=expected.len()]), (expected.len(), expected));
                }
            }
            assert!(rest.is_empty(), "{rest:?}");
        }
        for flags in 0..16 {
            let (before, after) = changes(code, flags);
            assert_eq!(after, before, "{machine:?}");
        }
    }
}
