//! Why a configuration cannot be used, and what to do about it.

use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Why the configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration `{}`", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that does not exist.
    #[error("the configuration `{}` is wrong", path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("`{key} = \"{value}\"` makes no sense: {why}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// What would do.
        why: String,
    },
    /// There is no such user or group on this host.
    #[error("there is no {kind} `{name}` on this host")]
    NoSuch {
        /// `user` or `group`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A key that says nothing where it stands.
    #[error("`{key}` says nothing in `[{table}]`")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// Where it was.
        table: &'static str,
    },
    /// Tokens would go over the network for all to read.
    #[error("without a certificate the service listens on this host only, and {listen} is reached from others")]
    PlainTcp {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// Half of what TLS needs, or all of it and no address.
    #[error("`{given}` is given, and `{missing}` is not")]
    HalfTcp {
        /// What there is.
        given: &'static str,
        /// What is not.
        missing: &'static str,
    },
}

impl ConfigError {
    /// The next step.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ConfigError::Wrong { .. } | ConfigError::Misplaced { .. } => Some("docs/configuration.md lists every key"),
            ConfigError::PlainTcp { .. } => Some(
                "give a certificate with `tls_cert` and `tls_key` (`--tls-cert`, `--tls-key`), or listen on 127.0.0.1",
            ),
            ConfigError::Unreadable { .. } => {
                Some("name a file with `--config` that is there, and that its user can read")
            }
            ConfigError::HalfTcp { .. } => Some("give both, and the address to listen on, or none of the three"),
            _ => None,
        }
    }
}
