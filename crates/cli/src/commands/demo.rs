//! `demo`.
use super::{Failure, Outcome};
use crate::args::ready::Demo;
pub(crate) fn run(_: &Demo) -> Result<Outcome, Failure> {
    Err(Failure::Other("not yet".into()))
}
