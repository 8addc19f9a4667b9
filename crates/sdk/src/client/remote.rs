//! A daemon on another host: its address, the token to send, and connections to it.
//!
//! None of this is used for a daemon on this host. Certificates are read and TLS is set up when the first connection is
//! made. A token is never sent over a network unencrypted.

use super::{ConnectError, ConnectFailure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned, version};
use std::env;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use sublet_wire::{TOKEN_DIGITS, TOKEN_PREFIX};

/// The port if the address names none.
const PORT: u16 = 7474;
/// A host that does not answer within this time counts as unreachable.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A daemon on another host.
pub struct RemoteDaemon {
    url: String,
    place: UrlParts,
    token: String,
    /// The connection that `at` made to test the address. The first call uses it.
    first: Mutex<Option<TcpStream>>,
    tls: OnceLock<Arc<ClientConfig>>,
}

impl fmt::Debug for RemoteDaemon {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The parts of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UrlParts {
    private: bool,
    host: String,
    port: u16,
    /// Host and port as they were written.
    authority: String,
}

/// A stream that can be read from and written to.
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl RemoteDaemon {
    /// The daemon at an address, with the token from the environment; an error if no daemon listens there.
    pub fn at(url: &str) -> Result<RemoteDaemon, ConnectError> {
        let (place, token, first) = (read_url(url)?, token()?, Mutex::new(None));
        let mut remote = RemoteDaemon { url: url.to_owned(), place, token, first, tls: OnceLock::new() };
        let stream = remote.dial().map_err(|error| remote.unreachable(&error))?;
        remote.first = Mutex::new(Some(stream));
        Ok(remote)
    }

    /// The address as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The host and the token, for the request head.
    pub fn header(&self) -> (&str, &str) {
        (&self.place.authority, &self.token)
    }

    /// A connection with a time limit for reads and writes.
    pub fn connect(&self, within: Duration) -> io::Result<Box<dyn Stream>> {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        let stream = first.map_or_else(|| self.dial(), Ok)?;
        stream.set_read_timeout(Some(within))?;
        stream.set_write_timeout(Some(within))?;
        stream.set_nodelay(true)?;
        if !self.place.private {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(self.place.host.clone()).map_err(io::Error::other)?;
        let config = match self.tls.get() {
            Some(config) => Arc::clone(config),
            None => {
                let config = trust().map_err(io::Error::other)?;
                Arc::clone(self.tls.get_or_init(|| config))
            }
        };
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (self.place.host.as_str(), self.place.port).to_socket_addrs()? {
            // Without encryption a host name must not lead to another host.
            if !self.place.private && !address.ip().to_canonical().is_loopback() {
                continue;
            }
            match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The message for a call without an answer.
    pub fn unreachable(&self, error: &io::Error) -> ConnectError {
        let failure = |why: &str| {
            ConnectError::new(ConnectFailure::NoDaemon, format!("no daemon answers at {}: {why}", self.url))
        };
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(why)) => {
                let (why, hint) = certificate_words(why, &self.place.host);
                failure(&why).hint(hint)
            }
            Some(why) => failure(&why.to_string())
                .hint("is it a daemon with a certificate? without one write http:// (this host only)"),
            None => failure(&error.to_string())
                .hint("is it started with `sublet serve --listen`, and does a firewall let you through?"),
        }
    }
}

/// What is wrong with a daemon's certificate, and what to do about it.
fn certificate_words(error: &CertificateError, host: &str) -> (String, String) {
    let anew = format!("make a new one on that host with `sublet tls make {host}`, and restart or reload the daemon");
    match error {
        CertificateError::UnknownIssuer => (
            "its certificate is not one that this host trusts".to_owned(),
            "set SUBLET_CA to a file with the certificate that vouches for it: for one that `sublet tls make` made, \
             a copy of its cert.pem"
                .to_owned(),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ("its certificate has expired".to_owned(), anew)
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ("its certificate is not valid yet".to_owned(), "compare the clocks of both hosts with `date`".to_owned())
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            (format!("its certificate is not for `{host}`"), anew)
        }
        // Compared by name, because the type behind it is not part of rustls.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => (
            "its certificate may sign other certificates (CA:TRUE, as `openssl req -x509` makes it), and such a \
             certificate is not accepted from a server"
                .to_owned(),
            anew,
        ),
        other => (format!("its certificate is refused ({other})"), anew),
    }
}

/// The TLS error behind an I/O error, if there is one. Trying again does not help then.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Parses `https://gpu1:7474`. Plain `http` is accepted for this host only.
fn read_url(url: &str) -> Result<UrlParts, ConnectError> {
    let wrong = || {
        ConnectError::new(ConnectFailure::Usage, format!("`{}` is not a daemon's address", plain(url)))
            .hint("write https://HOST:PORT, such as https://gpu1:7474")
    };
    let (private, rest) = match url.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => return Err(wrong()),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => authority.split_once(':').map_or((authority, Some("")), |(host, port)| (host, Some(port))),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let plain = authority.starts_with('[') || (!host.is_empty() && host.chars().all(is_name));
    let port = match port.ok_or_else(wrong)? {
        "" if authority.ends_with(':') => return Err(wrong()),
        "" => PORT,
        digits => digits.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
    };
    if !plain {
        return Err(wrong());
    }
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    if !private && !here {
        return Err(ConnectError::new(ConnectFailure::Usage, format!("{url} would send the token unencrypted"))
            .hint("write https://; the daemon needs a certificate for it (`sublet serve --tls-cert`)"));
    }
    Ok(UrlParts { private, host: host.to_owned(), port, authority: authority.to_owned() })
}

/// The text without control characters, which could disturb a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The token from the environment. It is checked here, so that nothing else can get into a header.
fn token() -> Result<String, ConnectError> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let (text, place) = match (set("SUBLET_TOKEN"), set("SUBLET_TOKEN_FILE").map(PathBuf::from)) {
        (Some(text), _) => (text.to_string_lossy().into_owned(), "SUBLET_TOKEN".to_owned()),
        (None, Some(path)) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path).map_err(|error| {
                ConnectError::new(ConnectFailure::Usage, format!("the token cannot be read from {shown}: {error}"))
            })?;
            (text, shown)
        }
        (None, None) => {
            return Err(ConnectError::new(
                ConnectFailure::Denied,
                "a daemon elsewhere wants a token, and there is none",
            )
            .hint("set SUBLET_TOKEN_FILE to a file with it; `sublet token create` on that host makes one"));
        }
    };
    let token = text.trim();
    let digits = token.strip_prefix(TOKEN_PREFIX).filter(|digits| digits.len() == TOKEN_DIGITS);
    match digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit())) {
        true => Ok(token.to_owned()),
        false => Err(ConnectError::new(ConnectFailure::Usage, format!("what {place} has is not a token"))
            .hint("a token is sbl_ and 64 digits, as `sublet token create` printed it")),
    }
}

