//! The functions for C that run the command and read its objects, in the order in which the header has them.
//!
//! In: pointers from C. Out: as in `functions`, with the same invariants and the same demands. Values are the command's:
//! they are alive until its next object is taken. A null value is one that is not there, so look-ups can be chained.
//! Does not: decide anything.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "functions for C: what they ask of pointers stands in the header"
)]

use std::ffi::{OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{from_ref, null};

use crate::command::{Command, CommandOptions};
use crate::error::{Error, Fault, guard};
use crate::pointers::{self, Plain, alive, bytes, leave, list};
use crate::value::{Kind, Value};

// SAFETY: `repr(C)`, a size, addresses and numbers without padding.
unsafe impl Plain for CommandOptions {}

/// Starts the command `trapline` with a verb that writes JSON: count, lat, hist, graph, trace, stack, top, watch, list,
/// status, detach, doctor, or run. It is another process: this library starts it, and needs it to be installed.
/// trapline_command_end ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_command_start(
    options: *const CommandOptions,
    command: *mut *mut Command,
) -> Error {
    guard(|| {
        if command.is_null() {
            return Err(Fault::new(Error::NullPointer, "command is null"));
        }
        // SAFETY: the header demands options of the size that they state.
        let started = unsafe { start(options)? };
        // SAFETY: `command` is not null, and the header demands that it may be written.
        unsafe { leave(command, Box::into_raw(Box::new(started)), "command") }
    })
}

/// # Safety
/// What the header demands of options.
unsafe fn start(options: *const CommandOptions) -> Result<Command, Fault> {
    // SAFETY: the caller promises it.
    let options = unsafe { pointers::read(options)? };
    options.check_flags()?;
    // SAFETY: the header demands an array of the stated length.
    let words = unsafe { list(options.words, options.words_len, "trapline_command_options' words")? };
    // SAFETY: the header demands texts that end in a zero.
    let text = |at| unsafe { bytes(at, "a word") }.map(|text| OsStr::from_bytes(text.to_bytes()));
    let program = (!options.program.is_null()).then(|| text(options.program)).transpose()?;
    let words: Result<Vec<OsString>, Fault> = words.iter().map(|&at| Ok(text(at)?.to_owned())).collect();
    Command::start(program, &words?, options.launches())
}

/// Waits for the next object. `object` is set to it, or to null when there will be none any more. It is alive until the
/// next call with this command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_command_next(command: *mut Command, object: *mut *const Value) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live command.
        let mut run = unsafe { alive(command.cast_const(), "command")? }.run();
        let next = run.next()?;
        // SAFETY: the header demands null, or that it may be written.
        unsafe { leave(object, next.map_or(null(), from_ref), "object") }
    })
}

/// Sets `ready` to whether trapline_command_next would return at once. Waits for so many milliseconds at most, and
/// without an end if they are negative.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_command_ready(
    command: *mut Command,
    milliseconds: i32,
    ready: *mut bool,
) -> Error {
    guard(|| {
        // SAFETY: the header demands null or a live command.
        let is_ready = unsafe { alive(command.cast_const(), "command")? }.run().is_ready(milliseconds)?;
        // SAFETY: the header demands null, or that it may be written.
        unsafe { leave(ready, is_ready, "ready") }
    })
}

/// Asks the command to detach. Its last objects still come. Another thread may call this, and a signal's handler. Null
/// is allowed, and does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_command_stop(command: *const Command) {
    // SAFETY: the header demands null or a live command. Only its descriptor is read, which stays as it is.
    if let Some(command) = unsafe { command.as_ref() } {
        command.stop();
    }
}

/// Ends the command, and waits until it has detached. Objects that were not taken are gone. `status`, if not null, is set
/// to its exit status, or to 128 and the number of the signal that killed it. A command that failed by itself is an error
/// here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_command_end(command: *mut Command, status: *mut i32) -> Error {
    guard(|| {
        if command.is_null() {
            return Err(Fault::new(Error::NullPointer, "command is null"));
        }
        // SAFETY: the header demands a live command: made by `trapline_command_start`, and not ended since.
        let (number, fault) = unsafe { Box::from_raw(command) }.end();
        if !status.is_null() {
            // SAFETY: `status` is not null, and the header demands that it may be written.
            unsafe { status.write(number) };
        }
        fault.map_or(Ok(()), Err)
    })
}

/// # Safety
/// `value` is null or alive.
unsafe fn value<'a>(value: *const Value) -> Option<&'a Value> {
    // SAFETY: the caller promises it.
    unsafe { value.as_ref() }
}

/// # Safety
/// `to` is null or may be written.
unsafe fn stored<T>(found: Option<T>, to: *mut T) -> bool {
    match found {
        Some(found) if !to.is_null() => {
            // SAFETY: `to` is not null, and the caller promises that it may be written.
            unsafe { to.write(found) };
            true
        }
        _ => false,
    }
}

/// What a value is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_kind(value: *const Value) -> Kind {
    // SAFETY: the header demands null or a live value.
    unsafe { self::value(value) }.map_or(Kind::None, Value::kind)
}

/// The field of an object; null if there is none with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_field(value: *const Value, name: *const c_char) -> *const Value {
    // SAFETY: the header demands null or a live value, and a text that ends in a zero, or null.
    let found = unsafe { self::value(value).zip(bytes(name, "name").ok()) };
    found.and_then(|(value, name)| value.field(name)).map_or(null(), from_ref)
}

/// How many items a list has, fields an object, bytes a text; else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_len(value: *const Value) -> usize {
    // SAFETY: the header demands null or a live value.
    unsafe { self::value(value) }.map_or(0, Value::len)
}

/// An item of a list, or the value of an object's field; null behind the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_item(value: *const Value, index: usize) -> *const Value {
    // SAFETY: the header demands null or a live value.
    unsafe { self::value(value) }.and_then(|value| value.item(index)).map_or(null(), from_ref)
}

/// The name of an object's field; null behind the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_name(value: *const Value, index: usize) -> *const c_char {
    // SAFETY: the header demands null or a live value.
    unsafe { self::value(value) }.map_or(null(), |value| value.name(index))
}

/// A text, with a zero behind its trapline_value_len bytes; null if the value is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_text(value: *const Value) -> *const c_char {
    // SAFETY: the header demands null or a live value.
    unsafe { self::value(value) }.map_or(null(), Value::text)
}

/// Sets `number` and returns true if the value is a whole number that fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_unsigned(value: *const Value, number: *mut u64) -> bool {
    // SAFETY: the header demands null or a live value, and that `number` may be written.
    unsafe { stored(self::value(value).and_then(Value::unsigned), number) }
}

/// Sets `number` and returns true if the value is a whole number that fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_signed(value: *const Value, number: *mut i64) -> bool {
    // SAFETY: the header demands null or a live value, and that `number` may be written.
    unsafe { stored(self::value(value).and_then(Value::signed), number) }
}

/// Sets `number` and returns true if the value is a number. One that is no `double` is rounded to the nearest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_double(value: *const Value, number: *mut f64) -> bool {
    // SAFETY: the header demands null or a live value, and that `number` may be written.
    unsafe { stored(self::value(value).and_then(Value::double), number) }
}

/// Sets `truth` and returns true if the value is `true` or `false`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapline_value_truth(value: *const Value, truth: *mut bool) -> bool {
    // SAFETY: the header demands null or a live value, and that `truth` may be written.
    unsafe { stored(self::value(value).and_then(Value::truth), truth) }
}
