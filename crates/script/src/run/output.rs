//! What a script writes: values, formats, maps, warnings.
//!
//! In: values. Out: text or JSON through the world. Does not: decide what is written.

use std::rc::Rc;

use super::frame::Frame;
use super::state::names;
use super::world::Stream;
use crate::calls::Meaning;
use crate::diagnostic::{At, Severity, expansions};
use crate::format::Format;
use crate::json;
use crate::plain::plain;
use crate::program::Typed;
use crate::shown::Shown;
use crate::value::Value;

impl Frame<'_> {
    /// A value as it is shown.
    pub(super) fn shown(&self, value: &Value, expr: &Typed) -> Shown {
        Shown::of(value, &expr.ty, &names(&self.state.program, &*self.world))
    }
    /// Writes, unless the script has asked to end.
    pub(super) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if !self.state.muted {
            self.world.write(stream, bytes);
        }
    }
    /// Writes a text of the script; in JSON, as a line of this kind.
    pub(super) fn say(&mut self, kind: &str, text: &[u8]) {
        match self.state.style.json {
            true => {
                let line = json::line(kind, &json::quoted(text));
                self.write(Stream::Output, &line);
            }
            false => self.write(Stream::Output, text),
        }
    }
    /// `print` of a value.
    pub(super) fn print_value(&mut self, expr: &Typed) {
        let value = self.eval(expr);
        if self.flow != super::frame::Flow::Next {
            return;
        }
        let shown = self.shown(&value, expr);
        let bytes = match self.state.style.json {
            true => json::line("value", &json::value(&shown)),
            false => {
                let mut text = plain(&shown);
                text.push(b'\n');
                text
            }
        };
        self.write(Stream::Output, &bytes);
    }
    /// `printf` and all that take a format.
    pub(super) fn formatted(&mut self, meaning: Meaning, format: &Rc<Format>, args: &[Typed], expr: &Typed) {
        let shown: Vec<Shown> = args
            .iter()
            .map(|arg| {
                let value = self.eval(arg);
                self.shown(&value, arg)
            })
            .collect();
        if self.flow != super::frame::Flow::Next {
            return;
        }
        let text = format.apply(&shown);
        match meaning {
            Meaning::Printf => self.say("printf", &text),
            Meaning::Errorf => self.report(Severity::Error, &expr.at, &text),
            Meaning::Warnf => self.report(Severity::Warning, &expr.at, &text),
            Meaning::Cat => self.cat(&String::from_utf8_lossy(&text)),
            Meaning::System => self.system(&String::from_utf8_lossy(&text)),
            _ => {}
        }
    }
    fn cat(&mut self, path: &str) {
        match self.world.file(path, self.state.program.config.max_cat_bytes) {
            Ok(bytes) => self.say("cat", &bytes),
            Err(error) => {
                let text = format!("ERROR: failed to open file '{path}' ({error})\n");
                self.write(Stream::Error, text.as_bytes());
            }
        }
    }
    fn system(&mut self, command: &str) {
        if self.state.muted {
            return;
        }
        match self.world.command(command) {
            Ok(mut bytes) => {
                // As bpftrace does, which writes one end of line more.
                if !self.state.style.json {
                    bytes.push(b'\n');
                }
                self.say("syscall", &bytes);
            }
            Err(error) => {
                let text = format!("ERROR: failed to run '{command}': {error}\n");
                self.write(Stream::Error, text.as_bytes());
            }
        }
    }
    /// A message of the script's own: the place without its line, then the macros that led there.
    pub(super) fn report(&mut self, severity: Severity, at: &At, message: &[u8]) {
        if severity == Severity::Warning && self.state.style.no_warnings {
            return;
        }
        let message = message.strip_suffix(b"\n").unwrap_or(message);
        let source = &self.state.program.source;
        if self.state.style.json {
            let kind = if severity == Severity::Error { "errorf" } else { "warnf" };
            let line = self.json_message(&format!("\"{kind}\""), message, &[], at);
            self.write(Stream::Output, &line);
            return;
        }
        let word = severity.word();
        let mut out = format!("{}: {word}: ", source.place(at.span)).into_bytes();
        out.extend(message);
        out.push(b'\n');
        out.extend(expansions(at, word, source).bytes());
        self.write(Stream::Error, &out);
    }
    /// A line of JSON about a place in the script.
    fn json_message(&self, kind: &str, message: &[u8], more: &[u8], at: &At) -> Vec<u8> {
        let source = &self.state.program.source;
        let (line, column) = source.line_and_column(at.span.begin);
        let mut out = format!("{{\"type\": {kind}, \"msg\": ").into_bytes();
        out.extend(json::quoted(message));
        out.extend(more);
        out.extend(b", \"filename\": ");
        out.extend(json::quoted(source.name().as_bytes()));
        out.extend(format!(", \"line\": {line}, \"col\": {column}}}\n").bytes());
        out
    }
    /// A warning about a place, with its line.
    pub(super) fn warn(&mut self, at: &At, message: &str) {
        if self.state.style.no_warnings {
            return;
        }
        if self.state.style.json {
            let line = self.json_message("\"runtime_error\"", message.as_bytes(), &[], at);
            self.write(Stream::Output, &line);
            return;
        }
        let source = &self.state.program.source;
        let (place, context) = (source.place(at.span), source.context(at.span));
        let mut out = format!("{place}: WARNING: {message}\n{context}");
        out.push_str(&expansions(at, "WARNING", source));
        self.write(Stream::Error, out.as_bytes());
    }
    /// A warning about what a map could not do, in the words that bpftrace has for it.
    pub(super) fn helper_error(&mut self, at: &At, message: &str, helper: &str, code: i32) {
        if !self.state.style.json {
            self.warn(at, &format!("{message}\nAdditional Info - helper: {helper}, retcode: {code}"));
            return;
        }
        let more = format!(", \"helper\": \"{helper}\", \"retcode\": {code}");
        let line = self.json_message("\"helper_error\"", message.as_bytes(), more.as_bytes(), at);
        if !self.state.style.no_warnings {
            self.write(Stream::Output, &line);
        }
    }
}
