//! Builtins and functions.
//!
//! In: what is called, with arguments. Out: values and effects. What only the world knows is asked of it.
//! Does not: check arguments; that was done before.

use super::frame::{Flow, Frame};
use super::state::moment;
use super::texts::{address, differ, mac, position, whole};
use super::world::Clock;
use crate::calls::Meaning;
use crate::diagnostic::Severity;
use crate::names;
use crate::program::Typed;
use crate::table::Asked;
use crate::types::Type;
use crate::value::{StackMode, Value};

/// Seconds by which atomic time is ahead of universal time.
const LEAP_SECONDS: u64 = 37_000_000_000;
/// Longest text that is put together.
const LONGEST: usize = 1 << 20;

impl Frame<'_> {
    pub(super) fn call(&mut self, meaning: Meaning, args: &[Typed], expr: &Typed) -> Value {
        let hit = self.hit;
        match meaning {
            // The world knows a number of its own if it counts as the first namespace does; then hits have such numbers too.
            Meaning::Pid | Meaning::Tid
                if args.first().and_then(Typed::literal) == Some(b"init")
                    && self.world.number(meaning).is_none() =>
            {
                self.number(meaning, expr)
            }
            Meaning::Pid => Value::Int(i64::from(hit.pid)),
            Meaning::Tid => Value::Int(i64::from(hit.tid)),
            Meaning::Comm => Value::of_text(whole(&hit.comm)),
            Meaning::Pcomm | Meaning::LeaderComm => {
                let name = self.world.name_of_process(hit.pid, meaning == Meaning::Pcomm);
                Value::of_text(whole(&name))
            }
            Meaning::Func => Value::of_text(hit.func.as_bytes()),
            Meaning::Probe => Value::of_text(hit.probe.as_bytes()),
            Meaning::Probetype => Value::of_text(hit.sort.as_bytes()),
            Meaning::Argument(index) => {
                Value::Int(hit.args.get(usize::from(index)).copied().unwrap_or(0) as i64)
            }
            Meaning::Retval => Value::Int(hit.retval as i64),
            Meaning::Reg => {
                let name = args.first().and_then(Typed::literal).unwrap_or_default();
                let found = hit.registers.iter().find(|(register, _)| register.as_bytes() == name);
                Value::Int(found.map_or(0, |(_, value)| *value) as i64)
            }
            Meaning::Uaddr => {
                let name = args.first().and_then(Typed::literal).unwrap_or_default();
                let found = hit.variables.iter().find(|(variable, _)| variable.name.as_bytes() == name);
                Value::Int(found.map_or(0, |(_, at)| *at) as i64)
            }
            Meaning::Usermode => Value::Int(1),
            Meaning::Nsecs => Value::Int(self.nsecs(args.first()) as i64),
            Meaning::Elapsed => Value::Int(self.boot().wrapping_sub(self.state.begun) as i64),
            Meaning::Rand => Value::Int(i64::from(self.random())),
            Meaning::Ustack | Meaning::DwUstack => self.stack(args),
            Meaning::Username => {
                let uid = self.world.number(Meaning::Uid).unwrap_or(0) as u32;
                let name = self.world.user(uid).unwrap_or_else(|| uid.to_string());
                Value::Named(name.into(), u64::from(uid))
            }
            Meaning::Exit => self.exit(args),
            Meaning::Print => {
                self.print_value(&args[0]);
                Value::Nothing
            }
            Meaning::Assert => self.assert(args, expr),
            Meaning::Time => self.time(args),
            Meaning::Strftime => self.strftime(args),
            Meaning::Signal => self.signal(&args[0], expr),
            Meaning::Len => match self.eval(&args[0]) {
                Value::Stack(frames, _) => Value::Int(frames.len() as i64),
                _ => Value::Int(0),
            },
            _ => self.text_call(meaning, args, expr),
        }
    }
    /// Functions of texts, and numbers of the system.
    fn text_call(&mut self, meaning: Meaning, args: &[Typed], expr: &Typed) -> Value {
        match meaning {
            Meaning::Str => self.str(args, expr),
            Meaning::Buf => self.buf(args, expr),
            Meaning::Strncmp => {
                let (a, b) = (self.text(&args[0]), self.text(&args[1]));
                let count = self.int(&args[2]);
                Value::Int(differ(&a, &b, count))
            }
            Meaning::Strstr | Meaning::Strcontains => {
                let (text, part) = (self.text(&args[0]), self.text(&args[1]));
                let found = position(&text, &part);
                if meaning == Meaning::Strstr { Value::Int(found) } else { Value::from(found >= 0) }
            }
            Meaning::Strlen => Value::Int(self.text(&args[0]).len() as i64),
            Meaning::StrConcat => {
                let mut text = self.text(&args[0]);
                text.extend(self.text(&args[1]));
                text.truncate(LONGEST);
                Value::of_text(&text)
            }
            Meaning::Bswap => {
                let size = args[0].ty.size().clamp(1, 8);
                Value::Int(((self.int(&args[0]) as u64).swap_bytes() >> (64 - 8 * size)) as i64)
            }
            Meaning::Ntop => self.ntop(args),
            Meaning::Macaddr => {
                let bytes = match self.eval(&args[0]) {
                    Value::Int(at) => self.memory(at as u64, 6, &expr.at),
                    value => value.text().to_vec(),
                };
                Value::of_text(mac(&bytes).as_bytes())
            }
            Meaning::Usym => {
                let at = self.int(&args[0]) as u64;
                let name = self.world.symbol(self.hit.pid, at);
                Value::Named(name.into(), at)
            }
            Meaning::CgroupPath => {
                let id = self.int(&args[0]) as u64;
                Value::of_text(self.world.cgroup_path(id).as_bytes())
            }
            Meaning::Strerror => Value::of_text(names::error(self.int(&args[0])).as_bytes()),
            Meaning::SignalName => Value::of_text(names::signal(self.int(&args[0])).as_bytes()),
            Meaning::IsErr => Value::from((-4095..0).contains(&self.int(&args[0]))),
            Meaning::Uptr => self.eval(&args[0]),
            meaning => self.number(meaning, expr),
        }
    }
    /// A number that the world knows, or says that it does not.
    fn number(&mut self, meaning: Meaning, expr: &Typed) -> Value {
        match self.world.number(meaning) {
            Some(number) => Value::Int(number as i64),
            None => {
                self.warn(&expr.at, "This value is not available here; 0 is used instead.");
                Value::Int(0)
            }
        }
    }
    /// The moment of the hit, by the boot clock.
    fn boot(&mut self) -> u64 {
        self.hit.nsecs.unwrap_or_else(|| self.world.now(Clock::Boot))
    }
    fn nsecs(&mut self, clock: Option<&Typed>) -> u64 {
        match clock.and_then(Typed::literal) {
            Some(b"monotonic") => self.world.now(Clock::Monotonic),
            Some(b"tai") => self.world.now(Clock::Tai),
            Some(b"sw_tai") => self.world.now(Clock::Wall) + LEAP_SECONDS,
            _ => self.boot(),
        }
    }
    /// The next of a row of numbers without visible order.
    fn random(&mut self) -> u32 {
        let state = &mut self.state.random;
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 16) as u32
    }
    /// `ustack`, `ustack(mode, depth)` and `ustack(depth)`.
    fn stack(&mut self, args: &[Typed]) -> Value {
        let default = StackMode::of(&self.state.program.config.stack_mode);
        let mode = args.iter().find_map(Typed::literal);
        let mode = mode.map_or(default, |mode| StackMode::of(&String::from_utf8_lossy(mode)));
        let depth = args.iter().find_map(Typed::constant).and_then(|depth| usize::try_from(depth).ok());
        let frames = &self.hit.stack[..self.hit.stack.len().min(depth.unwrap_or(127))];
        Value::Stack(frames.into(), mode)
    }
    fn exit(&mut self, args: &[Typed]) -> Value {
        let code = args.first().map_or(0, |code| self.int(code));
        self.ask_to_end(code as i32);
        Value::Nothing
    }
    /// Ends the block, and has the script end. What later blocks would write is not written.
    fn ask_to_end(&mut self, status: i32) {
        self.state.exit.get_or_insert(status);
        self.state.muted = true;
        self.flow = Flow::Return;
    }
    fn assert(&mut self, args: &[Typed], expr: &Typed) -> Value {
        if !self.is_true(&args[0]) {
            let mut message = b"assert failed: ".to_vec();
            message.extend(self.text(&args[1]));
            self.report(Severity::Error, &expr.at, &message);
            self.ask_to_end(1);
        }
        Value::Nothing
    }
    fn time(&mut self, args: &[Typed]) -> Value {
        let format = args.first().and_then(Typed::literal).unwrap_or(b"%H:%M:%S\n");
        let now = self.world.now(Clock::Wall);
        let text = moment(now, &*self.world).format(&String::from_utf8_lossy(format));
        self.say("time", text.as_bytes());
        Value::Nothing
    }
    fn strftime(&mut self, args: &[Typed]) -> Value {
        let format = String::from_utf8_lossy(args[0].literal().unwrap_or_default()).into_owned();
        let nanos = self.int(&args[1]) as u64;
        let wall = match args.get(2).and_then(Typed::literal) {
            Some(b"tai" | b"sw_tai") => nanos.wrapping_sub(LEAP_SECONDS),
            _ => nanos.wrapping_add(self.state.wall),
        };
        Value::of_text(moment(wall, &*self.world).format(&format).as_bytes())
    }
    fn signal(&mut self, which: &Typed, expr: &Typed) -> Value {
        let value = self.eval(which);
        let number = match &value {
            Value::Int(number) => i32::try_from(*number).ok(),
            value => names::signal_number(&String::from_utf8_lossy(value.text())),
        };
        let failed = match number.filter(|number| (1..=64).contains(number)) {
            Some(number) => self.world.signal(self.hit.pid, number).err(),
            None => Some("signal() expects an integer between 1 and 64 (inclusive)".to_owned()),
        };
        if let Some(error) = failed {
            self.report(Severity::Warning, &expr.at, error.as_bytes());
        }
        Value::Nothing
    }
    /// A text, whatever holds it.
    fn text(&mut self, expr: &Typed) -> Vec<u8> {
        let most = self.state.program.config.max_strlen as usize;
        match self.eval(expr) {
            Value::Int(at) => self.text_at(at as u64, most, &expr.at),
            value => whole(value.text()).to_vec(),
        }
    }
    fn str(&mut self, args: &[Typed], expr: &Typed) -> Value {
        let most = expr.ty.size() as usize;
        // A length counts the end of the text too.
        let length = args.get(1).map(|length| self.int(length));
        let limit = length
            .map_or(most, |length| usize::try_from(length).unwrap_or(0).min(most + 1).saturating_sub(1));
        match self.eval(&args[0]) {
            Value::Int(at) => {
                let text = self.text_at(at as u64, limit, &expr.at);
                Value::of_text(&text)
            }
            value => {
                let text = whole(value.text());
                Value::of_text(&text[..text.len().min(limit)])
            }
        }
    }
    fn buf(&mut self, args: &[Typed], expr: &Typed) -> Value {
        let Type::Buffer(most) = expr.ty else { return Value::Nothing };
        let length =
            args.get(1).map(|length| usize::try_from(self.int(length)).unwrap_or(0).min(most as usize));
        match self.eval(&args[0]) {
            Value::Int(at) => {
                let bytes = self.memory(at as u64, length.unwrap_or(0), &expr.at);
                Value::Bytes(bytes.into())
            }
            value => {
                let mut bytes = value.text().to_vec();
                if let Type::Array(..) = args[0].ty {
                    bytes.truncate(length.unwrap_or(bytes.len()));
                } else if let Some(length) = length {
                    bytes.resize(length, 0);
                }
                bytes.truncate(most as usize);
                Value::Bytes(bytes.into())
            }
        }
    }
    fn ntop(&mut self, args: &[Typed]) -> Value {
        let Some(of) = args.last() else { return Value::Nothing };
        let text = match self.eval(of) {
            Value::Int(value) => address(&(value as u32).to_le_bytes()),
            value => {
                let length = if of.ty.size() >= 16 { 16 } else { 4 };
                let mut bytes = value.text().to_vec();
                bytes.resize(length, 0);
                address(&bytes)
            }
        };
        Value::of_text(text.as_bytes())
    }
    /// A function of one map.
    pub(super) fn on_map(&mut self, meaning: Meaning, map: usize, args: &[Typed], expr: &Typed) -> Value {
        match meaning {
            Meaning::Print => {
                let number = |index: usize| args.get(index).and_then(Typed::constant).unwrap_or(0);
                let asked = Asked { top: usize::try_from(number(0)).unwrap_or(0), div: number(1) };
                self.print_map(map, asked);
                Value::Nothing
            }
            // The tracer does these, as it writes.
            Meaning::Clear | Meaning::Zero if self.state.muted => Value::Nothing,
            Meaning::Clear => {
                self.state.maps[map].clear();
                Value::Nothing
            }
            Meaning::Zero => {
                let ty = self.state.program.maps[map].value.clone();
                self.state.maps[map].cells().for_each(|cell| cell.zero(&ty));
                Value::Nothing
            }
            Meaning::Len => Value::Int(self.state.maps[map].len() as i64),
            Meaning::HasKey => {
                let key = self.key(&args[0]);
                Value::from(self.state.maps[map].get(&key).is_some())
            }
            Meaning::Delete => {
                let key = args.first().map_or(Value::Nothing, |key| self.key(key));
                if self.flow != Flow::Next {
                    return Value::Nothing;
                }
                let removed = self.state.maps[map].remove(&key);
                if !removed && self.state.style.lookups {
                    let message = "Can't delete map element because it does not exist.";
                    self.helper_error(&expr.at, message, "map_delete_elem", -2);
                }
                Value::from(removed)
            }
            _ => Value::Nothing,
        }
    }
    /// Writes a map; a single value that was never assigned is zero.
    fn print_map(&mut self, map: usize, asked: Asked) {
        let info = &self.state.program.maps[map];
        let is_plain = !matches!(
            info.value,
            Type::Sum(crate::types::Sum::Hist | crate::types::Sum::Lhist | crate::types::Sum::Tseries, _)
        );
        let single = info.key.is_none() && is_plain && self.state.maps[map].len() == 0;
        if single {
            let ty = info.value.clone();
            let entry = self.state.maps[map].entry(Value::Nothing, || crate::cell::Cell::empty(&ty));
            debug_assert!(entry.is_some());
        }
        let text = self.state.written(map, asked, &*self.world);
        self.write(super::world::Stream::Output, &text);
        if single {
            self.state.maps[map].remove(&Value::Nothing);
        }
    }
}
