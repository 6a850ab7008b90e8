//! The modules of A64 as a crate without `std` and without an allocator; the test is that this builds.

#![no_std]

#[path = "../src/aarch64/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "a library's modules in a test's crate")]
mod aarch64;

#[path = "../src/effect.rs"]
#[allow(dead_code, unreachable_pub, reason = "as above")]
mod effect;

#[path = "../src/origin.rs"]
#[allow(dead_code, unreachable_pub, reason = "as above")]
mod origin;

use aarch64::{Op, Verdict, decode};

#[test]
fn a_push_is_decoded_without_std() {
    assert!(matches!(decode(0xA9BF_7BFD), Verdict::Simulate(Op::PushFrame { offset: -16 })));
}
