//! All destinations of a run's metrics.
//!
//! In: a command line's run; reports, when a destination needs them. Out: the same metrics to each.
//! Invariant: DEST-1 a destination that cannot be reached is found out before any process is touched.

use trapline::ProcessReport;

#[cfg(feature = "otlp")]
use super::push::{Exporter, PushError};
use super::server::{ServeError, Server};
use crate::args::command::Run;

/// How often metrics are sent if no interval was typed.
#[cfg(feature = "otlp")]
const SENT: std::time::Duration = std::time::Duration::from_secs(10);

/// Why metrics cannot be delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutletError {
    /// The port cannot be taken.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The collector cannot be reached.
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Push(#[from] PushError),
}

/// The server that answers scrapes, and the exporter that sends.
#[derive(Debug)]
pub(crate) struct Outlets {
    server: Option<Server>,
    #[cfg(feature = "otlp")]
    exporter: Option<Exporter>,
}

impl Outlets {
    /// Opens the destinations that the command line names.
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
    /// The addresses at which metrics can be read.
    pub(crate) fn notices(&self) -> impl Iterator<Item = String> {
        self.server.iter().map(|server| format!("metrics at {}", server.url()))
    }
    /// Answers the scrapes that wait, and sends if it is time.
    pub(crate) fn report_totals(&mut self, mut reports: impl FnMut() -> Vec<ProcessReport>) {
        if let Some(server) = &self.server {
            server.answer(&mut reports);
        }
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &mut self.exporter {
            exporter.send(&mut reports);
        }
    }
    /// Sends the last reports to the collector.
    pub(crate) fn finish(self, reports: &[ProcessReport]) -> Result<(), OutletError> {
        drop(self.server);
        #[cfg(feature = "otlp")]
        self.exporter.map_or(Ok(()), |exporter| exporter.finish(reports))?;
        #[cfg(not(feature = "otlp"))]
        let _ = reports;
        Ok(())
    }
}
