//! A value as `trace --json` has it, beside the same as gdb has it.
//!
//! In: both. Out: whether they are equal, or which of them is unknown. Does not: take unknown for equal.

use serde_json::Value;

/// What became of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Equal,
    /// gdb does not know it either.
    UnknownToBoth,
    /// gdb knows it.
    Unknown,
    /// It is shown here alone.
    OnlyHere,
    Differs(String),
}

/// Each of gdb's arguments with what became of it.
pub(super) fn of_call(ours: &[Value], theirs: &[Value]) -> Vec<(String, Verdict)> {
    let one = |their: &Value| {
        let name = their[0].as_str().unwrap_or_default();
        let found = ours.iter().find(|our| our["name"] == name);
        let verdict = match found {
            None if their[1].is_null() => Verdict::UnknownToBoth,
            None => Verdict::Unknown,
            Some(our) => same(&our["value"], our.get("fault").and_then(Value::as_u64), &their[1]),
        };
        (name.to_owned(), verdict)
    };
    theirs.iter().map(one).collect()
}

fn differs(ours: &Value, theirs: &Value) -> Verdict {
    Verdict::Differs(format!("here {ours}, in gdb {theirs}"))
}

/// Compares values; `fault`: the address at which a text could not be read.
fn same(ours: &Value, fault: Option<u64>, theirs: &Value) -> Verdict {
    let kind = theirs[0].as_str().unwrap_or_default();
    let verdict = |is: bool| if is { Verdict::Equal } else { differs(ours, theirs) };
    match (ours, kind) {
        (Value::Null, _) if theirs.is_null() => Verdict::UnknownToBoth,
        (Value::Null, "pointer") if fault.is_some() => verdict(fault == theirs[1].as_u64()),
        (Value::Null, _) => Verdict::Unknown,
        (_, _) if theirs.is_null() => Verdict::OnlyHere,
        (Value::String(text), "pointer") => {
            // A record holds 64 bytes; neither has more.
            verdict(theirs[2].as_str().is_some_and(|their| text == their))
        }
        (Value::String(text), "text") => verdict(theirs[1] == text.as_str()),
        // Within a structure, what its pointer leads to is not read.
        (Value::Object(_), "text") => verdict(theirs[2] == *ours),
        (Value::String(text), "float") => {
            let (our, their) = (text.to_lowercase(), theirs[1].as_str().unwrap_or_default().to_owned());
            verdict(our == their || our == "nan" && their.contains("nan"))
        }
        (Value::String(text), "number") => verdict(theirs[1] == text.as_str()),
        (Value::Number(number), "pointer") => verdict(number.as_u64() == theirs[1].as_u64()),
        (Value::Number(number), "number") => verdict(theirs[1] == number.to_string().as_str()),
        (Value::Number(number), "float") => {
            let (our, their) =
                (number.as_f64(), theirs[1].as_str().and_then(|text| text.parse::<f64>().ok()));
            verdict(our.zip(their).is_some_and(|(our, their)| our == their || our as f32 == their as f32))
        }
        (Value::Array(all), "list") => {
            let their = theirs[1].as_array().map_or(&[][..], Vec::as_slice);
            match all.len() == their.len() {
                true => worst(all.iter().zip(their).map(|(our, their)| same(our, None, their))),
                false => differs(ours, theirs),
            }
        }
        (Value::Object(_), "elements") => {
            let (our, their) = (ours["first"].as_array(), theirs[2].as_array());
            match our.zip(their) {
                Some((our, their)) if ours["len"] == theirs[1] && our.len() == their.len() => {
                    worst(our.iter().zip(their).map(|(our, their)| same(our, None, their)))
                }
                _ => differs(ours, theirs),
            }
        }
        (Value::Object(_), "record") => {
            let mut members = Vec::new();
            flat(theirs, &mut members);
            worst(members.iter().map(|(name, their)| same(&ours[name], None, their)))
        }
        _ => differs(ours, theirs),
    }
}

/// The members of a structure, with those of its members without names.
fn flat<'a>(record: &'a Value, members: &mut Vec<(&'a str, &'a Value)>) {
    for member in record[1].as_array().into_iter().flatten() {
        match member[0].as_str().unwrap_or_default() {
            "" => flat(&member[1], members),
            name => members.push((name, &member[1])),
        }
    }
}

fn worst(all: impl Iterator<Item = Verdict>) -> Verdict {
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Differs(_) => 4,
        Verdict::Unknown => 3,
        Verdict::OnlyHere => 2,
        Verdict::UnknownToBoth => 1,
        Verdict::Equal => 0,
    };
    all.max_by_key(rank).unwrap_or(Verdict::Equal)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Verdict, of_call};

    #[test]
    fn values_are_equal_unknown_or_different() {
        let of = |ours: serde_json::Value, theirs: serde_json::Value| {
            of_call(&[ours], &[json!(["a", theirs])])[0].1.clone()
        };
        let value = |value: serde_json::Value| json!({ "name": "a", "value": value });
        assert_eq!(of(value(json!(-5)), json!(["number", "-5"])), Verdict::Equal);
        assert!(matches!(of(value(json!(5)), json!(["number", "-5"])), Verdict::Differs(_)));
        assert_eq!(of(value(json!(null)), json!(["number", "-5"])), Verdict::Unknown);
        assert_eq!(of(value(json!(3)), json!(null)), Verdict::OnlyHere);
        let vector = |len: u64, first: &[u64]| value(json!({ "len": len, "first": first }));
        let theirs = json!(["elements", 9, [["number", "1"], ["number", "2"]]]);
        assert_eq!(of(vector(9, &[1, 2]), theirs.clone()), Verdict::Equal);
        for wrong in [vector(8, &[1, 2]), vector(9, &[1, 3]), vector(9, &[1])] {
            assert!(matches!(of(wrong, theirs.clone()), Verdict::Differs(_)));
        }
        assert_eq!(of(value(json!("ab")), json!(["pointer", 4096, "ab"])), Verdict::Equal);
        assert!(matches!(of(value(json!("ab")), json!(["pointer", 4096, "abc"])), Verdict::Differs(_)));
        assert_eq!(of(value(json!(0.1)), json!(["float", "0.10000000149011612"])), Verdict::Equal);
        let text = json!(["text", "ab", { "data_ptr": 7, "length": 2 }]);
        assert_eq!(of(value(json!("ab")), text.clone()), Verdict::Equal);
        assert_eq!(of(value(json!({ "data_ptr": 7, "length": 2 })), text.clone()), Verdict::Equal);
        assert!(matches!(of(value(json!({ "data_ptr": 8, "length": 2 })), text), Verdict::Differs(_)));
        let record = json!(["record", [["x", ["number", "1"]], ["", ["record", [["y", ["number", "2"]]]]]]]);
        assert_eq!(of(value(json!({ "x": 1, "y": 2 })), record.clone()), Verdict::Equal);
        assert!(matches!(of(value(json!({ "x": 1, "y": 3 })), record.clone()), Verdict::Differs(_)));
        assert_eq!(of(value(json!({ "x": 1 })), record), Verdict::Unknown);
        assert_eq!(of(json!({ "name": "b", "value": 1 }), json!(["number", "1"])), Verdict::Unknown);
    }
}
