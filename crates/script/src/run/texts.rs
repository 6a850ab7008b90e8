//! Functions of texts and of addresses of networks.
//!
//! In: bytes and numbers. Out: texts and numbers. Does not: read memory.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A text up to its end.
pub(super) fn whole(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    &text[..end]
}

/// 0 if the first `count` bytes of two texts are equal, else 1. The end of a text is a byte too.
pub(super) fn differ(a: &[u8], b: &[u8], count: i64) -> i64 {
    let count = usize::try_from(count).unwrap_or(0);
    let byte = |text: &[u8], at: usize| text.get(at).copied().unwrap_or(0);
    for at in 0..count.min(a.len().max(b.len()) + 1) {
        if byte(a, at) != byte(b, at) {
            return 1;
        }
        if byte(a, at) == 0 {
            break;
        }
    }
    0
}

/// Where a text contains another; -1 if it does not.
pub(super) fn position(text: &[u8], part: &[u8]) -> i64 {
    if part.is_empty() {
        return 0;
    }
    text.windows(part.len()).position(|window| window == part).map_or(-1, |at| at as i64)
}

/// An address of the network. Four bytes are one of version 4, sixteen one of version 6.
pub(super) fn address(bytes: &[u8]) -> String {
    if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        return Ipv6Addr::from(bytes).to_string();
    }
    let mut four = [0; 4];
    for (to, from) in four.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ipv4Addr::from(four).to_string()
}

/// An address of a network card.
pub(super) fn mac(bytes: &[u8]) -> String {
    let part = |index: usize| format!("{:02X}", bytes.get(index).copied().unwrap_or(0));
    (0..6).map(part).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::{address, differ, mac, position};

    #[test]
    fn texts_are_compared_up_to_their_ends() {
        assert_eq!([differ(b"hello", b"hell", 4), differ(b"hello", b"hell", 5)], [0, 1]);
        assert_eq!(
            [differ(b"one", b"one ", 4), differ(b"wow", b"wow", 99), differ(b"a", b"b", 0)],
            [1, 0, 0]
        );
    }

    #[test]
    fn parts_are_found_where_they_are() {
        assert_eq!([position(b"ababac", b"abac"), position(b"", b""), position(b"", b"a")], [2, 0, -1]);
    }

    #[test]
    fn addresses_have_their_usual_forms() {
        assert_eq!(address(&[127, 0, 0, 1]), "127.0.0.1");
        assert_eq!(address(&1u128.to_be_bytes()), "::1");
        assert_eq!(mac(&[5, 4, 3, 2, 1, 255]), "05:04:03:02:01:FF");
    }
}
