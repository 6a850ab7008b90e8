//! Facts on which patches rely, and what has become of them (`hold` has the protocol).
//!
//! In: what each batch relies on, and what changes. Out: which facts threads wait for, and the word that says
//! for which they do not. Invariants: what is answered has changed.
//! Does not: take patches out, or write the word.

use std::collections::HashSet;

/// Sets of facts (`record::control::fact`), and where threads wait for them.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Facts that patches rely on.
    relied: u64,
    /// Facts that have changed, or are about to.
    changed: u64,
    /// Facts for which the waiting threads were released.
    answered: u64,
    /// Whether threads wait anywhere before they change a fact.
    any: bool,
    /// Addresses of sites that do nothing but this: no hit counts there.
    holds: HashSet<u64>,
}

impl Facts {
    /// Notes what the next batch relies on.
    pub(crate) const fn rely(&mut self, facts: u64) {
        self.relied |= facts;
    }
    /// Notes whether threads wait at sites of a batch, and the addresses of those that do nothing else. A user's
    /// probe may share a site with a hold.
    pub(crate) fn hold_at(&mut self, any: bool, only: impl Iterator<Item = u64>) {
        self.any |= any;
        self.holds.extend(only);
    }
    /// Notes that these have changed.
    pub(crate) const fn change(&mut self, facts: u64) {
        self.changed |= facts;
    }
    /// Notes that threads wait no longer for what has changed.
    pub(crate) const fn answer(&mut self) {
        self.answered = self.changed;
    }
    /// Facts that patches rely on, and that hold.
    pub(crate) const fn relied_on(&self) -> u64 {
        self.relied & !self.changed
    }
    /// Whether one of these has changed, which a probe would rely on.
    pub(crate) const fn has_changed(&self, facts: u64) -> bool {
        self.changed & facts != 0
    }
    /// Whether threads wait anywhere.
    pub(crate) const fn hold_any(&self) -> bool {
        self.any
    }
    /// Whether the site at an address does nothing but hold threads.
    pub(crate) fn only_holds_at(&self, addr: u64) -> bool {
        self.holds.contains(&addr)
    }
    /// The word `CLOSED`: no thread waits for a fact on which nothing relies. If a fact was closed and is not
    /// answered yet, threads still wait for it, since its sites are being probed anew.
    pub(crate) const fn closed(&self) -> u64 {
        !(self.relied & !self.answered)
    }
}

#[cfg(test)]
mod tests {
    use trapline_record::control::fact;

    use super::Facts;

    #[test]
    fn threads_wait_for_what_patches_rely_on_until_it_is_answered() {
        let mut facts = Facts::default();
        assert_eq!(facts.closed(), u64::MAX, "nothing relies on any fact");
        facts.rely(fact::CLOCK | fact::FAULTS);
        assert_eq!(
            (facts.relied_on(), facts.closed()),
            (fact::CLOCK | fact::FAULTS, !(fact::CLOCK | fact::FAULTS))
        );
        facts.change(fact::CLOCK);
        assert!(facts.has_changed(fact::CLOCK) && !facts.has_changed(fact::FAULTS));
        assert_eq!((facts.relied_on(), facts.closed()), (fact::FAULTS, !(fact::CLOCK | fact::FAULTS)));
        facts.answer();
        assert_eq!(facts.closed(), !fact::FAULTS);
    }
}
