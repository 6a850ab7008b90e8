//! Which blocks are counted in the target (LOW-2), and that this changes nothing (LOW-1): the same hits, interpreted or added
//! up by tables as the target has them, leave the same maps.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use common::Known;
use trapline_script::{
    Amount, Binary, Compiled, Counted, Fate, Group, Hit, Machine, Options, Source, Style, Table, Totals,
    Unary, Width, Word, awaited, compile, fates,
};

fn compiled(script: &str) -> Compiled {
    compile(Source::new("stdin", script.as_bytes()), &Options::default())
        .unwrap_or_else(|errors| panic!("{script}\n{errors}"))
}

/// `c` for each block that is counted in the target, `i` for each that is interpreted, `-` for others.
fn letters(script: &str, beside: &[&[usize]]) -> String {
    let beside: Vec<BTreeSet<usize>> = beside.iter().map(|blocks| blocks.iter().copied().collect()).collect();
    let letter = |fate: &Fate| match fate {
        Fate::Own => '-',
        Fate::Read(_) => 'i',
        Fate::Counted(_) => 'c',
    };
    fates(&compiled(script).program, &beside, &|_, _| true).iter().map(letter).collect()
}

/// Why the first block that is interpreted is.
fn why(script: &str) -> String {
    let fates = fates(&compiled(script).program, &[], &|_, _| true);
    let why = |fate| if let Fate::Read(why) = fate { Some(why) } else { None };
    fates.into_iter().find_map(why).unwrap_or_default()
}

#[test]
fn blocks_that_only_add_are_counted_in_the_target() {
    for body in [
        "@ = count()",
        "@[arg0] = count()",
        "@[func, arg0 % 7] = count(); @a[func] = count(); @b = count()",
        "@[tid] = count()",
        "@[pid, \"x\", 5, probe, probetype, tid] = sum(arg1)",
        "@ = hist(arg0)",
        "@[arg3] = lhist(arg0 & 255, 0, 100, 10)",
        "@a = sum(arg0); @b = avg(arg0); @c = max(arg0); @d = stats(arg0); @e = count()",
        "if (arg0 > 5) { @ = count() }",
        "@[(int8)arg0] = count()",
        "@[(uint16)(arg0 + arg1)] = count()",
        "@ = min((uint64)arg0 >> 3)",
        "@[!arg0] = count()",
    ] {
        assert_eq!(
            letters(&format!("uprobe:f:g {{ {body} }}"), &[]),
            "c",
            "{body}: {}",
            why(&format!("uprobe:f:g {{ {body} }}"))
        );
    }
    for (block, letter) in [
        ("uprobe:f:g /arg0 == 1 && (int32)arg1 < -3/ { @ = count() }", "c"),
        ("uprobe:f:g /tid == 5 || arg0/ { @ = count() }", "c"),
        ("uretprobe:f:g /retval > 3/ { @[retval] = count() }", "c"),
        ("usdt:f:g:h { @[probe, pid] = count() }", "c"),
        ("usdt:f:g:h { @[arg0] = count() }", "i"),
        ("usdt:f:g:h /arg0/ { @ = count() }", "i"),
        ("uprobe:f:g, i:s:1 { @ = count() }", "i"),
    ] {
        assert_eq!(letters(block, &[]), letter, "{block}");
    }
}

#[test]
fn all_other_blocks_say_why_not() {
    for (body, reason) in [
        ("print(1)", "it writes"),
        ("@x = arg0", "it assigns to @x"),
        ("@x++", "it reads or changes maps"),
        ("$x = 5; @ = count()", "it has variables"),
        ("@ = hist(arg0, 2)", "@ has parts of powers of two"),
        ("@[comm] = count()", "names of threads are not known to the target"),
        ("@[str(arg0)] = count()", "the target computes numbers only, not string[64]"),
        ("@[nsecs] = count()", "the result of a function is not known to the target"),
        ("@[arg0, arg1] = count()", "two parts of a key differ from hit to hit"),
        ("@[arg0 / arg1] = count()", "the target divides by constants above 0 only"),
        ("@[arg0 / 0] = count()", "the target divides by constants above 0 only"),
        ("@[arg0 << arg1] = count()", "the target shifts by constants only"),
        ("@[tid % 4] = count()", "tid is known to the target as a key, and compared with a number"),
        ("@[arg0] = count(); @s = sum(arg0)", "one table does not serve all its maps"),
        ("@a = sum(arg0); @b = sum(arg1)", "one table does not serve all its maps"),
        ("@a = hist(arg0); @b = sum(arg0)", "one table does not serve all its maps"),
        ("if (arg0) { @ = count() } else { @x = count() }", "it chooses what to do"),
        ("@ = arg0 ? count() : sum(1)", ""),
        ("", "it adds to no map"),
    ] {
        let script = format!("uprobe:f:g {{ {body} }}");
        if let Ok(compiled) = compile(Source::new("stdin", script.as_bytes()), &Options::default()) {
            let fates = fates(&compiled.program, &[], &|_, _| true);
            assert!(
                matches!(&fates[0], Fate::Read(why) if reason.is_empty() || why == reason),
                "{body}: {fates:?}"
            );
        } else {
            assert_eq!(reason, "", "{body}");
        }
    }
}

