//! A site's hits, grouped by CPU or thread.
//!
//! In: counters as segments hold them. Out: [`Share`]s, with what is new since the last report.

use std::collections::HashMap;

use trapline_order::Order as _;
use trapline_patch::Segment;

use crate::report::{By, Group, Share};
use crate::threads::Names;

/// Number of a CPU or thread; `None` for all others.
pub(crate) type GroupNumber = Option<u32>;

/// Adds one counter's hits by group. `owned`: each line belongs to one CPU.
pub(crate) fn parts(
    by: By,
    owned: bool,
    segment: &Segment,
    index: u32,
    into: &mut HashMap<GroupNumber, u64>,
) {
    let view = segment.view();
    let mut add = |owner, hits: u64| {
        let sum = into.entry(owner).or_default();
        *sum = sum.wrapping_add(hits);
    };
    match by {
        By::Cpu => {
            let area = segment.counters();
            for line in 0..area.lines {
                let cpu = (line + 1 < area.lines).then_some(line);
                let hits = area.read_line(view, index, line);
                add(cpu, if owned || cpu.is_none() { hits } else { 0 });
                add(None, if owned || cpu.is_none() { 0 } else { hits });
            }
        }
        By::Thread | By::ThreadName => {
            let area = segment.threads();
            area.rows(view).for_each(|(row, thread)| add(thread, area.read(view, row, index)));
        }
    }
}

/// Shares in order: all CPUs, by number; or threads and names that hit something, most hits first.
pub(crate) fn shares(
    by: By,
    now: HashMap<GroupNumber, u64>,
    last: &mut HashMap<GroupNumber, u64>,
    names: &Names,
) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    let mut owners: Vec<GroupNumber> = now.keys().copied().collect();
    owners.order_by_key(|owner| (owner.is_none(), *owner));
    for owner in owners {
        let hits = now[&owner];
        let delta = hits.wrapping_sub(last.get(&owner).copied().unwrap_or(0));
        match (by, owner) {
            (By::Cpu, cpu) => shares.push(Share { group: cpu.map_or(Group::Other, Group::Cpu), hits, delta }),
            _ if hits == 0 => {}
            (_, None) => shares.push(Share { group: Group::Other, hits, delta }),
            (By::Thread, Some(tid)) => {
                let thread = names.get(tid);
                shares.push(Share {
                    group: Group::Thread { tid: thread.tid, comm: thread.comm },
                    hits,
                    delta,
                });
            }
            (By::ThreadName, Some(tid)) => name_share(&mut shares, names.get(tid).comm, hits, delta),
        }
    }
    if by != By::Cpu {
        shares.order_by_key(|share| std::cmp::Reverse(share.hits));
    }
    *last = now;
    shares
}

/// Adds a thread's hits to those of its name.
fn name_share(shares: &mut Vec<Share>, name: Option<String>, hits: u64, delta: u64) {
    for share in shares.iter_mut() {
        if let Group::Name { comm, threads } = &mut share.group
            && *comm == name
        {
            *threads += 1;
            share.hits = share.hits.wrapping_add(hits);
            share.delta = share.delta.wrapping_add(delta);
            return;
        }
    }
    shares.push(Share { group: Group::Name { comm: name, threads: 1 }, hits, delta });
}
