//! Signatures as they are typed: what each parameter is, where it lies, and what is wrong with some.

use trapline::beyond;
use trapline::calls::{KeptPointer, KeptText, Results};
use trapline::filter::Float;

use super::{SignatureError, split};
use crate::args::command::types::{ArgumentPlace, Type};

#[test]
fn signatures_are_split_from_probes() {
    let (probe, signature) = split("libc:openat(fd, const char *path, int flags, unsigned) -> int").unwrap();
    let signature = signature.unwrap();
    assert_eq!((probe.as_str(), signature.value), ("libc:openat", Some(Type::Signed(32))));
    let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone())).collect();
    let expected = [
        ("fd", Type::Signed(64)),
        ("path", Type::Hex),
        ("flags", Type::Signed(32)),
        ("", Type::Unsigned(32)),
    ];
    assert_eq!(shown, expected);
    assert_eq!(split("libc:open*").unwrap(), ("libc:open*".to_owned(), None));
    assert_eq!(split("f(void)").unwrap().1.unwrap().parameters, []);
    assert_eq!(split("f() -> void").unwrap().1.unwrap().value, Some(Type::Void));
}

#[test]
fn text_is_an_arguments_type() {
    let (probe, signature) =
        split("w(int fd, buf(len=n) data, size_t n, str, buf(len=arg0)) -> int").unwrap();
    let signature = signature.unwrap();
    let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone())).collect();
    let expected = [
        ("fd", Type::Signed(32)),
        ("data", Type::Buf(2)),
        ("n", Type::Unsigned(64)),
        ("", Type::Str),
        ("", Type::Buf(0)),
    ];
    assert_eq!((probe.as_str(), shown.as_slice(), signature.texts()), ("w", &expected[..], 0b1_1010));
}

#[test]
fn floats_have_registers_of_their_own() {
    let text = "f(double x, int n, float, buf(len=m) p, double *q, size_t m, const double y) -> float";
    let signature = split(text).unwrap().1.unwrap();
    let places: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.place)).collect();
    let expected = [
        ("x", ArgumentPlace::Vector(0)),
        ("n", ArgumentPlace::General(0)),
        ("", ArgumentPlace::Vector(1)),
        ("p", ArgumentPlace::General(1)),
        ("q", ArgumentPlace::General(2)),
        ("m", ArgumentPlace::General(3)),
        ("y", ArgumentPlace::Vector(2)),
    ];
    assert_eq!(places, expected);
    assert_eq!(signature.parameters[3].shown, Type::Buf(3));
    assert_eq!(signature.value, Some(Type::Float(Float::Single)));
    assert_eq!((signature.floats().arguments, signature.floats().results), (0b111, Results::FLOAT));
    assert_eq!((signature.registers(), signature.texts()), (4, 0b10));
    assert_eq!(split("f(double x, buf(len=x) p)"), Err(SignatureError::Length("x".into())));
    assert!(split(&format!("f({},a,b,c,d,e,f)", ["float"; 8].join(","))).is_ok());
}

#[test]
fn what_finds_no_register_is_on_the_stack() {
    let ints = vec!["int"; usize::from(beyond::ARGUMENT_REGISTERS)].join(", ");
    let nine = ["double"; 9].join(", ");
    let text = format!("f({ints}, u8 a, {nine}, str text, int last)");
    let signature = split(&text).unwrap().1.unwrap();
    let last = &signature.parameters[signature.parameters.len() - 3..];
    assert!(last.iter().all(|one| matches!(one.place, ArgumentPlace::Field(_))), "{last:?}");
    let reads: Vec<_> = signature.fields.iter().map(|field| field.read.clone()).collect();
    let stack = |word, bytes| beyond::stack_argument(word, bytes);
    let expected = [stack(0, 1), stack(1, 8), beyond::text_at(stack(2, 8), 64), stack(3, 4)];
    assert_eq!(reads[reads.len() - 4..], expected);
    // A number on the stack is no length of a buffer.
    assert_eq!(split(&format!("f({ints}, int n, buf(len=n) p)")), Err(SignatureError::Length("n".into())));
}

#[test]
fn texts_of_returns_and_long_ones_are_kept() {
    let text = "SSL_read(ptr s, buf(len=ret) data, int n, str[200] name, buf(len=n)[4000] all) -> str";
    let signature = split(text).unwrap().1.unwrap();
    let shown: Vec<_> =
        signature.parameters.iter().map(|p| (p.name.as_str(), p.shown.clone(), p.place)).collect();
    let kept = |argument, text| ArgumentPlace::Kept { argument, text };
    let expected = [
        ("s", Type::Hex, ArgumentPlace::General(0)),
        ("data", Type::BufReturned, kept(1, 0)),
        ("n", Type::Signed(32), ArgumentPlace::General(2)),
        ("name", Type::Str, kept(3, 1)),
        ("all", Type::Buf(2), kept(4, 2)),
    ];
    assert_eq!(shown, expected);
    let kept = |pointer, at_return, bytes| KeptText { pointer, at_return, bytes };
    let expected = [
        kept(KeptPointer::Argument(1), true, 64),
        kept(KeptPointer::Argument(3), false, 200),
        kept(KeptPointer::Argument(4), false, 4000),
        kept(KeptPointer::Returned, true, 64),
    ];
    assert_eq!((signature.kept.as_slice(), signature.returned_text), (&expected[..], Some(3)));
    assert_eq!((signature.value.clone(), signature.texts(), signature.registers()), (Some(Type::Str), 0, 5));
    assert_eq!(split("f() -> str[300]").unwrap().1.unwrap().kept[0].bytes, 300);
    assert!(split("f(buf(len=ret)) -> int").unwrap().1.unwrap().kept[0].at_return);
}

