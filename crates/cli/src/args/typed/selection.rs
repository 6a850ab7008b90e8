//! Which calls of a recording are shown, as clap reads it.

use clap::Args;

/// The calls that are shown, in uftrace's words.
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedSelection {
    /// Show only calls of FUNC, and what they call; may be given more than once
    #[arg(short = 'F', long, value_name = "FUNC", help_heading = SHOWN)]
    pub(crate) filter: Vec<String>,
    /// Show no calls of FUNC, and nothing that they call; may be given more than once
    #[arg(short = 'N', long, value_name = "FUNC", help_heading = SHOWN)]
    pub(crate) notrace: Vec<String>,
    /// Show only calls of FUNC, and those that they are within; may be given more than once
    #[arg(short = 'C', long, value_name = "FUNC", help_heading = SHOWN)]
    pub(crate) caller: Vec<String>,
    /// Show no calls that took less than TIME (1ms, 20us, 500ns)
    #[arg(short = 't', long, value_name = "TIME", help_heading = SHOWN)]
    pub(crate) time_filter: Option<String>,
    /// Do something at calls of FUNC: trace_on, trace_off, depth=N, backtrace, filter, notrace; may be given more than once.
    ///
    /// trace_off: no call that begins from here on is shown, of any thread, up to trace_on. depth=N: N levels are shown from this call
    /// on, until it ends. backtrace: the functions that it is within are shown before it.
    #[arg(short = 'T', long, value_name = "FUNC@ACTION[,ACTION]", help_heading = SHOWN)]
    pub(crate) trigger: Vec<String>,
    /// Show also calls that the recording's own triggers leave out (record --trigger)
    #[arg(long, help_heading = SHOWN)]
    pub(crate) all_calls: bool,
    /// Show only this thread; may be given more than once
    #[arg(long = "tid", value_name = "TID", value_delimiter = ',', help_heading = SHOWN)]
    pub(crate) tids: Vec<u32>,
    /// Read the recording from this time after its begin (1.5s, 20ms); what is before is not read
    #[arg(long, value_name = "TIME", help_heading = SHOWN)]
    pub(crate) since: Option<String>,
    /// Read the recording until this time after its begin
    #[arg(long, value_name = "TIME", help_heading = SHOWN)]
    pub(crate) until: Option<String>,
}

impl TypedSelection {
    /// The first option that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            (!self.filter.is_empty(), "--filter"),
            (!self.notrace.is_empty(), "--notrace"),
            (!self.caller.is_empty(), "--caller"),
            (self.time_filter.is_some(), "--time-filter"),
            (!self.trigger.is_empty(), "--trigger"),
            (self.all_calls, "--all-calls"),
            (!self.tids.is_empty(), "--tid"),
            (self.since.is_some(), "--since"),
            (self.until.is_some(), "--until"),
        ];
        all.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }
}

/// `--depth`, where it counts from the outermost calls.
#[derive(Args, Debug, Clone)]
pub(crate) struct TypedDepth {
    /// Show only N levels; behind a call of --filter, they begin again
    #[arg(short = 'D', long, value_name = "N", help_heading = SHOWN)]
    pub(crate) depth: Option<usize>,
}

const SHOWN: &str = "Shown calls";
