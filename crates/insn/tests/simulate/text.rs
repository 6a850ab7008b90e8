//! An [`Op`] as objdump would write it in Intel syntax, and objdump's text without the parts that have no
//! effect.

use trapline_insn::x86_64::Gpr;
use trapline_insn::x86_64::simulate::{
    Action, Address, Base, Destination, LoopTest, Op, RegisterPart, Size, Target, Value,
};

const NAMES: [[&str; 8]; 4] = [
    ["al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil"],
    ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"],
    ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"],
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"],
];
const CONDITIONS: [&str; 16] =
    ["o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g"];

/// objdump's text for `op` at `addr`; `None` for an instruction that does nothing, for which it has many
/// names.
pub(crate) fn render(op: &Op, addr: u64) -> Option<String> {
    let near = |offset: i64| format!("{:x}", addr.wrapping_add_signed(offset));
    let target = |to: Target| match to {
        Target::Offset(offset) => near(offset),
        Target::Through(at) => place(at, op),
    };
    Some(match op.action {
        Action::Nop => return None,
        Action::Move { to, from: Value::Constant(value), .. } => {
            format!("mov {},0x{:x}", place(to, op), value & to.size().mask())
        }
        Action::Move { to, from: Value::At(from), signed } => {
            let name = match (to.size() == from.size(), signed, from.size()) {
                (true, false, _) => "mov",
                (_, true, Size::Long) | (true, true, _) => "movsxd",
                (false, true, _) => "movsx",
                (false, false, _) => "movzx",
            };
            format!("{name} {},{}", place(to, op), place(from, op))
        }
        Action::Lea { to, from } => format!("lea {},{}", register(to), address(from, op)),
        Action::Push(Value::Constant(value)) => format!("push 0x{value:x}"),
        Action::Push(Value::At(from)) => format!("push {}", place(from, op)),
        Action::Pop(to) => format!("pop {}", place(to, op)),
        Action::Leave => "leave".to_owned(),
        Action::Alu { what, to, from } => {
            let from = match from {
                Value::Constant(value) => format!("0x{:x}", value & to.size().mask()),
                Value::At(from) => place(from, op),
            };
            format!("{} {},{from}", format!("{what:?}").to_lowercase(), place(to, op))
        }
        Action::Jump(to) => format!("jmp {}", target(to)),
        Action::Call(to) => format!("call {}", target(to)),
        Action::Branch { when, offset } => {
            format!("j{} {}", CONDITIONS[usize::from(when.number())], near(offset))
        }
        Action::Loop { when, narrow, offset } => {
            let name = match when {
                LoopTest::Count => "loop",
                LoopTest::CountEqual => "loope",
                LoopTest::CountNotEqual => "loopne",
                LoopTest::Zero if narrow => "jecxz",
                LoopTest::Zero => "jrcxz",
            };
            let prefix = if narrow && when != LoopTest::Zero { "addr32 " } else { "" };
            format!("{prefix}{name} {}", near(offset))
        }
        Action::Return(0) => "ret".to_owned(),
        Action::Return(release) => format!("ret 0x{release:x}"),
    })
}

fn register(part: RegisterPart) -> String {
    let (number, row) = (part.of as usize, part.size as usize / 2 - part.size as usize / 8);
    match (part.high, number) {
        (true, number) => ["ah", "ch", "dh", "bh"][number].to_owned(),
        (false, number @ ..=7) => NAMES[row][number].to_owned(),
        (false, number) => format!("r{number}{}", ["b", "w", "d", ""][row]),
    }
}

fn place(of: Destination, op: &Op) -> String {
    match of {
        Destination::Register(part) => register(part),
        Destination::Memory { at, size } => {
            let name = match size {
                Size::Byte => "BYTE",
                Size::Word => "WORD",
                Size::Long => "DWORD",
                Size::Quad => "QWORD",
            };
            format!("{name} PTR {}", address(at, op))
        }
    }
}