#[test]
fn a_register_takes_no_arguments_place() {
    let name = if beyond::ARGUMENT_REGISTERS == 6 { "rax" } else { "x9" };
    let signature = split(&format!("f(int a, reg({name}), reg({name}) count, int b)")).unwrap().1.unwrap();
    let shown: Vec<_> = signature.parameters.iter().map(|p| (p.name.as_str(), p.place)).collect();
    let expected = [
        ("a", ArgumentPlace::General(0)),
        (name, ArgumentPlace::Field(0)),
        ("count", ArgumentPlace::Field(1)),
        ("b", ArgumentPlace::General(1)),
    ];
    assert_eq!(shown, expected);
    assert_eq!(signature.fields[0].read, beyond::register(name).unwrap());
    assert_eq!(split("f(reg(eax))"), Err(SignatureError::Register("eax".into())));
    assert!(split("usdt:x:y(reg(rax))").is_err());
}

#[test]
fn a_mark_has_its_arguments_in_order() {
    let text = "usdt:postgres:query__start(double x, str query, buf(len=n) p, float, char, int, int, u64 n)";
    let (probe, signature) = split(text).unwrap();
    let signature = signature.unwrap();
    let places: Vec<_> = signature.parameters.iter().map(|p| p.place).collect();
    assert_eq!(places, (0..8).map(ArgumentPlace::General).collect::<Vec<_>>());
    assert_eq!((probe.as_str(), signature.fields.len()), ("usdt:postgres:query__start", 0));
    assert_eq!(signature.parameters[2].shown, Type::Buf(7));
    assert_eq!(signature.parameters[0].shown, Type::Float(Float::Double));
    assert_eq!((signature.texts(), signature.registers(), signature.floats().arguments), (0b110, 8, 0));
}

#[test]
fn paths_are_looked_for_later() {
    let (probe, signature) = split("h(req->len, mode, req->in.tag) -> int").unwrap();
    let signature = signature.unwrap();
    assert_eq!((probe.as_str(), signature.selected.len(), signature.parameters.len()), ("h", 3, 0));
    assert_eq!(signature.value, Some(Type::Signed(32)));
    assert_eq!(split("h(req->len)").unwrap().1.unwrap().selected, ["req->len"]);
}

#[test]
fn what_is_wrong_is_an_error() {
    let (probe, signature) = split("main.(*T[func(int)]).f(int x)").expect("a method of Go's");
    assert_eq!((&*probe, signature.map(|one| one.parameters.len())), ("main.(*T[func(int)]).f", Some(1)));
    let (probe, signature) = split("main.(*T).f(t->n, a)").expect("a method of Go's");
    assert_eq!((&*probe, signature.map(|one| one.selected.len())), ("main.(*T).f", Some(2)));
    let (probe, signature) = split("main.(*T).f").expect("a method of Go's");
    assert_eq!((&*probe, signature.is_none()), ("main.(*T).f", true));
    assert_eq!(split("f(int"), Err(SignatureError::Open));
    assert_eq!(split("f(int a,, int b)"), Err(SignatureError::Nothing(2)));
    assert_eq!(split("f(int a, )"), Err(SignatureError::Nothing(2)));
    assert_eq!(split("f( )").unwrap().1.unwrap().parameters, []);
    assert_eq!(split("f(int x) y"), Err(SignatureError::Behind("y".into())));
    assert_eq!(split("f(text path)"), Err(SignatureError::Type("text".into())));
    assert!(matches!(split("f(str[0] s)"), Err(SignatureError::Bytes(..))));
    assert!(matches!(split("f(int) -> str[5000]"), Err(SignatureError::Bytes(..))));
    assert!(matches!(split("usdt:x:y(str[200] s)"), Err(SignatureError::Long(_))));
    assert_eq!(split("f(buf(len=m) p, int n)"), Err(SignatureError::Length("m".into())));
    let many = vec!["int"; 40].join(",");
    assert!(matches!(split(&format!("f({many})")), Err(SignatureError::Many(40, 14 | 16))));
    let many = vec!["int"; 13].join(",");
    assert_eq!(split(&format!("usdt:x:y({many})")), Err(SignatureError::Many(13, 12)));
    assert_eq!(split("f(int) -> what"), Err(SignatureError::Type("what".into())));
}
