//! Errors as C sees them: numbers, texts, and what the last failure in a thread was.

use super::{trapline_error_text, trapline_last_errno, trapline_last_error};
use crate::error::{Error, Fault, TEXTS, guard};
use std::ffi::CStr;

fn text(at: *const std::ffi::c_char) -> String {
    // SAFETY: texts of this crate end in a zero.
    unsafe { CStr::from_ptr(at) }.to_str().expect("UTF-8").to_owned()
}

#[test]
fn every_error_has_a_number_and_a_text_of_its_own() {
    for (n, (error, words)) in TEXTS.iter().enumerate() {
        assert_eq!(text(trapline_error_text(*error as i32)).as_bytes(), words.to_bytes());
        assert!(TEXTS[..n].iter().all(|(other, text)| (*other as i32) < *error as i32 && text != words));
    }
    assert_eq!(text(trapline_error_text(-5)), "an error of a later version");
    // The header lists as many as there are texts.
    let listed = include_str!("../../include/trapline.h").lines();
    let listed = listed.filter(|line| line.trim_start().starts_with("TRAPLINE_ERROR_")).count();
    assert_eq!(listed, TEXTS.len());
}

#[test]
fn a_panic_is_an_error_and_the_last_failure_is_reported() {
    assert_eq!(guard(|| Ok(())), Error::None);
    assert_eq!(guard(|| Err(Fault::new(Error::NoRow, "row\x005"))), Error::NoRow);
    assert_eq!((text(trapline_last_error()).as_str(), trapline_last_errno()), ("row 5", 0));
    assert_eq!(guard(|| panic!("never shown")), Error::Panic);
    assert!(text(trapline_last_error()).contains("fault of the library"));
    std::thread::spawn(|| assert_eq!(text(trapline_last_error()), "")).join().expect("its own");
    assert_eq!(guard(|| Err(trapline::inside::Error::InsideHandler.into())), Error::InsideHandler);
    assert_eq!(trapline_last_errno(), libc::EDEADLK);
}