#[test]
fn a_map_comes_from_one_side() {
    for (script, expected) in [
        // One block that reads a map takes all others back, and the maps of those too.
        ("uprobe:f:a { @x = count() } uprobe:f:b { print(@x) }", "ii"),
        (
            "uprobe:f:a { @x = count(); @y = count() } uprobe:f:b { @y = count() } uprobe:f:c /@x/ { @z = count() }",
            "iii",
        ),
        ("uprobe:f:a { @x = count() } uprobe:f:b { @x = count() } uprobe:f:c { @y = count() }", "ccc"),
        ("uprobe:f:a { @x[tid] = count() } uprobe:f:b { delete(@x, tid) }", "ii"),
        // Blocks of our own may do anything, but extremes since a moment are not to be had.
        ("uprobe:f:a { @x = count() } i:s:1 { print(@x); clear(@x); @x = count() } end { zero(@x) }", "c--"),
        ("uprobe:f:a { @x = min(arg0) } i:s:1 { print(@x) }", "c-"),
        ("uprobe:f:a { @x = min(arg0) } i:s:1 { clear(@x) }", "i-"),
        ("uprobe:f:a { @x[arg0] = max(arg0) } i:s:1 { delete(@x, 1) }", "i-"),
        ("let @x = lruhash(5); uprobe:f:a { @x[arg0] = count() }", "i"),
        ("let @x = hash(100000); uprobe:f:a { @x[arg0] = count() }", "i"),
        ("let @x = hash(100000); uprobe:f:a { @x[func] = count() }", "c"),
    ] {
        assert_eq!(letters(script, &[]), expected, "{script}");
    }
    let script = "uprobe:f:a { @x = count() } i:s:1 { @y = 1 } i:s:2 { for ($kv : @z) { if (@x > 5) { exit() } } } end { @z[1] = 2 }";
    let program = compiled(script).program;
    assert_eq!(awaited(&program, &fates(&program, &[], &|_, _| true)), [true, false, true, false]);
    assert_eq!(awaited(&program, &[]), [false; 4]);
}

#[test]
fn returns_of_a_function_are_counted_once() {
    let script = |other: &str| format!("uretprobe:f:g {{ @r[retval] = count() }} {other}");
    let both: &[&[usize]] = &[&[1], &[0]];
    for (other, expected) in [
        ("uprobe:f:g { @e = count() }", "cc"),
        ("uprobe:f:g { print(arg0) }", "ii"),
        ("uretprobe:f:g { @e = count() }", "ii"),
        ("usdt:f:g:h { @e = count() }", "cc"),
    ] {
        assert_eq!(letters(&script(other), both), expected, "{other}");
    }
    assert_eq!(letters(&script(""), &[&[0]]), "i");
    let program = compiled(
        "uprobe:f:a { @x[arg0] = count() } uprobe:f:* { @x[arg0] = count() } uprobe:f:* { @y = count() }",
    )
    .program;
    let fates = fates(&program, &[], &|block, counted| block != 1 || counted.group == Group::All);
    assert!(matches!(&fates[..], [Fate::Read(_), Fate::Read(_), Fate::Counted(_)]), "{fates:?}");
    assert_eq!(letters(&script("uprobe:f:x { print(1) }"), &[&[], &[]]), "ci");
}

