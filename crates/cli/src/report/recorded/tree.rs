//! Trees of calls, added up: what a function calls, and folded stacks.
//!
//! In: calls as they begin and end. Out: at the end, the tree below a function in the form of `graph`, or a line for each
//! stack with its own time in nanoseconds. Does not: know files.

use std::collections::HashMap;
use std::io::Write;

use trapline::ProbeSpec;
use trapline::recorded::{Begun, Ended, Function, Process, Thread, Ticks, Visit};

use super::{Names, Text};
use crate::report::graph::{Drawn, draw};
use crate::report::site::nearness;

/// All calls of a function at one place in the tree.
#[derive(Debug, Default)]
struct Node {
    function: usize,
    calls: u64,
    total: u64,
    below: Vec<usize>,
}

/// Most levels of a tree. Calls that are deeper count at its last level.
const DEEPEST: usize = 1000;

/// A tree that grows. Node 0 stands above all others of a process, and has no function.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The function whose calls are shown, and how many levels below it; `None` for folded stacks.
    root: Option<(ProbeSpec, usize)>,
    names: Names,
    is_root: Vec<bool>,
    nodes: Vec<Node>,
    index: HashMap<(usize, usize), usize>,
    /// By thread: the nodes of its calls that have not ended.
    open: Vec<Vec<usize>>,
    lines: Vec<u8>,
}

impl Tree {
    fn new(root: Option<(ProbeSpec, usize)>) -> Self {
        Self {
            root,
            names: Names::default(),
            is_root: Vec::new(),
            nodes: vec![Node::default()],
            index: HashMap::new(),
            open: Vec::new(),
            lines: Vec::new(),
        }
    }
    /// The tree below a function.
    pub(crate) fn below(root: ProbeSpec, depth: usize) -> Self {
        Self::new(Some((root, depth)))
    }
    /// Folded stacks.
    pub(crate) fn folded() -> Self {
        Self::new(None)
    }
    fn node(&mut self, above: usize, function: usize) -> usize {
        let next = self.nodes.len();
        let node = *self.index.entry((above, function)).or_insert(next);
        if node == next {
            self.nodes.push(Node { function, ..Node::default() });
            self.nodes[above].below.push(node);
        }
        node
    }
    /// The outermost nodes of the root's function, below a node.
    fn roots(&self, at: usize, found: &mut Vec<usize>) {
        for &node in &self.nodes[at].below {
            match self.is_root[self.nodes[node].function] {
                true => found.push(node),
                false => self.roots(node, found),
            }
        }
    }
    /// The sums of some nodes of one function, with what is below them.
    fn sums(&self, of: &[usize], depth: usize, ticks: Ticks) -> Drawn<'_> {
        let sum = |part: fn(&Node) -> u64| of.iter().map(|&node| part(&self.nodes[node])).sum::<u64>();
        let label = of.first().map_or("", |&node| self.names.get(self.nodes[node].function));
        let (calls, total_ns) = (sum(|node| node.calls), ticks.nanos(sum(|node| node.total)));
        let mut below: Vec<(usize, Vec<usize>)> = Vec::new();
        for &node in of.iter().filter(|_| depth > 0).flat_map(|&node| &self.nodes[node].below) {
            let function = self.nodes[node].function;
            match below.iter_mut().find(|(other, _)| *other == function) {
                Some((_, nodes)) => nodes.push(node),
                None => below.push((function, vec![node])),
            }
        }
        let below = below.iter().map(|(_, nodes)| self.sums(nodes, depth - 1, ticks)).collect();
        Drawn { label, calls, total_ns, below }
    }
    fn fold(&self, at: usize, stack: &mut String, ticks: Ticks, lines: &mut Vec<u8>) {
        for &node in &self.nodes[at].below {
            let (len, name) = (stack.len(), self.names.get(self.nodes[node].function));
            if !stack.is_empty() {
                stack.push(';');
            }
            // A semicolon separates functions, and a space comes before the number.
            stack.extend(name.chars().map(|one| if matches!(one, ';' | ' ') { '_' } else { one }));
            let within = self.nodes[node].below.iter().map(|&below| self.nodes[below].total).sum();
            let own = ticks.nanos(self.nodes[node].total.saturating_sub(within));
            if own > 0 {
                // Writing into memory does not fail.
                drop(writeln!(lines, "{stack} {own}"));
            }
            self.fold(node, stack, ticks, lines);
            stack.truncate(len);
        }
    }
}

impl Visit for Tree {
    fn function(&mut self, function: &Function) {
        self.names.add(function);
        let is_root = self.root.as_ref().is_some_and(|(root, _)| nearness(root, &function.site).is_some());
        self.is_root.push(is_root);
    }
    fn thread(&mut self, _: Thread, _: &Process) {
        self.open.push(Vec::new());
    }
    fn begun(&mut self, call: &Begun) {
        let open = &self.open[call.thread];
        let above = open.last().copied().unwrap_or(0);
        let above = if open.len() < DEEPEST { above } else { open[DEEPEST - 2] };
        let node = self.node(above, call.function);
        self.nodes[node].calls += 1;
        self.open[call.thread].push(node);
    }
    fn ended(&mut self, ended: &Ended) {
        let Some(node) = self.open[ended.call.thread].pop() else { return };
        self.nodes[node].total += ended.end - ended.call.begin;
    }
}

impl Text for Tree {
    fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }
    fn end(&mut self, ticks: Ticks) {
        let mut lines = Vec::new();
        match &self.root {
            Some((root, depth)) => {
                let mut found = Vec::new();
                self.roots(0, &mut found);
                lines.extend_from_slice(b"# total time  (calls) function\n");
                match found.is_empty() {
                    true => {
                        drop(writeln!(lines, "no call of {} was recorded", root.text));
                    }
                    false => {
                        let drawn = draw(&self.sums(&found, *depth, ticks));
                        lines.extend_from_slice(drawn.as_bytes());
                    }
                }
            }
            None => self.fold(0, &mut String::new(), ticks, &mut lines),
        }
        self.lines.append(&mut lines);
    }
}
