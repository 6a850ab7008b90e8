//! `watch`, checked and converted.
//!
//! In: typed words. Out: [`Watch`], or what is wrong. Does not: look a variable up.

use trapline::Target;
use trapline::watch::Expr;

use super::error::UsageError;
use super::run::{positive, target};
use crate::args::command::Watch;
use crate::args::sink::{LINES, Sink};
use crate::args::typed::TypedWatch;

/// Checks and converts.
pub(super) fn watch(typed: TypedWatch) -> Result<Watch, UsageError> {
    let place = |text: &String| text.parse().map_err(|why| UsageError::Place { text: text.clone(), why });
    let places = typed.places.iter().map(place).collect::<Result<_, _>>()?;
    let forks = typed.target.follow;
    let target = target(typed.target)?;
    if matches!(target, Target::Any | Target::All(_)) {
        return Err(UsageError::Conflict(
            "watch needs a process: give one with -p or -n, or start a command with -c or behind --",
        ));
    }
    let sink = Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?;
    Ok(Watch {
        places,
        target,
        forks,
        count: typed.count,
        filter: typed.filter.map(|text| expr("--if", text)).transpose()?,
        until: typed.until.map(|text| expr("--until", text)).transpose()?,
        stack: typed.stack,
        rotate: typed.rotate.as_deref().map(|text| positive("--rotate", text)).transpose()?,
        shield: !typed.no_shield,
        interval: typed.interval.as_deref().map(|text| positive("--interval", text)).transpose()?,
        duration: typed.duration.as_deref().map(|text| positive("--duration", text)).transpose()?,
        timestamps: typed.timestamps,
        sink,
    })
}

fn expr(option: &'static str, text: String) -> Result<Expr, UsageError> {
    text.parse().map_err(|why| UsageError::Expr { option, text, why })
}
