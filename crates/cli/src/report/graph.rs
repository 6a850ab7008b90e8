//! Call trees: what a function's calls called, added up or call by call.
//!
//! In: calls of all functions, roughly in the order in which they end. Out: trees, as text or JSON
//! (docs/guide/json.md). Invariants:
//! - TREE-1 a call's parent is the innermost call of its thread that encloses it in time, whichever of the
//!   two was reported first;
//! - TREE-2 every reported call is in a tree, or counted as left out.
//!
//! Memory is bounded by [`KEPT`]. Does not: write.

use std::collections::HashMap;

use serde::Serialize;
use trapline::{Call, ProbeSpec, Site};
use trapline_order::Order as _;

use super::calls::nanos;
use super::json::{SCHEMA, line};
use super::number::{duration, grouped};
use super::site::nearness;
use crate::report::visible;

/// Limit for the calls kept of one thread. Beyond it, the older half of its outermost calls is added up.
const KEPT: usize = 1 << 18;

/// One call, with the calls that it made.
#[derive(Debug)]
struct Node {
    begin: u64,
    end: u64,
    label: u32,
    below: Vec<Self>,
}

impl Node {
    fn size(&self) -> usize {
        1 + self.below.iter().map(Self::size).sum::<usize>()
    }
}

/// The sum of the calls of one function at one position in the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sum {
    label: u32,
    calls: u64,
    total_ns: u64,
    below: Vec<Self>,
}

#[derive(Serialize)]
struct Shown<'a> {
    function: &'a str,
    calls: u64,
    total_ns: u64,
    self_ns: u64,
    below: Vec<Self>,
}

#[derive(Serialize)]
struct Object<'a> {
    r#type: &'static str,
    schema: u32,
    pid: u32,
    trees: Vec<Shown<'a>>,
    left_out: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    goroutines: bool,
}

/// A thread's calls that are not yet below another call.
#[derive(Debug, Default)]
struct Forest {
    trees: Vec<Node>,
    size: usize,
}

/// The trees of all threads.
#[derive(Debug)]
pub(crate) struct Trees<'a> {
    /// The probes; the first one is the root's.
    probes: &'a [ProbeSpec],
    depth: usize,
    /// Whether each call is shown by itself.
    each: bool,
    labels: Vec<String>,
    numbers: HashMap<String, (u32, bool)>,
    roots: Vec<bool>,
    threads: HashMap<(u32, u32), Forest>,
    sums: HashMap<u32, Vec<Sum>>,
    /// Calls outside of any call of the root function, and calls that were not seen to end; by process.
    left_out: HashMap<u32, u64>,
    /// Processes in which a call may move from thread to thread.
    goroutines: Vec<u32>,
}

