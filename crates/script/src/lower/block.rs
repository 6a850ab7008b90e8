//! One block → what the target counts for it.
//!
//! In: a block of a program's hits. Out: [`Counted`], or why it is interpreted. It consists of statements that add to
//! maps, perhaps behind a condition; one table must serve all of them. Does not: look at other blocks.

use super::expression::{Why, bits, condition, number};
use crate::attach::Probe;
use crate::calls::Meaning;
use crate::counted::{Counted, Group, Part, Table, Update};
use crate::program::{Block, Op, Program, Step, SumArgs, Typed};
use crate::tree::Binary;
use crate::types::{Sum, Type};
use crate::value::Value;
use crate::word::Word;

/// What the target counts for a block.
pub(super) fn counted(program: &Program, block: &Block) -> Result<Counted, Why> {
    if !block.probes.iter().all(Probe::is_of_program) {
        return Err("it also runs where no program is hit".to_owned());
    }
    let (conditions, steps) = guarded(&block.body)?;
    if steps.is_empty() {
        return Err("it adds to no map".to_owned());
    }
    let all = conditions.into_iter().reduce(|all, one| Word::binary(Binary::And, all, one));
    let mut counted = Counted { condition: all, group: Group::All, table: Table::Hits, updates: Vec::new() };
    for step in steps {
        let (group, table, update) = update(program, step)?;
        join(&mut counted, group, table, &update)?;
        counted.updates.push(update);
    }
    // A group that only one of several updates has is fine: the others are about all hits.
    let is_mark = block.probes.iter().any(|probe| matches!(probe, Probe::Usdt(..)));
    let is_plain = counted.condition.is_none() && counted.group == Group::All && counted.table == Table::Hits;
    match is_mark && !is_plain {
        true => Err("of a USDT probe the target counts all hits, and knows no values".to_owned()),
        false => Ok(counted),
    }
}

/// The conditions in front of a block's statements, and those.
fn guarded(body: &[Step]) -> Result<(Vec<Word>, &[Step]), Why> {
    let (mut conditions, mut steps) = (Vec::new(), body);
    while let [Step::Do(value)] = steps {
        match &*value.op {
            Op::If { condition: holds, then, other } if is_nothing(other) => {
                conditions.push(condition(holds)?);
                steps = inner(then).ok_or("it chooses between values")?;
            }
            _ => match inner(value) {
                Some(inner) => steps = inner,
                None => break,
            },
        }
    }
    Ok((conditions, steps))
}

fn is_nothing(value: &Typed) -> bool {
    matches!(&*value.op, Op::Zero) && value.ty.is_none()
}

/// The statements of a block without a value.
fn inner(value: &Typed) -> Option<&[Step]> {
    match &*value.op {
        Op::Block { steps, value } if is_nothing(value) => Some(steps),
        _ => None,
    }
}

/// What a statement adds to, and what of.
fn update(program: &Program, step: &Step) -> Result<(Group, Table, Update), Why> {
    let (map, key, value) = match step {
        Step::SetMap { map, key, value } => (*map, key.as_ref(), value),
        Step::Do(value) => return Err(what_else(value)),
        Step::Set(..) => return Err("it has variables".to_owned()),
        _ => return Err("it does more than add to maps".to_owned()),
    };
    let info = &program.maps[map];
    let Op::Sum(sum, added, args) = &*value.op else {
        return Err(match &info.value {
            Type::Sum(..) => format!("what it adds to {} is chosen at the hit", info.name),
            _ => format!("it assigns to {}", info.name),
        });
    };
    let signed = info.value.is_signed() || value.ty.is_signed();
    let table = match (sum, args) {
        (Sum::Count, _) => Table::Hits,
        (Sum::Min | Sum::Max, _) => Table::Sums(number(added, !signed)?),
        (Sum::Total | Sum::Avg | Sum::Stats, _) => {
            Table::Sums(number(added, !signed).or_else(|_| number(added, signed))?)
        }
        (Sum::Hist, SumArgs::Hist(0)) => Table::Powers(number(added, false)?),
        (Sum::Lhist, &SumArgs::Lhist { min, max, step }) => {
            let count = u32::try_from((max - min) / step).map_err(|_| "it has too many steps")?;
            Table::Steps { of: number(added, false)?, min, step, count }
        }
        (Sum::Hist, _) => return Err(format!("{} has parts of powers of two", info.name)),
        _ => return Err(format!("{} goes by time", info.name)),
    };
    let is_tuple = key.is_some_and(|key| matches!(&*key.op, Op::Tuple(_)));
    let (group, key) = keyed(key)?;
    Ok((group, table, Update { map, key, is_tuple }))
}