/// The value of a word by its own rules, and whether it has no sign.
fn value(word: &Word, hit: &Hit) -> u64 {
    let wide = |bits: u64, width: &Width| {
        let over = 64 - u32::from(width.bits);
        if width.signed {
            ((bits << over).cast_signed() >> over).cast_unsigned()
        } else {
            bits << over >> over
        }
    };
    let number = |word: &Word| {
        let bits = value(word, hit);
        if word.is_unsigned() { i128::from(bits) } else { i128::from(bits.cast_signed()) }
    };
    match word {
        Word::Number(number, _) => *number,
        Word::Argument(index, width) => wide(hit.args[usize::from(*index)], width),
        Word::Returned(width) => wide(hit.retval, width),
        Word::Thread => hit.tid.into(),
        Word::Unary(Unary::Not, of) => u64::from(value(of, hit) == 0),
        Word::Unary(Unary::Invert, of) => !value(of, hit),
        Word::Unary(_, of) => value(of, hit).wrapping_neg(),
        Word::Binary(op, left, right) => {
            let (a, b) = (value(left, hit), value(right, hit));
            let (x, y) = (number(left), number(right));
            match op {
                Binary::Or => u64::from(a != 0 || b != 0),
                Binary::And => u64::from(a != 0 && b != 0),
                Binary::BitOr => a | b,
                Binary::BitXor => a ^ b,
                Binary::BitAnd => a & b,
                Binary::Equal => u64::from(x == y),
                Binary::Unequal => u64::from(x != y),
                Binary::Less => u64::from(x < y),
                Binary::LessEqual => u64::from(x <= y),
                Binary::Greater => u64::from(x > y),
                Binary::GreaterEqual => u64::from(x >= y),
                Binary::Left => a << (b & 63),
                Binary::Right if left.is_unsigned() => a >> (b & 63),
                Binary::Right => (a.cast_signed() >> (b & 63)).cast_unsigned(),
                Binary::Add => a.wrapping_add(b),
                Binary::Subtract => a.wrapping_sub(b),
                Binary::Multiply => a.wrapping_mul(b),
                Binary::Divide | Binary::Remainder if left.is_unsigned() => {
                    if *op == Binary::Divide {
                        a / b
                    } else {
                        a % b
                    }
                }
                Binary::Divide => (a.cast_signed() / b.cast_signed()).cast_unsigned(),
                Binary::Remainder => (a.cast_signed() % b.cast_signed()).cast_unsigned(),
            }
        }
    }
}

/// Counts hits as the target does: one table for the block.
fn tables(counted: &Counted, hits: &[Hit]) -> BTreeMap<u64, Amount> {
    let mut rows: BTreeMap<u64, Amount> = BTreeMap::new();
    for hit in hits.iter().filter(|hit| counted.condition.as_ref().is_none_or(|word| value(word, hit) != 0)) {
        let group = match &counted.group {
            Group::All => 0,
            Group::Thread => hit.tid.into(),
            Group::By(word) => value(word, hit),
        };
        let row = rows.entry(group).or_default();
        row.hits += 1;
        let number = |of: &Word| {
            let bits = value(of, hit);
            if of.is_unsigned() { i128::from(bits) } else { i128::from(bits.cast_signed()) }
        };
        match &counted.table {
            Table::Hits => {}
            Table::Sums(of) => {
                let number = number(of);
                row.sum += number;
                let (least, greatest) = row.extremes.unwrap_or((number, number));
                row.extremes = Some((least.min(number), greatest.max(number)));
            }
            Table::Powers(of) => {
                let bits = value(of, hit);
                let cell = if number(of) < 0 { 0 } else { 65 - bits.leading_zeros() };
                *row.buckets.entry(cell.into()).or_default() += 1;
            }
            Table::Steps { of, min, step, count } => {
                let number = number(of);
                let over = (number - i128::from(*min)) / i128::from(*step);
                let cell =
                    if number < i128::from(*min) { 0 } else { over.min(i128::from(*count)) as u64 + 1 };
                *row.buckets.entry(cell).or_default() += 1;
            }
        }
    }
    rows
}

