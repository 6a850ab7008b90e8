//! All to whom a run tells its metrics.
//!
//! In: a command line's run; reports, when somebody wants them. Out: the same to each. Invariant: OUT-1 who cannot be reached is found out before
//! any process is touched.

use trapline::ProcessReport;

#[cfg(feature = "otlp")]
use super::push::{Exporter, PushError};
use super::server::{ServeError, Server};
use crate::args::command::Run;

/// How often metrics are sent, if it is not said.
#[cfg(feature = "otlp")]
const SENT: std::time::Duration = std::time::Duration::from_secs(10);

/// Why nobody can be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutletError {
    /// No port.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// No collector.
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Push(#[from] PushError),
}

/// Those who ask, and those who are told.
#[derive(Debug)]
pub(crate) struct Outlets {
    server: Option<Server>,
    #[cfg(feature = "otlp")]
    exporter: Option<Exporter>,
}

impl Outlets {
    /// As the command line wants them.
    pub(crate) fn open(run: &Run) -> Result<Self, OutletError> {
        Ok(Self {
            server: run.serve.as_ref().map(Server::bind).transpose()?,
            #[cfg(feature = "otlp")]
            exporter: {
                let every = run.interval.filter(|_| run.sink.interval().is_none()).unwrap_or(SENT);
                run.otlp.as_ref().map(|collector| Exporter::open(collector, every)).transpose()?
            },
        })
    }
    /// Where people may ask.
    pub(crate) fn notices(&self) -> impl Iterator<Item = String> {
        self.server.iter().map(|server| format!("metrics at {}", server.url()))
    }
    /// Tells all who wait.
    pub(crate) fn tell(&mut self, mut reports: impl FnMut() -> Vec<ProcessReport>) {
        if let Some(server) = &self.server {
            server.answer(&mut reports);
        }
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &mut self.exporter {
            exporter.send(&mut reports);
        }
    }
    /// The last reports, to those who do not ask.
    pub(crate) fn finish(self, reports: &[ProcessReport]) -> Result<(), OutletError> {
        drop(self.server);
        #[cfg(feature = "otlp")]
        self.exporter.map_or(Ok(()), |exporter| exporter.finish(reports))?;
        #[cfg(not(feature = "otlp"))]
        let _ = reports;
        Ok(())
    }
}
