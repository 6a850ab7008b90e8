//! Which processes a session is about.

/// Processes to trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// Every process that maps a probed file and that we may trace.
    #[default]
    Any,
    /// These, and all whose name is one of these.
    Running {
        /// By pid.
        pids: Vec<u32>,
        /// By name.
        names: Vec<String>,
    },
    /// A command that is started, and probed before its first own instruction.
    Launch(Vec<String>),
}
