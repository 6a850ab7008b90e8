//! `--serve`, as typed and as a ready value; `--otlp`, as typed.

use std::fmt;

use clap::Args;

/// `--serve` and `--otlp`, as typed.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedServe {
    /// Offer counts and histograms as Prometheus metrics at http://ADDR/metrics: PORT for this machine alone, :PORT for all who
    /// can reach it, or HOST:PORT; port 0 takes a free one
    #[arg(long, value_name = "ADDR", help_heading = "Output")]
    pub(crate) serve: Option<String>,
    /// Send the same to a collector by OTLP over HTTP, for example http://localhost:4318; every INTERVAL (10 s), and at the end
    #[arg(long, value_name = "URL", help_heading = "Output")]
    pub(crate) otlp: Option<String>,
}

/// Where metrics are offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// A name or an address.
    pub(crate) host: String,
    /// 0 for a free one.
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colons = self.host.contains(':');
        if colons {
            write!(to, "[{}]:{}", self.host, self.port)
        } else {
            write!(to, "{}:{}", self.host, self.port)
        }
    }
}

/// An address that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--serve: `{0}` is no address: write PORT, :PORT or HOST:PORT, for example 9464 or 0.0.0.0:9464")]
pub(crate) struct AddressError(String);

/// Reads it.
pub(crate) fn address(typed: &TypedServe) -> Result<Option<Address>, AddressError> {
    typed.serve.as_deref().map(read).transpose()
}

fn read(text: &str) -> Result<Address, AddressError> {
    let wrong = || AddressError(text.to_owned());
    let (host, port) = match text.rsplit_once(':') {
        None => ("127.0.0.1", text),
        // Any address of the machine, of version 4 or 6.
        Some(("", port)) => ("::", port),
        Some((host, port)) => match host.strip_prefix('[') {
            Some(host) => (host.strip_suffix(']').ok_or_else(wrong)?, port),
            None if host.contains(':') => return Err(wrong()),
            None => (host, port),
        },
    };
    Ok(Address { host: host.to_owned(), port: port.parse().map_err(|_| wrong())? })
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn addresses_have_a_port_and_perhaps_a_host() {
        for (text, shown) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "[::]:9464"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("localhost:80", "localhost:80"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            assert_eq!(read(text).map(|address| address.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for wrong in ["", "x", "host", "host:", "::1:9464", "[::1:9464", "host:70000", "-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
