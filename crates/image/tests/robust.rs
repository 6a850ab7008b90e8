//! Broken files: the right error with its numbers, and neither a panic nor unbounded work on any mutation
//! (IMG-3).

mod common;

use common::{LIBSTDCXX, compile, present};
use proptest::prelude::{ProptestConfig, any, proptest};
use std::sync::OnceLock;
use trapline_image::{Bytes, DebugFile, DebugFiles, Image, ImageError, NoDebugFiles};

fn small() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| {
        let source = "#include <stdio.h>\nstatic inline int f(int x){return x*3;} int main(int c,char**v){return puts(v[0])+f(c);}";
        let path = compile("gcc", "small", source, &["-O2", "-g", "-gbtf", "-gz", "-Wl,-z,pack-relative-relocs"]);
        std::fs::read(path).expect("compiled")
    })
}

fn error(bytes: Vec<u8>) -> ImageError {
    Image::parse(bytes, &mut NoDebugFiles).expect_err("broken")
}

#[test]
fn errors_carry_their_numbers() {
    let with = |at: usize, byte: u8| {
        let mut bytes = small().to_vec();
        bytes[at] = byte;
        error(bytes)
    };
    assert_eq!(with(4, 1), ImageError::Not64(1));
    assert_eq!(with(5, 2), ImageError::NotLittleEndian(2));
    assert_eq!(with(18, 40), ImageError::Machine(40));
    assert_eq!(with(16, 1), ImageError::Type(1));
    assert_eq!(error(b"#!/bin/sh\n".to_vec()), ImageError::NotElf(b"#!/b".to_vec()));
    assert_eq!(error(Vec::new()), ImageError::NotElf(Vec::new()));
    let len = small().len();
    let cut = error(small()[..len - 100].to_vec());
    let table = "the section header table";
    assert_eq!(cut, ImageError::Truncated { what: table, needed: len as u64, have: len as u64 - 100 });
    assert!(matches!(error(small()[..60].to_vec()), ImageError::Truncated { needed: 64, have: 60, .. }));
}

/// Offers the broken file as its own debug file.
struct Same(Vec<u8>);

impl DebugFiles for Same {
    fn find(&mut self, _: &DebugFile) -> Option<Bytes> {
        Some(Bytes::from(self.0.clone()))
    }
}

/// Calls every query.
fn exercise(bytes: Vec<u8>) {
    let Ok(image) = Image::parse(bytes.clone(), &mut Same(bytes)) else { return };
    for pair in image.functions().windows(2) {
        assert!(pair[0].end() <= pair[1].start);
    }
    for function in image.functions() {
        std::hint::black_box((image.display_name(function, "x"), image.text(function.start, function.len)));
    }
    for pattern in ["*", "/a/", "no_such", "ns::f", "0x1000", "f@@V"] {
        drop(image.select(&pattern.parse().expect(pattern), "x"));
    }
    std::hint::black_box((
        image.usdt(),
        image.rseq_sections(),
        image.code_targets(),
        image.pointer_words("puts", image.entry()),
    ));
    let btf = image.btf();
    for function in ["f", "main", "puts"] {
        std::hint::black_box(btf.as_ref().and_then(|btf| btf.prototype(function)));
    }
    std::hint::black_box((image.imported().count(), image.needed(), image.soname(), image.go_g_in_tls()));
}

#[test]
fn the_whole_file_answers() {
    exercise(small().to_vec());
    for path in present(&[LIBSTDCXX]) {
        exercise(std::fs::read(path).expect(path));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_do_not_panic(changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..40)) {
        let mut bytes = small().to_vec();
        let len = bytes.len();
        for (at, byte) in changes {
            bytes[at as usize % len] = byte;
        }
        exercise(bytes);
    }

    #[test]
    fn mutated_tables_do_not_panic(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..12), words in any::<u64>()) {
        // A changed byte matters most in the headers and the section table.
        let mut bytes = small().to_vec();
        let table = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
        let len = bytes.len();
        for (at, byte) in changes {
            let at = at as usize;
            let at = if byte & 1 == 0 { 64 + at % 0x400 } else { table + at % (len - table) };
            bytes[at] = byte;
            if byte & 6 == 6 && at + 8 < len {
                bytes[at & !7..][..8].copy_from_slice(&words.to_le_bytes());
            }
        }
        exercise(bytes);
    }

    #[test]
    fn cut_files_do_not_panic(keep in any::<u32>()) {
        exercise(small()[..keep as usize % small().len()].to_vec());
    }

    #[test]
    fn probe_specifications_do_not_panic(text in ".{0,60}") {
        drop(text.parse::<trapline_image::ProbeSpec>());
    }
}