fn address(of: Address, op: &Op) -> String {
    let size = if of.narrow { Size::Long } else { Size::Quad };
    let name = |gpr: Gpr| register(RegisterPart { of: gpr, size, high: false });
    let (base, offset) = match of.base {
        Base::Zero => (String::new(), of.offset),
        Base::Here => {
            ((if of.narrow { "eip" } else { "rip" }).to_owned(), of.offset.wrapping_sub(op.len.into()))
        }
        Base::Register(base) => (name(base), of.offset),
    };
    if of.base == Base::Zero && of.index.is_none() {
        return format!("0x{offset:x}");
    }
    let index = of.index.map(|index| format!("{}*{}", name(index), 1 << of.shift));
    let sum = [base.clone(), index.unwrap_or_default()];
    let sum: Vec<_> = sum.into_iter().filter(|part| !part.is_empty()).collect();
    if of.base == Base::Here && offset != 0 {
        let offset = if of.narrow { i64::from(offset as i32) } else { offset };
        return format!("[{base}+0x{:x}]", offset.cast_unsigned());
    }
    // A sign and a magnitude; only 32 bits count if the address is narrow.
    let offset = if of.narrow { i64::from(offset as i32) } else { offset };
    let sign = if offset < 0 { '-' } else { '+' };
    let tail = if offset == 0 { String::new() } else { format!("{sign}0x{:x}", offset.unsigned_abs()) };
    format!("[{}{tail}]", sum.join("+"))
}

/// Prefixes that objdump writes out and that change nothing for what is simulated.
const IDLE: [&str; 14] = [
    "cs", "ds", "es", "ss", "data16", "bnd", "notrack", "repz", "repnz", "xacquire", "xrelease", "rep", "fs",
    "gs",
];

/// objdump's text without comments, symbol names and idle prefixes, and without its notations for absent
/// parts.
pub(crate) fn plain(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    let text = text.split('<').next().unwrap_or_default();
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let is_idle = |word: &str| IDLE.contains(&word) || word.starts_with("rex") || word == "addr32";
    let idle = words.iter().take_while(|word| is_idle(word)).count().min(words.len().saturating_sub(1));
    let counts_narrow = words[..idle].contains(&"addr32") && words[idle].starts_with("loop");
    words.drain(..idle);
    if counts_narrow {
        words.insert(0, "addr32");
    }
    let mut text = words.join(" ").replace("movabs", "mov");
    for hint in [",pt ", ",pn "] {
        text = text.replacen(hint, " ", 1);
    }
    let lea = text.starts_with("lea");
    for segment in ["cs:", "ds:", "es:", "ss:"]
        .into_iter()
        .chain(if lea { &["fs:", "gs:"][..] } else { &[] }.iter().copied())
    {
        text = text.replace(segment, "");
    }
    for idle in ["riz", "eiz"] {
        for scale in [1, 2, 4, 8] {
            text = text.replace(&format!("+{idle}*{scale}"), "");
            text = alone(&text, &format!("[{idle}*{scale}"), idle == "eiz");
        }
    }
    text = text.replace("+0x0]", "]").replace("-0x0]", "]");
    // objdump writes a branch's target without 0x if the target has a name.
    if ["j", "call", "loop", "addr32 loop"].iter().any(|near| text.starts_with(near)) && !text.contains("PTR")
    {
        text = text.replacen(" 0x", " ", 1);
    }
    // A displacement alone is in brackets only if the encoding has room for an index.
    match (text.find("[0x"), text.find(']')) {
        (Some(open), Some(close)) => {
            format!("{}{}{}", &text[..open], &text[open + 1..close], &text[close + 1..])
        }
        _ => text,
    }
}

/// Replaces a bracket with an absent index and a displacement by the displacement's number.
fn alone(text: &str, index: &str, narrow: bool) -> String {
    let parsed = text.split_once(index).and_then(|(head, tail)| {
        let (offset, tail) = tail.split_once(']')?;
        let value = u64::from_str_radix(offset.get(1..)?.strip_prefix("0x")?, 16).ok()?;
        let value = if offset.starts_with('-') { value.wrapping_neg() } else { value };
        let value = if narrow { value & 0xFFFF_FFFF } else { value };
        Some(format!("{head}0x{value:x}{tail}"))
    });
    parsed.unwrap_or_else(|| text.to_owned())
}
