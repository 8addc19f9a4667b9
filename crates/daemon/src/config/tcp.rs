//! `[tcp]`: the service beyond this host, for callers with a token.

use super::ConfigError;
use super::values::positive;
use crate::http::rate::Rate;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The service over TCP, from the file or the command line; off without an address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpConfig {
    /// Where it listens (`"127.0.0.1:7474"`).
    pub listen: Option<String>,
    /// Its certificate, PEM, with those that vouch for it.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Calls a second that each tenant may make in the long run.
    pub requests_per_s: Option<f64>,
    /// Calls that each tenant may make at once.
    pub burst: Option<f64>,
}

/// The service over TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct Tcp {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its certificate and the key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// How often each tenant may call.
    pub rate: Rate,
}

impl TcpConfig {
    pub(super) fn settle(&self) -> Result<Option<Tcp>, ConfigError> {
        let half = |given, missing| Err(ConfigError::HalfTcp { given, missing });
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (Some(_), None) => return half("tls_cert", "tls_key"),
            (None, Some(_)) => return half("tls_key", "tls_cert"),
            (None, None) => None,
        };
        let per_s = positive("tcp.requests_per_s", self.requests_per_s, 50.0)?;
        let burst = positive("tcp.burst", self.burst, 200.0)?;
        let Some(text) = &self.listen else {
            return if tls.is_some() { half("tls_cert", "listen") } else { Ok(None) };
        };
        let why = "write an address and a port, such as \"127.0.0.1:7474\" or \"[::]:7474\"";
        let listen: SocketAddr = text.parse().map_err(|_| ConfigError::value("tcp.listen", text, why))?;
        if tls.is_none() && !listen.ip().to_canonical().is_loopback() {
            return Err(ConfigError::PlainTcp { listen });
        }
        Ok(Some(Tcp { listen, tls, rate: Rate { per_s, burst } }))
    }
}
