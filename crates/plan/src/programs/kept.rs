//! Some values of a function, kept: what a module's sites ask for again and again.
//!
//! In: a question, and how its answer is made. Out: the answer, as it was made before if it is still there. The function is
//! pure: its answer depends on the question alone. The oldest answer makes room for a new one. Does not: know programs or
//! code.

/// How many are kept.
const KEPT: usize = 16;

/// Answers, each with its question.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    answers: Vec<T>,
    oldest: usize,
}

impl<T> Kept<T> {
    pub(crate) const fn new() -> Self {
        Self { answers: Vec::new(), oldest: 0 }
    }
    /// The answer for which `is` holds; else the one that `make` makes.
    ///
    /// # Errors
    /// Why it makes none.
    pub(crate) fn answer<E>(
        &mut self,
        is: impl FnMut(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        let nth = match self.answers.iter().position(is) {
            Some(found) => found,
            None => self.keep(make()?),
        };
        Ok(&self.answers[nth])
    }
    #[cold]
    fn keep(&mut self, made: T) -> usize {
        if self.answers.len() < KEPT {
            self.answers.push(made);
            return self.answers.len() - 1;
        }
        let nth = self.oldest;
        self.answers[nth] = made;
        self.oldest = (nth + 1) % KEPT;
        nth
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Kept};

    #[test]
    fn an_answer_is_made_once_while_it_is_kept() {
        let (mut kept, mut made) = (Kept::new(), 0);
        let mut ask = |question: usize| {
            let answer = kept.answer(
                |answer| *answer == question,
                || {
                    made += 1;
                    Ok::<_, ()>(question)
                },
            );
            assert_eq!(answer, Ok(&question));
            made
        };
        assert_eq!((ask(0), ask(0), ask(1), ask(0)), (1, 1, 2, 2));
        (2..KEPT).for_each(|question| _ = ask(question));
        assert_eq!((ask(0), ask(KEPT - 1)), (KEPT, KEPT), "all are kept");
        assert_eq!((ask(KEPT), ask(1), ask(0)), (KEPT + 1, KEPT + 1, KEPT + 2), "the oldest made room");
        assert_eq!(kept.answer(|_| false, || Err("none")), Err("none"));
    }
}
