//! Arguments and values of Rust functions. With each line of its input it makes the calls once more, and prints what they
//! were given.
use std::hint::black_box;
use std::io::{BufRead as _, Write as _, stdin, stdout};

#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Off,
    Fast = 7,
}

pub struct Point {
    x: i32,
    y: i64,
}

pub enum Shape {
    Round(f64),
    Square { side: u32 },
}

pub struct Order {
    pub name: String,
    pub text: &'static str,
    pub kind: Option<u32>,
    pub next: Option<Box<u32>>,
    pub shape: Shape,
    pub tags: Vec<u16>,
}

#[inline(never)]
pub fn order(of: &Order, by: &String, all: &Vec<i64>) -> usize {
    black_box((of, by, all)).1.len()
}
#[inline(never)]
pub fn owned(name: String, of: Option<u32>, other: Option<&u64>) -> u64 {
    black_box(name.len() as u64 + u64::from(of.unwrap_or(7)) + other.copied().unwrap_or(9))
}

#[inline(never)]
pub fn numbers(byte: u8, below: i32, wide: u64, mode: Mode) -> u64 {
    black_box((u64::from(byte) + wide).wrapping_add(below as u64) + mode as u64)
}
#[inline(never)]
pub fn half(of: f64, letter: char) -> f64 {
    black_box(of / 2.0 + f64::from(letter as u32))
}
#[inline(never)]
pub fn text(name: &str, times: usize) -> usize {
    black_box(name.bytes().map(usize::from).sum::<usize>() * times)
}
#[inline(never)]
pub fn bytes(times: u32, all: &[u8]) -> bool {
    black_box(all.iter().map(|byte| u32::from(*byte)).sum::<u32>() > times * 100)
}
#[inline(never)]
pub fn place(at: Point) -> i64 {
    black_box(i64::from(at.x) + at.y)
}
#[inline(never)]
pub fn shape(of: Shape) -> u32 {
    black_box(match of {
        Shape::Round(by) => by as u32,
        Shape::Square { side } => side,
    })
}

pub struct Tiny {
    pub one: u8,
    pub two: u16,
    pub three: u8,
}
pub struct Metres(pub f64);

#[inline(never)]
pub fn pair(of: u64) -> (u64, i64) {
    black_box((of, -(of as i64)))
}
#[inline(never)]
pub fn mixed(of: u64) -> (f64, u32) {
    black_box((of as f64 / 2.0, of as u32))
}
#[inline(never)]
pub fn slice(of: &str) -> &str {
    black_box(&of[1..])
}
#[inline(never)]
pub fn tiny(of: u8) -> Tiny {
    black_box(Tiny { one: of, two: 0x1234, three: of + 1 })
}
#[inline(never)]
pub fn metres(of: u64) -> Metres {
    black_box(Metres(of as f64))
}
#[inline(never)]
pub fn wide(of: u64) -> u128 {
    black_box(u128::from(of) << 70)
}
#[inline(never)]
pub fn close(of: u32) -> (u32, u32) {
    black_box((of, of + 1))
}
#[inline(never)]
pub fn may_be(of: u64) -> Option<u64> {
    black_box((of > 2).then_some(of))
}

/// What several registers return.
fn returns(of: u64, line: &str) {
    let (all, rest) = (pair(of), slice(line));
    black_box((all, mixed(of), tiny(of as u8), metres(of), wide(of), close(of as u32), may_be(of), rest));
}

fn main() {
    println!("ready");
    for line in stdin().lock().lines() {
        let line = line.expect("a line");
        let length = black_box(line.len());
        let number = black_box(length as u64);
        let mode = if black_box(length > 2) { Mode::Fast } else { Mode::Off };
        let below = black_box(-5 - length as i32);
        let sum = numbers(black_box(200), below, black_box(number << 40), mode);
        let half = half(black_box(length as f64 + 0.5), black_box('é'));
        let many = text(black_box(&line), black_box(3));
        let longer = bytes(black_box(2), black_box(line.as_bytes()));
        let far = place(Point { x: below, y: black_box(9) });
        let sides = shape(black_box(if length > 2 { Shape::Square { side: 4 } } else { Shape::Round(1.5) }));
        let next = (length != 5).then(|| Box::new(length as u32));
        let kind = (length != 1).then_some(length as u32);
        let in_order = if length > 1 { Shape::Round(length as f64) } else { Shape::Square { side: 9 } };
        let tags = (0..length as u16).collect();
        let one = Order { name: line.clone(), text: "a text", kind, next, shape: in_order, tags };
        black_box(order(&one, &one.name, &vec![-(length as i64); length * 3]));
        black_box(owned(line.clone(), kind, black_box((length > 2).then_some(&number))));
        returns(number, &line);
        println!("{sum} {half} {many} {longer} {far} {sides} {below} {} {mode:?} {line}", number << 40);
        stdout().flush().expect("written");
    }
}
