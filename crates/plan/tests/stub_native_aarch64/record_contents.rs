//! What records hold, and which hits have one: filters, floats, texts.

use trapline_plan::aarch64::stub::{Code as _, Traced, trace};
use trapline_plan::filter::{Int, Known, Symbol, TargetFilter, parse};
use trapline_plan::{Floats, Results, ThreadId, Unwind};
use trapline_record::ring::{Record, RecordKind};

use super::records::{Bench, kept, machines, on_cpu, view};
use super::{ADD, RET, by_hand, call, changes};

/// A filter comes before all that: a record of each hit that passes, nothing of one that does not, and each
/// is counted.
#[test]
fn a_filter_decides_what_is_recorded() {
    let names = [("arg1".to_owned(), Symbol::Known(Known::Argument(1, Int { bits: 32, signed: true })))];
    for machine in machines(by_hand) {
        for (cpu, sample) in [(2, 1), (2, 4), (u32::MAX, 1), (u32::MAX, 4)] {
            on_cpu(cpu);
            let mut bench = Bench::new(machine, 2048, 64, kept());
            let condition = Some(parse("arg1 % 3 == 1", &names).expect("reads"));
            let filter = TargetFilter { condition, sample, ..TargetFilter::default() };
            let code = bench.passing(&filter, &[ADD, RET]);
            let of = |n: u64| n % 3 == 1;
            (0..90).for_each(|n| assert_eq!(call(code, n, n), 2 * n));
            let written: Vec<u64> = bench.take().iter().map(|record| record.values[0]).collect();
            assert!(written.iter().all(|&n| of(n)), "{machine:?} {cpu} {sample}: {written:?}");
            let (dropped, filtered) = (bench.dropped(), bench.filtered());
            let what = (written.len() as u64, dropped, filtered);
            // A sample begins with the first hit that passes.
            let passing = 30_u64.div_ceil(sample.into());
            let expected = match (machine.rseq, sample) {
                // Without an area there is neither a ring nor a sample.
                (Some(_), 1) if cpu == u32::MAX => (0, 30, 60),
                (Some(_), _) if cpu == u32::MAX => (0, 0, 90),
                _ => (passing, 0, 90 - passing),
            };
            assert_eq!(what, expected, "{machine:?} {cpu} {sample}");
            let stays = bench.passing(&filter, &[RET]);
            for flags in 0..16_u64 {
                let (before, after) = changes(stays, flags);
                assert_eq!(after, before, "{machine:?} {cpu} {sample}");
            }
            let sum = bench.take().len() as u64 + bench.dropped() + bench.filtered();
            assert_eq!(sum, what.1 + what.2 + 16, "{machine:?} {cpu} {sample}");
        }
    }
}

/// Floats are the low halves of the vectors that hold them: behind integers at an entry, in the place of the
/// value at a return.
#[test]
fn floats_are_what_vectors_hold() {
    type Function = extern "C" fn(f64, f64, f64, f64, f64, f64, f64, f64, u64, u64) -> f64;
    for machine in machines(by_hand) {
        on_cpu(2);
        for (kind, floats, values, slot) in [
            (RecordKind::Entry, Floats { arguments: 0b1111_1111, results: Results::FLOAT }, 2, 128),
            (RecordKind::Entry, Floats { arguments: 0b101, results: Results::default() }, 2, 64),
            (RecordKind::Return, Floats { arguments: 0b101, results: Results::FLOAT }, 2, 64),
            (RecordKind::Return, Floats { arguments: 0b101, results: Results::default() }, 2, 64),
            (RecordKind::Return, Floats { arguments: 0, results: Results { general: 2, vectors: 3 } }, 2, 64),
            (RecordKind::Return, Floats { arguments: 0, results: Results { general: 0, vectors: 4 } }, 2, 64),
        ] {
            let mut bench = Bench::new(machine, 2 * slot, slot, kept());
            let traced = Traced { floats, ..bench.traced(Unwind::None) };
            let pending = trace(bench.room.next(), traced, kind, values);
            let code = bench.room.put(&pending.finish(&[RET], None).expect("in reach"));
            // SAFETY: a function of this type that returns its first float.
            let function: Function = unsafe { std::mem::transmute(code as *const ()) };
            assert_eq!(function(0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 40, 41), 0.5);
            let [record] = bench.take()[..] else { panic!("one") };
            let all: Vec<u64> = (0..8)
                .filter(|n| floats.arguments >> n & 1 == 1)
                .map(|n| (f64::from(n) + 0.5).to_bits())
                .collect();
            let expected = match kind {
                RecordKind::Entry => [&[40, 41], &all[..]].concat(),
                _ => {
                    let Results { general, vectors } = floats.results;
                    let vectors = (0..vectors).map(|n| (f64::from(n) + 0.5).to_bits());
                    [40, 41].into_iter().take(general.into()).chain(vectors).collect()
                }
            };
            assert_eq!(record.values[..expected.len()], expected, "{kind:?} {floats:?} {machine:?}");
        }
    }
}