/// The maps that hits leave. With `counted`, as the target counts them; twice in between, the maps are brought up to date.
fn maps(script: &str, hits: &[Hit], counted: Option<&Counted>) -> String {
    let mut world = Known::default();
    let mut machine = Machine::new(Rc::new(compiled(script).program), Style::default(), &mut world);
    match counted {
        None => hits.iter().for_each(|hit| machine.run(0, hit, &mut world)),
        Some(counted) => {
            for so_far in [hits.len() / 3, hits.len() / 2, hits.len()] {
                let mut totals = Totals::default();
                let rows = tables(counted, &hits[..so_far]);
                for update in &counted.updates {
                    if update.is_grouped() {
                        rows.iter().for_each(|(group, amount)| totals.add(update, &hits[0], *group, amount));
                    } else if counted.table == Table::Hits {
                        let all = rows.values().map(|amount| amount.hits).sum();
                        totals.add(update, &hits[0], 0, &Amount { hits: all, ..Amount::default() });
                    } else {
                        rows.values().for_each(|amount| totals.add(update, &hits[0], 0, amount));
                    }
                }
                machine.settle(totals);
            }
        }
    }
    machine.finish(&mut world);
    String::from_utf8_lossy(&world.output).into_owned() + &String::from_utf8_lossy(&world.errors)
}

/// Random scripts, always the same ones.
struct Scripts(u64);

impl Scripts {
    /// The next number (SplitMix64, Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
    fn one_of(&mut self, words: &[&str]) -> String {
        words[self.below(words.len())].to_owned()
    }
    fn constant(&mut self) -> String {
        self.one_of(&[
            "0",
            "1",
            "2",
            "3",
            "7",
            "10",
            "63",
            "64",
            "255",
            "1000",
            "0x7fffffff",
            "0xffffffff",
            "0x7fffffffffffffff",
            "0xffffffffffffffff",
            "-1",
            "-5",
            "-128",
        ])
    }
    fn expression(&mut self, depth: usize, leaves: &[&str]) -> String {
        let (a, b) = (depth.saturating_sub(1), depth.saturating_sub(1));
        match self.below(if depth == 0 { 3 } else { 10 }) {
            0 | 1 => self.one_of(leaves),
            2 => self.constant(),
            3 => {
                let ty = self.one_of(&[
                    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
                ]);
                format!("({ty})({})", self.expression(a, leaves))
            }
            4 => {
                let op = self.one_of(&["-", "~", "!"]);
                format!("{op}({})", self.expression(a, leaves))
            }
            5 => {
                let (op, by) =
                    (self.one_of(&["/", "%", "<<", ">>"]), self.one_of(&["1", "2", "3", "10", "63"]));
                format!("({}) {op} {by}", self.expression(a, leaves))
            }
            _ => {
                let op = self
                    .one_of(&["+", "-", "*", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "&&", "||"]);
                format!("({}) {op} ({})", self.expression(a, leaves), self.expression(b, leaves))
            }
        }
    }
    fn script(&mut self) -> String {
        let (probe, leaves): (_, &[&str]) = match self.below(3) {
            0 => ("uretprobe", &["retval"]),
            _ => ("uprobe", &["arg0", "arg1", "arg2", "arg5"]),
        };
        let depth = self.below(4);
        let value = self.expression(depth, leaves);
        let key = match self.below(4) {
            0 => String::new(),
            1 => format!("[{}]", self.expression(depth, leaves)),
            2 => format!("[func, {}, 5]", self.expression(depth, leaves)),
            _ => "[tid, probe]".to_owned(),
        };
        let sum = match self.below(8) {
            0 => "count()".to_owned(),
            1 => format!("hist({value})"),
            2 => format!("lhist({value}, {})", self.one_of(&["0, 100, 10", "3, 50, 7", "1, 2, 1"])),
            nth => format!("{}({value})", ["sum", "avg", "min", "max", "stats"][nth - 3]),
        };
        let predicate = match self.below(3) {
            0 => format!("/{}/", self.expression(2, leaves)),
            _ => String::new(),
        };
        let more =
            if self.below(4) == 0 { format!("@n = count(); @m{key} = count();") } else { String::new() };
        format!("{probe}:f:g {predicate} {{ @{key} = {sum}; {more} }}")
    }
    fn hits(&mut self) -> Vec<Hit> {
        let edges = [
            0,
            1,
            2,
            9,
            99,
            100,
            127,
            128,
            255,
            1 << 31,
            u64::from(u32::MAX),
            i64::MAX as u64,
            i64::MIN as u64,
            u64::MAX,
            u64::MAX - 4,
        ];
        let word = |scripts: &mut Self| match scripts.below(3) {
            0 => scripts.next(),
            1 => scripts.next() % 200,
            _ => edges[scripts.below(edges.len())],
        };
        let hit = |scripts: &mut Self| Hit {
            probe: "uprobe:f:g".to_owned(),
            sort: "uprobe",
            func: "g".to_owned(),
            pid: 5,
            tid: 10 + scripts.below(3) as u32,
            args: (0..6).map(|_| word(scripts)).collect(),
            retval: word(scripts),
            ..Hit::default()
        };
        (0..60).map(|_| hit(self)).collect()
    }
}

