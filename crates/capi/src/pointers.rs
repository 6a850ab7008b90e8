//! What pointers from C lead to: texts, arrays, handles, results, and structures that may grow. Each of these
//! begins with its size in bytes, as the caller's version knows it.
//!
//! In: a pointer. Out: what is there, as this version knows it, or what is wrong with it. Invariants: CAP-2:
//! the rule is that of the kernel's `copy_struct_from_user`. Fields that the caller's version lacks are zero
//! here; fields that this version lacks must be zero there. Does not: know what a structure means.
#![allow(unsafe_code, reason = "a pointer from C is read and written, as far as its caller promises")]

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::error::{Error, Fault};

/// Largest structure in bytes: a page, which is also the kernel's limit for such structures.
const MOST: usize = 4096;

/// A structure of C with its size in its first field.
pub(crate) trait Growing: Copy {
    /// Name of the structure in C.
    const NAME: &'static str;
    /// Size of its first version in bytes.
    const FIRST: usize;
}

/// A structure that can be read and filled byte by byte.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize`, and has no padding. All-zero bytes are a valid value of it,
/// and so are any bytes that C puts there.
pub(crate) unsafe trait Plain: Growing {}

/// Reads a structure.
///
/// # Safety
/// `at` is null, or points to a size and to as many bytes as that states.
pub(crate) unsafe fn read<T: Plain>(at: *const T) -> Result<T, Fault> {
    // SAFETY: the caller passes null, or a pointer to a size (`# Safety`).
    let size = unsafe { size_at(at)? };
    // SAFETY: `at` is not null, and the caller promises that there are `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if let Some(first) = unknown.iter().position(|byte| *byte != 0) {
        let at = known.len() + first;
        let text = format!("{}: byte {at} is not zero, and this version knows {}", T::NAME, known.len());
        return Err(Fault::new(Error::UnknownField, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` is no longer than a `T`, and `Plain` promises that any bytes are a value of it.
    unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(known.as_ptr(), known.len());
        Ok(value.assume_init())
    }
}

/// Fills a structure: with as much of `value` as the caller has room for, and with zeros in what this version
/// does not know. Its size stays.
///
/// # Safety
/// As [`read`], and nothing else uses the structure meanwhile.
pub(crate) unsafe fn write<T: Plain>(at: *mut T, value: &T) -> Result<(), Fault> {
    const SIZE: usize = size_of::<usize>();
    // SAFETY: the caller passes null, or a pointer to a size (`# Safety`).
    let size = unsafe { size_at(at)? };
    let known = size.min(size_of::<T>());
    // SAFETY: the caller promises that there are `size` bytes; `value` has at least `known`, and `Plain`
    // rules out padding.
    unsafe {
        let to = at.cast::<u8>();
        let from = std::ptr::from_ref(value).cast::<u8>();
        to.add(SIZE).copy_from_nonoverlapping(from.add(SIZE), known - SIZE);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// # Safety
/// As [`read`].
unsafe fn size_at<T: Plain>(at: *const T) -> Result<usize, Fault> {
    if at.is_null() {
        return Err(Fault::new(Error::NullPointer, format!("{} is null", T::NAME)));
    }
    // SAFETY: `at` is not null, and the caller promises that it points to a size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(T::FIRST..=MOST).contains(&size) {
        let text = format!("{} of {size} bytes; {} to {MOST} are possible", T::NAME, T::FIRST);
        return Err(Fault::new(Error::StructSize, text));
    }
    Ok(size)
}

/// Takes a text from C.
///
/// # Safety
/// `at` is null, or points to bytes that end in a zero.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Fault> {
    // SAFETY: the caller promises the same.
    let bytes = unsafe { bytes(at, what)? };
    bytes.to_str().map_err(|error| Fault::new(Error::NotUtf8, format!("{what}: {error}")))
}

/// Takes a text from C that need not be UTF-8, such as a path.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn bytes<'a>(at: *const c_char, what: &str) -> Result<&'a CStr, Fault> {
    if at.is_null() {
        return Err(Fault::new(Error::NullPointer, format!("{what} is null")));
    }
    // SAFETY: `at` is not null, and the caller promises bytes that end in a zero.
    Ok(unsafe { CStr::from_ptr(at) })
}

/// Takes an array from C.
///
/// # Safety
/// `at` points to `len` values, or `len` is 0.
pub(crate) unsafe fn list<'a, T>(at: *const T, len: usize, what: &str) -> Result<&'a [T], Fault> {
    match len {
        0 => Ok(&[]),
        _ if at.is_null() => Err(Fault::new(Error::NullPointer, format!("{what} is null"))),
        // SAFETY: `at` is not null, and the caller promises that it points to `len` values.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// Takes a handle from C.
///
/// # Safety
/// `at` is null or alive.
pub(crate) unsafe fn alive<'a, T>(at: *const T, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller promises null or a live handle.
    unsafe { at.as_ref() }.ok_or_else(|| Fault::new(Error::NullPointer, format!("{what} is null")))
}

/// Takes a handle that is changed from C.
///
/// # Safety
/// `at` is null or alive, and nothing else uses it meanwhile.
pub(crate) unsafe fn alone<'a, T>(at: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller promises null or a live handle that nothing else uses.
    unsafe { at.as_mut() }.ok_or_else(|| Fault::new(Error::NullPointer, format!("{what} is null")))
}

/// Stores a result.
///
/// # Safety
/// `at` is null, or may be written.
pub(crate) unsafe fn leave<T>(at: *mut T, value: T, what: &str) -> Result<(), Fault> {
    if at.is_null() {
        return Err(Fault::new(Error::NullPointer, format!("{what} is null")));
    }
    // SAFETY: `at` is not null, and the caller promises that it may be written.
    unsafe { at.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Error, Growing, Plain, read, write};

    /// Version two of a structure.
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Two {
        size: usize,
        a: u64,
        b: u64,
    }
    impl Growing for Two {
        const NAME: &'static str = "two";
        const FIRST: usize = 16;
    }
    // SAFETY: `repr(C)`, three words without padding, of which any bytes are a value.
    unsafe impl Plain for Two {}

    fn given(bytes: &mut [u64]) -> Result<Two, Error> {
        // SAFETY: no case states more bytes than there are.
        unsafe { read::<Two>(bytes.as_ptr().cast()) }.map_err(|fault| fault.number())
    }

    #[test]
    fn older_callers_are_understood_and_later_ones_as_far_as_they_ask_for_nothing_new() {
        assert_eq!(given(&mut [16, 7]), Ok(Two { size: 16, a: 7, b: 0 }));
        assert_eq!(given(&mut [24, 7, 8]), Ok(Two { size: 24, a: 7, b: 8 }));
        assert_eq!(given(&mut [32, 7, 8, 0]), Ok(Two { size: 32, a: 7, b: 8 }));
        assert_eq!(given(&mut [32, 7, 8, 1 << 56]), Err(Error::UnknownField));
        assert_eq!(given(&mut [20, 7, 8 << 32 | 3]).map(|two| two.b), Ok(3), "half of a field");
        for size in [0, 8, 15, 4097, u64::MAX] {
            assert_eq!(given(&mut [size, 7, 8]), Err(Error::StructSize), "{size}");
        }
        // SAFETY: null is one of the cases.
        let null = unsafe { read::<Two>(std::ptr::null()) };
        assert_eq!(null.map_err(|fault| fault.number()), Err(Error::NullPointer));
    }

    #[test]
    fn as_much_is_filled_as_there_is_room_for() {
        let value = Two { size: 24, a: 1, b: 2 };
        for (size, expected) in [(16, [16, 1, 9, 9]), (24, [24, 1, 2, 9]), (32, [32, 1, 2, 0])] {
            let mut bytes: [u64; 4] = [size, 9, 9, 9];
            // SAFETY: there are at least as many bytes as the size says.
            unsafe { write::<Two>(bytes.as_mut_ptr().cast(), &value) }.expect("room");
            assert_eq!(bytes, expected);
        }
    }
}