impl<'a> Trees<'a> {
    pub(crate) fn new(probes: &'a [ProbeSpec], depth: usize, each: bool) -> Self {
        Self {
            probes,
            depth,
            each,
            labels: Vec::new(),
            numbers: HashMap::new(),
            roots: Vec::new(),
            threads: HashMap::new(),
            sums: HashMap::new(),
            left_out: HashMap::new(),
            goroutines: Vec::new(),
        }
    }
    /// Notes processes in which a call may move from thread to thread, although trees are built by thread.
    pub(crate) fn note_goroutines(&mut self, pids: Vec<u32>) {
        self.goroutines = pids;
    }
    /// Takes calls. Returns the text of those that are over, if each is shown by itself.
    pub(crate) fn add(&mut self, calls: &[Call]) -> String {
        let mut out = String::new();
        for call in calls {
            let Some(took) = call.took else {
                *self.left_out.entry(call.pid).or_default() += 1;
                continue;
            };
            let begin = nanos(call.at);
            let label = self.label(call);
            let node = Node { begin, end: begin.saturating_add(nanos(took)), label, below: Vec::new() };
            let forest = self.threads.entry((call.pid, call.tid)).or_default();
            insert(&mut forest.trees, node);
            forest.size += 1;
            if forest.size > KEPT {
                let half = forest.trees.len().div_ceil(2);
                let over: Vec<Node> = forest.trees.drain(..half).collect();
                forest.size -= over.iter().map(Node::size).sum::<usize>();
                self.take((call.pid, call.tid), over, &mut out);
            }
        }
        out
    }
    /// Takes note that no more calls will come; returns the text of those that are left.
    pub(crate) fn end(&mut self) -> String {
        let mut out = String::new();
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.order_by_key(|(thread, _)| *thread);
        for (thread, forest) in threads {
            self.take(thread, forest.trees, &mut out);
        }
        out
    }
    fn label(&mut self, call: &Call) -> u32 {
        if let Some(&(number, _)) = self.numbers.get(&call.site.probe) {
            return number;
        }
        let (number, is_root) = (self.labels.len() as u32, self.is_root(&call.site));
        self.numbers.insert(call.site.probe.clone(), (number, is_root));
        self.labels.push(call.site.label.clone());
        self.roots.push(is_root);
        number
    }
    /// Whether calls of a site begin trees. If another probe names the site's file and the root's probe does
    /// not match that file, they do not.
    fn is_root(&self, site: &Site) -> bool {
        let Some((root, below)) = self.probes.split_first() else { return false };
        let named = || below.iter().filter_map(|probe| nearness(probe, site)).any(|nearness| nearness > 0);
        nearness(root, site).is_some_and(|nearness| nearness > 0 || !named())
    }
    /// Adds up the outermost calls of the root function in these trees.
    fn take(&mut self, thread: (u32, u32), trees: Vec<Node>, out: &mut String) {
        for node in trees {
            if self.roots[node.label as usize] {
                if self.each {
                    self.draw(&node, thread.1, 0, out);
                }
                add_up(self.sums.entry(thread.0).or_default(), &node, self.depth);
            } else {
                *self.left_out.entry(thread.0).or_default() += 1;
                self.take(thread, node.below, out);
            }
        }
    }
    /// One call in the form in which uftrace replays it.
    fn draw(&self, node: &Node, tid: u32, depth: usize, out: &mut String) {
        let (label, took) = (&self.labels[node.label as usize], duration(node.end - node.begin));
        let indent = "  ".repeat(depth);
        let below = if depth < self.depth { &node.below[..] } else { &[] };
        if below.is_empty() {
            out.push_str(&format!("{took:>10} [{tid:>7}] | {indent}{label}();\n"));
            return;
        }
        out.push_str(&format!("{:>10} [{tid:>7}] | {indent}{label}() {{\n", ""));
        below.iter().for_each(|node| self.draw(node, tid, depth + 1, out));
        out.push_str(&format!("{took:>10} [{tid:>7}] | {indent}}} /* {label} */\n"));
    }
    /// The sums of one process, in the form in which uftrace draws its graphs.
    pub(crate) fn text(&self, pid: u32, name: &str) -> String {
        let mut out = format!("{} ({pid})\n# total time  (calls) function\n", visible::name(name));
        let sums = self.sums.get(&pid).map_or(&[][..], Vec::as_slice);
        for sum in sums {
            out.push_str(&draw(&self.drawn(sum)));
        }
        if sums.is_empty() {
            out.push_str("no call ended\n");
        }
        if let Some(left) = self.left_out.get(&pid) {
            out.push_str(&format!(
                "{} calls are in no tree: outside of it, or not seen to end\n",
                grouped(*left)
            ));
        }
        if self.goroutines.contains(&pid) {
            out.push_str("trees are of threads: what a goroutine called after it had gone on in another thread is below other calls, or none\n");
        }
        out
    }
    fn drawn<'s>(&'s self, sum: &'s Sum) -> Drawn<'s> {
        Drawn {
            label: &self.labels[sum.label as usize],
            calls: sum.calls,
            total_ns: sum.total_ns,
            below: sum.below.iter().map(|below| self.drawn(below)).collect(),
        }
    }
    /// One `graph` object.
    pub(crate) fn object(&self, pid: u32) -> String {
        let sums = self.sums.get(&pid).map_or(&[][..], Vec::as_slice);
        let trees = sums.iter().map(|sum| self.shown(sum)).collect();
        line(&Object {
            r#type: "graph",
            schema: SCHEMA,
            pid,
            trees,
            left_out: self.left_out.get(&pid).copied().unwrap_or(0),
            goroutines: self.goroutines.contains(&pid),
        })
    }
    fn shown(&self, sum: &Sum) -> Shown<'_> {
        let inside: u64 = sum.below.iter().map(|below| below.total_ns).sum();
        Shown {
            function: &self.labels[sum.label as usize],
            calls: sum.calls,
            total_ns: sum.total_ns,
            self_ns: sum.total_ns.saturating_sub(inside),
            below: sum.below.iter().map(|below| self.shown(below)).collect(),
        }
    }
}

/// A tree of sums, to be drawn.
#[derive(Debug)]
pub(crate) struct Drawn<'a> {
    pub(crate) label: &'a str,
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
    pub(crate) below: Vec<Self>,
}

/// Draws a tree in the form in which uftrace draws its graphs.
pub(crate) fn draw(tree: &Drawn<'_>) -> String {
    let mut out = String::new();
    draw_below(tree, "", "", &mut out);
    out
}

fn draw_below(sum: &Drawn<'_>, stem: &str, branch: &str, out: &mut String) {
    let (label, took) = (visible::name(sum.label), duration(sum.total_ns));
    out.push_str(&format!("{took:>12} : {stem}{branch}({}) {label}\n", sum.calls));
    let stem = match branch {
        "" => stem.to_owned(),
        "`-" => format!("{stem}  "),
        _ => format!("{stem}| "),
    };
    for (n, below) in sum.below.iter().enumerate() {
        let last = n + 1 == sum.below.len();
        draw_below(below, &stem, if last { "`-" } else { "+-" }, out);
    }
}

/// Inserts a call among calls that do not overlap and are in order: into the call that encloses it, and
/// around those that it encloses.
fn insert(among: &mut Vec<Node>, mut node: Node) {
    let from = among.partition_point(|other| other.end <= node.begin && other.begin < node.begin);
    if let Some(other) = among.get_mut(from)
        && other.begin <= node.begin
        && node.end <= other.end
        && (other.begin, other.end) != (node.begin, node.end)
    {
        return insert(&mut other.below, node);
    }
    // A call that overlaps another (coroutines) is taken as following it.
    let inside = among[from..].iter().take_while(|other| other.begin >= node.begin && other.end <= node.end);
    let to = from + inside.count();
    node.below = among.splice(from..to, []).collect();
    among.insert(from, node);
}

fn add_up(sums: &mut Vec<Sum>, node: &Node, depth: usize) {
    let known = match sums.iter().position(|sum| sum.label == node.label) {
        Some(known) => known,
        None => {
            sums.push(Sum { label: node.label, ..Sum::default() });
            sums.len() - 1
        }
    };
    let sum = &mut sums[known];
    sum.calls += 1;
    sum.total_ns += node.end - node.begin;
    if depth > 0 {
        node.below.iter().for_each(|below| add_up(&mut sum.below, below, depth - 1));
    }
}

#[cfg(test)]
mod tests;
