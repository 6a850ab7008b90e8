//! The port: a request for metrics waits until the run's loop answers it.
//!
//! One thread takes connections. Each connection has a thread of its own, one request and some seconds, so a
//! client that is slow or silent delays no other. In: an address; reports, when a client asks. Out: HTTP/1.1.
//! Invariants:
//! - SRV-1 the port is taken before any process is touched;
//! - SRV-2 reports are read at most once each time the loop comes by, however many clients ask;
//! - SRV-3 the loop never waits for a client.
//!
//! Does not: know metrics' names, or what a session is; keep connections.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use trapline::ProcessReport;

use super::text::{Exposition, text};
use crate::args::serve::Address;

/// Limit for simultaneous connections; further ones are closed at once.
const MOST: usize = 64;
/// Limit for the wait for a request, and for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit for the head of a request, in bytes.
const HEAD: usize = 16 << 10;
/// Limit for the header lines of a request.
const HEADERS: usize = 64;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {source}; choose another address with --serve")]
pub(crate) struct ServeError {
    /// As typed.
    address: Address,
    /// The reason.
    source: io::Error,
}

/// A port that answers requests. A request that comes after the session's end gets an error.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address that was taken.
    at: SocketAddr,
    scrapes: Receiver<Scrape>,
}

/// A request for metrics that waits.
#[derive(Debug)]
struct Scrape {
    how: Exposition,
    reply: SyncSender<String>,
}

impl Server {
    /// Takes the port.
    pub(crate) fn bind(address: &Address) -> Result<Self, ServeError> {
        let failed = |source| ServeError { address: address.clone(), source };
        let listener = TcpListener::bind((address.host.as_str(), address.port)).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let (to, scrapes) = channel();
        let accept = move || accept(&listener, &to);
        std::thread::Builder::new().name("metrics".to_owned()).spawn(accept).map_err(failed)?;
        Ok(Self { at, scrapes })
    }
    /// The URL of the metrics.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.at)
    }
    /// Answers all requests that wait.
    pub(crate) fn answer(&self, reports: impl FnOnce() -> Vec<ProcessReport>) {
        let scrapes: Vec<Scrape> = self.scrapes.try_iter().collect();
        if scrapes.is_empty() {
            return;
        }
        let reports = reports();
        for Scrape { how, reply } in scrapes {
            // There is room for one answer. If the client is gone, it needs none.
            drop(reply.try_send(text(&reports, how)));
        }
    }
}

fn accept(listener: &TcpListener, to: &Sender<Scrape>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Most likely no descriptor is free.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= MOST {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (to, one) = (to.clone(), Closing(open.clone()));
        let serve = move || {
            let _one = one;
            // A client that went away is no error of ours.
            drop(serve(stream, &to));
        };
        drop(std::thread::Builder::new().name("metrics".to_owned()).spawn(serve));
    }
}

/// Decrements the number of connections when dropped, even if the connection's thread could not be started.
struct Closing(Arc<AtomicUsize>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads one request, and writes one answer.
fn serve(mut stream: TcpStream, to: &Sender<Scrape>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let request = ask(&head);
    let body_too = !matches!(request, Some((_, true)));
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match request.map(|request| request.0) {
        Some(Ask::Metrics(how)) => match scrape(to, how) {
            Some(text) => ("200 OK", how.content_type(), text),
            None => ("503 Service Unavailable", plain, "the run is over\n".to_owned()),
        },
        Some(Ask::Other(status, message)) => (status, plain, message.to_owned()),
        None => ("400 Bad Request", plain, "no request that this server understands\n".to_owned()),
    };
    let length = body.len();
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    )?;
    if body_too {
        stream.write_all(body.as_bytes())?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Wait until the client has closed too. If bytes from the client were left unread, closing would take the
    // answer away again.
    let end = Instant::now() + PATIENCE;
    let mut rest = [0; 1024];
    while Instant::now() < end && stream.read(&mut rest)? > 0 {}
    Ok(())
}

/// Gets the loop's answer; `None` if the loop has ended.
fn scrape(to: &Sender<Scrape>, how: Exposition) -> Option<String> {
    let (reply, answer) = sync_channel(1);
    to.send(Scrape { how, reply }).ok()?;
    answer.recv().ok()
}

/// Reads up to the empty line.
fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = stream.read(&mut bytes)?;
        head.extend_from_slice(&bytes[..read]);
        if read == 0 || head.len() > HEAD || Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(head)
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Ask {
    Metrics(Exposition),
    Other(&'static str, &'static str),
}

/// What is asked for, and whether only the head of the answer is; `None` if it is not HTTP.
fn ask(head: &[u8]) -> Option<(Ask, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).ok()?;
    let (method, path) = (request.method?, request.path?);
    if !matches!(method, "GET" | "HEAD") {
        return Some((Ask::Other("405 Method Not Allowed", "only GET and HEAD\n"), false));
    }
    let accept = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or_default();
    let what = match path.split('?').next() {
        Some("/metrics") => Ask::Metrics(Exposition::wanted(accept)),
        Some("/") => Ask::Other("200 OK", "trapline: ask for /metrics\n"),
        _ => Ask::Other("404 Not Found", "no such page; ask for /metrics\n"),
    };
    Some((what, method == "HEAD"))
}

#[cfg(test)]
mod tests {
    use super::{Ask, ask};
    use crate::serve::text::Exposition;

    #[test]
    fn requests_are_understood_or_not() {
        let metrics = |how| Some((Ask::Metrics(how), false));
        assert_eq!(ask(b"GET /metrics?x HTTP/1.1\r\n\r\n"), metrics(Exposition::Prometheus));
        let open = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n\r\n";
        assert_eq!(ask(open), metrics(Exposition::OpenMetrics));
        assert!(matches!(ask(b"HEAD / HTTP/1.0\r\n\r\n"), Some((Ask::Other("200 OK", _), true))));
        assert!(matches!(ask(b"GET /etc HTTP/1.1\r\n\r\n"), Some((Ask::Other("404 Not Found", _), false))));
        for wrong in [
            &b"\r\n\r\n"[..],
            b"GET\r\n\r\n",
            b"\x16\x03\x01\r\n\r\n",
            &[b"GET / HTTP/1.1\r\n".as_slice(), &b"a:b\r\n".repeat(65)].concat(),
        ] {
            assert_eq!(ask(wrong), None);
        }
    }
}
