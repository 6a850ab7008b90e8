//! `--serve`: the address at which metrics are offered.
//!
//! In: its text. Out: [`Address`], or what is wrong. Does not: take the port.

use std::fmt;

/// Where metrics are offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// A name or an address of the host.
    pub(crate) host: String,
    /// The port; 0 for a free one.
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

/// Parses the option.
pub(crate) fn address(typed: Option<&str>) -> Result<Option<Address>, AddressError> {
    typed.map(read).transpose()
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