/// TXT-1, TXT-2: what could be read is there, whatever the pointers are. No register, flag or word of the
/// stack has changed.
#[test]
fn texts_are_what_could_be_read() {
    use trapline_record::ring::{TEXT_BYTES, TEXT_WORDS};
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping of two pages.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    let page = page as u64;
    // SAFETY: the second page of our own mapping.
    assert_eq!(unsafe { libc::mprotect((page + 4096) as *mut _, 4096, libc::PROT_NONE) }, 0);
    // SAFETY: the first page of our own mapping.
    let bytes = unsafe { std::slice::from_raw_parts_mut(page as *mut u8, 4096) };
    bytes.iter_mut().zip((b'a'..=b'z').cycle()).for_each(|(byte, letter)| *byte = letter);
    let places = [
        (page, 64),
        (page + 4096 - 64, 64),
        (page + 4096 - 5, 5),
        (page + 4096, -14),
        (0, -14),
        (u64::MAX, -14),
    ];
    // SAFETY: there are no vectors, so nothing is read or written.
    let tried =
        unsafe { libc::process_vm_readv(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    let missing = tried == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS);
    if missing {
        println!(
            "SKIP what is read: the emulator does not have process_vm_readv; see cargo xtask arm64-system"
        );
    }
    for machine in machines(by_hand) {
        for id in [kept(), ThreadId::Call] {
            on_cpu(1);
            for texts in [0b1, 0b10_0000, 0b11_1111] {
                let mut bench = Bench::new(machine, 4096, 1024, id);
                let traced = Traced { texts, ..bench.traced(Unwind::None) };
                let pending = trace(bench.room.next(), traced, RecordKind::Entry, 6);
                let code = bench.room.put(&pending.finish(&[RET], None).expect("in reach"));
                for shift in 0..places.len() {
                    let at = |n: usize| places[(n + shift) % places.len()];
                    let six: [u64; 6] = std::array::from_fn(|n| at(n).0);
                    // SAFETY: a function of this type that returns its first argument.
                    let function: extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64 =
                        unsafe { std::mem::transmute(code as *const ()) };
                    assert_eq!(function(six[0], six[1], six[2], six[3], six[4], six[5]), six[0]);
                    let (rings, mut seen) = (bench.rings, 0);
                    for (ring, tail) in (0..).zip(&mut bench.tails) {
                        let each = |record: &Record, word: &dyn Fn(u64) -> u64| {
                            seen += 1;
                            assert_eq!(record.values[..6], six);
                            for (nth, n) in (0..6).filter(|n| texts >> n & 1 == 1).enumerate() {
                                let word = |past: u64| word((nth * TEXT_WORDS) as u64 + past);
                                let (address, expected) = at(n);
                                let expected = if missing { -i64::from(libc::ENOSYS) } else { expected };
                                assert_eq!(word(0).cast_signed(), expected, "{address:#x}");
                                let copied =
                                    (1..=(TEXT_BYTES / 8) as u64).flat_map(|n| word(n).to_le_bytes());
                                let from = (address - page) as usize;
                                let long = usize::try_from(expected).unwrap_or(0);
                                assert!(
                                    copied.take(long).eq(bytes[from.min(4096)..].iter().copied().take(long))
                                );
                            }
                        };
                        rings
                            .area
                            .take_with_texts(view(rings), ring, tail, each)
                            .expect("a head that can be");
                    }
                    assert_eq!(seen, 1);
                }
                for flags in 0..16_u64 {
                    let (before, after) = changes(code, flags);
                    assert_eq!(after, before, "{machine:?} {id:?} {texts:#b}");
                }
            }
        }
    }
}
