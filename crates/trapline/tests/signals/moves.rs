//! Handlers that move the thread elsewhere, or to another stack: by jump at entries, and by a trap elsewhere,
//! if they declare it.

use trapline::inside::{Consumer, Gpr, Hit, Regs, Tactic, Verdict};

use crate::program::Library;

fn changing(change: impl Fn(&mut Regs) + Send + Sync + 'static) -> Consumer {
    Consumer::entry(move |hit: &mut Hit<'_>| {
        // SAFETY: each test sets the registers to values with which its function may go on.
        change(unsafe { hit.regs_mut() });
        Verdict::Continue
    })
}

#[test]
fn a_moved_instruction_pointer_is_honoured_inside_a_function_and_takes_a_trap() {
    let library = Library::load();
    // Skips the division.
    let skips = changing(|regs| {
        if regs.get(Gpr::Rsi) == 0 {
            regs.rip += 3;
        }
    });
    let probe = library.probe("divide+5", false, skips.moves_ip());
    assert_eq!(probe.sites(), [Tactic::Trap]);
    assert_eq!((library.call("divide", 40, 8), library.call("divide", 40, 0)), (5, 40));
    assert_eq!(probe.counts().hits, 2);
}

/// A first consumer stays, by jump; then one comes that moves the thread. The site becomes a trap, and both
/// are called.
#[test]
fn a_site_becomes_a_trap_when_a_consumer_comes_that_moves() {
    let library = Library::load();
    let stays = library.quiet("divide+5", false);
    assert_eq!(library.call("divide", 40, 8), 5);
    let moves = library.probe("divide+5", false, changing(|regs| regs.rip += 3).moves_ip());
    assert_eq!((stays.sites(), moves.sites()), (vec![Tactic::Trap], vec![Tactic::Trap]));
    assert_eq!(library.call("divide", 40, 0), 40);
    assert_eq!(stays.counts().hits, 2);
    drop(moves);
    assert_eq!(library.call("divide", 40, 8), 5);
}

#[test]
fn an_entry_that_moves_stays_a_jump() {
    let library = Library::load();
    let inside = library.address("inner+3");
    let probe = library.probe("inner", false, changing(move |regs| regs.rip = inside).moves_ip());
    assert_eq!(probe.sites(), [Tactic::Jump]);
    assert_eq!((library.call("inner", 3, 4), probe.counts().hits), (7, 1));
}

/// The function returns the word above the stack pointer. The handler raises the stack pointer by one word,
/// and puts a word back in its place.
#[test]
fn a_moved_stack_pointer_is_honoured() {
    for by_trap in [false, true] {
        let library = Library::load();
        let probe = library.probe(
            "stacked+2",
            by_trap,
            changing(|regs| {
                let sp = regs.sp();
                regs.set(Gpr::Rsp, sp + 8);
            })
            .moves_sp(),
        );
        assert_eq!(probe.sites(), [Tactic::Trap]);
        // push rsi, push rdi: without the first of the two words, `pop` takes the second one, and `ret` finds
        // its address.
        assert_eq!((library.call("stacked", 3, 4), probe.counts().hits), (4, 1));
    }
}
