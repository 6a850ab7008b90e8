//! JSON values, as C reads them: one for each object that the command writes, with all that is in it.
//!
//! In: a line of JSON. Out: a tree whose texts and names end in a zero byte. Numbers that fit into 64 bits stay whole.
//! Does not: know what an object means, or look for anything but a field's name.

use std::ffi::{CStr, c_char};
use std::ptr::null;

use serde_json::Number;

/// What a value is.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// There is no value: the pointer is null.
    None = 0,
    /// `null`: the value is not known, or there is none.
    Null = 1,
    /// `true` or `false`.
    Truth = 2,
    /// A number, whole or with a fraction.
    Number = 3,
    /// A text.
    Text = 4,
    /// Values in their order.
    List = 5,
    /// Values with names.
    Object = 6,
}

/// A value of an object that the command wrote.
#[derive(Debug, PartialEq)]
pub struct Value(Form);

#[derive(Debug, PartialEq)]
enum Form {
    Null,
    Truth(bool),
    Number(Number),
    Text(Text),
    List(Vec<Value>),
    Object(Vec<(Text, Value)>),
}

/// Bytes with a zero behind them. There may be zeros among them.
#[derive(Debug, PartialEq)]
struct Text(Box<[u8]>);

impl Text {
    fn new(text: String) -> Self {
        let mut bytes = text.into_bytes();
        bytes.push(0);
        Self(bytes.into())
    }
    /// Number of bytes before the last zero.
    const fn len(&self) -> usize {
        self.0.len() - 1
    }
    const fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
    fn is(&self, name: &CStr) -> bool {
        *self.0 == *name.to_bytes_with_nul()
    }
}

impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        Self(match value {
            Json::Null => Form::Null,
            Json::Bool(truth) => Form::Truth(truth),
            Json::Number(number) => Form::Number(number),
            Json::String(text) => Form::Text(Text::new(text)),
            Json::Array(items) => Form::List(items.into_iter().map(Self::from).collect()),
            Json::Object(fields) => {
                let named = |(name, value)| (Text::new(name), Self::from(value));
                Form::Object(fields.into_iter().map(named).collect())
            }
        })
    }
}

impl Value {
    pub(crate) const fn kind(&self) -> Kind {
        match self.0 {
            Form::Null => Kind::Null,
            Form::Truth(_) => Kind::Truth,
            Form::Number(_) => Kind::Number,
            Form::Text(_) => Kind::Text,
            Form::List(_) => Kind::List,
            Form::Object(_) => Kind::Object,
        }
    }
    /// Items of a list, fields of an object, bytes of a text; else 0.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Form::Text(text) => text.len(),
            Form::List(items) => items.len(),
            Form::Object(fields) => fields.len(),
            _ => 0,
        }
    }
    /// An object's field.
    pub(crate) fn field(&self, name: &CStr) -> Option<&Self> {
        let Form::Object(fields) = &self.0 else { return None };
        fields.iter().find(|(own, _)| own.is(name)).map(|(_, value)| value)
    }
    /// An item of a list, or an object's field by its number.
    pub(crate) fn item(&self, index: usize) -> Option<&Self> {
        match &self.0 {
            Form::List(items) => items.get(index),
            Form::Object(fields) => fields.get(index).map(|(_, value)| value),
            _ => None,
        }
    }
    /// The name of an object's field; null if there is none.
    pub(crate) fn name(&self, index: usize) -> *const c_char {
        let Form::Object(fields) = &self.0 else { return null() };
        fields.get(index).map_or(null(), |(name, _)| name.as_ptr())
    }
    /// The text; null if it is none.
    pub(crate) const fn text(&self) -> *const c_char {
        match &self.0 {
            Form::Text(text) => text.as_ptr(),
            _ => null(),
        }
    }
    const fn number(&self) -> Option<&Number> {
        match &self.0 {
            Form::Number(number) => Some(number),
            _ => None,
        }
    }
    /// The number, if it is whole and fits.
    pub(crate) fn unsigned(&self) -> Option<u64> {
        self.number()?.as_u64()
    }
    /// As [`Self::unsigned`].
    pub(crate) fn signed(&self) -> Option<i64> {
        self.number()?.as_i64()
    }
    /// The number, or the nearest one that a `double` can be.
    pub(crate) fn double(&self) -> Option<f64> {
        self.number()?.as_f64()
    }
    pub(crate) const fn truth(&self) -> Option<bool> {
        match self.0 {
            Form::Truth(truth) => Some(truth),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Value};

    fn of(text: &str) -> Value {
        Value::from(serde_json::from_str::<serde_json::Value>(text).expect("JSON"))
    }

    #[test]
    fn numbers_that_fit_stay_whole() {
        let most = of("18446744073709551615");
        assert_eq!((most.unsigned(), most.signed()), (Some(u64::MAX), None));
        let least = of("-9223372036854775808");
        assert_eq!((least.unsigned(), least.signed()), (None, Some(i64::MIN)));
        let beyond = of("18446744073709551616");
        assert_eq!((beyond.unsigned(), beyond.signed()), (None, None));
        assert_eq!(beyond.double(), Some(18_446_744_073_709_551_616.0));
        assert_eq!((of("1.5").unsigned(), of("1.5").double()), (None, Some(1.5)));
        assert_eq!(of("\"7\"").unsigned(), None, "a text is no number");
    }

    #[test]
    fn fields_are_found_by_name_and_by_number() {
        let object = of(r#"{"args": [{"name": "path", "value": "/etc"}], "ret": null, "last": true}"#);
        let path = object.field(c"args").and_then(|args| args.item(0)?.field(c"value")).expect("there");
        assert_eq!((path.kind(), path.len()), (Kind::Text, 4));
        assert_eq!(object.field(c"ret").map(Value::kind), Some(Kind::Null));
        assert_eq!(object.field(c"last").and_then(Value::truth), Some(true));
        assert!(object.field(c"re").is_none() && object.field(c"rets").is_none());
        assert!(object.item(3).is_none() && object.name(3).is_null() && !object.name(2).is_null());
    }

    #[test]
    fn a_text_may_hold_zeros() {
        let text = of(r#""a\u0000b""#);
        assert_eq!(text.len(), 3);
        assert_eq!(of("[]").len() + of("7").len(), 0);
    }
}