/// What a statement does besides adding to maps.
fn what_else(value: &Typed) -> String {
    match &*value.op {
        Op::Format { .. } | Op::Call { meaning: Meaning::Print, .. } => "it writes",
        Op::OnMap { .. } | Op::Step { .. } | Op::Find { .. } => "it reads or changes maps",
        Op::If { .. } => "it chooses what to do",
        _ => "it does more than add to maps",
    }
    .to_owned()
}

/// The parts of a key, and what hits are grouped by for it.
fn keyed(key: Option<&Typed>) -> Result<(Group, Vec<Part>), Why> {
    let mut group = Group::All;
    let parts: &[Typed] = match key {
        None => &[],
        Some(key) => match (&*key.op, &key.ty) {
            (Op::Tuple(parts), _) => parts,
            (_, Type::Tuple(_) | Type::Record(_)) => {
                return Err("its key is put together elsewhere".to_owned());
            }
            _ => std::slice::from_ref(key),
        },
    };
    let mut key = Vec::new();
    for part in parts {
        let (one, by) = key_part(part)?;
        if let Some(by) = by
            && std::mem::replace(&mut group, by) != Group::All
        {
            return Err("two parts of a key differ from hit to hit".to_owned());
        }
        key.push(one);
    }
    Ok((group, key))
}

fn key_part(part: &Typed) -> Result<(Part, Option<Group>), Why> {
    let plain = |part| Ok((part, None));
    match &*part.op {
        Op::Int(value) => plain(Part::Constant(Value::Int(*value))),
        Op::Text(text) if matches!(part.ty, Type::Text(_)) => {
            plain(Part::Constant(Value::Text(text.clone())))
        }
        Op::Call { meaning, args } if args.is_empty() => match meaning {
            Meaning::Func => plain(Part::Func),
            Meaning::Probe => plain(Part::Probe),
            Meaning::Probetype => plain(Part::Sort),
            Meaning::Pid => plain(Part::Pid),
            Meaning::Tid => Ok((Part::Group, Some(Group::Thread))),
            Meaning::Comm => Err("names of threads are not known to the target".to_owned()),
            _ => Ok((Part::Group, Some(Group::By(bits(part)?)))),
        },
        _ => Ok((Part::Group, Some(Group::By(bits(part)?)))),
    }
}

/// Lets one table serve another update, too. `count` needs hits, which every table has.
fn join(counted: &mut Counted, group: Group, table: Table, update: &Update) -> Result<(), Why> {
    let others_are_of_all =
        counted.table == Table::Hits && counted.updates.iter().all(|other| !other.is_grouped());
    match (&counted.group, group) {
        (a, b) if *a == b => {}
        (_, Group::All) if table == Table::Hits && !update.is_grouped() => {}
        (Group::All, b) if others_are_of_all => counted.group = b,
        _ => return Err("one table does not serve all its maps".to_owned()),
    }
    match (&counted.table, table) {
        (a, b) if *a == b => Ok(()),
        (_, Table::Hits) => Ok(()),
        (Table::Hits, b) => {
            counted.table = b;
            Ok(())
        }
        _ => Err("one table does not serve all its maps".to_owned()),
    }
}
