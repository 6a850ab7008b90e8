//! Calls as trees, in whichever order they were reported (TREE-1, TREE-2).

use super::Trees;
use std::sync::Arc;
use std::time::Duration;
use trapline::calls::{CallEnd, FloatArguments, OPERANDS};
use trapline::report::Tactic;
use trapline::{Call, Site};

fn call(name: &str, tid: u32, begin: u64, end: u64) -> Call {
    let site = Site {
        probe: format!("uprobe:/bin/x:{name}"),
        aliases: Vec::new(),
        file: "/bin/x".to_owned(),
        offset: 1,
        label: name.to_owned(),
        tactic: Tactic::Jump,
        slot: 0,
    };
    Call {
        pid: 7,
        tid,
        site: Arc::new(site),
        at: Duration::from_nanos(begin),
        arguments: [0; OPERANDS],
        unseen: 0,
        float_arguments: FloatArguments::default(),
        floats: [0; 8],
        texts: Vec::new(),
        fields: Vec::new(),
        kept: Vec::new(),
        stack: None,
        returned: None,
        results: Vec::new(),
        took: Some(Duration::from_nanos(end - begin)),
        how: CallEnd::Returned,
    }
}

fn calls() -> Vec<Call> {
    vec![
        call("leaf", 1, 12, 15),
        call("leaf", 2, 12, 16),
        call("mid", 1, 11, 20),
        call("root", 1, 10, 40),
        call("leaf", 1, 25, 30), // reported a round late
        call("root", 1, 26, 29), // inside that leaf: recursion
        call("leaf", 1, 50, 60),
        call("root", 2, 10, 20),
    ]
}

#[test]
fn calls_stand_below_those_that_hold_them() {
    let root = "root".parse().expect("a probe");
    let mut trees = Trees::new(std::slice::from_ref(&root), usize::MAX, true);
    let each = trees.add(&calls()) + &trees.end();
    let expected = "           [      1] | root() {
           [      1] |   mid() {
      3 ns [      1] |     leaf();
      9 ns [      1] |   } /* mid */
           [      1] |   leaf() {
      3 ns [      1] |     root();
      5 ns [      1] |   } /* leaf */
     30 ns [      1] | } /* root */
           [      2] | root() {
      4 ns [      2] |   leaf();
     10 ns [      2] | } /* root */
";
    assert_eq!(each, expected);
    let expected = "x (7)
# total time  (calls) function
       40 ns : (2) root
        9 ns : +-(1) mid
        3 ns : | `-(1) leaf
        9 ns : `-(2) leaf
        3 ns :   `-(1) root
1 calls are in no tree: outside of it, or not seen to end
";
    assert_eq!(trees.text(7, "x"), expected);
    let object: serde_json::Value = serde_json::from_str(&trees.object(7)).expect("JSON");
    assert_eq!((&object["trees"][0]["self_ns"], &object["left_out"]), (&22.into(), &1.into()));
    assert_eq!(trees.text(8, "y"), "y (8)\n# total time  (calls) function\nno call ended\n");
}

#[test]
fn depth_is_bounded() {
    let root = "root".parse().expect("a probe");
    let mut trees = Trees::new(std::slice::from_ref(&root), 1, false);
    assert_eq!(trees.add(&calls()) + &trees.end(), "");
    let expected = "x (7)
# total time  (calls) function
       40 ns : (2) root
        9 ns : +-(1) mid
        9 ns : `-(2) leaf
1 calls are in no tree: outside of it, or not seen to end
";
    assert_eq!(trees.text(7, "x"), expected);
}

#[test]
fn what_goroutines_make_of_threads_is_noted() {
    let root = "root".parse().expect("a probe");
    let mut trees = Trees::new(std::slice::from_ref(&root), usize::MAX, false);
    trees.add(&calls());
    trees.end();
    let says = |trees: &Trees<'_>, pid| {
        let (text, object) = (trees.text(pid, "x"), trees.object(pid));
        (text.contains("trees are of threads"), object.contains("\"goroutines\":true"))
    };
    assert_eq!(says(&trees, 7), (false, false));
    trees.note_goroutines(vec![7]);
    assert_eq!((says(&trees, 7), says(&trees, 8)), ((true, true), (false, false)));
}
