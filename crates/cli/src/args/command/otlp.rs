//! `--otlp`: the collector to which metrics are sent.
//!
//! In: its URL. Out: [`Collector`], or what is wrong. Does not: connect.

use std::fmt;

/// The path at a collector if its URL has none, as OpenTelemetry's environment variables define it.
const PATH: &str = "/v1/metrics";

/// The collector to which metrics are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector {
    /// The host, with a port if one was given.
    authority: String,
    /// The path, with its leading slash.
    path: String,
}

impl fmt::Display for Collector {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "http://{}{}", self.authority, self.path)
    }
}

/// A URL that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CollectorError {
    /// It is no URL.
    #[error(
        "--otlp: `{0}` is no address of a collector: write http://HOST:PORT, for example http://localhost:4318"
    )]
    NoUrl(String),
    /// It asks for encryption.
    #[error("--otlp: `{0}`: only http is spoken; send to a collector on this machine, which sends on")]
    Encrypted(String),
    /// This program was built without OTLP.
    #[error("--otlp: this trapline was built without it (feature otlp)")]
    NotBuilt,
}

/// Parses the option.
pub(crate) fn collector(typed: Option<&str>) -> Result<Option<Collector>, CollectorError> {
    match typed {
        Some(_) if !cfg!(feature = "otlp") => Err(CollectorError::NotBuilt),
        typed => typed.map(read).transpose(),
    }
}

fn read(text: &str) -> Result<Collector, CollectorError> {
    let wrong = || CollectorError::NoUrl(text.to_owned());
    if text.starts_with("https://") {
        return Err(CollectorError::Encrypted(text.to_owned()));
    }
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // The port stands behind the last colon, unless that colon is part of an address of version 6.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = match six {
        Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(named),
    };
    let reached = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if !good || !reached || path.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
        return Err(wrong());
    }
    let path = if path.len() <= 1 { PATH } else { path };
    Ok(Collector { authority: authority.to_owned(), path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::{CollectorError, read};

    #[test]
    fn urls_have_a_host_and_perhaps_more() {
        for (text, whole) in [
            ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
            ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
            ("http://10.0.0.1/otlp/v1/metrics", "http://10.0.0.1/otlp/v1/metrics"),
            ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
            ("http://[::1]", "http://[::1]/v1/metrics"),
        ] {
            assert_eq!(read(text).map(|collector| collector.to_string()), Ok(whole.to_owned()), "{text}");
        }
        for wrong in [
            "",
            "localhost:4318",
            "http://",
            "http:///v1/metrics",
            "http://host:port",
            "http://host:0",
            "http://host:70000",
            "http://::1:4318",
            "http://user@host",
            "http://host/a b",
        ] {
            assert_eq!(read(wrong), Err(CollectorError::NoUrl(wrong.to_owned())), "{wrong}");
        }
        assert!(matches!(read("https://host"), Err(CollectorError::Encrypted(_))));
    }
}