/// The trusted certificates: those in the file SUBLET_CA, or else those that this host trusts.
fn trust() -> Result<Arc<ClientConfig>, rustls::Error> {
    let general = |what: String| rustls::Error::General(what);
    let mut roots = RootCertStore::empty();
    match env::var_os("SUBLET_CA").filter(|path| !path.is_empty()).map(PathBuf::from) {
        Some(path) => {
            let named = |error| general(format!("SUBLET_CA={}: {error}", path.display()));
            for found in CertificateDer::pem_file_iter(&path).map_err(named)? {
                roots.add(found.map_err(named)?)?;
            }
        }
        None => {
            // Single unreadable certificates do no harm. Without any certificate, no server is trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(general("no certificate was found that could vouch for a server".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Result<(bool, String, u16), String> {
        read_url(url).map(|place| (place.private, place.host, place.port)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn addresses_are_read() {
        let is = |private, host: &str, port| Ok((private, host.to_owned(), port));
        assert_eq!(place("https://gpu1:7000"), is(true, "gpu1", 7000));
        assert_eq!(place("https://gpu1.example/"), is(true, "gpu1.example", PORT));
        assert_eq!(place("https://[2001:db8::1]:7000"), is(true, "2001:db8::1", 7000));
        assert_eq!(place("http://127.0.0.1:7000"), is(false, "127.0.0.1", 7000));
        assert_eq!(place("http://localhost"), is(false, "localhost", PORT));
        assert_eq!(place("http://[::1]"), is(false, "::1", PORT));
        for url in [
            "",
            "gpu1",
            "ftp://gpu1",
            "https://",
            "https://:1",
            "https://gpu1:",
            "https://gpu1:0",
            "https://gpu1:99999",
            "https://gpu1/v1",
            "https://me@gpu1",
            "https://gpu1\r\nx",
            "https://[::1",
            "https://[gpu1]",
            "https://[::1]x",
            "https://gpu1?token=sbl_",
        ] {
            assert!(place(url).unwrap_err().contains("is not a daemon's address"), "{url}");
        }
    }

    #[test]
    fn a_token_is_not_sent_in_clear_beyond_this_host() {
        for url in ["http://gpu1:7474", "http://192.0.2.1", "http://0.0.0.0", "http://localhost.example"] {
            assert!(place(url).unwrap_err().contains("would send the token unencrypted"), "{url}");
        }
    }
}
