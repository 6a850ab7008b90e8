//! Numbers as text, where millions are written each second.
//!
//! In: numbers. Out: their digits, at the end of a buffer, as `format!` would write them. Does not: allocate
//! anything but the buffer's growth.

const PAIRS: &[u8; 200] = b"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
/// Digits of the largest number.
const MOST: usize = 20;

/// As `{}`.
pub(super) fn decimal(out: &mut Vec<u8>, number: u64) {
    padded(out, number, 1, b' ');
}

/// As `{}` of a signed number.
pub(super) fn signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    decimal(out, number.unsigned_abs());
}

/// As `{:>width$}`, or as `{:0width$}` with `with` = `'0'`.
pub(super) fn padded(out: &mut Vec<u8>, mut number: u64, width: usize, with: u8) {
    let mut digits = [with; MOST];
    let mut at = MOST;
    while number >= 100 {
        at -= 2;
        let pair = (number % 100) as usize * 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        number /= 100;
    }
    let pair = number as usize * 2;
    at -= 1;
    digits[at] = PAIRS[pair + 1];
    if number >= 10 {
        at -= 1;
        digits[at] = PAIRS[pair];
    }
    out.extend_from_slice(&digits[at.min(MOST.saturating_sub(width))..]);
}

/// As `{:#x}`.
pub(super) fn hex(out: &mut Vec<u8>, number: u64) {
    let count = (64 - number.leading_zeros()).div_ceil(4).max(1);
    out.extend_from_slice(b"0x");
    out.extend((0..count).rev().map(|n| b"0123456789abcdef"[(number >> (4 * n) & 15) as usize]));
}

#[cfg(test)]
mod tests {
    fn shown(of: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        of(&mut out);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn digits_are_those_of_format() {
        let edges = [0, 9, 10, 99, 100, 101, 999, 1000, 12_345, u64::from(u32::MAX), u64::MAX / 7, u64::MAX];
        for number in edges {
            assert_eq!(shown(|out| super::decimal(out, number)), number.to_string());
            assert_eq!(shown(|out| super::hex(out, number)), format!("{number:#x}"));
            assert_eq!(shown(|out| super::padded(out, number, 7, b' ')), format!("{number:>7}"));
            assert_eq!(shown(|out| super::padded(out, number, 9, b'0')), format!("{number:09}"));
            for signed in [number.cast_signed(), number.cast_signed().wrapping_neg()] {
                assert_eq!(shown(|out| super::signed(out, signed)), signed.to_string());
            }
        }
    }
}
