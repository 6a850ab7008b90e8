//! Which places of which modules the specifications mean.
//!
//! In: modules that are newly mapped. Out: places to probe, and a line for each specification that found nothing. A
//! specification without a file is for the first module that has what it names, the program first. Does not: patch.

use trapline_plan::Role;

use super::{Traced, Wishes};
use crate::files::Files;
use crate::modules::{Mapped, Module};
use crate::report::Refused;
use crate::sites::{Miss, Places, miss_text};

impl Traced {
    /// The places that the specifications mean in new modules.
    pub(crate) fn choose(
        &mut self,
        files: &mut Files,
        wishes: &Wishes,
        fresh: &[Mapped],
    ) -> (Vec<Module>, Places) {
        let mut opened: Vec<Option<usize>> = vec![None; fresh.len()];
        let (mut modules, mut places) = (Vec::new(), Places::default());
        for (nth, spec) in wishes.specs.iter().enumerate() {
            let anywhere = spec.file.is_none();
            let mut missed: (Vec<String>, Vec<Miss>) = Default::default();
            for (index, one) in fresh.iter().enumerate() {
                if anywhere && self.matched.contains(&nth) {
                    break;
                }
                let called = match spec.file.as_deref() {
                    Some(name) => one.path_as(&self.process, name),
                    None => Some(one.usual_path(&self.process)),
                };
                let Some(called) = called else { continue };
                let module = match opened[index] {
                    Some(module) => module,
                    None => match one.open(&self.process, files) {
                        Ok(module) => {
                            self.note_replaced(&module);
                            modules.push(module);
                            opened[index] = Some(modules.len() - 1);
                            modules.len() - 1
                        }
                        Err(reason) => {
                            if !anywhere {
                                let probe = spec.text.clone();
                                places.refused.push(Refused { probe, kind: "file-unreadable", reason });
                                self.matched.insert(nth);
                            }
                            continue;
                        }
                    },
                };
                modules[module].called = called;
                let known = places.found.len();
                let selected = places.select(Some(&self.process), &modules, module, spec, wishes.aim);
                places.found[known..].iter_mut().for_each(|place| {
                    place.filter = wishes.filters.get(nth).cloned();
                    if let Role::Record { texts, floats, fields, .. } = &mut place.role {
                        *texts = wishes.texts.get(nth).copied().unwrap_or(0) & 0x3f;
                        *fields = place.filter.as_ref().map_or(0, |filter| filter.field_words());
                        *floats = wishes.floats.get(nth).copied().unwrap_or_default();
                    }
                });
                match selected {
                    Ok(()) => drop(self.matched.insert(nth)),
                    Err(miss) => {
                        missed.0.push(modules[module].called.clone());
                        missed.1.push(miss);
                    }
                }
            }
            if !self.matched.contains(&nth) {
                self.misses.push(match (&spec.file, missed.0.is_empty()) {
                    (Some(file), true) => {
                        format!("no file {file} is mapped by {} ({})", self.name, self.process.pid())
                    }
                    _ => miss_text(spec, &missed.0, &missed.1),
                });
            }
        }
        places.tell_apart();
        (modules, places)
    }
    fn note_replaced(&mut self, module: &Module) {
        if module.file.replaced {
            self.notices.push(format!(
                "{} was replaced on disk since process {} mapped it; the mapped file is probed",
                module.file.path,
                self.process.pid()
            ));
        }
    }
}