#[test]
fn low_1_the_target_counts_what_the_interpreter_counts() {
    let mut scripts = Scripts(1);
    let (mut counted, mut all) = (0, 0);
    for _ in 0..1500 {
        let script = scripts.script();
        let Ok(compiled) = compile(Source::new("stdin", script.as_bytes()), &Options::default()) else {
            continue;
        };
        all += 1;
        let fates = fates(&compiled.program, &[], &|_, _| true);
        let Fate::Counted(block) = &fates[0] else { continue };
        counted += 1;
        let hits = scripts.hits();
        assert_eq!(maps(&script, &hits, Some(block)), maps(&script, &hits, None), "{script}\n{block:?}");
    }
    assert!(counted * 4 > all && counted > 100, "{counted} of {all}");
}

#[test]
fn what_a_script_does_to_a_map_meanwhile_stays_done() {
    let script = "uprobe:f:g { @n[arg0] = count(); @all = count() } i:s:1 { print(@n); clear(@n); zero(@all); } i:s:2 { delete(@n, 1); }";
    let program = compiled(script).program;
    let fates = fates(&program, &[], &|_, _| true);
    let Fate::Counted(block) = &fates[0] else { panic!("{fates:?}") };
    let mut world = Known::default();
    let mut machine = Machine::new(Rc::new(program), Style { json: true, ..Style::default() }, &mut world);
    let hit = Hit::default();
    let settle = |machine: &mut Machine, rows: &[(u64, u64)], lost: u64| {
        let mut totals = Totals::default();
        for (group, hits) in rows {
            totals.add(&block.updates[0], &hit, *group, &Amount { hits: *hits, ..Amount::default() });
        }
        let hits = rows.iter().map(|(_, hits)| hits).sum();
        totals.add(&block.updates[1], &hit, 0, &Amount { hits, ..Amount::default() });
        totals.lose(&block.updates[0], lost);
        machine.settle(totals);
    };
    settle(&mut machine, &[(1, 5), (2, 6)], 1);
    machine.run(1, &hit, &mut world);
    settle(&mut machine, &[(1, 5), (2, 8), (3, 1)], 3);
    machine.run(1, &hit, &mut world);
    settle(&mut machine, &[(1, 6), (2, 9), (3, 1)], 3);
    machine.run(2, &hit, &mut world);
    machine.finish(&mut world);
    let output = String::from_utf8_lossy(&world.output).into_owned();
    let expected = "{\"type\": \"map\", \"data\": {\"@n\": {\"1\": 5, \"2\": 6}}}\n\
                    {\"type\": \"map\", \"data\": {\"@n\": {\"3\": 1, \"2\": 2}}}\n\
                    {\"type\": \"map\", \"data\": {\"@all\": 2}}\n\
                    {\"type\": \"map\", \"data\": {\"@n\": {\"2\": 1}}}\n";
    assert_eq!(output, expected);
    assert_eq!(String::from_utf8_lossy(&world.errors), "WARNING: @n: 3 updates found no room (4096 keys)\n");
}

#[test]
fn keys_that_find_no_room_in_a_map_are_counted_as_lost() {
    let script = "let @ = hash(2); uprobe:f:g { @[arg0] = count() }";
    let hits: Vec<Hit> = [1, 2, 3, 3, 3, 1].map(|arg| Hit { args: vec![arg; 6], ..Hit::default() }).into();
    let fates = fates(&compiled(script).program, &[], &|_, _| true);
    let Fate::Counted(block) = &fates[0] else { panic!("{fates:?}") };
    let ends = |text: String| {
        text.lines().filter(|line| line.starts_with(['@', 'W'])).collect::<Vec<_>>().join("\n")
    };
    let expected = "@[2]: 1\n@[1]: 2\nWARNING: @: 3 updates found no room (2 keys)";
    assert_eq!(ends(maps(script, &hits, Some(block))), expected);
    assert_eq!(ends(maps(script, &hits, None)), expected);
}
